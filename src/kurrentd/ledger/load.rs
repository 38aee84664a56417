//! Reading ledgers: nothing here writes. See [`super::files`] for how the files change.

use crate::yaml::{self, Fault, located};
use kurrent_core::ledger::Ledger;
use kurrent_core::ledger::migrate::WorkersFileV1;
use kurrent_core::ledger::schema::{AgentsFile, DevicesFile, LEDGER_VERSION, MastersFile, SettingsFile, WorkersFile};
use kurrent_core::ledger::view;
use kurrent_sys::store;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// 20,000 devices are about 20 MiB; more is not ours.
const MAX_OCTETS: u64 = 128 * 1024 * 1024;
const MAX_NODES: usize = 8_000_000;
pub(super) const INTENT: &str = "intent.json";

/// The ledger files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Devices,
    Workers,
    Settings,
    Masters,
    Agents,
}

pub(super) const NAMES: [Name; 5] = [Name::Devices, Name::Workers, Name::Settings, Name::Masters, Name::Agents];

impl Name {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Devices => "devices.yml",
            Self::Workers => "workers.yml",
            Self::Settings => "settings.yml",
            Self::Masters => "masters.yml",
            Self::Agents => "agents.yml",
        }
    }
}

/// Why ledgers can not be served.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file does not read as a ledger, contradicts itself or another one, or is missing while others are there.
    #[error("{0}")]
    Corrupt(String),
    /// A later version of this program wrote it.
    #[error("{file} has version {version}, this program knows up to {LEDGER_VERSION}: run the program that wrote it, or a later one")]
    Newer {
        /// Which file.
        file: String,
        /// Its version.
        version: u32,
    },
    /// Another daemon is at work on the same folder.
    #[error("{0} is used by another kurrentd; end that, or give this one its own spec.stateDir")]
    InUse(PathBuf),
    /// The folder or a file can not be read or written.
    #[error("{path}: {cause}; check the disk and its permissions", path = .path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Intent {
    pub(super) version: u32,
    pub(super) generation: u64,
    pub(super) files: Vec<IntentFile>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IntentFile {
    pub(super) name: String,
    pub(super) text: String,
}

/// The texts of a state folder, with a committed intent already carried out on them.
pub(super) struct Texts {
    /// By [`NAMES`]; `None` is missing.
    pub(super) files: [Option<Vec<u8>>; 5],
    pub(super) intent: bool,
}

impl Texts {
    fn of(&self, name: Name) -> Option<&Vec<u8>> {
        NAMES.iter().position(|n| *n == name).and_then(|at| self.files.get(at)?.as_ref())
    }
}

/// Reads and checks the ledgers without writing anything; `None` when there are none yet.
///
/// # Errors
/// [`LoadError`].
pub fn check(folder: &Path) -> Result<Option<Ledger>, LoadError> {
    let texts = read_texts(folder)?;
    if texts.files.iter().all(Option::is_none) { Ok(None) } else { assemble(folder, &texts).map(Some) }
}

/// The names of the ledger files.
#[must_use]
pub fn names() -> [&'static str; 5] {
    NAMES.map(Name::text)
}

/// The ledger files of a snapshot, by name.
///
/// # Errors
/// A record can not be written as YAML.
pub fn texts(ledger: &Ledger) -> Result<Vec<(&'static str, String)>, String> {
    NAMES.into_iter().map(|name| Ok((name.text(), super::files::encode(name, ledger)?))).collect()
}

pub(super) fn current(name: Name, texts: &Texts) -> Result<String, String> {
    let octets = texts.of(name);
    String::from_utf8(octets.cloned().unwrap_or_default()).map_err(|e| e.to_string())
}

pub(super) fn read_texts(folder: &Path) -> Result<Texts, LoadError> {
    let read = |name: &str| {
        let path = folder.join(name);
        store::read(&path, MAX_OCTETS).map_err(|cause| LoadError::Io { path, cause })
    };
    let mut files: [Option<Vec<u8>>; 5] = Default::default();
    for (slot, name) in files.iter_mut().zip(NAMES) {
        *slot = read(name.text())?;
    }
    let Some(octets) = read(INTENT)? else { return Ok(Texts { files, intent: false }) };
    let corrupt = |e: String| {
        LoadError::Corrupt(format!(
            "{}: {e}; it holds a change that was not finished: restore the folder from a backup",
            folder.join(INTENT).display()
        ))
    };
    let intent: Intent = serde_json::from_slice(&octets).map_err(|e| corrupt(e.to_string()))?;
    if intent.version > LEDGER_VERSION {
        return Err(LoadError::Newer { file: folder.join(INTENT).display().to_string(), version: intent.version });
    }
    for IntentFile { name, text } in intent.files {
        let at = NAMES.iter().position(|n| n.text() == name).ok_or_else(|| corrupt(format!("it names {name:?}, which is no ledger")))?;
        if let Some(slot) = files.get_mut(at) {
            // A file that already holds the change, or was edited after it, stands.
            let older = slot.as_ref().and_then(|o| yaml::parse::<Head>(o, MAX_NODES).ok()).is_none_or(|h| h.generation < intent.generation);
            if older || slot.is_none() {
                *slot = Some(text.into_bytes());
            }
        }
    }
    Ok(Texts { files, intent: true })
}

