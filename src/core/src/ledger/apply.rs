//! What a [`Change`] does to the whole [`Ledger`]: everything or nothing.
//!
//! ```text
//!   pooled --bind--> bound --revoke--> revoked        pooled --revoke--> revoked
//!     ^                |                                 revoked --purge--> (gone)
//!     +----unbind------+
//! ```
//!
//! Asking for what is so already (bind to the same Worker, revoke a revoked device) succeeds and changes nothing: a client
//! that lost the answer may ask again. A change that has an effect makes the next generation; a mere refresh of what a
//! device reports about itself does not, and need not be written at once.

use super::change::{Change, Outcome, Rejected};
use super::rules::{check_boot, check_disk, check_labels, check_until, checked_note, clip, clipped, is_live};
use super::schema::{BootSettings, Device, DeviceState, Disk, Fingerprint, Source, Worker, key_hash};
use super::view::Ledger;
use crate::id::{MacAddr, OsTag, WorkerId};
use crate::time::{Now, Wall};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Devices that may admit themselves: a stranger in an open window must not grow the ledger without end.
pub const MAX_DEVICES: usize = 20_000;

/// Applies one change.
///
/// # Errors
/// [`Rejected`] says why not, with a stable code and the next step; the ledger is as before.
pub fn apply(ledger: &Ledger, change: Change, now: Now) -> Result<(Ledger, Outcome), Rejected> {
    let mut next = Next { ledger: ledger.clone(), generation: ledger.generation.saturating_add(1), changed: false };
    let outcome = match change {
        Change::Report { mac, uuid, public_key, fingerprint } => next.report(mac, uuid, public_key, fingerprint, now)?,
        Change::Register { mac, public_key, keyless_allowed, note } => next.register(mac, public_key, keyless_allowed, note, now)?,
        Change::Bind { mac, worker, force } => next.bind(mac, &worker, force)?,
        Change::Unbind { mac } => next.unbind(mac)?,
        Change::Revoke { mac } => next.revoke(mac)?,
        Change::Purge { mac } => next.purge(mac)?,
        Change::Rekey { mac, until } => next.rekey(mac, until, now)?,
        Change::Label { mac, labels } => next.label(mac, labels)?,
        Change::CreateWorker { worker } => next.create_worker(worker, now)?,
        Change::DeleteWorker { worker } => next.delete_worker(&worker)?,
        Change::AddDisk { worker, disk } => next.add_disk(&worker, disk)?,
        Change::RemoveDisk { worker, os_tag } => next.remove_disk(&worker, &os_tag)?,
        Change::SetDefaultDisk { worker, os_tag } => next.set_default_disk(&worker, &os_tag)?,
        Change::SetBoot { worker, boot } => next.set_boot(&worker, boot)?,
        Change::OpenWindow { until } => next.open_window(until, now)?,
        Change::CloseWindow => next.close_window(),
    };
    if next.changed {
        next.ledger.generation = next.generation;
    }
    Ok((next.ledger, outcome))
}

pub(super) fn rejected(status: u16, code: &'static str, detail: String) -> Rejected {
    Rejected { code, status, detail }
}

/// The ledger being made. `generation` is the one it gets if anything changes, and the epoch of every fenced device.
struct Next {
    ledger: Ledger,
    generation: u64,
    changed: bool,
}

impl Next {
    fn device(&self, mac: MacAddr) -> Result<Device, Rejected> {
        self.ledger.device(mac).cloned().ok_or_else(|| {
            rejected(404, "device_not_found", format!("no device {mac} is in the ledger; see the device list, or register it first"))
        })
    }

    /// A device that is not revoked.
    fn live_device(&self, mac: MacAddr) -> Result<Device, Rejected> {
        let device = self.device(mac)?;
        if device.state == DeviceState::Revoked {
            let detail = format!("device {mac} is revoked; purge it and register it again to use the machine");
            return Err(rejected(409, "device_revoked", detail));
        }
        Ok(device)
    }

