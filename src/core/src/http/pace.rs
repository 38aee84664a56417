//! The rate cap: so many octets a second for one address, whatever it opens. For NICs whose firmware loses packets and hangs at full
//! speed (ipxe 1023, 1545); so the octets are spread evenly, without a burst at the beginning.

use crate::time::Mono;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

/// Pieces a second at most: each is let through at once, so they are small.
const PIECES_PER_SECOND: u64 = 100;
/// Smallest piece: one Ethernet packet's.
const MIN_PIECE_BYTES: u64 = 1460;
/// Largest piece.
const MAX_PIECE_BYTES: u64 = 64 * 1024;
/// Addresses that are remembered: more than the boot plane has connections. An address is remembered until its turn has passed, a
/// hundredth of a second after its last piece.
const MAX_ADDRESSES: usize = 4096;

/// When each address has its next turn.
#[derive(Debug)]
pub struct Pace {
    rate: u64,
    next: HashMap<IpAddr, Mono>,
}

impl Pace {
    /// `rate` octets a second for each address; at least one.
    #[must_use]
    pub fn new(rate: u64) -> Self {
        Self { rate: rate.max(1), next: HashMap::new() }
    }

    /// Octets that may be sent at once.
    #[must_use]
    pub fn piece(&self) -> u64 {
        (self.rate / PIECES_PER_SECOND).clamp(MIN_PIECE_BYTES, MAX_PIECE_BYTES)
    }

    /// Reserves the next turn of an address for `octets`: how long to wait before they are sent. Connections of one address share
    /// its turns.
    pub fn reserve(&mut self, address: IpAddr, octets: u64, now: Mono) -> Duration {
        if self.next.len() >= MAX_ADDRESSES {
            self.next.retain(|_, next| *next > now);
        }
        let takes = Duration::from_micros(u64::try_from(u128::from(octets) * 1_000_000 / u128::from(self.rate)).unwrap_or(u64::MAX));
        let turn = self.next.get(&address).copied().unwrap_or(now).max(now);
        if self.next.len() < MAX_ADDRESSES || self.next.contains_key(&address) {
            self.next.insert(address, turn.after(takes));
        }
        turn.since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 2));
    const B: IpAddr = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);

    fn at(micros: u64) -> Mono {
        Mono(Duration::from_micros(micros))
    }

    #[test]
    fn ipxe_1023_an_address_gets_its_rate_smoothly_however_many_connections_it_opens() {
        let mut pace = Pace::new(1_000_000);
        let piece = pace.piece();
        assert_eq!(piece, 10_000);
        // Two connections ask in turn, each when its wait is over: after one second a hundred pieces were sent.
        let mut clocks = [at(0), at(0)];
        let mut sent = Vec::new();
        for turn in 0..200 {
            let clock = &mut clocks[turn % 2];
            let wait = pace.reserve(A, piece, *clock);
            *clock = clock.after(wait);
            sent.push(clock.0.as_micros());
        }
        sent.sort_unstable();
        assert_eq!(sent.iter().filter(|t| **t < 1_000_000).count(), 100);
        assert!(sent.windows(2).all(|two| two[1] - two[0] == 10_000), "evenly");
        assert_eq!(pace.reserve(B, piece, at(0)), Duration::ZERO, "another address has its own");
    }

    #[test]
    fn an_address_that_rested_saves_nothing_up() {
        let mut pace = Pace::new(100_000);
        assert_eq!(pace.reserve(A, 100_000, at(0)), Duration::ZERO);
        assert_eq!(pace.reserve(A, 1, at(0)), Duration::from_secs(1), "a new connection does not start anew");
        assert_eq!(pace.reserve(A, 100_000, at(60_000_000)), Duration::ZERO);
        assert_eq!(pace.reserve(A, 100_000, at(60_000_000)), Duration::from_secs(1));
    }

    #[test]
    fn what_is_remembered_of_addresses_is_bounded() {
        let mut pace = Pace::new(65_536);
        for n in 0..10_000_u32 {
            pace.reserve(IpAddr::from(n.to_be_bytes()), 65_536, at(u64::from(n)));
            assert!(pace.next.len() <= MAX_ADDRESSES);
        }
        pace.reserve(A, 1, at(3_000_000));
        assert_eq!(pace.next.len(), 1, "whose turn has passed is forgotten");
    }

    #[test]
    fn pieces_are_small_at_any_rate() {
        for rate in [1, 65_536, 4_000_000, u64::MAX] {
            let piece = Pace::new(rate).piece();
            assert!((MIN_PIECE_BYTES..=MAX_PIECE_BYTES).contains(&piece), "{rate}");
        }
        let mut fast = Pace::new(u64::MAX);
        assert_eq!((fast.reserve(A, 1000, at(0)), fast.reserve(A, 1000, at(0))), (Duration::ZERO, Duration::ZERO));
        assert_eq!(Pace::new(0).reserve(A, u64::MAX, at(0)), Duration::ZERO);
    }
}
