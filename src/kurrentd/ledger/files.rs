//! The ledgers on disk: a journal line makes a change durable, the ledger files follow soon after.
//!
//! This is the boundary that another backend would take the place of: [`Files::open`] loads, [`Files::commit`] makes one ledger
//! out of another durable, [`Files::look`] finds what was edited behind our back, and [`Files::job`] is work to be done beside
//! commits. ARCHITECTURE.md section 7 has every crash point.
//!
//! ```text
//!   commit       line written | line synced = COMMIT
//!   checkpoint   masters.yml | agents.yml | workers.yml | devices.yml | settings.yml | journal.jsonl replaced by a shorter one
//! ```
//!
//! Three different starts: all files *missing* begins empty; *corrupt* or some missing is refused with file and line; *newer
//! than me* is refused. Refused means: nothing is written.

use super::checkpoint::{Cut, Done, Failed, Job, Stamp, stamps};
use super::folder::{Each, INTENT, MAX_OCTETS, NAMES, Name, read_texts};
use super::journal::{JOURNAL, Journal, Line};
use super::load::{self, Found, LoadError, understand};
use kurrent_core::ledger::Ledger;
use kurrent_core::ledger::merge::{Conflict, merge};
use kurrent_core::ledger::records::{Contradiction, Records};
use kurrent_core::ledger::view::LAST_GENERATION;
use kurrent_sys::store;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MODE: u32 = 0o600;
/// An edit by hand that has not moved for so long is read.
const EDIT_RESTS: Duration = Duration::from_secs(1);
/// Without changes for so long, the files are brought up to date.
const QUIET: Duration = Duration::from_secs(1);
/// So much of the time at most goes into checkpoints: a ledger of 10,000 devices is not written anew every second.
const SHARE_OF_TIME: u32 = 20;
/// The files are never longer behind, if they can be written; also what devices only say of themselves is written by then.
const BEHIND: Duration = Duration::from_secs(60);
/// A journal of this size is shortened, quiet or not.
const LONG_JOURNAL: u64 = 4 * 1024 * 1024;
/// A journal that could not be shortened takes no more than this: the next start has to read it.
const LONGEST_JOURNAL: u64 = 64 * 1024 * 1024;
/// Files that can not be written are tried again after this.
const RETRY: Duration = Duration::from_secs(5);

/// Why a commit is not known to be done.
#[derive(Clone, Debug)]
pub enum CommitError {
    /// Nothing changed on the disk.
    NotDone(String),
    /// The disk may hold it or not; only a restart can tell.
    InDoubt(String),
}

/// What somebody else did to the files.
pub enum Look {
    /// Nothing.
    Same,
    /// They are being written: half an edit must not be read, it may read well and hold half of the records.
    BeingEdited,
    /// An edit, to be committed.
    Edited(Box<Edit>),
    /// An edit that can not be taken.
    Refused(String),
}

/// An edit by hand, put onto the ledger.
pub struct Edit {
    /// The ledger with it.
    pub ledger: Ledger,
    /// What the files hold.
    theirs: Records,
    stamps: Each<Option<Stamp>>,
}

/// The files of one state folder, and what they hold.
pub struct Files {
    folder: PathBuf,
    journal: Journal,
    /// The journal's first line.
    head: Line,
    /// Somebody else changed the journal: no line may be added to it.
    journal_lost: bool,
    /// The generation of the last line.
    committed: u64,
    /// What the files hold; its generation is that of the settings.
    filed: Records,
    stamps: Each<Option<Stamp>>,
    /// Held until the end: two daemons on one folder would take each other's writes for edits by hand.
    _lock: File,
    /// An edit by hand as last seen, and since when it has not moved.
    edit: Option<(Each<Option<Stamp>>, Instant)>,
    /// The edit that was refused, and why.
    refused: Option<(Each<Option<Stamp>>, String)>,
    /// The files may say other things than their records do, or some are gone: all are to be written.
    anew: bool,
    /// A job is out.
    busy: bool,
    /// Since when the files are behind.
    behind_since: Option<Instant>,
    last_commit: Instant,
    /// How long it has to be quiet.
    rest: Duration,
    not_before: Instant,
    /// [`LONGEST_JOURNAL`].
    longest_journal: u64,
    cut: Cut,
}

