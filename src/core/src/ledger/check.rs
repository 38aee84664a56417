//! Whether records belong together: every invariant of the ledgers, asked of whatever comes from files, journal or an edit.

use super::records::{Contradiction, Files, Records};
use super::rules::check_disk;
use super::schema::{Device, DeviceState, Migration, Worker, key_hash};
use super::unread::Unread;
use super::view::{LAST_GENERATION, Ledger};
use crate::id::{MacAddr, WorkerId};
use jiff::SignedDuration;
use std::collections::{HashMap, HashSet};

/// Said of a number above [`LAST_GENERATION`].
pub(super) const BEYOND: &str = "leaves no room for changes; write back what was there before";

impl Records {
    /// The ledger of these records, when every invariant holds.
    ///
    /// # Errors
    /// The first [`Contradiction`].
    pub fn checked(self) -> Result<Ledger, Contradiction> {
        self.checked_without(Unread::default())
    }

    /// [`Records::checked`] without side ledgers that were not read.
    ///
    /// # Errors
    /// The first [`Contradiction`].
    pub fn checked_without(self, unread: Unread) -> Result<Ledger, Contradiction> {
        let Self { generation, devices, workers, masters, agents, join_tokens, settings } = self;
        if let Some(name) = masters.keys().find(|name| !name.is_master()) {
            let what = format!("{name} is not a master: its name has no _tpl_; correct or remove the record");
            return Err(Contradiction { file: "masters.yml", record: name.to_string(), what });
        }
        if generation > LAST_GENERATION {
            // The files were asked already.
            let what = format!("generation {generation} {BEYOND}");
            return Err(Contradiction { file: "journal.jsonl", record: String::new(), what });
        }
        let mut ledger = Ledger { generation, masters, agents, join_tokens, settings, unread, ..Ledger::default() };
        for (id, worker) in &workers {
            ledger.check_worker(worker).map_err(|what| Contradiction { file: "workers.yml", record: id.to_string(), what })?;
            for disk in &worker.disks {
                ledger.note_disk_names(disk, id);
            }
        }
        let mut reserved = HashMap::new();
        for (mac, device) in &devices {
            let wrong = |what: String| Contradiction { file: "devices.yml", record: mac.to_string(), what };
            check_device(device).map_err(wrong)?;
            if let Some(worker) = &device.bound_worker_id {
                if !workers.contains_key(worker) {
                    let what = format!(
                        "device {mac} is bound to Worker {worker}, which is not in workers.yml; restore the Worker or unbind the device"
                    );
                    return Err(wrong(what));
                }
                if let Some(other) = ledger.bound.insert(worker.clone(), *mac) {
                    return Err(wrong(format!("devices {other} and {mac} are both bound to Worker {worker}; unbind one of them")));
                }
            }
            if let Some(address) = device.address
                && let Some(other) = reserved.insert(address, mac)
            {
                return Err(wrong(format!("devices {other} and {mac} both have the address {address}; remove it from one of them")));
            }
            // An epoch is a generation: none may lie ahead, or it would be given out twice.
            ledger.generation = ledger.generation.max(device.epoch);
        }
        for (id, worker) in &workers {
            let Some(note) = &worker.migration else { continue };
            let holder = ledger.bound.get(id).copied();
            check_migration(id, note, holder).map_err(|what| Contradiction { file: "workers.yml", record: id.to_string(), what })?;
            ledger.migrating.insert(id.clone());
        }
        (ledger.devices, ledger.workers) = (devices, workers);
        ledger.weigh();
        Ok(ledger)
    }
}

impl Ledger {
    /// The whole from its files, when every invariant holds.
    ///
    /// # Errors
    /// The first [`Contradiction`].
    pub fn assemble(files: Files) -> Result<Self, Contradiction> {
        Records::of(files)?.checked()
    }

    /// What a Worker's record fulfils beside those that are here already.
    fn check_worker(&self, worker: &Worker) -> Result<(), String> {
        let id = &worker.worker_id;
        let (mut systems, mut names) = (HashSet::new(), HashSet::new());
        for disk in &worker.disks {
            check_disk(disk)?;
            if !systems.insert((&disk.os, &disk.os_version)) {
                return Err(format!("Worker {id} has two disks for {} {}; at most one is allowed", disk.os, disk.os_version));
            }
            if self.unread.agents.is_none() && self.agent(&disk.agent).is_none() {
                return Err(format!(
                    "disk {} of Worker {id} is on {}, which is not in agents.yml; restore that record",
                    disk.os_tag, disk.agent
                ));
            }
            let elsewhere = self.disk_names_taken(disk).map(|(name, _)| name);
            if let Some(twice) = elsewhere.or_else(|| Self::names_of(disk).into_iter().find(|name| !names.insert(name.clone()))) {
                return Err(format!("'{twice}' names two disks, the second one at Worker {id}; every disk has its own"));
            }
        }
        match &worker.default_disk {
            Some(tag) if worker.default_disk().is_none() => {
                Err(format!("the default_disk {tag} of Worker {id} is not one of its disks; choose one of them or remove the line"))
            }
            _ => Ok(()),
        }
    }
}

/// A note that does not say what the binding says would give the Worker to the wrong device when its time is up.
fn check_migration(id: &WorkerId, note: &Migration, holder: Option<MacAddr>) -> Result<(), String> {
    let Migration { from, to, since, until } = note;
    if holder != Some(*to) {
        let is = holder.map_or_else(|| "to no device".to_owned(), |mac| format!("to {mac}"));
        return Err(format!("Worker {id} is on its way to device {to}, but bound {is}; bind {to} to it, or remove its migration"));
    }
    if *from == Some(*to) || until.duration_since(*since) <= SignedDuration::ZERO {
        return Err(format!("the migration of Worker {id} is from a device to another one, and until a time after since; remove it"));
    }
    Ok(())
}

fn check_device(device: &Device) -> Result<(), String> {
    let mac = device.mac;
    if device.epoch > LAST_GENERATION {
        return Err(format!("the epoch {} of device {mac} {BEYOND}", device.epoch));
    }
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
