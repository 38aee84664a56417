//! What to answer: `decide(request, view, now) -> Decision`. The caller applies `change`, makes its record durable, and
//! only then sends `reply`.
//!
//! The policy before everything else: a revoked machine is met with silence, whatever it says.
//!
//! A MAC is a claim that anybody can make. So no message takes from a machine the address that it was given, to give it
//! another or to give it to another; only the lease's end does, and not even that for a bound device.

use super::address::{Destination, destination};
use super::lease::{Change, Claim, Leases, Quarantine, Standing, State};
use super::msg::{self, ReplyKind, Request, RequestKind, Terms};
use super::pxe;
use super::wire::Packet;
use crate::config::{BootNetwork, Dhcp};
use crate::id::MacAddr;
use crate::ledger::{DeviceState, Ledger};
use crate::policy::{self, Silence};
use crate::time::Now;
use std::net::{Ipv4Addr, SocketAddrV4};

/// All that an answer depends on.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// `spec.dhcp`.
    pub dhcp: &'a Dhcp,
    /// The network that is served, and our address on it.
    pub network: &'a BootNetwork,
    /// Port of the boot plane.
    pub boot_port: u16,
    /// Devices.
    pub ledger: &'a Ledger,
    /// Leases.
    pub leases: &'a Leases,
}

/// Why an answer is what it is; the log's event class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// An address was offered.
    Offered,
    /// An address was given.
    Acknowledged,
    /// Parameters without an address.
    Informed,
    /// Given back.
    Released,
    /// Declined: somebody else uses that address.
    Declined,
    /// Silence: revoked.
    Revoked,
    /// Silence: not in the ledger, and strangers get nothing.
    UnknownDevice,
    /// Silence: the client is on a network that we do not serve.
    OtherNetwork,
    /// Silence: the client chose another server.
    OtherServer,
    /// Silence: we know nothing of that address, another server may.
    NoRecord,
    /// Silence: the fields contradict each other (RFC 2131 table 5).
    Contradictory,
    /// Silence: no address is left.
    Exhausted,
    /// Silence: too many machines that are not in the ledger came within a minute.
    TooManyStrangers,
    /// Silence: a RELEASE or DECLINE of what is not the client's.
    NotHolder,
    /// Silence: a DECLINE when no more addresses may be in quarantine.
    TooManyDeclined,
    /// NAK: that address is on another network.
    WrongNetwork,
    /// NAK: that address is another's.
    Taken,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// To be applied to the leases first.
    pub change: Option<Change>,
    /// To be sent then.
    pub reply: Option<(Packet, Destination)>,
    /// For the log.
    pub reason: Reason,
}

impl Decision {
    fn silence(reason: Reason) -> Self {
        Self { change: None, reply: None, reason }
    }

    fn note(change: Change, reason: Reason) -> Self {
        Self { change: Some(change), reply: None, reason }
    }
}

