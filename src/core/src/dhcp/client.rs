//! The uplink's DHCP client as a state machine (RFC 2131 s4.4); the shell is `kurrentd uplink`.
//!
//! ```text
//! Selecting --offer--> Requesting --ack--> Bound --T1--> Renewing --T2--> Rebinding --over--> Selecting
//!     ^                    | nak, no answer   ^              | ack            | ack                ^
//!     +--------------------+                  +--------------+----------------+     nak: ----------+
//! ```

use super::address::{CLIENT_PORT, SERVER_PORT};
use super::wire::{OP_REPLY, Packet, option};
use crate::id::MacAddr;
use crate::time::Mono;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

/// First wait for an answer; doubles. DEVIATION(RFC 2131 s4.1): the RFC says 4 s, but an appliance that starts with its
/// switch loses the first packets to the port's start and should not wait that long again.
const FIRST_WAIT_SECS: u64 = 2;
const MAX_WAIT_SECS: u64 = 64;
/// Requests without an answer before it starts over.
const REQUESTS: u32 = 4;
/// RFC 2131 s4.4.5: no repetition sooner than this while renewing.
const RENEW_WAIT: Duration = Duration::from_secs(60);
/// The lease time that means for ever.
const INFINITE: u32 = u32::MAX;
/// A lease is used for at least this long: a server that says less is wrong and would be flooded.
const MIN_LEASE_SECS: u32 = 30;

const WANTED: [u8; 6] =
    [option::SUBNET_MASK, option::ROUTER, option::DNS, option::DOMAIN_NAME, option::RENEWAL_TIME, option::REBINDING_TIME];

/// What a server gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Own address.
    pub address: Ipv4Addr,
    /// Prefix length.
    pub prefix: u8,
    /// Default router.
    pub router: Option<Ipv4Addr>,
    /// Resolvers, at most three (resolv.conf(5)).
    pub dns: Vec<Ipv4Addr>,
    /// Search domain, when it is one.
    pub domain: Option<String>,
    /// The server.
    pub server: Ipv4Addr,
    /// For how long; `u32::MAX` is for ever.
    pub lease_secs: u32,
    renew_secs: u32,
    rebind_secs: u32,
}

/// Where the client stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Looks for servers.
    Selecting,
    /// Has chosen an offer.
    Requesting(Terms),
    /// Has an address since then.
    Bound(Terms, Mono),
    /// Asks its server to go on.
    Renewing(Terms, Mono),
    /// Asks any server to go on.
    Rebinding(Terms, Mono),
}

/// What happened.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A message to port 68 of our interface.
    Received(&'a Packet),
    /// The deadline passed.
    Timer,
}

/// What is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Send {
    /// The message.
    pub packet: Packet,
    /// From our address when we have one, else from `0.0.0.0`.
    pub from: SocketAddrV4,
    /// To one server, or to all.
    pub to: SocketAddrV4,
}

/// What changed for the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Use these; also after every renewal.
    Have(Terms),
    /// The address must not be used any more.
    Lost(Terms),
}

/// The client.
#[derive(Clone, Debug)]
pub struct Client {
    mac: MacAddr,
    hostname: String,
    /// The address it had before this start: asked for again.
    before: Option<Ipv4Addr>,
    state: State,
    xid: u32,
    began: Mono,
    tries: u32,
    deadline: Mono,
}

impl Client {
    /// A client that has nothing yet; its deadline is now.
    #[must_use]
    pub fn new(mac: MacAddr, hostname: &str, before: Option<Ipv4Addr>, now: Mono) -> Self {
        Self { mac, hostname: hostname.to_owned(), before, state: State::Selecting, xid: 0, began: now, tries: 0, deadline: now }
    }

    /// Where it stands.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// When [`Event::Timer`] is due.
    #[must_use]
    pub fn deadline(&self) -> Mono {
        self.deadline
    }

    /// The link came up again: the lease is confirmed at once instead of at its time.
    pub fn link_up(&mut self, now: Mono) {
        self.deadline = now;
        if let State::Bound(terms, since) = &self.state {
            self.tries = 0;
            self.state = State::Rebinding(terms.clone(), *since);
        }
    }

