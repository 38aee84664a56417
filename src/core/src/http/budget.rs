//! How many requests that cost something (a signature, a key agreement, a durable line) are answered: a token bucket for each source,
//! and one for all strangers together. Machines of the ledger have one of their own, which no stranger empties.
//!
//! A source is a machine of the ledger, however many addresses it has; of strangers it is the address. Not the /64 of an IPv6 address:
//! the whole boot network is one, and one stranger in it would use up what all new machines have. Whoever takes many addresses there
//! uses up what strangers have together, which is more. Whoever is refused is told to wait, once in a burst it is news for the audit. Nothing is
//! believed of a source but its address, and a TCP connection was made from it.

use crate::id::MacAddr;
use crate::time::Mono;
use std::collections::HashMap;
use std::net::IpAddr;

/// Sources that are remembered, 64 octets each. One is forgotten when its bucket is full again, after [`SOURCE`]'s ten seconds at
/// most; while there are more, the others share the common buckets only.
const MAX_SOURCES: usize = 8192;

/// How much at once, and how much a second.
#[derive(Clone, Copy, Debug)]
struct Size {
    burst: u32,
    per_second: u32,
}

/// One source. A boot is 3 forms, and 4 of stage-1; a machine that waits asks every second at most: 3 forms each. Behind one
/// address may be a rack of 64 machines with NAT between: all of them switched on at once (192 forms), and in a second each (64).
const SOURCE: Size = Size { burst: 640, per_second: 64 };
/// All machines of the ledger. A thousand after a power cut are 3,000 forms within a few seconds, and 4,000 of stage-1 a little
/// later; a form takes about 0.2 ms of a core.
const KNOWN: Size = Size { burst: 8000, per_second: 2000 };
/// All others: half of it, so that a flood leaves a core to those who are known. An open registration window with a thousand new
/// machines fits.
const STRANGERS: Size = Size { burst: 4000, per_second: 1000 };

/// Millionths of a request: buckets fill continuously.
const REQUEST: u64 = 1_000_000;

#[derive(Clone, Copy, Debug)]
struct Bucket {
    size: Size,
    left: u64,
    at: Mono,
    /// Its emptiness was told.
    told: bool,
}

impl Bucket {
    fn new(size: Size, now: Mono) -> Self {
        Self { size, left: u64::from(size.burst) * REQUEST, at: now, told: false }
    }

    fn fill(&mut self, now: Mono) {
        let micros = u64::try_from(now.since(self.at).as_micros()).unwrap_or(u64::MAX);
        // A millionth of a request for each microsecond and request a second.
        let more = micros.saturating_mul(u64::from(self.size.per_second));
        let full = u64::from(self.size.burst) * REQUEST;
        self.left = self.left.saturating_add(more).min(full);
        self.at = now;
        // A burst is over when the bucket is half full.
        self.told &= self.left < full / 2;
    }

    fn is_full(&self, now: Mono) -> bool {
        let mut then = *self;
        then.fill(now);
        then.left == u64::from(self.size.burst) * REQUEST
    }

    fn has_one(&self) -> bool {
        self.left >= REQUEST
    }

    fn refuse(&mut self) -> Verdict {
        Verdict::Refused { is_news: !std::mem::replace(&mut self.told, true) }
    }
}

/// Whether a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is.
    Taken,
    /// Later. `is_news`: the first refusal of this burst.
    Refused {
        /// For the audit.
        is_news: bool,
    },
}

/// Whose requests are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Source {
    /// Of the ledger.
    Machine(MacAddr),
    /// By its address.
    Stranger(IpAddr),
}

/// All buckets.
#[derive(Debug)]
pub struct Budget {
    sources: HashMap<Source, Bucket>,
    known: Bucket,
    strangers: Bucket,
}

impl Budget {
    /// All full.
    #[must_use]
    pub fn new(now: Mono) -> Self {
        Self { sources: HashMap::new(), known: Bucket::new(KNOWN, now), strangers: Bucket::new(STRANGERS, now) }
    }

    /// Takes one request from `address`, which is that of the `known` machine of the ledger.
    pub fn take(&mut self, address: IpAddr, known: Option<MacAddr>, now: Mono) -> Verdict {
        let source = known.map_or_else(|| Source::Stranger(address), Source::Machine);
        if self.sources.len() >= MAX_SOURCES && !self.sources.contains_key(&source) {
            self.sources.retain(|_, bucket| !bucket.is_full(now));
        }
        let all = if known.is_some() { &mut self.known } else { &mut self.strangers };
        all.fill(now);
        let has_room = self.sources.len() < MAX_SOURCES;
        let mut own = match self.sources.get_mut(&source) {
            Some(own) => Some(own),
            None if has_room => Some(self.sources.entry(source).or_insert_with(|| Bucket::new(SOURCE, now))),
            None => None,
        };
        if let Some(own) = &mut own {
            own.fill(now);
            if !own.has_one() {
                return own.refuse();
            }
        }
        if !all.has_one() {
            return all.refuse();
        }
        all.left = all.left.saturating_sub(REQUEST);
        if let Some(own) = own {
            own.left = own.left.saturating_sub(REQUEST);
        }
        Verdict::Taken
    }

