//! Sockets and limits: port 69, and one connected socket per transfer, so that the kernel drops what others send to it.

use crate::content::{Content, Files, Found};
use crate::transfer::{Event, Output, Transfer, low_bits};
use crate::wire::{self, ErrorCode, Initial, ReadRequest};
use std::collections::{HashMap, HashSet};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::time::Instant;

/// Longer requests are cut and then junk: RFC 2347 s2 bounds them by 512.
const REQUEST_BYTES: usize = 1024;

/// What one server and one client may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Transfers at once; further requests are dropped, and their clients ask again.
    pub transfers: usize,
    /// Transfers at once of one address.
    pub transfers_per_address: usize,
    /// Largest block: what fits into one frame of the link.
    pub block_bytes: u16,
}

/// Running transfers: by client, and how many per address.
#[derive(Default)]
struct Running {
    clients: HashSet<SocketAddrV4>,
    addresses: HashMap<Ipv4Addr, usize>,
}

impl Running {
    /// `false`: a repeated request of a running transfer, or one too many.
    fn enter(&mut self, client: SocketAddrV4, limits: Limits) -> bool {
        let of_address = self.addresses.get(client.ip()).copied().unwrap_or(0);
        if self.clients.contains(&client) || self.clients.len() >= limits.transfers || of_address >= limits.transfers_per_address {
            return false;
        }
        self.clients.insert(client);
        *self.addresses.entry(*client.ip()).or_default() += 1;
        true
    }

    fn leave(&mut self, client: SocketAddrV4) {
        self.clients.remove(&client);
        if let Some(count) = self.addresses.get_mut(client.ip()) {
            *count -= 1;
            if *count == 0 {
                self.addresses.remove(client.ip());
            }
        }
    }
}

/// A transfer's entry in [`Running`], taken out however its task ends.
struct Entered {
    running: Arc<Mutex<Running>>,
    client: SocketAddrV4,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).leave(self.client);
    }
}

/// Opens a socket for one transfer, bound like the server's but to a port of its own.
pub type OpenTransfer = Box<dyn Fn() -> io::Result<UdpSocket> + Send + Sync>;

