//! Whose a stored variable is: ours, or planted by a former tenant's operating system, which can write any name but can not
//! make a variable that only boot services see.

use crate::Refusal;
use alloc::vec;
use zeroize::Zeroizing;

/// No more is read to find out whose a variable is. Firmware bounds variables at 32 to 64 KiB.
pub const MAX_VARIABLE_BYTES: usize = 64 * 1024;

/// What the firmware says to one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// No variable of this name.
    Absent,
    /// So many octets, and whether its attributes are those that we give it.
    Value {
        /// Octets in the buffer.
        length: usize,
        /// Its attributes are ours.
        ours: bool,
    },
    /// The buffer is too small; the firmware says what is needed. EDK2 does not give the attributes with this answer.
    Needs(usize),
    /// The store fails.
    Failed,
}

/// What a variable is worth.
pub enum Found<const N: usize> {
    /// There is none.
    Absent,
    /// This value is ours.
    Value(Zeroizing<[u8; N]>),
    /// Not ours, whatever its length: to be removed.
    Planted,
}

/// Reads a variable of `N` octets; one that is longer is read whole, because only then its attributes are known: a planted
/// one must not block identification for good.
///
/// # Errors
/// [`Refusal::Firmware`] when the store fails, or the variable is ours but not `N` octets: it is never overwritten.
pub fn find<const N: usize>(mut get: impl FnMut(&mut [u8]) -> Got) -> Result<Found<N>, Refusal> {
    let mut octets = Zeroizing::new([0u8; N]);
    let mut got = get(octets.as_mut_slice());
    if let Got::Needs(length) = got {
        if length > MAX_VARIABLE_BYTES {
            return Err(Refusal::Firmware);
        }
        got = match get(Zeroizing::new(vec![0u8; length]).as_mut_slice()) {
            // Ours, and too long; or changed in between. Either way nothing was read into `octets`.
            Got::Value { ours: true, .. } => Got::Failed,
            other => other,
        };
    }
    match got {
        Got::Absent => Ok(Found::Absent),
        Got::Value { ours: false, .. } => Ok(Found::Planted),
        Got::Value { length, ours: true } if length == N => Ok(Found::Value(octets)),
        Got::Value { ours: true, .. } | Got::Needs(_) | Got::Failed => Err(Refusal::Firmware),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Seen {
        Absent,
        Value,
        Planted,
        Refused,
    }

    /// A store with one variable, which answers like EDK2.
    fn read(stored: Option<(usize, bool)>) -> Seen {
        let found = find::<32>(|buffer| match stored {
            None => Got::Absent,
            Some((length, _)) if length > buffer.len() => Got::Needs(length),
            Some((length, ours)) => {
                buffer[..length].fill(7);
                Got::Value { length, ours }
            }
        });
        match found {
            Ok(Found::Absent) => Seen::Absent,
            Ok(Found::Value(octets)) => {
                assert_eq!(*octets, [7; 32]);
                Seen::Value
            }
            Ok(Found::Planted) => Seen::Planted,
            Err(_) => Seen::Refused,
        }
    }

    #[test]
    fn a_planted_variable_is_known_whatever_its_length_and_ours_is_never_taken_for_one() {
        assert_eq!(read(None), Seen::Absent);
        assert_eq!(read(Some((32, true))), Seen::Value);
        for length in [1, 31, 32, 33, 4096, MAX_VARIABLE_BYTES] {
            assert_eq!(read(Some((length, false))), Seen::Planted, "{length}");
            if length != 32 {
                assert_eq!(read(Some((length, true))), Seen::Refused, "{length}");
            }
        }
        assert_eq!(read(Some((MAX_VARIABLE_BYTES + 1, false))), Seen::Refused);
    }

    #[test]
    fn firmware_that_fails_or_contradicts_itself_is_a_fault() {
        assert!(find::<32>(|_| Got::Failed).is_err());
        assert!(find::<32>(|_| Got::Needs(64)).is_err(), "it wants more each time");
        let mut turn = 0;
        let changes = find::<32>(|_| {
            turn += 1;
            if turn == 1 { Got::Needs(64) } else { Got::Value { length: 32, ours: true } }
        });
        assert!(changes.is_err(), "what was read into the other buffer is not returned as zeros");
    }
}
