//! The ledger as the records it is made of, without anything derived from them: what files and journal hold, and what two
//! ledgers differ in. Whether records belong together is asked by [`Records::checked`].

use super::check::BEYOND;
use super::schema::{Agent, Device, Fingerprint, JoinToken, LEDGER_VERSION, MasterTags, MastersFile, Worker};
use super::schema::{AgentsFile, DevicesFile, SettingsFile, WorkersFile};
use super::view::{LAST_GENERATION, Ledger, Settings};
use crate::id::{AgentName, FileName, MacAddr, WorkerId};
use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

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
    /// Key of the record (a MAC, `worker_id`, name, or the file's generation), as written in the file.
    pub record: String,
    /// What is wrong; what to do.
    pub what: String,
}

/// Names a record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Key {
    /// A device.
    Device(MacAddr),
    /// A Worker.
    Worker(WorkerId),
    /// Tags of a master.
    Master(FileName),
    /// A storage node.
    Agent(AgentName),
    /// A join token.
    JoinToken(String),
    /// The settings, which are one record.
    Settings,
}

impl Key {
    /// The file that holds it.
    #[must_use]
    pub fn file(&self) -> &'static str {
        match self {
            Self::Device(_) => "devices.yml",
            Self::Worker(_) => "workers.yml",
            Self::Master(_) => "masters.yml",
            Self::Agent(_) | Self::JoinToken(_) => "agents.yml",
            Self::Settings => "settings.yml",
        }
    }

    /// As written in the file; empty for the settings.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Device(mac) => mac.to_string(),
            Self::Worker(id) => id.to_string(),
            Self::Master(name) => name.to_string(),
            Self::Agent(name) => name.to_string(),
            Self::JoinToken(id) => id.clone(),
            Self::Settings => String::new(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self {
            Self::Device(_) => "device ",
            Self::Worker(_) => "Worker ",
            Self::Master(_) => "master ",
            Self::Agent(_) => "storage node ",
            Self::JoinToken(_) => "join token ",
            Self::Settings => "the settings",
        };
        write!(f, "{what}{}", self.text())
    }
}