impl Files {
    /// Loads the ledgers, finishes what was cut, begins empty ones when there are none.
    ///
    /// # Errors
    /// [`LoadError`]; what does not read is left as it is.
    pub fn open(folder: &Path) -> Result<(Self, Ledger), LoadError> {
        Self::open_with(folder, Cut::default())
    }

    pub(super) fn open_with(folder: &Path, cut: Cut) -> Result<(Self, Ledger), LoadError> {
        let failed = |cause| LoadError::Io { path: folder.to_owned(), cause };
        store::private_folder(folder).map_err(failed)?;
        let lock = lock(folder)?;
        let stamps = stamps(folder);
        let found = understand(folder, &read_texts(folder)?)?;
        // All checks are behind us: only now may the folder be touched.
        store::sweep(folder).map_err(failed)?;
        let not_begun = |e: CommitError| match e {
            CommitError::NotDone(what) | CommitError::InDoubt(what) => failed(io::Error::other(what)),
        };
        let begins = found.is_none();
        let Found { ledger, filed, journal: read, rewrite, .. } = found.unwrap_or_else(Found::nothing);
        let (journal, head, ends_at) = match (read.lines.first(), read.lines.last()) {
            (Some((_, first)), Some((_, last))) => (Journal::open(folder, &read).map_err(failed)?, first.clone(), last.generation),
            _ => {
                // Files that are all written anew hold the ledger's generation.
                let generation = if rewrite { ledger.generation } else { filed.generation };
                let head = Line::head(generation, begins);
                let journal = Journal::create(folder, &[&head], &mut |step| cut.step(step)).map_err(not_begun)?;
                (journal, head, generation)
            }
        };
        let now = Instant::now();
        let mut files = Self {
            folder: folder.to_owned(),
            journal,
            head,
            journal_lost: false,
            committed: ends_at,
            filed,
            stamps,
            _lock: lock,
            edit: None,
            refused: None,
            anew: false,
            busy: false,
            behind_since: None,
            last_commit: now,
            rest: QUIET,
            not_before: now,
            longest_journal: LONGEST_JOURNAL,
            cut,
        };
        // An epoch ahead of the files (edited by hand) moved the ledger ahead of its journal.
        if ledger.generation > ends_at {
            let line = Line { from: ends_at, ..Line::head(ledger.generation, false) };
            files.append(&line).map_err(not_begun)?;
        }
        if rewrite {
            let job = Job { all: true, ..files.job_for(&ledger) };
            files.finish(job.run()).map_err(not_begun)?;
            let removed = files.cut.step("remove intent").and_then(|()| store::remove(&folder.join(INTENT)));
            removed.map_err(failed)?;
        }
        Ok((files, ledger))
    }

    /// Makes `to`, which was made out of `from`, durable. `edit` is the one that it takes up.
    ///
    /// # Errors
    /// [`CommitError`] says whether the old state stands.
    pub fn commit(&mut self, from: &Ledger, to: &Ledger, edit: Option<Edit>) -> Result<(), CommitError> {
        if !self.journal.is_ours() && self.changed_by_hand() && !self.busy && from.unread.is_empty() {
            // The files are not to be written before the edit is taken or repaired: the journal must do without them.
            self.renew_journal(from)?;
        }
        if !self.journal.is_ours() {
            self.journal_lost = true;
            let what = "journal.jsonl was changed by somebody else; kurrentd writes the ledger files and the journal anew, ask again then";
            return Err(CommitError::NotDone(what.into()));
        }
        // A finished edit is what a full journal waits for.
        if edit.is_none() && self.journal.end() > self.longest_journal {
            let what = "journal.jsonl is full because the ledger files can not be written: finish or take back the edit of a ledger file";
            return Err(CommitError::NotDone(what.into()));
        }
        let line = Line::between(&from.records(), &to.records(), edit.as_ref().map(|e| &e.theirs));
        self.append(&line)?;
        self.last_commit = Instant::now();
        if let Some(Edit { theirs, stamps, .. }) = edit {
            self.holds(theirs, stamps);
            // The files show soon what became of the edit.
            self.behind_since = Some(self.last_commit.checked_sub(BEHIND).unwrap_or(self.last_commit));
        }
        Ok(())
    }

