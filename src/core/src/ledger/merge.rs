//! An edit by hand put onto a ledger that went on meanwhile: record by record, three-way.

use super::records::{Key, Record, Records};
use super::schema::{Device, DeviceState};
use super::view::Ledger;
use std::sync::Arc;

/// A record that was changed by hand, and in the ledger too since the file was written: nobody but a person can choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict(pub Key);

/// `ours` with every record that `theirs` (the edited files) changed against `base` (the files as they were written).
///
/// # Errors
/// The first [`Conflict`].
pub fn merge(base: &Records, theirs: &Records, ours: &Records) -> Result<Records, Conflict> {
    let mut merged = ours.clone();
    merged.generation = ours.generation.max(theirs.generation);
    for edit in base.differences(theirs) {
        let now = ours.get(&edit.key);
        if same(now.as_ref(), edit.after.as_ref()) && !same(edit.before.as_ref(), edit.after.as_ref()) {
            continue;
        }
        if !same(now.as_ref(), edit.before.as_ref()) {
            return Err(Conflict(edit.key));
        }
        match edit.after {
            Some(Record::Device(edited)) => {
                let record = with_reports(edited, edit.before.as_ref(), now.as_ref());
                merged.put(Record::Device(record));
            }
            Some(record) => {
                merged.put(record);
            }
            None => merged.remove(&edit.key),
        }
    }
    Ok(merged)
}

/// What a device says of itself is nobody's decision: it is never in the way.
fn same(a: Option<&Record>, b: Option<&Record>) -> bool {
    a.map(Record::decided) == b.map(Record::decided)
}

/// The edited device with what it said of itself since, where the edit left that alone.
fn with_reports(edited: Arc<Device>, before: Option<&Record>, now: Option<&Record>) -> Arc<Device> {
    let (Some(Record::Device(before)), Some(Record::Device(now))) = (before, now) else { return edited };
    let mut device = Device::clone(&edited);
    if device.last_seen == before.last_seen {
        device.last_seen = now.last_seen;
    }
    if device.proved_at == before.proved_at {
        device.proved_at = now.proved_at;
    }
    if device.uuid == before.uuid {
        device.uuid.clone_from(&now.uuid);
    }
    if device.fingerprint == before.fingerprint {
        device.fingerprint.clone_from(&now.fingerprint);
    }
    Arc::new(device)
}

impl Ledger {
    /// This ledger, edited by hand, as the successor of `before`: a new generation, and a new epoch for every device whose
    /// binding was edited, so that what it knew opens nothing any more.
    #[must_use]
    pub fn after_edit(mut self, before: &Self) -> Self {
        self.generation = self.generation.max(before.generation).saturating_add(1);
        let fenced = |device: &Device| match before.device(device.mac) {
            Some(was) => was.state != device.state || was.bound_worker_id != device.bound_worker_id || was.public_key != device.public_key,
            None => device.state == DeviceState::Bound,
        };
        let edited: Vec<Arc<Device>> = self.devices.values().filter(|d| fenced(d)).cloned().collect();
        for device in edited {
            let device = Device { epoch: self.generation, ..Device::clone(&device) };
            self.devices.insert(device.mac, Arc::new(device));
        }
        self
    }
}
