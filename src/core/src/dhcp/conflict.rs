//! Addresses that machines use although nobody gave them these: heard in ARP (RFC 826), asked for by ourselves before an address
//! is given out for the first time (RFC 2131 s4.4.1 wants it probed).
//!
//! An OFFER never waits for it. The range is asked through in the background, so that most addresses that are offered were asked
//! for already; one that was not is asked for together with its OFFER, and taken back when somebody answers.
//!
//! Whoever answers may be forged. So what can be kept from us this way is bounded: a quarter of the range, [`MAX_OF_ONE`]
//! addresses of one MAC (beyond that it answers for everything, as proxy ARP does, and what it says more counts for nothing), never
//! what was given or is reserved, never for the machine itself that uses the address, and all of it expires.

use super::lease::{Leases, State};
use crate::config::Subnet;
use crate::id::MacAddr;
use crate::time::{Mono, Now, Wall};
use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::time::Duration;

/// How long an address is not given out after its user was heard last: as after a DECLINE.
pub const AVOID_FOR: Duration = Duration::from_secs(600);
/// A user of an address is asked again after this, so that it is not forgotten while it is there.
const ASK_AGAIN: Duration = Duration::from_secs(240);
/// Nobody answered within this time: not asked again before the next OFFER of it after that.
const SILENT_FOR: Duration = Duration::from_secs(600);
/// Questions within [`BURST_TIME`] that come with OFFERs: a rack fits, a flood does not become a flood of broadcasts.
const MAX_BURST: u32 = 64;
const BURST_TIME: Duration = Duration::from_secs(1);
/// Addresses of one MAC: a host with some more of its own, not a router that answers for all.
pub const MAX_OF_ONE: usize = 16;
/// Conflicts that are remembered, whatever the size of the range.
const MAX_AVOIDED: usize = 1024;
/// MACs that answer for everything and are remembered for it.
const MAX_FOR_ALL: usize = 64;
/// Addresses that are asked through in the background after a start; a larger range is asked for with each OFFER.
pub const SWEEP: u32 = 1024;

/// Somebody uses an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Which.
    pub address: Ipv4Addr,
    /// Who.
    pub mac: MacAddr,
    /// Whose it is: given to this machine, or reserved for it. Absent: nobody's, and it is not given out meanwhile.
    pub given_to: Option<MacAddr>,
    /// When it was heard last.
    pub last: Wall,
    since: Mono,
    heard_at: Mono,
    asked_at: Mono,
}

/// Whose an address is by the lease table and the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Nobody's.
    Nobody,
    /// Merely offered to this one.
    Offered(MacAddr),
    /// Reserved for this one, and given to nobody.
    Reserved(MacAddr),
    /// Given to this one.
    Given(MacAddr),
}

impl Owner {
    /// By this table.
    #[must_use]
    pub fn of(address: Ipv4Addr, leases: &Leases) -> Self {
        let lease = leases.lease(address).map(|lease| (lease.state == State::Offered, lease.holder.mac));
        match (lease, leases.reserved_for(address)) {
            (Some((false, mac)), _) => Self::Given(mac),
            (_, Some(mac)) => Self::Reserved(mac),
            (Some((true, mac)), None) => Self::Offered(mac),
            (None, None) => Self::Nobody,
        }
    }

    fn mac(self) -> Option<MacAddr> {
        match self {
            Self::Nobody => None,
            Self::Offered(mac) | Self::Reserved(mac) | Self::Given(mac) => Some(mac),
        }
    }
}

/// What follows from a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Nothing, or known already.
    Nothing,
    /// Nobody was given it: it must not be given out now.
    Avoid,
    /// It was given to another machine: people are told, its holder keeps it.
    UsedByAnother(MacAddr),
    /// It is reserved for another machine, and is given to that all the same: people are told.
    ReservedForAnother(MacAddr),
    /// As much as may be avoided is avoided already.
    TooMany,
    /// This one answers for everything: nothing is avoided for its sake any more.
    AnswersForAll(Vec<Ipv4Addr>),
}

/// What was heard and asked.
#[derive(Clone, Debug)]
pub struct Conflicts {
    most: usize,
    found: BTreeMap<Ipv4Addr, Conflict>,
    asked: HashMap<Ipv4Addr, Mono>,
    for_all: BTreeMap<MacAddr, Mono>,
    burst: (Mono, u32),
    next: Option<u32>,
}

impl Conflicts {
    /// Nothing heard yet; of this subnet at most a quarter is avoided.
    #[must_use]
    pub fn new(subnet: &Subnet) -> Self {
        let size = subnet.range_end.to_bits().saturating_sub(subnet.range_start.to_bits()).saturating_add(1);
        let most = usize::try_from(size / 4).unwrap_or(usize::MAX).clamp(1, MAX_AVOIDED);
        let (found, asked, for_all) = Default::default();
        Self { most, found, asked, for_all, burst: Default::default(), next: Some(0) }
    }

