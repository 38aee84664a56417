//! The body of an answer that is a file: read in pieces as the peer takes them.

use hyper::body::{Bytes, Frame, SizeHint};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::task::{JoinHandle, spawn_blocking};

/// Read at once: large enough that the thread hand-over costs little, small enough for all places of the API at once.
const PIECE_BYTES: u64 = 32 * 1024;

/// See the module.
pub struct FileBody {
    file: Arc<File>,
    at: u64,
    left: u64,
    reading: Option<JoinHandle<io::Result<Vec<u8>>>>,
}

impl FileBody {
    /// The first `size` octets of `file`.
    pub fn new(file: File, size: u64) -> Self {
        Self { file: Arc::new(file), at: 0, left: size, reading: None }
    }
}

impl hyper::body::Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let Self { file, at, left, reading } = self.get_mut();
        if *left == 0 {
            return Poll::Ready(None);
        }
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

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
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
