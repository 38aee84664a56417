//! The ledger files (`devices.yml`, `workers.yml`, …) on disk: loaded whole, changed all or nothing.
//!
//! One changed file: it is replaced (`sys::store`); the rename is the commit. Several changed files: the new texts go into
//! `intent.json` first, whose rename is the commit; then each file is replaced and the intent removed. At start a leftover
//! intent is carried out for every file whose generation is older. Cut anywhere, the next start has the change whole or not
//! at all:
//!
//! ```text
//!   nothing | intent.json renamed = COMMIT | devices.yml | workers.yml | intent.json removed
//!   old     | new (carried out at start)   | new         | new         | new
//! ```
//!
//! Three different starts: all files *missing* begins empty (and writes them, through an intent); *corrupt* or some missing
//! is refused with file and line; *newer than me* is refused. Refused means: nothing is written.

use super::load::{INTENT, Intent, IntentFile, LoadError, NAMES, Name, assemble, check, current, read_texts};
use kurrent_core::ledger::Ledger;
use kurrent_core::ledger::schema::LEDGER_VERSION;
use kurrent_sys::store::{self, ReplaceError};
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MODE: u32 = 0o600;
/// An edit by hand that has not moved for so long is read.
const EDIT_RESTS: Duration = Duration::from_secs(1);

/// Why a commit is not known to be done.
#[derive(Clone, Debug)]
pub enum CommitError {
    /// Nothing changed on the disk.
    NotDone(String),
    /// The disk may hold it or not; only a restart can tell.
    InDoubt(String),
}

/// Identity of a file's content as we left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp(u64, i64, i64, u64);

/// The files of one state folder, and what they hold.
pub struct Files {
    folder: PathBuf,
    durable: Ledger,
    stamps: [Option<Stamp>; 5],
    /// Held until the end: two daemons on one folder would take each other's writes for edits by hand.
    _lock: File,
    /// Committed in `intent.json`, not yet in every file.
    unfinished: Option<Vec<(Name, String)>>,
    /// An edit by hand as last seen, and since when it has not moved.
    edit: Option<([Option<Stamp>; 5], Instant)>,
    cut: Cut,
}

/// Where tests make the disk fail: called before every step of a commit with its name.
type Cut = Option<Box<dyn FnMut(&str) -> io::Result<()> + Send>>;

impl Files {
    /// Loads the ledgers, carries out a leftover intent, begins empty ones when there are none.
    ///
    /// # Errors
    /// [`LoadError`]; nothing was written.
    pub fn open(folder: &Path) -> Result<(Self, Ledger), LoadError> {
        let failed = |cause| LoadError::Io { path: folder.to_owned(), cause };
        store::private_folder(folder).map_err(failed)?;
        let lock = lock(folder)?;
        let texts = read_texts(folder)?;
        let first_start = texts.files.iter().all(Option::is_none);
        let ledger = if first_start { Ledger::default() } else { assemble(folder, &texts)? };
        // All checks are behind us: only now may the folder be touched.
        store::sweep(folder).map_err(failed)?;
        let mut files = Self {
            folder: folder.to_owned(),
            durable: ledger.clone(),
            stamps: [None; 5],
            _lock: lock,
            unfinished: None,
            edit: None,
            cut: None,
        };
        if texts.intent || first_start {
            let text = |name| if first_start { encode(name, &ledger) } else { current(name, &texts) };
            let all = NAMES
                .into_iter()
                .map(|n| Ok((n, text(n)?)))
                .collect::<Result<Vec<_>, String>>()
                .map_err(|e| failed(io::Error::other(e)))?;
            let started = if first_start { files.write_intent(ledger.generation, &all) } else { Ok(()) };
            let done = started.and_then(|()| {
                files.unfinished = Some(all);
                files.finish().map_err(CommitError::NotDone)
            });
            if let Err(CommitError::NotDone(what) | CommitError::InDoubt(what)) = done {
                return Err(failed(io::Error::other(what)));
            }
        }
        files.stamps = NAMES.map(|n| files.stamp(n));
        Ok((files, ledger))
    }

    /// Makes `ledger` what the files hold.
    ///
    /// # Errors
    /// [`CommitError`] says whether the old state stands.
    pub fn commit(&mut self, ledger: &Ledger) -> Result<(), CommitError> {
        self.finish().map_err(CommitError::NotDone)?;
        let changed: Vec<Name> = NAMES.into_iter().filter(|n| differs(*n, &self.durable, ledger)).collect();
        let texts = changed.iter().map(|n| Ok((*n, encode(*n, ledger)?))).collect::<Result<Vec<_>, String>>();
        let texts = texts.map_err(CommitError::NotDone)?;
        match texts.as_slice() {
            [] => return Ok(()),
            [(name, text)] => self.replace(name.text(), text).map_err(|e| match e {
                ReplaceError::Unchanged { .. } => CommitError::NotDone(e.to_string()),
                ReplaceError::InDoubt { .. } => CommitError::InDoubt(e.to_string()),
            })?,
            _ => {
                self.write_intent(ledger.generation, &texts)?;
                self.unfinished = Some(texts);
            }
        }
        self.durable = ledger.clone();
        // Committed: a failure from here on is repaired before the next commit or at the next start.
        if let Err(what) = self.finish() {
            tracing::warn!("a committed ledger change waits in {INTENT}: {what}");
        }
        for (at, name) in NAMES.into_iter().enumerate() {
            if changed.contains(&name) {
                let stamp = self.stamp(name);
                if let Some(slot) = self.stamps.get_mut(at) {
                    *slot = stamp;
                }
            }
        }
        Ok(())
    }