    fn worker(&self, id: &WorkerId) -> Result<Worker, Rejected> {
        self.ledger.workers.get(id).map(|w| Worker::clone(w)).ok_or_else(|| {
            rejected(404, "worker_not_found", format!("no Worker {id} is in the ledger; see the Worker list, or create it first"))
        })
    }

    fn put_device(&mut self, device: Device) {
        self.ledger.devices.insert(device.mac, Arc::new(device));
        self.changed = true;
    }

    fn put_worker(&mut self, worker: Worker) {
        self.ledger.workers.insert(worker.worker_id.clone(), Arc::new(worker));
        self.changed = true;
    }

    /// Takes a device off its Worker; its epoch moves, so that what it knew opens nothing any more.
    fn detach(&mut self, mut device: Device, state: DeviceState) {
        if let Some(worker) = device.bound_worker_id.take() {
            // Only when it is this device: after a forced move the entry is the new holder's already.
            if self.ledger.bound.get(&worker) == Some(&device.mac) {
                self.ledger.bound.remove(&worker);
            }
        }
        device.state = state;
        device.epoch = self.generation;
        self.put_device(device);
    }

    fn report(
        &mut self,
        mac: MacAddr,
        uuid: String,
        public_key: Option<String>,
        fingerprint: Fingerprint,
        now: Now,
    ) -> Result<Outcome, Rejected> {
        let key = public_key.filter(|k| key_hash(k).is_some());
        let window_open = self.ledger.window_open(now.wall);
        let Some(known) = self.ledger.device(mac) else {
            let Some(key) = key.filter(|_| window_open && self.ledger.devices.len() < MAX_DEVICES) else {
                return Ok(Outcome::Knocking);
            };
            let mut device = new_device(mac, Source::Ipxe, now.wall);
            (device.uuid, device.fingerprint) = (clip(uuid), clipped(fingerprint));
            set_key(&mut device, key);
            device.last_seen = Some(now.wall);
            self.put_device(device);
            return Ok(Outcome::Admitted);
        };
        if known.state == DeviceState::Revoked {
            return Ok(Outcome::Revoked);
        }
        let mut device = known.clone();
        let ordered = device.rekey_until.is_some_and(|until| is_live(until, now.wall));
        let outcome = match (&device.public_key, key) {
            (Some(stored), Some(reported)) if *stored != reported => {
                if !ordered {
                    return Ok(Outcome::KeyMismatch);
                }
                self.store_key(&mut device, reported)
            }
            (None, Some(reported)) if window_open || ordered => self.store_key(&mut device, reported),
            _ => Outcome::Refreshed,
        };
        (device.uuid, device.fingerprint) = (clip(uuid), clipped(fingerprint));
        device.last_seen = Some(now.wall);
        // Not `put_device`: a refresh alone makes no generation.
        self.ledger.devices.insert(mac, Arc::new(device));
        Ok(outcome)
    }

    fn store_key(&mut self, device: &mut Device, key: String) -> Outcome {
        set_key(device, key);
        device.rekey_until = None;
        if device.state == DeviceState::Bound {
            device.epoch = self.generation;
        }
        self.changed = true;
        Outcome::KeyStored
    }

    fn register(
        &mut self,
        mac: MacAddr,
        public_key: Option<String>,
        keyless_allowed: bool,
        note: String,
        now: Now,
    ) -> Result<Outcome, Rejected> {
        if let Some(known) = self.ledger.device(mac) {
            let next_step = match known.state {
                DeviceState::Revoked => "it is revoked: purge it first",
                DeviceState::Pooled | DeviceState::Bound => "bind, label or revoke it instead",
            };
            return Err(rejected(409, "device_exists", format!("device {mac} is in the ledger already; {next_step}")));
        }
        let mut device = new_device(mac, Source::Manual, now.wall);
        if let Some(key) = public_key {
            if key_hash(&key).is_none() {
                let detail = "the public key is not valid; write ed25519: and 64 hex digits, or p256: and 130 hex digits".into();
                return Err(rejected(422, "public_key_invalid", detail));
            }
            set_key(&mut device, key);
        }
        device.keyless_allowed = keyless_allowed;
        device.note = checked_note(note)?;
        self.put_device(device);
        Ok(Outcome::Done)
    }

