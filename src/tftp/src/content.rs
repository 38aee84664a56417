//! What a transfer sends: a file read in pieces, or octets in memory.

use crate::wire::{Mode, netascii};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::net::IpAddr;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// A piece of a file that is kept while its blocks are sent. Small: a flood of requests must not fill the memory. Netascii changes lengths, so
/// such a file is converted whole, and is a text of a piece at most.
pub(crate) const PIECE_BYTES: usize = 64 * 1024;

/// What a name stands for.
#[derive(Debug)]
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

/// The caller's files.
pub trait Files: Send + Sync + 'static {
    /// What `name` (as the client wrote it; `None` when it is not text, or for a write) stands for, for this client.
    /// Called from threads that may wait for disks.
    fn find(&self, client: IpAddr, name: Option<&str>) -> Found;

    /// Whether this address is answered at all. Asked for each request before it takes a place, by the thread that sends: must not wait.
    fn answers(&self, client: IpAddr) -> bool {
        let _ = client;
        true
    }
}

/// A read that may wait for a disk.
pub(crate) struct Read {
    file: Arc<File>,
    buffer: Vec<u8>,
    at: u64,
}

/// A piece as it was read.
pub(crate) struct Piece {
    buffer: Vec<u8>,
    at: u64,
}

impl Read {
    /// Blocking.
    pub(crate) fn run(mut self) -> io::Result<Piece> {
        self.file.read_exact_at(&mut self.buffer, self.at)?;
        Ok(Piece { buffer: self.buffer, at: self.at })
    }
}

/// Whether octets can be sent now.
pub(crate) enum Held<'a> {
    /// Here they are.
    Yes(&'a [u8]),
    /// They have to be read first, and given back by [`Content::put`].
    Read(Read),
}

/// The octets of one transfer.
pub(crate) enum Content {
    Octets(Vec<u8>),
    File { file: Arc<File>, size: u64, piece: Vec<u8>, piece_at: u64 },
}

