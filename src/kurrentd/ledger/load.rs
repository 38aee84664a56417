//! Reading ledgers: nothing here writes. See [`super::files`] for how they change.

use super::folder::{Each, Head, INTENT, MAX_NODES, NAMES, Name, Texts, octets, read_texts};
use super::journal::{self, JOURNAL, Line};
use super::replay;
use crate::yaml::{self, Fault, located};
use kurrent_core::ledger::migrate::WorkersFileV1;
use kurrent_core::ledger::records::{Contradiction, Files, Key, Records};
use kurrent_core::ledger::schema::{AgentsFile, BootSettings, DevicesFile, LEDGER_VERSION, MastersFile, SettingsFile, WorkersFile};
use kurrent_core::ledger::view::LAST_GENERATION;
use kurrent_core::ledger::{Ledger, Unread};
use serde::de::DeserializeOwned;
use std::io;
use std::path::{Path, PathBuf};

/// How often a folder is read again that a daemon changes under the reader's eyes.
const READ_AGAIN: usize = 8;
/// Why ledgers can not be served.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file does not read as a ledger, contradicts itself or another one, or is missing while others are there.
    #[error("{what}")]
    Corrupt {
        /// The name of the file at fault.
        file: &'static str,
        /// Where and what, and what to do.
        what: String,
    },
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

/// What a folder holds.
pub(super) struct Found {
    pub(super) ledger: Ledger,
    /// The files alone, without the journal.
    pub(super) filed: Records,
    pub(super) journal: journal::Read,
    /// Changes that are only in the journal.
    pub(super) waiting: u64,
    /// All files are to be written anew: an earlier version, or an unfinished first start.
    pub(super) rewrite: bool,
}

impl Found {
    /// Of a folder without ledgers.
    pub(super) fn nothing() -> Self {
        let (ledger, filed, journal) = (Ledger::default(), Records::default(), journal::Read::default());
        Self { ledger, filed, journal, waiting: 0, rewrite: true }
    }
}

/// Ledgers that were read without writing.
#[derive(Debug)]
pub struct Checked {
    /// As a start would serve it.
    pub ledger: Ledger,
    /// Changes that wait in the journal to be written into the files.
    pub waiting: u64,
}

/// The names of the ledger files, the journal among them.
#[must_use]
pub fn names() -> [&'static str; 6] {
    let [masters, agents, workers, devices, settings] = NAMES.map(Name::text);
    [masters, agents, workers, devices, settings, JOURNAL]
}

/// The ledger files of a snapshot, by name, with a journal in which nothing waits.
///
/// # Errors
/// A record can not be written as YAML, or a side ledger was not read.
pub fn texts(ledger: &Ledger) -> Result<Vec<(&'static str, String)>, String> {
    if let Some(why) = ledger.unread.whys().next() {
        // Missing records would pass for none.
        return Err(format!("{why}; repair it and restart kurrentd"));
    }
    let records = ledger.records();
    let files = NAMES.into_iter().map(|name| Ok((name.text(), super::checkpoint::encode(name, &records)?)));
    let journal = Line::head(ledger.generation, false).encode().map(|octets| String::from_utf8_lossy(&octets).into_owned());
    files.chain([journal.map(|text| (JOURNAL, text))]).collect()
}

/// Reads and checks the ledgers without writing anything; `None` when there are none yet.
///
/// # Errors
/// [`LoadError`].
pub fn check(folder: &Path) -> Result<Option<Ledger>, LoadError> {
    Ok(examine(folder)?.map(|checked| checked.ledger))
}

/// [`check`], and what waits in the journal.
///
/// # Errors
/// [`LoadError`].
pub fn examine(folder: &Path) -> Result<Option<Checked>, LoadError> {
    // A daemon may be at work: what was read counts when a second look sees the same.
    let mut texts = read_texts(folder)?;
    for _ in 0..READ_AGAIN {
        let again = read_texts(folder)?;
        if again == texts {
            break;
        }
        texts = again;
    }
    Ok(understand(folder, &texts)?.map(|found| Checked { ledger: found.ledger, waiting: found.waiting }))
}

