//! ARP on the boot network, for the lease table's owner: asks for addresses, hears who has which. What follows from it is
//! decided in [`kurrent_core::dhcp::conflict`].

use kurrent_core::config::BootNetwork;
use kurrent_sys::arp::{ArpSocket, Claimed};
use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

/// Between two questions while the range is asked through: twenty small broadcasts a second are nothing to a network.
const SWEEP_EVERY: Duration = Duration::from_millis(50);
/// Afterwards.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Packets taken at once.
const DRAIN: usize = 64;
/// After a fault of the socket (the interface is down).
const PAUSE: Duration = Duration::from_secs(1);

/// The socket and when it is time for the next question.
pub struct Probe {
    socket: AsyncFd<ArpSocket>,
    own: Ipv4Addr,
    next: Instant,
    /// Until then nothing is read.
    paused: Option<Instant>,
}

/// What there is to do.
pub enum Heard {
    /// Machines say that they have addresses.
    Claims(Vec<Claimed>),
    /// It is time to ask for another address.
    AskNext,
}

impl Probe {
    /// Opens the socket.
    ///
    /// # Errors
    /// The kernel's; `PermissionDenied` without `CAP_NET_RAW`.
    pub fn open(index: u32, network: &BootNetwork) -> io::Result<Self> {
        let socket = ArpSocket::open(index, network.address, network.prefix)?;
        // SAFETY: an ArpSocket owns its descriptor, gives out always the same one, and closes it only when it is dropped.
        let socket = unsafe { AsyncFd::register(socket) }?;
        Ok(Self { socket, own: network.address, next: Instant::now(), paused: None })
    }

    /// What there is to do next. Cancel-safe.
    pub async fn heard(&mut self) -> Heard {
        loop {
            let paused = self.paused;
            tokio::select! {
                () = tokio::time::sleep_until(self.next) => return Heard::AskNext,
                () = tokio::time::sleep_until(paused.unwrap_or(self.next)), if paused.is_some() => self.paused = None,
                ready = self.socket.readable(), if paused.is_none() => {
                    let Ok(mut ready) = ready else {
                        self.paused = Some(Instant::now() + PAUSE);
                        continue;
                    };
                    let mut claims = Vec::new();
                    for _ in 0..DRAIN {
                        match ready.get_inner().receive() {
                            // Not of our own address: a hub or a bridge may send our own questions back.
                            Ok(Some(claim)) if claim.address != self.own => claims.push(claim),
                            Ok(_) => {}
                            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                                ready.clear_ready();
                                break;
                            }
                            Err(_) => {
                                self.paused = Some(Instant::now() + PAUSE);
                                break;
                            }
                        }
                    }
                    if !claims.is_empty() {
                        return Heard::Claims(claims);
                    }
                }
            }
        }
    }

    /// After [`Heard::AskNext`]: when the next one is due.
    pub fn again(&mut self, sweeps: bool) {
        self.next = Instant::now() + if sweeps { SWEEP_EVERY } else { LOOK_EVERY };
    }

    /// Asks who has an address. A full queue is no matter: it is asked for again.
    pub fn ask(&self, address: Ipv4Addr) {
        let _ = self.socket.get_ref().ask(self.own, address);
    }
}
