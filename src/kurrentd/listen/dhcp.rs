//! The DHCP listener: receive, decide (`kurrent_core::dhcp`), commit, reply. The only owner of the lease table.
//!
//! An ACK leaves only when its lease is on the disk and published for the TFTP and HTTP listeners. What the disk cannot
//! follow is not decided at all: the client asks again.

mod conflicts;
mod outbox;
mod port;
mod probe;
pub mod proxy;
pub mod pxe_port;
mod reader;

use super::quiet::Quiet;
use super::revoked::Revoked;
use super::rivals;
use crate::lease_orders::{LeaseOrder, Listed, ReleaseError};
use crate::leases::{self, LeaseWriter};
use crate::shared::{LeaseSnapshot, Shared, SharedRef};
use anyhow::{Context, bail};
use conflicts::Watch;
use imbl::ordmap::DiffItem;
use kurrent_core::dhcp::lease::{self, Leases, State};
use kurrent_core::dhcp::lease_file::{Record, RecordState};
use kurrent_core::dhcp::msg::{self, Request};
use kurrent_core::dhcp::pxe::Client;
use kurrent_core::dhcp::{Decision, Reason, View, decide, others, wire};
use kurrent_core::id::MacAddr;
use kurrent_core::ledger::Ledger;
use kurrent_core::time::{Mono, Now};
use kurrent_core::timeline::{Boot, Step};
use kurrent_sys::clock;
use port::{Failed, Outgoing, Port};
use reader::Reader;
use std::net::Ipv4Addr;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Datagrams taken before finished commits are looked at again.
const DRAIN: usize = 256;

/// What waits for a record to be durable.
enum Waiting {
    /// Nobody: a RELEASE or DECLINE has no reply.
    Nothing,
    Answer(Outgoing),
    /// A person who took an address back from this machine.
    Released(MacAddr, oneshot::Sender<Result<MacAddr, ReleaseError>>),
}

/// Serves DHCP on `interface` until it fails. Cancel-safe: what was acknowledged is on the disk.
///
/// # Errors
/// No such interface, port in use, missing privilege, lease file unusable: each says what to do.
pub async fn serve(shared: SharedRef, interface: String) -> anyhow::Result<()> {
    let link = kurrent_sys::link::link(&interface).context("DHCP: check spec.networking in kurrent.yaml against `ip link`")?;
    let port = Port::open(&interface, link.index, &shared.config.boot_network)?;
    let reader = port.reader()?;
    let path = shared.config.state_dir.join("leases");
    let (records, writer) = leases::open(&path).context("DHCP gives no addresses")?;
    let (dhcp, own) = (&shared.config.dhcp, shared.config.boot_network.address);
    let ledger = shared.ledger.snapshot();
    let table = Leases::restore(dhcp, own, &records, &ledger, clock::now());
    shared.leases.store(Arc::new(table.holders().into_iter().collect()));
    tracing::info!(%interface, address = %own, leases = records.len(), "DHCP: serving");
    let watch = Watch::open(&shared, &link);
    let (revoked, orders) = (Revoked::by("dhcp"), shared.lease_orders.listen());
    Server { shared, port, reader, watch, table, ledger, writer, orders, quiet: Quiet::default(), revoked }.run().await
}

struct Server {
    shared: SharedRef,
    port: Port,
    reader: Reader,
    /// Conflicts, where they are looked for.
    watch: Option<Watch>,
    table: Leases,
    /// What `table` has heeded.
    ledger: Arc<Ledger>,
    writer: LeaseWriter<Waiting>,
    orders: mpsc::Receiver<LeaseOrder>,
    quiet: Quiet,
    revoked: Revoked,
}

impl Server {
    async fn run(mut self) -> anyhow::Result<()> {
        let mut datagrams = Vec::with_capacity(DRAIN);
        loop {
            tokio::select! {
                biased;
                committed = self.writer.committed() => {
                    let Some(committed) = committed else { bail!("DHCP: the lease writer has ended; see the log before this line") };
                    match committed.result {
                        Ok(()) => {
                            self.shared.faults.clear("leases");
                            self.publish(committed.waiting.iter().map(|(record, _)| record));
                            for (_, waiting) in committed.waiting {
                                match waiting {
                                    Waiting::Nothing => {}
                                    Waiting::Answer(outgoing) => self.send(outgoing),
                                    // Whoever asked may have gone.
                                    Waiting::Released(mac, done) => drop(done.send(Ok(mac))),
                                }
                            }
                        }
                        Err(fault) => {
                            for (_, waiting) in committed.waiting {
                                if let Waiting::Released(_, done) = waiting {
                                    let _ = done.send(Err(ReleaseError::NotDurable(fault.clone())));
                                }
                            }
                            self.shared.faults.set("leases", format!("{fault}; no address is given until it can be written: make room or repair the disk"));
                        }
                    }
                }
                Some(order) = self.orders.recv() => self.order(order, clock::now()),
                () = self.port.room() => {
                    let now = clock::now().mono;
                    self.port.retry(now).iter().for_each(|failed| self.send_failed(failed, now));
                }
                taken = self.reader.take(&mut datagrams, DRAIN) => {
                    if taken == 0 {
                        bail!("DHCP: the reader has ended; see the log before this line");
                    }
                    datagrams.drain(..).for_each(|datagram| self.received(&datagram, clock::now()));
                    self.shared.dhcp.counters.set("lost: the kernel's receive buffer was full", self.port.lost());
                    self.shared.dhcp.counters.set("lost: more requests than decisions", self.reader.left_out());
                }
                // Last: a flood of ARP must not keep DHCP from its turn.
                heard = conflicts::heard(&mut self.watch) => {
                    if let Some(watch) = &mut self.watch {
                        watch.heed(heard, &mut self.table, &self.shared, clock::now());
                    }
                }
            }
        }
    }