impl View<'_> {
    fn standing(&self, mac: MacAddr) -> Standing {
        match self.ledger.device(mac).map(|d| d.state) {
            None => Standing::Stranger,
            Some(DeviceState::Bound) => Standing::Bound,
            Some(DeviceState::Pooled | DeviceState::Revoked) => Standing::Known,
        }
    }

    fn claim(&self, mac: MacAddr, address: Ipv4Addr, now: Now) -> Claim {
        self.leases.claim(mac, address, now.mono, |m| self.standing(m))
    }

    fn mask(&self) -> u32 {
        u32::MAX.checked_shl(32_u32.saturating_sub(u32::from(self.network.prefix))).unwrap_or(0)
    }

    fn on_network(&self, address: Ipv4Addr) -> bool {
        (address.to_bits() ^ self.network.address.to_bits()) & self.mask() == 0
    }

    fn terms(&self, request: &Request) -> Terms {
        let device = self.ledger.device(request.mac);
        let plane = SocketAddrV4::new(self.network.address, self.boot_port);
        Terms {
            server: self.network.address,
            mask: Ipv4Addr::from_bits(self.mask()),
            broadcast: Ipv4Addr::from_bits(self.network.address.to_bits() | !self.mask()),
            router: self.dhcp.local.router,
            dns: self.dhcp.local.dns.clone(),
            domain: self.dhcp.local.domain.clone(),
            hostname: device.and_then(|d| d.bound_worker_id.as_ref()).map(ToString::to_string),
            boot: pxe::boot_file(&request.client, device.and_then(|d| d.loader.as_deref()), plane),
        }
    }

    fn grant(&self, request: &Request, kind: ReplyKind, address: Ipv4Addr) -> Decision {
        let (mac, secs) = (request.mac, self.dhcp.local.lease_secs);
        let stranger = self.standing(mac) == Standing::Stranger;
        let packet = msg::granted(request, kind, address, Some(secs), &self.terms(request));
        let (change, reason) = match kind {
            ReplyKind::Offer => (Change::Offer { mac, address, stranger }, Reason::Offered),
            ReplyKind::Ack | ReplyKind::Nak => (Change::Bind { mac, address, secs, stranger }, Reason::Acknowledged),
        };
        Decision { change: Some(change), reply: Some((packet, destination(request, kind, address))), reason }
    }

    /// Acknowledges an address that nobody holds to a machine that was given none.
    fn acknowledge_free(&self, request: &Request, address: Ipv4Addr, now: Now) -> Decision {
        if self.is_one_too_many(request.mac, now) {
            return Decision::silence(Reason::TooManyStrangers);
        }
        let grows = self.standing(request.mac) == Standing::Stranger && self.leases.address_of(request.mac).is_none();
        if grows && !self.leases.strangers_have_room(now.mono, |m| self.standing(m)) {
            return Decision::silence(Reason::Exhausted);
        }
        self.grant(request, ReplyKind::Ack, address)
    }

    fn is_one_too_many(&self, mac: MacAddr, now: Now) -> bool {
        self.standing(mac) == Standing::Stranger && self.leases.address_of(mac).is_none() && !self.leases.admits_newcomer(now.mono)
    }

    fn refuse(&self, request: &Request, reason: Reason, why: &str) -> Decision {
        let packet = msg::refused(request, self.network.address, why);
        let to = destination(request, ReplyKind::Nak, Ipv4Addr::UNSPECIFIED);
        Decision { change: None, reply: Some((packet, to)), reason }
    }
}

/// The answer to one request.
#[must_use]
pub fn decide(request: &Request, view: &View<'_>, now: Now) -> Decision {
    match policy::silence(view.ledger, view.dhcp.unknown_devices, request.mac) {
        Some(Silence::Revoked) => return Decision::silence(Reason::Revoked),
        Some(Silence::Unknown) => return Decision::silence(Reason::UnknownDevice),
        None => {}
    }
    let link = request.link_selection.unwrap_or(request.giaddr);
    if !link.is_unspecified() && !view.on_network(link) {
        return Decision::silence(Reason::OtherNetwork);
    }
    // A reply would go there by our routing table, not to the client.
    if !request.ciaddr.is_unspecified() && !view.on_network(request.ciaddr) {
        return Decision::silence(Reason::OtherNetwork);
    }
    match request.kind {
        RequestKind::Discover => discover(request, view, now),
        RequestKind::Request => request_address(request, view, now),
        RequestKind::Inform => inform(request, view),
        RequestKind::Release => release(request, view, now),
        RequestKind::Decline => decline(request, view, now),
    }
}

fn discover(request: &Request, view: &View<'_>, now: Now) -> Decision {
    if view.is_one_too_many(request.mac, now) {
        return Decision::silence(Reason::TooManyStrangers);
    }
    match view.leases.pick(request.mac, request.requested, now.mono, |m| view.standing(m)) {
        // A client that has an address and still asks does not get the answer at that address: ciaddr is for REQUEST.
        Some(address) => view.grant(&Request { ciaddr: Ipv4Addr::UNSPECIFIED, ..request.clone() }, ReplyKind::Offer, address),
        None => Decision::silence(Reason::Exhausted),
    }
}

/// RFC 2131 s4.3.2: the client's state follows from which of server identifier, requested address and ciaddr are there.
fn request_address(request: &Request, view: &View<'_>, now: Now) -> Decision {
    let ciaddr = Some(request.ciaddr).filter(|a| !a.is_unspecified());
    match (request.server_id, request.requested, ciaddr) {
        (Some(server), ..) if server != view.network.address => Decision::note(Change::Withdraw { mac: request.mac }, Reason::OtherServer),
        // SELECTING. It answers our offer, so a NAK is ours to give.
        (Some(_), Some(address), None) => match view.claim(request.mac, address, now) {
            Claim::Own => view.grant(request, ReplyKind::Ack, address),
            Claim::Free if view.leases.address_of(request.mac).is_some() => view.refuse(request, Reason::Taken, "another address is yours"),
            Claim::Free => view.acknowledge_free(request, address, now),
            Claim::Taken | Claim::Outside => view.refuse(request, Reason::Taken, "address not available"),
        },
        // INIT-REBOOT.
        (None, Some(address), None) => init_reboot(request, view, now, address),
        // RENEWING and REBINDING; a server identifier of ours does no harm.
        (_, None, Some(address)) => renew(request, view, now, address),
        (_, Some(address), Some(same)) if address == same => renew(request, view, now, address),
        (_, Some(_), Some(_)) | (_, None, None) => Decision::silence(Reason::Contradictory),
    }
}

