//! What a caller sets, binds and awaits.

use crate::content::Files;
use crate::reactor::Reactor;
use crate::socket;
use rustix::event::{EventfdFlags, eventfd};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::{io, thread};
use tokio::sync::oneshot;

/// The TFTP port (RFC 1350 s4).
const PORT: u16 = 69;

/// What one server and one client may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Transfers at once; of further requests each takes the place of the oldest transfer without an ACK, if there is one.
    pub transfers: usize,
    /// Transfers at once of one address.
    pub transfers_per_address: usize,
    /// Largest block: what fits into one frame of the link. 1468 on Ethernet with IPv4, 1448 with IPv6.
    pub block_bytes: u16,
}

/// Which UDP ports transfers use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// The kernel's choice, one per transfer.
    Any,
    /// One per transfer, from the first to the last of these; a firewall may know them. There are no more transfers than ports.
    Range(u16, u16),
    /// All transfers use the server's own port, and are told apart by the client's address and port: for NAT and strict firewalls.
    Single,
}

/// Where and how to serve.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address to serve on; answers come from it, too.
    pub address: IpAddr,
    /// The server's port.
    pub port: u16,
    /// The one interface to serve on; absent: any.
    pub interface: Option<String>,
    /// Ports of transfers.
    pub ports: Ports,
    /// What may be taken.
    pub limits: Limits,
}

impl Options {
    /// Port 69 of an address, any interface and transfer port, 512 transfers, 128 of one address, blocks for Ethernet.
    #[must_use]
    pub fn new(address: IpAddr) -> Self {
        let block_bytes = if address.is_ipv4() { 1468 } else { 1448 };
        let limits = Limits { transfers: 512, transfers_per_address: 128, block_bytes };
        Self { address, port: PORT, interface: None, ports: Ports::Any, limits }
    }
}

/// A server that has its port.
#[derive(Debug)]
pub struct Server {
    pub(crate) socket: UdpSocket,
    pub(crate) options: Options,
}

impl Server {
    /// Binds the server's port.
    ///
    /// # Errors
    /// The kernel's: the port is in use, the address is not there, a privilege is missing.
    pub fn bind(options: Options) -> io::Result<Self> {
        let socket = socket::bind(options.address, options.port, options.interface.as_deref())?;
        socket::widen(&socket);
        Ok(Self { socket, options })
    }

    /// The port that was bound; for [`Options::port`] 0.
    ///
    /// # Errors
    /// The kernel's.
    pub fn port(&self) -> io::Result<u16> {
        self.socket.local_addr().map(|address| address.port())
    }
}

/// Serves until that fails. Cancel-safe: dropping it ends all transfers and frees the port.
///
/// # Errors
/// The kernel's, when the socket is of no use any more or a thread can not be started.
pub async fn serve(server: Server, files: Arc<dyn Files>) -> io::Result<()> {
    let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
    let (ended, end) = oneshot::channel();
    let reactor = Reactor::new(server, files, Arc::clone(&wake))?;
    let stop = reactor.stop();
    let thread = thread::Builder::new().name("tftp".into()).spawn(move || {
        let _ = ended.send(reactor.run());
    })?;
    let _running = Running { stop, wake, thread: Some(thread) };
    end.await.unwrap_or_else(|_| Err(io::Error::other("the thread that serves has panicked")))
}

/// Ends the thread when the future goes.
struct Running {
    stop: Arc<std::sync::atomic::AtomicBool>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        crate::reactor::wake(&self.wake);
        // It never waits for anything but packets: this takes microseconds, and then the port is free.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
