//! `operations.jsonl`: who did what, when, with which result. No secret ever gets in.
//!
//! One JSON object a line; each line holds the SHA-256 of the one before, across rotated files, so that a removed or
//! changed line shows. Files rotate by size and the oldest is dropped. What strangers cause is limited: repeats of one
//! event are counted instead of written, and all strangers together have a budget a minute and a part of the queue.
//!
//! [`verify`] walks the chain. What it can not show is that the latest lines were cut off, or the oldest rotated files removed.
//!
//! The ledger writer records every change (and refusal) of a ledger, device reports included; others record what is theirs.

mod file;
mod limit;

use file::Log;
pub use file::{Break, names, open_all, verify};
use kurrent_core::id::MacAddr;
use kurrent_core::time::Wall;
pub use limit::AT_THE_DOOR;
use limit::{Limit, Verdict};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Written between two syncs.
const BATCH: usize = 4096;
/// Events of strangers that may wait; further ones are counted. What people, the appliance and granted devices did waits without a
/// bound of its own: each such event is a change that was committed or refused one at a time, and dropping one would hide an act.
const QUEUE_OF_STRANGERS: usize = 3072;
/// How often counted repeats are written.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// One line of the audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Grows by one.
    pub seq: u64,
    /// When.
    pub at: Wall,
    /// `user ada`, `token ada/0123456789ab`, `device 52:54:…`, `system`, `hand edit`.
    pub actor: String,
    /// `bind`, `boot-vars`, `report`, `challenge`, …
    pub verb: String,
    /// What it was done to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<MacAddr>,
    /// Worker or disk, as text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub object: String,
    /// `ok` or a stable reason: `no_key`, `missing_sig`, `nonce_unknown`, `nonce_expired`, `verify_failed`, `not_bound`,
    /// `revoked`, `wrong_server`, `key_mismatch`, `no_mac`, `no_disk`, …
    pub result: String,
    /// What exactly was asked: `key=value` words of a closed set (`kurrent_core::ledger`'s `Change::detail`), never free text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// How many further events like the last one were counted instead of written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeated: Option<u64>,
    /// SHA-256 (hex) of the previous line.
    pub prev: String,
}

/// What a caller says; the writer adds the rest.
#[derive(Clone, Debug)]
pub struct Event {
    /// See [`Entry::actor`].
    pub actor: String,
    /// See [`Entry::verb`].
    pub verb: &'static str,
    /// See [`Entry::device`].
    pub device: Option<MacAddr>,
    /// See [`Entry::object`].
    pub object: String,
    /// See [`Entry::result`].
    pub result: String,
    /// See [`Entry::detail`].
    pub detail: String,
}

/// Which entries somebody asks for; an absent field matches all.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// Exactly this device.
    pub device: Option<MacAddr>,
    /// Exactly this object, or a word of it: a Worker's name finds what was done to its disks too, never another Worker.
    pub object: Option<String>,
    /// Exactly this verb.
    pub verb: Option<String>,
    /// Exactly this actor.
    pub actor: Option<String>,
    /// Exactly this result.
    pub result: Option<String>,
    /// At or after this time.
    pub since: Option<Wall>,
    /// Before this time, so that neighbouring spans share no entry.
    pub until: Option<Wall>,
    /// The latest so many; default [`DEFAULT_LIMIT`], at most [`MAX_LIMIT`].
    pub limit: Option<usize>,
    /// What [`Page::next`] said: goes on there.
    pub cursor: Option<u64>,
}

/// Entries of one page when nobody says how many.
pub const DEFAULT_LIMIT: usize = 200;
/// Entries of one page at most.
pub const MAX_LIMIT: usize = 1000;

impl Filter {
    fn matches(&self, entry: &Entry) -> bool {
        let is = |wanted: &Option<String>, found: &str| wanted.as_ref().is_none_or(|w| w == found);
        self.device.is_none_or(|d| entry.device == Some(d))
            && self.object.as_ref().is_none_or(|o| *o == entry.object || entry.object.split(' ').any(|word| word == o))
            && is(&self.verb, &entry.verb)
            && is(&self.actor, &entry.actor)
            && is(&self.result, &entry.result)
            && self.since.is_none_or(|s| entry.at >= s)
            && self.until.is_none_or(|u| entry.at < u)
    }
}

