//! TFTP clients of our own, many in one thread: windows (RFC 7440), loss that is the same in each run, and a look at each block.

use anyhow::{Context, Result, bail};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// What a client asks again after, as firmware does.
const AGAIN: Duration = Duration::from_secs(1);
/// A gap is reported again after this.
const GAP: Duration = Duration::from_millis(20);
/// Block size without options (RFC 1350).
const DEFAULT_BLOCK_BYTES: usize = 512;

/// One column of the table.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Its heading.
    pub name: &'static str,
    /// The file, and its octets.
    pub file: &'static str,
    /// Octets in it.
    pub size: u64,
    /// Clients at once.
    pub clients: usize,
    /// `blksize`; absent: no options at all.
    pub block_bytes: Option<u16>,
    /// `windowsize`; a server that does not know it sends single blocks.
    pub window: u16,
    /// One datagram in this many is lost, in each direction; 0: none.
    pub lose_one_in: u32,
    /// Whether it is done in each round, or only in the first three: it waits more than it works.
    pub each_round: bool,
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Octets a second of those that finished, until the last of them did.
    pub rate: f64,
    /// Clients without the whole file at the deadline.
    pub unfinished: usize,
}

/// Octets of a test file from `at` (a multiple of 4) on: each four say where they are.
pub fn content(at: u64) -> [u8; 4] {
    u32::try_from(at / 4 % (1 << 32)).unwrap_or(0).wrapping_mul(2_654_435_761).to_le_bytes()
}

struct Client {
    socket: UdpSocket,
    request: Vec<u8>,
    server: SocketAddr,
    peer: Option<SocketAddr>,
    block_bytes: usize,
    window: u64,
    have: u64,
    in_window: u64,
    octets: u64,
    heard: Instant,
    reported: Option<Instant>,
    random: u32,
    lose_one_in: u32,
    done: bool,
}

impl Client {
    fn new(server: Ipv4Addr, own: Ipv4Addr, work: &Work, number: usize) -> Result<Self> {
        let socket = UdpSocket::bind((own, 0)).context("a client's socket")?;
        socket.set_nonblocking(true)?;
        // The kernel grants what it allows: a window must fit, or the client loses what the server did send.
        let _ = socket2::SockRef::from(&socket).set_recv_buffer_size(4 << 20);
        let mut request = format!("\0\x01{}\0octet\0", work.file);
        if let Some(block_bytes) = work.block_bytes {
            request.push_str(&format!("blksize\0{block_bytes}\0"));
            if work.window > 1 {
                request.push_str(&format!("windowsize\0{}\0", work.window));
            }
        }
        Ok(Self {
            socket,
            request: request.into_bytes(),
            server: SocketAddr::from((server, 69)),
            peer: None,
            block_bytes: DEFAULT_BLOCK_BYTES,
            window: 1,
            have: 0,
            in_window: 0,
            octets: 0,
            heard: Instant::now(),
            reported: None,
            random: u32::try_from(number).unwrap_or(0).wrapping_mul(0x9e37_79b9) | 1,
            lose_one_in: work.lose_one_in,
            done: false,
        })
    }

