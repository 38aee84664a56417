//! The dynamic addresses of one subnet, and which of them nobody has: one bit for each, so that a free one is found in a
//! nearly full range as fast as in an empty one.

use std::net::Ipv4Addr;

/// Most addresses that one subnet gives out, whatever its range says; bounds memory and the lease file.
pub const MAX_LEASES: u32 = 65_536;

/// The addresses that are given out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    first: u32,
    len: u32,
    excluded: Vec<u32>,
    /// Bit `n` of word `n / 64`: the `n`-th address is not to be had. Bits beyond the end are set.
    taken: Vec<u64>,
    /// How many bits are not set.
    free: u32,
}

impl Range {
    /// From `first` to `last`, without `excluded` (our own address, routers).
    #[must_use]
    pub fn new(first: Ipv4Addr, last: Ipv4Addr, excluded: impl IntoIterator<Item = Ipv4Addr>) -> Self {
        let (first, last) = (first.to_bits(), last.to_bits());
        let len = last.checked_sub(first).map_or(0, |n| n.saturating_add(1)).min(MAX_LEASES);
        let words = len.div_ceil(u64::BITS);
        let beyond = |word: u32| (0..u64::BITS).filter(|bit| word * u64::BITS + bit >= len).fold(0, |bits, bit| bits | 1 << bit);
        let taken = (0..words).map(beyond).collect();
        let mut range = Self { first, len, excluded: excluded.into_iter().map(Ipv4Addr::to_bits).collect(), taken, free: len };
        for address in range.excluded.clone() {
            range.mark(Ipv4Addr::from_bits(address), true);
        }
        range
    }

    fn index(&self, address: Ipv4Addr) -> Option<u32> {
        address.to_bits().checked_sub(self.first).filter(|n| *n < self.len)
    }

    /// Whether this address is given out.
    #[must_use]
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        self.index(address).is_some() && !self.is_excluded(address)
    }

    /// Whether this address is never given out, not even by a reservation.
    #[must_use]
    pub fn is_excluded(&self, address: Ipv4Addr) -> bool {
        self.excluded.contains(&address.to_bits())
    }

    /// How many addresses there are, the excluded ones among them.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// How many addresses nobody has.
    pub(super) fn free(&self) -> u32 {
        self.free
    }

    /// Notes whether somebody has the address. Excluded ones stay taken; one outside is nothing to note.
    pub(super) fn mark(&mut self, address: Ipv4Addr, taken: bool) {
        let taken = taken || self.is_excluded(address);
        let Some(index) = self.index(address) else { return };
        let bit = 1 << (index % u64::BITS);
        if let Some(word) = usize::try_from(index / u64::BITS).ok().and_then(|n| self.taken.get_mut(n)) {
            match (*word & bit != 0, taken) {
                (false, true) => self.free = self.free.saturating_sub(1),
                (true, false) => self.free = self.free.saturating_add(1),
                (true, true) | (false, false) => {}
            }
            *word = if taken { *word | bit } else { *word & !bit };
        }
    }

    /// Whether the address is in the range and nobody has it.
    pub(super) fn is_free(&self, address: Ipv4Addr) -> bool {
        let Some(index) = self.index(address) else { return false };
        let word = usize::try_from(index / u64::BITS).ok().and_then(|n| self.taken.get(n));
        word.is_some_and(|word| word & (1 << (index % u64::BITS)) == 0)
    }

    /// The first free address from the `offset`-th on, around the end if need be.
    pub(super) fn free_from(&self, offset: u32) -> Option<Ipv4Addr> {
        let start = offset.checked_rem(self.len)?;
        let (word, bit) = (usize::try_from(start / u64::BITS).ok()?, start % u64::BITS);
        let (before, after) = self.taken.split_at_checked(word)?;
        let free = |index: usize, taken: u64| {
            let index = u32::try_from(index).ok()?.checked_mul(u64::BITS)?.checked_add((!taken).trailing_zeros())?;
            (taken != u64::MAX).then(|| Ipv4Addr::from_bits(self.first.saturating_add(index)))
        };
        // The word of the start counts from its bit on first, and whole at the very end.
        let of_start = after.first().and_then(|taken| free(word, taken | ((1 << bit) - 1)));
        let rest = after.iter().enumerate().skip(1).find_map(|(n, taken)| free(word.saturating_add(n), *taken));
        let around = before.iter().chain(after.first()).enumerate().find_map(|(n, taken)| free(n, *taken));
        of_start.or(rest).or(around)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nth(n: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 10).to_bits() + n)
    }

    proptest! {
        #[test]
        fn the_free_address_is_the_first_one_from_the_offset_on_and_none_only_when_all_are_taken(
            len in 1u32..200, offset: u32, taken in prop::collection::hash_set(0u32..200, 0..200), excluded in 0u32..200
        ) {
            let mut range = Range::new(nth(0), nth(len - 1), [nth(excluded)]);
            taken.iter().for_each(|n| range.mark(nth(*n), true));
            let free = |n: &u32| !taken.contains(n) && *n != excluded;
            let expected = (0..len).map(|n| (offset % len + n) % len).find(free).map(nth);
            prop_assert_eq!(range.free_from(offset), expected);
            prop_assert_eq!(usize::try_from(range.free()).unwrap(), (0..len).filter(free).count());
            for n in 0..200 {
                prop_assert_eq!(range.is_free(nth(n)), n < len && free(&n), "{}", n);
            }
            taken.iter().for_each(|n| range.mark(nth(*n), false));
            prop_assert!(!range.is_free(nth(excluded)));
            prop_assert_eq!(range.free_from(0), (0..len).find(|n| *n != excluded).map(nth));
        }
    }

    #[test]
    fn a_range_that_ends_before_it_begins_has_no_address() {
        let range = Range::new(nth(5), nth(1), []);
        assert_eq!((range.free_from(3), range.contains(nth(5))), (None, false));
    }
}
