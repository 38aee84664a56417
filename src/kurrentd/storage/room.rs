//! Room on the disk folder's file system, less what copies and imports that are under way will still take: two of them must not
//! each count on the same free space, run into the end together, and both fail.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// So much is promised to nobody: the ledgers are on the same file system as a rule, and must be able to commit when disks and
/// masters have taken the rest.
const FLOOR_BYTES: u64 = 64 << 20;
/// But of a small file system no more than this part.
const FLOOR_PART: u64 = 32;

/// Cheap to clone.
#[derive(Clone)]
pub(super) struct Room {
    folder: PathBuf,
    promised: Arc<Mutex<u64>>,
}

/// Room that is kept for one copy; what it did not take is free again when this is dropped.
pub(super) struct Promised {
    promised: Arc<Mutex<u64>>,
    bytes: u64,
}

fn lock(promised: &Mutex<u64>) -> MutexGuard<'_, u64> {
    promised.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Room {
    pub(super) fn of(folder: PathBuf) -> Self {
        Self { folder, promised: Arc::default() }
    }

    /// Free bytes that may be used, and all bytes.
    pub(super) fn space(&self) -> io::Result<(u64, u64)> {
        self.less(*lock(&self.promised))
    }

    fn less(&self, promised: u64) -> io::Result<(u64, u64)> {
        let stat = rustix::fs::statvfs(&self.folder)?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        let total = stat.f_blocks.saturating_mul(stat.f_frsize);
        let floor = FLOOR_BYTES.min(total / FLOOR_PART);
        Ok((free.saturating_sub(promised).saturating_sub(floor), total))
    }

    /// Keeps so much; `None` when it is not there.
    pub(super) fn promise(&self, bytes: u64) -> io::Result<Option<Promised>> {
        let mut promised = lock(&self.promised);
        let (free, _) = self.less(*promised)?;
        if free < bytes {
            return Ok(None);
        }
        *promised = promised.saturating_add(bytes);
        Ok(Some(Promised { promised: Arc::clone(&self.promised), bytes }))
    }
}

impl Promised {
    /// So much of it was not taken yet.
    pub(super) fn left(&self) -> u64 {
        self.bytes
    }

    /// So much of it is taken now.
    pub(super) fn taken(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
        let mut promised = lock(&self.promised);
        *promised = promised.saturating_sub(bytes);
    }
}

impl Drop for Promised {
    fn drop(&mut self) {
        self.taken(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_promised_is_not_promised_twice_and_comes_back() {
        let room = Room::of(std::env::temp_dir());
        let (free, total) = room.space().unwrap();
        let stat = rustix::fs::statvfs(std::env::temp_dir()).unwrap();
        assert!(room.promise(stat.f_bavail * stat.f_frsize).unwrap().is_none(), "the ledger's part of {total} is never promised");
        // Others use this file system too: with room to spare.
        let most = free / 4 * 3;
        let mut first = room.promise(most).unwrap().unwrap();
        assert!(room.promise(most).unwrap().is_none());
        first.taken(most / 3 * 2);
        let second = room.promise(most / 2).unwrap();
        assert!(second.is_some(), "what was taken is told by the file system itself");
        drop((first, second));
        assert!(room.promise(most).unwrap().is_some());
    }
}
