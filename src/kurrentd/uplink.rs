//! `kurrentd uplink`: gets an address for the uplink from a DHCP server and keeps it. The protocol is
//! `kurrent_core::dhcp::client`; this is sockets, the interface and two files.
//!
//! The lease file holds `key=value` lines: `state` (`bound`, `none`), `interface`, and while bound `address`, `prefix`,
//! `router`, `dns` (several, separated by spaces), `domain`, `server`, `expires` (RFC 3339 or `never`). A program of its own, so
//! that the daemon's faults and the uplink's do not touch each other. What it hears comes from whoever is on the uplink: it is confined
//! like the daemon, with fewer rights.

use crate::confine::{self, Files, Program};
use anyhow::Context;
use kurrent_core::dhcp::client::{Client, Event, News, Send, State, Terms};
use kurrent_core::dhcp::{address::CLIENT_PORT, wire};
use kurrent_core::time::Now;
use kurrent_sys::link::{self, Link};
use kurrent_sys::{clock, packet::PacketSocket, store};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often the link is looked at: a cable that was moved needs its lease confirmed.
const LINK_CHECK: Duration = Duration::from_secs(2);
const DATAGRAM_BYTES: usize = 4096;
const LEASE_FILE_BYTES: u64 = 4096;
const FILE_MODE: u32 = 0o644;

/// What to look after.
#[derive(Clone, Debug)]
pub struct Options {
    /// Kernel name of the NIC.
    pub interface: String,
    /// Where the lease is kept.
    pub lease_file: PathBuf,
    /// What programs read their resolvers from.
    pub resolv_conf: PathBuf,
}

/// Looks after the uplink until the process is ended. The address stays when it ends.
///
/// # Errors
/// The interface is missing, port 68 is taken, privileges are missing.
pub fn run(options: &Options) -> anyhow::Result<()> {
    confine(options);
    let name = &options.interface;
    let link = link::link(name).with_context(|| format!("uplink: check spec.networking.uplink.interface against `ip link` ({name})"))?;
    let mac = link.mac.with_context(|| format!("uplink: {name} is not an Ethernet interface"))?;
    link::set_up(link.index, true).context("uplink")?;
    let raw = PacketSocket::receiver(link.index, CLIENT_PORT).context("uplink: a packet socket needs CAP_NET_RAW; run kurrentd as root")?;
    // Replies to our own address come here too; without a socket the kernel would answer them with ICMP errors.
    let unicast = bind(name).context("uplink: port 68 is taken; stop the other DHCP client (dhclient, networkd) of this machine")?;
    let hostname = nix::unistd::gethostname().ok().and_then(|h| h.into_string().ok()).unwrap_or_default();
    let client = Client::new(mac, &hostname, earlier_address(&options.lease_file), clock::now().mono);
    tracing::info!(interface = %name, %mac, "uplink: looking for a DHCP server");
    Uplink { options, link, raw, unicast, client, have: None }.run()
}

/// Gives up all that it has no need for, while there is one thread. Only a file that is there can be allowed to be written.
fn confine(options: &Options) {
    let resolvers = &options.resolv_conf;
    if let Err(error) = std::fs::File::options().append(true).create(true).open(resolvers) {
        tracing::warn!(file = %resolvers.display(), %error, "uplink: the resolvers can not be written");
    }
    confine::apply(Program::Uplink, &Files::of_uplink(&options.lease_file, resolvers));
}

fn bind(interface: &str) -> anyhow::Result<UdpSocket> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM.nonblocking().cloexec(), None)?;
    socket.bind_device(Some(interface.as_bytes()))?;
    socket.bind(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, CLIENT_PORT).into())?;
    Ok(socket.into())
}

/// The address of the last run, to ask for again.
fn earlier_address(file: &Path) -> Option<Ipv4Addr> {
    let octets = store::read(file, LEASE_FILE_BYTES).ok().flatten()?;
    let text = String::from_utf8(octets).ok()?;
    text.lines().find_map(|line| line.strip_prefix("address=")).and_then(|a| a.parse().ok())
}

struct Uplink<'a> {
    options: &'a Options,
    link: Link,
    raw: PacketSocket,
    unicast: UdpSocket,
    client: Client,
    have: Option<Terms>,
}

