//! What to answer (RFC 8415 s16, s18.3).
//!
//! DEVIATION(RFC 8415 s16, s18.4): messages to our unicast address are answered like those to the group: EDK2 asks a boot
//! server's port 4011 so, and `UseMulticast` would help nobody.

use super::boot;
use super::ia::{self, Wanted};
use super::machine::{self, Declined};
use super::wire::{Kind, Options, Received, Reply, option};
use crate::config::{Dhcpv6Mode, Ipv6};
use crate::dhcp::pxe::Client;
use crate::id::MacAddr;
use crate::ledger::Ledger;
use crate::policy::{self, Silence};
use crate::time::Mono;
use std::net::Ipv6Addr;

/// What an answer is made of.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// Our address, prefix and mode.
    pub ipv6: &'a Ipv6,
    /// TCP port of the boot plane.
    pub boot_port: u16,
    /// `spec.dhcp.unknownDevices`.
    pub unknown_devices: bool,
    /// Who is revoked, who has a loader of its own.
    pub ledger: &'a Ledger,
    /// Our DUID.
    pub server_id: &'a [u8],
    /// Addresses that others use.
    pub declined: &'a Declined,
}

/// Why a message was answered as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// An ADVERTISE.
    Advertised,
    /// A REPLY with an address.
    Replied,
    /// A REPLY that renews, or takes away.
    Renewed,
    /// A REPLY without addresses: boot information.
    Informed,
    /// A REPLY to CONFIRM.
    Confirmed,
    /// A REPLY to RELEASE: nothing was kept.
    Released,
    /// A REPLY to DECLINE.
    Declined,
    /// Silence: the operator revoked it.
    Revoked,
    /// Silence: not a known device, and unknown ones are not served.
    UnknownDevice,
    /// Silence: it can not be told which machine asks, so not whether it is revoked.
    NoMachine,
    /// Silence: for another server.
    OtherServer,
    /// Silence: identifiers are missing or there although forbidden (RFC 8415 s16).
    Invalid,
    /// Silence: nothing of ours is asked about.
    NotOurs,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What is sent.
    pub reply: Option<Reply>,
    /// Addresses that the machine found in use.
    pub declined: Vec<Ipv6Addr>,
    /// Why.
    pub reason: Reason,
}

impl Decision {
    fn silent(reason: Reason) -> Self {
        Self { reply: None, declined: Vec::new(), reason }
    }
}

/// Decides on one message of `machine`; see [`machine::machine`].
#[must_use]
pub fn decide(received: &Received, machine: Option<MacAddr>, view: &View<'_>, now: Mono) -> Decision {
    let Some(mac) = machine else { return Decision::silent(Reason::NoMachine) };
    match policy::silence(view.ledger, view.unknown_devices, mac) {
        Some(Silence::Revoked) => return Decision::silent(Reason::Revoked),
        Some(Silence::Unknown) => return Decision::silent(Reason::UnknownDevice),
        None => {}
    }
    if let Err(reason) = validate(received, view) {
        return Decision::silent(reason);
    }
    let asked = &received.options;
    let managed = view.ipv6.dhcp == Dhcpv6Mode::Managed && on_link(received, view.ipv6.address);
    let answer = Answer { asked, view, mac, client: boot::identify(asked), own: view.declined.usable(view.ipv6.address, mac, now) };
    match received.kind {
        // Without addresses to give there is nothing to say but to firmware, which takes the boot file from one server and the
        // address from another.
        Kind::Solicit | Kind::Request if !managed => match answer.client {
            Client::Firmware(_) | Client::Http(_) => answer.without_address(received.kind == Kind::Solicit),
            Client::System | Client::RaspberryPi | Client::Ipxe | Client::WeakIpxe(_) => Decision::silent(Reason::NotOurs),
        },
        Kind::Solicit => answer.solicit(),
        Kind::Request => answer.bind(Reason::Replied, |wanted| answer.assign(wanted)),
        Kind::Renew if managed => answer.bind(Reason::Renewed, |wanted| answer.renew(wanted)),
        // Another server's client: what we know nothing of is not ours to judge.
        Kind::Rebind if managed && answer.holds_all() => answer.bind(Reason::Renewed, |wanted| answer.renew(wanted)),
        Kind::Confirm if managed => answer.confirm(),
        Kind::Renew | Kind::Rebind | Kind::Confirm => Decision::silent(Reason::NotOurs),
        Kind::Release => answer.done(Reason::Released, Vec::new()),
        Kind::Decline => answer.done(Reason::Declined, ia::wanted(asked).into_iter().flat_map(|w| w.addresses).collect()),
        Kind::InformationRequest => {
            let mut options = answer.head();
            answer.boot(&mut options, false);
            reply(false, options, Reason::Informed)
        }
    }
}

/// RFC 8415 s16.2 to s16.12.
fn validate(received: &Received, view: &View<'_>) -> Result<(), Reason> {
    let has_client = received.options.bytes(option::CLIENT_ID).is_some();
    let server = received.options.bytes(option::SERVER_ID);
    let for_us = match server {
        Some(server) if server == view.server_id => Ok(()),
        Some(_) => Err(Reason::OtherServer),
        None => Err(Reason::Invalid),
    };
    match received.kind {
        Kind::Solicit | Kind::Confirm | Kind::Rebind if has_client && server.is_none() => Ok(()),
        Kind::Solicit | Kind::Confirm | Kind::Rebind => Err(Reason::Invalid),
        Kind::Request | Kind::Renew | Kind::Release | Kind::Decline => for_us.and(if has_client { Ok(()) } else { Err(Reason::Invalid) }),
        Kind::InformationRequest if received.options.bytes(option::IA_NA).is_some() => Err(Reason::Invalid),
        Kind::InformationRequest if server.is_none() => Ok(()),
        Kind::InformationRequest => for_us,
    }
}

