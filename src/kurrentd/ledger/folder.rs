//! A state folder as octets: the files by name, the journal, and what version 1 left unfinished.

use super::journal::JOURNAL;
use super::load::LoadError;
use crate::yaml::{self, Fault};
use kurrent_core::ledger::schema::LEDGER_VERSION;
use kurrent_sys::store;
use serde::Deserialize;
use std::io;
use std::path::Path;

/// 20,000 devices are about 20 MiB, with long notes and labels some hundred; more is not ours.
pub(super) const MAX_OCTETS: u64 = 512 * 1024 * 1024;
// What the ledger takes is what the reader reads, with room for heads, comments and what people write into files.
const _: () = assert!(kurrent_core::ledger::MAX_WEIGHT <= MAX_OCTETS / 4 * 3);
/// A record has at most one node for each 30 of the octets that it weighs.
pub(super) const MAX_NODES: usize = 8_000_000;
/// What version 1 left when it was cut in the middle of a change.
pub(super) const INTENT: &str = "intent.json";

/// The ledger files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Masters,
    Agents,
    Workers,
    Devices,
    Settings,
}

/// In the order in which they are written: the settings, which say what generation all files hold at least, come last.
pub(super) const NAMES: [Name; 5] = [Name::Masters, Name::Agents, Name::Workers, Name::Devices, Name::Settings];

/// One thing for each of [`NAMES`].
pub(super) type Each<T> = [T; 5];

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

    pub(super) fn of<T>(self, each: &Each<T>) -> &T {
        let [masters, agents, workers, devices, settings] = each;
        match self {
            Self::Masters => masters,
            Self::Agents => agents,
            Self::Workers => workers,
            Self::Devices => devices,
            Self::Settings => settings,
        }
    }

    pub(super) fn of_mut<T>(self, each: &mut Each<T>) -> &mut T {
        let [masters, agents, workers, devices, settings] = each;
        match self {
            Self::Masters => masters,
            Self::Agents => agents,
            Self::Workers => workers,
            Self::Devices => devices,
            Self::Settings => settings,
        }
    }
}

/// `intent.json` of version 1: a change of several files, committed when this file had its name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Intent {
    version: u32,
    generation: u64,
    files: Vec<IntentFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IntentFile {
    name: String,
    text: String,
}

/// What a folder holds, as octets.
#[derive(PartialEq, Eq)]
pub(super) struct Texts {
    /// `None` is missing.
    pub(super) files: Each<Option<Vec<u8>>>,
    pub(super) journal: Option<Vec<u8>>,
    /// Carried out on the files already.
    pub(super) intent: bool,
}

/// A whole file; `None` when it is missing.
pub(super) fn octets(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match path.metadata() {
        // Opening a pipe would wait for ever.
        Ok(meta) if !meta.is_file() => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")),
        _ => store::read(path, MAX_OCTETS),
    }
}

pub(super) fn read_texts(folder: &Path) -> Result<Texts, LoadError> {
    let read = |name: &str| {
        let path = folder.join(name);
        octets(&path).map_err(|cause| LoadError::Io { path, cause })
    };
    let journal = read(JOURNAL)?;
    let mut files: Each<Option<Vec<u8>>> = Default::default();
    for (slot, name) in files.iter_mut().zip(NAMES) {
        *slot = read(name.text())?;
    }
    let Some(octets) = read(INTENT)? else { return Ok(Texts { files, journal, intent: false }) };
    let corrupt = |e: String| {
        let what = format!("{e}; it holds a change that was not finished: restore the folder from a backup");
        super::load::corrupt(folder, INTENT, &Fault { line: 0, what })
    };
    let intent: Intent = serde_json::from_slice(&octets).map_err(|e| corrupt(e.to_string()))?;
    if intent.version > LEDGER_VERSION {
        return Err(LoadError::Newer { file: folder.join(INTENT).display().to_string(), version: intent.version });
    }
    for IntentFile { name, text } in intent.files {
        let known = NAMES.into_iter().find(|n| n.text() == name);
        let slot = known.ok_or_else(|| corrupt(format!("it names {name:?}, which is no ledger")))?.of_mut(&mut files);
        // A file that already holds the change, or was edited after it, stands.
        if slot.as_ref().and_then(|o| Head::of(o).ok()).is_none_or(|h| h.generation < intent.generation) {
            *slot = Some(text.into_bytes());
        }
    }
    Ok(Texts { files, journal, intent: true })
}

/// The part of every file that all versions share.
#[derive(Deserialize)]
pub(super) struct Head {
    pub(super) version: u32,
    pub(super) generation: u64,
}

impl Head {
    pub(super) fn of(octets: &[u8]) -> Result<Self, Fault> {
        // As we write it: two lines at the left edge. Reading all the records for these two numbers would double a start's time.
        let number = |key: &[u8]| {
            let mut lines = octets.split(|o| *o == b'\n').take(8);
            let value = lines.find_map(|line| line.strip_prefix(key)).and_then(|v| std::str::from_utf8(v).ok())?;
            value.trim().parse::<u64>().ok()
        };
        match (number(b"version:").and_then(|v| u32::try_from(v).ok()), number(b"generation:")) {
            (Some(version), Some(generation)) => Ok(Self { version, generation }),
            _ => yaml::parse(octets, MAX_NODES),
        }
    }
}