    /// What to do about an event; `random` is fresh every time.
    pub fn on(&mut self, event: Event<'_>, random: u32, now: Mono) -> (Option<Send>, Option<News>) {
        match event {
            Event::Timer if now < self.deadline => (None, None),
            Event::Timer => self.timer(random, now),
            Event::Received(packet) => self.received(packet, random, now),
        }
    }

    fn timer(&mut self, random: u32, now: Mono) -> (Option<Send>, Option<News>) {
        match self.state.clone() {
            State::Selecting => (Some(self.discover(random, now)), None),
            State::Requesting(_) if self.tries >= REQUESTS => self.start_over(random, now),
            State::Requesting(terms) => (Some(self.request(&terms, random, now)), None),
            State::Bound(terms, since) => {
                self.tries = 0;
                self.xid = random;
                self.began = now;
                self.state = State::Renewing(terms, since);
                self.timer(random, now)
            }
            State::Renewing(terms, since) if now.since(since) >= secs(terms.rebind_secs) => {
                self.state = State::Rebinding(terms, since);
                self.timer(random, now)
            }
            State::Rebinding(terms, since) if now.since(since) >= secs(terms.lease_secs) => {
                let (send, _) = self.start_over(random, now);
                (send, Some(News::Lost(terms)))
            }
            State::Renewing(terms, since) => (Some(self.renew(&terms, terms.server, since, terms.rebind_secs, now)), None),
            State::Rebinding(terms, since) => (Some(self.renew(&terms, Ipv4Addr::BROADCAST, since, terms.lease_secs, now)), None),
        }
    }

    fn received(&mut self, packet: &Packet, random: u32, now: Mono) -> (Option<Send>, Option<News>) {
        let ours = packet.chaddr.iter().zip(self.mac.0).all(|(a, b)| *a == b);
        if packet.op != OP_REPLY || packet.xid != self.xid || !ours {
            return (None, None);
        }
        let kind = packet.options.exact::<1>(option::MESSAGE_TYPE).map_or(0, |[kind]| kind);
        match (kind, self.state.clone()) {
            (2, State::Selecting) => match terms(packet) {
                Some(offer) => {
                    self.tries = 0;
                    self.state = State::Requesting(offer.clone());
                    (Some(self.request(&offer, random, now)), None)
                }
                None => (None, None),
            },
            (5, State::Requesting(_) | State::Renewing(..) | State::Rebinding(..)) => match terms(packet) {
                Some(given) => {
                    self.deadline = now.after(secs(given.renew_secs));
                    self.state = State::Bound(given.clone(), now);
                    (None, Some(News::Have(given)))
                }
                None => (None, None),
            },
            (6, State::Requesting(_)) => self.start_over(random, now),
            (6, State::Renewing(held, _) | State::Rebinding(held, _)) => {
                let (send, _) = self.start_over(random, now);
                (send, Some(News::Lost(held)))
            }
            (_, State::Selecting | State::Requesting(_) | State::Bound(..) | State::Renewing(..) | State::Rebinding(..)) => (None, None),
        }
    }

    /// Back to the beginning, with a pause: two machines that disagree must not fill the network.
    fn start_over(&mut self, random: u32, now: Mono) -> (Option<Send>, Option<News>) {
        self.state = State::Selecting;
        self.before = None;
        self.tries = 1;
        self.wait(random, now);
        (None, None)
    }

    fn discover(&mut self, random: u32, now: Mono) -> Send {
        if self.tries == 0 {
            self.began = now;
        }
        self.xid = random;
        self.wait(random, now);
        let mut packet = self.message(1, now);
        if let Some(address) = self.before {
            packet.options.push(option::REQUESTED_ADDRESS, &address.octets());
        }
        Self::broadcast(packet)
    }

    fn request(&mut self, offer: &Terms, random: u32, now: Mono) -> Send {
        self.wait(random, now);
        let mut packet = self.message(3, now);
        packet.options.push(option::SERVER_ID, &offer.server.octets());
        packet.options.push(option::REQUESTED_ADDRESS, &offer.address.octets());
        Self::broadcast(packet)
    }

