//! Writing the ledger files from a snapshot, beside the commits that go on meanwhile. Each file is replaced whole
//! (`sys::store`); cut between two of them, the journal has what the older ones lack.

use super::folder::{Each, MAX_OCTETS, NAMES, Name};
use kurrent_core::ledger::records::Records;
use kurrent_sys::store::{self, ReplaceError, Step};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const MODE: u32 = 0o600;

/// Identity of a file's content as we left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp(u64, i64, i64, u64);

pub(super) fn stamp(folder: &Path, name: Name) -> Option<Stamp> {
    stamp_of(&folder.join(name.text()))
}

fn stamp_of(path: &Path) -> Option<Stamp> {
    let meta = path.metadata().ok()?;
    Some(Stamp(meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.size()))
}

pub(super) fn stamps(folder: &Path) -> Each<Option<Stamp>> {
    NAMES.map(|name| stamp(folder, name))
}

/// Where tests make the disk fail: called at every step with its name.
#[derive(Clone, Default)]
pub(super) struct Cut(Option<Arc<Mutex<Hook>>>);

type Hook = dyn FnMut(&str) -> io::Result<()> + Send;

impl Cut {
    #[cfg(test)]
    pub(super) fn with(hook: impl FnMut(&str) -> io::Result<()> + Send + 'static) -> Self {
        Self(Some(Arc::new(Mutex::new(hook))))
    }

    pub(super) fn step(&self, name: &str) -> io::Result<()> {
        match &self.0 {
            Some(hook) => hook.lock().unwrap_or_else(PoisonError::into_inner)(name),
            None => Ok(()),
        }
    }
}

/// One checkpoint to be made; blocks.
pub struct Job {
    pub(super) folder: PathBuf,
    /// What the files hold.
    pub(super) filed: Records,
    /// What they shall hold.
    pub(super) to: Records,
    /// Write all of them, whatever they hold.
    pub(super) all: bool,
    pub(super) stamps: Each<Option<Stamp>>,
    /// Where the journal ended when `to` was the ledger.
    pub(super) journal_end: u64,
    pub(super) cut: Cut,
}

/// Why a checkpoint was not finished.
pub(super) enum Failed {
    /// Somebody edits this file.
    Edited,
    /// The disk refused.
    Disk(String),
}

/// A checkpoint as far as it came.
pub struct Done {
    pub(super) filed: Records,
    pub(super) stamps: Each<Option<Stamp>>,
    pub(super) journal_end: u64,
    pub(super) result: Result<(), Failed>,
    pub(super) took: Duration,
}

impl Job {
    /// Writes the files that differ.
    #[must_use]
    pub fn run(mut self) -> Done {
        let begun = Instant::now();
        let result = NAMES.into_iter().try_for_each(|name| self.file(name));
        let Self { filed, stamps, journal_end, .. } = self;
        Done { filed, stamps, journal_end, result, took: begun.elapsed() }
    }

    fn file(&mut self, name: Name) -> Result<(), Failed> {
        if !self.all && !self.differs(name) {
            return Ok(());
        }
        let text = encode(name, &self.to).map_err(Failed::Disk)?;
        let octets = u64::try_from(text.len()).unwrap_or(u64::MAX);
        if octets > MAX_OCTETS {
            // The old file and the journal still read; this one would not.
            let what = format!("{} would have {octets} octets, and no more than {MAX_OCTETS} are read: delete records", name.text());
            return Err(Failed::Disk(what));
        }
        let (folder, known, cut) = (&self.folder, *name.of(&self.stamps), &self.cut);
        let path = folder.join(name.text());
        let (mut edited, mut ours) = (false, None);
        let replaced = store::replace_stepwise(&path, text.as_bytes(), MODE, &mut |step| {
            if step == Step::Synced {
                // Of our own file, before it has the name: whoever edits it as soon as it appears must not be taken for us.
                ours = stamp_of(&store::temporary(&path)?);
                // The last moment before the new file takes the place of the old one.
                if stamp(folder, name) != known {
                    edited = true;
                    return Err(io::Error::other("somebody edits this file"));
                }
            }
            cut.step(&format!("{} {step:?}", name.text()))
        });
        match replaced {
            Ok(()) => {}
            Err(ReplaceError::Unchanged { .. }) if edited => return Err(Failed::Edited),
            // In doubt is as good as not done: until the folder is synced, the journal has what the file may lack.
            Err(error @ ReplaceError::Unchanged { .. }) => return Err(Failed::Disk(error.to_string())),
            Err(error @ ReplaceError::InDoubt { .. }) => {
                *name.of_mut(&mut self.stamps) = ours;
                return Err(Failed::Disk(error.to_string()));
            }
        }
        *name.of_mut(&mut self.stamps) = ours;
        let (filed, to) = (&mut self.filed, &self.to);
        match name {
            Name::Masters => filed.masters = to.masters.clone(),
            Name::Agents => (filed.agents, filed.join_tokens) = (to.agents.clone(), to.join_tokens.clone()),
            Name::Workers => filed.workers = to.workers.clone(),
            Name::Devices => filed.devices = to.devices.clone(),
            Name::Settings => (filed.settings, filed.generation) = (to.settings.clone(), to.generation),
        }
        Ok(())
    }