/// The highest generation or epoch that stands anywhere in the ledger files and the journal, whether or not they read as a whole: for
/// whoever replaces them and must not give a number out again. Numbers that only a hand can have written do not count.
#[must_use]
pub fn highest_readable(folder: &Path) -> u64 {
    const BELIEVED: u64 = LAST_GENERATION / 2;
    let numbers = |octets: Vec<u8>| {
        let words = octets.split(|o| !(o.is_ascii_alphanumeric() || *o == b'_')).filter(|word| !word.is_empty());
        // `generation: 7` and `"generation":7` alike.
        let pairs = words.clone().zip(words.skip(1)).filter(|(key, _)| [b"generation".as_slice(), b"epoch"].contains(key));
        pairs.filter_map(|(_, value)| std::str::from_utf8(value).ok()?.parse().ok()).filter(|n| *n <= BELIEVED).max()
    };
    // What can not even be read tells nothing.
    let all = names().into_iter().chain([INTENT]).filter_map(|name| octets(&folder.join(name)).ok().flatten());
    all.filter_map(numbers).max().unwrap_or(0)
}

fn head(folder: &Path, name: Name, octets: &[u8]) -> Result<Head, LoadError> {
    let path = folder.join(name.text());
    let head = Head::of(octets).map_err(|f| corrupt(folder, name.text(), &f))?;
    if head.version > LEDGER_VERSION {
        return Err(LoadError::Newer { file: path.display().to_string(), version: head.version });
    }
    Ok(head)
}

fn parse<T: DeserializeOwned>(folder: &Path, name: Name, octets: &[u8]) -> Result<T, LoadError> {
    yaml::parse(octets, MAX_NODES).map_err(|f| corrupt(folder, name.text(), &f))
}

fn parse_workers(folder: &Path, octets: &[u8]) -> Result<WorkersFile, LoadError> {
    if head(folder, Name::Workers, octets)?.version < 2 {
        Ok(parse::<WorkersFileV1>(folder, Name::Workers, octets)?.into())
    } else {
        parse(folder, Name::Workers, octets)
    }
}

/// Parses the files that are there; the others are empty ones.
fn parse_files(folder: &Path, files: &Each<Option<Vec<u8>>>) -> Result<Files, LoadError> {
    fn of<T: DeserializeOwned>(folder: &Path, files: &Each<Option<Vec<u8>>>, name: Name) -> Option<Result<T, LoadError>> {
        name.of(files).as_ref().map(|octets| head(folder, name, octets).and_then(|_| parse(folder, name, octets)))
    }
    let (version, generation) = (LEDGER_VERSION, 0);
    // The two large ones beside each other.
    let (devices, workers) = std::thread::scope(|threads| {
        let devices = threads.spawn(|| of::<DevicesFile>(folder, files, Name::Devices));
        let workers = Name::Workers.of(files).as_ref().map(|octets| parse_workers(folder, octets));
        let failed = Fault { line: 0, what: "reading it failed; please report this".into() };
        let panicked = |_| Some(Err(corrupt(folder, Name::Devices.text(), &failed)));
        (devices.join().unwrap_or_else(panicked), workers)
    });
    Ok(Files {
        devices: devices.unwrap_or_else(|| Ok(DevicesFile { version, generation, devices: Vec::new() }))?,
        workers: workers.unwrap_or_else(|| Ok(WorkersFile { version, generation, workers: Vec::new() }))?,
        settings: of(folder, files, Name::Settings).unwrap_or_else(|| {
            let boot = BootSettings::default();
            Ok(SettingsFile { version, generation, registration_open_until: None, enforcement: None, boot })
        })?,
        masters: of(folder, files, Name::Masters).unwrap_or_else(|| Ok(MastersFile { version, generation, masters: Vec::new() }))?,
        agents: of(folder, files, Name::Agents)
            .unwrap_or_else(|| Ok(AgentsFile { version, generation, agents: Vec::new(), join_tokens: Vec::new() }))?,
    })
}

/// What the octets of a folder mean; `None` when there are no ledgers yet. A side ledger at fault is left out ([`Unread`]).
pub(super) fn understand(folder: &Path, texts: &Texts) -> Result<Option<Found>, LoadError> {
    let mut unread = Unread::default();
    loop {
        match understand_without(folder, texts, &unread) {
            Err(LoadError::Corrupt { file, what }) => {
                if !unread.leave_out(file, what.clone()) {
                    return Err(LoadError::Corrupt { file, what });
                }
            }
            // All files would be written anew, over what may be repaired.
            Ok(Some(Found { rewrite: true, .. })) if !unread.is_empty() => {
                let what = unread.whys().collect::<Vec<_>>().join("; ");
                return Err(LoadError::Corrupt { file: JOURNAL, what });
            }
            understood => return understood,
        }
    }
}

