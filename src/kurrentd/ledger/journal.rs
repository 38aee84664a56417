//! `journal.jsonl`: what was acknowledged and is not yet in the ledger files. One line for each group of changes.
//!
//! ```text
//!   {"version":3,"from":7,"generation":7,"sum":"…"}                      the files hold generation 7
//!   {"version":3,"from":7,"generation":9,"records":[…],"sum":"…"}        two changes, durable
//!   {"version":3,"from":9,"generation":10,"records":[{"put":{"dev        torn: a power cut before it was acknowledged
//! ```
//!
//! `sum` is the start of the SHA-256 of everything before `,"sum"`. A line goes on from the generation where the one before it
//! ended. JSON holds neither line feeds nor zeros, so what a power cut can leave of the last line is known by its look: it has no
//! end, or zeros where octets never came to the disk. Such a line was never acknowledged and is forgotten. Any other damage is
//! damage to what was acknowledged, and refused.

use super::files::CommitError;
use crate::yaml::Fault;
use kurrent_core::ledger::records::{Difference, Key, Record, Records};
use kurrent_core::ledger::schema::LEDGER_VERSION;
use kurrent_sys::store::{self, ReplaceError};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

pub(super) const JOURNAL: &str = "journal.jsonl";
const MODE: u32 = 0o600;
/// Octets of a SHA-256 in sums and digests: against accidents, not against people, who may edit the files anyway.
const DIGEST_OCTETS: usize = 8;
const SUM_BEGINS: &[u8] = br#","sum":""#;
const SUM_ENDS: &[u8] = br#""}"#;

/// One line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Line {
    pub(super) version: u32,
    /// The generation that it changes.
    pub(super) from: u64,
    /// The generation that it makes.
    pub(super) generation: u64,
    /// The very first start: files that are missing are empty ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) begins: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) records: Vec<Entry>,
}

/// What became of one record: `put` or `gone`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    /// [`digest`] of the record before; absent when there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) was: Option<String>,
    /// The file held it like this, after an edit by hand that this line takes up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) edited: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) put: Option<Record>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) gone: Option<Key>,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// Tells whether a record was changed; not by what a device says of itself.
pub(super) fn digest(record: &Record) -> String {
    // By way of a value: its keys are sorted, whatever order a later version declares them in.
    let json = serde_json::to_value(record.decided()).unwrap_or_default().to_string();
    short_hash(json.as_bytes())
}

fn short_hash(octets: &[u8]) -> String {
    hex::encode(Sha256::digest(octets).get(..DIGEST_OCTETS).unwrap_or_default())
}

impl Line {
    /// The first line of a journal: nothing waits.
    pub(super) fn head(generation: u64, begins: bool) -> Self {
        Self { version: LEDGER_VERSION, from: generation, generation, begins, records: Vec::new() }
    }

    /// What makes `to` out of `from`. `edited` is what the files hold, when the line takes up an edit of them.
    pub(super) fn between(from: &Records, to: &Records, edited: Option<&Records>) -> Self {
        let entry = |Difference { key, before, after }: Difference| Entry {
            was: before.as_ref().map(digest),
            edited: edited.and_then(|files| files.get(&key)).as_ref().map(digest),
            gone: after.is_none().then_some(key),
            put: after,
        };
        let records = from.differences(to).into_iter().map(entry).collect();
        Self { version: LEDGER_VERSION, from: from.generation, generation: to.generation, begins: false, records }
    }

    /// With its sum and its line feed.
    pub(super) fn encode(&self) -> Result<Vec<u8>, String> {
        let mut octets = serde_json::to_vec(self).map_err(|e| format!("encoding a line of {JOURNAL}: {e}"))?;
        octets.pop();
        let sum = short_hash(&octets);
        octets.extend_from_slice(SUM_BEGINS);
        octets.extend_from_slice(sum.as_bytes());
        octets.extend_from_slice(SUM_ENDS);
        octets.push(b'\n');
        Ok(octets)
    }
}

/// Why a line can not be taken.
enum Bad {
    /// Octets are missing or wrong.
    Sum,
    /// Written by a later version.
    Newer(u32),
    /// Whole, but not what we know.
    Unknown(String),
}

