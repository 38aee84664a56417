//! Keys that were used and the answers they got: bounded, and in a file of its own (0600), so that a restart forgets none.
//!
//! One JSON object a line; the last line of a key counts. A line is durable before anybody acts on it. A torn last line was never
//! acted on and is cut off. What does not read otherwise is set aside and told: keys only guard against repetitions, and the API
//! must not stand still for them.

use crate::api::problem::Problem;
use kurrent_core::time::Wall;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Keys that are remembered.
const MAX_KEYS: usize = 10_000;
/// How long.
const KEPT_HOURS: i64 = 24;
/// A longer answer is not kept.
const MAX_ANSWER_OCTETS: usize = 256 * 1024;
/// All answers together; beyond that the oldest keys go.
const MAX_ALL_OCTETS: usize = 16 * 1024 * 1024;
/// The file is rewritten when it has more lines than this over twice its keys.
const SPARE_LINES: usize = 1000;
/// Or larger than this: all answers with every octet escaped, and room for as many more.
const MAX_WRITTEN_OCTETS: u64 = 48 << 20;
/// Never larger, so a start does not read more.
const MAX_FILE_OCTETS: u64 = 64 << 20;
const MODE: u32 = 0o600;

/// Whose key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Slot {
    pub(super) actor: String,
    pub(super) key: String,
}

/// An answer as it is given again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: String,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum End {
    Answered(Answer),
    /// The answer held a secret.
    ShownOnce,
    /// The answer was too long to keep.
    NotKept,
    /// Nothing was done: the key is free again.
    Forgotten,
    /// It failed in the middle.
    Unknown,
}

impl End {
    /// [`End::NotKept`] for what is too long.
    pub(super) fn bounded(self) -> Self {
        if self.octets() > MAX_ANSWER_OCTETS { Self::NotKept } else { self }
    }

    fn octets(&self) -> usize {
        match self {
            Self::Answered(answer) => answer.body.len(),
            Self::ShownOnce | Self::NotKept | Self::Forgotten | Self::Unknown => 0,
        }
    }
}

/// What a request with a key may do.
#[derive(Debug)]
pub(super) enum Begin {
    /// Run.
    Fresh,
    /// Give this.
    Again(Answer),
    /// Say this.
    Refused(Problem),
}

#[derive(Clone, Serialize, Deserialize)]
struct Line {
    #[serde(flatten)]
    slot: Slot,
    request: String,
    at: Wall,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end: Option<End>,
}

struct Entry {
    request: String,
    at: Wall,
    /// `None`: it runs.
    end: Option<End>,
}

struct Inner {
    path: PathBuf,
    file: io::Result<File>,
    lines: usize,
    /// The file's length.
    written: u64,
    keys: HashMap<Slot, Entry>,
    /// Oldest first; may name keys that are gone.
    order: VecDeque<Slot>,
    octets: usize,
}

/// All keys.
pub(in crate::api) struct Store(Mutex<Inner>);

impl Store {
    /// Reads the file. What keeps it from being used is told to whoever comes with a key, and the API serves on.
    pub(in crate::api) fn open(path: &Path) -> Self {
        let mut inner = Inner {
            path: path.to_owned(),
            file: Err(io::ErrorKind::NotFound.into()),
            lines: 0,
            written: 0,
            keys: HashMap::new(),
            order: VecDeque::new(),
            octets: 0,
        };
        match read(path) {
            Ok(lines) => {
                inner.lines = lines.len();
                for line in lines {
                    inner.put(line);
                }
                inner.file = opened(path);
                inner.written = path.metadata().map_or(0, |m| m.len());
            }
            Err(error) => {
                let aside = path.with_extension("damaged");
                tracing::error!("{}: {error}; it is set aside as {}, and its keys are forgotten", path.display(), aside.display());
                inner.file = std::fs::rename(path, aside).and_then(|()| opened(path));
            }
        }
        if let Err(error) = &inner.file {
            tracing::error!("{}: {error}; requests with an Idempotency-Key are refused", path.display());
        }
        Self(Mutex::new(inner))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Durable before it says [`Begin::Fresh`]. Blocks.
    pub(super) fn begin(&self, slot: Slot, request: String, now: Wall) -> Begin {
        let mut inner = self.lock();
        inner.expire(now);
        if let Some(known) = inner.keys.get(&slot) {
            return known.again(&request);
        }
        inner.make_room();
        let line = Line { slot, request, at: now, end: None };
        if let Err(error) = inner.append(&line) {
            let what = format!("the Idempotency-Key could not be recorded, so nothing was done: {error}; make room on the data partition");
            return Begin::Refused(Problem::new(507, "not_durable", what));
        }
        inner.keys.insert(line.slot.clone(), Entry { request: line.request, at: line.at, end: None });
        inner.order.push_back(line.slot);
        Begin::Fresh
    }

    /// Blocks. What can not be written is logged; after a restart the outcome is unknown then.
    pub(super) fn end(&self, slot: &Slot, end: End) {
        let mut inner = self.lock();
        let Some(entry) = inner.keys.get(slot) else { return };
        let line = Line { slot: slot.clone(), request: entry.request.clone(), at: entry.at, end: Some(end) };
        if let Err(error) = inner.append(&line) {
            tracing::error!("{}: {error}; an answer is kept in memory only", inner.path.display());
        }
        inner.put(line);
        inner.make_room();
    }
}

impl Entry {
    fn again(&self, request: &str) -> Begin {
        let refused = |status, code, what: &str| Begin::Refused(Problem::new(status, code, what).at("Idempotency-Key"));
        if self.request != request {
            return refused(
                422,
                "idempotency_key_reused",
                "this Idempotency-Key was used with another request; choose a new key for a new request",
            );
        }
        match &self.end {
            None => {
                refused(409, "in_progress", "the first request with this Idempotency-Key is still being carried out; ask again in a while")
            }
            Some(End::Answered(answer)) => Begin::Again(answer.clone()),
            Some(End::ShownOnce) => refused(
                409,
                "shown_once",
                "it was done, and its answer, which holds a secret, is shown once; undo it and ask with a new key",
            ),
            Some(End::NotKept) => {
                refused(409, "answer_not_kept", "it was done, but its answer was too long to be kept; look at what is there now")
            }
            Some(End::Unknown | End::Forgotten) => refused(
                409,
                "outcome_unknown",
                "kurrentd stopped or failed while it did this; look whether it was done, then ask with a new key if not",
            ),
        }
    }
}

impl Inner {
    /// Takes a line that is in the file.
    fn put(&mut self, line: Line) {
        // Begun and never ended, as far as the file knows: a running request is put by `begin` alone.
        let end = line.end.unwrap_or(End::Unknown);
        if end == End::Forgotten {
            self.remove(&line.slot);
            return;
        }
        let octets = end.octets();
        let known = self.keys.insert(line.slot.clone(), Entry { request: line.request, at: line.at, end: Some(end) });
        self.octets = self.octets.saturating_add(octets);
        match known {
            Some(before) => self.octets = self.octets.saturating_sub(before.octets()),
            None => self.order.push_back(line.slot),
        }
    }

