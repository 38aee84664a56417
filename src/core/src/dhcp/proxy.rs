//! Proxy DHCP (PXE 2.1 sections 2.2 and 2.4): what machines boot, said beside another server that gives the addresses.
//!
//! On port 67 an offer without address; on port 4011 the same again for firmware that asks there. Never an address, never a
//! NAK, never a word to who does not boot from the network. Port 4011 is answered in server mode too: EDK2 asks it after a full
//! offer with option 60 and without option 43 (edk2 8149), which a relay or another server may have made of ours.
//!
//! What firmware is given at once, and what only on port 4011:
//!
//! ```text
//! BIOS                  option 43 with discovery control 8: take the file of this offer
//! UEFI                  no option 43: then it asks port 4011. With one, EDK2 of 2014 to 2017 drops the offer
//!                       (PxeBcCacheDhcp4Offer keeps the first PXE 1.0 proxy offer only when there is one already):
//!                       Dell T130 and T430, HP Gen9 (edk2 6944, netboot 43). Without, it is a BINL offer, and all keep that.
//! UEFI HTTP, iPXE       the URL
//! Raspberry Pi          option 43 with the menu entry that it looks for
//! ```

use super::address::Destination;
use super::link;
use super::msg::{self, ReplyKind, Request, RequestKind};
use super::pxe::{self, Arch, BootFile, Client};
use super::wire::{FLAG_BROADCAST, Packet, option};
use crate::config::Config;
use crate::id::MacAddr;
use crate::ledger::Ledger;
use crate::policy::{self, Silence};
use std::net::{Ipv4Addr, SocketAddrV4};

/// Where PXE boot servers are asked (PXE 2.1 section 2.2).
pub const PXE_PORT: u16 = 4011;

/// Option 43 for who shall take the file of this message at once: no menu, no discovery of boot servers
/// (PXE_DISCOVERY_CONTROL, bit 3; PXE 2.1 table 2-1).
const USE_THIS_FILE: [u8; 4] = [6, 1, 8, option::END];
/// Tag of the boot item in option 43.
const BOOT_ITEM: [u8; 2] = [71, 4];

/// All that an answer depends on.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// `kurrent.yaml`.
    pub config: &'a Config,
    /// Devices.
    pub ledger: &'a Ledger,
}

/// Why an answer is what it is; the log's event class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A boot file was offered, without address.
    Offered,
    /// A boot file was told on port 4011.
    Told,
    /// Silence: revoked.
    Revoked,
    /// Silence: not in the ledger, and strangers get nothing.
    UnknownDevice,
    /// Silence: it does not boot from the network.
    NotBooting,
    /// Silence: there is no loader for its architecture.
    NoLoader,
    /// Silence: it is on a network that is not served.
    OtherNetwork,
    /// Silence: it is the business of whoever gives the addresses.
    OtherServer,
}

/// What is to be sent, if anything, and why.
pub type Answer<T> = (Option<(Packet, T)>, Reason);

impl View<'_> {
    fn own(&self) -> Ipv4Addr {
        self.config.boot_network.address
    }

    fn serves(&self, address: Ipv4Addr) -> bool {
        self.config.dhcp.subnets().any(|subnet| subnet.contains(address))
    }

    fn silence(&self, mac: MacAddr) -> Option<Reason> {
        policy::silence(self.ledger, self.config.dhcp.unknown_devices, mac).map(|silence| match silence {
            Silence::Revoked => Reason::Revoked,
            Silence::Unknown => Reason::UnknownDevice,
        })
    }

    fn boot(&self, request: &Request) -> Result<BootFile, Reason> {
        let chosen = self.ledger.device(request.mac).and_then(|device| device.loader.as_deref());
        match pxe::boot_file(&request.client, chosen, SocketAddrV4::new(self.own(), self.config.boot_port)) {
            BootFile::Nothing if request.client.boots() => Err(Reason::NoLoader),
            BootFile::Nothing => Err(Reason::NotBooting),
            file => Ok(file),
        }
    }
}

/// The answer to a message on port 67.
#[must_use]
pub fn decide(request: &Request, view: &View<'_>) -> Answer<Destination> {
    match offer(request, view) {
        Ok(answer) => (Some(answer), Reason::Offered),
        Err(reason) => (None, reason),
    }
}

