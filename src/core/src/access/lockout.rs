//! How long somebody has to wait after wrong passwords: a pause that doubles.
//!
//! Three things are counted:
//!
//! - **an address and a user together**: whoever guesses waits, and nobody else who shares the address (NAT, one /64, a reverse proxy);
//! - **a user on one side** of the appliance (boot network, loopback, elsewhere), against guessing from many addresses. It does not
//!   hold for an address that this user has logged in from: a stranger must not keep the operator out;
//! - **an address**, against one password tried with many names: later, and never for long. It does not hold for who has logged in from
//!   there either.
//!
//! A right password takes back what it counted, and forgives the address and user together; what others tried stays counted. An
//! attempt counts as a failure when it begins, so that many at once are not many tries.

use crate::origin::{Side, counted};
use crate::time::Mono;
use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::time::Duration;

/// Failures are forgotten so long after the last pause.
const FORGET: Duration = Duration::from_mins(15);
/// Entries of each of the three tables. Names that are not there count as well: they take as long as those that are.
const MAX_ENTRIES: usize = 4096;
/// Addresses of one user that are remembered as his.
const MAX_KNOWN: usize = 4;
/// Users of whom addresses are remembered.
const MAX_KNOWN_USERS: usize = 1000;

/// How pauses grow.
#[derive(Clone, Copy, Debug)]
struct Growth {
    /// Failures without a pause.
    free: u32,
    /// After the first one beyond these; doubled with each further one.
    first: Duration,
    /// At most.
    most: Duration,
}

/// Guessing one user's password.
const GUESSING: Growth = Growth { free: 0, first: Duration::from_secs(1), most: Duration::from_mins(15) };
/// Trying many names from one address. An office behind NAT may mistype twenty times in a quarter of an hour; then a try a minute is
/// left, which is nothing for who sprays, and can be waited for.
const SPRAYING: Growth = Growth { free: 20, first: Duration::from_secs(1), most: Duration::from_mins(1) };

impl Growth {
    fn pause(self, failures: u32) -> Duration {
        match failures.checked_sub(self.free) {
            None | Some(0) => Duration::ZERO,
            Some(n) => self.first.saturating_mul(1 << (n - 1).min(10)).min(self.most),
        }
    }
}

/// One attempt.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// The name that is asked for.
    pub user: &'a str,
    /// Where from.
    pub address: IpAddr,
    /// Which side that is on.
    pub side: Side,
}

/// An attempt that was let through, for telling how it ended. Without a word it was a failure.
#[derive(Clone, Debug)]
#[must_use]
pub struct Begun {
    user: String,
    address: IpAddr,
    side: Side,
    at: Mono,
    /// From an address of his: the other two tables neither held nor counted it.
    is_known: bool,
}

/// What is remembered of failures.
#[derive(Debug, Default)]
pub struct Lockout {
    pairs: Table<(IpAddr, String)>,
    users: Table<(String, Side)>,
    addresses: Table<IpAddr>,
    known: HashMap<String, Vec<IpAddr>>,
}

impl Lockout {
    /// An attempt begins; it is a failure until [`Lockout::succeeded`] or [`Lockout::withdrawn`] says otherwise.
    ///
    /// # Errors
    /// How long to wait. Then nothing was counted.
    pub fn begin(&mut self, attempt: Attempt<'_>, now: Mono) -> Result<Begun, Duration> {
        let (user, address) = (attempt.user.to_owned(), counted(attempt.address));
        let is_known = self.known.get(&user).is_some_and(|known| known.contains(&address));
        let begun = Begun { user, address, side: attempt.side, at: now, is_known };
        let (pair, on_side) = begun.keys();
        let mut pause = self.pairs.wait(&pair, now);
        if !is_known {
            pause = pause.max(self.users.wait(&on_side, now)).max(self.addresses.wait(&address, now));
        }
        if pause > Duration::ZERO {
            return Err(pause);
        }
        self.pairs.count(pair, GUESSING, now);
        if !is_known {
            self.users.count(on_side, GUESSING, now);
            self.addresses.count(address, SPRAYING, now);
        }
        Ok(begun)
    }

    /// The password was right.
    pub fn succeeded(&mut self, begun: Begun) {
        self.take_back(&begun);
        self.pairs.0.remove(&begun.keys().0);
        if !self.known.contains_key(&begun.user) && self.known.len() >= MAX_KNOWN_USERS {
            return;
        }
        let known = self.known.entry(begun.user).or_default();
        known.retain(|a| *a != begun.address);
        known.push(begun.address);
        if known.len() > MAX_KNOWN {
            known.remove(0);
        }
    }

    /// The password was not looked at: the attempt does not count.
    pub fn withdrawn(&mut self, begun: Begun) {
        self.take_back(&begun);
    }

    fn take_back(&mut self, begun: &Begun) {
        let (pair, on_side) = begun.keys();
        self.pairs.take_back(&pair, begun.at);
        if !begun.is_known {
            self.users.take_back(&on_side, begun.at);
            self.addresses.take_back(&begun.address, begun.at);
        }
    }

    /// Nobody of this name is there any more: who gets it next has logged in from nowhere.
    pub fn forget(&mut self, user: &str) {
        self.known.remove(user);
    }
}

impl Begun {
    fn keys(&self) -> ((IpAddr, String), (String, Side)) {
        ((self.address, self.user.clone()), (self.user.clone(), self.side))
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    failures: u32,
    /// When the last attempt began.
    at: Mono,
    /// When the next one may.
    until: Mono,
}

#[derive(Debug)]
struct Table<K>(HashMap<K, Entry>);

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash + Clone> Table<K> {
    fn wait(&self, key: &K, now: Mono) -> Duration {
        self.0.get(key).map_or(Duration::ZERO, |e| e.until.since(now))
    }

    fn count(&mut self, key: K, growth: Growth, now: Mono) {
        if !self.0.contains_key(&key) && self.0.len() >= MAX_ENTRIES {
            self.0.retain(|_, e| now.since(e.until) < FORGET);
            if self.0.len() >= MAX_ENTRIES {
                // Whoever fills the table with names of his own does not push out those with many failures.
                let least = self.0.iter().min_by_key(|(_, e)| (e.failures, e.until)).map(|(k, _)| k.clone());
                least.map(|k| self.0.remove(&k));
            }
        }
        let entry = self.0.entry(key).or_insert(Entry { failures: 0, at: now, until: now });
        if now.since(entry.until) >= FORGET {
            entry.failures = 0;
        }
        entry.failures = entry.failures.saturating_add(1);
        entry.at = now;
        entry.until = Mono(now.0.saturating_add(growth.pause(entry.failures)));
    }

    /// As if the attempt that began then had not been: it had waited for whatever pause there was. That of a later one stands.
    fn take_back(&mut self, key: &K, began: Mono) {
        let Some(entry) = self.0.get_mut(key) else { return };
        entry.failures = entry.failures.saturating_sub(1);
        if entry.at == began {
            entry.until = began;
        }
        if entry.failures == 0 {
            self.0.remove(key);
        }
    }
}

#[cfg(test)]
#[path = "lockout_tests.rs"]
mod tests;
