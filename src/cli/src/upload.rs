//! A file as a request body, read as the network takes it, with its progress.

use crate::progress::Progress;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::fs::File;
use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

const PIECE: usize = 256 * 1024;
/// Pieces read ahead of the network.
const AHEAD: usize = 8;

/// The body. Its length is what the file had when it was opened; a file that shrinks meanwhile ends the upload.
pub struct Upload {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    left: u64,
    progress: Progress,
}

impl Upload {
    /// Starts reading `file`.
    pub fn new(mut file: File, length: u64, what: &str) -> Self {
        let (sender, pieces) = mpsc::channel(AHEAD);
        std::thread::spawn(move || {
            let mut left = length;
            while left > 0 {
                let want = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
                let mut piece = vec![0; want];
                let read = file.read_exact(&mut piece).map(|()| Bytes::from(piece));
                let failed = read.is_err();
                left -= u64::try_from(want).unwrap_or(left);
                if sender.blocking_send(read).is_err() || failed {
                    return;
                }
            }
        });
        Self { pieces, left: length, progress: Progress::new(what, length) }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let piece = std::task::ready!(self.pieces.poll_recv(context));
        Poll::Ready(match piece {
            None => None,
            Some(Err(error)) => Some(Err(error)),
            Some(Ok(piece)) => {
                self.left = self.left.saturating_sub(u64::try_from(piece.len()).unwrap_or(0));
                let done = self.progress.total().saturating_sub(self.left);
                self.progress.show(done);
                Some(Ok(Frame::data(piece)))
            }
        })
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
