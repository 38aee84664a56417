//! Port 67 of the boot network: datagrams out, by the right interface, from the right address, to machines with an address and
//! without one. [`super::reader`] has the way in.

use super::outbox::Outbox;
use super::reader::Reader;
use anyhow::{Context, bail};
use kurrent_core::config::BootNetwork;
use kurrent_core::dhcp::address::{CLIENT_PORT, Destination, SERVER_PORT};
use kurrent_core::id::MacAddr;
use kurrent_core::time::Mono;
use kurrent_sys::packet::PacketSocket;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, sendmsg, setsockopt, sockopt};
use socket2::{Domain, Socket, Type};
use std::io::{self, ErrorKind, IoSlice};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Thousands of clients at once fit: the kernel counts up to 2304 octets per datagram, and doubles what is asked for.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// Less than this does not hold a thousand clients that ask within the same moment.
const ENOUGH_BYTES: usize = 2 << 20;
const BROADCAST_MAC: MacAddr = MacAddr([0xff; 6]);
/// What waits for relays and routers that do not answer ARP; the kernel keeps at most 208 KiB for each
/// (`net.ipv4.neigh.*.unres_qlen_bytes`), so one or a few hold up nobody.
const SEND_BUFFER_BYTES: usize = 4 << 20;
/// How long after a full queue it is tried again. A packet socket's `ENOBUFS` (the device's queue is full) has no event to
/// wait for.
const RETRY_AFTER: Duration = Duration::from_millis(2);

/// An answer that is ready to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The message.
    pub octets: Vec<u8>,
    /// Where to.
    pub to: Destination,
    /// Of which machine.
    pub mac: MacAddr,
}

/// What could not be sent, and why.
pub type Failed = (io::Error, Outgoing);

/// The way out.
pub struct Port {
    socket: Arc<Socket>,
    raw: PacketSocket,
    network: BootNetwork,
    /// Apart: a datagram waits until its relay or router answers ARP, and whoever forges such an address must hold up no frame.
    frames: Outbox<Outgoing>,
    datagrams: Outbox<Outgoing>,
    next_try: Option<Instant>,
}

/// How an answer goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// To the link by hand: nobody is asked by ARP.
    Frame { mac: MacAddr, address: Ipv4Addr },
    /// By the kernel's routes.
    Datagram(SocketAddrV4),
}

impl Way {
    /// Who is on our link is reached by the MAC of its request, also when it has an address: a forged `ciaddr` of an absent host
    /// would wait three seconds for ARP, in a buffer that all share, and sixty of them in a second would fill it.
    fn of(outgoing: &Outgoing, network: &BootNetwork) -> Self {
        match outgoing.to {
            Destination::Relay(relay) => Self::Datagram(SocketAddrV4::new(relay, SERVER_PORT)),
            Destination::Client(address) if network.contains(address) => Self::Frame { mac: outgoing.mac, address },
            Destination::Client(address) => Self::Datagram(SocketAddrV4::new(address, CLIENT_PORT)),
            Destination::Broadcast => Self::Frame { mac: BROADCAST_MAC, address: Ipv4Addr::BROADCAST },
            Destination::Link { mac, address } => Self::Frame { mac, address },
        }
    }
}

impl Port {
    /// Takes port 67 of the interface; answers come from our address on `network`, whatever other addresses there are.
    ///
    /// # Errors
    /// Port in use, missing privilege: each says what to do.
    pub fn open(interface: &str, index: u32, network: &BootNetwork) -> anyhow::Result<Self> {
        let raw = PacketSocket::sender(index).context("DHCP: opening a packet socket needs CAP_NET_RAW; run kurrentd as root")?;
        let socket = Arc::new(bind(interface)?);
        let (frames, datagrams) = Default::default();
        Ok(Self { socket, raw, network: network.clone(), frames, datagrams, next_try: None })
    }