    /// Forgets sources whose buckets are full again; called every few seconds.
    pub fn expire(&mut self, now: Mono) {
        self.sources.retain(|_, bucket| !bucket.is_full(now));
        // What a flood took is given back.
        self.sources.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(millis: u64) -> Mono {
        Mono(Duration::from_millis(millis))
    }

    fn address(n: u32) -> IpAddr {
        IpAddr::from((0x0a4d_0000 + n).to_be_bytes())
    }

    fn taken(budget: &mut Budget, source: u32, is_known: bool, times: u32, now: Mono) -> usize {
        (0..times).filter(|_| budget.take(address(source), is_known.then(|| mac(source)), now) == Verdict::Taken).count()
    }

    fn mac(n: u32) -> MacAddr {
        let [a, b, c, d] = n.to_be_bytes();
        MacAddr([2, 0, a, b, c, d])
    }

    #[test]
    fn a_thousand_machines_after_a_power_cut_are_not_slowed() {
        let mut budget = Budget::new(at(0));
        // report, challenge and boot-vars of all within two seconds, then four words of each stage-1 within three.
        for (from, to, forms) in [(0, 2000, 3), (8000, 11_000, 4)] {
            for machine in 0..1000 {
                let now = at(from + (to - from) * u64::from(machine) / 1000);
                assert_eq!(taken(&mut budget, machine, true, forms, now), usize::try_from(forms).unwrap(), "{machine}");
            }
        }
    }

    #[test]
    fn a_rack_behind_one_address_waits_without_being_refused() {
        let mut budget = Budget::new(at(0));
        assert_eq!(taken(&mut budget, 1, true, 64 * 3, at(0)), 192);
        for second in 1..600 {
            assert_eq!(taken(&mut budget, 1, true, 64, at(second * 1000)), 64, "second {second}");
        }
    }

    #[test]
    fn a_flood_from_one_address_is_news_once_and_hurts_nobody_else() {
        let mut budget = Budget::new(at(0));
        let mut news = 0;
        for millis in 0..10_000 {
            for _ in 0..10 {
                news += usize::from(budget.take(address(66), None, at(millis)) == Verdict::Refused { is_news: true });
            }
            // Fifty others, each once a second.
            if millis % 20 == 0 {
                let machine = u32::try_from(millis / 20 % 50).unwrap();
                assert_eq!(taken(&mut budget, machine, machine % 2 == 0, 3, at(millis)), 3, "{millis}");
            }
        }
        assert_eq!(news, 1, "one burst");
        assert_eq!(taken(&mut budget, 66, false, 1, at(30_000)), 1, "it may again");
    }

    #[test]
    fn strangers_with_any_number_of_addresses_leave_the_known_their_share_and_little_memory() {
        let mut budget = Budget::new(at(0));
        let answered: usize = (0..100_000).map(|n| taken(&mut budget, 1000 + n, false, 1, at(u64::from(n / 100)))).sum();
        assert!(answered <= usize::try_from(STRANGERS.burst + STRANGERS.per_second).unwrap(), "{answered}");
        assert!(budget.sources.len() <= MAX_SOURCES);
        for machine in 0..1000 {
            assert_eq!(taken(&mut budget, machine, true, 3, at(1000)), 3);
        }
        budget.expire(at(20_000));
        assert!(budget.sources.is_empty());
    }

    /// All addresses of a machine are that machine's. Strangers of one network are many, whatever their addresses have in common.
    #[test]
    fn a_machine_with_any_number_of_ipv6_addresses_has_one_share_and_strangers_of_one_64_have_one_each() {
        let v6 = |n: u32| IpAddr::from(std::net::Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(n)));
        let answered = |known: Option<MacAddr>| {
            let mut budget = Budget::new(at(0));
            let answered = (0..3000).filter(|n| budget.take(v6(*n), known, at(0)) == Verdict::Taken).count();
            assert_eq!(budget.take(v6(1), Some(mac(2)), at(0)), Verdict::Taken, "a machine beside it");
            answered
        };
        assert_eq!((answered(Some(mac(1))), answered(None)), (usize::try_from(SOURCE.burst).unwrap(), 3000));
    }
}
