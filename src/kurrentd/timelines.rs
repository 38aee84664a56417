//! Boot timelines of recent devices, in bounded memory.

use kurrent_core::id::MacAddr;
use kurrent_core::time::{Mono, Now};
use kurrent_core::timeline::{Boot, Step};
use std::collections::HashMap;
use std::sync::Mutex;

/// Strangers can create entries: beyond this many the one untouched longest goes.
const MAX_DEVICES: usize = 4096;

/// Timelines by MAC.
#[derive(Default)]
pub struct Timelines(Mutex<HashMap<MacAddr, (Boot, Mono)>>);

impl Timelines {
    fn with<R>(&self, mac: MacAddr, now: Now, act: impl FnOnce(&mut Boot) -> R) -> R {
        let mut map = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let full = map.len() >= MAX_DEVICES && !map.contains_key(&mac);
        if full && let Some(oldest) = map.iter().min_by_key(|(_, (_, touched))| *touched).map(|(m, _)| *m) {
            map.remove(&oldest);
        }
        let entry = map.entry(mac).or_default();
        entry.1 = now.mono;
        act(&mut entry.0)
    }

    /// Records a step of a device's boot.
    pub fn mark(&self, mac: MacAddr, step: Step, now: Now) {
        self.with(mac, now, |boot| boot.mark(step, now));
    }

    /// Records why the boot stopped; an empty text clears it.
    pub fn fault(&self, mac: MacAddr, fault: &str, now: Now) {
        self.with(mac, now, |boot| boot.fault = (!fault.is_empty()).then(|| fault.chars().take(200).collect()));
    }

    /// In a word or two how far the device's latest boot is, for lists; empty when nothing was seen of it.
    #[must_use]
    pub fn summary(&self, mac: MacAddr) -> String {
        let map = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some((boot, _)) = map.get(&mac) else { return String::new() };
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
        map.get(&mac).map(|(boot, _)| boot.clone())
    }
}
