//! Port 4011 of the boot network's address: firmware that asks there what to boot (`kurrent_core::dhcp::proxy`), in server mode
//! and in proxy mode.

use crate::listen::quiet::Quiet;
use crate::listen::revoked::Revoked;
use crate::shared::SharedRef;
use anyhow::{Context, bail};
use kurrent_core::dhcp::proxy::{self, PXE_PORT, Reason, View};
use kurrent_core::dhcp::{msg, wire};
use kurrent_core::id::MacAddr;
use kurrent_core::time::Now;
use kurrent_sys::clock;
use kurrent_sys::packet::PacketSocket;
use socket2::{Domain, Socket, Type};
use std::io::ErrorKind;
use std::net::{SocketAddr, SocketAddrV4};
use std::time::Duration;
use tokio::net::UdpSocket;

/// Longest datagram that is looked at; a longer one is cut and then refused as malformed.
const DATAGRAM_BYTES: usize = 2048;
/// The interface is down: that neither ends the service nor may it spin.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves port 4011 in server mode. Cancel-safe.
///
/// # Errors
/// Port in use, address or privilege missing: each says what to do.
pub async fn serve(shared: SharedRef, interface: String) -> anyhow::Result<()> {
    let mut port = PxePort::open(shared, &interface)?;
    loop {
        port.answer_one().await;
    }
}

/// The port.
pub struct PxePort {
    shared: SharedRef,
    socket: UdpSocket,
    raw: PacketSocket,
    quiet: Quiet,
    revoked: Revoked,
    buffer: Vec<u8>,
}

impl PxePort {
    /// Takes it.
    ///
    /// # Errors
    /// Port in use, address or privilege missing: each says what to do.
    pub fn open(shared: SharedRef, interface: &str) -> anyhow::Result<Self> {
        let address = shared.config.boot_network.address;
        let link = kurrent_sys::link::link(interface).context("PXE: check spec.networking in kurrent.yaml against `ip link`")?;
        let raw = PacketSocket::sender(link.index).context("PXE: opening a packet socket needs CAP_NET_RAW; run kurrentd as root")?;
        let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking().cloexec(), None).context("PXE: opening a socket")?;
        socket.bind_device(Some(interface.as_bytes())).with_context(|| format!("PXE: binding to {interface} needs CAP_NET_RAW"))?;
        // To our address and no other: firmware asks by unicast, and expects the answer from where it asked.
        match socket.bind(&SocketAddrV4::new(address, PXE_PORT).into()) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::AddrInUse => bail!(
                "PXE: port 4011 of {interface} is taken by another program (a second boot server?): find it with `ss -ulpn 'sport = :4011'` and stop it"
            ),
            Err(e) => return Err(e).with_context(|| format!("PXE: binding {address} port 4011")),
        }
        let socket = UdpSocket::from_std(socket.into()).context("PXE: handing the socket to the runtime")?;
        tracing::info!(%interface, %address, "PXE: serving port 4011");
        Ok(Self { shared, socket, raw, quiet: Quiet::default(), revoked: Revoked::by("dhcp"), buffer: vec![0; DATAGRAM_BYTES] })
    }

    /// Waits for a request and answers it. Returns whom something was told. Cancel-safe.
    pub async fn answer_one(&mut self) -> Option<MacAddr> {
        match self.socket.recv_from(&mut self.buffer).await {
            Ok((len, SocketAddr::V4(source))) => self.received(len, source, clock::now()),
            Ok((_, SocketAddr::V6(_))) => None,
            Err(error) => {
                if let Some(more) = self.quiet.admit("receive", clock::now().mono) {
                    tracing::warn!(%error, more, "PXE: receiving");
                }
                tokio::time::sleep(PAUSE).await;
                None
            }
        }
    }

    fn received(&mut self, len: usize, source: SocketAddrV4, now: Now) -> Option<MacAddr> {
        let packet = wire::decode(self.buffer.get(..len)?).ok()?;
        let request = msg::request(&packet).ok()?;
        let ledger = self.shared.ledger.snapshot();
        let (answer, reason) = proxy::decide_4011(&request, source, &View { config: &self.shared.config, ledger: &ledger });
        let (mac, said) = (request.mac, class(reason));
        self.shared.dhcp.counters.count(said);
        if let Some(more) = self.quiet.admit(said, now.mono) {
            tracing::info!(%mac, %source, client = ?request.client, more, "PXE: {said}");
        }
        if reason == Reason::Revoked {
            self.revoked.asks(&self.shared, mac, now.mono);
        }
        self.shared.timelines.sight(mac, "pxe", said, answer.is_none(), now);
        let (packet, to) = answer?;
        // A full queue: it asks again.
        if let Err(error) = self.send(mac, to, &wire::encode(&packet, request.max_reply_bytes))
            && let Some(more) = self.quiet.admit("send", now.mono)
        {
            tracing::warn!(%error, %mac, %to, more, "PXE: an answer could not be sent");
        }
        Some(mac)
    }
}

impl PxePort {
    /// On our link to the MAC that asked: a forged source of an absent host would wait for ARP in the socket's buffer.
    fn send(&self, mac: MacAddr, to: SocketAddrV4, octets: &[u8]) -> std::io::Result<()> {
        let network = &self.shared.config.boot_network;
        if network.contains(*to.ip()) {
            return self.raw.send(mac.0, SocketAddrV4::new(network.address, PXE_PORT), to, octets);
        }
        self.socket.try_send_to(octets, to.into()).map(drop)
    }
}

fn class(reason: Reason) -> &'static str {
    match reason {
        Reason::Offered | Reason::Told => "told on port 4011 what to boot",
        Reason::Revoked => "silent on port 4011: the device is revoked",
        Reason::UnknownDevice => "silent on port 4011: not a known device, and spec.dhcp.unknownDevices is off",
        Reason::NotBooting => "silent on port 4011: it does not boot from the network",
        Reason::NoLoader => "silent on port 4011: no loader for its architecture",
        Reason::OtherNetwork => "silent on port 4011: the client is on a network that is not served",
        Reason::OtherServer => "silent on port 4011: not a request for this server",
    }
}