fn decode(octets: &[u8]) -> Result<Line, Bad> {
    let hashed_at = octets.len().checked_sub(SUM_BEGINS.len() + 2 * DIGEST_OCTETS + SUM_ENDS.len()).ok_or(Bad::Sum)?;
    let (body, tail) = octets.split_at(hashed_at);
    let sum = tail.strip_prefix(SUM_BEGINS).and_then(|t| t.strip_suffix(SUM_ENDS)).ok_or(Bad::Sum)?;
    if short_hash(body).as_bytes() != sum {
        return Err(Bad::Sum);
    }
    let json = [body, b"}"].concat();
    let unknown = |e: serde_json::Error| Bad::Unknown(e.to_string());
    let Version { version } = serde_json::from_slice(&json).map_err(unknown)?;
    if version > LEDGER_VERSION {
        return Err(Bad::Newer(version));
    }
    serde_json::from_slice(&json).map_err(unknown)
}

/// A journal as it was read.
#[derive(Debug, Default)]
pub(super) struct Read {
    /// Each with its number in the file, from 1.
    pub(super) lines: Vec<(u64, Line)>,
    /// Octets that hold whole lines.
    pub(super) end: u64,
    /// Something was behind the last whole line, or its line feed is missing.
    pub(super) torn: bool,
}

/// Why a journal can not be taken.
pub(super) enum ReadError {
    /// With its line.
    Damaged(Fault),
    /// Written by a later version.
    Newer(u32),
}

/// Reads a whole journal.
pub(super) fn read(octets: &[u8]) -> Result<Read, ReadError> {
    let mut found = Read::default();
    let mut rest = octets;
    let mut number = 0;
    while !rest.is_empty() {
        number += 1;
        let feed = rest.iter().position(|o| *o == b'\n');
        let (text, next) = rest.split_at(feed.unwrap_or(rest.len()));
        let next = next.get(1..).unwrap_or_default();
        let damaged = |what: String| ReadError::Damaged(Fault { line: number, what });
        match decode(text) {
            Ok(line) => {
                let before = found.lines.last().map_or(line.from, |(_, l)| l.generation);
                if line.from != before || line.generation < line.from {
                    let what = format!("this line goes on from generation {}, the one before it ends at {before}; {RESTORE}", line.from);
                    return Err(damaged(what));
                }
                found.lines.push((number, line));
                found.end += u64::try_from(text.len()).unwrap_or(u64::MAX) + u64::from(feed.is_some());
                found.torn |= feed.is_none();
            }
            // The last line, as a power cut leaves it; the first one was there, whole, when the file got its name.
            Err(Bad::Sum) if number > 1 && next.is_empty() && (feed.is_none() || text.contains(&0)) => found.torn = true,
            Err(Bad::Sum) => return Err(damaged(format!("this line is damaged: its sum does not fit; {RESTORE}"))),
            Err(Bad::Newer(version)) => return Err(ReadError::Newer(version)),
            Err(Bad::Unknown(what)) => return Err(damaged(format!("this line is not known: {what}; {RESTORE}"))),
        }
        rest = next;
    }
    Ok(found)
}

const RESTORE: &str = "acknowledged changes would be lost: restore the whole folder from a backup";

/// The open journal, at its end.
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    end: u64,
}

/// Tests make the disk fail here: called with the name of every step.
pub(super) type Steps<'a> = &'a mut dyn FnMut(&str) -> io::Result<()>;

impl Journal {
    /// Opens what was read, and cuts off what was never acknowledged.
    pub(super) fn open(folder: &Path, read: &Read) -> io::Result<Self> {
        let path = folder.join(JOURNAL);
        let file = File::options().read(true).write(true).open(&path)?;
        let mut end = read.end;
        if read.torn {
            file.set_len(end)?;
            if !read.lines.is_empty() && !ends_a_line(&file, end)? {
                file.write_all_at(b"\n", end)?;
                end += 1;
            }
            file.sync_all()?;
        }
        Ok(Self { path, file, end })
    }

