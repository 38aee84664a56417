//! Who holds which address: a table in memory, changed only by [`Leases::apply`].
//!
//! ```text
//!   (never used) --offer--> Offered --bind--> Bound --release--> Released
//!        ^                     | hold over      | ^                  |
//!        +---------------------+                | +------ bind ------+     any --decline--> Declined
//! ```
//!
//! Leases go by MAC. An address stays its machine's after the lease has run out, until somebody needs it and no address
//! was never used: first those of strangers, then of pooled devices, the longest unused first; **never one of a bound
//! device**: its Worker may run on an address that nobody renews (stage-1 hands the boot address over to the system).
//! That holds for an address that it declined too: whoever can forge a DECLINE must not free the address of a Worker.
//!
//! What strangers (MACs that are not in the ledger) can take is bounded twice: by how many of them get an address in a
//! minute, and by a share of the range that is not for them.

use super::lease_file::{Record, RecordState};
use super::range::Range;
use crate::id::MacAddr;
use crate::time::{Mono, Now};
use std::collections::{BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::time::Duration;

/// How long an OFFER holds its address: EDK2 collects offers for up to 32 s before it chooses.
pub const OFFER_HOLD: Duration = Duration::from_secs(60);
/// How long a released address rests before it may go to another machine.
pub const RELEASE_REST: Duration = Duration::from_secs(300);
/// How long a declined address is not given out.
pub const DECLINE_QUARANTINE: Duration = Duration::from_secs(600);
/// Strangers without an address that are given or offered one within [`NEWCOMER_INTERVAL`]: some racks of new machines
/// switched on at once fit, a flood of random MACs does not.
pub const MAX_NEWCOMERS: u32 = 128;
/// One address in so many is never given to a stranger. A rack of a hundred new machines still fits into the default range.
const KEPT_OF: u32 = 8;
/// See [`MAX_NEWCOMERS`].
pub const NEWCOMER_INTERVAL: Duration = Duration::from_secs(60);
/// Addresses in quarantine of one bound device. They stay its own afterwards, so a forger must not collect them; more
/// than this many neighbours on wrong addresses are for a person to look at.
const MAX_DECLINED_OF_BOUND: usize = 4;
/// Never-used addresses looked at in order of a MAC's hash before taking the first in order.
const HASH_PROBES: u32 = 64;

/// What the ledger says of a machine, as far as its address is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Not in the ledger.
    Stranger,
    /// In the ledger, not bound.
    Known,
    /// Bound: its address is never given to another.
    Bound,
}

/// State of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Held for a client that was offered it.
    Offered,
    /// Acknowledged.
    Bound,
    /// Given back.
    Released,
    /// Its client found somebody else using it.
    Declined,
}

/// One address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Who holds it, or last did, or declined it.
    pub mac: MacAddr,
    /// See [`State`].
    pub state: State,
    /// When the state runs out.
    pub until: Mono,
}

impl Lease {
    /// Whether somebody else may have the address now that the time is up, when only machines of this standing give way.
    fn may_go(&self, standing: &impl Fn(MacAddr) -> Standing, of: Standing) -> bool {
        match self.state {
            State::Offered => true,
            State::Bound | State::Released | State::Declined => standing(self.mac) == of,
        }
    }

    /// An offer that was not taken in time: as good as nothing.
    fn lapsed(&self, now: Mono) -> bool {
        self.state == State::Offered && self.until <= now
    }
}

