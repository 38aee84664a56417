//! What a transfer sends: a file read in pieces, or octets in memory.

use crate::wire::{Mode, netascii};
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// A piece of a file that is kept while its blocks are sent. Small: a flood of requests must not fill the memory.
const PIECE_BYTES: usize = 64 * 1024;
/// Netascii changes lengths, so such a file is converted whole; a larger one is not text.
const MAX_NETASCII_BYTES: u64 = 4 << 20;

/// What a name stands for.
pub enum Found {
    /// A file of this many octets.
    File(File, u64),
    /// Octets made for the occasion.
    Octets(Vec<u8>),
    /// No such file; the client is told.
    Nothing,
    /// No answer at all.
    Silence,
    /// It should be there but cannot be read; the client is told, the reason is logged.
    Fault(String),
}

/// The caller's files. Called from blocking threads.
pub trait Files: Send + Sync + 'static {
    /// What `name` (as the client wrote it; `None` when it is not text) stands for, for this client.
    fn find(&self, client: Ipv4Addr, name: Option<&str>) -> Found;
}

/// The octets of one transfer.
pub(crate) enum Content {
    Octets(Vec<u8>),
    File { file: Arc<File>, size: u64, piece: Vec<u8>, piece_at: u64 },
}

impl Content {
    /// The octets of a file in a transfer's mode. Blocking.
    pub(crate) fn of_file(file: File, size: u64, mode: Mode) -> io::Result<Self> {
        match mode {
            Mode::Octet => Ok(Self::File { file: Arc::new(file), size, piece: Vec::new(), piece_at: 0 }),
            Mode::Netascii if size > MAX_NETASCII_BYTES => {
                Err(io::Error::new(io::ErrorKind::FileTooLarge, "too large for netascii; ask in octet mode"))
            }
            Mode::Netascii => {
                let mut octets = vec![0; usize::try_from(size).unwrap_or(0)];
                file.read_exact_at(&mut octets, 0)?;
                Ok(Self::of_octets(octets, mode))
            }
        }
    }

    pub(crate) fn of_octets(octets: Vec<u8>, mode: Mode) -> Self {
        match mode {
            Mode::Octet => Self::Octets(octets),
            Mode::Netascii => Self::Octets(netascii(&octets)),
        }
    }

    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Octets(octets) => u64::try_from(octets.len()).unwrap_or(u64::MAX),
            Self::File { size, .. } => *size,
        }
    }

    /// The octets from `at`, at most `len`, less at the end.
    pub(crate) async fn slice(&mut self, at: u64, len: usize) -> io::Result<&[u8]> {
        let want = usize::try_from(self.size().saturating_sub(at)).unwrap_or(usize::MAX).min(len);
        match self {
            Self::Octets(octets) => {
                let start = usize::try_from(at).unwrap_or(usize::MAX);
                Ok(octets.get(start..start.saturating_add(want)).unwrap_or_default())
            }
            Self::File { file, size, piece, piece_at } => {
                let held = |piece: &Vec<u8>, piece_at: u64| {
                    let start = usize::try_from(at.checked_sub(piece_at)?).ok()?;
                    let end = start.checked_add(want)?;
                    (end <= piece.len()).then_some(start..end)
                };
                if held(piece, *piece_at).is_none() {
                    let file = Arc::clone(file);
                    let left = usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX);
                    let mut buffer = std::mem::take(piece);
                    buffer.resize(PIECE_BYTES.max(len).min(left), 0);
                    // The file may lie on a slow or sleeping disk: never read on the runtime's own threads.
                    *piece = tokio::task::spawn_blocking(move || file.read_exact_at(&mut buffer, at).map(|()| buffer)).await??;
                    *piece_at = at;
                }
                Ok(held(piece, *piece_at).and_then(|range| piece.get(range)).unwrap_or_default())
            }
        }
    }
}