    fn remove(&mut self, slot: &Slot) {
        if let Some(gone) = self.keys.remove(slot) {
            self.octets = self.octets.saturating_sub(gone.octets());
        }
    }

    /// Drops what is too old. A wall clock that was set back keeps keys longer; their number is bounded all the same.
    fn expire(&mut self, now: Wall) {
        let kept = jiff::SignedDuration::from_hours(KEPT_HOURS);
        while let Some(oldest) = self.order.front() {
            let over = self.keys.get(oldest).is_none_or(|e| e.end.is_some() && now.duration_since(e.at) > kept);
            if !over {
                break;
            }
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some(slot) = self.order.pop_front() {
            self.remove(&slot);
        }
    }

    /// The oldest go. One that runs goes too when it is the oldest of so many: it has run for longer than all of them took.
    fn make_room(&mut self) {
        while self.keys.len() >= MAX_KEYS || self.octets > MAX_ALL_OCTETS || self.order.len() > 2 * MAX_KEYS {
            self.drop_oldest();
        }
    }

    /// Whether the open file is the one that the next start reads: somebody may have removed it.
    fn is_ours(&self) -> bool {
        let ours = self.file.as_ref().ok().and_then(|file| file.metadata().ok());
        let named = self.path.metadata().ok();
        ours.zip(named).is_some_and(|(ours, named)| (ours.ino(), ours.dev()) == (named.ino(), named.dev()))
    }

    fn append(&mut self, line: &Line) -> io::Result<()> {
        let many = self.lines > self.keys.len().saturating_mul(2).saturating_add(SPARE_LINES);
        if many || self.written > MAX_WRITTEN_OCTETS || !self.is_ours() {
            self.rewrite()?;
        }
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        let file = self.file.as_mut().map_err(|e| io::Error::new(e.kind(), e.to_string()))?;
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
        if let Err(error) = written {
            // Its end is unknown now: the next one writes a whole new file.
            self.file = Err(io::Error::new(error.kind(), error.to_string()));
            return Err(error);
        }
        self.lines = self.lines.saturating_add(1);
        self.written = self.written.saturating_add(u64::try_from(text.len()).unwrap_or(u64::MAX));
        Ok(())
    }

    fn rewrite(&mut self) -> io::Result<()> {
        let mut text = String::new();
        for slot in &self.order {
            let Some(entry) = self.keys.get(slot) else { continue };
            let line = Line { slot: slot.clone(), request: entry.request.clone(), at: entry.at, end: entry.end.clone() };
            text.push_str(&serde_json::to_string(&line)?);
            text.push('\n');
        }
        kurrent_sys::store::replace(&self.path, text.as_bytes(), MODE).map_err(io::Error::other)?;
        self.file = append(&self.path);
        self.lines = self.keys.len();
        self.written = u64::try_from(text.len()).unwrap_or(u64::MAX);
        Ok(())
    }
}

impl Entry {
    fn octets(&self) -> usize {
        self.end.as_ref().map_or(0, End::octets)
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(MODE).open(path)
}

/// [`append`], and when the file is new its name is durable.
fn opened(path: &Path) -> io::Result<File> {
    if !path.try_exists()? {
        kurrent_sys::store::replace(path, b"", MODE).map_err(io::Error::other)?;
    }
    append(path)
}

/// The lines of the file, whose torn end is cut off.
fn read(path: &Path) -> io::Result<Vec<Line>> {
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut octets = Vec::new();
    (&file).take(MAX_FILE_OCTETS + 1).read_to_end(&mut octets)?;
    if u64::try_from(octets.len()).unwrap_or(u64::MAX) > MAX_FILE_OCTETS {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "far larger than it ever gets"));
    }
    let whole = octets.iter().rposition(|b| *b == b'\n').map_or(0, |at| at.saturating_add(1));
    if whole < octets.len() {
        file.set_len(u64::try_from(whole).unwrap_or_default())?;
        file.sync_all()?;
    }
    let lines = octets.get(..whole).unwrap_or_default().split(|b| *b == b'\n').filter(|l| !l.is_empty());
    lines.map(|line| serde_json::from_slice(line).map_err(io::Error::from)).collect()
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
