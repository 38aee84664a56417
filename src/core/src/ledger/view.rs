//! An immutable snapshot of all ledgers and the questions readers ask of it. Cloning is cheap (persistent maps).

use super::rules::{check_disk, is_live};
use super::schema::{
    Agent, AgentsFile, BootSettings, Device, DeviceState, DevicesFile, Disk, JoinToken, LEDGER_VERSION, MasterTags, MastersFile,
    SettingsFile, Worker, WorkersFile, key_hash,
};
use crate::id::{AgentName, FileName, MacAddr, WorkerId};
use crate::time::Wall;
use imbl::OrdMap;
use std::collections::HashSet;
use std::sync::Arc;

/// How far a restore moves the generation on: more changes than a century of one in a second.
const RESTORE_LEAP: u64 = 1 << 32;

/// Settings that change at run time.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Settings {
    /// Automatic admission is open until then.
    pub registration_open_until: Option<Wall>,
    /// Overrides the configuration's enforcement.
    pub enforcement: Option<bool>,
    /// For Workers without boot settings of their own.
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

    fn names_of(disk: &Disk) -> [String; 4] {
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

/// All ledger files.
#[derive(Clone, Debug)]
pub struct Files {
    /// `devices.yml`.
    pub devices: DevicesFile,
    /// `workers.yml`.
    pub workers: WorkersFile,
    /// `settings.yml`.
    pub settings: SettingsFile,
    /// `masters.yml`.
    pub masters: MastersFile,
    /// `agents.yml`.
    pub agents: AgentsFile,
}

/// A record of a ledger file that contradicts itself or another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Contradiction {
    /// Which file (`devices.yml`).
    pub file: &'static str,
    /// Key of the record (a MAC, `worker_id` or name), as written in the file.
    pub record: String,
    /// What is wrong; what to do.
    pub what: String,
}

impl Ledger {
    /// The whole from its files, when every invariant holds.
    ///
    /// # Errors
    /// The first [`Contradiction`].
    pub fn assemble(files: Files) -> Result<Self, Contradiction> {
        let Files { devices, workers, settings, masters, agents } = files;
        let generations = [devices.generation, workers.generation, settings.generation, masters.generation, agents.generation];
        let mut ledger = Self {
            generation: generations.into_iter().max().unwrap_or(0),
            settings: Settings {
                registration_open_until: settings.registration_open_until,
                enforcement: settings.enforcement,
                boot: settings.boot,
            },
            ..Self::default()
        };
        for agent in agents.agents {
            let name = agent.name.clone();
            if ledger.agents.insert(name.clone(), Arc::new(agent)).is_some() {
                let what = format!("storage node {name} is recorded twice; remove one record");
                return Err(Contradiction { file: "agents.yml", record: name.to_string(), what });
            }
        }
        for token in agents.join_tokens {
            let id = token.id.clone();
            if ledger.join_tokens.insert(id.clone(), Arc::new(token)).is_some() {
                let what = format!("join token {id} is recorded twice; remove one record");
                return Err(Contradiction { file: "agents.yml", record: id, what });
            }
        }
        for tags in masters.masters {
            let name = tags.name.clone();
            let wrong = |what: String| Contradiction { file: "masters.yml", record: name.to_string(), what };
            if !name.is_master() {
                return Err(wrong(format!("{name} is not a master: its name has no _tpl_; correct or remove the record")));
            }
            if ledger.masters.insert(name.clone(), Arc::new(tags)).is_some() {
                return Err(wrong(format!("master {name} is recorded twice; remove one record")));
            }
        }
        for worker in workers.workers {
            let id = worker.worker_id.clone();
            let wrong = |what: String| Contradiction { file: "workers.yml", record: id.to_string(), what };
            ledger.check_worker(&worker).map_err(wrong)?;
            for disk in &worker.disks {
                ledger.note_disk_names(disk, &id);
            }
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

    /// This ledger of a backup as the successor of what is there now (`present`). Credentials that were given out after the
    /// backup are worthless: every bound device gets an epoch that no appliance with this ledger's past can have given out, by a
    /// leap that no number of changes in between comes to. And a restore opens nothing: window, rekey orders and join tokens,
    /// which may have been used or withdrawn since, are gone.
    #[must_use]
    pub fn after_restore(mut self, present: u64) -> Self {
        self.generation = self.generation.max(present).saturating_add(RESTORE_LEAP);
        self.settings.registration_open_until = None;
        self.join_tokens.clear();
        let touched = |d: &Device| d.state == DeviceState::Bound || d.rekey_until.is_some();
        let devices: Vec<Arc<Device>> = self.devices.values().filter(|d| touched(d)).cloned().collect();
        for device in devices {
            let epoch = if device.state == DeviceState::Bound { self.generation } else { device.epoch };
            self.devices.insert(device.mac, Arc::new(Device { epoch, rekey_until: None, ..Device::clone(&device) }));
        }
        self
    }

    /// All files of this snapshot.
    #[must_use]
    pub fn files(&self) -> Files {
        Files {
            devices: self.devices_file(),
            workers: self.workers_file(),
            settings: self.settings_file(),
            masters: self.masters_file(),
            agents: self.agents_file(),
        }
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
        let Settings { registration_open_until, enforcement, boot } = self.settings.clone();
        SettingsFile { version: LEDGER_VERSION, generation: self.generation, registration_open_until, enforcement, boot }
    }

    /// `masters.yml` of this snapshot.
    #[must_use]
    pub fn masters_file(&self) -> MastersFile {
        let masters = self.masters.values().map(|m| MasterTags::clone(m)).collect();
        MastersFile { version: LEDGER_VERSION, generation: self.generation, masters }
    }

    /// `agents.yml` of this snapshot.
    #[must_use]
    pub fn agents_file(&self) -> AgentsFile {
        let agents = self.agents.values().map(|a| Agent::clone(a)).collect();
        let join_tokens = self.join_tokens.values().map(|t| JoinToken::clone(t)).collect();
        AgentsFile { version: LEDGER_VERSION, generation: self.generation, agents, join_tokens }
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

impl Ledger {
    /// What a Worker's record fulfils beside those that are here already.
    fn check_worker(&self, worker: &Worker) -> Result<(), String> {
        let id = &worker.worker_id;
        let (mut systems, mut names) = (HashSet::new(), HashSet::new());
        for disk in &worker.disks {
            check_disk(disk)?;
            if !systems.insert((&disk.os, &disk.os_version)) {
                return Err(format!("Worker {id} has two disks for {} {}; at most one is allowed", disk.os, disk.os_version));
            }
            if self.agent(&disk.agent).is_none() {
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