    fn bind(&mut self, mac: MacAddr, worker: &WorkerId, force: bool) -> Result<Outcome, Rejected> {
        let mut device = self.live_device(mac)?;
        self.worker(worker)?;
        if device.bound_worker_id.as_ref() == Some(worker) {
            return Ok(Outcome::Done);
        }
        if let Some(other) = device.bound_worker_id.as_ref().filter(|_| !force) {
            let detail = format!("device {mac} is bound to Worker {other}; unbind it first, or bind with force");
            return Err(rejected(409, "device_bound", detail));
        }
        let displaced = self.ledger.device_of(worker).cloned();
        if let Some(holder) = displaced.as_ref().filter(|_| !force) {
            let detail = format!("Worker {worker} is bound to device {}; unbind that first, or bind with force", holder.mac);
            return Err(rejected(409, "worker_bound", detail));
        }
        // K29: the new binding is written before the old one is cleared; both are one generation.
        if let Some(left) = device.bound_worker_id.replace(worker.clone()) {
            self.ledger.bound.remove(&left);
        }
        device.state = DeviceState::Bound;
        device.epoch = self.generation;
        self.ledger.bound.insert(worker.clone(), mac);
        self.put_device(device);
        if let Some(holder) = displaced {
            self.detach(holder, DeviceState::Pooled);
        }
        Ok(Outcome::Done)
    }

    fn unbind(&mut self, mac: MacAddr) -> Result<Outcome, Rejected> {
        let device = self.live_device(mac)?;
        if device.state != DeviceState::Bound {
            return Err(rejected(409, "device_not_bound", format!("device {mac} is not bound; there is nothing to unbind")));
        }
        self.detach(device, DeviceState::Pooled);
        Ok(Outcome::Done)
    }

    fn revoke(&mut self, mac: MacAddr) -> Result<Outcome, Rejected> {
        let mut device = self.device(mac)?;
        if device.state != DeviceState::Revoked {
            device.rekey_until = None;
            self.detach(device, DeviceState::Revoked);
        }
        Ok(Outcome::Done)
    }

    fn purge(&mut self, mac: MacAddr) -> Result<Outcome, Rejected> {
        if self.device(mac)?.state != DeviceState::Revoked {
            return Err(rejected(409, "device_not_revoked", format!("device {mac} is not revoked; only revoked devices are purged")));
        }
        self.ledger.devices.remove(&mac);
        self.changed = true;
        Ok(Outcome::Done)
    }

    fn rekey(&mut self, mac: MacAddr, until: Option<Wall>, now: Now) -> Result<Outcome, Rejected> {
        let mut device = self.live_device(mac)?;
        if let Some(until) = until {
            check_until(until, now)?;
        }
        if device.rekey_until != until {
            device.rekey_until = until;
            self.put_device(device);
        }
        Ok(Outcome::Done)
    }

    fn label(&mut self, mac: MacAddr, labels: BTreeMap<String, String>) -> Result<Outcome, Rejected> {
        let mut device = self.device(mac)?;
        check_labels(&labels)?;
        if device.labels != labels {
            device.labels = labels;
            self.put_device(device);
        }
        Ok(Outcome::Done)
    }

    fn create_worker(&mut self, id: WorkerId, now: Now) -> Result<Outcome, Rejected> {
        if self.ledger.workers.contains_key(&id) {
            return Err(rejected(409, "worker_exists", format!("Worker {id} exists already; choose another name")));
        }
        self.put_worker(Worker {
            worker_id: id,
            created_at: now.wall,
            default_disk: None,
            boot: BootSettings::default(),
            error: String::new(),
            disks: Vec::new(),
        });
        Ok(Outcome::Done)
    }

    fn delete_worker(&mut self, id: &WorkerId) -> Result<Outcome, Rejected> {
        self.worker(id)?;
        if let Some(device) = self.ledger.device_of(id).cloned() {
            self.detach(device, DeviceState::Pooled);
        }
        self.ledger.workers.remove(id);
        self.changed = true;
        Ok(Outcome::Done)
    }

