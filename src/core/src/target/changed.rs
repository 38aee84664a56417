//! Whose part of the target a change of the ledger may have changed, found without walking the ledger.

use crate::config::Config;
use crate::id::{WorkerId, host_nqn};
use crate::ledger::Ledger;
use imbl::ordmap::DiffItem;
use std::collections::BTreeSet;

/// The Workers whose part of [`super::Desired`] may not be the same for both: those whose disks differ, and those of devices whose binding
/// or epoch does. A label, a note or a report is none of the target's business.
#[must_use]
pub fn workers(before: &Ledger, after: &Ledger) -> BTreeSet<WorkerId> {
    let mut changed = BTreeSet::new();
    if !before.workers.ptr_eq(&after.workers) {
        for item in before.workers.diff(&after.workers) {
            match item {
                DiffItem::Update { old: (_, old), new: (_, new) } if old.disks == new.disks => {}
                DiffItem::Add(id, _) | DiffItem::Remove(id, _) | DiffItem::Update { new: (id, _), .. } => _ = changed.insert(id.clone()),
            }
        }
    }
    if !before.devices.ptr_eq(&after.devices) {
        for item in before.devices.diff(&after.devices) {
            let (old, new) = match item {
                DiffItem::Add(_, new) => (None, Some(new)),
                DiffItem::Update { old: (_, old), new: (_, new) } => (Some(old), Some(new)),
                DiffItem::Remove(_, old) => (Some(old), None),
            };
            if old.map(|d| (&d.bound_worker_id, d.epoch)) != new.map(|d| (&d.bound_worker_id, d.epoch)) {
                changed.extend(old.into_iter().chain(new).filter_map(|d| d.bound_worker_id.clone()));
            }
        }
    }
    changed
}

/// Every name that these Workers have in the target by this ledger: their disks and the host of their device's epoch.
#[must_use]
pub fn names(config: &Config, ledger: &Ledger, workers: &BTreeSet<WorkerId>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for id in workers {
        names.extend(ledger.workers.get(id).into_iter().flat_map(|w| &w.disks).map(|d| d.nqn.to_string()));
        names.extend(ledger.device_of(id).map(|d| host_nqn(&config.agent.nqn_base, id, d.epoch).to_string()));
    }
    names
}

#[cfg(test)]
mod tests;
