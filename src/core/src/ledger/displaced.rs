//! Bindings that a change ended beside what it names itself: what the audit and listeners are told of.

use super::change::Change;
use super::view::Ledger;
use crate::id::{MacAddr, WorkerId};

impl Change {
    /// Devices that lost their Worker by this change, with that Worker, although it does not name both: forced binds, deleted
    /// Workers, revoked devices. `before` and `after` are the ledger before and after it. The cost follows the change,
    /// not the ledger.
    #[must_use]
    pub fn displaced(&self, before: &Ledger, after: &Ledger) -> Vec<(MacAddr, WorkerId)> {
        let holder = |worker: &WorkerId| before.bound.get(worker).map(|mac| (*mac, worker.clone()));
        let left = |mac: &MacAddr| before.device(*mac).and_then(|d| d.bound_worker_id.clone()).map(|worker| (*mac, worker));
        if matches!(self, Self::Unbind { .. }) {
            return Vec::new();
        }
        let subjects = self.subjects().into_iter();
        let mut named: Vec<(MacAddr, WorkerId)> = subjects
            .flat_map(|(device, object)| {
                let worker = object.parse().ok();
                device.and_then(|mac| left(&mac)).into_iter().chain(worker.and_then(|worker| holder(&worker)))
            })
            .collect();
        named.sort();
        named.dedup();
        named.retain(|(mac, worker)| after.bound.get(worker) != Some(mac));
        named
    }
}
