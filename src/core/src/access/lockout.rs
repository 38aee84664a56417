//! How long somebody has to wait after wrong passwords: a pause that doubles, for the address that asks and for the user that is
//! asked for.
//!
//! A stranger must not keep the operator out. The user's pause is kept for each side of the appliance (boot network, loopback,
//! elsewhere), and does not hold for an address that this user has logged in from; that one has its own pause alone.
//! An attempt counts as a failure when it begins, so that many at once are not many tries.

use crate::time::Mono;
use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// After the first failure; doubled with each further one.
const FIRST: Duration = Duration::from_secs(1);
/// At most.
const MOST: Duration = Duration::from_mins(15);
/// Failures are forgotten so long after the last pause.
const FORGET: Duration = Duration::from_mins(15);
/// Addresses, and users, that are remembered. Names that are not there count as well: they take as long as those that are.
const MAX_ENTRIES: usize = 4096;
/// Addresses of one user that are remembered as his.
const MAX_KNOWN: usize = 4;
/// Users of whom addresses are remembered.
const MAX_KNOWN_USERS: usize = 1000;

/// Where somebody asks from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The boot network.
    Boot,
    /// The appliance itself.
    Loopback,
    /// Anywhere else.
    Elsewhere,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    failures: u32,
    until: Mono,
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

/// What is remembered of failures.
#[derive(Debug, Default)]
pub struct Lockout {
    addresses: HashMap<IpAddr, Entry>,
    users: HashMap<(String, Side), Entry>,
    known: HashMap<String, Vec<IpAddr>>,
}

/// All of one IPv6 network are one machine's.
fn counted(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6) >> 64 << 64).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

impl Lockout {
    /// An attempt begins; it is a failure until [`Lockout::succeeded`] says otherwise.
    ///
    /// # Errors
    /// How long to wait. Then nothing was counted.
    pub fn begin(&mut self, attempt: Attempt<'_>, now: Mono) -> Result<(), Duration> {
        let address = counted(attempt.address);
        let user = (attempt.user.to_owned(), attempt.side);
        let known = self.known.get(attempt.user).is_some_and(|known| known.contains(&address));
        let wait = |entry: Option<&Entry>| entry.map_or(Duration::ZERO, |e| e.until.since(now));
        let mut pause = wait(self.addresses.get(&address));
        if !known {
            pause = pause.max(wait(self.users.get(&user)));
        }
        if pause > Duration::ZERO {
            return Err(pause);
        }
        count(&mut self.addresses, address, now);
        if !known {
            count(&mut self.users, user, now);
        }
        Ok(())
    }

    /// The password was right. Others who try this user's are not helped by that: only this attempt is taken back.
    pub fn succeeded(&mut self, attempt: Attempt<'_>) {
        let address = counted(attempt.address);
        self.addresses.remove(&address);
        let known = self.known.get(attempt.user).is_some_and(|known| known.contains(&address));
        let user = (attempt.user.to_owned(), attempt.side);
        if !known && let Some(entry) = self.users.get_mut(&user) {
            entry.failures = entry.failures.saturating_sub(1);
            if entry.failures == 0 {
                self.users.remove(&user);
            }
        }
        if !self.known.contains_key(attempt.user) && self.known.len() >= MAX_KNOWN_USERS {
            return;
        }
        let known = self.known.entry(attempt.user.to_owned()).or_default();
        known.retain(|a| *a != address);
        known.push(address);
        if known.len() > MAX_KNOWN {
            known.remove(0);
        }
    }

    /// Nobody of this name is there any more.
    pub fn forget(&mut self, user: &str) {
        self.known.remove(user);
    }
}

