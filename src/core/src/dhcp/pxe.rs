//! Which network boot client asks, and what it is given to boot. Firmware quirks live here.
//!
//! Order matters: iPXE's first DISCOVER also says `PXEClient` in option 60 (ipxe 1527), so iPXE is recognised first, by
//! user class *and* by its own option 175. An iPXE that speaks HTTP is never offered a loader again (loops: ipxe 908, 922,
//! 203).

use super::wire::{Options, Packet, option};
use crate::id::MacAddr;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

pub use super::arch::{Arch, LOADERS, is_loader};

/// Generated iPXE script that stock iPXE fetches from the TFTP folder it came from.
pub const AUTOEXEC: &str = "autoexec.ipxe";
/// What the log and `explain` say of a client whose architecture has no loader begins with this.
pub const NO_LOADER: &str = "no loader for";

/// Suboption of 175 by which iPXE says that it speaks HTTP.
const IPXE_FEATURE_HTTP: u8 = 19;
pub(super) const CLASS_PXE: &[u8] = b"PXEClient";
pub(super) const CLASS_HTTP: &[u8] = b"HTTPClient";
const USER_CLASS_IPXE: &[u8] = b"iPXE";
/// iPXE's ancestor in old option ROMs: it is too old for our scripts.
const USER_CLASS_GPXE: &[u8] = b"gPXE";
/// Suboption of option 43 by which a client names the boot server that it asks on port 4011 (PXE 2.1 table 2-1).
const PXE_BOOT_ITEM: u8 = 71;
/// Option 43 as the ROMs of Raspberry Pi look for it: they boot from a server whose boot menu has this very entry, and from
/// no other (raspberrypi/firmware 801, 1265). The octets are those of the vendor's own example.
const RASPBERRY_PI_BOOT: &[u8] = b"\x06\x01\x03\x0a\x04\x00PXE\x09\x14\x00\x00\x11Raspberry Pi Boot\xff";
/// Raspberry Pi's blocks in the IEEE registry: Foundation, Trading, Ltd.
const RASPBERRY_PI_OUIS: [[u8; 3]; 7] = [
    [0xb8, 0x27, 0xeb],
    [0xdc, 0xa6, 0x32],
    [0xe4, 0x5f, 0x01],
    [0x28, 0xcd, 0xc1],
    [0xd8, 0x3a, 0xdd],
    [0x2c, 0xcf, 0x67],
    [0x88, 0xa2, 0x9e],
];
/// Option 97 of a Raspberry Pi 4 and later: type 0, then its own four letters (rpi-eeprom 103).
const RASPBERRY_PI_MACHINE_ID: &[u8] = b"\0RPi";

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Client {
    /// An operating system, or anything else that does not boot from the network.
    System,
    /// Firmware that loads over TFTP, with its architectures in its order of preference.
    Firmware(Vec<Arch>),
    /// UEFI HTTP boot.
    Http(Vec<Arch>),
    /// The ROM or boot program of a Raspberry Pi: it asks for its own files by its own names.
    RaspberryPi,
    /// An iPXE that fetches scripts over HTTP.
    Ipxe,
    /// An iPXE without HTTP (an option ROM), or a gPXE: it is chained once into ours.
    WeakIpxe(Vec<Arch>),
}

impl Client {
    /// Firmware or iPXE, as opposed to an operating system.
    #[must_use]
    pub fn boots(&self) -> bool {
        *self != Self::System
    }

    /// Says for the log that this client boots, and that there is nothing for its architecture.
    #[must_use]
    pub fn without_loader(&self) -> Option<String> {
        let (Self::Firmware(archs) | Self::Http(archs) | Self::WeakIpxe(archs)) = self else { return None };
        let named = || archs.iter().map(|arch| format!("{arch:?}")).collect::<Vec<_>>().join(", ");
        archs.iter().all(|arch| arch.loader().is_none()).then(|| format!("{NO_LOADER} its architecture ({})", named()))
    }
}

/// What a client boots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootFile {
    /// Nothing is offered.
    Nothing,
    /// A file on our TFTP server.
    Tftp(String),
    /// A URL for iPXE.
    Url(String),
    /// A URL for UEFI HTTP boot, which takes an offer only when it echoes `HTTPClient` in option 60 (xcat-core 7743).
    HttpBoot(String),
    /// Our TFTP server, and the menu entry that the ROM looks for.
    RaspberryPi,
}

