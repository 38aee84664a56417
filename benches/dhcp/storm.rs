//! The boot storm: a thousand firmwares DISCOVER within 20 ms, on the link itself, with PXE's back-off.

use crate::client::{ACK, Ask, NAK, OFFER, in_frame, told};
use anyhow::{Context, Result};
use socket2::Socket;
use std::collections::HashMap;
use std::io::{ErrorKind, Read};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// How many machines are switched on at once.
pub const CLIENTS: u32 = 1000;
/// Their first DISCOVERs leave within this.
const WITHIN: Duration = Duration::from_millis(20);
/// PXE 2.1 section 2.2.1.1: a client that hears nothing asks again after 4, 8, 16 and 32 s.
const BACK_OFF: [u64; 4] = [4, 8, 16, 32];
/// In time.
pub const IN_TIME: Duration = Duration::from_secs(2);
/// The first two retries are waited for.
const PATIENCE: Duration = Duration::from_secs(14);
/// The load must lose nothing itself.
const RECEIVE_BUFFER_BYTES: usize = 64 << 20;

/// What became of the storm.
#[derive(Clone, Debug)]
pub struct Storm {
    /// ACKed within [`IN_TIME`].
    pub in_time: u32,
    /// ACKed at all.
    pub at_all: u32,
    /// Addresses that two clients were given.
    pub twice: u32,
    /// When the last was ACKed.
    pub last: Duration,
}

#[derive(Clone, Copy)]
enum State {
    /// Wants an offer.
    Selecting,
    /// Took this one.
    Requesting(Ipv4Addr, Ipv4Addr),
    /// Has it.
    Bound,
}

#[derive(Clone, Copy)]
struct Client {
    state: State,
    tries: usize,
    again: Duration,
}

/// Runs it on `interface` of this thread's namespace. `first` numbers the clients, so that each storm has new ones.
pub fn run(interface: &str, first: u32) -> Result<Storm> {
    let mut link = open(interface)?;
    let began = Instant::now();
    let mut clients = vec![Client { state: State::Selecting, tries: 0, again: Duration::ZERO }; CLIENTS as usize];
    let mut given: HashMap<Ipv4Addr, u32> = HashMap::new();
    let mut storm = Storm { in_time: 0, at_all: 0, twice: 0, last: Duration::ZERO };
    let mut sent = 0;
    let mut buffer = vec![0; 2048];
    while storm.at_all < CLIENTS && began.elapsed() < PATIENCE {
        let now = began.elapsed();
        // Evenly over the 20 ms.
        let due = u32::try_from(u128::from(CLIENTS) * now.as_micros() / WITHIN.as_micros()).unwrap_or(CLIENTS).min(CLIENTS);
        for number in sent..due {
            ask(&link, first, number, &mut clients, now)?;
        }
        sent = sent.max(due);
        match link.read(&mut buffer) {
            Ok(len) => {
                let Some(told) = buffer.get(..len).and_then(in_frame).and_then(told) else { continue };
                let Some(number) = told.client.checked_sub(first).filter(|n| *n < CLIENTS) else { continue };
                let Some(client) = clients.get_mut(number as usize) else { continue };
                match (client.state, told.kind) {
                    (State::Selecting, OFFER) => {
                        *client = Client { state: State::Requesting(told.address, told.server), tries: 0, again: now };
                        ask(&link, first, number, &mut clients, now)?;
                    }
                    (State::Requesting(..), ACK) => {
                        client.state = State::Bound;
                        let now = began.elapsed();
                        storm.at_all += 1;
                        storm.last = now;
                        storm.in_time += u32::from(now <= IN_TIME);
                        storm.twice += u32::from(given.insert(told.address, number).is_some());
                    }
                    (State::Requesting(..), NAK) => *client = Client { state: State::Selecting, tries: 0, again: now },
                    _ => {}
                }
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                let waits = |c: &Client| !matches!(c.state, State::Bound) && c.tries > 0 && c.again <= now;
                let late: Vec<u32> = (0..sent).filter(|n| clients.get(*n as usize).is_some_and(waits)).collect();
                for number in late {
                    ask(&link, first, number, &mut clients, now)?;
                }
                // The load leaves the processor to the server while it has nothing to do.
                if sent == CLIENTS {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
            Err(e) => return Err(e).context("receive a frame"),
        }
    }
    Ok(storm)
}

fn ask(link: &Socket, first: u32, number: u32, clients: &mut [Client], now: Duration) -> Result<()> {
    let Some(client) = clients.get_mut(number as usize) else { return Ok(()) };
    let takes = match client.state {
        State::Selecting => None,
        State::Requesting(address, server) => Some((address, server)),
        State::Bound => return Ok(()),
    };
    let wait = BACK_OFF.get(client.tries).copied().unwrap_or(32);
    client.tries += 1;
    client.again = now + Duration::from_secs(wait);
    let frame = Ask { client: first + number, giaddr: Ipv4Addr::UNSPECIFIED, takes }.frame();
    loop {
        match link.send(&frame) {
            Ok(_) => return Ok(()),
            Err(e) if e.kind() == ErrorKind::WouldBlock || e.raw_os_error() == Some(libc::ENOBUFS) => std::thread::yield_now(),
            Err(e) => return Err(e).context("send a frame"),
        }
    }
}

fn open(interface: &str) -> Result<Socket> {
    let socket = kurrent_harness::wire::packet_socket(interface)?;
    socket.set_nonblocking(true).context("a socket that does not wait")?;
    // Not SO_RCVBUF, which the system's maximum cuts: what is measured is the server.
    nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES)
        .context("a large receive buffer")?;
    Ok(socket)
}
