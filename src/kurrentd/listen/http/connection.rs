//! One connection: heads in, answers out, in order. It ends with the first request that is not understood, as nobody knows where the
//! next one begins; and with one whose body nobody read.

use super::open::Progress;
use super::route::{self, Body, Reply};
use super::send::Peer;
use super::{MAX_FORM_BYTES, Server};
use crate::listen::limits;
use kurrent_core::http::answer::{Answer, Status};
use kurrent_core::http::head::{self, Head, MAX_HEAD_BYTES, Read};
use kurrent_core::http::{BadForm, Form};
use std::io;
use std::net::IpAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Read at once.
const CHUNK_BYTES: usize = 2048;
/// RFC 9110 section 10.1.1.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// How long, and for how many octets, a peer may go on sending after our last word. Closed at once, the kernel would tell it to forget
/// that word (RFC 9112 section 9.6).
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 64 * 1024;

/// What is left in memory for a quiet peer besides the kernel's buffers, octets: a head and a form, what is read at once, an answer's
/// head.
#[cfg(test)]
pub const HELD_BYTES: usize = MAX_HEAD_BYTES + 2 * CHUNK_BYTES + MAX_FORM_BYTES + 2 * kurrent_core::http::answer::MAX_HEAD_BYTES;

/// Serves a connection to its end, or until it has to give way.
pub async fn serve(server: &Server, stream: TcpStream, address: IpAddr, progress: &Progress) {
    let connection = Connection { server, stream, address, progress, input: Vec::new(), output: String::new() };
    let serving = limits::while_it_moves(connection.run(), &progress.moved, server.limits.least, server.limits.lifetime);
    let ended = tokio::select! {
        ended = serving => ended,
        () = progress.gives_way() => return server.warn("gives-way", "no place for another connection: those that got nowhere for longest end"),
    };
    match ended {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::debug!(%address, %error, "boot plane: connection ended"),
        None => tracing::debug!(%address, "boot plane: connection lived too long"),
    }
}

struct Connection<'a> {
    server: &'a Server,
    stream: TcpStream,
    address: IpAddr,
    progress: &'a Progress,
    /// Read and not yet used.
    input: Vec<u8>,
    output: String,
}

impl Connection<'_> {
    async fn run(mut self) -> io::Result<()> {
        loop {
            let limit = self.server.limits.read;
            let Ok(found) = tokio::time::timeout(limit, self.head_arrives()).await else { return Ok(()) };
            if !found? {
                return Ok(());
            }
            self.progress.mark();
            // The head is used in place; what follows it is the beginning of a body or of the next request.
            let mut octets = std::mem::take(&mut self.input);
            let keep = match head::read(&octets) {
                Read::More => return Ok(()),
                Read::Refused(refusal) => {
                    let plane = &self.server.plane;
                    let silenced = plane.is_silenced(plane.peer(self.address), "http");
                    let status = if silenced { Status::NotFound } else { refusal.into() };
                    self.send(Answer::empty(status).into(), false, None).await?;
                    false
                }
                Read::Whole(head, length) => {
                    self.input.extend_from_slice(octets.get(length..).unwrap_or_default());
                    self.answer(&head).await?
                }
            };
            if !keep {
                return self.linger().await;
            }
            octets.clear();
            octets.append(&mut self.input);
            self.input = octets;
        }
    }

    /// Reads until there is a head, or what can not become one; false at the peer's end.
    async fn head_arrives(&mut self) -> io::Result<bool> {
        while self.input.is_empty() || head::read(&self.input) == Read::More {
            if self.read(MAX_HEAD_BYTES).await? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads a chunk, so that not much more than `most` octets lie here. Zero: the peer sends no more.
    async fn read(&mut self, most: usize) -> io::Result<usize> {
        let mut chunk = [0; CHUNK_BYTES];
        let room = most.saturating_sub(self.input.len()).clamp(1, CHUNK_BYTES);
        let count = self.stream.read(chunk.get_mut(..room).unwrap_or_default()).await?;
        self.input.extend_from_slice(chunk.get(..count).unwrap_or_default());
        Ok(count)
    }

    /// Answers a request; whether another one may come.
    async fn answer(&mut self, head: &Head<'_>) -> io::Result<bool> {
        let plane = &self.server.plane;
        let peer = plane.peer(self.address);
        let mut body_is_read = head.body_bytes == 0;
        let reply = if plane.is_silenced(peer, "http") {
            Answer::empty(Status::NotFound).into()
        } else if route::takes_form(head) {
            match self.form(head).await? {
                Ok(form) => {
                    body_is_read = true;
                    route::form(plane, peer, head.path, &form).await
                }
                Err(status) => Answer::empty(status).into(),
            }
        } else {
            route::route(self.server, peer, head).await
        };
        tracing::debug!(address = %self.address, path = head.path, status = reply.answer.status.line(), "boot plane");
        let keep = head.keep_alive && body_is_read;
        self.send(reply, keep, Some(head)).await?;
        Ok(keep)
    }

    /// The form in a request's body, all of it.
    async fn form(&mut self, head: &Head<'_>) -> io::Result<Result<Form, Status>> {
        let Some(length) = usize::try_from(head.body_bytes).ok().filter(|length| *length <= MAX_FORM_BYTES) else {
            return Ok(Err(Status::ContentTooLarge));
        };
        let limit = self.server.limits.read;
        let arrives = async {
            if head.expects_continue && self.input.len() < length {
                self.stream.write_all(CONTINUE).await?;
            }
            while self.input.len() < length {
                if self.read(length).await? == 0 {
                    return Ok::<_, io::Error>(false);
                }
            }
            Ok(true)
        };
        match tokio::time::timeout(limit, arrives).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => return Ok(Err(Status::BadRequest)),
            Ok(Err(error)) => return Err(error),
            Err(_) => return Ok(Err(Status::RequestTimeout)),
        }
        let rest = self.input.split_off(length);
        let body = std::mem::replace(&mut self.input, rest);
        Ok(Form::parse(&body).map_err(|BadForm { .. }| Status::BadRequest))
    }

    async fn send(&mut self, reply: Reply, keep: bool, head: Option<&Head<'_>>) -> io::Result<()> {
        self.output.clear();
        reply.answer.write(&mut self.output, &self.server.date(), keep, head);
        let output = self.output.as_bytes();
        let pace = self.server.pace.as_ref();
        let mut peer = Peer { stream: &mut self.stream, address: self.address, pace, progress: self.progress };
        match &reply.body {
            Body::None => peer.octets(output, &[]).await,
            Body::Octets(octets) => peer.octets(output, octets).await,
            Body::File(artifact, first, length) => peer.file(output, artifact, *first, *length).await,
        }
    }

    async fn linger(mut self) -> io::Result<()> {
        self.stream.shutdown().await?;
        let drained = async {
            let mut chunk = [0; CHUNK_BYTES];
            let mut left = LINGER_BYTES;
            while left > 0 {
                match self.stream.read(&mut chunk).await {
                    Ok(0) | Err(_) => break,
                    Ok(count) => left = left.saturating_sub(count),
                }
            }
        };
        // Whoever does not end in time is cut off.
        let _ = tokio::time::timeout(LINGER, drained).await;
        Ok(())
    }
}