    /// `mac` says that it has `address`, which is this owner's.
    pub fn claimed(&mut self, address: Ipv4Addr, mac: MacAddr, owner: Owner, now: Now) -> Finding {
        if owner.mac() == Some(mac) {
            return Finding::Nothing;
        }
        let (given_to, finding) = match owner {
            Owner::Nobody | Owner::Offered(_) => (None, Finding::Avoid),
            Owner::Reserved(mac) => (Some(mac), Finding::ReservedForAnother(mac)),
            Owner::Given(mac) => (Some(mac), Finding::UsedByAnother(mac)),
        };
        match self.found.get_mut(&address) {
            Some(known) if known.mac == mac && known.given_to == given_to => {
                (known.last, known.heard_at) = (now.wall, now.mono);
                return Finding::Nothing;
            }
            // Whoever changes his MAC all the time is news once.
            Some(known) if known.mac != mac && now.mono.since(known.heard_at) < ASK_AGAIN => return Finding::Nothing,
            Some(_) | None => {}
        }
        if self.for_all.get(&mac).is_some_and(|since| now.mono.since(*since) < AVOID_FOR) {
            return Finding::Nothing;
        }
        if self.found.values().filter(|c| c.mac == mac && c.address != address).count() >= MAX_OF_ONE {
            return self.answers_for_all(mac, now.mono);
        }
        // What is given out all the same takes no place from what must not be.
        let kept_from_us = |given_to: Option<MacAddr>| given_to.is_none();
        let same_kind = |known: &&Conflict| known.address != address && kept_from_us(known.given_to) == kept_from_us(given_to);
        let most = if kept_from_us(given_to) { self.most } else { MAX_AVOIDED };
        if self.found.values().filter(same_kind).count() >= most {
            return Finding::TooMany;
        }
        let since = self.found.get(&address).filter(|known| known.mac == mac).map_or(now.mono, |known| known.since);
        self.found.insert(address, Conflict { address, mac, given_to, last: now.wall, since, heard_at: now.mono, asked_at: now.mono });
        finding
    }

    /// What it said while it said so much counts for nothing. What was known of it before stays: the burst may be another's, who
    /// wants to free the addresses that this one uses.
    fn answers_for_all(&mut self, mac: MacAddr, now: Mono) -> Finding {
        if self.for_all.len() >= MAX_FOR_ALL {
            self.for_all.pop_first();
        }
        self.for_all.insert(mac, now);
        let burst = |c: &Conflict| c.mac == mac && now.since(c.since) < ASK_AGAIN;
        let freed = self.found.values().filter(|c| burst(c)).map(|c| c.address).collect();
        self.found.retain(|_, conflict| !burst(conflict));
        Finding::AnswersForAll(freed)
    }

    /// Whether to ask for an address that is being offered. Afterwards it counts as asked for.
    pub fn ask_with_offer(&mut self, address: Ipv4Addr, now: Mono) -> bool {
        if self.asked.get(&address).is_some_and(|at| now.since(*at) < SILENT_FOR) {
            return false;
        }
        if now.since(self.burst.0) >= BURST_TIME {
            self.burst = (now, 0);
        }
        self.burst.1 = self.burst.1.saturating_add(1);
        let ask = self.burst.1 <= MAX_BURST;
        if ask {
            self.note_asked(address, now);
        }
        ask
    }

    fn note_asked(&mut self, address: Ipv4Addr, now: Mono) {
        if self.asked.len() >= usize::try_from(SWEEP).unwrap_or(usize::MAX) * 2 {
            self.asked.retain(|_, at| now.since(*at) < SILENT_FOR);
        }
        self.asked.insert(address, now);
    }

    /// The next address to ask for in the background: first the range, once; then those that somebody uses, again and again.
    /// `is_free`: whether nobody has it by the lease table.
    pub fn ask_next(&mut self, subnet: &Subnet, is_free: impl Fn(Ipv4Addr) -> bool, now: Mono) -> Option<Ipv4Addr> {
        while let Some(next) = self.next {
            let address = Ipv4Addr::from_bits(subnet.range_start.to_bits().saturating_add(next));
            let more = next.saturating_add(1);
            self.next = (address < subnet.range_end && more < SWEEP).then_some(more);
            if is_free(address) && !self.asked.contains_key(&address) {
                self.note_asked(address, now);
                return Some(address);
            }
        }
        let due = self.found.values_mut().filter(|c| now.since(c.asked_at) >= ASK_AGAIN).min_by_key(|c| c.asked_at)?;
        due.asked_at = now;
        Some(due.address)
    }

    /// Whether the range is still being asked through.
    #[must_use]
    pub fn sweeps(&self) -> bool {
        self.next.is_some()
    }

    /// Forgets who was not heard for long, and who was given by now what it used; the addresses that need not be avoided any more.
    pub fn expire(&mut self, owner: impl Fn(Ipv4Addr) -> Owner, now: Mono) -> Vec<Ipv4Addr> {
        let is_over = |c: &Conflict| now.since(c.heard_at) >= AVOID_FOR || owner(c.address) == Owner::Given(c.mac);
        let over: Vec<Ipv4Addr> = self.found.values().filter(|c| is_over(c)).map(|c| c.address).collect();
        for address in &over {
            self.found.remove(address);
        }
        over
    }

    /// All, by address.
    pub fn list(&self) -> impl Iterator<Item = &Conflict> {
        self.found.values()
    }
}

#[cfg(test)]
#[path = "conflict_tests.rs"]
mod tests;
