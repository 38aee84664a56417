//! What a connection begins with: TLS for everybody; plain HTTP for loopback alone (a reverse proxy on the same host, tests).
//!
//! The first octet decides: 22 is a TLS handshake record (RFC 8446 section 5.1), and begins no request. Whoever else speaks plain HTTP
//! is told where to go; what he sent is not looked at, as a token in it is known to the whole network by now.

use super::problem::Problem;
use crate::listen::limits::Counted;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

const HANDSHAKE: u8 = 0x16;
/// Of a plain request that is refused: thrown away, or the kernel would reset the connection before the answer is read.
const MAX_THROWN_AWAY: u64 = 64 * 1024;
const THROW_AWAY_WITHIN: Duration = Duration::from_secs(2);

/// A connection, and its count of octets.
pub(super) enum Opened {
    /// The handshake is done.
    Tls(Box<TlsStream<Counted<TcpStream>>>, Arc<AtomicU64>),
    /// From loopback.
    Plain(Counted<TcpStream>, Arc<AtomicU64>),
    /// Told to come by TLS, and closed.
    Refused,
}

/// Looks at the first octet and does the handshake. The caller has the deadline.
///
/// # Errors
/// The peer is gone, or its handshake fails.
pub(super) async fn open(mut stream: TcpStream, peer: IpAddr, acceptor: &TlsAcceptor) -> io::Result<Opened> {
    let mut first = [0; 1];
    if stream.peek(&mut first).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if first != [HANDSHAKE] && !peer.is_loopback() {
        refuse(&mut stream).await?;
        return Ok(Opened::Refused);
    }
    let (stream, octets) = Counted::new(stream);
    Ok(match first {
        [HANDSHAKE] => Opened::Tls(Box::new(acceptor.accept(stream).await?), octets),
        _ => Opened::Plain(stream, octets),
    })
}

async fn refuse(stream: &mut TcpStream) -> io::Result<()> {
    let local = stream.local_addr()?;
    let url = format!("https://{}", SocketAddr::new(local.ip().to_canonical(), local.port()));
    let what = format!("this port speaks TLS: use {url}; if the request had a token in it, it was sent in clear: make another one");
    let body = serde_json::to_string(&Problem::new(400, "https_needed", what))?;
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: application/problem+json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    let throw_away = async { tokio::io::copy(&mut stream.take(MAX_THROWN_AWAY), &mut tokio::io::sink()).await };
    // How it ends does not matter: the answer is sent.
    let _ = tokio::time::timeout(THROW_AWAY_WITHIN, throw_away).await;
    Ok(())
}