fn offer(request: &Request, view: &View<'_>) -> Result<(Packet, Destination), Reason> {
    view.silence(request.mac).map_or(Ok(()), Err)?;
    match request.kind {
        RequestKind::Discover => {}
        // Also one that names us: we offered no address that it could ask for.
        RequestKind::Request | RequestKind::Decline | RequestKind::Release | RequestKind::Inform | RequestKind::Bootp => {
            return Err(Reason::OtherServer);
        }
    }
    let relay = Some(request.giaddr).filter(|relay| !relay.is_unspecified());
    link::subnet_of(&view.config.dhcp, request).ok_or(Reason::OtherNetwork)?;
    let boot = view.boot(request)?;
    let mut packet = answer(request, ReplyKind::Offer, view.own(), &boot);
    let at_once = match &request.client {
        Client::Firmware(archs) | Client::WeakIpxe(archs) => archs.first() == Some(&Arch::BIOS),
        Client::Ipxe => true,
        Client::Http(_) | Client::RaspberryPi | Client::System => false,
    };
    if at_once {
        packet.options.push(option::VENDOR_SPECIFIC, &USE_THIS_FILE);
    }
    let to = match relay {
        Some(relay) => {
            // Without it a relay sends to `yiaddr` (RFC 1542 s4.1.2), and there is none.
            packet.flags |= FLAG_BROADCAST;
            Destination::Relay(relay)
        }
        // It has no address, and is not being given one: there is nothing to address a frame's packet to.
        None => Destination::Broadcast,
    };
    Ok((packet, to))
}

/// The answer to a message on port 4011 from `source`. It goes back where it came from: firmware listens there, and whoever
/// forges a source gets no more than what it sent.
#[must_use]
pub fn decide_4011(request: &Request, source: SocketAddrV4, view: &View<'_>) -> Answer<SocketAddrV4> {
    match tell(request, source, view) {
        Ok(answer) => (Some(answer), Reason::Told),
        Err(reason) => (None, reason),
    }
}

fn tell(request: &Request, source: SocketAddrV4, view: &View<'_>) -> Result<(Packet, SocketAddrV4), Reason> {
    view.silence(request.mac).map_or(Ok(()), Err)?;
    let to = if source.ip().is_unspecified() { request.ciaddr } else { *source.ip() };
    if !view.serves(to) || to == view.own() {
        return Err(Reason::OtherNetwork);
    }
    match request.kind {
        RequestKind::Request | RequestKind::Inform if request.server_id.is_none_or(|server| server == view.own()) => {}
        RequestKind::Discover
        | RequestKind::Request
        | RequestKind::Decline
        | RequestKind::Release
        | RequestKind::Inform
        | RequestKind::Bootp => {
            return Err(Reason::OtherServer);
        }
    }
    let boot = view.boot(request)?;
    let mut packet = answer(request, ReplyKind::Ack, view.own(), &boot);
    packet.ciaddr = request.ciaddr;
    // A Raspberry Pi's option 43 is whole already, with an END: what follows that is not read.
    if let Some(item) = request.boot_item.filter(|_| boot != BootFile::RaspberryPi) {
        packet.options.push(option::VENDOR_SPECIFIC, &[&BOOT_ITEM[..], &item, &[option::END]].concat());
    }
    Ok((packet, SocketAddrV4::new(to, source.port())))
}

/// What an operator can do about a machine, and `more` others, that was offered a boot file and never came for it.
///
/// The ROM of a Raspberry Pi up to 3 asks whoever gave its address for its files, whatever a proxy says (raspberrypi/firmware
/// 1265), and takes the first offer that names a server (1699): only the other server can help.
///
/// The text names no machine and no number: strangers could change these all the time, and each change is a line of the log.
#[must_use]
pub fn hint(machines: &[MacAddr], own: Ipv4Addr) -> String {
    let mut said = "machines were offered a boot file and never came for it; the log names them. ".to_owned();
    if machines.iter().any(|mac| !pxe::is_raspberry_pi_mac(*mac)) {
        said += &format!(
            "Their firmware may ignore proxy offers, get no address, or find UDP 4011 or 69 shut. \
             Set in the other DHCP server next server and option 66 to {own}, option 67 to snponly.efi (x64 UEFI) or undionly.kpxe (BIOS); "
        );
    }
    if machines.iter().any(|mac| pxe::is_raspberry_pi_mac(*mac)) {
        said += &format!(
            "A Raspberry Pi up to 3 asks the server that gave its address for its files, not a proxy. \
             Set in the other DHCP server next server and option 66 to {own}, option 60 to PXEClient and in option 43 a boot menu \
             with the entry \"Raspberry Pi Boot\"; "
        );
    }
    said + "or stop it there and set spec.dhcp.mode to server"
}

/// Options 54, 60, 97 and what it boots.
fn answer(request: &Request, kind: ReplyKind, own: Ipv4Addr, boot: &BootFile) -> Packet {
    let mut packet = msg::head(request, kind, own);
    pxe::put(&mut packet, own, boot);
    match boot {
        BootFile::Tftp(_) | BootFile::Url(_) => packet.options.push(option::VENDOR_CLASS, pxe::CLASS_PXE),
        BootFile::Nothing | BootFile::HttpBoot(_) | BootFile::RaspberryPi => {}
    }
    msg::echo(&mut packet, request);
    packet
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
