//! What changes do to devices and bindings.

use super::{MAX_DEVICES, Next, rejected};
use crate::id::{MacAddr, WorkerId};
use crate::ledger::change::{Outcome, Rejected};
use crate::ledger::rules::{check_labels, check_until, checked_loader, checked_note, clip, clipped, is_live};
use crate::ledger::schema::{Device, DeviceState, Fingerprint, Source, key_hash};
use crate::time::{Now, Wall};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

impl Next {
    pub(super) fn report(
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
        // Under a signed order only the machine itself replaces its key.
        let ordered = !device.rekey_signed && device.rekey_until.is_some_and(|until| is_live(until, now.wall));
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
        self.ledger.keep_device(device);
        Ok(outcome)
    }

    /// As a refresh by a report: no generation.
    pub(super) fn proved(&mut self, mac: MacAddr, at: Wall) -> Result<Outcome, Rejected> {
        let device = Device { proved_at: Some(at), ..self.live_device(mac)? };
        self.ledger.keep_device(device);
        Ok(Outcome::Refreshed)
    }

    fn store_key(&mut self, device: &mut Device, key: String) -> Outcome {
        set_key(device, key);
        (device.rekey_until, device.rekey_signed) = (None, false);
        if device.state == DeviceState::Bound {
            device.epoch = self.generation;
        }
        self.changed = true;
        Outcome::KeyStored
    }

    pub(super) fn register(
        &mut self,
        mac: MacAddr,
        public_key: Option<String>,
        keyless_allowed: bool,
        note: String,
        labels: BTreeMap<String, String>,
        now: Now,
    ) -> Result<Outcome, Rejected> {
        if let Some(known) = self.ledger.device(mac) {
            let next_step = match known.state {
                DeviceState::Revoked => "it is revoked: purge it first",
                DeviceState::Pooled | DeviceState::Bound => "bind, label or revoke it instead",
            };
            return Err(rejected(409, "device_exists", format!("device {mac} is in the ledger already; {next_step}")));
        }
        if self.ledger.devices.len() >= MAX_DEVICES {
            let detail = format!("there are {MAX_DEVICES} devices already; revoke and purge some that are gone");
            return Err(rejected(409, "too_many_devices", detail));
        }
        let mut device = new_device(mac, Source::Manual, now.wall);
        if let Some(key) = public_key {
            if key_hash(&key).is_none() {
                let detail = "the public key is not valid; write ed25519: and 64 hex digits, or p256: and 130 hex digits".into();
                return Err(rejected(422, "public_key_invalid", detail).at("public_key"));
            }
            set_key(&mut device, key);
        }
        device.keyless_allowed = keyless_allowed;
        device.note = checked_note(note)?;
        check_labels(&labels)?;
        device.labels = labels;
        self.put_device(device);
        Ok(Outcome::Done)
    }

    pub(super) fn edit_device(
        &mut self,
        mac: MacAddr,
        note: Option<String>,
        keyless_allowed: Option<bool>,
        loader: Option<Option<String>>,
        address: Option<Option<Ipv4Addr>>,
    ) -> Result<Outcome, Rejected> {
        let before = self.device(mac)?;
        let mut device = before.clone();
        if let Some(note) = note {
            device.note = checked_note(note)?;
        }
        if let Some(loader) = loader {
            device.loader = loader.map(checked_loader).transpose()?;
        }
        if let Some(address) = address {
            let other = |d: &&Arc<Device>| address.is_some() && d.address == address && d.mac != mac;
            if let (Some(other), Some(address)) = (self.ledger.devices.values().find(other), address) {
                let detail = format!("{address} is reserved for device {}; take it from there first, or choose another one", other.mac);
                return Err(rejected(409, "address_taken", detail).at("reserved_address"));
            }
            device.address = address;
        }
        device.keyless_allowed = keyless_allowed.unwrap_or(device.keyless_allowed);
        if device != before {
            self.put_device(device);
        }
        Ok(Outcome::Done)
    }

    pub(super) fn bind_all(&mut self, pairs: &[(MacAddr, WorkerId)], force: bool) -> Result<Outcome, Rejected> {
        let (mut macs, mut workers) = (BTreeSet::new(), BTreeSet::new());
        for (mac, worker) in pairs {
            // All get one epoch, which two devices of one Worker must never share.
            if !macs.insert(mac) || !workers.insert(worker) {
                let detail = format!("device {mac} or Worker {worker} occurs twice; name each once");
                return Err(rejected(422, "twice_in_batch", detail));
            }
        }
        for (mac, worker) in pairs {
            self.bind(*mac, worker, force)?;
        }
        Ok(Outcome::Done)
    }