    fn append(&mut self, line: &Line) -> Result<(), CommitError> {
        let octets = line.encode().map_err(CommitError::NotDone)?;
        let end = u64::try_from(octets.len()).unwrap_or(u64::MAX).saturating_add(self.journal.end());
        if end > MAX_OCTETS {
            let what =
                format!("journal.jsonl would be larger than {MAX_OCTETS} octets, and the next start not read it: make a smaller change");
            return Err(CommitError::NotDone(what));
        }
        let cut = &self.cut;
        self.journal.append(&octets, &mut |step| cut.step(step))?;
        self.committed = line.generation;
        Ok(())
    }

    /// A new journal with all that the files lack of `ledger`, the one that was committed last.
    fn renew_journal(&mut self, ledger: &Ledger) -> Result<(), CommitError> {
        let head = Line::head(self.filed.generation, false);
        let waiting = Line::between(&self.filed, &ledger.records(), None);
        let cut = &self.cut;
        self.journal = Journal::create(&self.folder, &[&head, &waiting], &mut |step| cut.step(step))?;
        (self.head, self.journal_lost) = (head, false);
        Ok(())
    }

    /// What the files hold after an edit by hand.
    fn holds(&mut self, theirs: Records, stamps: Each<Option<Stamp>>) {
        self.filed = Records { generation: self.filed.generation, ..theirs };
        (self.stamps, self.edit, self.refused) = (stamps, None, None);
        // A version or generation that was edited would be refused by the next start.
        self.anew = true;
    }

    fn changed_by_hand(&self) -> bool {
        stamps(&self.folder) != self.stamps
    }

    /// Whether somebody edited the files, and what comes of it for `ours`.
    pub fn look(&mut self, ours: &Ledger) -> Look {
        if self.busy {
            return Look::Same;
        }
        let seen = stamps(&self.folder);
        if seen == self.stamps {
            (self.edit, self.refused) = (None, None);
            return Look::Same;
        }
        match self.edit {
            Some((before, since)) if before == seen => {
                if since.elapsed() < EDIT_RESTS {
                    return Look::BeingEdited;
                }
            }
            _ => {
                self.edit = Some((seen, Instant::now()));
                return Look::BeingEdited;
            }
        }
        for name in NAMES {
            let known = name.of_mut(&mut self.stamps);
            if name.of(&seen).is_none() && known.take().is_some() {
                tracing::warn!("{} is gone and is written anew", self.folder.join(name.text()).display());
                self.anew = true;
            }
        }
        if seen == self.stamps {
            (self.edit, self.refused) = (None, None);
            return Look::Same;
        }
        if let Some((_, why)) = self.refused.as_ref().filter(|(refused, _)| *refused == seen) {
            return Look::Refused(why.clone());
        }
        match self.merged(seen, ours) {
            Ok(look) => look,
            Err(error) => {
                let why = error.to_string();
                self.refused = Some((seen, why.clone()));
                Look::Refused(why)
            }
        }
    }

    fn merged(&mut self, seen: Each<Option<Stamp>>, ours: &Ledger) -> Result<Look, LoadError> {
        if let Some(why) = ours.unread.whys().next() {
            // What waits for the file in the journal is put onto it by a start.
            let whole = load::check(&self.folder)?.is_some_and(|ledger| ledger.unread.is_empty());
            let what = if whole { "the ledger files read again: restart kurrentd to take them up".into() } else { why.to_owned() };
            return Err(LoadError::Corrupt { file: JOURNAL, what });
        }
        let changed = NAMES.map(|name| name.of(&seen) != name.of(&self.stamps));
        let (theirs, texts) = load::edited(&self.folder, &self.filed, changed)?;
        if self.filed.differences(&theirs).is_empty() {
            // Saved without a change.
            self.holds(theirs, seen);
            return Ok(Look::Same);
        }
        let merged = merge(&self.filed, &theirs, &ours.records());
        let merged = merged.map_err(|Conflict(key)| load::conflicts(&self.folder, &texts, &key))?;
        let checked = merged.checked_without(ours.unread.clone()).map_err(|wrong| load::contradicts_edit(&self.folder, &texts, &wrong))?;
        let ledger = checked.after_edit(ours);
        if ledger.generation > LAST_GENERATION {
            let what = format!("generation {} leaves no room for changes; write back what was there before", ledger.generation);
            let wrong = Contradiction { file: Name::Settings.text(), record: String::new(), what };
            return Err(load::contradicts_edit(&self.folder, &texts, &wrong));
        }
        Ok(Look::Edited(Box::new(Edit { ledger, theirs, stamps: seen })))
    }

