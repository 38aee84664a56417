//! Router advertisements: when and what is decided in `kurrent_core::dhcp6::ra`.

use super::quiet::Quiet;
use crate::shared::SharedRef;
use anyhow::Context;
use kurrent_core::config::Ipv6;
use kurrent_core::dhcp6::ra::{self, Schedule, Solicitor};
use kurrent_sys::icmp6::RouterSocket;
use kurrent_sys::{clock, entropy};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Duration;
use tokio::io::unix::AsyncFd;

/// A solicitation is 16 octets; options that follow are not ours.
const MESSAGE_BYTES: usize = 512;

/// Advertises on `interface` until it fails.
///
/// # Errors
/// No such interface, missing privilege: each says what to do.
pub async fn serve(shared: SharedRef, ipv6: Ipv6, interface: String) -> anyhow::Result<()> {
    let link =
        kurrent_sys::link::link(&interface).context("router advertisements: check spec.networking in kurrent.yaml against `ip link`")?;
    let socket = RouterSocket::open(&interface, link.index, ra::SOLICITATION, ra::ALL_ROUTERS)
        .context("router advertisements: opening an ICMPv6 socket needs CAP_NET_RAW and IPv6 on the interface")?;
    // SAFETY: the socket keeps one descriptor from its making to its drop, which comes after the deregistration.
    let socket = unsafe { AsyncFd::register(socket) }.context("router advertisements: handing the socket to the runtime")?;
    let advertisement = ra::encode(&ipv6, link.mac);
    tracing::info!(%interface, address = %ipv6.address, "router advertisements: sending");
    let mut schedule = Schedule::start(clock::now().mono);
    let mut quiet = Quiet::default();
    let mut buffer = [0; MESSAGE_BYTES];
    loop {
        let wait = schedule.next().since(clock::now().mono);
        tokio::select! {
            () = tokio::time::sleep(wait) => {
                let now = clock::now().mono;
                match socket.get_ref().send(ra::ALL_NODES, &advertisement) {
                    Ok(()) => schedule.sent(now, random()),
                    Err(error) => {
                        schedule.failed(now);
                        if let Some(more) = quiet.admit("send", now) {
                            tracing::warn!(%error, more, "router advertisements: one could not be sent");
                        }
                    }
                }
            }
            ready = socket.readable() => {
                let mut ready = ready.context("router advertisements: waiting")?;
                match socket.get_ref().receive(&mut buffer) {
                    Ok(Some(heard)) => {
                        let solicitor = ra::solicitation(heard.octets, heard.hop_limit, heard.source);
                        let now = clock::now().mono;
                        if let Some(solicitor) = solicitor.filter(|_| schedule.is_far(now))
                            && answers(&shared, solicitor)
                        {
                            schedule.solicited(now, random());
                        }
                    }
                    Ok(None) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => ready.clear_ready(),
                    Err(error) => {
                        if let Some(more) = quiet.admit("receive", clock::now().mono) {
                            tracing::warn!(%error, more, "router advertisements: receiving");
                        }
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        }
    }
}

/// Whoever is met with silence causes no advertisement; those that go out are for all.
fn answers(shared: &SharedRef, solicitor: Solicitor) -> bool {
    shared.silence(solicitor.link_layer.or_else(|| shared.holder(IpAddr::V6(solicitor.source)))).is_none()
}

fn random() -> u8 {
    u8::from_ne_bytes(entropy::random())
}