    /// A new journal of these lines in the place of whatever is there.
    pub(super) fn create(folder: &Path, lines: &[&Line], steps: Steps<'_>) -> Result<Self, CommitError> {
        let octets = lines.iter().map(|line| line.encode()).collect::<Result<Vec<_>, _>>().map_err(CommitError::NotDone)?;
        Self::put(&folder.join(JOURNAL), &octets.concat(), steps)
    }

    fn put(path: &Path, octets: &[u8], steps: Steps<'_>) -> Result<Self, CommitError> {
        store::replace_stepwise(path, octets, MODE, &mut |step| steps(&format!("{JOURNAL} {step:?}"))).map_err(|e| match e {
            ReplaceError::Unchanged { .. } => CommitError::NotDone(e.to_string()),
            ReplaceError::InDoubt { .. } => CommitError::InDoubt(e.to_string()),
        })?;
        let opened = File::options().read(true).write(true).open(path);
        let file = opened.map_err(|e| CommitError::InDoubt(format!("opening {}: {e}", path.display())))?;
        Ok(Self { path: path.to_owned(), file, end: u64::try_from(octets.len()).unwrap_or(u64::MAX) })
    }

    /// Octets in it.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Whether the file is still the one that we write, as we left it.
    pub(super) fn is_ours(&self) -> bool {
        let (ours, named) = (self.file.metadata(), self.path.metadata());
        let (Ok(ours), Ok(named)) = (ours, named) else { return false };
        (ours.ino(), ours.dev(), ours.len()) == (named.ino(), named.dev(), self.end)
    }

    /// Appends a line, durably.
    ///
    /// # Errors
    /// [`CommitError`] says whether the journal is as before.
    pub(super) fn append(&mut self, octets: &[u8], steps: Steps<'_>) -> Result<(), CommitError> {
        let failed = |what: &str, cause: io::Error| format!("{what} {}: {cause}", self.path.display());
        let (first, second) = octets.split_at(octets.len() / 2);
        let half = self.end + u64::try_from(first.len()).unwrap_or(u64::MAX);
        let written = steps("journal Begun")
            .and_then(|()| self.file.write_all_at(first, self.end))
            .and_then(|()| steps("journal HalfWritten"))
            .and_then(|()| self.file.write_all_at(second, half));
        if let Err(cause) = written {
            // What came to the file has no line feed, so the next start forgets it; the next line must not stand behind it.
            let undone = steps("journal Undone").and_then(|()| self.file.set_len(self.end));
            let what = failed("writing", cause);
            return Err(match undone {
                Ok(()) => CommitError::NotDone(what),
                Err(e) => CommitError::InDoubt(format!("{what}; {}", failed("shortening", e))),
            });
        }
        // After a failed sync nobody knows what the disk holds, and a second one would not tell.
        let synced = steps("journal Written").and_then(|()| self.file.sync_data()).and_then(|()| steps("journal Synced"));
        synced.map_err(|e| CommitError::InDoubt(failed("syncing", e)))?;
        self.end = half + u64::try_from(second.len()).unwrap_or(u64::MAX);
        Ok(())
    }

    /// Cuts off everything before `from`, which the files hold durably as `head` says.
    ///
    /// # Errors
    /// [`CommitError`] says whether the journal is as before.
    pub(super) fn shorten(&mut self, from: u64, head: &Line, steps: Steps<'_>) -> Result<(), CommitError> {
        let mut octets = head.encode().map_err(CommitError::NotDone)?;
        let mut kept = vec![0; usize::try_from(self.end.saturating_sub(from)).unwrap_or(usize::MAX)];
        let read = self.file.read_exact_at(&mut kept, from);
        read.map_err(|e| CommitError::NotDone(format!("reading {}: {e}", self.path.display())))?;
        octets.append(&mut kept);
        *self = Self::put(&self.path, &octets, steps)?;
        Ok(())
    }
}

fn ends_a_line(file: &File, end: u64) -> io::Result<bool> {
    let mut last = [0];
    file.read_exact_at(&mut last, end.saturating_sub(1))?;
    Ok(last == *b"\n")
}
