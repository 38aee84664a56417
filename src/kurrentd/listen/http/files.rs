//! The files that are served, open and, when small, in memory. What is kept is judged at each request by what the file system says of
//! the name now, so a file that was replaced or changed is never served as it was. Bounded by the table of names.

use crate::artifacts;
use hyper::body::Bytes;
use rustix::fs::{Advice, fadvise, fstatfs};
use rustix::io::{ReadWriteFlags, preadv2};
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Largest file that is kept in memory, octets: scripts and small programs. For larger ones `sendfile` needs no copy at all.
pub const SMALL_BYTES: u64 = 16 * 1024;
/// A file's times have the grain of a kernel tick: two changes within one look like one. So what changed so recently is not kept.
const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// Looked after at once: whether it is in the page cache, and read if not.
pub const WINDOW_BYTES: u64 = 512 * 1024;
/// Read at once into a scratch buffer, only to have it in the page cache.
const SCRATCH_BYTES: usize = 64 * 1024;
/// `statfs`: these have no disk behind them (linux/magic.h).
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// What tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    place: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(m: &Metadata) -> Self {
        Self { place: (m.dev(), m.ino()), size: m.len(), modified: (m.mtime(), m.mtime_nsec()), changed: (m.ctime(), m.ctime_nsec()) }
    }
}

/// One state of a file.
pub struct Artifact {
    file: File,
    path: PathBuf,
    stamp: Stamp,
    content: Option<Bytes>,
    has_disk: bool,
}

impl Artifact {
    /// Octets in all.
    pub fn size(&self) -> u64 {
        self.stamp.size
    }

    /// All of it, if it is kept in memory.
    pub fn content(&self) -> Option<&Bytes> {
        self.content.as_ref()
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Has the octets from `at` on in the page cache, so that sending them does not keep a thread of the runtime waiting for a disk.
    pub async fn warm(self: &Arc<Self>, at: u64, length: u64) {
        if !self.has_disk || length == 0 || (self.is_cached(at) && self.is_cached(at.saturating_add(length - 1))) {
            return;
        }
        let artifact = Arc::clone(self);
        // Errors show when it is sent.
        let _ = tokio::task::spawn_blocking(move || artifact.read_ahead(at, length)).await;
    }

    fn is_cached(&self, at: u64) -> bool {
        let mut octet = [0];
        preadv2(&self.file, &mut [IoSliceMut::new(&mut octet)], at, ReadWriteFlags::NOWAIT).is_ok()
    }

    fn read_ahead(&self, at: u64, length: u64) {
        // What comes next is read by the kernel meanwhile.
        let _ = fadvise(&self.file, at, NonZeroU64::new(length.saturating_mul(2)), Advice::WillNeed);
        let mut scratch = vec![0; SCRATCH_BYTES];
        let end = at.saturating_add(length);
        let mut at = at;
        while at < end {
            match self.file.read_at(&mut scratch, at) {
                Ok(0) | Err(_) => return,
                Ok(count) => at = at.saturating_add(u64::try_from(count).unwrap_or(u64::MAX)),
            }
        }
    }
}

/// See the module.
pub struct Files {
    folder: PathBuf,
    open: Mutex<HashMap<&'static str, Arc<Artifact>>>,
}

impl Files {
    /// None is open yet.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, open: Mutex::default() }
    }

    /// A file of the table as it is now.
    ///
    /// # Errors
    /// What the disk says; [`io::ErrorKind::NotFound`] also for what is not a regular file.
    pub async fn get(&self, name: &'static str) -> io::Result<Arc<Artifact>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        if let Some(artifact) = open {
            // The names were looked up before: this is answered from the kernel's memory.
            if std::fs::metadata(&artifact.path).is_ok_and(|now| Stamp::of(&now) == artifact.stamp) {
                return Ok(artifact);
            }
            self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        }
        let folder = self.folder.clone();
        let artifact = tokio::task::spawn_blocking(move || load(folder, name)).await.map_err(io::Error::other)??;
        let artifact = Arc::new(artifact);
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(name, Arc::clone(&artifact));
        Ok(artifact)
    }
}

fn load(folder: PathBuf, name: &'static str) -> io::Result<Artifact> {
    let (file, size) = artifacts::open(&folder, name)?;
    let metadata = file.metadata()?;
    let stamp = Stamp::of(&metadata);
    let settled = metadata.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok()).is_some_and(|age| age >= SETTLED_AFTER);
    let mut content = None;
    if settled && size <= SMALL_BYTES {
        let mut octets = vec![0; usize::try_from(size).map_err(io::Error::other)?];
        file.read_exact_at(&mut octets, 0)?;
        // Nothing was written meanwhile.
        content = (Stamp::of(&file.metadata()?) == stamp).then(|| Bytes::from(octets));
    }
    let has_disk = fstatfs(&file).map_or(true, |fs| !u64::try_from(fs.f_type).is_ok_and(|kind| IN_MEMORY.contains(&kind)));
    Ok(Artifact { file, path: folder.join(name), stamp, content, has_disk })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "kurrent-attest.efi";

    fn folder(octets: &[u8], age: Duration) -> (tempfile::TempDir, Files) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(NAME), octets).unwrap();
        File::options().write(true).open(folder.path().join(NAME)).unwrap().set_modified(SystemTime::now() - age).unwrap();
        let files = Files::new(folder.path().to_owned());
        (folder, files)
    }

    #[tokio::test]
    async fn a_small_file_is_kept_in_memory_until_it_changes() {
        let (folder, files) = folder(b"first", Duration::from_secs(60));
        let first = files.get(NAME).await.unwrap();
        assert_eq!(first.content().unwrap(), "first");
        assert!(Arc::ptr_eq(&first, &files.get(NAME).await.unwrap()), "opened once");
        // In place, with the very same size and time of modification.
        let path = folder.path().join(NAME);
        let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
        std::fs::write(&path, b"again").unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        assert_eq!(files.get(NAME).await.unwrap().content().unwrap(), "again");
        // Replaced by another file.
        std::fs::write(folder.path().join("new"), b"third").unwrap();
        std::fs::rename(folder.path().join("new"), &path).unwrap();
        let third = files.get(NAME).await.unwrap();
        assert_eq!((third.size(), third.content()), (5, None), "what changed a moment ago is read from the file");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(files.get(NAME).await.err().map(|e| e.kind()), Some(io::ErrorKind::NotFound));
        assert!(files.open.lock().unwrap().is_empty(), "nothing of a removed file is held");
        std::fs::create_dir(&path).unwrap();
        assert_eq!(files.get(NAME).await.err().map(|e| e.kind()), Some(io::ErrorKind::NotFound));
    }

    #[tokio::test]
    async fn a_large_file_is_not_kept_in_memory_and_can_be_warmed_anywhere() {
        let (_folder, files) = folder(&vec![7; 300_000], Duration::from_secs(60));
        let artifact = files.get(NAME).await.unwrap();
        assert!(artifact.content().is_none());
        for (at, length) in [(0, 300_000), (299_999, 1), (299_999, WINDOW_BYTES), (u64::MAX, u64::MAX), (0, 0)] {
            artifact.warm(at, length).await;
        }
        assert!(artifact.is_cached(0));
    }
}