fn understand_without(folder: &Path, texts: &Texts, unread: &Unread) -> Result<Option<Found>, LoadError> {
    let mut files = &texts.files;
    let without;
    if !unread.is_empty() {
        let mut those = files.clone();
        for name in NAMES.into_iter().filter(|name| unread.has(name.text())) {
            *name.of_mut(&mut those) = None;
        }
        without = those;
        files = &without;
    }
    let journal_path = folder.join(JOURNAL);
    let journal = match texts.journal.as_deref().map(journal::read).transpose() {
        Ok(journal) => journal,
        Err(journal::ReadError::Damaged(fault)) => return Err(corrupt(folder, JOURNAL, &fault)),
        Err(journal::ReadError::Newer(version)) => return Err(LoadError::Newer { file: journal_path.display().to_string(), version }),
    };
    if journal.is_none() && files.iter().all(Option::is_none) {
        return Ok(None);
    }
    let begins = journal.as_ref().and_then(|j| j.lines.first()).is_some_and(|(_, l)| l.begins);
    let mut oldest = LEDGER_VERSION;
    for name in NAMES {
        if let Some(octets) = name.of(files) {
            oldest = oldest.min(head(folder, name, octets)?.version);
        }
    }
    let missing = |name: &'static str, what: &str| corrupt(folder, name, &Fault { line: 0, what: what.into() });
    for name in NAMES {
        // Version 1 had neither of the two.
        let needed = !(begins || oldest < 2 && matches!(name, Name::Masters | Name::Agents));
        if needed && !unread.has(name.text()) && name.of(files).is_none() {
            return Err(missing(name.text(), "this file is missing while the other ledger files are there; restore it from a backup"));
        }
    }
    let journal = match journal {
        Some(journal) => journal,
        None if oldest < 2 => journal::Read::default(),
        None => {
            let what = "this file is missing, and with it what was acknowledged last; restore it from a backup, or make an empty one to go \
                        on with what the other files hold";
            return Err(missing(JOURNAL, what));
        }
    };
    let parsed = parse_files(folder, files)?;
    let generations = Generations::of(&parsed);
    let mut records = Records::of(parsed).map_err(|wrong| contradicts(folder, files, &wrong))?;
    let filed = Records { generation: generations.settings, ..records.clone() };
    if oldest < 2 {
        if journal.lines.iter().any(|(_, l)| !l.records.is_empty()) {
            let what = "it holds changes, but the other files are of version 1; restore the whole folder from one backup";
            return Err(missing(JOURNAL, what));
        }
    } else {
        generations.fit(folder, &journal.lines)?;
        let replayed = replay::replay(&mut records, &journal.lines, |file| {
            // Lines of a file that was not read wait on.
            if unread.has(file) { u64::MAX } else { generations.filed(file) }
        });
        replayed.map_err(|conflict| {
            let replay::Conflict { key, line } = conflict;
            let journal = journal_path.display();
            let what = format!(
                "{key} was edited while a change of it waited in {journal}:{line}; make it again what it was before the edit, or what `put` \
                 in that line says, start kurrentd, and edit it then"
            );
            at_record(folder, files, key.file(), &key.text(), what)
        })?;
    }
    let waiting = records.generation.saturating_sub(generations.settings);
    let ledger = records.checked_without(unread.clone()).map_err(|wrong| contradicts(folder, files, &wrong))?;
    let rewrite = oldest < 2 || begins || texts.intent;
    let (waiting, journal) = if oldest < 2 { (0, journal::Read::default()) } else { (waiting, journal) };
    Ok(Some(Found { ledger, filed, waiting, journal, rewrite }))
}

/// What generation each file holds.
struct Generations {
    each: Each<u64>,
    settings: u64,
}

impl Generations {
    fn of(files: &Files) -> Self {
        let settings = files.settings.generation;
        let each = NAMES.map(|name| match name {
            Name::Masters => files.masters.generation,
            Name::Agents => files.agents.generation,
            Name::Workers => files.workers.generation,
            Name::Devices => files.devices.generation,
            Name::Settings => settings,
        });
        Self { each, settings }
    }

    /// A file that did not change is not written again; the settings, written last, tell that all were up to date.
    fn filed(&self, file: &str) -> u64 {
        let own = NAMES.into_iter().find(|n| n.text() == file).map_or(0, |n| *n.of(&self.each));
        own.max(self.settings)
    }

