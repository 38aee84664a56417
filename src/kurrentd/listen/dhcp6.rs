//! The DHCPv6 listener: receive, find out which machine asks, decide (`kurrent_core::dhcp6`), reply.
//!
//! Answers go out at once: an address is a function of the MAC, so there is nothing to write before a REPLY.

use super::dhcp::mark_beginning;
use super::quiet::Quiet;
use super::revoked::Revoked;
use crate::shared::SharedRef;
use anyhow::{Context, bail};
use kurrent_core::config::Ipv6;
use kurrent_core::dhcp6::machine::{self, Declined};
use kurrent_core::dhcp6::wire::{self, ALL_SERVERS, CLIENT_PORT, Kind, Received, SERVER_PORT};
use kurrent_core::dhcp6::{Decision, Reason, View, boot, decide};
use kurrent_core::id::MacAddr;
use kurrent_core::time::{Mono, Now};
use kurrent_sys::clock;
use sha2::{Digest as _, Sha256};
use socket2::{Domain, Socket, Type};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::time::MissedTickBehavior;

/// A rack's worth of firmware that starts at once; the kernel counts about 2 KiB per datagram.
const RECEIVE_BUFFER_BYTES: usize = 1 << 20;
/// Longest datagram that is looked at; a longer one is cut and then refused as malformed.
const DATAGRAM_BYTES: usize = 4096;
/// EDK2 asks a boot server that is not the one with the addresses here (UefiPxeBcDxe, `PXEBC_BS_DISCOVER_PORT`).
const BOOT_SERVER_PORT: u16 = 4011;
/// A message from an address that the kernel does not know yet waits for the answer to its three neighbour solicitations, a second
/// apart (RFC 4861 s10): the first is lost while our own link-local address is still looked for on the link.
const WAIT: Duration = Duration::from_secs(3);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Messages that wait, one of each address: as many as the kernel is made to ask for meanwhile. At most 768 KiB.
const MAX_WAITING: usize = 192;
/// DUID-UUID (RFC 6355).
const DUID_UUID: u16 = 4;

/// Serves DHCPv6 on `interface` until it fails. Cancel-safe: nothing is kept.
///
/// # Errors
/// No such interface, port in use, missing privilege: each says what to do.
pub async fn serve(shared: SharedRef, ipv6: Ipv6, interface: String) -> anyhow::Result<()> {
    let link = kurrent_sys::link::link(&interface).context("DHCPv6: check spec.networking in kurrent.yaml against `ip link`")?;
    let socket = bind(&interface, SERVER_PORT)?;
    socket.join_multicast_v6(&ALL_SERVERS, link.index).context("DHCPv6: joining the servers' multicast group")?;
    let boot_server = bind(&interface, BOOT_SERVER_PORT)?;
    let server_id = server_id(&shared.server_key.now().first());
    tracing::info!(%interface, address = %ipv6.address, mode = ?ipv6.dhcp, "DHCPv6: serving");
    let mut server = Server {
        shared,
        ipv6,
        index: link.index,
        server_id,
        declined: Declined::default(),
        quiet: Quiet::default(),
        revoked: Revoked::by("dhcp6"),
        waiting: Vec::new(),
    };
    let mut again = tokio::time::interval(LOOK_AGAIN);
    again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut buffer, mut boot_buffer) = (vec![0; DATAGRAM_BYTES], vec![0; DATAGRAM_BYTES]);
    loop {
        let (received, socket, octets) = tokio::select! {
            received = socket.recv_from(&mut buffer) => (received, &socket, &buffer),
            received = boot_server.recv_from(&mut boot_buffer) => (received, &boot_server, &boot_buffer),
            _ = again.tick(), if !server.waiting.is_empty() => {
                server.look_again(&socket, &boot_server, clock::now());
                continue;
            }
        };
        match received {
            Ok((len, SocketAddr::V6(source))) => server.received(socket, octets.get(..len).unwrap_or_default(), source, clock::now()),
            Ok((_, SocketAddr::V4(_))) => {}
            Err(error) => {
                // The interface is down, or an ICMP error came back: neither ends the service, neither may spin.
                if let Some(more) = server.quiet.admit("receive", clock::now().mono) {
                    tracing::warn!(%error, more, "DHCPv6: receiving");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn bind(interface: &str, port: u16) -> anyhow::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV6, Type::DGRAM.nonblocking().cloexec(), None).context("DHCPv6: opening a socket")?;
    socket.set_only_v6(true).context("DHCPv6: leaving IPv4 to others")?;
    socket
        .bind_device(Some(interface.as_bytes()))
        .with_context(|| format!("DHCPv6: binding to interface {interface} needs CAP_NET_RAW"))?;
    // What the kernel does not give is not needed.
    let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES);
    match socket.bind(&SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0).into()) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::AddrInUse => bail!(
            "DHCPv6: port {port} of {interface} is taken by another program: find it with `ss -ulpn 'sport = :{port}'` and stop it, or set spec.dhcp6.mode to off"
        ),
        Err(e) if e.kind() == ErrorKind::PermissionDenied => bail!("DHCPv6: port {port} needs CAP_NET_BIND_SERVICE; run kurrentd as root"),
        Err(e) => return Err(e).with_context(|| format!("DHCPv6: binding port {port}")),
    }
    UdpSocket::from_std(socket.into()).context("DHCPv6: handing the socket to the runtime")
}

