//! A revoked machine that asks is audited, once in a while.

use crate::audit::Event;
use crate::shared::Shared;
use kurrent_core::id::MacAddr;
use kurrent_core::time::Mono;
use std::collections::HashMap;
use std::time::Duration;

/// A revoked machine that goes on asking is audited once in this time.
const INTERVAL: Duration = Duration::from_secs(60);
/// Revoked machines whose last audit is remembered.
const MAX_REMEMBERED: usize = 4096;

/// When each was audited last, and by which verb.
pub struct Revoked {
    verb: &'static str,
    audited: HashMap<MacAddr, Mono>,
}

impl Revoked {
    /// For what asks by this way: `dhcp`, `dhcp6`, `tftp`.
    #[must_use]
    pub fn by(verb: &'static str) -> Self {
        Self { verb, audited: HashMap::new() }
    }

    /// It asked again.
    pub fn asks(&mut self, shared: &Shared, mac: MacAddr, now: Mono) {
        if self.audited.get(&mac).is_some_and(|last| now.since(*last) < INTERVAL) {
            return;
        }
        if self.audited.len() >= MAX_REMEMBERED {
            self.audited.clear();
        }
        self.audited.insert(mac, now);
        let (actor, result) = (format!("device {mac}"), "revoked".into());
        shared.audit.record(Event { actor, verb: self.verb, device: Some(mac), object: String::new(), result, detail: String::new() });
    }
}