impl Content {
    /// The octets of a file in a transfer's mode, the first of them read already. Blocking.
    pub(crate) fn of_file(file: File, size: u64, mode: Mode) -> io::Result<Self> {
        match mode {
            Mode::Octet => {
                let mut piece = vec![0; usize::try_from(size).unwrap_or(usize::MAX).min(PIECE_BYTES)];
                file.read_exact_at(&mut piece, 0)?;
                Ok(Self::File { file: Arc::new(file), size, piece, piece_at: 0 })
            }
            Mode::Netascii => {
                let too_large = || io::Error::new(io::ErrorKind::FileTooLarge, "too large for netascii; ask in octet mode");
                let size = usize::try_from(size).ok().filter(|size| *size <= PIECE_BYTES).ok_or_else(too_large)?;
                let mut octets = vec![0; size];
                file.read_exact_at(&mut octets, 0)?;
                let mut text = netascii(&octets);
                if text.len() > PIECE_BYTES {
                    return Err(too_large());
                }
                text.shrink_to_fit();
                Ok(Self::Octets(text))
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

    /// The octets from `at`, at most `len`, less at the end. Never waits for a disk.
    ///
    /// # Errors
    /// The file cannot be read, or is shorter than it was.
    pub(crate) fn hold(&mut self, at: u64, len: usize) -> io::Result<Held<'_>> {
        let left = usize::try_from(self.size().saturating_sub(at)).unwrap_or(usize::MAX);
        let want = left.min(len);
        match self {
            Self::Octets(octets) => {
                let start = usize::try_from(at).unwrap_or(usize::MAX);
                Ok(Held::Yes(octets.get(start..start.saturating_add(want)).unwrap_or_default()))
            }
            Self::File { file, piece, piece_at, .. } => {
                if within(piece, *piece_at, at, want).is_none() {
                    // Large windows leave little of a piece for the next.
                    let len = if want * 2 > PIECE_BYTES { want } else { PIECE_BYTES.min(left) };
                    piece.resize(len, 0);
                    *piece_at = at;
                    match preadv2(&*file, &mut [IoSliceMut::new(piece)], at, ReadWriteFlags::NOWAIT) {
                        Ok(got) if got >= want => piece.truncate(got),
                        // Not in the page cache, or a file system that cannot say so (tmpfs, overlayfs).
                        Ok(_) | Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::INTR | Errno::NOSYS) => {
                            let buffer = std::mem::take(piece);
                            return Ok(Held::Read(Read { file: Arc::clone(file), buffer, at }));
                        }
                        Err(error) => {
                            piece.clear();
                            return Err(error.into());
                        }
                    }
                }
                Ok(Held::Yes(within(piece, *piece_at, at, want).unwrap_or_default()))
            }
        }
    }

    /// Takes back what [`Held::Read`] asked for.
    pub(crate) fn put(&mut self, read: Piece) {
        if let Self::File { piece, piece_at, .. } = self {
            (*piece, *piece_at) = (read.buffer, read.at);
        }
    }
}

fn within(piece: &[u8], piece_at: u64, at: u64, want: usize) -> Option<&[u8]> {
    let start = usize::try_from(at.checked_sub(piece_at)?).ok()?;
    piece.get(start..start.checked_add(want)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn held(content: &mut Content, at: u64, len: usize) -> Vec<u8> {
        loop {
            match content.hold(at, len).expect("a readable file") {
                Held::Yes(octets) => return octets.to_vec(),
                Held::Read(read) => {
                    let piece = read.run().expect("a readable file");
                    content.put(piece);
                }
            }
        }
    }

    fn file(octets: &[u8]) -> File {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(octets).expect("write");
        file
    }

    #[test]
    fn a_file_is_read_piece_by_piece_wherever_the_blocks_lie() {
        let octets: Vec<u8> = (0..300_001_u32).map(|n| u8::try_from(n * 7 % 251).unwrap_or(0)).collect();
        for block in [8, 512, 1468, 40_000, 65_464] {
            let mut content = Content::of_file(file(&octets), 300_001, Mode::Octet).expect("content");
            let (mut got, mut at) = (Vec::new(), 0);
            while got.len() < octets.len() {
                got.extend(held(&mut content, at, block));
                at += u64::try_from(block).expect("small");
            }
            assert!(got == octets, "{block}");
            assert!(held(&mut content, 300_001, block).is_empty());
            assert_eq!(held(&mut content, 1, 3), octets[1..4], "back again");
        }
    }

    #[test]
    fn a_file_that_was_cut_while_it_is_sent_is_an_error_and_never_padded() {
        let file = file(&[7; 200_000]);
        let mut content = Content::of_file(file.try_clone().expect("a clone"), 200_000, Mode::Octet).expect("content");
        file.set_len(100_000).expect("cut");
        match content.hold(150_000, 512) {
            Ok(Held::Yes(_)) => panic!("octets that are not there"),
            Ok(Held::Read(read)) => assert!(read.run().is_err()),
            Err(_) => {}
        }
    }

    #[test]
    fn netascii_is_text_and_takes_no_more_memory_than_a_piece() {
        let mut content = Content::of_file(file(b"a\nb"), 3, Mode::Netascii).expect("text");
        assert_eq!((content.size(), held(&mut content, 0, 512)), (4, b"a\r\nb".to_vec()));
        let netascii = |octets: &[u8]| Content::of_file(file(octets), u64::try_from(octets.len()).expect("small"), Mode::Netascii);
        assert!(netascii(&[b'a'; PIECE_BYTES]).is_ok());
        let longer_when_converted = [b"\n".as_slice(), &[b'a'; PIECE_BYTES - 1]].concat();
        for octets in [vec![b'a'; PIECE_BYTES + 1], longer_when_converted, vec![b'\n'; PIECE_BYTES]] {
            assert!(netascii(&octets).is_err_and(|e| e.kind() == io::ErrorKind::FileTooLarge), "{}", octets.len());
        }
    }
}
