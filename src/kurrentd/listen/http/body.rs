//! Bodies of known length: octets in memory, or a piece of a file read as the peer takes it.

use hyper::body::{Bytes, Frame, SizeHint};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::task::{JoinHandle, spawn_blocking};

/// Read at once: large enough that the thread hand-over costs little, small enough for hundreds of downloads.
pub const PIECE_BYTES: u64 = 32 * 1024;

/// See the module.
pub struct Body(Kind);

enum Kind {
    Whole(Option<Bytes>),
    File { file: Arc<File>, at: u64, left: u64, reading: Option<JoinHandle<io::Result<Vec<u8>>>> },
}

impl Body {
    /// Nothing.
    pub fn empty() -> Self {
        Self(Kind::Whole(None))
    }

    /// These octets.
    pub fn whole(octets: Bytes) -> Self {
        Self(Kind::Whole((!octets.is_empty()).then_some(octets)))
    }

    /// `length` octets of `file` from `first` on.
    pub fn file(file: File, first: u64, length: u64) -> Self {
        Self(Kind::File { file: Arc::new(file), at: first, left: length, reading: None })
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match &mut self.get_mut().0 {
            Kind::Whole(octets) => Poll::Ready(octets.take().map(|octets| Ok(Frame::data(octets)))),
            Kind::File { left: 0, .. } => Poll::Ready(None),
            Kind::File { file, at, left, reading } => {
                let task = reading.get_or_insert_with(|| read(Arc::clone(file), *at, PIECE_BYTES.min(*left)));
                let piece = ready!(Pin::new(task).poll(context)).unwrap_or_else(|error| Err(io::Error::other(error)));
                *reading = None;
                // The length is promised already: an error here closes the connection, so that the peer notices.
                Poll::Ready(Some(piece.map(|piece| {
                    let length = u64::try_from(piece.len()).unwrap_or(*left).min(*left);
                    *at += length;
                    *left -= length;
                    Frame::data(Bytes::from(piece))
                })))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.0, Kind::Whole(None) | Kind::File { left: 0, .. })
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(match &self.0 {
            Kind::Whole(octets) => octets.as_ref().and_then(|o| u64::try_from(o.len()).ok()).unwrap_or(0),
            Kind::File { left, .. } => *left,
        })
    }
}

fn read(file: Arc<File>, at: u64, length: u64) -> JoinHandle<io::Result<Vec<u8>>> {
    spawn_blocking(move || {
        let mut piece = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        // Shorter than it was when the length was promised: an error, never padding.
        file.read_exact_at(&mut piece, at)?;
        Ok(piece)
    })
}
