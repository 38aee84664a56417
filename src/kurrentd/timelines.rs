//! Boot timelines of recent devices, and what each part of the appliance last did for them, in bounded memory.

use kurrent_core::explain::Sighting;
use kurrent_core::id::MacAddr;
use kurrent_core::time::{Mono, Now};
use kurrent_core::timeline::{Boot, Step};
use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;

/// Strangers can create entries: beyond this many the one untouched longest goes.
const MAX_DEVICES: usize = 4096;

/// Longest outcome kept, characters.
const MAX_OUTCOME: usize = 120;

/// One device's: its latest boot, when it was last touched, and the latest of each part.
type Line = (Boot, Mono, Vec<Sighting>);

/// Lines by MAC, and the MACs by when they were last touched: no packet of a new machine walks them all.
#[derive(Default)]
struct Lines {
    by_mac: HashMap<MacAddr, Line>,
    touched: BTreeSet<(Mono, MacAddr)>,
}

/// Timelines by MAC.
#[derive(Default)]
pub struct Timelines(Mutex<Lines>);

impl Timelines {
    fn with<R>(&self, mac: MacAddr, now: Now, act: impl FnOnce(&mut Line) -> R) -> R {
        let mut guard = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Lines { by_mac, touched } = &mut *guard;
        let full = by_mac.len() >= MAX_DEVICES && !by_mac.contains_key(&mac);
        if full && let Some((_, oldest)) = touched.pop_first() {
            by_mac.remove(&oldest);
        }
        let entry = by_mac.entry(mac).or_default();
        touched.remove(&(entry.1, mac));
        touched.insert((now.mono, mac));
        entry.1 = now.mono;
        act(entry)
    }

    /// Records a step of a device's boot.
    pub fn mark(&self, mac: MacAddr, step: Step, now: Now) {
        self.with(mac, now, |(boot, ..)| boot.mark(step, now));
    }

    /// Records why the boot stopped; an empty text clears it.
    pub fn fault(&self, mac: MacAddr, fault: &str, now: Now) {
        self.with(mac, now, |(boot, ..)| boot.fault = (!fault.is_empty()).then(|| fault.chars().take(200).collect()));
    }

    /// Records what a part (`dhcp`, `loader`, `tftp`, `http`) last did for a device; there are as many of them as there are parts.
    pub fn sight(&self, mac: MacAddr, part: &'static str, outcome: &str, refused: bool, now: Now) {
        let outcome = outcome.chars().filter(|c| !c.is_control()).take(MAX_OUTCOME);
        self.with(mac, now, |(.., sightings)| match sightings.iter_mut().find(|s| s.part == part) {
            // In place: a client that asks again and again costs no allocation.
            Some(seen) => {
                seen.outcome.clear();
                seen.outcome.extend(outcome);
                (seen.refused, seen.at) = (refused, now.wall);
            }
            None => sightings.push(Sighting { part, outcome: outcome.collect(), refused, at: now.wall }),
        });
    }

    /// What each part last did for a device.
    #[must_use]
    pub fn sightings(&self, mac: MacAddr) -> Vec<Sighting> {
        let lines = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        lines.by_mac.get(&mac).map(|(.., sightings)| sightings.clone()).unwrap_or_default()
    }

    /// In a word or two how far the device's latest boot is, for lists; empty when nothing was seen of it.
    #[must_use]
    pub fn summary(&self, mac: MacAddr) -> String {
        let lines = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some((boot, ..)) = lines.by_mac.get(&mac) else { return String::new() };
        let step = boot.marks.last().map(|m| format!("{:?}", m.step).to_lowercase()).unwrap_or_default();
        match &boot.fault {
            Some(fault) => format!("{step} ({fault})"),
            None => step,
        }
    }

    /// The latest boot of a device, if anything was seen of it.
    #[must_use]
    pub fn of(&self, mac: MacAddr) -> Option<Boot> {
        let lines = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        lines.by_mac.get(&mac).map(|(boot, ..)| boot.clone()).filter(|boot| !boot.marks.is_empty() || boot.fault.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn strangers_do_not_grow_it_without_end() {
        let timelines = Timelines::default();
        let at = |n: u64| Now { mono: Mono(Duration::from_secs(n)), wall: kurrent_core::time::Wall::UNIX_EPOCH };
        for n in 0..6000u16 {
            let [a, b] = n.to_be_bytes();
            for part in ["dhcp", "tftp", "http", "dhcp"] {
                timelines.sight(MacAddr([2, 0, 0, 0, a, b]), part, &"x".repeat(5000), true, at(u64::from(n)));
            }
        }
        let lines = timelines.0.lock().unwrap();
        let map = &lines.by_mac;
        assert_eq!((map.len(), lines.touched.len()), (MAX_DEVICES, MAX_DEVICES));
        assert!(map.values().all(|(.., s)| s.len() == 3 && s.iter().all(|s| s.outcome.len() == MAX_OUTCOME)));
        assert!(map.contains_key(&MacAddr([2, 0, 0, 0, 0x17, 0x6f])), "the latest stay");
    }
}
