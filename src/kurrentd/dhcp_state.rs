//! What the DHCP tasks know besides leases, for the API and the screen: counters, other servers, conflicts. Written by these tasks only.

use kurrent_core::dhcp::conflict::Conflict;
use kurrent_core::dhcp::msg::Request;
use kurrent_core::dhcp::others::{Other, Others, Sighting};
use kurrent_core::id::MacAddr;
use kurrent_core::time::Now;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// See the module.
#[derive(Debug, Default)]
pub struct DhcpState {
    /// Datagrams.
    pub counters: Counters,
    others: Mutex<Others>,
    conflicts: Mutex<Vec<Conflict>>,
    question: Mutex<Option<(MacAddr, u32)>>,
}

impl DhcpState {
    /// Remembers a sign of another server; whether it is the first of it.
    pub fn note_other(&self, found: Sighting, now: Now) -> bool {
        self.others.lock().unwrap_or_else(PoisonError::into_inner).note(found, now)
    }

    /// We ask for other servers, from this MAC and with this transaction.
    pub fn note_question(&self, mac: MacAddr, xid: u32) {
        *self.question.lock().unwrap_or_else(PoisonError::into_inner) = Some((mac, xid));
    }

    /// Whether it is our own question, which a relay of the boot network brought back to us.
    #[must_use]
    pub fn is_own_question(&self, request: &Request) -> bool {
        *self.question.lock().unwrap_or_else(PoisonError::into_inner) == Some((request.mac, request.xid))
    }

    /// Which addresses machines use that nobody gave them these, now.
    pub fn set_conflicts(&self, conflicts: Vec<Conflict>) {
        *self.conflicts.lock().unwrap_or_else(PoisonError::into_inner) = conflicts;
    }

    /// What was set last.
    #[must_use]
    pub fn conflicts(&self) -> Vec<Conflict> {
        self.conflicts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The other servers that are there now.
    #[must_use]
    pub fn others(&self, now: Now) -> Vec<Other> {
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        others.forget(now.mono);
        others.list().copied().collect()
    }
}

/// What became of datagrams since the start, in words of this program: there are few.
#[derive(Debug, Default)]
pub struct Counters(Mutex<BTreeMap<&'static str, u64>>);

impl Counters {
    /// One more.
    pub fn count(&self, what: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(what).or_default() += 1;
    }

    /// So many, all in all.
    pub fn set(&self, what: &'static str, count: u64) {
        if count > 0 {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(what, count);
        }
    }

    /// All that ever happened, by their words.
    #[must_use]
    pub fn list(&self) -> BTreeMap<&'static str, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
