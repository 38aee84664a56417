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
use super::schema::{Device, DeviceState, Worker};
use super::view::{LAST_GENERATION, Ledger};
use crate::id::{MacAddr, WorkerId};
use crate::time::Now;

mod devices;
mod migrations;
mod settings;
mod workers;

pub use settings::{MAX_AGENTS, MAX_JOIN_TOKENS, MAX_MASTERS};
pub use workers::MAX_DISKS;
pub(super) use workers::too_many_workers;

/// Devices, however they come: a stranger in an open window, or a program that imports without end, must not make a ledger that the
/// next start does not read.
pub const MAX_DEVICES: usize = 20_000;

/// Workers, likewise: what is acknowledged must be read by the next start.
pub const MAX_WORKERS: usize = 20_000;

/// Applies one change.
///
/// # Errors
/// [`Rejected`] says why not, with a stable code and the next step; the ledger is as before.
pub fn apply(ledger: &Ledger, change: Change, now: Now) -> Result<(Ledger, Outcome), Rejected> {
    if ledger.generation >= LAST_GENERATION {
        let what =
            "the ledger's generation was set by hand to a number that leaves no room for changes; restore the state folder from a backup";
        return Err(rejected(507, "generations_used_up", what.into()));
    }
    ledger.check_read(&change)?;
    let mut next = Next { ledger: ledger.clone(), generation: ledger.generation.saturating_add(1), changed: false };
    let outcome = next.carry_out(change, now)?;
    if next.ledger.weights.is_too_much(ledger.weights) {
        let detail = "the ledger is full: what its records hold would be more than the next start reads; delete records, labels or notes";
        return Err(rejected(409, "ledger_full", detail.into()));
    }
    if next.changed {
        next.ledger.generation = next.generation;
    }
    Ok((next.ledger, outcome))
}

pub(super) fn rejected(status: u16, code: &'static str, detail: String) -> Rejected {
    Rejected { code, status, detail, field: None }
}

/// The ledger being made. `generation` is the one it gets if anything changes, and the epoch of every fenced device.
struct Next {
    ledger: Ledger,
    generation: u64,
    changed: bool,
}

impl Next {
    fn carry_out(&mut self, change: Change, now: Now) -> Result<Outcome, Rejected> {
        match change {
            Change::Report { mac, uuid, public_key, fingerprint } => self.report(mac, uuid, public_key, fingerprint, now),
            Change::Proved { mac, at } => self.proved(mac, at),
            Change::Register { mac, public_key, keyless_allowed, note, labels, address } => {
                self.register(mac, public_key, keyless_allowed, note, labels, now)?;
                self.edit_device(mac, None, None, None, address.map(Some))
            }
            Change::EditDevice { mac, note, keyless_allowed, loader, address } => {
                self.edit_device(mac, note, keyless_allowed, loader, address)
            }
            Change::Bind { mac, worker, force } => self.bind(mac, &worker, force),
            Change::BindAll { pairs, force } => self.bind_all(&pairs, force),
            Change::Migrate { worker, note, enforcement } => self.migrate(&worker, note, enforcement),
            Change::EndMigration { worker, note } => self.end_migration(&worker, &note),
            Change::RollBackMigration { worker, note } => self.roll_back_migration(&worker, &note),
            Change::Unbind { mac } => self.unbind(mac),
            Change::RotateCredentials { worker } => self.rotate_credentials(&worker),
            Change::Boot { mac, worker, epoch } => self.boot(mac, &worker, epoch),
            Change::Revoke { mac } => self.revoke(mac),
            Change::Purge { mac } => self.purge(mac),
            Change::Rekey { mac, until, signed } => self.rekey(mac, until, signed, now),
            Change::ReplaceKey { mac, old, new } => self.replace_key(mac, &old, new, now),
            Change::Label { mac, labels } => self.label(mac, labels),
            Change::CreateWorker { worker } => self.create_worker(worker, now),
            Change::CreateWorkers { workers } => self.create_workers(workers, now),
            Change::SetWorkerError { worker, error } => self.set_worker_error(&worker, error),
            Change::DeleteWorker { worker } => self.delete_worker(&worker),
            Change::AddDisk { worker, disk } => self.add_disk(&worker, disk),
            Change::RemoveDisk { worker, os_tag } => self.remove_disk(&worker, &os_tag),
            Change::ResizeDisk { worker, os_tag, size_bytes } => self.resize_disk(&worker, &os_tag, size_bytes),
            Change::RemarkDisk { worker, os_tag, remark } => self.remark_disk(&worker, &os_tag, remark),
            Change::SetDefaultDisk { worker, os_tag } => self.set_default_disk(&worker, &os_tag),
            Change::SetBoot { worker, boot } => self.set_boot(&worker, boot),
            Change::OpenWindow { until } => self.open_window(until, now),
            Change::CloseWindow => Ok(self.close_window()),
            Change::EditSettings { enforcement, boot } => self.edit_settings(enforcement, boot),
            Change::TagMaster { tags } => self.tag_master(tags),
            Change::ForgetMaster { name } => Ok(self.forget_master(&name)),
            Change::AddAgent { agent } => self.add_agent(agent, now),
            Change::EditAgent { name, base_url, roles, drained, note } => self.edit_agent(&name, base_url, roles, drained, note),
            Change::RemoveAgent { name } => self.remove_agent(&name),
            Change::AddJoinToken { token } => self.add_join_token(token, now),
            Change::RevokeJoinToken { id } => self.revoke_join_token(&id),
        }
    }

    fn device(&self, mac: MacAddr) -> Result<Device, Rejected> {
        self.ledger.known_device(mac).cloned()
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
        self.ledger.known_worker(id).cloned()
    }

    fn put_device(&mut self, device: Device) {
        self.ledger.keep_device(device);
        self.changed = true;
    }

    /// The names of its disks are the caller's business.
    fn put_worker(&mut self, worker: Worker) {
        self.ledger.keep_worker(worker);
        self.changed = true;
    }

    /// Takes a device off its Worker; its epoch moves, so that what it knew opens nothing any more.
    fn detach(&mut self, mut device: Device, state: DeviceState) {
        if let Some(worker) = device.bound_worker_id.take() {
            // Only when it is this device: after a forced move the entry is the new holder's already.
            if self.ledger.bound.get(&worker) == Some(&device.mac) {
                self.ledger.bound.remove(&worker);
                self.forget_migration(&worker);
            }
        }
        device.state = state;
        device.epoch = self.generation;
        self.put_device(device);
    }
}

#[cfg(test)]
#[path = "apply_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "bounds_tests.rs"]
mod bounds_tests;
