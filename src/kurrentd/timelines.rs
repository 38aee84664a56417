//! Boot timelines of recent devices, and what each part of the appliance last did for them, in bounded memory.

use kurrent_core::explain::Sighting;
use kurrent_core::id::MacAddr;
use kurrent_core::time::{Mono, Now};
use kurrent_core::timeline::{Boot, Step};
use std::collections::HashMap;
use std::sync::Mutex;

/// Strangers can create entries: beyond this many the one untouched longest goes.
const MAX_DEVICES: usize = 4096;

/// Longest outcome kept, characters.
const MAX_OUTCOME: usize = 120;

/// One device's: its latest boot, when it was last touched, and the latest of each part.
type Line = (Boot, Mono, Vec<Sighting>);

/// Timelines by MAC.
#[derive(Default)]
pub struct Timelines(Mutex<HashMap<MacAddr, Line>>);

impl Timelines {
    fn with<R>(&self, mac: MacAddr, now: Now, act: impl FnOnce(&mut Line) -> R) -> R {
        let mut map = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let full = map.len() >= MAX_DEVICES && !map.contains_key(&mac);
        if full && let Some(oldest) = map.iter().min_by_key(|(_, (_, touched, _))| *touched).map(|(m, _)| *m) {
            map.remove(&oldest);
        }
        let entry = map.entry(mac).or_default();
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

    /// Records what a part (`dhcp`, `tftp`, `http`) last did for a device; there are as many of them as there are parts.
    pub fn sight(&self, mac: MacAddr, part: &'static str, outcome: &str, refused: bool, now: Now) {
        let outcome = outcome.chars().filter(|c| !c.is_control()).take(MAX_OUTCOME).collect();
        self.with(mac, now, |(.., sightings)| {
            sightings.retain(|s| s.part != part);
            sightings.push(Sighting { part, outcome, refused, at: now.wall });
        });
    }

    /// What each part last did for a device.
    #[must_use]
    pub fn sightings(&self, mac: MacAddr) -> Vec<Sighting> {
        let map = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        map.get(&mac).map(|(.., sightings)| sightings.clone()).unwrap_or_default()
    }

    /// In a word or two how far the device's latest boot is, for lists; empty when nothing was seen of it.
    #[must_use]
    pub fn summary(&self, mac: MacAddr) -> String {
        let map = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some((boot, ..)) = map.get(&mac) else { return String::new() };
        let step = boot.marks.last().map(|m| format!("{:?}", m.step).to_lowercase()).unwrap_or_default();
        match &boot.fault {
            Some(fault) => format!("{step} ({fault})"),
            None => step,
        }
    }

    /// The latest boot of a device, if anything was seen of it.
    #[must_use]
    pub fn of(&self, mac: MacAddr) -> Option<Boot> {
        let map = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        map.get(&mac).map(|(boot, ..)| boot.clone()).filter(|boot| !boot.marks.is_empty() || boot.fault.is_some())
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
        let map = timelines.0.lock().unwrap();
        assert_eq!(map.len(), MAX_DEVICES);
        assert!(map.values().all(|(.., s)| s.len() == 3 && s.iter().all(|s| s.outcome.len() == MAX_OUTCOME)));
        assert!(map.contains_key(&MacAddr([2, 0, 0, 0, 0x17, 0x6f])), "the latest stay");
    }
}
