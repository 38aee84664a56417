//! Octets to the peer: from memory, or from a file by `sendfile`, which copies nothing. Each answer is paced where there is a cap.

use super::files::{Artifact, WINDOW_BYTES};
use super::open::Progress;
use kurrent_core::http::pace::Pace;
use kurrent_sys::clock;
use rustix::fs::sendfile;
use rustix::net::{SendFlags, send};
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::TcpStream;

/// Where octets go.
pub struct Peer<'a> {
    /// The connection.
    pub stream: &'a mut TcpStream,
    /// Of the device.
    pub address: IpAddr,
    /// The cap, if there is one.
    pub pace: Option<&'a Mutex<Pace>>,
    /// How the connection gets on.
    pub progress: &'a Progress,
}

impl Peer<'_> {
    /// A head, and what follows it from memory.
    ///
    /// # Errors
    /// The peer is gone.
    pub async fn octets(&mut self, head: &[u8], body: &[u8]) -> io::Result<()> {
        self.turn(head.len().saturating_add(body.len())).await;
        let (mut head, mut body) = (head, body);
        while !(head.is_empty() && body.is_empty()) {
            let count = self.stream.write_vectored(&[IoSlice::new(head), IoSlice::new(body)]).await?;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.progress.took(count);
            let of_body = count.saturating_sub(head.len());
            head = head.get(count..).unwrap_or_default();
            body = body.get(of_body..).unwrap_or_default();
        }
        Ok(())
    }

    /// A head, and `length` octets of a file from `first` on.
    ///
    /// # Errors
    /// The peer is gone; or the file is shorter than it was when the length was promised: the connection has to end, so that the
    /// peer notices. Nothing is padded.
    pub async fn file(&mut self, head: &[u8], artifact: &Arc<Artifact>, first: u64, length: u64) -> io::Result<()> {
        let most = self.pace.map_or(WINDOW_BYTES, |pace| pace.lock().unwrap_or_else(PoisonError::into_inner).piece());
        let mut head = head;
        while !head.is_empty() {
            // The kernel waits for more, so that the head shares its segment with the beginning of the file.
            let stream: &TcpStream = self.stream;
            let octets = head;
            let sent = stream.async_io(Interest::WRITABLE, || Ok(send(stream, octets, SendFlags::MORE | SendFlags::NOSIGNAL)?)).await?;
            self.progress.took(sent);
            head = head.get(sent..).unwrap_or_default();
        }
        let (mut at, end) = (first, first.saturating_add(length));
        let mut warm_to = at;
        while at < end {
            if at >= warm_to {
                let window = WINDOW_BYTES.min(end - at);
                artifact.warm(at, window).await;
                warm_to = at.saturating_add(window);
            }
            let piece = usize::try_from(most.min(warm_to - at)).map_err(io::Error::other)?;
            self.turn(piece).await;
            let mut left = piece;
            while left > 0 {
                let stream: &TcpStream = self.stream;
                let sent = stream.async_io(Interest::WRITABLE, || Ok(sendfile(stream, artifact.file(), Some(&mut at), left)?)).await?;
                if sent == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                self.progress.took(sent);
                left = left.saturating_sub(sent);
            }
        }
        Ok(())
    }

    /// Waits for the device's turn.
    async fn turn(&self, octets: usize) {
        let Some(pace) = self.pace else { return };
        let octets = u64::try_from(octets).unwrap_or(u64::MAX);
        let wait = pace.lock().unwrap_or_else(PoisonError::into_inner).reserve(self.address, octets, clock::now().mono);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }
}
