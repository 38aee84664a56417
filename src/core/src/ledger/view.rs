//! An immutable snapshot of all ledgers and the questions readers ask of it. Cloning is cheap (persistent maps).

use super::schema::{Device, DeviceState, Disk, Worker};
use crate::id::{MacAddr, WorkerId};
use crate::time::Wall;
use imbl::OrdMap;
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
        self.settings.registration_open_until.is_some_and(|until| wall < until)
    }
}

impl Worker {
    /// The disk that boots, if there is one.
    #[must_use]
    pub fn default_disk(&self) -> Option<&Disk> {
        let tag = self.default_disk.as_ref()?;
        self.disks.iter().find(|d| d.os_tag == *tag)
    }
}