/// Entries, the latest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// At most as many as were asked for.
    pub entries: Vec<Entry>,
    /// The cursor of the next page, when more follows. It is a number of an entry: what is written or rotated meanwhile moves
    /// nothing.
    pub next: Option<u64>,
}

enum Message {
    Event(Event),
    /// Answers when everything before it is written, and synced as far as the disk allows.
    Flush(SyncSender<()>),
    /// Answers when everything before it is in the file: the end of this process can not lose it any more.
    Written(oneshot::Sender<()>),
}

/// The way to the audit writer.
#[derive(Clone)]
pub struct Audit {
    events: Sender<Message>,
    lost: Arc<AtomicU64>,
    /// Events of strangers in the queue.
    strangers: Arc<AtomicUsize>,
    fault: Arc<Mutex<Option<String>>>,
    refusals: Arc<Mutex<VecDeque<String>>>,
    path: PathBuf,
}

/// The actor of what was done by an edit of a ledger file.
pub const BY_HAND: &str = "hand edit";
/// Results that are no refusal.
const GRANTED: [&str; 4] = ["ok", "admitted", "refreshed", "key_stored"];
/// Refusals kept for the console.
const REFUSALS_SHOWN: usize = 5;

impl Audit {
    /// Starts the writer of `<folder>/operations.jsonl`.
    ///
    /// # Errors
    /// The file can not be read or opened.
    pub fn open(folder: &Path) -> io::Result<Self> {
        kurrent_sys::store::private_folder(folder)?;
        let path = folder.join(file::NAME);
        let log = Log::open(&path)?;
        let (events, events_in) = channel();
        let lost = Arc::new(AtomicU64::new(0));
        let (strangers, fault) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Option<String>>>::default());
        let writer = Writer {
            log,
            limit: Limit::default(),
            lost: Arc::clone(&lost),
            strangers: Arc::clone(&strangers),
            unwritten: 0,
            batch: None,
            fault: Arc::clone(&fault),
        };
        std::thread::Builder::new().name("audit".into()).spawn(move || writer.run(&events_in))?;
        Ok(Self { events, lost, strangers, fault, refusals: Arc::default(), path })
    }

    /// Queues an event. Never blocks; of a flood of strangers events are counted, and the count is written instead.
    pub fn record(&self, event: Event) {
        if !GRANTED.contains(&event.result.as_str()) {
            self.show_refusal(&event);
        }
        let stranger = limit::is_limited(&event);
        let crowded = stranger && self.strangers.fetch_add(1, Ordering::Relaxed) >= QUEUE_OF_STRANGERS;
        if crowded || self.events.send(Message::Event(event)).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
            if stranger {
                self.strangers.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Why the audit can not be written now, if so, with what to do.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn show_refusal(&self, event: &Event) {
        let device = event.device.map(|d| d.to_string()).unwrap_or_default();
        let line =
            [event.verb, &device, &event.object, &event.result].iter().filter(|w| !w.is_empty()).copied().collect::<Vec<_>>().join(" ");
        let mut shown = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        shown.retain(|l| *l != line);
        shown.push_front(line);
        shown.truncate(REFUSALS_SHOWN);
    }

    /// The last few refusals, the latest first, for the console.
    #[must_use]
    pub fn refusals(&self) -> Vec<String> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Waits until everything recorded so far is in the file, so that whoever is answered then finds it there, whatever becomes of this
    /// process. It is synced soon after: only a power cut can lose it.
    pub async fn written(&self) {
        let (done, written) = oneshot::channel();
        if self.events.send(Message::Written(done)).is_ok() {
            // The writer may have ended: then there is nothing to wait for.
            let _ = written.await;
        }
    }

    /// Waits until everything recorded so far is written; blocks.
    pub fn flush(&self) {
        let (done, written) = sync_channel(1);
        if self.events.send(Message::Flush(done)).is_ok() {
            // The writer may have ended: then there is nothing to wait for.
            let _ = written.recv();
        }
    }

    /// Entries that match, the latest first; blocks on the files.
    ///
    /// # Errors
    /// A file can not be read.
    pub fn read(&self, filter: &Filter) -> io::Result<Page> {
        self.flush();
        let limit = filter.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT);
        // One more than asked for tells whether more follows.
        let mut entries = file::read(&self.path, limit + 1, filter.cursor, &|e| filter.matches(e))?;
        let more = entries.len() > limit;
        entries.truncate(limit);
        let next = entries.last().filter(|_| more).map(|e| e.seq);
        Ok(Page { entries, next })
    }
}

