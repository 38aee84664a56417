//! The addresses that the server may give out.

use std::net::Ipv4Addr;

/// Most addresses that are given out, whatever the range says; bounds memory and the lease file.
pub const MAX_LEASES: u32 = 65_536;

/// The addresses that are given out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    first: u32,
    last: u32,
    excluded: Vec<u32>,
}

impl Range {
    /// From `first` to `last`, without `excluded` (our own address, routers).
    #[must_use]
    pub fn new(first: Ipv4Addr, last: Ipv4Addr, excluded: impl IntoIterator<Item = Ipv4Addr>) -> Self {
        let first = first.to_bits();
        let last = last.to_bits().min(first.saturating_add(MAX_LEASES - 1));
        Self { first, last, excluded: excluded.into_iter().map(Ipv4Addr::to_bits).collect() }
    }

    /// Whether this address is given out.
    #[must_use]
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        let bits = address.to_bits();
        (self.first..=self.last).contains(&bits) && !self.excluded.contains(&bits)
    }

    /// How many addresses there are, the excluded ones among them.
    pub(super) fn len(&self) -> u32 {
        self.last.saturating_sub(self.first).saturating_add(1)
    }

    /// All addresses, starting at the `offset`-th and wrapping around.
    pub(super) fn starting_at(&self, offset: u32) -> impl Iterator<Item = Ipv4Addr> + '_ {
        let len = self.len();
        let start = offset.checked_rem(len).unwrap_or_default();
        (0..len)
            .map(move |i| self.first.saturating_add(start.saturating_add(i).checked_rem(len).unwrap_or_default()))
            .map(Ipv4Addr::from_bits)
            .filter(|a| self.contains(*a))
    }
}
