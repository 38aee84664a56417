//! Keys that were used and the answers they got: bounded, and in a file of its own (0600), so that a restart forgets none.
//!
//! One JSON object a line; the last line of a key counts. That a key was begun is durable before anybody acts on it; those who begin
//! together share one sync. How it ended goes to the disk with the next sync: when it is lost, the outcome is unknown to the next
//! start, which is true and frees no key. So only what follows the last sync can be torn: a last line without an end, and lines
//! from the first zero on (JSON holds none). Nobody acted on these, and they are cut off. What does not read otherwise is set aside and told: keys only guard against repetitions, and the API
//! must not stand still for them.

use super::shares::{Shares, TooMuch, person};
use crate::api::problem::Problem;
use kurrent_core::time::Wall;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Keys that are remembered.
const MAX_KEYS: usize = 10_000;
/// How long.
const KEPT_HOURS: i64 = 24;
/// A longer answer is not kept.
const MAX_ANSWER_OCTETS: usize = 256 * 1024;
/// All answers together; beyond that the oldest of whoever has most go.
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

/// The open file, which many sync together.
struct Log {
    file: File,
    /// Octets that were written through it.
    written: AtomicU64,
    /// How many of them are durable; after a failure nobody knows, and nothing more is believed.
    synced: Mutex<io::Result<u64>>,
}

impl Log {
    fn open(path: &Path) -> io::Result<Arc<Self>> {
        let file = OpenOptions::new().append(true).create(true).mode(MODE).open(path)?;
        Ok(Arc::new(Self { file, written: AtomicU64::new(0), synced: Mutex::new(Ok(0)) }))
    }

    /// One writer at a time. Where the text ends.
    fn write(&self, text: &str) -> io::Result<u64> {
        (&self.file).write_all(text.as_bytes())?;
        let octets = u64::try_from(text.len()).unwrap_or(u64::MAX);
        Ok(self.written.fetch_add(octets, Ordering::AcqRel).saturating_add(octets))
    }

    /// Waits until everything up to here is durable. Whoever waits for another's sync mostly finds it done by that or the next one.
    fn sync(&self, upto: u64) -> io::Result<()> {
        let mut synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        match &*synced {
            Ok(done) if *done >= upto => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(same(error)),
        }
        let all = self.written.load(Ordering::Acquire);
        *synced = self.file.sync_data().map(|()| all);
        synced.as_ref().map(|_| ()).map_err(same)
    }
}

