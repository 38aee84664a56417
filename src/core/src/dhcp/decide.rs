//! What to answer: `decide(request, view, now) -> Decision`. The caller applies `change`, makes its record durable, and
//! only then sends `reply`.
//!
//! The policy before everything else: a revoked machine is met with silence, whatever it says.
//!
//! A MAC is a claim that anybody can make. So no message takes from a machine the address that it was given, to give it
//! another or to give it to another; only the lease's end does, and not even that for a bound device.

use super::address::{Destination, destination};
use super::holder::Holder;
use super::lease::{Change, Claim, FOREVER_SECS, Lease, Leases, Pick, Quarantine, Standing, State};
use super::link;
use super::msg::{self, ReplyKind, Request, RequestKind, Terms};
use super::pool::SubnetId;
use super::pxe::{self, Client};
use super::wire::{Packet, option};
use crate::config::{BootNetwork, Bootp, Dhcp, Subnet, mask};
use crate::ledger::Ledger;
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
    /// Leases, of now ([`Leases::advance`]), which know what the ledger says ([`Leases::heed`]).
    pub leases: &'a Leases,
}

/// Why an answer is what it is; the log's event class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// An address was offered.
    Offered,
    /// An address was offered to a device that waits for its reserved one, which another machine still has.
    OfferedMeanwhile,
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
    /// Silence: BOOTP, which is not for this machine (`spec.dhcp.bootp`).
    NoBootp,
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

/// One request and what it is judged by.
struct Case<'a> {
    request: &'a Request,
    view: &'a View<'a>,
    /// The client's.
    subnet: SubnetId,
    terms: &'a Subnet,
    holder: Holder,
    now: Now,
}

/// The answer to one request.
#[must_use]
pub fn decide(request: &Request, view: &View<'_>, now: Now) -> Decision {
    match policy::silence(view.ledger, view.dhcp.unknown_devices, request.mac) {
        Some(Silence::Revoked) => return Decision::silence(Reason::Revoked),
        Some(Silence::Unknown) => return Decision::silence(Reason::UnknownDevice),
        None => {}
    }
    let ciaddr = Some(request.ciaddr).filter(|a| !a.is_unspecified());
    let subnet = link::subnet_of(view.dhcp, request);
    // To an address of another network a reply would go by our routing table, not to the client.
    let reachable = ciaddr.is_none_or(|a| view.leases.subnet_of(a).is_some());
    let Some(subnet) = subnet.filter(|_| reachable) else { return Decision::silence(Reason::OtherNetwork) };
    // What is given back names its subnet itself.
    let subnet = match request.kind {
        RequestKind::Release => view.leases.subnet_of(request.ciaddr),
        RequestKind::Decline => request.requested.and_then(|a| view.leases.subnet_of(a)),
        RequestKind::Discover | RequestKind::Request | RequestKind::Inform | RequestKind::Bootp => Some(subnet),
    };
    let Some((subnet, terms)) = subnet.and_then(|id| Some((id, view.dhcp.subnets().nth(id.index())?))) else {
        return Decision::silence(Reason::NotHolder);
    };
    let holder = Holder::of(view.leases, view.dhcp.lease_key, request.mac, request.echoed(option::CLIENT_ID), subnet);
    let case = Case { request, view, subnet, terms, holder, now };
    match request.kind {
        RequestKind::Discover => case.discover(),
        RequestKind::Request => case.request_address(),
        RequestKind::Inform => case.inform(),
        RequestKind::Release => case.release(),
        RequestKind::Decline => case.decline(),
        RequestKind::Bootp => case.bootp(),
    }
}

