//! Proxy mode: beside another server, which gives the addresses, ports 67 and 4011 say what machines boot
//! (`kurrent_core::dhcp::proxy`). Nothing is written: there are no leases of ours.
//!
//! What REQUESTs on port 67 show of the other server's leases is published as ours would be, so that TFTP and HTTP know who asks.

use super::port::{Outgoing, Port};
use super::pxe_port::PxePort;
use super::revoked::Revoked;
use crate::listen::quiet::Quiet;
use crate::shared::SharedRef;
use anyhow::{Context, bail};
use kurrent_core::dhcp::proxy::{self, Reason, View};
use kurrent_core::dhcp::pxe::NO_LOADER;
use kurrent_core::dhcp::seen::{Seen, Unanswered};
use kurrent_core::dhcp::{msg, wire};
use kurrent_core::time::Now;
use kurrent_core::timeline::Step;
use kurrent_sys::clock;
use std::sync::Arc;
use std::time::Duration;

/// Datagrams taken before anything else is looked at.
const DRAIN: usize = 256;
/// How often it is looked who has come for what it was offered.
const LOOK: Duration = Duration::from_secs(2);
/// The fault's part.
const PART: &str = "dhcp-proxy";

/// Serves `interface` until it fails. Cancel-safe.
///
/// # Errors
/// No such interface, port in use, missing privilege: each says what to do.
pub async fn serve(shared: SharedRef, interface: String) -> anyhow::Result<()> {
    let link = kurrent_sys::link::link(&interface).context("DHCP: check spec.networking in kurrent.yaml against `ip link`")?;
    let port = Port::open(&interface, link.index, &shared.config.boot_network)?;
    let reader = port.reader()?;
    let mut pxe = PxePort::open(shared.clone(), &interface)?;
    tracing::info!(%interface, address = %shared.config.boot_network.address, "DHCP: serving as a proxy: another server gives the addresses");
    let (quiet, revoked, seen, unanswered) = Default::default();
    let mut proxy = Proxy { shared, port, quiet, revoked, seen, unanswered };
    let mut reader = reader;
    let mut datagrams = Vec::with_capacity(DRAIN);
    let mut look = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            biased;
            () = proxy.port.room() => {
                let given_up = proxy.port.retry(clock::now().mono);
                given_up.iter().for_each(|(error, outgoing)| proxy.not_sent(error, outgoing));
            }
            _ = look.tick() => proxy.look(clock::now()),
            told = pxe.answer_one() => if let Some(mac) = told {
                proxy.unanswered.came(mac);
            },
            taken = reader.take(&mut datagrams, DRAIN) => {
                if taken == 0 {
                    bail!("DHCP: the reader has ended; see the log before this line");
                }
                let mut changed = false;
                for datagram in datagrams.drain(..) {
                    changed |= proxy.received(&datagram, clock::now());
                }
                if changed {
                    proxy.publish();
                }
            }
        }
    }
}

struct Proxy {
    shared: SharedRef,
    port: Port,
    quiet: Quiet,
    revoked: Revoked,
    seen: Seen,
    unanswered: Unanswered,
}

impl Proxy {
    /// Whether something was learnt of who has which address.
    fn received(&mut self, octets: &[u8], now: Now) -> bool {
        self.shared.dhcp.counters.count("received");
        let request = wire::decode(octets).map_err(|e| e.to_string()).and_then(|p| msg::request(&p).map_err(|e| format!("{e:?}")));
        let request = match request {
            Ok(request) => request,
            Err(why) => {
                self.shared.dhcp.counters.count("ignored: malformed, or not a request");
                if let Some(more) = self.quiet.admit("malformed", now.mono) {
                    tracing::debug!(%why, more, "DHCP: not a request");
                }
                return false;
            }
        };
        let config = &self.shared.config;
        let serves = |address| address != config.boot_network.address && config.dhcp.subnets().any(|subnet| subnet.contains(address));
        let learnt = self.seen.learn(&request, serves, now.mono);
        let ledger = self.shared.ledger.snapshot();
        let (answer, reason) = proxy::decide(&request, &View { config, ledger: &ledger });
        let mac = request.mac;
        let said = match request.client.without_loader() {
            Some(why) if reason == Reason::NoLoader => why,
            Some(_) | None => class(reason).to_owned(),
        };
        // Most of what comes is between others: nothing to tell of.
        if !matches!(reason, Reason::NotBooting | Reason::OtherServer) {
            self.shared.dhcp.counters.count(class(reason));
            if let Some(more) = self.quiet.admit(class(reason), now.mono) {
                tracing::info!(%mac, client = ?request.client, more, "DHCP: {said}");
            }
            let part = if said.starts_with(NO_LOADER) { "loader" } else { "dhcp" };
            self.shared.timelines.sight(mac, part, &said, answer.is_none(), now);
        }
        if reason == Reason::Revoked {
            self.revoked.asks(&self.shared, mac, now.mono);
        }
        if let Some((packet, to)) = answer {
            super::mark_beginning(&self.shared, &request, now);
            self.unanswered.offered(mac, now.mono);
            let octets = wire::encode(&packet, request.max_reply_bytes);
            self.shared.dhcp.counters.count("answered");
            if let Err((error, outgoing)) = self.port.send(Outgoing { octets, to, mac }, now.mono) {
                self.not_sent(&error, &outgoing);
            }
        }
        learnt
    }

    fn not_sent(&mut self, error: &std::io::Error, outgoing: &Outgoing) {
        self.shared.dhcp.counters.count("lost: an answer could not be sent");
        if let Some(more) = self.quiet.admit("send", clock::now().mono) {
            tracing::warn!(%error, mac = %outgoing.mac, to = ?outgoing.to, more, "DHCP: an answer could not be sent");
        }
    }

    fn publish(&self) {
        self.shared.leases.store(Arc::new(self.seen.holders().collect()));
    }

    /// Who has come for its file, and whom nobody tells what to do.
    fn look(&mut self, now: Now) {
        if self.seen.expire(now.mono) {
            self.publish();
        }
        let timelines = &self.shared.timelines;
        let came = |mac| timelines.of(mac).is_some_and(|boot| boot.marks.iter().any(|mark| mark.step > Step::Dhcp));
        let come: Vec<_> = self.unanswered.waiting().filter(|mac| came(*mac)).collect();
        come.into_iter().for_each(|mac| self.unanswered.came(mac));
        match self.unanswered.overdue(now.mono) {
            None => self.shared.faults.clear(PART),
            Some((mac, all)) => {
                let own = self.shared.config.boot_network.address;
                self.shared.faults.set(PART, proxy::hint(mac, all.saturating_sub(1), own));
            }
        }
    }
}

/// What the log says of an answer.
fn class(reason: Reason) -> &'static str {
    match reason {
        Reason::Offered | Reason::Told => "offered a boot file, as a proxy",
        Reason::Revoked => "silent: the device is revoked",
        Reason::UnknownDevice => "silent: not a known device, and spec.dhcp.unknownDevices is off",
        Reason::NotBooting => "silent: it does not boot from the network",
        Reason::NoLoader => "silent: no loader for its architecture",
        Reason::OtherNetwork => "silent: the relay's network is not one of spec.dhcp.subnets",
        Reason::OtherServer => "silent: between the client and the server that gives the addresses",
    }
}
