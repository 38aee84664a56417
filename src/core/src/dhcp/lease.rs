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

use super::lease_file::{Record, RecordState};
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
/// Offers that may be open at once: a stranger's flood stops here.
pub const MAX_OPEN_OFFERS: usize = 8192;
/// Most addresses that are given out, whatever the range says; bounds memory and the lease file.
pub const MAX_LEASES: u32 = 65_536;
/// Never-used addresses looked at in order of a MAC's hash before taking the first in order.
const HASH_PROBES: u32 = 64;

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

    fn len(&self) -> u32 {
        self.last.saturating_sub(self.first).saturating_add(1)
    }

    /// All addresses, starting at the `offset`-th and wrapping around.
    fn starting_at(&self, offset: u32) -> impl Iterator<Item = Ipv4Addr> + '_ {
        let len = self.len();
        let start = offset.checked_rem(len).unwrap_or_default();
        (0..len)
            .map(move |i| self.first.saturating_add(start.saturating_add(i).checked_rem(len).unwrap_or_default()))
            .map(Ipv4Addr::from_bits)
            .filter(|a| self.contains(*a))
    }
}

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
            State::Offered | State::Declined => true,
            State::Bound | State::Released => standing(self.mac) == of,
        }
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
    },
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
}

impl Leases {
    /// Nothing given out yet.
    #[must_use]
    pub fn new(range: Range) -> Self {
        Self { range, by_address: HashMap::new(), by_mac: HashMap::new(), offers: BTreeSet::new(), due: BTreeSet::new() }
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

    /// The address that is a machine's, running or not.
    #[must_use]
    pub fn address_of(&self, mac: MacAddr) -> Option<Ipv4Addr> {
        self.by_mac.get(&mac).copied()
    }

    /// Whether another offer may be opened.
    #[must_use]
    pub fn may_offer(&self) -> bool {
        self.offers.len() < MAX_OPEN_OFFERS
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

    /// The address to offer: its own, the one it asks for if that was never used, a never-used one, a reusable one.
    #[must_use]
    pub fn pick(&self, mac: MacAddr, asked: Option<Ipv4Addr>, now: Mono, standing: impl Fn(MacAddr) -> Standing) -> Option<Ipv4Addr> {
        let unused = |address: &Ipv4Addr| !self.by_address.contains_key(address);
        let hash = crc32fast::hash(&mac.0);
        self.address_of(mac)
            .or_else(|| asked.filter(|a| self.range.contains(*a) && unused(a)))
            .or_else(|| self.range.starting_at(hash).take(HASH_PROBES as usize).find(unused))
            .or_else(|| self.offers.range(..=(now, Ipv4Addr::BROADCAST)).next().map(|(_, address)| *address))
            .or_else(|| self.range.starting_at(0).find(unused))
            .or_else(|| self.reusable(now, &standing, Standing::Stranger))
            .or_else(|| self.reusable(now, &standing, Standing::Known))
    }

    fn reusable(&self, now: Mono, standing: &impl Fn(MacAddr) -> Standing, of: Standing) -> Option<Ipv4Addr> {
        let over = self.due.range(..=(now, Ipv4Addr::BROADCAST)).map(|(_, address)| *address);
        over.into_iter().find(|address| self.by_address.get(address).is_some_and(|lease| lease.may_go(standing, of)))
    }

    /// Changes the table; returns what must be durable before anybody is told, if anything.
    pub fn apply(&mut self, change: Change, now: Now) -> Option<Record> {
        match change {
            Change::Offer { mac, address } => {
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
            Change::Bind { mac, address, secs } => {
                let lasts = Duration::from_secs(u64::from(secs));
                self.put(address, Lease { mac, state: State::Bound, until: now.mono.after(lasts) });
                Some(record(address, mac, RecordState::Bound, lasts, now))
            }
            Change::Release { address } => {
                let mac = self.by_address.get(&address)?.mac;
                self.put(address, Lease { mac, state: State::Released, until: now.mono.after(RELEASE_REST) });
                Some(record(address, mac, RecordState::Released, RELEASE_REST, now))
            }
            Change::Decline { address } => {
                let mac = self.by_address.get(&address)?.mac;
                self.end_oldest_quarantine();
                self.put(address, Lease { mac, state: State::Declined, until: now.mono.after(DECLINE_QUARANTINE) });
                Some(record(address, mac, RecordState::Declined, DECLINE_QUARANTINE, now))
            }
        }
    }

    /// A stranger that declines all it gets must not shut the whole range: at most a quarter is in quarantine.
    fn end_oldest_quarantine(&mut self) {
        let declined = |address: &Ipv4Addr| self.by_address.get(address).is_some_and(|l| l.state == State::Declined);
        let quarantined: Vec<Ipv4Addr> = self.due.iter().map(|(_, address)| *address).filter(declined).collect();
        if quarantined.len() >= usize::try_from(self.range.len() / 4).unwrap_or(usize::MAX).max(1)
            && let Some(oldest) = quarantined.first()
        {
            self.remove(*oldest);
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