impl Case<'_> {
    fn is_stranger(&self) -> bool {
        self.view.leases.standing(self.holder.mac) == Standing::Stranger
    }

    fn claim(&self, address: Ipv4Addr) -> Claim {
        self.view.leases.claim(self.holder, self.subnet, address, self.now.mono)
    }

    fn is_own(&self, lease: &Lease) -> bool {
        self.view.leases.is_own(lease, self.holder, self.subnet)
    }

    /// Its address here, or the one that it was offered.
    fn own(&self) -> Option<Ipv4Addr> {
        self.view.leases.address_of(self.holder, self.subnet)
    }

    /// Whether a server identifier means us: by our address, or by what our relay has us call ourselves (RFC 5107).
    fn means_us(&self, server: Ipv4Addr) -> bool {
        server == self.view.network.address || self.request.server_override == Some(server)
    }

    fn server_id(&self) -> Ipv4Addr {
        self.request.server_override.unwrap_or(self.view.network.address)
    }

    fn terms(&self) -> Terms {
        let (own, subnet) = (self.view.network.address, self.terms);
        let mask = mask(subnet.prefix);
        let device = self.view.ledger.device(self.request.mac);
        // BOOTP says nothing of an architecture: only a loader that was chosen for the device can be right.
        let chosen_only = Client::Firmware(Vec::new());
        let client = match (self.request.kind, &self.request.client) {
            (RequestKind::Bootp, Client::System) => &chosen_only,
            (_, client) => client,
        };
        let plane = SocketAddrV4::new(own, self.view.boot_port);
        Terms {
            server_id: self.server_id(),
            server: own,
            mask: Ipv4Addr::from_bits(mask),
            broadcast: Ipv4Addr::from_bits(subnet.address.to_bits() | !mask),
            router: subnet.router,
            dns: subnet.dns.clone(),
            domain: subnet.domain.clone(),
            hostname: device.and_then(|d| d.bound_worker_id.as_ref()).map(ToString::to_string),
            boot: pxe::boot_file(client, device.and_then(|d| d.loader.as_deref()), plane),
        }
    }

    fn grant(&self, kind: ReplyKind, address: Ipv4Addr) -> Decision {
        let (holder, secs) = (self.holder, self.terms.lease_secs);
        let packet = msg::granted(self.request, kind, address, Some(secs), &self.terms());
        let (change, reason) = match kind {
            ReplyKind::Offer => (Change::Offer { holder, address }, Reason::Offered),
            ReplyKind::Ack | ReplyKind::Nak => (Change::Bind { holder, address, secs }, Reason::Acknowledged),
        };
        Decision { change: Some(change), reply: Some((packet, destination(self.request, kind, address))), reason }
    }

    /// Acknowledges an address that nobody holds to a machine that was given none.
    fn acknowledge_free(&self, address: Ipv4Addr) -> Decision {
        if self.is_one_too_many() {
            return Decision::silence(Reason::TooManyStrangers);
        }
        let grows = self.is_stranger() && self.own().is_none();
        if grows && !self.view.leases.strangers_have_room(self.subnet) {
            return Decision::silence(Reason::Exhausted);
        }
        self.grant(ReplyKind::Ack, address)
    }

    fn is_one_too_many(&self) -> bool {
        let admits = self.view.leases.admits_newcomer(self.now.mono, self.view.dhcp.newcomers_per_minute);
        !admits && self.is_stranger() && self.own().is_none()
    }

    fn refuse(&self, reason: Reason, why: &str) -> Decision {
        let packet = msg::refused(self.request, self.server_id(), why);
        let Request { ciaddr, giaddr, .. } = *self.request;
        let to = match destination(self.request, ReplyKind::Nak, Ipv4Addr::UNSPECIFIED) {
            // DEVIATION(RFC 2131 s4.1): a NAK without giaddr is broadcast on our link, but who renews from behind a router is not on it
            // and would go on using the address until the lease ends. Kea sends to ciaddr, too; ISC dhcpd broadcasts.
            Destination::Broadcast if self.subnet != SubnetId::LOCAL && giaddr.is_unspecified() && !ciaddr.is_unspecified() => {
                Destination::Client(ciaddr)
            }
            to => to,
        };
        Decision { change: None, reply: Some((packet, to)), reason }
    }

    fn pick(&self, asked: Option<Ipv4Addr>) -> Result<Pick, Reason> {
        if self.is_one_too_many() {
            return Err(Reason::TooManyStrangers);
        }
        self.view.leases.pick(self.holder, self.subnet, asked, self.now.mono).ok_or(Reason::Exhausted)
    }

    fn discover(&self) -> Decision {
        match self.pick(self.request.requested) {
            Err(reason) => Decision::silence(reason),
            Ok(Pick { address, waits_for: None }) => self.grant(ReplyKind::Offer, address),
            Ok(Pick { address, waits_for: Some(_) }) => {
                Decision { reason: Reason::OfferedMeanwhile, ..self.grant(ReplyKind::Offer, address) }
            }
        }
    }

    /// RFC 2131 s4.3.2: the client's state follows from which of server identifier, requested address and ciaddr are there.
    fn request_address(&self) -> Decision {
        let ciaddr = Some(self.request.ciaddr).filter(|a| !a.is_unspecified());
        match (self.request.server_id, self.request.requested, ciaddr) {
            (Some(server), ..) if !self.means_us(server) => self.withdraw(),
            (Some(_), Some(address), None) => self.selecting(address),
            (None, Some(address), None) => self.init_reboot(address),
            // RENEWING and REBINDING; a server identifier of ours does no harm.
            (_, None, Some(address)) => self.renew(address),
            (_, Some(address), Some(same)) if address == same => self.renew(address),
            (_, Some(_), Some(_)) | (_, None, None) => Decision::silence(Reason::Contradictory),
        }
    }

    fn withdraw(&self) -> Decision {
        Decision::note(Change::Withdraw { holder: self.holder, subnet: self.subnet }, Reason::OtherServer)
    }

    /// It answers our offer, so a NAK is ours to give.
    fn selecting(&self, address: Ipv4Addr) -> Decision {
        match self.claim(address) {
            Claim::Own => self.grant(ReplyKind::Ack, address),
            // With RFC 5107 all servers behind the relay have one name: it may well be another's offer that is taken.
            Claim::Free | Claim::Taken | Claim::Outside if self.request.server_override.is_some() => self.withdraw(),
            Claim::Free if self.own().is_some() => self.refuse(Reason::Taken, "another address is yours"),
            Claim::Free => self.acknowledge_free(address),
            Claim::Taken | Claim::Outside => self.refuse(Reason::Taken, "address not available"),
        }
    }

    fn init_reboot(&self, address: Ipv4Addr) -> Decision {
        if self.view.leases.subnet_of(address) != Some(self.subnet) {
            return self.refuse(Reason::WrongNetwork, "address is of another network");
        }
        match (self.claim(address), self.own()) {
            (Claim::Own, _) => self.grant(ReplyKind::Ack, address),
            (Claim::Free | Claim::Taken | Claim::Outside, Some(_)) => self.refuse(Reason::Taken, "another address is yours"),
            // RFC 2131 s4.3.2: no record of this client, so silence: the address may be another server's.
            (Claim::Free | Claim::Taken | Claim::Outside, None) => Decision::silence(Reason::NoRecord),
        }
    }

    /// `Free` is granted: a machine that runs on an address of ours keeps it when our lease file was lost. Not to one that was
    /// given another address, which would become free although it may be in use; an offer is not in use.
    fn renew(&self, address: Ipv4Addr) -> Decision {
        if self.view.leases.subnet_of(address) != Some(self.subnet) {
            // Its relay says that it has moved from one network of ours to another.
            return self.refuse(Reason::WrongNetwork, "address is of another network");
        }
        match self.claim(address) {
            Claim::Own => self.grant(ReplyKind::Ack, address),
            Claim::Free | Claim::Taken if self.view.leases.given_to(self.holder, self.subnet).is_some() => {
                self.refuse(Reason::Taken, "another address is yours")
            }
            Claim::Free => self.acknowledge_free(address),
            // It runs on the address, so it was not this machine that declined it.
            Claim::Taken if self.view.leases.lease(address).is_some_and(|l| l.state == State::Declined && self.is_own(l)) => {
                self.grant(ReplyKind::Ack, address)
            }
            Claim::Taken => self.refuse(Reason::Taken, "address is another's now"),
            Claim::Outside => Decision::silence(Reason::NoRecord),
        }
    }

    fn inform(&self) -> Decision {
        if self.request.ciaddr.is_unspecified() {
            return Decision::silence(Reason::Contradictory);
        }
        let packet = msg::granted(self.request, ReplyKind::Ack, Ipv4Addr::UNSPECIFIED, None, &self.terms());
        let to = destination(self.request, ReplyKind::Ack, self.request.ciaddr);
        Decision { change: None, reply: Some((packet, to)), reason: Reason::Informed }
    }

    fn release(&self) -> Decision {
        match self.not_to_give_back(self.request.ciaddr) {
            Some(reason) => Decision::silence(reason),
            None => Decision::note(Change::Release { address: self.request.ciaddr }, Reason::Released),
        }
    }

    fn decline(&self) -> Decision {
        let address = self.request.requested.unwrap_or(Ipv4Addr::UNSPECIFIED);
        if let Some(reason) = self.not_to_give_back(address) {
            return Decision::silence(reason);
        }
        let instead_of = match self.view.leases.quarantine(self.holder.mac, self.subnet) {
            Quarantine::Room => None,
            Quarantine::InsteadOf(oldest) => Some(oldest),
            Quarantine::Full => return Decision::silence(Reason::TooManyDeclined),
        };
        Decision::note(Change::Decline { address, instead_of }, Reason::Declined)
    }

    /// Why a RELEASE or DECLINE of this address counts for nothing, if so.
    fn not_to_give_back(&self, address: Ipv4Addr) -> Option<Reason> {
        if self.request.server_id.is_some_and(|server| !self.means_us(server)) {
            return Some(Reason::OtherServer);
        }
        let bound = self.view.leases.lease(address).is_some_and(|l| l.state == State::Bound && self.is_own(l));
        (!bound).then_some(Reason::NotHolder)
    }

    /// RFC 1534 s2: a BOOTP client knows no lease, so its address is its own for good.
    fn bootp(&self) -> Decision {
        match self.view.dhcp.bootp {
            Bootp::Off => return Decision::silence(Reason::NoBootp),
            Bootp::Known if self.is_stranger() => return Decision::silence(Reason::NoBootp),
            Bootp::Known | Bootp::On => {}
        }
        if !self.request.ciaddr.is_unspecified() {
            // RFC 951 s3: it knows its address, and wants to be told what to boot.
            let packet = msg::bootp_reply(self.request, Ipv4Addr::UNSPECIFIED, &self.terms());
            let to = destination(self.request, ReplyKind::Ack, self.request.ciaddr);
            return Decision { change: None, reply: Some((packet, to)), reason: Reason::Informed };
        }
        match self.pick(None) {
            Err(reason) => Decision::silence(reason),
            Ok(Pick { address, .. }) => {
                let packet = msg::bootp_reply(self.request, address, &self.terms());
                let change = Change::Bind { holder: self.holder, address, secs: FOREVER_SECS };
                let to = destination(self.request, ReplyKind::Ack, address);
                Decision { change: Some(change), reply: Some((packet, to)), reason: Reason::Acknowledged }
            }
        }
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "hostile_tests.rs"]
mod hostile_tests;

#[cfg(test)]
#[path = "subnet_tests.rs"]
mod subnet_tests;

#[cfg(test)]
#[path = "sequence_tests.rs"]
mod sequence_tests;