    fn renew(&mut self, terms: &Terms, to: Ipv4Addr, since: Mono, until_secs: u32, now: Mono) -> Send {
        // RFC 2131 s4.4.5: half of what is left, not under a minute, but never past the end.
        let end = since.after(secs(until_secs));
        let left = end.since(now);
        self.deadline = now.after((left / 2).max(RENEW_WAIT.min(left)));
        let mut packet = self.message(3, now);
        packet.ciaddr = terms.address;
        Send { packet, from: SocketAddrV4::new(terms.address, CLIENT_PORT), to: SocketAddrV4::new(to, SERVER_PORT) }
    }

    fn broadcast(packet: Packet) -> Send {
        let from = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, CLIENT_PORT);
        Send { packet, from, to: SocketAddrV4::new(Ipv4Addr::BROADCAST, SERVER_PORT) }
    }

    fn message(&self, kind: u8, now: Mono) -> Packet {
        let elapsed = u16::try_from(now.since(self.began).as_secs()).unwrap_or(u16::MAX);
        let mut packet = Packet { xid: self.xid, secs: elapsed, ..Packet::default() };
        for (to, from) in packet.chaddr.iter_mut().zip(self.mac.0) {
            *to = from;
        }
        packet.options.push(option::MESSAGE_TYPE, &[kind]);
        packet.options.push(option::MAX_MESSAGE_SIZE, &1500_u16.to_be_bytes());
        packet.options.push(option::PARAMETER_LIST, &WANTED);
        packet.options.push(option::HOST_NAME, self.hostname.as_bytes());
        packet
    }

    /// Doubling waits, each up to a second longer by chance: a rack that starts at once does not ask at once.
    fn wait(&mut self, random: u32, now: Mono) {
        let base = FIRST_WAIT_SECS.checked_shl(self.tries).unwrap_or(MAX_WAIT_SECS).min(MAX_WAIT_SECS);
        self.tries = self.tries.saturating_add(1).min(16);
        self.deadline = now.after(Duration::from_secs(base) + Duration::from_millis(u64::from(random % 1000)));
    }
}

fn secs(n: u32) -> Duration {
    if n == INFINITE { Duration::MAX } else { Duration::from_secs(u64::from(n)) }
}

/// `None`: an offer that cannot be used.
fn terms(packet: &Packet) -> Option<Terms> {
    let options = &packet.options;
    let address = packet.yiaddr;
    if address.is_unspecified() || address.is_multicast() || address.is_broadcast() || address.is_loopback() {
        return None;
    }
    let server = options.address(option::SERVER_ID)?;
    let mask = options.exact::<4>(option::SUBNET_MASK).map_or(u32::MAX << 8, u32::from_be_bytes);
    let prefix = u8::try_from(mask.leading_ones()).ok().filter(|_| mask.leading_ones() + mask.trailing_zeros() == 32)?;
    let number = |code| options.exact::<4>(code).map(u32::from_be_bytes);
    let lease_secs = number(option::LEASE_TIME)?.max(MIN_LEASE_SECS);
    // Times that are out of order are the RFC's own: half, and seven eighths.
    let rebind_secs = number(option::REBINDING_TIME).filter(|t| *t < lease_secs && *t > 1).unwrap_or(lease_secs - lease_secs / 8);
    let renew_secs = number(option::RENEWAL_TIME).filter(|t| *t < rebind_secs && *t > 0).unwrap_or((lease_secs / 2).min(rebind_secs));
    let infinite = lease_secs == INFINITE;
    let domain = options.bytes(option::DOMAIN_NAME).map(|d| d.strip_suffix(&[0]).unwrap_or(d)).filter(|d| is_domain(d));
    Some(Terms {
        address,
        prefix,
        router: options.addresses(option::ROUTER).into_iter().find(|a| !a.is_unspecified()),
        dns: options.addresses(option::DNS).into_iter().filter(|a| !a.is_unspecified()).take(3).collect(),
        domain: domain.and_then(|d| String::from_utf8(d.to_vec()).ok()),
        server,
        lease_secs,
        renew_secs: if infinite { INFINITE } else { renew_secs },
        rebind_secs: if infinite { INFINITE } else { rebind_secs },
    })
}

/// What may go into resolv.conf: it comes from a stranger.
fn is_domain(octets: &[u8]) -> bool {
    (1..=253).contains(&octets.len()) && octets.iter().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(b))
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