/// A DUID-UUID of the appliance's own key: the same as long as the state folder is the same, and restored with it.
fn server_id(key: &[u8; 32]) -> Vec<u8> {
    let digest: [u8; 32] = Sha256::new().chain_update(b"kurrent DHCPv6 server\0").chain_update(key).finalize().into();
    DUID_UUID.to_be_bytes().into_iter().chain(digest.into_iter().take(16)).collect()
}

fn is_4011(socket: &UdpSocket) -> bool {
    socket.local_addr().is_ok_and(|a| a.port() == BOOT_SERVER_PORT)
}

struct Server {
    shared: SharedRef,
    ipv6: Ipv6,
    index: u32,
    server_id: Vec<u8>,
    declined: Declined,
    quiet: Quiet,
    revoked: Revoked,
    waiting: Vec<Waiting>,
}

/// A message of which nobody knows yet who sent it.
struct Waiting {
    octets: Vec<u8>,
    source: SocketAddrV6,
    on_4011: bool,
    since: Mono,
}

impl Server {
    /// A datagram came. When the kernel does not know whose it is, it asks, and the message waits for that.
    fn received(&mut self, socket: &UdpSocket, octets: &[u8], source: SocketAddrV6, now: Now) {
        if self.answered(socket, octets, source, now) {
            return;
        }
        let waits = self.waiting.iter().any(|waiting| waiting.source == source);
        if waits || self.waiting.len() >= MAX_WAITING {
            self.note_line(class(Reason::NoMachine), &source, now);
            return;
        }
        self.shared.neighbours.ask(self.index, IpAddr::V6(*source.ip()), now.mono);
        self.waiting.push(Waiting { octets: octets.to_vec(), source, on_4011: is_4011(socket), since: now.mono });
    }

    /// Whether the kernel knows by now who sent what waits.
    fn look_again(&mut self, socket: &UdpSocket, boot_server: &UdpSocket, now: Now) {
        for waiting in std::mem::take(&mut self.waiting) {
            let to = if waiting.on_4011 { boot_server } else { socket };
            if self.answered(to, &waiting.octets, waiting.source, now) {
                continue;
            }
            if now.mono.since(waiting.since) < WAIT {
                self.waiting.push(waiting);
            } else {
                self.note_line(class(Reason::NoMachine), &waiting.source, now);
            }
        }
    }