/// Whether the client is on the link of our prefix: the relay nearest to it that names a link says (RFC 8415 s13.1).
fn on_link(received: &Received, own: Ipv6Addr) -> bool {
    let named = |link: &Ipv6Addr| !link.is_unspecified() && !link.is_unicast_link_local();
    received.relays.iter().rev().map(|relay| relay.link).find(named).is_none_or(|link| machine::in_prefix(own, link))
}

fn reply(advertise: bool, options: Options, reason: Reason) -> Decision {
    Decision { reply: Some(Reply { advertise, options }), declined: Vec::new(), reason }
}

struct Answer<'a> {
    asked: &'a Options,
    view: &'a View<'a>,
    mac: MacAddr,
    client: Client,
    /// The address that it gets now.
    own: Option<Ipv6Addr>,
}

impl Answer<'_> {
    fn head(&self) -> Options {
        let mut options = Options::default();
        if let Some(id) = self.asked.bytes(option::CLIENT_ID) {
            options.push(option::CLIENT_ID, id);
        }
        options.push(option::SERVER_ID, self.view.server_id);
        options
    }

    /// Option 59 comes before 16: old EDK2 reads the URL as a C string, and the next option's code begins with a zero octet.
    fn boot(&self, options: &mut Options, with_address: bool) {
        let chosen = self.view.ledger.device(self.mac).and_then(|device| device.loader.as_deref());
        let Some(url) = boot::url(&self.client, chosen, self.view.ipv6.address, self.view.boot_port) else { return };
        options.push(option::BOOTFILE_URL, url.as_bytes());
        if let Some(class) = boot::vendor_class(&self.client, with_address) {
            options.push(option::VENDOR_CLASS, &class);
        }
    }

    fn without_address(&self, advertise: bool) -> Decision {
        let mut options = self.head();
        for wanted in ia::wanted(self.asked) {
            options.push(option::IA_NA, &ia::refused(wanted.iaid, ia::NO_ADDRESSES));
        }
        self.boot(&mut options, false);
        reply(advertise, options, if advertise { Reason::Advertised } else { Reason::Informed })
    }

    fn solicit(&self) -> Decision {
        let rapid = self.asked.bytes(option::RAPID_COMMIT).is_some();
        let mut decision = self.bind(if rapid { Reason::Replied } else { Reason::Advertised }, |wanted| self.assign(wanted));
        if let Some(reply) = &mut decision.reply {
            reply.advertise = !rapid;
            if rapid {
                reply.options.push(option::RAPID_COMMIT, &[]);
            }
        }
        decision
    }

    /// A reply with the first `IA_NA` as `first` says; a machine has one address, so there are none for others.
    fn bind(&self, reason: Reason, first: impl Fn(&Wanted) -> Vec<u8>) -> Decision {
        let mut options = self.head();
        for (n, wanted) in ia::wanted(self.asked).iter().enumerate() {
            let one = if n == 0 { first(wanted) } else { ia::refused(wanted.iaid, ia::NO_ADDRESSES) };
            options.push(option::IA_NA, &one);
        }
        ia::refuse_others(self.asked, &mut options);
        self.boot(&mut options, true);
        reply(false, options, reason)
    }

    fn assign(&self, wanted: &Wanted) -> Vec<u8> {
        match self.own {
            Some(address) => ia::given(wanted.iaid, &[(address, self.view.ipv6.lease_secs)]),
            None => ia::refused(wanted.iaid, ia::NO_ADDRESSES),
        }
    }

    /// What it holds goes on; what is not its own is taken away, and its own is given (RFC 8415 s18.3.4).
    fn renew(&self, wanted: &Wanted) -> Vec<u8> {
        let mut all: Vec<(Ipv6Addr, u32)> =
            wanted.addresses.iter().map(|a| (*a, if self.holds(*a) { self.view.ipv6.lease_secs } else { 0 })).collect();
        if all.iter().all(|(_, secs)| *secs == 0) {
            all.extend(self.own.map(|own| (own, self.view.ipv6.lease_secs)));
        }
        ia::given(wanted.iaid, &all)
    }

    /// Also an address that it got before it declined another: the promise was made.
    fn holds(&self, address: Ipv6Addr) -> bool {
        let own = self.view.ipv6.address;
        address != own && (0..machine::VARIANTS).any(|n| machine::address(own, self.mac, n) == address)
    }

    fn holds_all(&self) -> bool {
        let wanted = ia::wanted(self.asked);
        let mut addresses = wanted.iter().flat_map(|w| &w.addresses).peekable();
        addresses.peek().is_some() && addresses.all(|a| self.holds(*a))
    }

    /// Whether its addresses fit the link, no more (RFC 8415 s18.3.3).
    fn confirm(&self) -> Decision {
        let wanted = ia::wanted(self.asked);
        let addresses: Vec<Ipv6Addr> = wanted.into_iter().flat_map(|w| w.addresses).collect();
        if addresses.is_empty() {
            return Decision::silent(Reason::NotOurs);
        }
        let mut options = self.head();
        let fits = addresses.iter().all(|a| machine::in_prefix(self.view.ipv6.address, *a));
        let status = if fits { ia::status(ia::SUCCESS) } else { ia::status(ia::NOT_ON_LINK) };
        options.push(option::STATUS_CODE, &status);
        reply(false, options, Reason::Confirmed)
    }

    fn done(&self, reason: Reason, declined: Vec<Ipv6Addr>) -> Decision {
        let mut options = self.head();
        options.push(option::STATUS_CODE, &ia::status(ia::SUCCESS));
        Decision { declined, ..reply(false, options, reason) }
    }
}