/// One record of any ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// Of `devices.yml`.
    Device(#[serde(with = "shared")] Arc<Device>),
    /// Of `workers.yml`.
    Worker(#[serde(with = "shared")] Arc<Worker>),
    /// Of `masters.yml`.
    Master(#[serde(with = "shared")] Arc<MasterTags>),
    /// Of `agents.yml`.
    Agent(#[serde(with = "shared")] Arc<Agent>),
    /// Of `agents.yml`.
    JoinToken(#[serde(with = "shared")] Arc<JoinToken>),
    /// Of `settings.yml`.
    Settings(Settings),
}

/// A shared record is written like the record.
mod shared {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::sync::Arc;

    pub(super) fn serialize<T: Serialize, S: Serializer>(record: &Arc<T>, serializer: S) -> Result<S::Ok, S::Error> {
        T::serialize(record, serializer)
    }

    pub(super) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<T>, D::Error> {
        T::deserialize(deserializer).map(Arc::new)
    }
}

impl Record {
    /// What names it.
    #[must_use]
    pub fn key(&self) -> Key {
        match self {
            Self::Device(device) => Key::Device(device.mac),
            Self::Worker(worker) => Key::Worker(worker.worker_id.clone()),
            Self::Master(tags) => Key::Master(tags.name.clone()),
            Self::Agent(agent) => Key::Agent(agent.name.clone()),
            Self::JoinToken(token) => Key::JoinToken(token.id.clone()),
            Self::Settings(_) => Key::Settings,
        }
    }

    /// The record without what a device says of itself: that changes with every report, and is written some time later.
    #[must_use]
    pub fn decided(&self) -> Self {
        match self {
            Self::Device(device) => Self::Device(Arc::new(Device {
                last_seen: None,
                proved_at: None,
                uuid: String::new(),
                fingerprint: Fingerprint::default(),
                ..Device::clone(device)
            })),
            Self::Worker(_) | Self::Master(_) | Self::Agent(_) | Self::JoinToken(_) | Self::Settings(_) => self.clone(),
        }
    }
}

/// The records of all ledgers. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// See [`Ledger::generation`].
    pub generation: u64,
    /// By MAC.
    pub devices: OrdMap<MacAddr, Arc<Device>>,
    /// By `worker_id`.
    pub workers: OrdMap<WorkerId, Arc<Worker>>,
    /// By file.
    pub masters: OrdMap<FileName, Arc<MasterTags>>,
    /// By name.
    pub agents: OrdMap<AgentName, Arc<Agent>>,
    /// By id.
    pub join_tokens: OrdMap<String, Arc<JoinToken>>,
    /// One record.
    pub settings: Settings,
}

/// A record that two ledgers differ in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Which.
    pub key: Key,
    /// In the first one.
    pub before: Option<Record>,
    /// In the second one.
    pub after: Option<Record>,
}

impl Records {
    /// The record of that name.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Record> {
        match key {
            Key::Device(mac) => self.devices.get(mac).cloned().map(Record::Device),
            Key::Worker(id) => self.workers.get(id).cloned().map(Record::Worker),
            Key::Master(name) => self.masters.get(name).cloned().map(Record::Master),
            Key::Agent(name) => self.agents.get(name).cloned().map(Record::Agent),
            Key::JoinToken(id) => self.join_tokens.get(id).cloned().map(Record::JoinToken),
            Key::Settings => Some(Record::Settings(self.settings.clone())),
        }
    }

    /// Adds or replaces a record; returns whether there was one.
    pub fn put(&mut self, record: Record) -> bool {
        match record {
            Record::Device(device) => self.devices.insert(device.mac, device).is_some(),
            Record::Worker(worker) => self.workers.insert(worker.worker_id.clone(), worker).is_some(),
            Record::Master(tags) => self.masters.insert(tags.name.clone(), tags).is_some(),
            Record::Agent(agent) => self.agents.insert(agent.name.clone(), agent).is_some(),
            Record::JoinToken(token) => self.join_tokens.insert(token.id.clone(), token).is_some(),
            Record::Settings(settings) => {
                self.settings = settings;
                true
            }
        }
    }

    /// Removes a record; settings become the default ones.
    pub fn remove(&mut self, key: &Key) {
        match key {
            Key::Device(mac) => drop(self.devices.remove(mac)),
            Key::Worker(id) => drop(self.workers.remove(id)),
            Key::Master(name) => drop(self.masters.remove(name)),
            Key::Agent(name) => drop(self.agents.remove(name)),
            Key::JoinToken(id) => drop(self.join_tokens.remove(id)),
            Key::Settings => self.settings = Settings::default(),
        }
    }

    /// What `after` differs in from this. The cost follows the number of differences where `after` was made out of this one:
    /// parts of the maps that both share are not looked at.
    #[must_use]
    pub fn differences(&self, after: &Self) -> Vec<Difference> {
        let mut all = Vec::new();
        of_map(&mut all, &self.devices, &after.devices, |k| Key::Device(*k), Record::Device);
        of_map(&mut all, &self.workers, &after.workers, |k| Key::Worker(k.clone()), Record::Worker);
        of_map(&mut all, &self.masters, &after.masters, |k| Key::Master(k.clone()), Record::Master);
        of_map(&mut all, &self.agents, &after.agents, |k| Key::Agent(k.clone()), Record::Agent);
        of_map(&mut all, &self.join_tokens, &after.join_tokens, |k| Key::JoinToken(k.clone()), Record::JoinToken);
        if self.settings != after.settings {
            let (before, after) = (Record::Settings(self.settings.clone()), Record::Settings(after.settings.clone()));
            all.push(Difference { key: Key::Settings, before: Some(before), after: Some(after) });
        }
        all
    }

    /// The records of all files, when each file names each record once.
    ///
    /// # Errors
    /// The first [`Contradiction`].
    pub fn of(files: Files) -> Result<Self, Contradiction> {
        let Files { devices, workers, settings, masters, agents } = files;
        let generations = [
            ("devices.yml", devices.generation),
            ("workers.yml", workers.generation),
            ("settings.yml", settings.generation),
            ("masters.yml", masters.generation),
            ("agents.yml", agents.generation),
        ];
        if let Some((file, generation)) = generations.into_iter().find(|(_, g)| *g > LAST_GENERATION) {
            let what = format!("generation {generation} {BEYOND}");
            return Err(Contradiction { file, record: generation.to_string(), what });
        }
        let mut records = Self {
            generation: generations.into_iter().map(|(_, g)| g).max().unwrap_or(0),
            settings: Settings {
                registration_open_until: settings.registration_open_until,
                enforcement: settings.enforcement,
                boot: settings.boot,
            },
            ..Self::default()
        };
        let all = (agents.agents.into_iter().map(|a| Record::Agent(Arc::new(a))))
            .chain(agents.join_tokens.into_iter().map(|t| Record::JoinToken(Arc::new(t))))
            .chain(masters.masters.into_iter().map(|m| Record::Master(Arc::new(m))))
            .chain(workers.workers.into_iter().map(|w| Record::Worker(Arc::new(w))))
            .chain(devices.devices.into_iter().map(|d| Record::Device(Arc::new(d))));
        for record in all {
            let key = record.key();
            if records.put(record) {
                let what = format!("{key} is recorded twice; remove one record");
                return Err(Contradiction { file: key.file(), record: key.text(), what });
            }
        }
        Ok(records)
    }
}

fn of_map<K: Ord + Clone, V: Eq>(
    all: &mut Vec<Difference>,
    before: &OrdMap<K, Arc<V>>,
    after: &OrdMap<K, Arc<V>>,
    key: impl Fn(&K) -> Key,
    record: impl Fn(Arc<V>) -> Record,
) {
    if before.ptr_eq(after) {
        return;
    }
    let record = |value: &Arc<V>| Some(record(Arc::clone(value)));
    all.extend(before.diff(after).map(|item| match item {
        DiffItem::Add(k, new) => Difference { key: key(k), before: None, after: record(new) },
        DiffItem::Update { old: (k, old), new: (_, new) } => Difference { key: key(k), before: record(old), after: record(new) },
        DiffItem::Remove(k, old) => Difference { key: key(k), before: record(old), after: None },
    }));
}

impl Ledger {
    /// The records of this snapshot.
    #[must_use]
    pub fn records(&self) -> Records {
        Records {
            generation: self.generation,
            devices: self.devices.clone(),
            workers: self.workers.clone(),
            masters: self.masters.clone(),
            agents: self.agents.clone(),
            join_tokens: self.join_tokens.clone(),
            settings: self.settings.clone(),
        }
    }
}

/// The files of these records.
impl Records {
    /// All of them.
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

    /// `devices.yml`.
    #[must_use]
    pub fn devices_file(&self) -> DevicesFile {
        let devices = self.devices.values().map(|d| Device::clone(d)).collect();
        DevicesFile { version: LEDGER_VERSION, generation: self.generation, devices }
    }

    /// `workers.yml`.
    #[must_use]
    pub fn workers_file(&self) -> WorkersFile {
        let workers = self.workers.values().map(|w| Worker::clone(w)).collect();
        WorkersFile { version: LEDGER_VERSION, generation: self.generation, workers }
    }

    /// `settings.yml`.
    #[must_use]
    pub fn settings_file(&self) -> SettingsFile {
        let Settings { registration_open_until, enforcement, boot } = self.settings.clone();
        SettingsFile { version: LEDGER_VERSION, generation: self.generation, registration_open_until, enforcement, boot }
    }

    /// `masters.yml`.
    #[must_use]
    pub fn masters_file(&self) -> MastersFile {
        let masters = self.masters.values().map(|m| MasterTags::clone(m)).collect();
        MastersFile { version: LEDGER_VERSION, generation: self.generation, masters }
    }

    /// `agents.yml`.
    #[must_use]
    pub fn agents_file(&self) -> AgentsFile {
        let agents = self.agents.values().map(|a| Agent::clone(a)).collect();
        let join_tokens = self.join_tokens.values().map(|t| JoinToken::clone(t)).collect();
        AgentsFile { version: LEDGER_VERSION, generation: self.generation, agents, join_tokens }
    }
}