impl Uplink<'_> {
    fn run(mut self) -> anyhow::Result<()> {
        self.write_lease(clock::now())?;
        let mut buffer = vec![0; DATAGRAM_BYTES];
        // A link that is up already is no news; one that comes up later is.
        let mut carrier = link::link(&self.options.interface).context("uplink")?.carrier;
        loop {
            let now = clock::now();
            self.step(Event::Timer, now)?;
            let wait = self.client.deadline().since(now.mono).min(LINK_CHECK) + Duration::from_millis(1);
            let mut fds = [PollFd::new(self.raw.as_fd(), PollFlags::POLLIN), PollFd::new(self.unicast.as_fd(), PollFlags::POLLIN)];
            let timeout = PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX);
            match nix::poll::poll(&mut fds, timeout) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(e) => return Err(e).context("uplink: waiting for messages"),
            }
            // Read and thrown away: the packet socket saw the same.
            while self.unicast.recv(&mut buffer).is_ok() {}
            self.receive(&mut buffer)?;
            let up = link::link(&self.options.interface).context("uplink")?.carrier;
            if up && !carrier {
                self.client.link_up(clock::now().mono);
            }
            carrier = up;
        }
    }

    fn receive(&mut self, buffer: &mut [u8]) -> anyhow::Result<()> {
        loop {
            let packet = match self.raw.receive(buffer) {
                Ok(Some((_, octets))) => wire::decode(octets),
                Ok(None) => continue,
                // A link that goes down is the link check's business.
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::NetworkDown | ErrorKind::Interrupted) => return Ok(()),
                Err(e) => return Err(e).context("uplink: receiving"),
            };
            if let Ok(packet) = packet {
                self.step(Event::Received(&packet), clock::now())?;
            }
        }
    }

    fn step(&mut self, event: Event<'_>, now: Now) -> anyhow::Result<()> {
        let mut random = [0; 4];
        getrandom::fill(&mut random).map_err(|e| anyhow::anyhow!("uplink: no randomness: {e}"))?;
        let (send, news) = self.client.on(event, u32::from_ne_bytes(random), now.mono);
        match news {
            Some(News::Have(terms)) => self.apply(terms, now)?,
            Some(News::Lost(terms)) => self.withdraw(&terms, now)?,
            None => {}
        }
        if let Some(send) = send {
            self.send(&send);
        }
        Ok(())
    }

    /// A message that is not sent is like one that is lost: the state machine's timer looks after it.
    fn send(&self, send: &Send) {
        let octets = wire::encode(&send.packet, wire::DEFAULT_MESSAGE_BYTES);
        let result = if send.to.ip().is_broadcast() {
            self.raw.send([0xff; 6], send.from, send.to, &octets)
        } else {
            self.unicast.send_to(&octets, send.to).map(drop)
        };
        if let Err(error) = result {
            tracing::debug!(%error, to = %send.to, "uplink: sending");
        }
    }

    fn apply(&mut self, terms: Terms, now: Now) -> anyhow::Result<()> {
        let index = self.link.index;
        let news = self.have.as_ref() != Some(&terms);
        if let Some(old) = self.have.take().filter(|old| (old.address, old.prefix) != (terms.address, terms.prefix)) {
            link::remove_address(index, old.address, old.prefix).context("uplink")?;
        }
        link::add_address(index, terms.address, terms.prefix).context("uplink")?;
        if let Some(router) = terms.router
            && let Err(error) = kurrent_sys::route::set_default(index, router)
        {
            tracing::warn!(error = %anyhow::Error::from(error), "uplink: the server's router cannot be used");
        }
        if news {
            tracing::info!(address = %terms.address, prefix = terms.prefix, router = ?terms.router, server = %terms.server, "uplink: has an address");
            if let Err(error) = std::fs::write(&self.options.resolv_conf, resolv_conf(&terms)) {
                tracing::warn!(file = %self.options.resolv_conf.display(), %error, "uplink: the resolvers cannot be written");
            }
        }
        self.have = Some(terms);
        self.write_lease(now)
    }

    fn withdraw(&mut self, terms: &Terms, now: Now) -> anyhow::Result<()> {
        tracing::warn!(address = %terms.address, "uplink: the address was lost; looking for a DHCP server");
        self.have = None;
        link::remove_address(self.link.index, terms.address, terms.prefix).context("uplink")?;
        self.write_lease(now)
    }

    fn write_lease(&self, now: Now) -> anyhow::Result<()> {
        let text = lease_text(&self.options.interface, self.client.state(), self.have.as_ref(), now);
        store::replace(&self.options.lease_file, text.as_bytes(), FILE_MODE).context("uplink: keeping the lease")
    }
}

fn resolv_conf(terms: &Terms) -> String {
    let mut text = String::from("# written by kurrentd uplink\n");
    if let Some(domain) = &terms.domain {
        let _ = writeln!(text, "search {domain}");
    }
    for server in &terms.dns {
        let _ = writeln!(text, "nameserver {server}");
    }
    text
}

fn lease_text(interface: &str, state: &State, have: Option<&Terms>, now: Now) -> String {
    let Some(terms) = have else { return format!("state=none\ninterface={interface}\n") };
    let mut text = format!("state=bound\ninterface={interface}\naddress={}\nprefix={}\n", terms.address, terms.prefix);
    if let Some(router) = terms.router {
        let _ = writeln!(text, "router={router}");
    }
    if !terms.dns.is_empty() {
        let _ = writeln!(text, "dns={}", terms.dns.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
    }
    if let Some(domain) = &terms.domain {
        let _ = writeln!(text, "domain={domain}");
    }
    let since = match state {
        State::Bound(_, since) | State::Renewing(_, since) | State::Rebinding(_, since) => *since,
        State::Selecting | State::Requesting(_) => now.mono,
    };
    let end = since.after(Duration::from_secs(u64::from(terms.lease_secs)));
    let expires = match terms.lease_secs {
        u32::MAX => "never".to_owned(),
        _ => now
            .wall
            .saturating_add(end.since(now.mono))
            .map_or_else(|_| "never".to_owned(), |at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
    };
    let _ = write!(text, "server={}\nexpires={expires}\n", terms.server);
    text
}