/// Serves requests that arrive on `socket` until that fails. Cancel-safe: dropping it ends all transfers.
///
/// # Errors
/// The kernel's, when `socket` is of no use any more.
pub async fn serve(socket: UdpSocket, open: OpenTransfer, files: Arc<dyn Files>, limits: Limits) -> io::Result<()> {
    let running = Arc::new(Mutex::new(Running::default()));
    let mut transfers = tokio::task::JoinSet::new();
    let mut buffer = [0; REQUEST_BYTES];
    loop {
        let (len, client) = tokio::select! {
            received = socket.recv_from(&mut buffer) => match received {
                Ok((len, SocketAddr::V4(client))) => (len, client),
                Ok(_) => continue,
                // An ICMP error of an earlier answer, or the link is down: the service goes on, without spinning.
                Err(error) => {
                    tracing::debug!(%error, "TFTP: receiving");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
            Some(_) = transfers.join_next() => continue,
        };
        let request = match wire::initial(buffer.get(..len).unwrap_or_default()) {
            Initial::Read(request) => Some(request),
            Initial::Write => None,
            Initial::Junk => continue,
        };
        if !running.lock().unwrap_or_else(PoisonError::into_inner).enter(client, limits) {
            continue;
        }
        let entered = Entered { running: Arc::clone(&running), client };
        let connected = open();
        let files = Arc::clone(&files);
        transfers.spawn(async move {
            let outcome = async {
                let socket = connected?;
                socket.connect(SocketAddr::V4(entered.client)).await?;
                answer(&socket, *entered.client.ip(), request, files, limits).await
            };
            if let Err(error) = outcome.await {
                tracing::debug!(client = %entered.client, %error, "TFTP: a transfer ended");
            }
            drop(entered);
        });
    }
}

async fn answer(
    socket: &UdpSocket,
    client: Ipv4Addr,
    request: Option<ReadRequest>,
    files: Arc<dyn Files>,
    limits: Limits,
) -> io::Result<()> {
    let Some(request) = request else {
        // Revoked machines get no answer to a write either.
        let found = tokio::task::spawn_blocking(move || files.find(client, None)).await?;
        if !matches!(found, Found::Silence) {
            socket.send(&wire::error(ErrorCode::AccessViolation, "this server is read-only")).await?;
        }
        return Ok(());
    };
    let (name, mode) = (request.name.clone(), request.mode);
    let content = tokio::task::spawn_blocking(move || match files.find(client, name.as_deref()) {
        Found::Silence => Ok(None),
        Found::Nothing => Err((ErrorCode::NotFound, "no such file".to_owned())),
        // Paths and causes are for the log, not for the wire.
        Found::Fault(why) => {
            tracing::warn!(%client, ?name, %why, "TFTP: a file cannot be served");
            Err((ErrorCode::Undefined, "the file cannot be read; see the server's log".to_owned()))
        }
        Found::Octets(octets) => Ok(Some(Content::of_octets(octets, mode))),
        Found::File(file, size) => Content::of_file(file, size, mode).map(Some).map_err(|e| (ErrorCode::Undefined, e.to_string())),
    });
    match content.await? {
        Ok(Some(content)) => transfer(socket, &request, content, limits).await,
        Ok(None) => Ok(()),
        Err((code, message)) => socket.send(&wire::error(code, &message)).await.map(drop),
    }
}

async fn transfer(socket: &UdpSocket, request: &ReadRequest, mut content: Content, limits: Limits) -> io::Result<()> {
    let began = Instant::now();
    let (mut transfer, mut output) = Transfer::start(&request.asked, content.size(), limits.block_bytes, began.elapsed());
    let mut datagram = Vec::with_capacity(transfer.block_bytes() + 4);
    let mut received = [0; 64];
    loop {
        match output {
            Output::Wait => {}
            Output::OptionAck => send(socket, &wire::option_ack(transfer.accepted())).await?,
            Output::Blocks { first, last } => {
                for block in first..=last {
                    let at = u64::try_from(transfer.block_bytes()).unwrap_or(u64::MAX).saturating_mul(block - 1);
                    let payload = match content.slice(at, transfer.block_bytes()).await {
                        Ok(payload) => payload,
                        Err(error) => {
                            tracing::warn!(name = ?request.name, %error, "TFTP: reading a file that is being sent");
                            return socket
                                .send(&wire::error(ErrorCode::Undefined, "the file cannot be read; see the server's log"))
                                .await
                                .map(drop);
                        }
                    };
                    datagram.clear();
                    datagram.extend_from_slice(&wire::data_head(low_bits(block)));
                    datagram.extend_from_slice(payload);
                    send(socket, &datagram).await?;
                }
            }
            Output::Done => {
                tracing::debug!(name = ?request.name, octets = content.size(), millis = began.elapsed().as_millis(), "TFTP: sent");
                return Ok(());
            }
            Output::Aborted => return Ok(()),
            Output::GaveUp => return socket.send(&wire::error(ErrorCode::Undefined, "no answer in time")).await.map(drop),
        }
        let event = match tokio::time::timeout_at(began + transfer.deadline(), socket.recv(&mut received)).await {
            Ok(Ok(len)) => Event::Received(wire::reply(received.get(..len).unwrap_or_default())),
            // The client's port is closed: it is gone (a crash, or the end of a tsize probe; pin/tftp 125).
            Ok(Err(e)) if e.kind() == ErrorKind::ConnectionRefused => return Ok(()),
            Ok(Err(e)) => return Err(e),
            Err(_) => Event::Timer,
        };
        output = transfer.on(event, began.elapsed());
    }
}

/// A full queue of the link is waited for; a link that is down is like a loss.
async fn send(socket: &UdpSocket, octets: &[u8]) -> io::Result<()> {
    match socket.send(octets).await {
        Err(e) if matches!(e.kind(), ErrorKind::NetworkDown | ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable) => Ok(()),
        Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => Ok(()),
        other => other.map(drop),
    }
}

/// Binds a UDP socket for TFTP: to `address`, and to `interface` when one is named. Port 0 is any.
///
/// # Errors
/// The kernel's.
pub fn bind(address: IpAddr, port: u16, interface: Option<&str>) -> io::Result<UdpSocket> {
    let socket =
        socket2::Socket::new(socket2::Domain::for_address((address, port).into()), socket2::Type::DGRAM.nonblocking().cloexec(), None)?;
    if let Some(interface) = interface {
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    socket.bind(&SocketAddr::from((address, port)).into())?;
    UdpSocket::from_std(socket.into())
}