    /// Starts to receive.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn reader(&self) -> anyhow::Result<Reader> {
        Reader::start(self.socket.clone()).context("DHCP: starting the reader")
    }

    /// Datagrams that the kernel threw away because nobody fetched them in time.
    #[must_use]
    pub fn lost(&self) -> u64 {
        lost(&self.socket).unwrap_or_default()
    }

    /// Sends, or keeps it until there is room.
    ///
    /// # Errors
    /// It can not be sent at all; or so many wait already that the one which waited longest is given up.
    pub fn send(&mut self, outgoing: Outgoing, now: Mono) -> Result<(), Failed> {
        let way = Way::of(&outgoing, &self.network);
        let waiting = match way {
            Way::Frame { .. } => &self.frames,
            Way::Datagram(_) => &self.datagrams,
        };
        let sent = if waiting.is_empty() { self.transmit(way, &outgoing.octets) } else { Err(ErrorKind::WouldBlock.into()) };
        match sent {
            Ok(()) => Ok(()),
            Err(error) if is_full(&error) => {
                self.next_try.get_or_insert_with(|| Instant::now() + RETRY_AFTER);
                let waiting = match way {
                    Way::Frame { .. } => &mut self.frames,
                    Way::Datagram(_) => &mut self.datagrams,
                };
                waiting.push(outgoing, now).map_or(Ok(()), |given_up| Err((error, given_up)))
            }
            Err(error) => Err((error, outgoing)),
        }
    }

    /// Ends when it is time for [`Self::retry`]; never while nothing waits. Cancel-safe.
    pub async fn room(&self) {
        match self.next_try {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Sends what waited, in order, as far as there is room. Returns what is given up.
    pub fn retry(&mut self, now: Mono) -> Vec<Failed> {
        let (mut frames, mut datagrams) = (std::mem::take(&mut self.frames), std::mem::take(&mut self.datagrams));
        let send = |outgoing: &Outgoing| self.transmit(Way::of(outgoing, &self.network), &outgoing.octets);
        let mut failed = frames.flush(now, send, is_full);
        failed.extend(datagrams.flush(now, send, is_full));
        self.next_try = (!frames.is_empty() || !datagrams.is_empty()).then(|| Instant::now() + RETRY_AFTER);
        (self.frames, self.datagrams) = (frames, datagrams);
        failed
    }

    fn transmit(&self, way: Way, octets: &[u8]) -> io::Result<()> {
        match way {
            Way::Datagram(to) => self.udp(to, octets),
            // By hand also to everybody: of several addresses the kernel would choose the source itself.
            Way::Frame { mac, address } => {
                let from = SocketAddrV4::new(self.network.address, SERVER_PORT);
                self.raw.send(mac.0, from, SocketAddrV4::new(address, CLIENT_PORT), octets)
            }
        }
    }

    /// To a relay, or to somebody behind a router. The source is our own address: clients compare it with option 54, and relays' firewalls
    /// know it.
    fn udp(&self, to: SocketAddrV4, octets: &[u8]) -> io::Result<()> {
        let own = libc::in_addr { s_addr: u32::from_ne_bytes(self.network.address.octets()) };
        let source = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: own, ipi_addr: own };
        let control = [ControlMessage::Ipv4PacketInfo(&source)];
        sendmsg(self.socket.as_raw_fd(), &[IoSlice::new(octets)], &control, MsgFlags::MSG_DONTWAIT, Some(&SockaddrIn::from(to)))?;
        Ok(())
    }
}

/// There is no room for it now, but there will be.
fn is_full(error: &io::Error) -> bool {
    error.kind() == ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS)
}

