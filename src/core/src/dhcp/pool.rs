//! One subnet of the lease table: its range, and its given addresses in the order in which they may go to another machine.

use super::lease::{Lease, Standing, State};
use super::range::Range;
use crate::config::{Subnet, in_network, mask};
use crate::time::Mono;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;

/// One address in so many is never given to a stranger, and the last ones that nobody has are not kept from the ledger's devices by
/// what a stranger can forge. A rack of a hundred new machines still fits into the default range.
const KEPT_OF: u32 = 8;

/// Which of [`crate::config::Dhcp::subnets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubnetId(u16);

impl SubnetId {
    /// The boot network's own subnet.
    pub const LOCAL: Self = Self(0);

    pub(super) fn nth(index: usize) -> Self {
        Self(u16::try_from(index).unwrap_or(u16::MAX))
    }

    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Addresses by the time from which they may be reused.
type Queue = BTreeSet<(Mono, Ipv4Addr)>;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    network: Ipv4Addr,
    prefix: u8,
    pub(super) range: Range,
    /// Addresses that were given out, by standing of their machine; reserved ones and those outside the range are not here.
    due: [Queue; Standing::COUNT],
    /// Those in quarantine, by standing.
    declined: [Queue; Standing::COUNT],
    /// How many addresses strangers hold, offers among them.
    strangers: u32,
}

impl Pool {
    /// `own`: our own address. That, the router and the network's two ends are never given out.
    pub(super) fn new(subnet: &Subnet, own: Ipv4Addr) -> Self {
        let ends = [subnet.network(), Ipv4Addr::from_bits(subnet.address.to_bits() | !mask(subnet.prefix))];
        let range = Range::new(subnet.range_start, subnet.range_end, ends.into_iter().chain([own]).chain(subnet.router));
        let (due, declined) = Default::default();
        Self { network: subnet.address, prefix: subnet.prefix, range, due, declined, strangers: 0 }
    }

    pub(super) fn contains(&self, address: Ipv4Addr) -> bool {
        in_network(address, self.network, self.prefix)
    }

    /// Whether an address may be reserved: inside the network, and nobody's by nature.
    pub(super) fn can_reserve(&self, address: Ipv4Addr) -> bool {
        self.contains(address) && !self.range.is_excluded(address)
    }

    /// Whether strangers may hold one address more.
    pub(super) fn strangers_have_room(&self) -> bool {
        self.strangers < self.range.len() - self.kept() && self.has_more_than_kept()
    }

    /// Whether a free address that is taken is none of those that are kept for the ledger's devices. When no address is free there is
    /// nothing to keep.
    pub(super) fn has_more_than_kept(&self) -> bool {
        self.range.free() == 0 || self.range.free() > self.kept()
    }

    /// None of a range of less than [`KEPT_OF`] addresses.
    fn kept(&self) -> u32 {
        self.range.len() / KEPT_OF
    }

    /// Whether one more address may be in quarantine: at most a quarter of the range, and not when its machine would take a kept one
    /// instead.
    pub(super) fn quarantine_has_room(&self) -> bool {
        self.in_quarantine() < self.quarantine_most() && self.has_more_than_kept()
    }

    /// Whether more are than may be.
    pub(super) fn quarantine_is_over(&self) -> bool {
        self.in_quarantine() > self.quarantine_most()
    }

    fn in_quarantine(&self) -> usize {
        self.declined.iter().map(BTreeSet::len).sum()
    }

    fn quarantine_most(&self) -> usize {
        usize::try_from(self.range.len() / 4).unwrap_or(usize::MAX).max(1)
    }

    /// The address in quarantine that ends first for another's sake: of strangers, then of known devices; never a bound one's.
    pub(super) fn quarantine_to_end(&self) -> Option<Ipv4Addr> {
        [Standing::Stranger, Standing::Known].into_iter().find_map(|of| self.declined[of as usize].first()).map(|(_, address)| *address)
    }

    /// The longest unused address of machines of this standing whose time is up.
    pub(super) fn reusable(&self, now: Mono, of: Standing) -> Option<Ipv4Addr> {
        self.due[of as usize].first().filter(|(until, _)| *until <= now).map(|(_, address)| *address)
    }

    /// Takes a lease into the indexes. `reusable`: in the range, and reserved for nobody.
    pub(super) fn insert(&mut self, address: Ipv4Addr, lease: &Lease, reusable: bool) {
        let (standing, entry) = (lease.standing, (lease.until, address));
        self.strangers = self.strangers.saturating_add(u32::from(standing == Standing::Stranger));
        if lease.state == State::Declined {
            self.declined[standing as usize].insert(entry);
        }
        if lease.state != State::Offered && reusable {
            self.due[standing as usize].insert(entry);
        }
    }

    /// Takes it out of them again.
    pub(super) fn remove(&mut self, address: Ipv4Addr, lease: &Lease) {
        let (standing, entry) = (lease.standing, (lease.until, address));
        self.strangers = self.strangers.saturating_sub(u32::from(standing == Standing::Stranger));
        self.declined[standing as usize].remove(&entry);
        self.due[standing as usize].remove(&entry);
    }
}
