//! Bindings that a change ended beside what it names itself: what the audit and listeners are told of.

use super::change::Change;
use super::view::Ledger;
use crate::id::{MacAddr, WorkerId};

impl Change {
    /// Devices that lost their Worker by this change, with that Worker, although the change is not an unbind: forced binds,
    /// deleted Workers, revoked devices. `before` and `after` are the ledger before and after it. The cost follows the change,
    /// not the ledger.
    #[must_use]
    pub fn displaced(&self, before: &Ledger, after: &Ledger) -> Vec<(MacAddr, WorkerId)> {
        let holder = |worker: &WorkerId| before.bound.get(worker).map(|mac| (*mac, worker.clone()));
        let left = |mac: &MacAddr| before.device(*mac).and_then(|d| d.bound_worker_id.clone()).map(|worker| (*mac, worker));
        let mut named: Vec<(MacAddr, WorkerId)> = match self {
            Self::Bind { mac, worker, .. } => holder(worker).into_iter().chain(left(mac)).collect(),
            Self::BindAll { pairs, .. } => pairs.iter().flat_map(|(mac, worker)| holder(worker).into_iter().chain(left(mac))).collect(),
            Self::DeleteWorker { worker } => holder(worker).into_iter().collect(),
            Self::Revoke { mac } => left(mac).into_iter().collect(),
            _ => Vec::new(),
        };
        named.sort();
        named.dedup();
        named.retain(|(mac, worker)| after.bound.get(worker) != Some(mac));
        named
    }
}