struct Writer {
    log: Log,
    limit: Limit,
    lost: Arc<AtomicU64>,
    strangers: Arc<AtomicUsize>,
    /// Events that the disk refused; told when it takes events again.
    unwritten: u64,
    /// What became of this batch: the first failure, or a success. `None`: nothing was to be written.
    batch: Option<io::Result<()>>,
    fault: Arc<Mutex<Option<String>>>,
}

impl Writer {
    fn run(mut self, events: &Receiver<Message>) {
        loop {
            let first = match events.recv_timeout(TELL_EVERY) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let mut flushes = Vec::new();
            for message in first.into_iter().chain(events.try_iter().take(BATCH)) {
                match message {
                    Message::Event(event) => self.event(event),
                    Message::Flush(done) => flushes.push(done),
                    // Whoever waits may have gone.
                    Message::Written(done) => drop(done.send(())),
                }
            }
            self.tell_repeats(!flushes.is_empty());
            self.end_batch();
            for done in flushes {
                // Whoever waits may have gone.
                let _ = done.send(());
            }
        }
        self.tell_repeats(true);
        self.end_batch();
    }

    fn event(&mut self, event: Event) {
        if limit::is_limited(&event) {
            self.strangers.fetch_sub(1, Ordering::Relaxed);
        }
        match self.limit.take(&event, kurrent_sys::clock::now().mono) {
            Verdict::Write => self.append(&event, None),
            Verdict::Counted => {}
        }
    }

    fn append(&mut self, event: &Event, repeated: Option<u64>) {
        let result = self.log.append(event, repeated, kurrent_sys::clock::now().wall);
        if result.is_err() {
            self.unwritten = self.unwritten.saturating_add(repeated.unwrap_or(1));
        }
        self.note(result);
    }

    fn tell_repeats(&mut self, all: bool) {
        let of_audit = |result: &str, count: u64| {
            let event = Event {
                actor: "system".into(),
                verb: "audit",
                device: None,
                object: String::new(),
                result: result.into(),
                detail: String::new(),
            };
            (count > 0).then_some((event, count))
        };
        let unwritten = of_audit("write_failed", std::mem::take(&mut self.unwritten));
        let lost = of_audit("queue_full", self.lost.swap(0, Ordering::Relaxed));
        let due = self.limit.due(kurrent_sys::clock::now().mono, all);
        for (event, count) in due.into_iter().chain(lost).chain(unwritten) {
            self.append(&event, Some(count));
        }
    }

    fn note(&mut self, result: io::Result<()>) {
        if !matches!(self.batch, Some(Err(_))) {
            self.batch = Some(result);
        }
    }

    /// Makes the batch durable, and the fault what it showed.
    fn end_batch(&mut self) {
        if self.batch.is_none() {
            return;
        }
        let result = self.log.sync();
        self.note(result);
        let failed = self.batch.take().and_then(Result::err);
        let now = failed.map(|e| format!("the audit can not be written: {e}; make room on the data partition or check the disk"));
        let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*fault, &now) {
            (None, Some(what)) => tracing::error!("{what}"),
            (Some(_), None) => tracing::info!("the audit is written again"),
            (None, None) | (Some(_), Some(_)) => {}
        }
        *fault = now;
    }
}

#[cfg(test)]
#[path = "audit/secrets_tests.rs"]
mod secrets_tests;

#[cfg(test)]
#[path = "audit/tests.rs"]
mod tests;
