//! The kernel's neighbours, looked up for each request without asking the kernel for each: in proxy mode nobody else tells whose
//! address asks.

use kurrent_core::id::MacAddr;
use kurrent_core::time::Mono;
use kurrent_sys::neighbour;
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What the kernel said is believed for so long.
const BELIEVED: Duration = Duration::from_secs(1);
/// A machine that it did not know is looked for again after this: it may have come just now.
const AGAIN: Duration = Duration::from_millis(20);
/// Answers that are kept; whoever forges sources can make no more.
const MAX_KEPT: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub struct Neighbours(Mutex<HashMap<Ipv4Addr, (Option<MacAddr>, Mono)>>);

impl Neighbours {
    /// Which machine has this address on one of our own links.
    #[must_use]
    pub fn mac_of(&self, address: Ipv4Addr, now: Mono) -> Option<MacAddr> {
        // When the kernel does not say, what was seen on port 67 counts.
        self.look(address, now, |address| neighbour::find(address.into()).ok().flatten())
    }

    fn look(&self, address: Ipv4Addr, now: Mono, ask: impl FnOnce(Ipv4Addr) -> Option<MacAddr>) -> Option<MacAddr> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = |(mac, at): &(Option<MacAddr>, Mono)| now.since(*at) < if mac.is_some() { BELIEVED } else { AGAIN };
        if let Some((mac, _)) = kept.get(&address).copied().filter(fresh) {
            return mac;
        }
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        let mac = ask(address);
        kept.insert(address, (mac, now));
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newcomer_is_found_at_once_and_a_change_within_a_second() {
        let neighbours = Neighbours::default();
        let look = |millis, known: Option<u8>| {
            let ask = |_| known.map(|last| MacAddr([2, 0, 0, 0, 0, last]));
            neighbours.look(Ipv4Addr::new(10, 77, 0, 9), Mono(Duration::from_millis(millis)), ask).map(|mac| mac.0[5])
        };
        assert_eq!((look(0, None), look(19, Some(1)), look(20, Some(1))), (None, None, Some(1)));
        assert_eq!((look(1019, Some(2)), look(1020, Some(2))), (Some(1), Some(2)));
    }

    #[test]
    fn forged_sources_are_bounded() {
        let neighbours = Neighbours::default();
        for number in 0..5000_u16 {
            let [a, b] = number.to_be_bytes();
            let _ = neighbours.look(Ipv4Addr::new(10, 77, a, b), Mono(Duration::ZERO), |_| None);
        }
        assert!(neighbours.0.lock().unwrap().len() <= MAX_KEPT);
    }
}
