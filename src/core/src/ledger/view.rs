//! An immutable snapshot of all ledgers and the questions readers ask of it. Cloning is cheap (persistent maps).

use super::apply::rejected;
use super::change::Rejected;
use super::rules::is_live;
use super::schema::{Agent, BootSettings, Device, DeviceState, Disk, JoinToken, MasterTags, Worker};
use super::unread::Unread;
use super::weight::Weights;
use crate::id::{AgentName, FileName, MacAddr, WorkerId};
use crate::time::Wall;
use imbl::{OrdMap, OrdSet};
use std::sync::Arc;

/// Nobody comes here by changes and restores, only by hand; behind it a change would not be told from none any more.
pub const LAST_GENERATION: u64 = 1 << 62;

/// Settings that change at run time.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Automatic admission is open until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registration_open_until: Option<Wall>,
    /// Overrides the configuration's enforcement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<bool>,
    /// For Workers without boot settings of their own.
    #[serde(default, skip_serializing_if = "BootSettings::is_default")]
    pub boot: BootSettings,
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
    /// Derived index of Workers with a migration that is not over.
    pub migrating: OrdSet<WorkerId>,
    /// Derived index of what names a disk (tag, NQN, file, UUID; their forms differ) to its Worker.
    pub disk_names: OrdMap<String, WorkerId>,
    /// Tags of master images, by file.
    pub masters: OrdMap<FileName, Arc<MasterTags>>,
    /// Recorded storage nodes, by name; see [`Ledger::all_agents`].
    pub agents: OrdMap<AgentName, Arc<Agent>>,
    /// Orders by which nodes may join, by id.
    pub join_tokens: OrdMap<String, Arc<JoinToken>>,
    /// Run-time settings.
    pub settings: Settings,
    /// Side ledgers whose records are missing here.
    pub unread: Unread,
    /// Derived: how large the files can be.
    pub weights: Weights,
}

impl Ledger {
    /// The device with this MAC.
    #[must_use]
    pub fn device(&self, mac: MacAddr) -> Option<&Device> {
        self.devices.get(&mac).map(AsRef::as_ref)
    }

    /// [`Ledger::device`], for who named it.
    ///
    /// # Errors
    /// 404 `device_not_found`.
    pub fn known_device(&self, mac: MacAddr) -> Result<&Device, Rejected> {
        self.device(mac).ok_or_else(|| {
            rejected(404, "device_not_found", format!("no device {mac} is in the ledger; see the device list, or register it first"))
        })
    }

    /// The Worker of this name, for who named it.
    ///
    /// # Errors
    /// 404 `worker_not_found`.
    pub fn known_worker(&self, id: &WorkerId) -> Result<&Worker, Rejected> {
        self.workers.get(id).map(AsRef::as_ref).ok_or_else(|| {
            rejected(404, "worker_not_found", format!("no Worker {id} is in the ledger; see the Worker list, or create it first"))
        })
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

    /// Whether only a verified answer opens the data plane: what was set at run time, or else what `configured` says.
    #[must_use]
    pub fn enforcement(&self, configured: bool) -> bool {
        self.settings.enforcement.unwrap_or(configured)
    }

    /// What a Worker boots with: its own settings, for each one that it has not the appliance's.
    #[must_use]
    pub fn boot_of(&self, worker: &Worker) -> BootSettings {
        let (own, all) = (&worker.boot, &self.settings.boot);
        BootSettings {
            menu_default: own.menu_default.clone().or_else(|| all.menu_default.clone()),
            menu_timeout_ms: own.menu_timeout_ms.or(all.menu_timeout_ms),
            method: own.method.clone().or_else(|| all.method.clone()),
            kernel: own.kernel.clone().or_else(|| all.kernel.clone()),
        }
    }

    /// The disk that a Worker boots from: the one of its menu entry, else its default. `None` is K21: nothing boots, and never
    /// another disk instead. The entry `reboot` says so on purpose; one that names no disk of the Worker is taken for it.
    #[must_use]
    pub fn boot_disk<'a>(&self, worker: &'a Worker) -> Option<&'a Disk> {
        match self.boot_of(worker).menu_default {
            None => worker.default_disk(),
            Some(entry) => worker.disks.iter().find(|d| d.os_tag.as_str() == entry),
        }
    }

    /// A storage node. This appliance is always one, also without a record.
    #[must_use]
    pub fn agent(&self, name: &AgentName) -> Option<Agent> {
        let recorded = self.agents.get(name).map(|a| Agent::clone(a));
        recorded.or_else(|| (*name == AgentName::local()).then(Agent::local))
    }

    /// All storage nodes by name, this appliance among them.
    #[must_use]
    pub fn all_agents(&self) -> Vec<Agent> {
        let mut all: Vec<Agent> = self.agents.values().map(|a| Agent::clone(a)).collect();
        if !self.agents.contains_key(&AgentName::local()) {
            all.push(Agent::local());
            all.sort_by(|a, b| a.name.cmp(&b.name));
        }
        all
    }

    pub(super) fn names_of(disk: &Disk) -> [String; 4] {
        [disk.os_tag.to_string(), disk.nqn.to_string(), disk.filename.to_string(), disk.uuid.to_string()]
    }

    /// The first name of this disk that another one has, and that one's Worker.
    pub(super) fn disk_names_taken(&self, disk: &Disk) -> Option<(String, WorkerId)> {
        Self::names_of(disk).into_iter().find_map(|name| self.disk_names.get(&name).cloned().map(|w| (name, w)))
    }

    pub(super) fn note_disk_names(&mut self, disk: &Disk, worker: &WorkerId) {
        for name in Self::names_of(disk) {
            self.disk_names.insert(name, worker.clone());
        }
    }

    pub(super) fn forget_disk_names(&mut self, disk: &Disk) {
        for name in Self::names_of(disk) {
            self.disk_names.remove(&name);
        }
    }

    /// Whether automatic admission is open; expiry is computed on read.
    #[must_use]
    pub fn window_open(&self, wall: Wall) -> bool {
        self.settings.registration_open_until.is_some_and(|until| is_live(until, wall))
    }
}

/// Whether a Worker can boot a system: derived from its binding and its disks, read-only (K15).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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
