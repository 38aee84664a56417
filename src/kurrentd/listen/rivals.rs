//! Looks for other DHCP servers on the boot network: listens to what servers say to machines (port 68), and asks itself now and
//! then. Decides nothing: what is found is shown (screen, API, log, audit), see [`kurrent_core::dhcp::others`].

use super::quiet::Quiet;
use crate::audit::Event;
use crate::shared::{Shared, SharedRef};
use anyhow::Context;
use kurrent_core::config::DhcpMode;
use kurrent_core::dhcp::address::{CLIENT_PORT, SERVER_PORT};
use kurrent_core::dhcp::others::{ASK_EVERY, Sighting, question, sighting};
use kurrent_core::dhcp::wire;
use kurrent_core::id::MacAddr;
use kurrent_sys::packet::{PacketSocket, Received};
use kurrent_sys::{clock, entropy};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

/// The part of [`crate::shared::Faults`].
const FAULT: &str = "dhcp-other-server";
/// The first question waits for our own start to be over.
const ASK_AFTER: Duration = Duration::from_secs(1);
/// Datagrams taken before others get their turn.
const DRAIN: usize = 64;
/// Longest message that is looked at.
const DATAGRAM_BYTES: usize = 2048;

/// Looks until it fails.
///
/// # Errors
/// No such interface, missing privilege, or the interface went away.
pub async fn serve(shared: SharedRef, interface: String) -> anyhow::Result<()> {
    let link = kurrent_sys::link::link(&interface).context("looking for other DHCP servers")?;
    let socket = PacketSocket::receiver(link.index, CLIENT_PORT)
        .context("looking for other DHCP servers needs CAP_NET_RAW; run kurrentd as root")?;
    // SAFETY: a PacketSocket owns its descriptor, gives out always the same one, and closes it only when it is dropped.
    let socket = unsafe { AsyncFd::register(socket) }.context("handing the socket to the runtime")?;
    let mut times = interval_at(Instant::now() + ASK_AFTER, ASK_EVERY);
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut quiet = Quiet::default();
    loop {
        tokio::select! {
            _ = times.tick() => {
                if let Err(error) = ask(&shared, socket.get_ref())
                    && let Some(more) = quiet.admit("ask", clock::now().mono)
                {
                    tracing::warn!(%error, more, "asking for other DHCP servers");
                }
                // Who did not answer for long is gone.
                tell(&shared);
            }
            ready = socket.readable() => {
                let mut ready = ready.context("waiting for other DHCP servers")?;
                drain(&shared, socket.get_ref(), &mut || ready.clear_ready())?;
                tokio::task::yield_now().await;
            }
        }
    }
}

fn ask(shared: &Shared, socket: &PacketSocket) -> std::io::Result<()> {
    let own = MacAddr(socket.mac()?);
    let xid = u32::from_ne_bytes(entropy::random());
    shared.dhcp.note_question(own, xid);
    let octets = wire::encode(&question(own, xid), wire::DEFAULT_MESSAGE_BYTES);
    let from = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, CLIENT_PORT);
    socket.send([0xff; 6], from, SocketAddrV4::new(Ipv4Addr::BROADCAST, SERVER_PORT), &octets)
}

fn drain(shared: &Shared, socket: &PacketSocket, empty: &mut impl FnMut()) -> anyhow::Result<()> {
    let own = (shared.config.boot_network.address, MacAddr(socket.mac().context("listening for other DHCP servers")?));
    let mut buffer = [0; DATAGRAM_BYTES];
    for _ in 0..DRAIN {
        match socket.receive_from(&mut buffer) {
            Ok(Some(Received { mac, source, payload })) => {
                let read = wire::decode(payload).ok();
                if let Some(found) = read.and_then(|packet| sighting(&packet, *source.ip(), MacAddr(mac), own)) {
                    notice(shared, found);
                }
            }
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                empty();
                return Ok(());
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("listening for other DHCP servers"),
        }
    }
    Ok(())
}

/// Remembers a sign of another server; what is new is logged, audited and shown.
pub fn notice(shared: &Shared, found: Sighting) {
    if !shared.dhcp.note_other(found, clock::now()) {
        return;
    }
    let Sighting { server, mac, heard, address } = found;
    tracing::warn!(%server, ?mac, ?heard, ?address, "another DHCP server is on the boot network");
    shared.audit.record(Event {
        actor: format!("dhcp server {server}"),
        verb: "other-dhcp-server",
        device: mac,
        object: server.to_string(),
        result: "seen".into(),
        detail: String::new(),
    });
    tell(shared);
}

/// Beside a server that gives addresses we are the proxy; beside us there should be none.
fn tell(shared: &Shared) {
    let others = shared.dhcp.others(clock::now());
    match others.first() {
        Some(first) if shared.config.dhcp.mode == DhcpMode::Server => {
            let who = first.latest.mac.map(|mac| format!(" ({mac})")).unwrap_or_default();
            let more = others.len().saturating_sub(1);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            shared.faults.set(
                FAULT,
                format!(
                    "another DHCP server answers on the boot network: {}{who}{more}; machines may get its addresses and boot files: switch it off, or set spec.dhcp.mode to proxy; see `kurrent dhcp status`",
                    first.latest.server
                ),
            );
        }
        Some(_) | None => shared.faults.clear(FAULT),
    }
}
