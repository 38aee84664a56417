//! An immutable snapshot of all ledgers and the questions readers ask of it. Cloning is cheap (persistent maps).

use super::rules::{check_disk, is_live};
use super::schema::{Device, DeviceState, DevicesFile, Disk, LEDGER_VERSION, SettingsFile, Worker, WorkersFile, key_hash};
use crate::id::{MacAddr, WorkerId};
use crate::time::Wall;
use imbl::OrdMap;
use std::collections::HashSet;
use std::sync::Arc;

/// Settings that change at run time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Automatic admission is open until then.
    pub registration_open_until: Option<Wall>,
}

/// All ledgers at one generation.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// Grows by one with every durable change.
    pub generation: u64,
    /// By MAC.
    pub devices: OrdMap<MacAddr, Arc<Device>>,
    /// By `worker_id`.
    pub workers: OrdMap<WorkerId, Arc<Worker>>,
    /// Derived index of bound devices: `worker_id` to MAC.
    pub bound: OrdMap<WorkerId, MacAddr>,
    /// Run-time settings.
    pub settings: Settings,
}

impl Ledger {
    /// The device with this MAC.
    #[must_use]
    pub fn device(&self, mac: MacAddr) -> Option<&Device> {
        self.devices.get(&mac).map(AsRef::as_ref)
    }

    /// The one revoked policy: every path (DHCP, TFTP, HTTP, scripts, data plane) asks this and answers with silence.
    #[must_use]
    pub fn is_revoked(&self, mac: MacAddr) -> bool {
        self.device(mac).is_some_and(|d| d.state == DeviceState::Revoked)
    }

    /// The Worker this device boots as.
    #[must_use]
    pub fn worker_of(&self, mac: MacAddr) -> Option<&Worker> {
        let id = self.device(mac)?.bound_worker_id.as_ref()?;
        self.workers.get(id).map(AsRef::as_ref)
    }

    /// The device bound to this Worker.
    #[must_use]
    pub fn device_of(&self, worker: &WorkerId) -> Option<&Device> {
        self.device(*self.bound.get(worker)?)
    }

    /// Whether automatic admission is open; expiry is computed on read.
    #[must_use]
    pub fn window_open(&self, wall: Wall) -> bool {
        self.settings.registration_open_until.is_some_and(|until| is_live(until, wall))
    }
}

/// A record of a ledger file that contradicts itself or another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Contradiction {
    /// `devices.yml` or `workers.yml`.
    pub file: &'static str,
    /// Key of the record: a MAC or `worker_id`, as written in the file.
    pub record: String,
    /// What is wrong; what to do.
    pub what: String,
}

impl Ledger {
    /// The whole from its files, when every invariant holds.
    ///
    /// # Errors
    /// The first [`Contradiction`].
    pub fn assemble(devices: DevicesFile, workers: WorkersFile, settings: SettingsFile) -> Result<Self, Contradiction> {
        let mut ledger = Self {
            generation: devices.generation.max(workers.generation).max(settings.generation),
            settings: Settings { registration_open_until: settings.registration_open_until },
            ..Self::default()
        };
        let mut seen = HashSet::new();
        for worker in workers.workers {
            let id = worker.worker_id.clone();
            let wrong = |what: String| Contradiction { file: "workers.yml", record: id.to_string(), what };
            check_worker(&worker, &mut seen).map_err(wrong)?;
            if ledger.workers.insert(id.clone(), Arc::new(worker)).is_some() {
                return Err(wrong(format!("Worker {id} is recorded twice; remove one record")));
            }
        }
        for device in devices.devices {
            let mac = device.mac;
            let wrong = |what: String| Contradiction { file: "devices.yml", record: mac.to_string(), what };
            check_device(&device).map_err(wrong)?;
            if let Some(worker) = &device.bound_worker_id {
                if !ledger.workers.contains_key(worker) {
                    let what = format!(
                        "device {mac} is bound to Worker {worker}, which is not in workers.yml; restore the Worker or unbind the device"
                    );
                    return Err(wrong(what));
                }
                if let Some(other) = ledger.bound.insert(worker.clone(), mac) {
                    return Err(wrong(format!("devices {other} and {mac} are both bound to Worker {worker}; unbind one of them")));
                }
            }
            // An epoch is a generation: none may lie ahead, or it would be given out twice.
            ledger.generation = ledger.generation.max(device.epoch);
            if ledger.devices.insert(mac, Arc::new(device)).is_some() {
                return Err(wrong(format!("device {mac} is recorded twice; remove one record")));
            }
        }
        Ok(ledger)
    }

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