/// The only ways to change the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Holds an address for [`OFFER_HOLD`]; promises nothing and is not written.
    Offer {
        /// For whom.
        mac: MacAddr,
        /// Which.
        address: Ipv4Addr,
        /// Not in the ledger: counts against [`MAX_NEWCOMERS`].
        stranger: bool,
    },
    /// The client chose another server.
    Withdraw {
        /// Whose offer.
        mac: MacAddr,
    },
    /// Gives an address; durable before the ACK.
    Bind {
        /// To whom.
        mac: MacAddr,
        /// Which.
        address: Ipv4Addr,
        /// For how long.
        secs: u32,
        /// Not in the ledger: counts against [`MAX_NEWCOMERS`].
        stranger: bool,
    },
    /// Given back by its holder.
    Release {
        /// Which.
        address: Ipv4Addr,
    },
    /// Declined by its holder.
    Decline {
        /// Which.
        address: Ipv4Addr,
        /// The quarantine that ends for this one's sake.
        instead_of: Option<Ipv4Addr>,
    },
}

/// What room there is for another address in quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quarantine {
    /// Enough.
    Room,
    /// This one has to end first.
    InsteadOf(Ipv4Addr),
    /// None, and none that may end.
    Full,
}

/// What an address is to a client that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Its own.
    Own,
    /// Nobody's: it may have it.
    Free,
    /// Another's, or in quarantine.
    Taken,
    /// Not ours to give.
    Outside,
}

/// The table.
#[derive(Clone, Debug)]
pub struct Leases {
    range: Range,
    by_address: HashMap<Ipv4Addr, Lease>,
    by_mac: HashMap<MacAddr, Ipv4Addr>,
    /// Offered addresses by the end of their hold.
    offers: BTreeSet<(Mono, Ipv4Addr)>,
    /// All others by the time from which they may be reused.
    due: BTreeSet<(Mono, Ipv4Addr)>,
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
    /// Nothing given out yet.
    #[must_use]
    pub fn new(range: Range) -> Self {
        Self {
            range,
            by_address: HashMap::new(),
            by_mac: HashMap::new(),
            offers: BTreeSet::new(),
            due: BTreeSet::new(),
            newcomers: Newcomers::default(),
        }
    }