    fn add_disk(&mut self, id: &WorkerId, disk: Disk) -> Result<Outcome, Rejected> {
        let mut worker = self.worker(id)?;
        if worker.disks.iter().any(|d| d.os == disk.os && d.os_version == disk.os_version) {
            let detail = format!("Worker {id} has a disk for {} {} already; delete that first", disk.os, disk.os_version);
            return Err(rejected(409, "disk_exists", detail));
        }
        check_disk(&disk).map_err(|what| rejected(422, "disk_invalid", what))?;
        let taken = |d: &Disk| d.os_tag == disk.os_tag || d.nqn == disk.nqn || d.filename == disk.filename || d.uuid == disk.uuid;
        if self.ledger.workers.values().flat_map(|w| &w.disks).any(taken) {
            let detail = format!("a disk with the tag, NQN, file or UUID of {} is in the ledger already", disk.nqn);
            return Err(rejected(409, "disk_not_unique", detail));
        }
        // K19: the first disk becomes the default, later ones do not rewrite it.
        if worker.disks.is_empty() {
            worker.default_disk = Some(disk.os_tag.clone());
        }
        worker.disks.push(disk);
        self.put_worker(worker);
        Ok(Outcome::Done)
    }

    fn disk_of(&self, id: &WorkerId, tag: &OsTag) -> Result<(Worker, usize), Rejected> {
        let worker = self.worker(id)?;
        match worker.disks.iter().position(|d| d.os_tag == *tag) {
            Some(at) => Ok((worker, at)),
            None => Err(rejected(404, "disk_not_found", format!("Worker {id} has no disk {tag}; see its disk list"))),
        }
    }

    fn remove_disk(&mut self, id: &WorkerId, tag: &OsTag) -> Result<Outcome, Rejected> {
        let (mut worker, at) = self.disk_of(id, tag)?;
        worker.disks.remove(at);
        if worker.default_disk.as_ref() == Some(tag) {
            // K20: the newest remaining one, or none.
            worker.default_disk = worker.disks.iter().max_by_key(|d| d.created_at).map(|d| d.os_tag.clone());
        }
        self.put_worker(worker);
        Ok(Outcome::Done)
    }

    fn set_default_disk(&mut self, id: &WorkerId, tag: &OsTag) -> Result<Outcome, Rejected> {
        let (mut worker, _) = self.disk_of(id, tag)?;
        if worker.default_disk.as_ref() != Some(tag) {
            worker.default_disk = Some(tag.clone());
            self.put_worker(worker);
        }
        Ok(Outcome::Done)
    }

    fn set_boot(&mut self, id: &WorkerId, boot: BootSettings) -> Result<Outcome, Rejected> {
        let mut worker = self.worker(id)?;
        check_boot(&boot)?;
        if worker.boot != boot {
            worker.boot = boot;
            self.put_worker(worker);
        }
        Ok(Outcome::Done)
    }

    fn open_window(&mut self, until: Wall, now: Now) -> Result<Outcome, Rejected> {
        check_until(until, now)?;
        self.ledger.settings.registration_open_until = Some(until);
        self.changed = true;
        Ok(Outcome::Done)
    }

    fn close_window(&mut self) -> Outcome {
        if self.ledger.settings.registration_open_until.take().is_some() {
            self.changed = true;
        }
        Outcome::Done
    }
}

fn new_device(mac: MacAddr, source: Source, first_seen: Wall) -> Device {
    Device {
        mac,
        uuid: String::new(),
        state: DeviceState::Pooled,
        bound_worker_id: None,
        public_key: None,
        public_key_hash: None,
        source,
        first_seen,
        last_seen: None,
        epoch: 0,
        rekey_until: None,
        keyless_allowed: false,
        loader: None,
        labels: BTreeMap::new(),
        note: String::new(),
        fingerprint: Fingerprint::default(),
    }
}

fn set_key(device: &mut Device, key: String) {
    device.public_key_hash = key_hash(&key);
    device.public_key = Some(key);
}

#[cfg(test)]
#[path = "apply_tests.rs"]
mod tests;
