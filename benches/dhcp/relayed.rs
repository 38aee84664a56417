//! DORA through a relay: so many clients, so many of them at a time, as fast as the server answers.

use crate::client::{ACK, Ask, NAK, OFFER, told};
use anyhow::{Context, Result};
use socket2::{Domain, Socket, Type};
use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

/// How many machines.
pub const CLIENTS: u32 = 20_000;
/// How many of them ask at once.
const AT_ONCE: usize = 256;
/// A message without an answer for so long is lost, and its client gives up.
const LOST_AFTER: Duration = Duration::from_secs(4);
/// A slow server is stopped and judged by what it did.
const AT_MOST: Duration = Duration::from_secs(15);
const RECEIVE_BUFFER_BYTES: usize = 32 << 20;

/// What became of them.
#[derive(Clone, Debug)]
pub struct Relayed {
    /// ACKed.
    pub done: u32,
    /// Gave up.
    pub lost: u32,
    /// Addresses that two clients were given.
    pub twice: u32,
    /// How long it took to the last ACK.
    pub took: Duration,
}

impl Relayed {
    /// DORA exchanges a second; nothing when more than one in a hundred was lost.
    pub fn rate(&self) -> f64 {
        if self.lost * 100 > self.done + self.lost { 0.0 } else { f64::from(self.done) / self.took.as_secs_f64() }
    }
}

/// Runs it from the relay's address `relay` to `server`, in this thread's namespace.
pub fn run(relay: Ipv4Addr, server: Ipv4Addr, first: u32) -> Result<Relayed> {
    let mut socket = open(relay, server)?;
    let began = Instant::now();
    let mut asking: HashMap<u32, Option<(Ipv4Addr, Ipv4Addr)>> = HashMap::with_capacity(AT_ONCE * 2);
    // In order of their time; whoever was answered meanwhile has a newer entry.
    let mut waits: VecDeque<(Duration, u32, bool)> = VecDeque::new();
    let mut given: HashMap<Ipv4Addr, u32> = HashMap::with_capacity(CLIENTS as usize);
    let mut result = Relayed { done: 0, lost: 0, twice: 0, took: Duration::ZERO };
    let mut next = 0;
    let mut buffer = vec![0; 2048];
    while result.done + result.lost < CLIENTS && began.elapsed() < AT_MOST {
        let now = began.elapsed();
        while asking.len() < AT_ONCE && next < CLIENTS {
            let client = first + next;
            next += 1;
            asking.insert(client, None);
            waits.push_back((now, client, false));
            send(&socket, &Ask { client, giaddr: relay, takes: None })?;
        }
        while let Some((since, client, requested)) = waits.front().copied() {
            let stale = asking.get(&client).is_none_or(|takes| takes.is_some() != requested);
            if !stale && now.saturating_sub(since) < LOST_AFTER {
                break;
            }
            waits.pop_front();
            if !stale {
                asking.remove(&client);
                result.lost += 1;
            }
        }
        match socket.read(&mut buffer) {
            Ok(len) => {
                let Some(told) = buffer.get(..len).and_then(told) else { continue };
                let Some(state) = asking.get_mut(&told.client) else { continue };
                match (*state, told.kind) {
                    (None, OFFER) => {
                        *state = Some((told.address, told.server));
                        waits.push_back((now, told.client, true));
                        send(&socket, &Ask { client: told.client, giaddr: relay, takes: *state })?;
                    }
                    (Some(_), ACK) => {
                        asking.remove(&told.client);
                        result.done += 1;
                        // The wait for what was lost is not the server's time.
                        result.took = began.elapsed();
                        result.twice += u32::from(given.insert(told.address, told.client).is_some());
                    }
                    (Some(_), NAK) => {
                        asking.remove(&told.client);
                        result.lost += 1;
                    }
                    _ => {}
                }
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                let mut poll = [nix::poll::PollFd::new(std::os::fd::AsFd::as_fd(&socket), nix::poll::PollFlags::POLLIN)];
                nix::poll::poll(&mut poll, 50_u8).context("wait for answers")?;
            }
            // An ICMP error of a server that is not up any more.
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => {}
            Err(e) => return Err(e).context("receive an answer"),
        }
    }
    Ok(result)
}

fn send(socket: &Socket, ask: &Ask) -> Result<()> {
    match socket.send(&ask.message()) {
        Ok(_) => Ok(()),
        // A full queue is a loss, as on a wire.
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) || e.raw_os_error() == Some(libc::ENOBUFS) => {
            Ok(())
        }
        Err(e) => Err(e).context("send as the relay"),
    }
}

fn open(relay: Ipv4Addr, server: Ipv4Addr) -> Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), None).context("datagram socket")?;
    nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES)
        .context("a large receive buffer")?;
    socket.bind(&SocketAddrV4::new(relay, 67).into()).with_context(|| format!("bind the relay's {relay}"))?;
    socket.connect(&SocketAddrV4::new(server, 67).into()).context("connect to the server")?;
    Ok(socket)
}
