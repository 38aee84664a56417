//! The audit's files: appended, chained, rotated.

use super::{Entry, Event};
use kurrent_core::time::Wall;
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// In the state folder.
pub(super) const NAME: &str = "operations.jsonl";
/// A file of this size is rotated.
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
            detail: bounded(&event.detail),
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

/// The latest `limit` entries before `cursor` that match, the latest first. Lines that do not read are passed over.
///
/// The files may rotate meanwhile, which shows a file a second time under its next name: only what is older than everything
/// that was seen counts.
pub(super) fn read(path: &Path, limit: usize, cursor: Option<u64>, matches: &dyn Fn(&Entry) -> bool) -> io::Result<Vec<Entry>> {
    let mut found = Vec::new();
    let mut below = cursor.unwrap_or(u64::MAX);
    for n in 0..=KEPT {
        let Some(file) = open_if_there(path, n)? else { continue };
        let wanted = limit.saturating_sub(found.len());
        let mut latest = VecDeque::new();
        let mut lowest = below;
        let mut lines = BufReader::new(file);
        let mut line = Vec::new();
        while lines.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? > 0 {
            let entry = serde_json::from_slice::<Entry>(&line).ok().filter(|e| e.seq < below);
            lowest = lowest.min(entry.as_ref().map_or(u64::MAX, |e| e.seq));
            if let Some(entry) = entry.filter(matches) {
                latest.push_back(entry);
                if latest.len() > wanted {
                    latest.pop_front();
                }
            }
            line.clear();
        }
        below = lowest;
        found.extend(latest.into_iter().rev());
        if found.len() >= limit {
            break;
        }
    }
    Ok(found)
}

/// File `n` of the audit, 0 being the one that is written.
fn open_if_there(path: &Path, n: u32) -> io::Result<Option<File>> {
    match File::open(name_of(path, n)) {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

fn name_of(path: &Path, n: u32) -> PathBuf {
    if n == 0 { path.to_owned() } else { rotated(path, n) }
}

/// All audit files of a state folder that there are, the oldest first.
#[must_use]
pub fn names() -> Vec<String> {
    (0..=KEPT).rev().map(|n| name_of(Path::new(NAME), n).display().to_string()).collect()
}

/// The audit's files of a state folder, opened all before any is read, the oldest first. The newest is opened first: when the
/// files rotate meanwhile, one comes twice, which is told by its inode, and none is missed.
fn opened(folder: &Path) -> Result<Vec<(u32, File)>, (u32, io::Error)> {
    let path = folder.join(NAME);
    let mut files: Vec<(u32, u64, File)> = Vec::new();
    for n in 0..=KEPT {
        let Some(file) = open_if_there(&path, n).map_err(|e| (n, e))? else { continue };
        let inode = file.metadata().map_err(|e| (n, e))?.ino();
        if !files.iter().any(|(_, known, _)| *known == inode) {
            files.push((n, inode, file));
        }
    }
    Ok(files.into_iter().rev().map(|(n, _, file)| (n, file)).collect())
}

/// All files that there are, the oldest first, each with its name: for a copy.
///
/// # Errors
/// One can not be opened; with its path.
pub fn open_all(folder: &Path) -> Result<Vec<(String, File)>, (PathBuf, io::Error)> {
    let files = opened(folder).map_err(|(n, e)| (name_of(&folder.join(NAME), n), e))?;
    Ok(files.into_iter().map(|(n, file)| (name_of(Path::new(NAME), n).display().to_string(), file)).collect())
}

/// Where the chain is broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {what}", file = .file.display())]
pub struct Break {
    /// Which file.
    pub file: PathBuf,
    /// Which line of it.
    pub line: u64,
    /// What is wrong, and what that means.
    pub what: String,
}

/// Walks the hash chain of a state folder's audit, oldest file first; returns the number of entries. Changes nothing.
///
/// # Errors
/// The first [`Break`]; a file that can not be read is one as well.
pub fn verify(folder: &Path) -> Result<u64, Break> {
    let path = folder.join(NAME);
    let broken = |n: u32, line: u64, what: String| Break { file: name_of(&path, n), line, what };
    let unreadable = |n: u32, e: io::Error| broken(n, 0, format!("the audit can not be read: {e}; check the disk and its permissions"));
    let mut last: Option<(u64, String)> = None;
    let mut entries = 0;
    for (n, file) in opened(folder).map_err(|(n, e)| unreadable(n, e))? {
        let mut lines = BufReader::new(file);
        let (mut line, mut number) = (Vec::new(), 0);
        loop {
            line.clear();
            if lines.by_ref().take(MAX_LINE).read_until(b'\n', &mut line).map_err(|e| unreadable(n, e))? == 0 {
                break;
            }
            number += 1;
            if line.pop_if(|o| *o == b'\n').is_none() && n == 0 {
                // Half a line at the very end is one that is being written, or that a power cut left: nobody was told of it.
                break;
            }
            let entry: Entry = serde_json::from_slice(&line)
                .map_err(|e| broken(n, number, format!("this is no line of the audit ({e}): it was changed")))?;
            let (seq, prev) = last.take().map_or_else(|| (entry.seq, first_prev(&entry)), |(seq, prev)| (seq.saturating_add(1), prev));
            if entry.prev != prev || entry.seq != seq {
                let what = "the chain is broken: the line before this one was changed, or lines between them were removed";
                return Err(broken(n, number, format!("{what} (entry {}, entry {seq} is expected)", entry.seq)));
            }
            last = Some((entry.seq, hex::encode(Sha256::digest(&line))));
            entries += 1;
        }
    }
    Ok(entries)
}

/// What the oldest entry has to say of the one before it: only of the very first it is known.
fn first_prev(entry: &Entry) -> String {
    if entry.seq == 1 { FIRST_PREV.to_owned() } else { entry.prev.clone() }
}
