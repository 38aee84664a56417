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
    /// Checked key text: the first one that was reported for this MAC. A later one does not replace it, or a person would
    /// admit another key than the one they saw.
    pub public_key: Option<String>,
    /// Its hash: what people compare, and name when they admit it.
    pub public_key_hash: Option<String>,
    /// Another key was reported for this MAC since: two machines claim it, or one has a new key.
    pub key_changed: bool,
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
        let known = map.get(&mac);
        let (first_seen, reports) = known.map_or((now.wall, 0), |k| (k.first_seen, k.reports));
        let first_key = known.and_then(|k| k.public_key.as_deref());
        let key_changed = known.is_some_and(|k| k.key_changed) || matches!((first_key, public_key), (Some(a), Some(b)) if a != b);
        let public_key = first_key.or(public_key).map(str::to_owned);
        let bounded = |text: &str| text.chars().filter(|c| !c.is_control()).take(128).collect();
        let knock = Knock {
            mac,
            uuid: bounded(uuid),
            public_key_hash: public_key.as_deref().and_then(kurrent_core::ledger::schema::key_hash),
            public_key,
            key_changed,
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
    fn the_first_key_heard_for_a_mac_stays_and_another_one_is_marked() {
        let knocking = Knocking::default();
        let now = Now { mono: Default::default(), wall: Wall::UNIX_EPOCH };
        let (first, other) = (format!("ed25519:{}", "11".repeat(32)), format!("ed25519:{}", "22".repeat(32)));
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        for (reported, key, changed) in [
            (None, None, false),
            (Some(&first), Some(&first), false),
            (None, Some(&first), false),
            (Some(&first), Some(&first), false),
            (Some(&other), Some(&first), true),
            (Some(&first), Some(&first), true),
        ] {
            knocking.heard(mac, "", reported.map(String::as_str), &Fingerprint::default(), now);
            let knock = knocking.of(mac).unwrap();
            assert_eq!((knock.public_key.as_ref(), knock.key_changed), (key, changed));
            assert_eq!(knock.public_key_hash, key.and_then(|k| kurrent_core::ledger::schema::key_hash(k)));
        }
        knocking.forget(mac);
        knocking.heard(mac, "", Some(&other), &Fingerprint::default(), now);
        assert!(knocking.of(mac).is_some_and(|k| k.public_key == Some(other) && !k.key_changed));
    }

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