    /// Tells TFTP and HTTP who has which address, before its machine is told.
    fn publish<'a>(&self, records: impl Iterator<Item = &'a Record>) {
        let mut snapshot = LeaseSnapshot::clone(&self.shared.leases.load());
        for record in records {
            match record.state {
                RecordState::Bound | RecordState::Released => snapshot.give(record.address, record.holder.mac),
                RecordState::Declined => snapshot.take(record.address),
            }
        }
        self.shared.leases.store(Arc::new(snapshot));
    }

    /// The latest ledger, of which the lease table knows, too.
    fn heed(&mut self) {
        let ledger = self.shared.ledger.snapshot();
        if Arc::ptr_eq(&ledger, &self.ledger) {
            return;
        }
        for item in self.ledger.devices.diff(&ledger.devices) {
            match item {
                DiffItem::Add(mac, device) | DiffItem::Update { new: (mac, device), .. } => self.table.heed(*mac, Some(device)),
                DiffItem::Remove(mac, _) => self.table.heed(*mac, None),
            }
        }
        self.ledger = ledger;
    }

    /// What a person asks. An address in use stays in use until its machine asks again: see [`lease`].
    fn order(&mut self, order: LeaseOrder, now: Now) {
        match order {
            LeaseOrder::List(done) => {
                let until = |lease: &lease::Lease| now.wall.saturating_add(lease.until.since(now.mono)).unwrap_or(now.wall);
                let listed = |(address, lease): (Ipv4Addr, &lease::Lease)| Listed {
                    address,
                    mac: lease.holder.mac,
                    state: lease.state,
                    until: until(lease),
                };
                // Whoever asked may have gone.
                let _ = done.send(self.table.given().map(listed).collect());
            }
            LeaseOrder::Release(address, done) => {
                let refused = match self.table.lease(address).copied() {
                    None | Some(lease::Lease { state: State::Offered, .. }) => ReleaseError::NotFound(address),
                    Some(lease::Lease { state: State::Declined, .. }) => ReleaseError::Declined(address),
                    Some(_) if !self.writer.has_room() => ReleaseError::NotServed("the disk is slower than the requests; ask again".into()),
                    Some(held) => {
                        if let Some(record) = self.table.apply(lease::Change::Release { address }, now) {
                            self.writer.submit(record, Waiting::Released(held.holder.mac, done));
                        }
                        return;
                    }
                };
                let _ = done.send(Err(refused));
            }
        }
    }

    fn received(&mut self, octets: &[u8], now: Now) {
        self.shared.dhcp.counters.count("received");
        let request = match wire::decode(octets) {
            Ok(packet) => msg::request(&packet).map_err(|e| format!("{e:?}")),
            Err(e) => Err(e.to_string()),
        };
        let request = match request {
            Ok(request) => request,
            Err(why) => {
                self.shared.dhcp.counters.count("ignored: malformed, or not a request");
                if let Some(more) = self.quiet.admit("malformed", now.mono) {
                    tracing::info!(%why, more, "DHCP: not a request");
                }
                return;
            }
        };
        if self.shared.dhcp.is_own_question(&request) {
            self.shared.dhcp.counters.count("ignored: our own question for other servers, through a relay");
            return;
        }
        if !self.writer.has_room() {
            self.shared.dhcp.counters.count("lost: the disk was slower than the requests");
            if let Some(more) = self.quiet.admit("busy", now.mono) {
                tracing::warn!(more, "DHCP: the disk is slower than the requests; some wait for their next try");
            }
            return;
        }
        self.heed();
        self.table.advance(now.mono);
        let (ledger, config) = (&self.ledger, &self.shared.config);
        let view = View { dhcp: &config.dhcp, network: &config.boot_network, boot_port: config.boot_port, ledger, leases: &self.table };
        let Decision { change, reply, reason } = decide(&request, &view, now);
        let record = change.and_then(|change| self.table.apply(change, now));
        if let (Some(lease::Change::Offer { address, .. }), Some(watch)) = (change, &mut self.watch) {
            watch.offered(address, &self.table, now.mono);
        }
        let address = reply.as_ref().map(|(packet, _)| packet.yiaddr);
        let without_file = reason == Reason::Offered && reply.as_ref().is_some_and(|(packet, _)| packet.siaddr.is_unspecified());
        if let Some(why) = request.client.without_loader().filter(|_| without_file) {
            self.shared.timelines.sight(request.mac, "loader", &why, true, now);
            if let Some(more) = self.quiet.admit("no loader", now.mono) {
                tracing::warn!(mac = %request.mac, more, "DHCP: {why}: an address is offered, and no boot file");
            }
        }
        let encode = |packet| wire::encode(&packet, request.max_reply_bytes);
        let outgoing = reply.map(|(packet, to)| Outgoing { octets: encode(packet), to, mac: request.mac });
        match (record, outgoing) {
            // A RELEASE or DECLINE has no reply; it is written all the same.
            (Some(record), outgoing) => self.writer.submit(record, outgoing.map_or(Waiting::Nothing, Waiting::Answer)),
            (None, Some(outgoing)) => self.send(outgoing),
            (None, None) => {}
        }
        self.note(&request, reason, address, now);
    }

    fn send(&mut self, outgoing: Outgoing) {
        let now = clock::now().mono;
        self.shared.dhcp.counters.count("answered");
        if let Err(failed) = self.port.send(outgoing, now) {
            self.send_failed(&failed, now);
        }
    }

    fn send_failed(&mut self, (error, outgoing): &Failed, now: Mono) {
        self.shared.dhcp.counters.count("lost: an answer could not be sent");
        if let Some(more) = self.quiet.admit("send", now) {
            tracing::warn!(%error, mac = %outgoing.mac, to = ?outgoing.to, more, "DHCP: an answer could not be sent");
        }
    }

    /// Log line, timeline, audit.
    fn note(&mut self, request: &Request, reason: Reason, address: Option<Ipv4Addr>, now: Now) {
        let mac = request.mac;
        self.shared.dhcp.counters.count(class(reason));
        if reason == Reason::OtherServer
            && let Some(found) = others::chosen(request, self.shared.config.boot_network.address)
        {
            rivals::notice(&self.shared, found);
        }
        if let Some(more) = self.quiet.admit(class(reason), now.mono) {
            tracing::info!(%mac, ?address, kind = ?request.kind, client = ?request.client, more, "DHCP: {}", class(reason));
        }
        let answered =
            matches!(reason, Reason::Offered | Reason::OfferedMeanwhile | Reason::Acknowledged | Reason::Informed | Reason::Released);
        self.shared.timelines.sight(mac, "dhcp", class(reason), !answered, now);
        if matches!(reason, Reason::Offered | Reason::OfferedMeanwhile) && request.client.boots() {
            mark_beginning(&self.shared, mac, &request.client, now);
        }
        if reason == Reason::Revoked {
            self.revoked.asks(&self.shared, mac, now.mono);
        }
    }
}