fn bind(interface: &str) -> anyhow::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking().cloexec(), None).context("DHCP: opening a socket")?;
    socket.bind_device(Some(interface.as_bytes())).with_context(|| format!("DHCP: binding to interface {interface} needs CAP_NET_RAW"))?;
    socket.set_broadcast(true).context("DHCP: allowing broadcasts")?;
    // As root the limit of net.core.rmem_max does not count; without the privilege the kernel gives what it may.
    if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES).is_err() {
        let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES);
        let octets = socket.recv_buffer_size().unwrap_or_default();
        if octets < ENOUGH_BYTES {
            tracing::warn!(
                octets,
                "DHCP: the receive buffer is small: give kurrentd CAP_NET_ADMIN or raise net.core.rmem_max to {RECEIVE_BUFFER_BYTES}, or requests are lost when hundreds of machines are switched on at once"
            );
        }
    }
    // Without the privilege the kernel gives what it may: then more is lost when somebody forges relays.
    if setsockopt(&socket, sockopt::SndBufForce, &SEND_BUFFER_BYTES).is_err() {
        let _ = socket.set_send_buffer_size(SEND_BUFFER_BYTES);
    }
    match socket.bind(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, SERVER_PORT).into()) {
        Ok(()) => Ok(socket),
        Err(e) if e.kind() == ErrorKind::AddrInUse => bail!(
            "DHCP: port 67 of {interface} is taken by another program: find it with `ss -ulpn 'sport = :67'` and stop it, or set spec.dhcp.mode to off"
        ),
        Err(e) if e.kind() == ErrorKind::PermissionDenied => bail!("DHCP: port 67 needs CAP_NET_BIND_SERVICE; run kurrentd as root"),
        Err(e) => Err(e).context("DHCP: binding port 67"),
    }
}

/// `SO_MEMINFO`: the kernel's numbers of a socket, the drops among them (linux/sock_diag.h).
fn lost(socket: &Socket) -> io::Result<u64> {
    const DROPS: usize = 8;
    let mut numbers = [0_u32; DROPS + 1];
    let mut len = libc::socklen_t::try_from(size_of_val(&numbers)).unwrap_or_default();
    // SAFETY: the descriptor is open, and the kernel writes at most `len` octets, all of them in `numbers`.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, numbers.as_mut_ptr().cast(), &raw mut len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(numbers.last().copied().unwrap_or_default().into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_threw_away_is_counted() {
        let receiver = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), None).unwrap();
        receiver.set_recv_buffer_size(1).unwrap();
        receiver.bind(&SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let to = receiver.local_addr().unwrap();
        let sender = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        for _ in 0..64 {
            sender.send_to(&[0; 512], &to).unwrap();
        }
        let mut fetched = 0;
        while nix::unistd::read(&receiver, &mut [0; 512]).is_ok() {
            fetched += 1;
        }
        assert_eq!(lost(&receiver).unwrap(), 64 - fetched);
        assert!(fetched < 64);
    }

    #[test]
    fn nobody_on_our_link_is_asked_for_by_arp() {
        let network = kurrent_core::config::Config::default().boot_network;
        let (mac, local, far) = (MacAddr([2, 0, 0, 0, 0, 1]), Ipv4Addr::new(10, 77, 0, 9), Ipv4Addr::new(10, 78, 0, 9));
        let check = |to, expected| assert_eq!(Way::of(&Outgoing { octets: vec![], to, mac }, &network), expected, "{to:?}");
        check(Destination::Client(local), Way::Frame { mac, address: local });
        check(Destination::Link { mac, address: local }, Way::Frame { mac, address: local });
        check(Destination::Broadcast, Way::Frame { mac: MacAddr([0xff; 6]), address: Ipv4Addr::BROADCAST });
        check(Destination::Client(far), Way::Datagram(SocketAddrV4::new(far, 68)));
        check(Destination::Relay(far), Way::Datagram(SocketAddrV4::new(far, 67)));
        check(Destination::Relay(local), Way::Datagram(SocketAddrV4::new(local, 67)));
    }

    #[test]
    fn full_is_what_goes_by_itself() {
        let check = |code, expected| assert_eq!(is_full(&io::Error::from_raw_os_error(code)), expected, "{code}");
        check(libc::EAGAIN, true);
        check(libc::ENOBUFS, true);
        check(libc::ENETDOWN, false);
        check(libc::EMSGSIZE, false);
    }
}
