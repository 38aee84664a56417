//! The kernel's neighbours, looked up for each request without asking the kernel for each: on our own link nobody else tells
//! whose address asks.

use kurrent_core::id::MacAddr;
use kurrent_core::time::Mono;
use kurrent_sys::{link, neighbour};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What the kernel said is believed for so long.
const BELIEVED: Duration = Duration::from_secs(1);
/// A machine that it did not know is looked for again after this: it may have come just now.
const AGAIN: Duration = Duration::from_millis(20);
/// Answers that are kept; whoever forges sources can make no more.
const MAX_KEPT: usize = 1024;
/// Addresses that the kernel is made to ask for within [`QUESTIONS_EVERY`]. Each is an entry of its table for some 3 s (three
/// solicitations), and that has 1024 places (`gc_thresh3`): others need them, too.
const MAX_QUESTIONS: u32 = 64;
const QUESTIONS_EVERY: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug, Default)]
pub struct Neighbours(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    macs: HashMap<IpAddr, (Option<MacAddr>, Mono)>,
    /// The boot network's interface; it may come back with another number.
    index: Option<(u32, Mono)>,
    questions: (u32, Mono),
}

impl Neighbours {
    /// Which machine has this address on the link of the interface that has the address `own`.
    #[must_use]
    pub fn mac_of(&self, own: Ipv4Addr, address: IpAddr, now: Mono) -> Option<MacAddr> {
        self.look(address, now, |address| neighbour::find(self.index(own, now)?, address).ok().flatten())
    }

    /// Has the kernel ask who has an address on the link of interface `index`, so that [`Self::mac_of`] knows it soon: a machine
    /// that only multicasts has not told it. Not more often than the kernel can bear.
    pub fn ask(&self, index: u32, address: IpAddr, now: Mono) {
        if self.may_ask(now)
            && let Err(error) = neighbour::ask(index, address)
        {
            tracing::debug!(%error, "neighbours");
        }
    }

    fn may_ask(&self, now: Mono) -> bool {
        let mut kept = self.kept();
        let (asked, since) = &mut kept.questions;
        if now.since(*since) >= QUESTIONS_EVERY {
            (*asked, *since) = (0, now);
        }
        *asked = asked.saturating_add(1);
        *asked <= MAX_QUESTIONS
    }

    fn index(&self, own: Ipv4Addr, now: Mono) -> Option<u32> {
        if let Some((index, at)) = self.kept().index
            && now.since(at) < BELIEVED
        {
            return Some(index);
        }
        let index = link::addresses().ok()?.into_iter().find(|a| a.address == own)?.index;
        self.kept().index = Some((index, now));
        Some(index)
    }

    /// The kernel is asked without the lock: others, whose answers are known, go on.
    fn look(&self, address: IpAddr, now: Mono, ask: impl FnOnce(IpAddr) -> Option<MacAddr>) -> Option<MacAddr> {
        let fresh = |(mac, at): &(Option<MacAddr>, Mono)| now.since(*at) < if mac.is_some() { BELIEVED } else { AGAIN };
        if let Some((mac, _)) = self.kept().macs.get(&address).copied().filter(fresh) {
            return mac;
        }
        let mac = ask(address);
        let mut kept = self.kept();
        if kept.macs.len() >= MAX_KEPT {
            kept.macs.clear();
        }
        kept.macs.insert(address, (mac, now));
        mac
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 9));

    fn at(millis: u64) -> Mono {
        Mono(Duration::from_millis(millis))
    }

    #[test]
    fn a_newcomer_is_found_at_once_and_a_change_within_a_second() {
        let neighbours = Neighbours::default();
        let look = |millis, known: Option<u8>| {
            let ask = |_| known.map(|last| MacAddr([2, 0, 0, 0, 0, last]));
            neighbours.look(ADDRESS, at(millis), ask).map(|mac| mac.0[5])
        };
        assert_eq!((look(0, None), look(19, Some(1)), look(20, Some(1))), (None, None, Some(1)));
        assert_eq!((look(1019, Some(2)), look(1020, Some(2))), (Some(1), Some(2)));
    }

    #[test]
    fn forged_sources_are_bounded() {
        let neighbours = Neighbours::default();
        for number in 0..5000_u16 {
            let [a, b] = number.to_be_bytes();
            let _ = neighbours.look([10, 77, a, b].into(), Mono(Duration::ZERO), |_| None);
        }
        assert!(neighbours.kept().macs.len() <= MAX_KEPT);
    }

    #[test]
    fn while_the_kernel_is_asked_for_one_others_are_answered() {
        let neighbours = Neighbours::default();
        let known = Some(MacAddr([2, 0, 0, 0, 0, 1]));
        assert_eq!(neighbours.look(ADDRESS, at(0), |_| known), known);
        let inner = neighbours.look([10, 77, 0, 10].into(), at(1), |_| neighbours.look(ADDRESS, at(1), |_| None));
        assert_eq!(inner, known);
    }

    #[test]
    fn the_kernel_is_not_made_to_ask_for_more_than_its_table_holds() {
        let neighbours = Neighbours::default();
        let asked = |second: u64| (0..5000).filter(|n| neighbours.may_ask(at(second * 1000 + n % 1000))).count();
        assert_eq!((asked(1), asked(2)), (64, 64));
    }
}
