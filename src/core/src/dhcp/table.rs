//! The lease table; its rules are in [`super::lease`].

mod restore;

use super::holder::Holder;
use super::lease::{Change, Claim, Lease, Pick, Quarantine, Standing, State};
use super::lease::{DECLINE_QUARANTINE, MAX_DECLINED_OF_DEVICE, NEWCOMER_INTERVAL, OFFER_HOLD, RELEASE_REST};
use super::lease_file::{Record, RecordState};
use super::pool::{Pool, SubnetId};
use crate::config::{Dhcp, LeaseKey};
use crate::id::MacAddr;
use crate::ledger::Device;
use crate::time::{Mono, Now};
use std::collections::{BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The table.
#[derive(Clone, Debug)]
pub struct Leases {
    pools: Vec<Pool>,
    by_address: HashMap<Ipv4Addr, Lease>,
    /// The address that a client has in a subnet, running or not. An offer is that only while nothing was given.
    current: HashMap<(Holder, SubnetId), Ipv4Addr>,
    /// All addresses that are in the table under a machine's MAC.
    of_mac: BTreeSet<(MacAddr, Ipv4Addr)>,
    /// Offered addresses by the end of their hold.
    offers: BTreeSet<(Mono, Ipv4Addr)>,
    /// What the ledger says: standing and reserved address. Strangers are not in it.
    devices: HashMap<MacAddr, (Standing, Option<Ipv4Addr>)>,
    reserved: HashMap<Ipv4Addr, MacAddr>,
    /// Used by these machines, which nobody gave them to; bounded by whoever finds them ([`super::conflict`]).
    avoided: HashMap<Ipv4Addr, MacAddr>,
    key: LeaseKey,
    newcomers: Newcomers,
}

/// Strangers that were given or offered an address since a time.
#[derive(Clone, Copy, Debug, Default)]
struct Newcomers {
    since: Mono,
    count: u32,
}

impl Newcomers {
    fn count(&mut self, now: Mono) {
        if now.since(self.since) >= NEWCOMER_INTERVAL {
            *self = Self { since: now, count: 0 };
        }
        self.count = self.count.saturating_add(1);
    }
}

impl Leases {
    /// Nothing given out yet, and nobody known; `own` is our address on the boot network.
    #[must_use]
    pub fn new(dhcp: &Dhcp, own: Ipv4Addr) -> Self {
        Self {
            pools: dhcp.subnets().map(|subnet| Pool::new(subnet, own)).collect(),
            by_address: HashMap::new(),
            current: HashMap::new(),
            of_mac: BTreeSet::new(),
            offers: BTreeSet::new(),
            devices: HashMap::new(),
            reserved: HashMap::new(),
            avoided: HashMap::new(),
            key: dhcp.lease_key,
            newcomers: Newcomers::default(),
        }
    }

    /// The ledger's word on a machine, to be told after every change of it, and of all devices at the start.
    pub fn heed(&mut self, mac: MacAddr, device: Option<&Device>) {
        let standing = Standing::of(device);
        let reserved = device.and_then(|d| d.address).filter(|a| self.pools.iter().any(|pool| pool.can_reserve(*a)));
        let before = match device {
            Some(_) => self.devices.insert(mac, (standing, reserved)),
            None => self.devices.remove(&mac),
        };
        if before == device.map(|_| (standing, reserved)) {
            return;
        }
        let former = before.and_then(|(_, address)| address).filter(|address| self.reserved.get(address) == Some(&mac));
        if let Some(former) = former {
            self.reserved.remove(&former);
        }
        if let Some(reserved) = reserved {
            self.reserved.insert(reserved, mac);
        }
        let own: Vec<Ipv4Addr> = self.of_mac.range(all_of(mac)).map(|(_, address)| *address).collect();
        for address in own.into_iter().chain(former).chain(reserved) {
            // Into the queues that fit now.
            if let Some(lease) = self.by_address.get(&address).copied() {
                let standing = if lease.holder.mac == mac { standing } else { lease.standing };
                self.unlist(address, &lease);
                self.list(address, Lease { standing, ..lease });
            }
            self.mark(address);
        }
    }

    /// The subnet that an address lies in.
    #[must_use]
    pub fn subnet_of(&self, address: Ipv4Addr) -> Option<SubnetId> {
        self.pools.iter().position(|pool| pool.contains(address)).map(SubnetId::nth)
    }

    fn pool(&self, subnet: SubnetId) -> Option<&Pool> {
        self.pools.get(subnet.index())
    }

    /// What the ledger says of a machine.
    #[must_use]
    pub fn standing(&self, mac: MacAddr) -> Standing {
        self.devices.get(&mac).map_or(Standing::Stranger, |(standing, _)| *standing)
    }

    /// The address that is reserved for a machine in this subnet.
    #[must_use]
    pub fn reservation(&self, mac: MacAddr, subnet: SubnetId) -> Option<Ipv4Addr> {
        let (_, address) = self.devices.get(&mac)?;
        address.filter(|address| self.pool(subnet).is_some_and(|pool| pool.contains(*address)))
    }

    /// The lease of an address.
    #[must_use]
    pub fn lease(&self, address: Ipv4Addr) -> Option<&Lease> {
        self.by_address.get(&address)
    }

    /// All addresses that are given out or in quarantine; offers do not count.
    pub fn given(&self) -> impl Iterator<Item = (Ipv4Addr, &Lease)> {
        self.by_address.iter().filter(|(_, lease)| lease.state != State::Offered).map(|(address, lease)| (*address, lease))
    }

    /// Who has, or last had, which address; offers do not count. What a machine runs on, and has for the longest, comes last.
    #[must_use]
    pub fn holders(&self) -> Vec<(Ipv4Addr, MacAddr)> {
        let holds = |lease: &Lease| matches!(lease.state, State::Bound | State::Released);
        let mut all: Vec<(&Ipv4Addr, &Lease)> = self.by_address.iter().filter(|(_, lease)| holds(lease)).collect();
        all.sort_by_key(|(address, lease)| (lease.state == State::Bound, lease.until, **address));
        all.into_iter().map(|(address, lease)| (*address, lease.holder.mac)).collect()
    }

    /// How many addresses the table has under this MAC.
    pub(super) fn count_of(&self, mac: MacAddr, most: usize) -> usize {
        self.of_mac.range(all_of(mac)).take(most).count()
    }

    /// The address that a client has in a subnet, running or not, or merely offered.
    #[must_use]
    pub fn address_of(&self, holder: Holder, subnet: SubnetId) -> Option<Ipv4Addr> {
        self.current.get(&(holder, subnet)).copied()
    }

    /// The address that a client was given, not merely offered: it may be in use.
    #[must_use]
    pub fn given_to(&self, holder: Holder, subnet: SubnetId) -> Option<Ipv4Addr> {
        self.address_of(holder, subnet).filter(|address| self.by_address.get(address).is_some_and(|lease| lease.state != State::Offered))
    }

    /// Whether a stranger without an address may have one now, when so many may in a minute.
    #[must_use]
    pub fn admits_newcomer(&self, now: Mono, per_minute: u32) -> bool {
        now.since(self.newcomers.since) >= NEWCOMER_INTERVAL || self.newcomers.count < per_minute
    }

    /// Whether strangers may hold one address more in this subnet.
    #[must_use]
    pub fn strangers_have_room(&self, subnet: SubnetId) -> bool {
        self.pool(subnet).is_some_and(Pool::strangers_have_room)
    }

    /// What room `mac` finds for another address in quarantine. A stranger that declines all it gets must not shut the
    /// whole range, so at most a quarter of it is in quarantine; strangers give way first, bound devices never.
    #[must_use]
    pub fn quarantine(&self, mac: MacAddr, subnet: SubnetId) -> Quarantine {
        let declined = |(_, address): &&(MacAddr, Ipv4Addr)| self.by_address.get(address).is_some_and(|l| l.state == State::Declined);
        let Some(pool) = self.pool(subnet) else { return Quarantine::Full };
        if self.standing(mac) != Standing::Stranger && self.of_mac.range(all_of(mac)).filter(declined).count() >= MAX_DECLINED_OF_DEVICE {
            return Quarantine::Full;
        }
        if pool.quarantine_has_room() {
            return Quarantine::Room;
        }
        pool.quarantine_to_end().map_or(Quarantine::Full, Quarantine::InsteadOf)
    }

    /// Whether a lease is this client's. One that was given to its machine by another key is, too: a reservation that is made or
    /// removed, or another `leaseKey`, makes other holders of running clients, and cuts none off.
    #[must_use]
    pub fn is_own(&self, lease: &Lease, holder: Holder, subnet: SubnetId) -> bool {
        if lease.holder == holder || lease.holder.mac != holder.mac {
            return lease.holder == holder;
        }
        match (lease.holder.id, holder.id) {
            (Some(_), None) => self.key == LeaseKey::Mac || self.reservation(holder.mac, subnet).is_some(),
            (None, Some(_)) | (None, None) => true,
            (Some(_), Some(_)) => false,
        }
    }

    /// What `address` is to `client`, which is in `subnet`.
    #[must_use]
    pub fn claim(&self, holder: Holder, subnet: SubnetId, address: Ipv4Addr, now: Mono) -> Claim {
        let Some(pool) = self.pool(subnet).filter(|pool| pool.contains(address)) else { return Claim::Outside };
        let lease = self.by_address.get(&address);
        if lease.is_some_and(|l| self.is_own(l, holder, subnet) && l.state != State::Declined) {
            return Claim::Own;
        }
        match self.reserved.get(&address) {
            Some(mac) if *mac == holder.mac && self.reservation_is_free(holder.mac, address, now) => Claim::Own,
            Some(_) => Claim::Taken,
            None if !pool.range.contains(address) => lease.map_or(Claim::Outside, |_| Claim::Taken),
            None if self.avoided.get(&address).is_some_and(|user| *user != holder.mac) => Claim::Taken,
            None if lease.is_none_or(|l| l.gives_way(now, false)) => Claim::Free,
            None => Claim::Taken,
        }
    }

    /// Whether the machine that the address is reserved for may have it now.
    fn reservation_is_free(&self, mac: MacAddr, address: Ipv4Addr, now: Mono) -> bool {
        self.by_address.get(&address).is_none_or(|lease| match lease.state {
            _ if lease.holder.mac == mac => lease.state != State::Declined || lease.until <= now,
            State::Offered | State::Bound | State::Released | State::Declined => lease.gives_way(now, true),
        })
    }

    /// The address to offer: the reserved one, its own, the one it asks for if nobody has that, one that nobody has, a
    /// reusable one. A stranger whose kind has its share of the range gets only what another stranger no longer uses.
    /// After [`Self::advance`].
    #[must_use]
    pub fn pick(&self, holder: Holder, subnet: SubnetId, asked: Option<Ipv4Addr>, now: Mono) -> Option<Pick> {
        let pool = self.pool(subnet)?;
        let reserved = self.reservation(holder.mac, subnet);
        if let Some(address) = reserved.filter(|address| self.reservation_is_free(holder.mac, *address, now)) {
            return Some(Pick { address, waits_for: None });
        }
        let usable = |address: &Ipv4Addr| pool.range.contains(*address) && !self.reserved.contains_key(address);
        let may_grow = self.standing(holder.mac) != Standing::Stranger || pool.strangers_have_room();
        let fresh = || {
            // The address that it was found on is avoided for others only: so a machine keeps what another server gave it.
            let runs =
                |address: &Ipv4Addr| self.avoided.get(address) == Some(&holder.mac) && usable(address) && self.lease(*address).is_none();
            let asked = asked.filter(|address| pool.range.is_free(*address) || runs(address));
            asked.or_else(|| pool.range.free_from(crc32fast::hash(&holder.mac.0))).filter(|_| may_grow)
        };
        let address = self
            .address_of(holder, subnet)
            .filter(usable)
            .or_else(fresh)
            .or_else(|| pool.reusable(now, Standing::Stranger))
            .or_else(|| pool.reusable(now, Standing::Known).filter(|_| may_grow))?;
        Some(Pick { address, waits_for: reserved })
    }

    /// The machine that an address is reserved for.
    #[must_use]
    pub fn reserved_for(&self, address: Ipv4Addr) -> Option<MacAddr> {
        self.reserved.get(&address).copied()
    }

    /// This machine uses an address that nobody gave it: it is given to no other one, and an offer of it is taken back. What was
    /// given to a machine, or is reserved for one, stays: then nothing changes, and the answer is false. So it is with the free
    /// addresses that are kept for the ledger's devices: whoever answers ARP for everything takes none of those.
    pub fn avoid(&mut self, address: Ipv4Addr, user: MacAddr) -> bool {
        let given = self.by_address.get(&address).is_some_and(|lease| lease.state != State::Offered);
        let kept = |pool: &Pool| pool.range.is_free(address) && !pool.has_more_than_kept();
        if given || self.reserved.contains_key(&address) || self.pools.iter().any(kept) {
            return false;
        }
        self.avoided.insert(address, user);
        self.remove(address);
        self.mark(address);
        true
    }

    /// Nobody uses it any more.
    pub fn stop_avoiding(&mut self, address: Ipv4Addr) {
        self.avoided.remove(&address);
        self.mark(address);
    }

    /// Forgets the offers that were not taken in time.
    pub fn advance(&mut self, now: Mono) {
        while let Some((until, address)) = self.offers.first().copied()
            && until <= now
        {
            self.remove(address);
        }
    }

    /// Changes the table; returns what must be durable before anybody is told, if anything.
    pub fn apply(&mut self, change: Change, now: Now) -> Option<Record> {
        self.advance(now.mono);
        match change {
            Change::Offer { holder, address } => {
                self.note_newcomer(holder, address, now.mono);
                let hold = now.mono.after(OFFER_HOLD);
                // An own address that is bound or rests stays so: an offer takes nothing away. But it is held like any other.
                let kept = |l: &Lease| l.holder == holder && !matches!(l.state, State::Offered | State::Declined);
                match self.by_address.get(&address).copied().filter(kept) {
                    Some(lease) if lease.until < hold => {
                        self.unlist(address, &lease);
                        self.list(address, Lease { until: hold, ..lease });
                    }
                    Some(_) => {}
                    None => self.put(address, holder, State::Offered, hold),
                }
                None
            }
            Change::Withdraw { holder, subnet } => {
                let address = self.address_of(holder, subnet)?;
                if self.by_address.get(&address)?.state == State::Offered {
                    self.remove(address);
                }
                None
            }
            Change::Bind { holder, address, secs } => {
                self.note_newcomer(holder, address, now.mono);
                // It is somebody's now: its user's, or the one's that it was given to before it was avoided.
                self.avoided.remove(&address);
                let lasts = Duration::from_secs(u64::from(secs));
                self.put(address, holder, State::Bound, now.mono.after(lasts));
                Some(Record::new(address, holder, RecordState::Bound, lasts, now))
            }
            Change::Release { address } => {
                let holder = self.by_address.get(&address)?.holder;
                self.put(address, holder, State::Released, now.mono.after(RELEASE_REST));
                Some(Record::new(address, holder, RecordState::Released, RELEASE_REST, now))
            }
            Change::Decline { address, instead_of } => {
                let holder = self.by_address.get(&address)?.holder;
                if let Some(ended) = instead_of {
                    self.remove(ended);
                }
                self.put(address, holder, State::Declined, now.mono.after(DECLINE_QUARANTINE));
                Some(Record::new(address, holder, RecordState::Declined, DECLINE_QUARANTINE, now))
            }
        }
    }

    fn note_newcomer(&mut self, holder: Holder, address: Ipv4Addr, now: Mono) {
        let has_one = self.subnet_of(address).is_some_and(|subnet| self.address_of(holder, subnet).is_some());
        if self.standing(holder.mac) == Standing::Stranger && !has_one {
            self.newcomers.count(now);
        }
    }

    fn put(&mut self, address: Ipv4Addr, holder: Holder, state: State, until: Mono) {
        let Some(subnet) = self.subnet_of(address) else { return };
        self.remove(address);
        let given = self.given_to(holder, subnet);
        match state {
            // What a client was given it may run on, whatever it is offered meanwhile.
            State::Offered | State::Released if given.is_some() => {}
            State::Declined => {}
            State::Offered | State::Released | State::Bound => {
                if let Some(offer) = self.address_of(holder, subnet).filter(|_| given.is_none()) {
                    self.remove(offer);
                }
                self.current.insert((holder, subnet), address);
            }
        }
        self.list(address, Lease { holder, state, standing: self.standing(holder.mac), until });
        self.of_mac.insert((holder.mac, address));
        self.mark(address);
    }

    fn remove(&mut self, address: Ipv4Addr) {
        let Some(old) = self.by_address.get(&address).copied() else { return };
        self.unlist(address, &old);
        self.by_address.remove(&address);
        self.of_mac.remove(&(old.holder.mac, address));
        if let Some(subnet) = self.subnet_of(address)
            && self.address_of(old.holder, subnet) == Some(address)
        {
            self.current.remove(&(old.holder, subnet));
        }
        self.mark(address);
    }

    /// Takes a lease into the table and its queues.
    fn list(&mut self, address: Ipv4Addr, lease: Lease) {
        let reserved = self.reserved.contains_key(&address);
        if let Some(pool) = self.pools.iter_mut().find(|pool| pool.contains(address)) {
            let reusable = !reserved && pool.range.contains(address);
            pool.insert(address, &lease, reusable);
        }
        if lease.state == State::Offered {
            self.offers.insert((lease.until, address));
        }
        self.by_address.insert(address, lease);
    }

    fn unlist(&mut self, address: Ipv4Addr, lease: &Lease) {
        if let Some(pool) = self.pools.iter_mut().find(|pool| pool.contains(address)) {
            pool.remove(address, lease);
        }
        self.offers.remove(&(lease.until, address));
    }

    fn mark(&mut self, address: Ipv4Addr) {
        let taken = self.by_address.contains_key(&address) || self.reserved.contains_key(&address) || self.avoided.contains_key(&address);
        if let Some(pool) = self.pools.iter_mut().find(|pool| pool.contains(address)) {
            pool.range.mark(address, taken);
        }
    }
}

/// The keys of one machine in [`Leases::of_mac`].
fn all_of(mac: MacAddr) -> RangeInclusive<(MacAddr, Ipv4Addr)> {
    (mac, Ipv4Addr::UNSPECIFIED)..=(mac, Ipv4Addr::BROADCAST)
}