fn same(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

struct Inner {
    path: PathBuf,
    file: io::Result<Arc<Log>>,
    lines: usize,
    /// The file's length.
    written: u64,
    keys: HashMap<Slot, Entry>,
    /// Oldest first; may name keys that are gone.
    order: VecDeque<Slot>,
    shares: Shares,
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
            shares: Shares::default(),
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
        if inner.keys.len() >= MAX_KEYS {
            let what = "too many requests with an Idempotency-Key are being carried out; ask again in a while";
            return Begin::Refused(Problem::new(503, "too_many_requests_at_once", what));
        }
        let refused = |error: io::Error| {
            let what = format!("the Idempotency-Key could not be recorded, so nothing was done: {error}; make room on the data partition");
            Begin::Refused(Problem::new(507, "not_durable", what))
        };
        let line = Line { slot, request, at: now, end: None };
        let (log, upto) = match inner.append(&line) {
            Ok(written) => written,
            Err(error) => return refused(error),
        };
        // Others meet a key that runs while it waits for the disk.
        inner.insert(line.slot.clone(), Entry { request: line.request, at: line.at, end: None });
        drop(inner);
        let Err(error) = log.sync(upto) else { return Begin::Fresh };
        let mut inner = self.lock();
        inner.remove(&line.slot);
        // What it holds is unknown now: the next one writes a whole new file.
        if inner.file.as_ref().is_ok_and(|current| Arc::ptr_eq(current, &log)) {
            inner.file = Err(same(&error));
        }
        refused(error)
    }

    /// Blocks only for a new file. What is not written, or not durable before a power cut, has an unknown outcome for the next start.
    pub(super) fn end(&self, slot: &Slot, end: End) {
        let mut inner = self.lock();
        let Some(entry) = inner.keys.get(slot) else { return };
        let line = Line { slot: slot.clone(), request: entry.request.clone(), at: entry.at, end: Some(end) };
        if let Err(error) = inner.append(&line) {
            tracing::error!("{}: {error}; an answer is kept in memory only", inner.path.display());
        }
        inner.put(line);
        // It ran for long, perhaps, but whoever asks again does it from now on.
        if let Some(at) = inner.order.iter().position(|s| s == slot) {
            inner.order.remove(at);
            inner.order.push_back(slot.clone());
        }
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
        self.insert(line.slot, Entry { request: line.request, at: line.at, end: Some(end) });
    }

    fn insert(&mut self, slot: Slot, entry: Entry) {
        self.shares.add(&slot, entry.octets());
        match self.keys.insert(slot.clone(), entry) {
            Some(before) => self.shares.remove(&slot, before.octets()),
            None => self.order.push_back(slot),
        }
    }

    fn remove(&mut self, slot: &Slot) {
        if let Some(gone) = self.keys.remove(slot) {
            self.shares.remove(slot, gone.octets());
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
            self.drop_oldest(|_| true);
        }
    }

    /// Forgets the oldest of these that does not run: one that runs would be carried out twice. Whether there was one.
    fn drop_oldest(&mut self, of: impl Fn(&Slot) -> bool) -> bool {
        let ended = self.order.iter().position(|slot| of(slot) && self.keys.get(slot).is_none_or(|e| e.end.is_some()));
        let Some(slot) = ended.and_then(|at| self.order.remove(at)) else { return false };
        self.remove(&slot);
        true
    }

    fn make_room(&mut self) {
        if self.order.len() > 2 * MAX_KEYS {
            self.order.retain(|slot| self.keys.contains_key(slot));
        }
        loop {
            let of = match (self.keys.len() >= MAX_KEYS, self.shares.octets() > MAX_ALL_OCTETS) {
                (true, _) => TooMuch::Keys,
                (false, true) => TooMuch::Octets,
                (false, false) => break,
            };
            // Whoever has most may have begun all of it just now.
            let greediest = self.shares.greediest(of).unwrap_or_default();
            if !self.drop_oldest(|slot| person(slot) == greediest) && !self.drop_oldest(|_| true) {
                break;
            }
        }
    }

    /// Whether the open file is the one that the next start reads: somebody may have removed it.
    fn is_ours(&self) -> bool {
        let ours = self.file.as_ref().ok().and_then(|log| log.file.metadata().ok());
        let named = self.path.metadata().ok();
        ours.zip(named).is_some_and(|(ours, named)| (ours.ino(), ours.dev()) == (named.ino(), named.dev()))
    }

    /// Where the line is, for [`Log::sync`].
    fn append(&mut self, line: &Line) -> io::Result<(Arc<Log>, u64)> {
        let many = self.lines > self.keys.len().saturating_mul(2).saturating_add(SPARE_LINES);
        if many || self.written > MAX_WRITTEN_OCTETS || !self.is_ours() {
            self.rewrite()?;
        }
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        let log = self.file.as_ref().map(Arc::clone).map_err(same)?;
        let upto = match log.write(&text) {
            Ok(upto) => upto,
            Err(error) => {
                // Its end is unknown now: the next one writes a whole new file.
                self.file = Err(same(&error));
                return Err(error);
            }
        };
        self.lines = self.lines.saturating_add(1);
        self.written = self.written.saturating_add(u64::try_from(text.len()).unwrap_or(u64::MAX));
        Ok((log, upto))
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
        self.file = Log::open(&self.path);
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

/// [`Log::open`], and when the file is new its name is durable.
fn opened(path: &Path) -> io::Result<Arc<Log>> {
    if !path.try_exists()? {
        kurrent_sys::store::replace(path, b"", MODE).map_err(io::Error::other)?;
    }
    Log::open(path)
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
    let synced = octets.iter().position(|b| *b == 0).unwrap_or(octets.len());
    let whole = octets.get(..synced).unwrap_or_default().iter().rposition(|b| *b == b'\n').map_or(0, |at| at.saturating_add(1));
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
