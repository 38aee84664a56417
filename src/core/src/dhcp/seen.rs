//! What a proxy learns of leases that another server gives: who asked for which address on port 67, and whose offers came to
//! nothing. All of it is bounded and expires; nothing of it is believed where the kernel knows better who has an address.

use super::msg::{Request, RequestKind};
use crate::id::MacAddr;
use crate::time::Mono;
use std::collections::{BTreeMap, BTreeSet, HashMap};
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
    by_time: BTreeSet<(Mono, Ipv4Addr)>,
}

/// One change of what is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learnt {
    /// This address is this machine's.
    Has(Ipv4Addr, MacAddr),
    /// It is nobody's any more.
    Lost(Ipv4Addr),
}

impl Seen {
    /// Learns from a message on port 67. Returns what changed, in order. `serves`: whether an address is one of our networks.
    pub fn learn(&mut self, request: &Request, serves: impl Fn(Ipv4Addr) -> bool, now: Mono) -> Vec<Learnt> {
        let ciaddr = Some(request.ciaddr).filter(|address| !address.is_unspecified());
        let lost = match request.kind {
            RequestKind::Request => match request.requested.or(ciaddr).filter(|address| serves(*address)) {
                Some(address) => return self.note(request.mac, address, now),
                None => None,
            },
            RequestKind::Release => ciaddr,
            RequestKind::Decline => request.requested,
            RequestKind::Discover | RequestKind::Inform | RequestKind::Bootp => None,
        };
        let own = lost.filter(|address| self.by_mac.get(&request.mac) == Some(address));
        own.into_iter().filter_map(|address| self.forget(address)).collect()
    }

    fn note(&mut self, mac: MacAddr, address: Ipv4Addr, now: Mono) -> Vec<Learnt> {
        let before = self.by_mac.get(&mac).copied().filter(|old| *old != address);
        let mut changes: Vec<Learnt> = before.into_iter().filter_map(|old| self.forget(old)).collect();
        let known = self.by_mac.get(&mac) == Some(&address);
        self.forget(address);
        self.by_address.insert(address, (mac, now));
        self.by_mac.insert(mac, address);
        self.by_time.insert((now, address));
        if !known {
            changes.push(Learnt::Has(address, mac));
        }
        if self.by_address.len() > MAX_ADDRESSES
            && let Some((_, oldest)) = self.by_time.first().copied()
        {
            changes.extend(self.forget(oldest));
        }
        changes
    }

    fn forget(&mut self, address: Ipv4Addr) -> Option<Learnt> {
        let (mac, at) = self.by_address.remove(&address)?;
        self.by_mac.remove(&mac);
        self.by_time.remove(&(at, address));
        Some(Learnt::Lost(address))
    }

    /// Forgets what is too old. Returns what changed.
    pub fn expire(&mut self, now: Mono) -> Vec<Learnt> {
        let mut changes = Vec::new();
        while let Some((at, address)) = self.by_time.first().copied()
            && now.since(at) >= REMEMBERED
        {
            changes.extend(self.forget(address));
        }
        changes
    }
}

struct Offers {
    first: Mono,
    last: Mono,
    count: u32,
    told: bool,
}

/// Machines that were offered a boot file and have not come for it.
#[derive(Default)]
pub struct Unanswered(HashMap<MacAddr, Offers>);