    fn lost(&mut self) -> bool {
        if self.lose_one_in == 0 {
            return false;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.random.is_multiple_of(self.lose_one_in)
    }

    fn say(&mut self, now: Instant) -> Result<()> {
        self.heard = now;
        if self.lost() {
            return Ok(());
        }
        match self.peer {
            None => self.socket.send_to(&self.request, self.server)?,
            Some(_) => {
                let [.., high, low] = self.have.to_be_bytes();
                self.socket.send(&[0, 4, high, low])?
            }
        };
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let received = match self.peer {
            Some(_) => self.socket.recv(buffer),
            None => match self.socket.recv_from(buffer) {
                Ok((len, from)) => {
                    self.socket.connect(from)?;
                    self.peer = Some(from);
                    Ok(len)
                }
                Err(e) => Err(e),
            },
        };
        let len = match received {
            Ok(len) => len,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Ok(false),
            // The server has closed its port: our timer ends it.
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => return Ok(false),
            Err(e) => return Err(e).context("receive"),
        };
        if self.lost() {
            return Ok(true);
        }
        let now = Instant::now();
        match buffer.get(..len).context("a datagram")? {
            [0, 6, options @ ..] => {
                let mut texts = options.split(|b| *b == 0);
                while let (Some(key), Some(value)) = (texts.next(), texts.next()) {
                    let value: u64 = String::from_utf8_lossy(value).parse().unwrap_or(0);
                    match key {
                        b"blksize" => self.block_bytes = usize::try_from(value)?,
                        b"windowsize" => self.window = value,
                        _ => {}
                    }
                }
                self.say(now)?;
            }
            [0, 3, high, low, payload @ ..] => {
                let [.., wanted_high, wanted_low] = (self.have + 1).to_be_bytes();
                if [*high, *low] != [wanted_high, wanted_low] {
                    // A gap, or what we have already: an ACK of ours was lost.
                    if self.reported.is_none_or(|then| now.duration_since(then) > GAP) {
                        self.reported = Some(now);
                        self.in_window = 0;
                        self.say(now)?;
                    }
                    return Ok(true);
                }
                if payload.len() >= 4 && payload.get(..4) != Some(content(self.octets).as_slice()) {
                    bail!("wrong octets at {}", self.octets);
                }
                (self.have, self.in_window, self.reported) = (self.have + 1, self.in_window + 1, None);
                self.octets += u64::try_from(payload.len())?;
                self.done = payload.len() < self.block_bytes;
                if self.done || self.in_window >= self.window {
                    self.in_window = 0;
                    self.say(now)?;
                } else {
                    self.heard = now;
                }
            }
            other => bail!("the server says {:?}", String::from_utf8_lossy(other)),
        }
        Ok(true)
    }
}

/// Runs all clients of a work against one server; call in the clients' namespace.
pub fn run(server: Ipv4Addr, own: Ipv4Addr, work: &Work, within: Duration) -> Result<Outcome> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut clients = (0..work.clients).map(|number| Client::new(server, own, work, number)).collect::<Result<Vec<_>>>()?;
    for (client, number) in clients.iter().zip(0..) {
        epoll::add(&epoll, &client.socket, EventData::new_u64(number), EventFlags::IN)?;
    }
    let begun = Instant::now();
    for client in &mut clients {
        client.say(begun)?;
    }
    let mut events = Vec::with_capacity(64);
    let mut buffer = vec![0; 70_000];
    let (mut left, mut last) = (work.clients, begun);
    let mut looked = begun;
    while left > 0 && begun.elapsed() < within {
        events.clear();
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 }))?;
        for event in &events {
            let Some(client) = clients.get_mut(usize::try_from(event.data.u64())?) else { continue };
            // A window at most: the others have their turn.
            for _ in 0..client.window {
                if client.done || !client.receive(&mut buffer)? {
                    break;
                }
            }
            if client.done {
                epoll::delete(&epoll, &client.socket)?;
                (left, last) = (left - 1, Instant::now());
            }
        }
        let now = Instant::now();
        if now.duration_since(looked) > Duration::from_millis(10) {
            looked = now;
            for client in clients.iter_mut().filter(|client| !client.done && now.duration_since(client.heard) > AGAIN) {
                client.in_window = 0;
                client.say(now)?;
            }
        }
    }
    if clients.iter().any(|client| client.done && client.octets != work.size) {
        bail!("a file of another length");
    }
    let octets: u64 = clients.iter().filter(|client| client.done).map(|client| client.octets).sum();
    #[allow(clippy::cast_precision_loss)]
    let rate = octets as f64 / last.duration_since(begun).as_secs_f64().max(f64::EPSILON);
    Ok(Outcome { rate, unfinished: left })
}
