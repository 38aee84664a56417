//! What a proxy learns of leases that another server gives: who asked for which address on port 67, and whose offers came to
//! nothing. All of it is bounded and expires; nothing of it is believed where the kernel knows better who has an address.

use super::msg::{Request, RequestKind};
use crate::id::MacAddr;
use crate::time::Mono;
use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::time::Duration;

/// Addresses that are remembered; beyond that the one not heard of longest goes.
const MAX_ADDRESSES: usize = 16_384;
/// Renewals go to the server alone and are never seen, so a machine is remembered for a day.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);
/// Machines whose offers are watched; further ones are not.
const MAX_WATCHED: usize = 1024;
/// So many offers in so long a time came to nothing: four DISCOVERs of PXE 2.1 table 2-4 are 4 + 8 + 16 + 32 seconds.
const UNANSWERED: (u32, Duration) = (4, Duration::from_secs(25));
/// A machine that does not ask any longer is forgotten: it was switched off, or boots from elsewhere.
const FORGOTTEN: Duration = Duration::from_secs(15 * 60);

/// Who asked for which address.
#[derive(Debug, Default)]
pub struct Seen {
    by_address: BTreeMap<Ipv4Addr, (MacAddr, Mono)>,
    by_mac: HashMap<MacAddr, Ipv4Addr>,
}

impl Seen {
    /// Learns from a message on port 67. Returns whether anything changed. `serves`: whether an address is one of our networks.
    pub fn learn(&mut self, request: &Request, serves: impl Fn(Ipv4Addr) -> bool, now: Mono) -> bool {
        let ciaddr = Some(request.ciaddr).filter(|address| !address.is_unspecified());
        match request.kind {
            RequestKind::Request => match request.requested.or(ciaddr).filter(|address| serves(*address)) {
                Some(address) => self.note(request.mac, address, now),
                None => false,
            },
            RequestKind::Release => ciaddr.is_some_and(|address| self.forget(request.mac, address)),
            RequestKind::Decline => request.requested.is_some_and(|address| self.forget(request.mac, address)),
            RequestKind::Discover | RequestKind::Inform | RequestKind::Bootp => false,
        }
    }

    fn note(&mut self, mac: MacAddr, address: Ipv4Addr, now: Mono) -> bool {
        let before = self.by_mac.insert(mac, address);
        if let Some(old) = before.filter(|old| *old != address) {
            self.by_address.remove(&old);
        }
        let former = self.by_address.insert(address, (mac, now)).map(|(holder, _)| holder);
        if let Some(other) = former.filter(|other| *other != mac) {
            self.by_mac.remove(&other);
        }
        while self.by_address.len() > MAX_ADDRESSES {
            let oldest = self.by_address.iter().min_by_key(|(_, (_, at))| *at).map(|(address, (mac, _))| (*mac, *address));
            let Some((mac, address)) = oldest else { break };
            self.forget(mac, address);
        }
        former != Some(mac)
    }

    fn forget(&mut self, mac: MacAddr, address: Ipv4Addr) -> bool {
        let held = self.by_address.get(&address).is_some_and(|(holder, _)| *holder == mac);
        if held {
            self.by_address.remove(&address);
            self.by_mac.remove(&mac);
        }
        held
    }

    /// Forgets what is too old. Returns whether anything was.
    pub fn expire(&mut self, now: Mono) -> bool {
        let before = self.by_address.len();
        self.by_address.retain(|_, (_, at)| now.since(*at) < REMEMBERED);
        self.by_mac.retain(|mac, address| self.by_address.get(address).is_some_and(|(holder, _)| holder == mac));
        before != self.by_address.len()
    }

    /// All that is remembered.
    pub fn holders(&self) -> impl Iterator<Item = (Ipv4Addr, MacAddr)> {
        self.by_address.iter().map(|(address, (mac, _))| (*address, *mac))
    }
}

struct Offers {
    first: Mono,
    last: Mono,
    count: u32,
}

/// Machines that were offered a boot file and have not come for it.
#[derive(Default)]
pub struct Unanswered(HashMap<MacAddr, Offers>);

impl Unanswered {
    /// An offer goes out.
    pub fn offered(&mut self, mac: MacAddr, now: Mono) {
        self.0.retain(|_, offers| now.since(offers.last) < FORGOTTEN);
        if self.0.len() < MAX_WATCHED || self.0.contains_key(&mac) {
            let offers = self.0.entry(mac).or_insert(Offers { first: now, last: now, count: 0 });
            offers.last = now;
            offers.count = offers.count.saturating_add(1);
        }
    }

    /// It came: to port 4011, or for a file.
    pub fn came(&mut self, mac: MacAddr) {
        self.0.remove(&mac);
    }

    /// Those who are waited for.
    pub fn waiting(&self) -> impl Iterator<Item = MacAddr> {
        self.0.keys().copied()
    }