    pub(super) fn rotate_credentials(&mut self, worker: &WorkerId) -> Result<Outcome, Rejected> {
        self.worker(worker)?;
        let Some(mut device) = self.ledger.device_of(worker).cloned() else {
            let detail = format!("Worker {worker} has no device, so there are no credentials to replace; bind a device first");
            return Err(rejected(409, "worker_not_bound", detail));
        };
        device.epoch = self.generation;
        self.put_device(device);
        Ok(Outcome::Done)
    }

    pub(super) fn boot(&mut self, mac: MacAddr, worker: &WorkerId, epoch: u64) -> Result<Outcome, Rejected> {
        let mut device = self.device(mac)?;
        if device.bound_worker_id.as_ref() != Some(worker) || device.epoch != epoch {
            let detail = format!("device {mac} was bound otherwise, or granted another boot, since this one was asked for; ask again");
            return Err(rejected(409, "boot_overtaken", detail));
        }
        device.epoch = self.generation;
        self.put_device(device);
        Ok(Outcome::Done)
    }

    pub(super) fn bind(&mut self, mac: MacAddr, worker: &WorkerId, force: bool) -> Result<Outcome, Rejected> {
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
            self.forget_migration(&left);
        }
        self.forget_migration(worker);
        device.state = DeviceState::Bound;
        device.epoch = self.generation;
        self.ledger.bound.insert(worker.clone(), mac);
        self.put_device(device);
        if let Some(holder) = displaced {
            self.detach(holder, DeviceState::Pooled);
        }
        Ok(Outcome::Done)
    }

    pub(super) fn unbind(&mut self, mac: MacAddr) -> Result<Outcome, Rejected> {
        let device = self.live_device(mac)?;
        if device.state != DeviceState::Bound {
            return Err(rejected(409, "device_not_bound", format!("device {mac} is not bound; there is nothing to unbind")));
        }
        self.detach(device, DeviceState::Pooled);
        Ok(Outcome::Done)
    }

    pub(super) fn revoke(&mut self, mac: MacAddr) -> Result<Outcome, Rejected> {
        let mut device = self.device(mac)?;
        if device.state != DeviceState::Revoked {
            (device.rekey_until, device.rekey_signed) = (None, false);
            self.detach(device, DeviceState::Revoked);
        }
        Ok(Outcome::Done)
    }

    pub(super) fn purge(&mut self, mac: MacAddr) -> Result<Outcome, Rejected> {
        if self.device(mac)?.state != DeviceState::Revoked {
            return Err(rejected(409, "device_not_revoked", format!("device {mac} is not revoked; only revoked devices are purged")));
        }
        self.ledger.forget_device(mac);
        self.changed = true;
        Ok(Outcome::Done)
    }

    pub(super) fn rekey(&mut self, mac: MacAddr, until: Option<Wall>, signed: bool, now: Now) -> Result<Outcome, Rejected> {
        let mut device = self.live_device(mac)?;
        if let Some(until) = until {
            check_until(until, now)?;
        }
        let signed = signed && until.is_some();
        if signed && !device.signs_answers() {
            let detail = format!(
                "device {mac} has no key of kurrent-attest.efi that could sign a new one; order it as replaced, so that its next report may bring a key"
            );
            return Err(rejected(409, "rekey_unsignable", detail).at("replaced"));
        }
        if (device.rekey_until, device.rekey_signed) != (until, signed) {
            (device.rekey_until, device.rekey_signed) = (until, signed);
            self.put_device(device);
        }
        Ok(Outcome::Done)
    }

    pub(super) fn replace_key(&mut self, mac: MacAddr, old: &str, new: String, now: Now) -> Result<Outcome, Rejected> {
        let mut device = self.live_device(mac)?;
        if !device.owes_new_key(now.wall) || device.public_key.as_deref() != Some(old) || old == new {
            let detail = format!("device {mac} was not ordered to replace this key; order a rekey again");
            return Err(rejected(409, "rekey_not_ordered", detail));
        }
        if key_hash(&new).is_none() {
            return Err(rejected(422, "public_key_invalid", format!("the new public key of device {mac} is not valid")));
        }
        let outcome = self.store_key(&mut device, new);
        self.put_device(device);
        Ok(outcome)
    }

    pub(super) fn label(&mut self, mac: MacAddr, labels: BTreeMap<String, String>) -> Result<Outcome, Rejected> {
        let mut device = self.device(mac)?;
        check_labels(&labels)?;
        if device.labels != labels {
            device.labels = labels;
            self.put_device(device);
        }
        Ok(Outcome::Done)
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
        proved_at: None,
        epoch: 0,
        rekey_until: None,
        rekey_signed: false,
        keyless_allowed: false,
        loader: None,
        address: None,
        labels: BTreeMap::new(),
        note: String::new(),
        fingerprint: Fingerprint::default(),
    }
}

fn set_key(device: &mut Device, key: String) {
    device.public_key_hash = key_hash(&key);
    device.public_key = Some(key);
}