    /// Files and journal are of one time.
    fn fit(&self, folder: &Path, lines: &[(u64, Line)]) -> Result<(), LoadError> {
        let (Some((_, first)), Some((_, last))) = (lines.first(), lines.last()) else { return Ok(()) };
        let one_backup = "restore all of them from one backup; or empty journal.jsonl to go on with what the files hold";
        let wrong = |name: Name, what: String| Err(corrupt(folder, name.text(), &Fault { line: 0, what }));
        if first.from > self.settings {
            let (from, settings) = (first.from, self.settings);
            return wrong(Name::Settings, format!("the files hold generation {settings}, journal.jsonl goes on from {from}: {one_backup}"));
        }
        let ahead = NAMES.into_iter().find(|n| *n.of(&self.each) > last.generation);
        ahead.map_or(Ok(()), |name| {
            let (file, journal) = (name.of(&self.each), last.generation);
            wrong(name, format!("this file has generation {file}, journal.jsonl ends at {journal}: {one_backup}"))
        })
    }
}

/// What the files hold after an edit of those that `changed`; the others hold `filed`.
pub(super) fn edited(folder: &Path, filed: &Records, changed: Each<bool>) -> Result<(Records, Texts), LoadError> {
    let mut texts = read_texts(folder)?;
    for name in NAMES {
        if *name.of(&changed) && name.of(&texts.files).is_none() {
            let what = "this file is gone; kurrentd writes it anew when it stays away".into();
            return Err(corrupt(folder, name.text(), &Fault { line: 0, what }));
        }
        if !*name.of(&changed) {
            *name.of_mut(&mut texts.files) = None;
        }
    }
    let read = Records::of(parse_files(folder, &texts.files)?).map_err(|wrong| contradicts(folder, &texts.files, &wrong))?;
    let mut records = filed.clone();
    records.generation = records.generation.max(read.generation);
    for name in NAMES.into_iter().filter(|n| *n.of(&changed)) {
        match name {
            Name::Masters => records.masters = read.masters.clone(),
            Name::Agents => (records.agents, records.join_tokens) = (read.agents.clone(), read.join_tokens.clone()),
            Name::Workers => records.workers = read.workers.clone(),
            Name::Devices => records.devices = read.devices.clone(),
            Name::Settings => records.settings = read.settings.clone(),
        }
    }
    Ok((records, texts))
}

/// Why an edit can not be taken up.
pub(super) fn conflicts(folder: &Path, texts: &Texts, key: &Key) -> LoadError {
    let what = format!(
        "{key} was edited here, and changed in the ledger meanwhile; take the edit of this record back, let kurrentd write the file, and \
         edit it then"
    );
    at_record(folder, &texts.files, key.file(), &key.text(), what)
}

pub(super) fn contradicts_edit(folder: &Path, texts: &Texts, wrong: &Contradiction) -> LoadError {
    contradicts(folder, &texts.files, wrong)
}

fn contradicts(folder: &Path, files: &Each<Option<Vec<u8>>>, wrong: &Contradiction) -> LoadError {
    at_record(folder, files, wrong.file, &wrong.record, wrong.what.clone())
}

fn at_record(folder: &Path, files: &Each<Option<Vec<u8>>>, file: &'static str, record: &str, what: String) -> LoadError {
    let octets = NAMES.into_iter().find(|n| n.text() == file).and_then(|n| n.of(files).as_ref());
    let line = octets.map_or(0, |o| line_of_record(o, record));
    corrupt(folder, file, &Fault { line, what })
}

pub(super) fn corrupt(folder: &Path, file: &'static str, fault: &Fault) -> LoadError {
    LoadError::Corrupt { file, what: located(&folder.join(file), fault) }
}

/// The last line that has `mac: RECORD`, `worker_id: RECORD`, `generation: RECORD` and the like: with two of them, the second is the one too many.
fn line_of_record(octets: &[u8], record: &str) -> u64 {
    let text = String::from_utf8_lossy(octets);
    let is_it = |line: &str| {
        let (key, value) = line.trim_start_matches([' ', '-']).split_once(':').unwrap_or_default();
        ["mac", "worker_id", "name", "id", "generation"].contains(&key)
            && value.trim().trim_matches(['"', '\'']).eq_ignore_ascii_case(record)
    };
    let lines = text.lines().enumerate().filter(|(_, line)| is_it(line));
    lines.last().map_or(0, |(at, _)| u64::try_from(at).unwrap_or(0).saturating_add(1))
}