impl Unanswered {
    /// An offer goes out.
    pub fn offered(&mut self, mac: MacAddr, now: Mono) {
        self.0.retain(|_, offers| now.since(offers.last) < FORGOTTEN);
        if self.0.len() < MAX_WATCHED || self.0.contains_key(&mac) {
            let offers = self.0.entry(mac).or_insert(Offers { first: now, last: now, count: 0, told: false });
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

    /// The machines whose offers came to nothing for so long that somebody should look, in order.
    #[must_use]
    pub fn overdue(&self, now: Mono) -> Vec<MacAddr> {
        let (count, time) = UNANSWERED;
        let late = |offers: &Offers| offers.count >= count && offers.last.since(offers.first) >= time && now.since(offers.last) < FORGOTTEN;
        let mut all: Vec<MacAddr> = self.0.iter().filter(|(_, offers)| late(offers)).map(|(mac, _)| *mac).collect();
        all.sort();
        all
    }

    /// Those of them that were not among the news yet.
    pub fn news(&mut self, now: Mono) -> Vec<MacAddr> {
        let mut all = self.overdue(now);
        all.retain(|mac| self.0.get_mut(mac).is_some_and(|offers| !std::mem::replace(&mut offers.told, true)));
        all
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

    fn learns(seen: &mut Seen, request: &Request, serves: impl Fn(Ipv4Addr) -> bool, now: Mono) -> bool {
        !seen.learn(request, serves, now).is_empty()
    }

    fn holders(seen: &Seen) -> Vec<(Ipv4Addr, MacAddr)> {
        seen.by_address.iter().map(|(address, (mac, _))| (*address, *mac)).collect()
    }

    #[test]
    fn who_asks_another_server_for_an_address_is_taken_to_have_it() {
        let mut seen = Seen::default();
        assert!(learns(&mut seen, &selects(1, 9), ours, at(0)));
        assert!(!learns(&mut seen, &selects(1, 9), ours, at(1)), "nothing new");
        assert!(
            learns(&mut seen, &Request { ciaddr: address(8), requested: None, server_id: None, ..selects(2, 0) }, ours, at(1)),
            "renewal"
        );
        assert_eq!(holders(&seen), [(address(8), mac(2)), (address(9), mac(1))]);
        // One machine has one address, and one address one machine.
        assert!(learns(&mut seen, &selects(1, 10), ours, at(2)) && learns(&mut seen, &selects(3, 10), ours, at(3)));
        assert_eq!(holders(&seen), [(address(8), mac(2)), (address(10), mac(3))]);
        assert!(!learns(&mut seen, &request(1, mac(1), &[(REQUESTED_ADDRESS, &OTHER)]), ours, at(4)), "a DISCOVER is a wish");
        assert!(!learns(&mut seen, &request(3, mac(1), &[(REQUESTED_ADDRESS, &[192, 0, 2, 9])]), ours, at(4)), "another network's");
    }

    #[test]
    fn only_the_holder_gives_back_and_a_day_is_the_end() {
        let mut seen = Seen::default();
        learns(&mut seen, &selects(1, 9), ours, at(0));
        let release = |number| Request { ciaddr: address(9), ..request(7, mac(number), &[]) };
        assert!(!learns(&mut seen, &release(2), ours, at(1)));
        assert!(learns(&mut seen, &release(1), ours, at(1)));
        learns(&mut seen, &selects(1, 9), ours, at(2));
        assert!(learns(&mut seen, &request(4, mac(1), &[(REQUESTED_ADDRESS, &address(9).octets())]), ours, at(3)), "declined");
        learns(&mut seen, &selects(1, 9), ours, at(10));
        assert!(seen.expire(at(24 * 3600)).is_empty() && !seen.expire(at(24 * 3600 + 10)).is_empty());
        assert!(holders(&seen).is_empty() && seen.by_mac.is_empty());
    }

    #[test]
    fn a_flood_of_forged_requests_is_bounded() {
        let mut seen = Seen::default();
        for number in 0..20_000_u16 {
            let [a, b] = number.to_be_bytes();
            let forged = Request { mac: MacAddr([2, 0, 0, 0, a, b]), requested: Some(Ipv4Addr::new(10, 78, a, b)), ..selects(1, 1) };
            learns(&mut seen, &forged, |_| true, at(number.into()));
        }
        assert_eq!((seen.by_address.len(), seen.by_mac.len()), (MAX_ADDRESSES, MAX_ADDRESSES));
        assert_eq!(seen.by_time.len(), MAX_ADDRESSES);
    }

    #[test]
    fn who_follows_the_changes_one_by_one_knows_all_that_is_remembered() {
        let (mut seen, mut copy) = (Seen::default(), BTreeMap::new());
        let mut state = 7_u32;
        for step in 0..5000_u64 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let [_, who, last, kind] = state.to_le_bytes();
            let (who, last) = (who % 9, last % 9);
            let request = match kind % 4 {
                0 => Request { ciaddr: address(last), ..request(7, mac(who), &[]) },
                _ => selects(who, last),
            };
            let mut changes = seen.expire(at(step * 5000));
            changes.extend(seen.learn(&request, ours, at(step * 5000)));
            for change in changes {
                match change {
                    Learnt::Has(address, mac) => drop(copy.insert(address, mac)),
                    Learnt::Lost(address) => drop(copy.remove(&address)),
                }
            }
            assert_eq!(holders(&seen), copy.iter().map(|(address, mac)| (*address, *mac)).collect::<Vec<_>>(), "{step}");
            assert_eq!((seen.by_mac.len(), seen.by_time.len()), (copy.len(), copy.len()));
        }
    }

    #[test]
    fn offers_that_come_to_nothing_are_told_of_until_the_machine_comes_or_is_gone() {
        let mut unanswered = Unanswered::default();
        for secs in [0, 4, 12, 28] {
            assert_eq!(unanswered.overdue(at(secs)), []);
            unanswered.offered(mac(1), at(secs));
        }
        assert_eq!(unanswered.overdue(at(28)), [mac(1)]);
        assert_eq!((unanswered.news(at(28)), unanswered.news(at(29))), (vec![mac(1)], vec![]), "news once");
        unanswered.offered(mac(2), at(29));
        assert_eq!(unanswered.overdue(at(29)), [mac(1)]);
        assert_eq!(unanswered.overdue(at(28 + 15 * 60)), [], "it asks no more");
        unanswered.came(mac(1));
        assert_eq!(unanswered.overdue(at(30)), []);
        for number in 0..4000_u16 {
            let [a, b] = number.to_be_bytes();
            unanswered.offered(MacAddr([2, 1, 0, 0, a, b]), at(30));
        }
        assert_eq!(unanswered.waiting().count(), MAX_WATCHED);
    }
}