    /// Answers, or is silent for a reason; false: it is not known yet which machine on our link asks.
    fn answered(&mut self, socket: &UdpSocket, octets: &[u8], source: SocketAddrV6, now: Now) -> bool {
        let own = self.ipv6.address;
        // Nobody else is on our link: relays have an address of it, too.
        if !source.ip().is_unicast_link_local() && !machine::in_prefix(own, *source.ip()) {
            self.note_line("silent: not from this link", &source, now);
            return true;
        }
        let received = match wire::decode(octets) {
            Ok(received) => received,
            Err(why) => {
                if let Some(more) = self.quiet.admit("malformed", now.mono) {
                    tracing::info!(%why, %source, more, "DHCPv6: not a request");
                }
                return true;
            }
        };
        let mac = machine::machine(&received, own, *source.ip(), |address| self.neighbour(address, now));
        if mac.is_none() && received.relays.is_empty() {
            return false;
        }
        let ledger = self.shared.ledger.snapshot();
        let view = View {
            ipv6: &self.ipv6,
            boot_port: self.shared.config.boot_port,
            unknown_devices: self.shared.config.dhcp.unknown_devices,
            ledger: &ledger,
            server_id: &self.server_id,
            declined: &self.declined,
        };
        let Decision { reply, declined, reason } = decide(&received, mac, &view, now.mono);
        if let Some(mac) = mac {
            for address in declined {
                self.declined.decline(own, mac, address, now.mono);
            }
        }
        if let Some(reply) = reply {
            // A relay listens where we do (RFC 8415 s7.2); EDK2's question on 4011 is answered where it came from.
            let direct = received.relays.is_empty();
            let port = if is_4011(socket) {
                source.port()
            } else if direct {
                CLIENT_PORT
            } else {
                SERVER_PORT
            };
            let to = SocketAddrV6::new(*source.ip(), port, 0, if source.ip().is_unicast_link_local() { self.index } else { 0 });
            if let Err(error) = socket.try_send_to(&wire::encode(&reply, &received), to.into())
                && let Some(more) = self.quiet.admit("send", now.mono)
            {
                tracing::warn!(%error, %to, more, "DHCPv6: an answer could not be sent");
            }
        }
        match mac {
            Some(mac) => self.note(&received, mac, reason, now),
            None => self.note_line(class(reason), &source, now),
        }
        true
    }

    fn neighbour(&self, address: Ipv6Addr, now: Now) -> Option<MacAddr> {
        self.shared.neighbours.mac_of(self.shared.config.boot_network.address, IpAddr::V6(address), now.mono)
    }

    fn note_line(&mut self, class: &'static str, source: &SocketAddrV6, now: Now) {
        if let Some(more) = self.quiet.admit(class, now.mono) {
            tracing::info!(%source, more, "DHCPv6: {class}");
        }
    }

    /// Log line, timeline, audit.
    fn note(&mut self, received: &Received, mac: MacAddr, reason: Reason, now: Now) {
        let client = boot::identify(&received.options);
        if let Some(more) = self.quiet.admit(class(reason), now.mono) {
            tracing::info!(%mac, kind = ?received.kind, ?client, more, "DHCPv6: {}", class(reason));
        }
        let refused = class(reason).starts_with("silent");
        self.shared.timelines.sight(mac, "dhcp6", class(reason), refused, now);
        let begins = matches!(received.kind, Kind::Solicit | Kind::InformationRequest);
        if begins && !refused && client.boots() {
            mark_beginning(&self.shared, mac, &client, now);
        }
        if reason == Reason::Revoked {
            self.revoked.asks(&self.shared, mac, now.mono);
        }
    }
}

/// What the log says of an answer.
fn class(reason: Reason) -> &'static str {
    match reason {
        Reason::Advertised => "advertised",
        Reason::Replied => "address given",
        Reason::Renewed => "renewed",
        Reason::Informed => "informed",
        Reason::Confirmed => "told whether its addresses fit the link",
        Reason::Released => "released",
        Reason::Declined => "declined: another machine uses that address",
        Reason::Revoked => "silent: the device is revoked",
        Reason::UnknownDevice => "silent: not a known device, and spec.dhcp.unknownDevices is off",
        Reason::NoMachine => "silent until it is known which machine asks",
        Reason::OtherServer => "silent: the client chose another DHCPv6 server",
        Reason::Invalid => "silent: identifiers are missing or there although forbidden",
        Reason::NotOurs => "silent: nothing of ours is asked about",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_identifier_is_its_keys_and_a_valid_duid() {
        let (a, b) = (server_id(&[1; 32]), server_id(&[2; 32]));
        assert_eq!((a.len(), &a[..2]), (18, &[0, 4][..]));
        assert_eq!(a, server_id(&[1; 32]));
        assert_ne!(a, b);
    }
}