    /// When [`Files::job`] is to be asked for; `None` while nothing is to be done.
    pub fn due(&mut self, ledger: &Ledger) -> Option<Instant> {
        if self.busy || !ledger.unread.is_empty() || !self.is_behind(ledger) {
            return None;
        }
        let now = Instant::now();
        let latest = *self.behind_since.get_or_insert(now) + BEHIND;
        let due = if self.anew || self.journal_lost || self.journal.end() > LONG_JOURNAL {
            now
        } else if ledger.generation == self.filed.generation {
            latest
        } else {
            latest.min(self.last_commit + self.rest)
        };
        Some(due.max(self.not_before))
    }

    /// Whether the files lack something of `ledger`.
    #[must_use]
    pub fn is_behind(&self, ledger: &Ledger) -> bool {
        let (filed, generation) = (&self.filed, ledger.generation);
        let long_journal = self.head.generation != filed.generation;
        self.anew || self.journal_lost || long_journal || generation != filed.generation || !ledger.devices.ptr_eq(&filed.devices)
    }

    /// Work to bring the files up to date with `ledger`, the one that was committed last: to be run beside commits, and handed to
    /// [`Files::finish`]. `None` while it can not be done, or is out already.
    pub fn job(&mut self, ledger: &Ledger) -> Option<Job> {
        if self.busy || !ledger.unread.is_empty() || self.changed_by_hand() {
            // Whoever edits is not overwritten, and a file that was not read is left as it is, with what waits for it in the journal.
            self.not_before = Instant::now() + QUIET;
            return None;
        }
        Some(self.job_for(ledger))
    }

    fn job_for(&mut self, ledger: &Ledger) -> Job {
        self.busy = true;
        Job {
            folder: self.folder.clone(),
            filed: self.filed.clone(),
            to: ledger.records(),
            all: self.anew,
            stamps: self.stamps,
            journal_end: self.journal.end(),
            cut: self.cut.clone(),
        }
    }

    /// Takes a job back, and shortens the journal by what the files hold now.
    ///
    /// # Errors
    /// [`CommitError`]; nothing that was acknowledged is lost either way.
    pub fn finish(&mut self, done: Done) -> Result<(), CommitError> {
        let Done { filed, stamps, journal_end, result, took } = done;
        (self.busy, self.filed, self.stamps) = (false, filed, stamps);
        match result {
            Ok(()) => {}
            Err(Failed::Edited) => {
                self.not_before = Instant::now() + QUIET;
                return Ok(());
            }
            Err(Failed::Disk(what)) => {
                self.not_before = Instant::now() + RETRY;
                return Err(CommitError::NotDone(what));
            }
        }
        (self.behind_since, self.anew) = (None, false);
        // Who removes the files may have removed the journal.
        self.journal_lost |= !self.journal.is_ours();
        self.rest = took.saturating_mul(SHARE_OF_TIME).clamp(QUIET, BEHIND);
        let head = Line::head(self.filed.generation, false);
        let cut = &self.cut;
        if self.journal_lost && self.filed.generation != self.committed {
            // What was committed beside this job was in the lost journal only: the next job writes it, then there is a new one.
            return Ok(());
        }
        if self.journal_lost {
            self.journal = Journal::create(&self.folder, &[&head], &mut |step| cut.step(step))?;
            self.journal_lost = false;
        } else if self.head != head {
            self.journal.shorten(journal_end, &head, &mut |step| cut.step(step))?;
        }
        self.head = head;
        Ok(())
    }

    /// Brings the files up to date now, for an orderly end.
    ///
    /// # Errors
    /// As [`Files::finish`].
    pub fn settle(&mut self, ledger: &Ledger) -> Result<(), CommitError> {
        if !self.is_behind(ledger) {
            return Ok(());
        }
        self.job(ledger).map_or(Ok(()), |job| self.finish(job.run()))
    }

    #[cfg(test)]
    pub(crate) fn cut_with(&mut self, cut: impl FnMut(&str) -> io::Result<()> + Send + 'static) {
        self.cut = Cut::with(cut);
    }

    /// The journal is as long as it may be.
    #[cfg(test)]
    pub(crate) fn fill_journal(&mut self) {
        self.longest_journal = self.journal.end().saturating_sub(1);
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