fn init_reboot(request: &Request, view: &View<'_>, now: Now, address: Ipv4Addr) -> Decision {
    if !view.on_network(address) {
        return view.refuse(request, Reason::WrongNetwork, "address is of another network");
    }
    match (view.claim(request.mac, address, now), view.leases.address_of(request.mac)) {
        (Claim::Own, _) => view.grant(request, ReplyKind::Ack, address),
        (Claim::Free | Claim::Taken | Claim::Outside, Some(_)) => view.refuse(request, Reason::Taken, "another address is yours"),
        // RFC 2131 s4.3.2: no record of this client, so silence: the address may be another server's.
        (Claim::Free | Claim::Taken | Claim::Outside, None) => Decision::silence(Reason::NoRecord),
    }
}

/// `Free` is granted: a machine that runs on an address of ours keeps it when our lease file was lost. Not to one that was
/// given another address, which would become free although it may be in use; an offer is not in use.
fn renew(request: &Request, view: &View<'_>, now: Now, address: Ipv4Addr) -> Decision {
    match view.claim(request.mac, address, now) {
        Claim::Own => view.grant(request, ReplyKind::Ack, address),
        Claim::Free | Claim::Taken if view.leases.given_to(request.mac).is_some() => {
            view.refuse(request, Reason::Taken, "another address is yours")
        }
        Claim::Free => view.acknowledge_free(request, address, now),
        // It runs on the address, so it was not this machine that declined it.
        Claim::Taken if view.leases.lease(address).is_some_and(|l| l.state == State::Declined && l.mac == request.mac) => {
            view.grant(request, ReplyKind::Ack, address)
        }
        Claim::Taken => view.refuse(request, Reason::Taken, "address is another's now"),
        Claim::Outside => Decision::silence(Reason::NoRecord),
    }
}

fn inform(request: &Request, view: &View<'_>) -> Decision {
    if request.ciaddr.is_unspecified() {
        return Decision::silence(Reason::Contradictory);
    }
    let packet = msg::granted(request, ReplyKind::Ack, Ipv4Addr::UNSPECIFIED, None, &view.terms(request));
    let to = destination(request, ReplyKind::Ack, request.ciaddr);
    Decision { change: None, reply: Some((packet, to)), reason: Reason::Informed }
}

fn release(request: &Request, view: &View<'_>, now: Now) -> Decision {
    match not_to_give_back(request, view, now, request.ciaddr) {
        Some(reason) => Decision::silence(reason),
        None => Decision::note(Change::Release { address: request.ciaddr }, Reason::Released),
    }
}

fn decline(request: &Request, view: &View<'_>, now: Now) -> Decision {
    let address = request.requested.unwrap_or(Ipv4Addr::UNSPECIFIED);
    if let Some(reason) = not_to_give_back(request, view, now, address) {
        return Decision::silence(reason);
    }
    let instead_of = match view.leases.quarantine(request.mac, |m| view.standing(m)) {
        Quarantine::Room => None,
        Quarantine::InsteadOf(oldest) => Some(oldest),
        Quarantine::Full => return Decision::silence(Reason::TooManyDeclined),
    };
    Decision::note(Change::Decline { address, instead_of }, Reason::Declined)
}

/// Why a RELEASE or DECLINE of this address counts for nothing, if so.
fn not_to_give_back(request: &Request, view: &View<'_>, now: Now, address: Ipv4Addr) -> Option<Reason> {
    if request.server_id.is_some_and(|server| server != view.network.address) {
        return Some(Reason::OtherServer);
    }
    let bound = view.leases.lease(address).is_some_and(|lease| lease.state == State::Bound);
    (!bound || view.claim(request.mac, address, now) != Claim::Own).then_some(Reason::NotHolder)
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "hostile_tests.rs"]
mod hostile_tests;
