//! The audit's files: appended, chained, rotated.

use super::{Entry, Event};
use kurrent_core::time::Wall;
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const MAX_OCTETS: u64 = 4 * 1024 * 1024;
/// Rotated files kept: `operations.jsonl.1` (the latest) to `.9`.
const KEPT: u32 = 9;
/// Longest line we write or read; entries are far shorter.
const MAX_LINE: u64 = 8192;
const FIRST_PREV: &str = "0000000000000000000000000000000000000000000000000000000000000000";

pub(super) struct Log {
    path: PathBuf,
    file: File,
    size: u64,
    next_seq: u64,
    prev: String,
    unsynced: bool,
}

impl Log {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
        let size = cut_torn_tail(&mut file)?;
        let last = match last_entry(&mut file)? {
            Some(last) => Some(last),
            // Killed between rotation and the first line.
            None => match File::open(rotated(path, 1)) {
                Ok(mut before) => last_entry(&mut before)?,
                Err(e) if e.kind() == io::ErrorKind::NotFound => None,
                Err(e) => return Err(e),
            },
        };
        let (next_seq, prev) = last.map_or((1, FIRST_PREV.to_owned()), |(entry, hash)| (entry.seq.saturating_add(1), hash));
        Ok(Self { path: path.to_owned(), file, size, next_seq, prev, unsynced: false })
    }

    pub(super) fn append(&mut self, event: &Event, repeated: Option<u64>, at: Wall) -> io::Result<()> {
        let bounded = |text: &str| text.chars().filter(|c| !c.is_control()).take(256).collect::<String>();
        let entry = Entry {
            seq: self.next_seq,
            at,
            actor: bounded(&event.actor),
            verb: event.verb.to_owned(),
            device: event.device,
            object: bounded(&event.object),
            result: bounded(&event.result),
            repeated,
            prev: self.prev.clone(),
        };
        let mut line = serde_json::to_string(&entry)?;
        let hash = hex::encode(Sha256::digest(line.as_bytes()));
        line.push('\n');
        if self.size >= MAX_OCTETS {
            self.rotate()?;
        }
        if let Err(e) = self.file.write_all(line.as_bytes()) {
            // A part of the line may be there (disk full): take it back, so that the next one starts a line.
            self.file.set_len(self.size)?;
            return Err(e);
        }
        self.size = self.size.saturating_add(u64::try_from(line.len()).unwrap_or(u64::MAX));
        (self.next_seq, self.prev, self.unsynced) = (self.next_seq.saturating_add(1), hash, true);
        Ok(())
    }

    pub(super) fn sync(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.unsynced) { self.file.sync_data() } else { Ok(()) }
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        // Not there: the last rotation moved it and came no further. To shift again would drop the oldest for nothing.
        if self.path.try_exists()? {
            // For the same reason only files before the first gap move.
            let mut gap = 1;
            while gap < KEPT && rotated(&self.path, gap).try_exists()? {
                gap += 1;
            }
            for n in (1..gap).rev() {
                std::fs::rename(rotated(&self.path, n), rotated(&self.path, n + 1))?;
            }
            std::fs::rename(&self.path, rotated(&self.path, 1))?;
        }
        self.file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&self.path)?;
        self.size = 0;
        Ok(())
    }
}

fn rotated(path: &Path, n: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{n}"));
    name.into()
}

/// A power cut may leave half a line at the end; it was never acknowledged.
fn cut_torn_tail(file: &mut File) -> io::Result<u64> {
    let size = file.seek(SeekFrom::End(0))?;
    let tail = size.min(MAX_LINE);
    file.seek(SeekFrom::Start(size - tail))?;
    let mut octets = Vec::new();
    Read::take(&mut *file, tail).read_to_end(&mut octets)?;
    let torn = octets.iter().rev().take_while(|o| **o != b'\n').count();
    let whole = size.saturating_sub(u64::try_from(torn).unwrap_or(0));
    if whole < size {
        file.set_len(whole)?;
        file.sync_data()?;
    }
    Ok(whole)
}

/// The last entry that reads, and the hash of its line.
fn last_entry(file: &mut File) -> io::Result<Option<(Entry, String)>> {
    let size = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(size - size.min(MAX_LINE)))?;
    let mut octets = Vec::new();
    Read::take(&mut *file, MAX_LINE).read_to_end(&mut octets)?;
    let last = octets.split(|o| *o == b'\n').rev().find(|line| !line.is_empty());
    Ok(last.and_then(|line| Some((serde_json::from_slice(line).ok()?, hex::encode(Sha256::digest(line))))))
}

/// The latest `limit` entries that match, the latest last. Lines that do not read are passed over.
pub(super) fn read(path: &Path, limit: usize, matches: &dyn Fn(&Entry) -> bool) -> io::Result<Vec<Entry>> {
    let mut found = std::collections::VecDeque::new();
    for n in 0..=KEPT {
        let one = if n == 0 { path.to_owned() } else { rotated(path, n) };
        let file = match File::open(one) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        let wanted = limit - found.len();
        let mut latest = std::collections::VecDeque::new();
        let mut lines = BufReader::new(file);
        let mut line = Vec::new();
        while lines.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? > 0 {
            if let Some(entry) = serde_json::from_slice::<Entry>(&line).ok().filter(matches) {
                latest.push_back(entry);
                if latest.len() > wanted {
                    latest.pop_front();
                }
            }
            line.clear();
        }
        latest.extend(found);
        found = latest;
        if found.len() >= limit {
            break;
        }
    }
    Ok(found.into())
}

/// The first break of the chain in the files of an audit, oldest first: the number of a line whose `prev` is not the hash
/// of the line before it.
///
/// # Errors
/// A file can not be read.
#[cfg(test)]
pub(super) fn first_break(path: &Path) -> io::Result<Option<u64>> {
    let mut prev: Option<String> = None;
    for n in (0..=KEPT).rev() {
        let one = if n == 0 { path.to_owned() } else { rotated(path, n) };
        let Ok(text) = std::fs::read_to_string(one) else { continue };
        for line in text.lines() {
            let entry: Entry = serde_json::from_str(line)?;
            if prev.as_ref().is_some_and(|p| *p != entry.prev) {
                return Ok(Some(entry.seq));
            }
            prev = Some(hex::encode(Sha256::digest(line.as_bytes())));
        }
    }
    Ok(None)
}