/// A machine that boots was offered something, over IPv4 or IPv6: its boot begins.
pub(super) fn mark_beginning(shared: &Shared, mac: MacAddr, client: &Client, now: Now) {
    // iPXE's own DISCOVER, also a later one while it waits, belongs to the boot that its firmware began.
    let goes_on = |boot: &Boot| boot.marks.last().is_some_and(|m| matches!(m.step, Step::Dhcp | Step::Loader | Step::Script));
    let chained = *client == Client::Ipxe && shared.timelines.of(mac).as_ref().is_some_and(goes_on);
    if !chained {
        shared.timelines.mark(mac, Step::Dhcp, now);
    }
}

/// What the log says of an answer.
fn class(reason: Reason) -> &'static str {
    match reason {
        Reason::Offered => "offered",
        Reason::OfferedMeanwhile => {
            "offered another address: the one that is reserved for the device is another machine's until its lease ends, or of a bound device until that starts anew"
        }
        Reason::Acknowledged => "acknowledged",
        Reason::Informed => "informed",
        Reason::Released => "released",
        Reason::Declined => "declined: another machine uses that address",
        Reason::Revoked => "silent: the device is revoked",
        Reason::UnknownDevice => "silent: not a known device, and spec.dhcp.unknownDevices is off",
        Reason::OtherNetwork => "silent: the client is on a network that is not served",
        Reason::OtherServer => "silent: the client chose another DHCP server",
        Reason::NoRecord => "silent: no record of that address",
        Reason::Contradictory => "silent: contradictory request",
        Reason::NoBootp => "silent: BOOTP, which spec.dhcp.bootp does not allow",
        Reason::Exhausted => "silent: no address is left; widen spec.dhcp.range",
        Reason::TooManyStrangers => "silent: too many machines that are not in the ledger asked within a minute",
        Reason::NotHolder => "ignored: given back by a machine that does not hold it",
        Reason::TooManyDeclined => {
            "ignored: too many addresses are declined; look for machines with addresses of their own in spec.dhcp.range"
        }
        Reason::WrongNetwork => "refused: that address is of another network",
        Reason::Taken => "refused: that address is another machine's",
    }
}