    /// `devices.yml` of this snapshot.
    #[must_use]
    pub fn devices_file(&self) -> DevicesFile {
        let devices = self.devices.values().map(|d| Device::clone(d)).collect();
        DevicesFile { version: LEDGER_VERSION, generation: self.generation, devices }
    }

    /// `workers.yml` of this snapshot.
    #[must_use]
    pub fn workers_file(&self) -> WorkersFile {
        let workers = self.workers.values().map(|w| Worker::clone(w)).collect();
        WorkersFile { version: LEDGER_VERSION, generation: self.generation, workers }
    }

    /// `settings.yml` of this snapshot.
    #[must_use]
    pub fn settings_file(&self) -> SettingsFile {
        let registration_open_until = self.settings.registration_open_until;
        SettingsFile { version: LEDGER_VERSION, generation: self.generation, registration_open_until }
    }
}

fn check_device(device: &Device) -> Result<(), String> {
    let mac = device.mac;
    match (device.state, &device.bound_worker_id) {
        (DeviceState::Bound, None) => {
            return Err(format!("device {mac} is bound, but has no bound_worker_id; set it or make the device pooled"));
        }
        (DeviceState::Pooled | DeviceState::Revoked, Some(worker)) => {
            return Err(format!("device {mac} is not bound, but has bound_worker_id {worker}; remove that or make the device bound"));
        }
        (DeviceState::Bound, Some(_)) | (DeviceState::Pooled | DeviceState::Revoked, None) => {}
    }
    match &device.public_key {
        None if device.public_key_hash.is_some() => Err(format!("device {mac} has a public_key_hash without a public_key; remove it")),
        None => Ok(()),
        Some(key) => match key_hash(key) {
            None => Err(format!("the public_key of device {mac} is not valid; write ed25519: and 64 hex digits, or p256: and 130")),
            hash if hash == device.public_key_hash => Ok(()),
            _ => Err(format!("the public_key_hash of device {mac} is not that of its public_key; one of them was changed: restore it")),
        },
    }
}

fn check_worker(worker: &Worker, seen: &mut HashSet<String>) -> Result<(), String> {
    let id = &worker.worker_id;
    let mut systems = HashSet::new();
    for disk in &worker.disks {
        check_disk(disk)?;
        if !systems.insert((&disk.os, &disk.os_version)) {
            return Err(format!("Worker {id} has two disks for {} {}; at most one is allowed", disk.os, disk.os_version));
        }
        // The forms of the four differ, so one set tells them apart.
        for name in [disk.os_tag.to_string(), disk.nqn.to_string(), disk.filename.to_string(), disk.uuid.to_string()] {
            if let Some(twice) = seen.replace(name) {
                return Err(format!("'{twice}' names two disks, the second one at Worker {id}; every disk has its own"));
            }
        }
    }
    match &worker.default_disk {
        Some(tag) if worker.default_disk().is_none() => {
            Err(format!("the default_disk {tag} of Worker {id} is not one of its disks; choose one of them or remove the line"))
        }
        _ => Ok(()),
    }
}

/// Whether a Worker can boot a system: derived from its binding and its disks, read-only (K15).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Readiness {
    /// A device and a disk.
    Ready,
    /// One of them.
    Partial,
    /// Neither.
    Idle,
}

impl Ledger {
    /// See [`Readiness`].
    #[must_use]
    pub fn readiness(&self, worker: &Worker) -> Readiness {
        match (self.bound.contains_key(&worker.worker_id), worker.disks.is_empty()) {
            (true, false) => Readiness::Ready,
            (false, true) => Readiness::Idle,
            (true, true) | (false, false) => Readiness::Partial,
        }
    }
}

impl Worker {
    /// `registered` (identity only) or `ready` (has a system disk) (K14).
    #[must_use]
    pub fn state(&self) -> &'static str {
        if self.disks.is_empty() { "registered" } else { "ready" }
    }

    /// The disk that boots, if there is one.
    #[must_use]
    pub fn default_disk(&self) -> Option<&Disk> {
        let tag = self.default_disk.as_ref()?;
        self.disks.iter().find(|d| d.os_tag == *tag)
    }
}