/// The part of every file that all versions share.
#[derive(Deserialize)]
struct Head {
    version: u32,
    generation: u64,
}

fn head(folder: &Path, name: Name, octets: &[u8]) -> Result<Head, LoadError> {
    let path = folder.join(name.text());
    let head: Head = yaml::parse(octets, MAX_NODES).map_err(|f| LoadError::Corrupt(located(&path, &f)))?;
    if head.version > LEDGER_VERSION {
        return Err(LoadError::Newer { file: path.display().to_string(), version: head.version });
    }
    Ok(head)
}

fn parse<T: DeserializeOwned>(folder: &Path, name: Name, octets: &[u8]) -> Result<T, LoadError> {
    yaml::parse(octets, MAX_NODES).map_err(|f| LoadError::Corrupt(located(&folder.join(name.text()), &f)))
}

pub(super) fn assemble(folder: &Path, texts: &Texts) -> Result<Ledger, LoadError> {
    let missing = |name: Name| {
        let what = "this file is missing while the other ledger files are there; restore it from a backup".into();
        LoadError::Corrupt(located(&folder.join(name.text()), &Fault { line: 0, what }))
    };
    let of = |name: Name| texts.of(name).ok_or_else(|| missing(name));
    let (devices, workers, settings) = (of(Name::Devices)?, of(Name::Workers)?, of(Name::Settings)?);
    let versions = [(Name::Devices, devices), (Name::Workers, workers), (Name::Settings, settings)];
    let mut oldest = LEDGER_VERSION;
    let mut workers_version = LEDGER_VERSION;
    for (name, octets) in versions {
        let version = head(folder, name, octets)?.version;
        oldest = oldest.min(version);
        if name == Name::Workers {
            workers_version = version;
        }
    }
    // Version 1 had neither of the other two.
    let optional = |name: Name| match texts.of(name) {
        None if oldest < 2 => Ok(None),
        None => Err(missing(name)),
        Some(octets) => head(folder, name, octets).map(|_| Some(octets)),
    };
    let (masters, agents) = (optional(Name::Masters)?, optional(Name::Agents)?);
    let workers_file = if workers_version < 2 {
        parse::<WorkersFileV1>(folder, Name::Workers, workers)?.into()
    } else {
        parse::<WorkersFile>(folder, Name::Workers, workers)?
    };
    let files = view::Files {
        devices: parse::<DevicesFile>(folder, Name::Devices, devices)?,
        workers: workers_file,
        settings: parse::<SettingsFile>(folder, Name::Settings, settings)?,
        masters: match masters {
            Some(octets) => parse(folder, Name::Masters, octets)?,
            None => MastersFile { version: LEDGER_VERSION, generation: 0, masters: Vec::new() },
        },
        agents: match agents {
            Some(octets) => parse(folder, Name::Agents, octets)?,
            None => AgentsFile { version: LEDGER_VERSION, generation: 0, agents: Vec::new(), join_tokens: Vec::new() },
        },
    };
    Ledger::assemble(files).map_err(|wrong| {
        let octets = NAMES.iter().find(|n| n.text() == wrong.file).and_then(|n| texts.of(*n));
        let line = octets.map_or(0, |o| line_of_record(o, &wrong.record));
        LoadError::Corrupt(located(&folder.join(wrong.file), &Fault { line, what: wrong.what }))
    })
}

/// The last line that has `mac: RECORD`, `worker_id: RECORD` and the like: with two of them, the second is the one too many.
fn line_of_record(octets: &[u8], record: &str) -> u64 {
    let text = String::from_utf8_lossy(octets);
    let is_it = |line: &str| {
        let (key, value) = line.trim_start_matches([' ', '-']).split_once(':').unwrap_or_default();
        ["mac", "worker_id", "name", "id"].contains(&key) && value.trim().trim_matches(['"', '\'']).eq_ignore_ascii_case(record)
    };
    let lines = text.lines().enumerate().filter(|(_, line)| is_it(line));
    lines.last().map_or(0, |(at, _)| u64::try_from(at).unwrap_or(0).saturating_add(1))
}
