//! Unknown devices that reported themselves in vain, so that a person can admit one. In memory and bounded: strangers fill it.

use kurrent_core::id::MacAddr;
use kurrent_core::ledger::Fingerprint;
use kurrent_core::time::{Now, Wall};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Beyond this many the one heard longest ago goes.
const MAX_KNOCKING: usize = 256;

/// One unknown device.
#[derive(Clone, Debug, Serialize)]
pub struct Knock {
    /// Who.
    pub mac: MacAddr,
    /// As reported.
    pub uuid: String,
    /// Checked key text, if it reported one.
    pub public_key: Option<String>,
    /// As reported.
    pub fingerprint: Fingerprint,
    /// First heard.
    pub first_seen: Wall,
    /// Last heard.
    pub last_seen: Wall,
    /// How often it reported.
    pub reports: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Knocking(Mutex<HashMap<MacAddr, Knock>>);

impl Knocking {
    fn lock(&self) -> MutexGuard<'_, HashMap<MacAddr, Knock>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a report in vain.
    pub fn heard(&self, mac: MacAddr, uuid: &str, public_key: Option<&str>, fingerprint: &Fingerprint, now: Now) {
        let mut map = self.lock();
        let full = map.len() >= MAX_KNOCKING && !map.contains_key(&mac);
        if full && let Some(oldest) = map.values().min_by_key(|k| k.last_seen).map(|k| k.mac) {
            map.remove(&oldest);
        }
        let (first_seen, reports) = map.get(&mac).map_or((now.wall, 0), |k| (k.first_seen, k.reports));
        let bounded = |text: &str| text.chars().filter(|c| !c.is_control()).take(128).collect();
        let knock = Knock {
            mac,
            uuid: bounded(uuid),
            public_key: public_key.map(str::to_owned),
            fingerprint: kurrent_core::ledger::rules::clipped(fingerprint.clone()),
            first_seen,
            last_seen: now.wall,
            reports: reports.saturating_add(1),
        };
        map.insert(mac, knock);
    }

    /// It is in the ledger now.
    pub fn forget(&self, mac: MacAddr) {
        self.lock().remove(&mac);
    }

    /// The one with this MAC.
    #[must_use]
    pub fn of(&self, mac: MacAddr) -> Option<Knock> {
        self.lock().get(&mac).cloned()
    }

    /// All, the latest first.
    #[must_use]
    pub fn list(&self) -> Vec<Knock> {
        let mut all: Vec<Knock> = self.lock().values().cloned().collect();
        all.sort_by(|a, b| b.last_seen.cmp(&a.last_seen).then(a.mac.cmp(&b.mac)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_do_not_grow_it_without_end() {
        let knocking = Knocking::default();
        for n in 0..2000u16 {
            let [a, b] = n.to_be_bytes();
            let now = Now { mono: Default::default(), wall: Wall::from_second(i64::from(n)).unwrap() };
            knocking.heard(MacAddr([2, 0, 0, 0, a, b]), "", None, &Fingerprint::default(), now);
        }
        let all = knocking.list();
        assert_eq!(all.len(), MAX_KNOCKING);
        assert_eq!(all.first().map(|k| k.mac.0[5]), Some((1999u16 & 0xff) as u8), "the latest stay");
    }
}