    /// The machines whose offers came to nothing for so long that somebody should look, in order, and how many there are.
    #[must_use]
    pub fn overdue(&self, now: Mono) -> Option<(MacAddr, usize)> {
        let (count, time) = UNANSWERED;
        let late = |offers: &Offers| offers.count >= count && offers.last.since(offers.first) >= time && now.since(offers.last) < FORGOTTEN;
        let all = || self.0.iter().filter(|(_, offers)| late(offers)).map(|(mac, _)| *mac);
        Some((all().min()?, all().count()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{mac, request};
    use super::super::wire::option::{REQUESTED_ADDRESS, SERVER_ID};
    use super::*;

    const OTHER: [u8; 4] = [10, 77, 0, 2];

    fn at(secs: u64) -> Mono {
        Mono(Duration::from_secs(secs))
    }

    fn address(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, last)
    }

    fn ours(address: Ipv4Addr) -> bool {
        address.octets()[..3] == [10, 77, 0]
    }

    fn selects(number: u8, last: u8) -> Request {
        request(3, mac(number), &[(REQUESTED_ADDRESS, &address(last).octets()), (SERVER_ID, &OTHER)])
    }

    fn holders(seen: &Seen) -> Vec<(Ipv4Addr, MacAddr)> {
        seen.holders().collect()
    }

    #[test]
    fn who_asks_another_server_for_an_address_is_taken_to_have_it() {
        let mut seen = Seen::default();
        assert!(seen.learn(&selects(1, 9), ours, at(0)));
        assert!(!seen.learn(&selects(1, 9), ours, at(1)), "nothing new");
        assert!(seen.learn(&Request { ciaddr: address(8), requested: None, server_id: None, ..selects(2, 0) }, ours, at(1)), "renewal");
        assert_eq!(holders(&seen), [(address(8), mac(2)), (address(9), mac(1))]);
        // One machine has one address, and one address one machine.
        assert!(seen.learn(&selects(1, 10), ours, at(2)) && seen.learn(&selects(3, 10), ours, at(3)));
        assert_eq!(holders(&seen), [(address(8), mac(2)), (address(10), mac(3))]);
        assert!(!seen.learn(&request(1, mac(1), &[(REQUESTED_ADDRESS, &OTHER)]), ours, at(4)), "a DISCOVER is a wish");
        assert!(!seen.learn(&request(3, mac(1), &[(REQUESTED_ADDRESS, &[192, 0, 2, 9])]), ours, at(4)), "another network's");
    }

    #[test]
    fn only_the_holder_gives_back_and_a_day_is_the_end() {
        let mut seen = Seen::default();
        seen.learn(&selects(1, 9), ours, at(0));
        let release = |number| Request { ciaddr: address(9), ..request(7, mac(number), &[]) };
        assert!(!seen.learn(&release(2), ours, at(1)));
        assert!(seen.learn(&release(1), ours, at(1)));
        seen.learn(&selects(1, 9), ours, at(2));
        assert!(seen.learn(&request(4, mac(1), &[(REQUESTED_ADDRESS, &address(9).octets())]), ours, at(3)), "declined");
        seen.learn(&selects(1, 9), ours, at(10));
        assert!(!seen.expire(at(24 * 3600)) && seen.expire(at(24 * 3600 + 10)));
        assert!(holders(&seen).is_empty() && seen.by_mac.is_empty());
    }

    #[test]
    fn a_flood_of_forged_requests_is_bounded() {
        let mut seen = Seen::default();
        for number in 0..20_000_u16 {
            let [a, b] = number.to_be_bytes();
            let forged = Request { mac: MacAddr([2, 0, 0, 0, a, b]), requested: Some(Ipv4Addr::new(10, 78, a, b)), ..selects(1, 1) };
            seen.learn(&forged, |_| true, at(number.into()));
        }
        assert_eq!((seen.by_address.len(), seen.by_mac.len()), (MAX_ADDRESSES, MAX_ADDRESSES));
    }

    #[test]
    fn offers_that_come_to_nothing_are_told_of_until_the_machine_comes_or_is_gone() {
        let mut unanswered = Unanswered::default();
        for secs in [0, 4, 12, 28] {
            assert_eq!(unanswered.overdue(at(secs)), None);
            unanswered.offered(mac(1), at(secs));
        }
        assert_eq!(unanswered.overdue(at(28)), Some((mac(1), 1)));
        unanswered.offered(mac(2), at(29));
        assert_eq!(unanswered.overdue(at(29)), Some((mac(1), 1)));
        assert_eq!(unanswered.overdue(at(28 + 15 * 60)), None, "it asks no more");
        unanswered.came(mac(1));
        assert_eq!(unanswered.overdue(at(30)), None);
        for number in 0..4000_u16 {
            let [a, b] = number.to_be_bytes();
            unanswered.offered(MacAddr([2, 1, 0, 0, a, b]), at(30));
        }
        assert_eq!(unanswered.waiting().count(), MAX_WATCHED);
    }
}
