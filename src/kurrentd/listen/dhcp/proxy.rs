//! Proxy mode: beside another server, which gives the addresses, ports 67 and 4011 say what machines boot
//! (`kurrent_core::dhcp::proxy`). Nothing is written: there are no leases of ours.
//!
//! What REQUESTs on port 67 show of the other server's leases is published as ours would be, so that TFTP and HTTP know who asks.

use super::port::{Outgoing, Port};
use super::pxe_port::PxePort;
use crate::listen::quiet::Quiet;
use crate::listen::revoked::Revoked;
use crate::shared::{LeaseSnapshot, SharedRef};
use anyhow::{Context, bail};
use kurrent_core::dhcp::proxy::{self, Reason, View};
use kurrent_core::dhcp::pxe::NO_LOADER;
use kurrent_core::dhcp::seen::{Learnt, Seen, Unanswered};
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
const NEVER_CAME: &str = "offered a boot file again and again, and never came for it";

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
    // Nothing is known of leases at the start; from now on only what changes is published.
    shared.leases.store(Arc::default());
    let (quiet, seen, unanswered) = Default::default();
    let revoked = Revoked::by("dhcp");
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
                let learnt: Vec<Learnt> = datagrams.drain(..).flat_map(|datagram| proxy.received(&datagram, clock::now())).collect();
                proxy.publish(&learnt);
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
    /// What was learnt of who has which address.
    fn received(&mut self, octets: &[u8], now: Now) -> Vec<Learnt> {
        self.shared.dhcp.counters.count("received");
        let request = wire::decode(octets).map_err(|e| e.to_string()).and_then(|p| msg::request(&p).map_err(|e| format!("{e:?}")));
        let request = match request {
            Ok(request) => request,
            Err(why) => {
                self.shared.dhcp.counters.count("ignored: malformed, or not a request");
                if let Some(more) = self.quiet.admit("malformed", now.mono) {
                    tracing::debug!(%why, more, "DHCP: not a request");
                }
                return Vec::new();
            }
        };
        if self.shared.dhcp.is_own_question(&request) {
            self.shared.dhcp.counters.count("ignored: our own question for other servers, through a relay");
            return Vec::new();
        }
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
            super::mark_beginning(&self.shared, mac, &request.client, now);
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

    /// What changed, and no more: whoever names a new address in each REQUEST must not make us copy all.
    fn publish(&self, learnt: &[Learnt]) {
        if learnt.is_empty() {
            return;
        }
        let mut snapshot = LeaseSnapshot::clone(&self.shared.leases.load());
        for change in learnt {
            match *change {
                Learnt::Has(address, mac) => snapshot.give(address, mac),
                Learnt::Lost(address) => snapshot.take(address),
            }
        }
        self.shared.leases.store(Arc::new(snapshot));
    }

    /// Who has come for its file, and whom nobody tells what to do.
    fn look(&mut self, now: Now) {
        let learnt = self.seen.expire(now.mono);
        self.publish(&learnt);
        let timelines = &self.shared.timelines;
        let came = |mac| timelines.of(mac).is_some_and(|boot| boot.marks.iter().any(|mark| mark.step > Step::Dhcp));
        let come: Vec<_> = self.unanswered.waiting().filter(|mac| came(*mac)).collect();
        come.into_iter().for_each(|mac| self.unanswered.came(mac));
        let news = self.unanswered.news(now.mono);
        for mac in &news {
            timelines.sight(*mac, "dhcp", NEVER_CAME, true, now);
        }
        if let Some(mac) = news.first()
            && let Some(more) = self.quiet.admit(NEVER_CAME, now.mono)
        {
            tracing::warn!(%mac, machines = news.len(), more, "DHCP: {NEVER_CAME}");
        }
        let overdue = self.unanswered.overdue(now.mono);
        if overdue.is_empty() {
            self.shared.faults.clear(PART);
        } else {
            self.shared.faults.set(PART, proxy::hint(&overdue, self.shared.config.boot_network.address));
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