/// Recognises the client by its options, a Raspberry Pi also by its MAC where that is known.
#[must_use]
pub fn identify(options: &Options, mac: Option<MacAddr>) -> Client {
    let class = options.bytes(option::VENDOR_CLASS).unwrap_or_default();
    let features = options.bytes(option::IPXE_ENCAPSULATED);
    if has_user_class(options, USER_CLASS_GPXE) {
        return Client::WeakIpxe(archs(options, class));
    }
    if has_user_class(options, USER_CLASS_IPXE) || features.is_some() {
        // Without the list of features there is nothing to doubt: every build that is in use speaks HTTP.
        return match features {
            Some(list) if suboption(list, IPXE_FEATURE_HTTP).is_none() => Client::WeakIpxe(archs(options, class)),
            _ => Client::Ipxe,
        };
    }
    if is_raspberry_pi(options, class, mac) {
        return Client::RaspberryPi;
    }
    let http_class = class.starts_with(CLASS_HTTP);
    if !http_class && !class.starts_with(CLASS_PXE) && options.bytes(option::CLIENT_ARCH).is_none() {
        return Client::System;
    }
    let archs = archs(options, class);
    if http_class || archs.first().is_some_and(|a| a.is_http()) { Client::Http(archs) } else { Client::Firmware(archs) }
}

/// A Raspberry Pi that boots by its ROM or EEPROM: these say architecture 0 (rpi-eeprom 182), and some leave option 60 out of
/// their REQUEST (rpi-eeprom 82), where only the list of wanted options tells them from the system of the same machine. One
/// that runs UEFI says 11 and is firmware like any other.
fn is_raspberry_pi(options: &Options, class: &[u8], mac: Option<MacAddr>) -> bool {
    let named = options.bytes(option::CLIENT_MACHINE_ID).is_some_and(|id| id.starts_with(RASPBERRY_PI_MACHINE_ID));
    if !named && !mac.is_some_and(is_raspberry_pi_mac) {
        return false;
    }
    if class.starts_with(CLASS_PXE) {
        return archs(options, class).iter().any(|arch| [Arch::BIOS, Arch::RPIBOOT].contains(arch));
    }
    let wanted = options.bytes(option::PARAMETER_LIST).unwrap_or_default();
    class.is_empty() && [option::VENDOR_SPECIFIC, option::TFTP_SERVER_NAME].iter().all(|code| wanted.contains(code))
}

/// Whether a MAC is of one of Raspberry Pi's blocks.
pub(super) fn is_raspberry_pi_mac(MacAddr([a, b, c, ..]): MacAddr) -> bool {
    RASPBERRY_PI_OUIS.contains(&[a, b, c])
}

/// The boot item that a client on port 4011 asks for: its answer holds the same (PXE 2.1 section 2.2.5).
#[must_use]
pub fn boot_item(options: &Options) -> Option<[u8; 4]> {
    suboption(options.bytes(option::VENDOR_SPECIFIC)?, PXE_BOOT_ITEM)?.try_into().ok()
}

/// The loader that this client is given, if it is one that takes a loader and there is one for it. `chosen` is the device's own:
/// whoever chose it answers for its architecture.
#[must_use]
pub fn loader(client: &Client, chosen: Option<&str>) -> Option<&'static str> {
    match client {
        Client::System | Client::RaspberryPi | Client::Ipxe => None,
        Client::Firmware(archs) | Client::Http(archs) | Client::WeakIpxe(archs) => {
            let chosen = chosen.and_then(|name| LOADERS.into_iter().find(|l| *l == name));
            chosen.or_else(|| archs.iter().find_map(|a| a.loader()))
        }
    }
}