    /// What the lease file says. A record's remaining time is cut to the length of a lease: a wall clock that was wrong
    /// makes a lease longer or ends it, but an ended one still is its machine's (see the module's rule of reuse).
    /// Records outside the range are forgotten.
    #[must_use]
    pub fn restore(range: Range, records: &[Record], lease_secs: u32, now: Now) -> Self {
        let mut leases = Self::new(range);
        for record in records {
            let left = u64::try_from(record.until.as_second().saturating_sub(now.wall.as_second())).unwrap_or(0);
            let (state, most) = match record.state {
                RecordState::Bound => (State::Bound, u64::from(lease_secs)),
                RecordState::Released => (State::Released, RELEASE_REST.as_secs()),
                RecordState::Declined => (State::Declined, DECLINE_QUARANTINE.as_secs()),
            };
            if leases.range.contains(record.address) {
                let until = now.mono.after(Duration::from_secs(left.min(most)));
                leases.put(record.address, Lease { mac: record.mac, state, until });
            }
        }
        leases
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

    /// The address that is a machine's, running or not.
    #[must_use]
    pub fn address_of(&self, mac: MacAddr) -> Option<Ipv4Addr> {
        self.by_mac.get(&mac).copied()
    }

    /// The address that a machine was given, not merely offered: it may be in use.
    #[must_use]
    pub fn given_to(&self, mac: MacAddr) -> Option<Ipv4Addr> {
        self.address_of(mac).filter(|address| self.by_address.get(address).is_some_and(|lease| lease.state != State::Offered))
    }

    /// Whether a stranger without an address may have one now.
    #[must_use]
    pub fn admits_newcomer(&self, now: Mono) -> bool {
        now.since(self.newcomers.since) >= NEWCOMER_INTERVAL || self.newcomers.count < MAX_NEWCOMERS
    }

    /// Whether strangers may hold one address more: one address in [`KEPT_OF`] is for the ledger's devices.
    #[must_use]
    pub fn strangers_have_room(&self, now: Mono, standing: impl Fn(MacAddr) -> Standing) -> bool {
        let share = usize::try_from(self.range.len() - self.range.len() / KEPT_OF).unwrap_or(usize::MAX);
        let theirs = |lease: &&Lease| !lease.lapsed(now) && standing(lease.mac) == Standing::Stranger;
        // The count of all is enough as long as the range is not nearly full.
        self.by_address.len() < share || self.by_address.values().filter(theirs).count() < share
    }

    /// What room `mac` finds for another address in quarantine. A stranger that declines all it gets must not shut the
    /// whole range, so at most a quarter of it is in quarantine; strangers give way first, bound devices never.
    #[must_use]
    pub fn quarantine(&self, mac: MacAddr, standing: impl Fn(MacAddr) -> Standing) -> Quarantine {
        let declined = |address: &Ipv4Addr| self.by_address.get(address).filter(|l| l.state == State::Declined).map(|l| (*address, l.mac));
        let all: Vec<(Ipv4Addr, MacAddr)> = self.due.iter().filter_map(|(_, address)| declined(address)).collect();
        if standing(mac) == Standing::Bound && all.iter().filter(|(_, by)| *by == mac).count() >= MAX_DECLINED_OF_BOUND {
            return Quarantine::Full;
        }
        if all.len() < usize::try_from(self.range.len() / 4).unwrap_or(usize::MAX).max(1) {
            return Quarantine::Room;
        }
        // Of equal standing the first, which is the oldest.
        let standings = all.into_iter().map(|(address, by)| (standing(by), address)).filter(|(by, _)| *by != Standing::Bound);
        standings.min_by_key(|(by, _)| *by).map_or(Quarantine::Full, |(_, address)| Quarantine::InsteadOf(address))
    }

    /// Who has, or last had, which address; offers do not count.
    #[must_use]
    pub fn holders(&self) -> HashMap<Ipv4Addr, MacAddr> {
        let holds = |lease: &Lease| matches!(lease.state, State::Bound | State::Released);
        self.by_address.iter().filter(|(_, lease)| holds(lease)).map(|(address, lease)| (*address, lease.mac)).collect()
    }

    /// What `address` is to `mac`.
    #[must_use]
    pub fn claim(&self, mac: MacAddr, address: Ipv4Addr, now: Mono, standing: impl Fn(MacAddr) -> Standing) -> Claim {
        if !self.range.contains(address) {
            return Claim::Outside;
        }
        match self.by_address.get(&address) {
            None => Claim::Free,
            Some(lease) if lease.state != State::Declined && lease.mac == mac => Claim::Own,
            Some(lease) if lease.until <= now && lease.may_go(&standing, Standing::Stranger) => Claim::Free,
            Some(_) => Claim::Taken,
        }
    }

    /// The address to offer: its own, the one it asks for if that was never used, a never-used one, a reusable one. A
    /// stranger whose kind has its share of the range gets only what another stranger no longer uses.
    #[must_use]
    pub fn pick(&self, mac: MacAddr, asked: Option<Ipv4Addr>, now: Mono, standing: impl Fn(MacAddr) -> Standing) -> Option<Ipv4Addr> {
        if let Some(own) = self.address_of(mac) {
            return Some(own);
        }
        let may_grow = standing(mac) != Standing::Stranger || self.strangers_have_room(now, &standing);
        let fresh = if may_grow { self.unused(mac, asked, now) } else { None };
        fresh
            .or_else(|| self.reusable(now, &standing, Standing::Stranger))
            .or_else(|| if may_grow { self.reusable(now, &standing, Standing::Known) } else { None })
    }

    fn unused(&self, mac: MacAddr, asked: Option<Ipv4Addr>, now: Mono) -> Option<Ipv4Addr> {
        let unused = |address: &Ipv4Addr| self.by_address.get(address).is_none_or(|lease| lease.lapsed(now));
        let hash = crc32fast::hash(&mac.0);
        asked
            .filter(|a| self.range.contains(*a) && unused(a))
            .or_else(|| self.range.starting_at(hash).take(HASH_PROBES as usize).find(unused))
            .or_else(|| self.range.starting_at(0).find(unused))
    }

    fn reusable(&self, now: Mono, standing: &impl Fn(MacAddr) -> Standing, of: Standing) -> Option<Ipv4Addr> {
        let over = self.due.range(..=(now, Ipv4Addr::BROADCAST)).map(|(_, address)| *address);
        over.into_iter().find(|address| self.by_address.get(address).is_some_and(|lease| lease.may_go(standing, of)))
    }

    /// Changes the table; returns what must be durable before anybody is told, if anything.
    pub fn apply(&mut self, change: Change, now: Now) -> Option<Record> {
        self.drop_lapsed_offers(now.mono);
        match change {
            Change::Offer { mac, address, stranger } => {
                self.note_newcomer(mac, stranger, now.mono);
                // An own address that is bound or rests stays as it is: an offer takes nothing away.
                let kept =
                    self.by_address.get(&address).is_some_and(|l| l.mac == mac && !matches!(l.state, State::Offered | State::Declined));
                if !kept {
                    self.put(address, Lease { mac, state: State::Offered, until: now.mono.after(OFFER_HOLD) });
                }
                None
            }
            Change::Withdraw { mac } => {
                let address = self.address_of(mac)?;
                if self.by_address.get(&address)?.state == State::Offered {
                    self.remove(address);
                }
                None
            }
            Change::Bind { mac, address, secs, stranger } => {
                self.note_newcomer(mac, stranger, now.mono);
                let lasts = Duration::from_secs(u64::from(secs));
                self.put(address, Lease { mac, state: State::Bound, until: now.mono.after(lasts) });
                Some(record(address, mac, RecordState::Bound, lasts, now))
            }
            Change::Release { address } => {
                let mac = self.by_address.get(&address)?.mac;
                self.put(address, Lease { mac, state: State::Released, until: now.mono.after(RELEASE_REST) });
                Some(record(address, mac, RecordState::Released, RELEASE_REST, now))
            }
            Change::Decline { address, instead_of } => {
                let mac = self.by_address.get(&address)?.mac;
                if let Some(ended) = instead_of {
                    self.remove(ended);
                }
                self.put(address, Lease { mac, state: State::Declined, until: now.mono.after(DECLINE_QUARANTINE) });
                Some(record(address, mac, RecordState::Declined, DECLINE_QUARANTINE, now))
            }
        }
    }

    fn note_newcomer(&mut self, mac: MacAddr, stranger: bool, now: Mono) {
        if stranger && self.address_of(mac).is_none() {
            self.newcomers.count(now);
        }
    }

    fn drop_lapsed_offers(&mut self, now: Mono) {
        while let Some((until, address)) = self.offers.first().copied()
            && until <= now
        {
            self.remove(address);
        }
    }

    fn put(&mut self, address: Ipv4Addr, lease: Lease) {
        self.remove(address);
        if lease.state != State::Declined {
            if let Some(other) = self.address_of(lease.mac) {
                self.remove(other);
            }
            self.by_mac.insert(lease.mac, address);
        }
        let queue = if lease.state == State::Offered { &mut self.offers } else { &mut self.due };
        queue.insert((lease.until, address));
        self.by_address.insert(address, lease);
    }

    fn remove(&mut self, address: Ipv4Addr) {
        if let Some(old) = self.by_address.remove(&address) {
            self.offers.remove(&(old.until, address));
            self.due.remove(&(old.until, address));
            if self.address_of(old.mac) == Some(address) {
                self.by_mac.remove(&old.mac);
            }
        }
    }
}

fn record(address: Ipv4Addr, mac: MacAddr, state: RecordState, lasts: Duration, now: Now) -> Record {
    let until = now.wall.saturating_add(lasts).unwrap_or(now.wall);
    Record { address, mac, state, until }
}