    /// Whether somebody else changed a file since we last wrote or read it.
    #[must_use]
    pub fn changed_by_hand(&self) -> bool {
        self.unfinished.is_none() && NAMES.map(|n| self.stamp(n)) != self.stamps
    }

    /// Whether an edit by hand has come to rest: an editor that writes piece by piece must not be read half-way, where a file may
    /// read well and hold half of its records.
    pub fn edit_is_complete(&mut self) -> bool {
        let stamps = NAMES.map(|n| self.stamp(n));
        match self.edit {
            Some((seen, since)) if seen == stamps => since.elapsed() >= EDIT_RESTS,
            _ => {
                self.edit = Some((stamps, Instant::now()));
                false
            }
        }
    }

    /// The edit that was read could not be taken up: it still counts as one.
    pub fn edit_was_not_taken(&mut self) {
        self.stamps = [None; 5];
    }

    /// Reads files that somebody changed; they are what the next commit is compared with.
    ///
    /// # Errors
    /// [`LoadError`]: the edit is refused.
    pub fn reload(&mut self) -> Result<Ledger, LoadError> {
        let stamps = NAMES.map(|n| self.stamp(n));
        let ledger = check(&self.folder)?
            .ok_or_else(|| LoadError::Corrupt(format!("{}: all ledger files are gone; restore them", self.folder.display())))?;
        self.stamps = stamps;
        self.durable = ledger.clone();
        Ok(ledger)
    }

    fn stamp(&self, name: Name) -> Option<Stamp> {
        let meta = self.folder.join(name.text()).metadata().ok()?;
        Some(Stamp(meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.size()))
    }

    fn write_intent(&mut self, generation: u64, texts: &[(Name, String)]) -> Result<(), CommitError> {
        let files = texts.iter().map(|(n, t)| IntentFile { name: n.text().into(), text: t.clone() }).collect();
        let json = serde_json::to_string(&Intent { version: LEDGER_VERSION, generation, files })
            .map_err(|e| CommitError::NotDone(e.to_string()))?;
        self.replace(INTENT, &json).map_err(|e| match e {
            ReplaceError::Unchanged { .. } => CommitError::NotDone(e.to_string()),
            ReplaceError::InDoubt { .. } => CommitError::InDoubt(e.to_string()),
        })
    }

    /// Carries out what is committed in the intent.
    fn finish(&mut self) -> Result<(), String> {
        let Some(texts) = self.unfinished.take() else { return Ok(()) };
        let mut done = || -> Result<(), String> {
            for (name, text) in &texts {
                self.replace(name.text(), text).map_err(|e| e.to_string())?;
            }
            self.step("remove intent")
                .and_then(|()| store::remove(&self.folder.join(INTENT)))
                .map_err(|e| format!("removing {INTENT}: {e}"))
        };
        let done = done();
        if done.is_err() {
            self.unfinished = Some(texts);
        }
        done
    }

    fn step(&mut self, name: &str) -> io::Result<()> {
        self.cut.as_mut().map_or(Ok(()), |cut| cut(name))
    }

    fn replace(&mut self, name: &str, text: &str) -> Result<(), ReplaceError> {
        let path = self.folder.join(name);
        let cut = &mut self.cut;
        store::replace_stepwise(&path, text.as_bytes(), MODE, &mut |step| {
            cut.as_mut().map_or(Ok(()), |cut| cut(&format!("{name} {step:?}")))
        })
    }

    #[cfg(test)]
    pub(crate) fn cut_with(&mut self, cut: impl FnMut(&str) -> io::Result<()> + Send + 'static) {
        self.cut = Some(Box::new(cut));
    }
}

fn lock(folder: &Path) -> Result<File, LoadError> {
    let path = folder.join("lock");
    let failed = |cause| LoadError::Io { path: path.clone(), cause };
    let file = File::options().write(true).create(true).truncate(false).mode(MODE).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(LoadError::InUse(folder.to_owned())),
        Err(TryLockError::Error(cause)) => Err(failed(cause)),
    }
}

fn differs(name: Name, old: &Ledger, new: &Ledger) -> bool {
    match name {
        Name::Devices => !old.devices.ptr_eq(&new.devices) && old.devices != new.devices,
        Name::Workers => !old.workers.ptr_eq(&new.workers) && old.workers != new.workers,
        Name::Settings => old.settings != new.settings,
        Name::Masters => old.masters != new.masters,
        Name::Agents => old.agents != new.agents || old.join_tokens != new.join_tokens,
    }
}

pub(super) fn encode(name: Name, ledger: &Ledger) -> Result<String, String> {
    let (what, text) = match name {
        Name::Devices => {
            ("Devices: which machines there are, and which Worker each one boots as.", serde_saphyr::to_string(&ledger.devices_file()))
        }
        Name::Workers => ("Workers: which identities there are, and their system disks.", serde_saphyr::to_string(&ledger.workers_file())),
        Name::Settings => ("Settings that change at run time.", serde_saphyr::to_string(&ledger.settings_file())),
        Name::Masters => ("Masters: what people say the master images hold.", serde_saphyr::to_string(&ledger.masters_file())),
        Name::Agents => {
            ("Agents: storage nodes, and tokens by which further ones may join.", serde_saphyr::to_string(&ledger.agents_file()))
        }
    };
    let text = text.map_err(|e| format!("encoding {}: {e}", name.text()))?;
    Ok(format!(
        "# Kurrent ledger. {what}\n# Written by kurrentd. Edit with care: `kurrentd state check` tells whether it still reads.\n{text}"
    ))
}