    fn differs(&self, name: Name) -> bool {
        let (old, new) = (&self.filed, &self.to);
        match name {
            Name::Devices => !old.devices.ptr_eq(&new.devices) && old.devices != new.devices,
            Name::Workers => !old.workers.ptr_eq(&new.workers) && old.workers != new.workers,
            Name::Masters => old.masters != new.masters,
            Name::Agents => old.agents != new.agents || old.join_tokens != new.join_tokens,
            // It says what generation all files hold.
            Name::Settings => old.settings != new.settings || old.generation != new.generation,
        }
    }
}

/// A ledger file's text.
pub(super) fn encode(name: Name, records: &Records) -> Result<String, String> {
    let (what, text) = match name {
        Name::Devices => {
            ("Devices: which machines there are, and which Worker each one boots as.", serde_saphyr::to_string(&records.devices_file()))
        }
        Name::Workers => ("Workers: which identities there are, and their system disks.", serde_saphyr::to_string(&records.workers_file())),
        Name::Settings => ("Settings that change at run time.", serde_saphyr::to_string(&records.settings_file())),
        Name::Masters => ("Masters: what people say the master images hold.", serde_saphyr::to_string(&records.masters_file())),
        Name::Agents => {
            ("Agents: storage nodes, and tokens by which further ones may join.", serde_saphyr::to_string(&records.agents_file()))
        }
    };
    let text = text.map_err(|e| format!("encoding {}: {e}", name.text()))?;
    Ok(format!(
        "# Kurrent ledger. {what}\n# Written by kurrentd. Edit with care: `kurrentd state check` tells whether it still reads.\n{text}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::tests::{applied, mac, register, worker};
    use kurrent_core::ledger::{Change, Ledger};

    /// What may be taken rests on what records weigh: never less than they are.
    #[test]
    fn no_record_is_larger_in_its_file_than_it_weighs() {
        let chars =
            ["x", "\u{1F600}", "\u{2028}", "\u{A0}", "\u{E000}", "\u{FEFF}", "\n", "'", "\"", "\\", "\t", ": #", "\n\t", "ä", " \n"];
        for text in chars.map(|c| c.repeat(1024 / c.chars().count())) {
            let label = text.replace(['\n', '\t'], "").chars().take(253).collect::<String>();
            let labels = (0..64).map(|n| (format!("k{n}"), label.clone())).collect();
            let changes = [
                register(1),
                Change::Label { mac: mac(1), labels },
                Change::EditDevice { mac: mac(1), note: Some(text.clone()), keyless_allowed: Some(true), loader: None, address: None },
                Change::CreateWorker { worker: worker("w1") },
                Change::SetWorkerError { worker: worker("w1"), error: text.clone() },
            ];
            let ledger: Ledger = applied(&Ledger::default(), changes);
            let octets = |name| u64::try_from(encode(name, &ledger.records()).unwrap().len()).unwrap();
            let head = |name| u64::try_from(encode(name, &Records::default()).unwrap().len()).unwrap();
            for (name, weight) in [(Name::Devices, ledger.weights.devices), (Name::Workers, ledger.weights.workers)] {
                let is = octets(name) - head(name);
                assert!(is <= weight, "{text:.4?} {is} {weight}");
            }
        }
    }
}