fn count<K: Eq + Hash + Clone>(entries: &mut HashMap<K, Entry>, key: K, now: Mono) {
    if !entries.contains_key(&key) && entries.len() >= MAX_ENTRIES {
        entries.retain(|_, e| now.since(e.until) < FORGET);
        if entries.len() >= MAX_ENTRIES {
            // Whoever fills the table with names of his own does not push out those with many failures.
            let least = entries.iter().min_by_key(|(_, e)| (e.failures, e.until)).map(|(k, _)| k.clone());
            least.map(|k| entries.remove(&k));
        }
    }
    let entry = entries.entry(key).or_insert(Entry { failures: 0, until: now });
    if now.since(entry.until) >= FORGET {
        entry.failures = 0;
    }
    let pause = FIRST.saturating_mul(1 << entry.failures.min(10)).min(MOST);
    entry.failures = entry.failures.saturating_add(1);
    entry.until = Mono(now.0.saturating_add(pause));
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADA: &str = "ada";

    fn at(seconds: u64) -> Mono {
        Mono(Duration::from_secs(10_000 + seconds))
    }

    fn attempt(user: &str, address: [u8; 4], side: Side) -> Attempt<'_> {
        Attempt { user, address: address.into(), side }
    }

    #[test]
    fn the_pause_doubles_from_a_second_to_a_quarter_of_an_hour_and_is_forgotten() {
        let (mut lockout, stranger) = (Lockout::default(), attempt(ADA, [10, 0, 0, 1], Side::Boot));
        let mut now = 0;
        for expected in [1u64, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900] {
            assert_eq!(lockout.begin(stranger, at(now)), Ok(()));
            assert_eq!(lockout.begin(stranger, at(now)), Err(Duration::from_secs(expected)), "many at once are not many tries");
            now += expected;
        }
        assert_eq!(lockout.begin(stranger, at(now + 900)), Ok(()));
        assert_eq!(lockout.begin(stranger, at(now + 900)), Err(FIRST), "a quarter of an hour of peace");
    }

    #[test]
    fn a_stranger_can_not_lock_the_operator_out() {
        let mut lockout = Lockout::default();
        let operator = attempt(ADA, [10, 0, 0, 200], Side::Boot);
        lockout.begin(operator, at(0)).unwrap();
        lockout.succeeded(operator);
        let mut now = 1;
        for n in 1..=100u8 {
            let stranger = attempt(ADA, [10, 0, 0, n], Side::Boot);
            if let Err(wait) = lockout.begin(stranger, at(now)) {
                now += wait.as_secs();
                lockout.begin(stranger, at(now)).unwrap();
            }
        }
        assert!(lockout.begin(attempt(ADA, [10, 0, 0, 150], Side::Boot), at(now)).is_err(), "many addresses are no way around");
        assert_eq!(lockout.begin(operator, at(now)), Ok(()), "an address of his");
        lockout.succeeded(operator);
        for (address, side) in [([192, 0, 2, 1], Side::Elsewhere), ([127, 0, 0, 1], Side::Loopback)] {
            assert_eq!(lockout.begin(attempt(ADA, address, side), at(now)), Ok(()), "another side");
        }
        assert!(lockout.begin(attempt(ADA, [10, 0, 0, 151], Side::Boot), at(now)).is_err(), "his log-in helps nobody else");
    }

    #[test]
    fn an_address_waits_whichever_user_it_asks_for() {
        let mut lockout = Lockout::default();
        lockout.begin(attempt("a", [10, 0, 0, 1], Side::Boot), at(0)).unwrap();
        assert!(lockout.begin(attempt("b", [10, 0, 0, 1], Side::Boot), at(0)).is_err());
        let v6 = |text: &str| Attempt { user: "c", address: text.parse().unwrap(), side: Side::Elsewhere };
        lockout.begin(v6("2001:db8::1"), at(0)).unwrap();
        assert!(lockout.begin(Attempt { user: "d", ..v6("2001:db8::ffff:2") }, at(0)).is_err(), "all of one network are one");
        assert!(lockout.begin(Attempt { user: "d", ..v6("2001:db8:0:1::2") }, at(0)).is_ok());
    }

    #[test]
    fn what_is_remembered_is_bounded_and_invented_names_push_out_no_real_lock() {
        let mut lockout = Lockout::default();
        for n in [0, 1, 3, 7] {
            lockout.begin(attempt(ADA, [10, 1, 0, u8::try_from(n).unwrap()], Side::Boot), at(n)).unwrap();
        }
        for n in 0..10_000u32 {
            let [_, b, c, d] = n.to_be_bytes();
            let name = format!("invented{n}");
            lockout.begin(Attempt { user: &name, address: [11, b, c, d].into(), side: Side::Boot }, at(8)).unwrap();
        }
        assert_eq!((lockout.addresses.len(), lockout.users.len()), (MAX_ENTRIES, MAX_ENTRIES));
        assert!(lockout.begin(attempt(ADA, [10, 9, 0, 1], Side::Boot), at(8)).is_err());
    }
}
