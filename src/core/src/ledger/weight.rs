//! How large the ledger files can become: what is taken must be readable at the next start. Every record weighs the octets that it
//! can take in YAML at most, and the sum is bounded. 10,000 devices and 10,000 Workers with a disk each are a third of it.

use super::schema::{Device, Worker};
use super::view::Ledger;
use crate::id::{MacAddr, WorkerId};
use std::sync::Arc;

/// What the records of one file weigh at most. The reader takes more (`kurrentd`'s `ledger::folder`), heads and comments among it.
pub const MAX_WEIGHT: u64 = 192 * 1024 * 1024;
/// Keys, names, times, the public key, and what a device says of itself (ten values of at most 128 octets).
const DEVICE: u64 = 1240 + 10 * 128 * ESCAPED;
const WORKER: u64 = 600;
/// Two MACs, two times, their keys.
const MIGRATION: u64 = 200;
/// Its names are up to 255 octets long.
const DISK: u64 = 1500;
const LABEL: u64 = 16;
/// Octets that one octet of text takes at most: `\U0001F600` for four.
const ESCAPED: u64 = 3;
/// A line feed, with the indentation of what follows.
const LINE: u64 = 12;

fn text(text: &str) -> u64 {
    let octets = u64::try_from(text.len()).unwrap_or(u64::MAX);
    let lines = u64::try_from(text.matches('\n').count()).unwrap_or(u64::MAX);
    octets.saturating_mul(ESCAPED).saturating_add(lines.saturating_mul(LINE))
}

pub(super) fn of_device(device: &Device) -> u64 {
    let labels = device.labels.iter().map(|(key, value)| LABEL + text(key) + text(value)).sum::<u64>();
    DEVICE + labels + text(&device.note) + device.loader.as_deref().map_or(0, text)
}

pub(super) fn of_worker(worker: &Worker) -> u64 {
    let disks = worker.disks.iter().map(|disk| DISK + text(&disk.remark)).sum::<u64>();
    WORKER + disks + text(&worker.error) + if worker.migration.is_some() { MIGRATION } else { 0 }
}

/// What the two large files weigh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// `devices.yml`.
    pub devices: u64,
    /// `workers.yml`.
    pub workers: u64,
}

impl Weights {
    /// Whether this is more than `before`, and too much.
    pub(super) fn is_too_much(self, before: Self) -> bool {
        let too_much = |is: u64, was: u64| is > was && is > MAX_WEIGHT;
        too_much(self.devices, before.devices) || too_much(self.workers, before.workers)
    }
}

impl Ledger {
    pub(super) fn weigh(&mut self) {
        self.weights.devices = self.devices.values().map(|d| of_device(d)).sum();
        self.weights.workers = self.workers.values().map(|w| of_worker(w)).sum();
    }

    pub(super) fn keep_device(&mut self, device: Device) {
        let is = of_device(&device);
        let was = self.devices.insert(device.mac, Arc::new(device)).map_or(0, |d| of_device(&d));
        self.weights.devices = self.weights.devices.saturating_add(is).saturating_sub(was);
    }

    pub(super) fn forget_device(&mut self, mac: MacAddr) {
        let was = self.devices.remove(&mac).map_or(0, |d| of_device(&d));
        self.weights.devices = self.weights.devices.saturating_sub(was);
    }

    pub(super) fn keep_worker(&mut self, worker: Worker) {
        let is = of_worker(&worker);
        if worker.migration.is_some() {
            self.migrating.insert(worker.worker_id.clone());
        } else {
            self.migrating.remove(&worker.worker_id);
        }
        let was = self.workers.insert(worker.worker_id.clone(), Arc::new(worker)).map_or(0, |w| of_worker(&w));
        self.weights.workers = self.weights.workers.saturating_add(is).saturating_sub(was);
    }

    pub(super) fn forget_worker(&mut self, id: &WorkerId) {
        self.migrating.remove(id);
        let was = self.workers.remove(id).map_or(0, |w| of_worker(&w));
        self.weights.workers = self.weights.workers.saturating_sub(was);
    }
}
