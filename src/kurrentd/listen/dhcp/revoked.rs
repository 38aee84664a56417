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

/// When each was audited last.
#[derive(Default)]
pub struct Revoked(HashMap<MacAddr, Mono>);

impl Revoked {
    /// It asked again.
    pub fn asks(&mut self, shared: &Shared, mac: MacAddr, now: Mono) {
        if self.0.get(&mac).is_some_and(|last| now.since(*last) < INTERVAL) {
            return;
        }
        if self.0.len() >= MAX_REMEMBERED {
            self.0.clear();
        }
        self.0.insert(mac, now);
        let (actor, result) = (format!("device {mac}"), "revoked".into());
        shared.audit.record(Event { actor, verb: "dhcp", device: Some(mac), object: String::new(), result, detail: String::new() });
    }
}