/// What this client boots. `chosen` is the device's own loader; `boot_plane` the HTTP boot plane.
#[must_use]
pub fn boot_file(client: &Client, chosen: Option<&str>, boot_plane: SocketAddrV4) -> BootFile {
    let loader = loader(client, chosen);
    match client {
        Client::System => BootFile::Nothing,
        Client::RaspberryPi => BootFile::RaspberryPi,
        Client::Ipxe => BootFile::Url(format!("{}/boot.ipxe", base_url(boot_plane.into()))),
        Client::Http(_) => {
            loader.map_or(BootFile::Nothing, |name| BootFile::HttpBoot(format!("{}/files/{name}", base_url(boot_plane.into()))))
        }
        Client::Firmware(_) | Client::WeakIpxe(_) => loader.map_or(BootFile::Nothing, |name| BootFile::Tftp(name.to_owned())),
    }
}

/// Puts what a client boots into its answer. `siaddr`, `sname`, `file` and options 66, 67 agree: firmware reads one or the
/// other (openwrt packages 14660, Technitium 1719).
///
/// Option 60 goes to HTTP boot and to Raspberry Pis only: in a full offer without option 43 it sends EDK2 to port 4011 (edk2
/// 8149).
pub(super) fn put(packet: &mut Packet, server: Ipv4Addr, boot: &BootFile) {
    let name = match boot {
        BootFile::Nothing => return,
        BootFile::Tftp(name) | BootFile::Url(name) => name.as_str(),
        BootFile::HttpBoot(url) => {
            packet.options.push(option::VENDOR_CLASS, CLASS_HTTP);
            url
        }
        BootFile::RaspberryPi => {
            packet.options.push(option::VENDOR_CLASS, CLASS_PXE);
            packet.options.push(option::VENDOR_SPECIFIC, RASPBERRY_PI_BOOT);
            ""
        }
    };
    let text = server.to_string();
    packet.siaddr = server;
    packet.sname = text.clone().into_bytes();
    packet.file = name.as_bytes().to_vec();
    packet.options.push(option::TFTP_SERVER_NAME, text.as_bytes());
    if !name.is_empty() {
        packet.options.push(option::BOOT_FILE_NAME, name.as_bytes());
    }
}

/// `http://192.0.2.1` or `http://[fd00::1]:8000`: an address, not a name, and no port where it is the usual one.
pub(crate) fn base_url(boot_plane: SocketAddr) -> String {
    match (boot_plane.port(), boot_plane.ip()) {
        (80, IpAddr::V4(address)) => format!("http://{address}"),
        (80, IpAddr::V6(address)) => format!("http://[{address}]"),
        (_, _) => format!("http://{boot_plane}"),
    }
}

/// Option 93 is a list; without it the vendor class string says `PXEClient:Arch:00007:UNDI:003016`; without that it is x64.
fn archs(options: &Options, class: &[u8]) -> Vec<Arch> {
    let (pairs, _) = options.bytes(option::CLIENT_ARCH).unwrap_or_default().as_chunks::<2>();
    if !pairs.is_empty() {
        return pairs.iter().take(8).map(|p| Arch::from(u16::from_be_bytes(*p))).collect();
    }
    let text = String::from_utf8_lossy(class);
    let named = text.split_once("Arch:").and_then(|(_, rest)| rest.get(..5)).and_then(|n| n.parse::<u16>().ok());
    vec![named.map_or(Arch::X64, Arch::from)]
}

/// RFC 3004 says length-prefixed instances; iPXE and most others send the bare text. Both are read.
fn has_user_class(options: &Options, wanted: &[u8]) -> bool {
    let Some(mut rest) = options.bytes(option::USER_CLASS) else { return false };
    if rest == wanted {
        return true;
    }
    while let Some((len, tail)) = rest.split_first() {
        let Some((instance, tail)) = tail.split_at_checked(usize::from(*len)) else { return false };
        if instance == wanted {
            return true;
        }
        rest = tail;
    }
    false
}

/// The value of a suboption; the first one counts.
fn suboption(mut list: &[u8], wanted: u8) -> Option<&[u8]> {
    loop {
        match list {
            [option::PAD, tail @ ..] => list = tail,
            [option::END, ..] | [] | [_] => return None,
            [code, len, tail @ ..] => {
                let (value, rest) = tail.split_at_checked(usize::from(*len))?;
                if *code == wanted {
                    return Some(value);
                }
                list = rest;
            }
        }
    }
}

#[cfg(test)]
#[path = "pxe_tests.rs"]
mod tests;
