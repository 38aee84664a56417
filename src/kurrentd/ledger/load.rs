//! Reading ledgers: nothing here writes. See [`super::files`] for how the files change.

use crate::yaml::{self, Fault, located};
use kurrent_core::ledger::Ledger;
use kurrent_core::ledger::schema::{DevicesFile, LEDGER_VERSION, SettingsFile, WorkersFile};
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
}

pub(super) const NAMES: [Name; 3] = [Name::Devices, Name::Workers, Name::Settings];

impl Name {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Devices => "devices.yml",
            Self::Workers => "workers.yml",
            Self::Settings => "settings.yml",
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
    pub(super) files: [Option<Vec<u8>>; 3],
    pub(super) intent: bool,
}

/// Reads and checks the ledgers without writing anything; `None` when there are none yet.
///
/// # Errors
/// [`LoadError`].
pub fn check(folder: &Path) -> Result<Option<Ledger>, LoadError> {
    let texts = read_texts(folder)?;
    if texts.files.iter().all(Option::is_none) { Ok(None) } else { assemble(folder, &texts).map(Some) }
}

pub(super) fn current(name: Name, texts: &Texts) -> Result<String, String> {
    let [devices, workers, settings] = &texts.files;
    let octets = match name {
        Name::Devices => devices,
        Name::Workers => workers,
        Name::Settings => settings,
    };
    String::from_utf8(octets.clone().unwrap_or_default()).map_err(|e| e.to_string())
}

pub(super) fn read_texts(folder: &Path) -> Result<Texts, LoadError> {
    let read = |name: &str| {
        let path = folder.join(name);
        store::read(&path, MAX_OCTETS).map_err(|cause| LoadError::Io { path, cause })
    };
    let mut files = [read(Name::Devices.text())?, read(Name::Workers.text())?, read(Name::Settings.text())?];
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

fn parse<T: DeserializeOwned>(folder: &Path, name: Name, octets: Option<&Vec<u8>>) -> Result<T, LoadError> {
    let path = folder.join(name.text());
    let Some(octets) = octets else {
        let what = "this file is missing while the other ledger files are there; restore it from a backup".into();
        return Err(LoadError::Corrupt(located(&path, &Fault { line: 0, what })));
    };
    let head: Head = yaml::parse(octets, MAX_NODES).map_err(|f| LoadError::Corrupt(located(&path, &f)))?;
    if head.version > LEDGER_VERSION {
        return Err(LoadError::Newer { file: path.display().to_string(), version: head.version });
    }
    yaml::parse(octets, MAX_NODES).map_err(|f| LoadError::Corrupt(located(&path, &f)))
}

pub(super) fn assemble(folder: &Path, texts: &Texts) -> Result<Ledger, LoadError> {
    let [devices, workers, settings] = &texts.files;
    let devices_file: DevicesFile = parse(folder, Name::Devices, devices.as_ref())?;
    let workers_file: WorkersFile = parse(folder, Name::Workers, workers.as_ref())?;
    let settings_file: SettingsFile = parse(folder, Name::Settings, settings.as_ref())?;
    Ledger::assemble(devices_file, workers_file, settings_file).map_err(|wrong| {
        let octets = if wrong.file == Name::Devices.text() { devices } else { workers };
        let line = octets.as_ref().map_or(0, |o| line_of_record(o, &wrong.record));
        LoadError::Corrupt(located(&folder.join(wrong.file), &Fault { line, what: wrong.what }))
    })
}

/// The last line that has `mac: RECORD` or `worker_id: RECORD`: with two of them, the second is the one too many.
fn line_of_record(octets: &[u8], record: &str) -> u64 {
    let text = String::from_utf8_lossy(octets);
    let is_it = |line: &str| {
        let (key, value) = line.trim_start_matches([' ', '-']).split_once(':').unwrap_or_default();
        (key == "mac" || key == "worker_id") && value.trim().trim_matches(['"', '\'']).eq_ignore_ascii_case(record)
    };
    let lines = text.lines().enumerate().filter(|(_, line)| is_it(line));
    lines.last().map_or(0, |(at, _)| u64::try_from(at).unwrap_or(0).saturating_add(1))
}
