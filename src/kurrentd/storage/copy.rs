//! Making one image file from another: by reference where the file system can, else octet by octet without its holes.

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Octets moved at once; also the smallest hole that is worth making.
const CHUNK: usize = 1 << 20;
const BLOCK: usize = 4096;

/// What [`reflink`] did.
#[derive(Debug, PartialEq, Eq)]
pub enum Reflinked {
    /// `to` shares all of `from`.
    Yes,
    /// This file system can not; `to` is as it was.
    NotHere,
}

/// `FICLONE`: near-instant whatever the size (btrfs, xfs).
///
/// # Errors
/// Anything but "this file system can not".
pub fn reflink(from: &File, to: &File) -> io::Result<Reflinked> {
    match rustix::fs::ioctl_ficlone(to, from) {
        Ok(()) => Ok(Reflinked::Yes),
        Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL | Errno::XDEV | Errno::NOSYS | Errno::PERM) => Ok(Reflinked::NotHere),
        Err(e) => Err(e.into()),
    }
}

/// How much more is done.
#[derive(Clone, Copy, Debug)]
pub enum Moved {
    /// Nothing was there, and nothing is.
    Hole(u64),
    /// Octets were copied.
    Data(u64),
}

/// Copies what is there and leaves holes where nothing is.
///
/// `progress` is told how much more is done; an error from it stops the copy.
///
/// # Errors
/// Reading or writing failed; `to` is to be thrown away.
pub fn sparse_copy(from: &File, to: &File, progress: &mut dyn FnMut(Moved) -> io::Result<()>) -> io::Result<()> {
    let size = from.metadata()?.len();
    to.set_len(size)?;
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    while at < size {
        let data = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(data) => data,
            // No data behind `at`.
            Err(Errno::NXIO) => size,
            // A file system without holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(e) => return Err(e.into()),
        };
        progress(Moved::Hole(data.min(size).saturating_sub(at)))?;
        at = data.min(size);
        let hole = match rustix::fs::seek(from, SeekFrom::Hole(at)) {
            Ok(hole) => hole,
            Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP) => size,
            Err(e) => return Err(e.into()),
        };
        while at < hole.min(size) {
            let most = usize::try_from(hole.min(size) - at).unwrap_or(CHUNK).min(CHUNK);
            let chunk = buffer.get_mut(..most).ok_or(io::ErrorKind::InvalidInput)?;
            from.read_exact_at(chunk, at)?;
            write_sparse(to, chunk, at)?;
            let moved = u64::try_from(most).unwrap_or(u64::MAX);
            progress(Moved::Data(moved))?;
            at = at.saturating_add(moved);
        }
    }
    Ok(())
}

/// Writes `octets` at `at`, skipping zero blocks: the file must be new, so that they read as zero.
fn write_sparse(to: &File, octets: &[u8], at: u64) -> io::Result<()> {
    let mut offset = at;
    for block in octets.chunks(BLOCK) {
        if block.iter().any(|o| *o != 0) {
            to.write_all_at(block, offset)?;
        }
        offset = offset.saturating_add(u64::try_from(block.len()).unwrap_or(u64::MAX));
    }
    Ok(())
}

/// A new file written in order, with holes for zero blocks.
pub struct SparseWriter {
    file: File,
    at: u64,
    pending: Vec<u8>,
}

impl SparseWriter {
    /// On an empty file.
    #[must_use]
    pub fn new(file: File) -> Self {
        Self { file, at: 0, pending: Vec::with_capacity(2 * CHUNK) }
    }

    /// How much was appended.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.at.saturating_add(u64::try_from(self.pending.len()).unwrap_or(u64::MAX))
    }

    /// Appends.
    ///
    /// # Errors
    /// As `write(2)`.
    pub fn push(&mut self, octets: &[u8]) -> io::Result<()> {
        self.pending.extend_from_slice(octets);
        if self.pending.len() >= CHUNK {
            let whole = self.pending.len() - self.pending.len() % BLOCK;
            self.flush(whole)?;
        }
        Ok(())
    }

    fn flush(&mut self, length: usize) -> io::Result<()> {
        write_sparse(&self.file, self.pending.get(..length).unwrap_or_default(), self.at)?;
        self.at = self.at.saturating_add(u64::try_from(length).unwrap_or(u64::MAX));
        self.pending.drain(..length);
        Ok(())
    }

    /// Writes the rest, gives the file its whole length and makes it durable.
    ///
    /// # Errors
    /// As `write(2)` and `fsync(2)`.
    pub fn finish(mut self) -> io::Result<u64> {
        self.flush(self.pending.len())?;
        self.file.set_len(self.at)?;
        self.file.sync_all()?;
        Ok(self.at)
    }
}
