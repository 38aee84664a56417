//! What a client boots over IPv6 (RFC 5970): who it is and which loader it gets is `dhcp::pxe`'s knowledge; here is only where
//! DHCPv6 has it.

use super::wire::{Options, option};
use crate::dhcp::pxe::{self, AUTOEXEC, Client};
use crate::dhcp::wire as v4;
use std::net::Ipv6Addr;

/// Intel's enterprise number: EDK2 sends it in option 16, and takes an offer for one of a boot server only with it
/// (UefiPxeBcDxe/PxeBcDhcp6.c, `PXEBC_DHCP6_ENTERPRISE_NUM`).
const ENTERPRISE_INTEL: u32 = 343;
/// Classes of one option that are looked at.
const MAX_CLASSES: usize = 8;

/// Recognises the client by options 61, 16 and 15: the list of architectures, else `PXEClient:Arch:00007…` in the vendor class.
#[must_use]
pub fn identify(options: &Options) -> Client {
    let mut same = v4::Options::default();
    if let Some(archs) = options.bytes(option::CLIENT_ARCH) {
        same.push(v4::option::CLIENT_ARCH, archs);
    }
    let vendor = options.all(option::VENDOR_CLASS).filter_map(|class| class.get(4..)).find_map(|list| classes(list).next());
    if let Some(class) = vendor {
        same.push(v4::option::VENDOR_CLASS, class);
    }
    for class in options.bytes(option::USER_CLASS).into_iter().flat_map(classes) {
        if let Ok(len) = u8::try_from(class.len()) {
            same.push(v4::option::USER_CLASS, &[&[len], class].concat());
        }
    }
    // A Raspberry Pi that boots over IPv6 names its files itself, and is told by its MAC from firmware over IPv4 only.
    pxe::identify(&same, None)
}

/// The items of a class option: each two octets of length, then text (RFC 8415 s21.15, s21.16).
fn classes(mut list: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (len, rest) = list.split_first_chunk::<2>()?;
        let (class, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
        list = rest;
        Some(class)
    })
    .take(MAX_CLASSES)
}

/// Option 59 for this client. `chosen` is the device's own loader; `server` and `port` the boot plane's, in brackets as RFC
/// 3986 and EDK2's literal parser want them.
///
/// An iPXE gets the script that asks for an IPv4 lease first, because all that follows is IPv4.
#[must_use]
pub fn url(client: &Client, chosen: Option<&str>, server: Ipv6Addr, port: u16) -> Option<String> {
    let http = |name| format!("{}/files/{name}", pxe::base_url((server, port).into()));
    match client {
        Client::System | Client::RaspberryPi => None,
        Client::Ipxe => Some(http(AUTOEXEC)),
        Client::Http(_) => pxe::loader(client, chosen).map(http),
        Client::Firmware(_) | Client::WeakIpxe(_) => pxe::loader(client, chosen).map(|name| format!("tftp://[{server}]/{name}")),
    }
}

/// Option 16 that makes an offer one of a boot server to EDK2.
///
/// `HTTPClient` always: without it HTTP boot takes no offer (HttpBootDxe/HttpBootDhcp6.c). `PXEClient` only in an offer without
/// an address: with one, it makes the firmware ask port 4011 once more for what it already has (`PxeOfferTypeDhcpBinl`).
#[must_use]
pub fn vendor_class(client: &Client, with_address: bool) -> Option<Vec<u8>> {
    let class: &[u8] = match client {
        Client::Http(_) => b"HTTPClient",
        Client::Firmware(_) if !with_address => b"PXEClient",
        Client::Firmware(_) | Client::WeakIpxe(_) | Client::Ipxe | Client::RaspberryPi | Client::System => return None,
    };
    let len = u16::try_from(class.len()).unwrap_or_default();
    Some([&ENTERPRISE_INTEL.to_be_bytes()[..], &len.to_be_bytes(), class].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dhcp::pxe::Arch;

    const SERVER: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 1);

    fn options(list: &[(u16, &[u8])]) -> Options {
        let mut options = Options::default();
        for (code, value) in list {
            options.push(*code, value);
        }
        options
    }

    fn class(text: &str) -> Vec<u8> {
        [&343_u32.to_be_bytes()[..], &u16::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat()
    }

    #[test]
    fn the_url_follows_architecture_vendor_class_and_user_class() {
        let check = |list: &[(u16, &[u8])], expected: Option<&str>| {
            let client = identify(&options(list));
            assert_eq!(url(&client, None, SERVER, 80).as_deref(), expected, "{list:?}");
        };
        let (pxe, arm, http) = (
            class("PXEClient:Arch:00007:UNDI:003016"),
            class("PXEClient:Arch:00011:UNDI:003016"),
            class("HTTPClient:Arch:00016:UNDI:003016"),
        );
        check(&[(61, &[0, 7]), (16, &pxe)], Some("tftp://[fd00:77::1]/snponly.efi"));
        check(&[(61, &[0, 7])], Some("tftp://[fd00:77::1]/snponly.efi"));
        check(&[(16, &arm)], Some("tftp://[fd00:77::1]/ipxe-arm64.efi"));
        check(&[(61, &[0, 16]), (16, &http)], Some("http://[fd00:77::1]/files/snponly.efi"));
        check(&[(16, &http)], Some("http://[fd00:77::1]/files/snponly.efi"));
        check(&[(61, &[0, 7]), (16, &pxe), (15, b"\x00\x04iPXE")], Some("http://[fd00:77::1]/files/autoexec.ipxe"));
        check(&[(61, &[0, 7]), (15, b"\x00\x01x\x00\x04iPXE")], Some("http://[fd00:77::1]/files/autoexec.ipxe"));
        check(&[], None);
        check(&[(16, &class("dhcpcd-9.4.1:Linux"))], None);
    }

    #[test]
    fn another_port_is_named_and_the_devices_own_loader_is_given() {
        let client = Client::Http(vec![Arch::from(16)]);
        assert_eq!(url(&client, Some("ipxe-amd64.efi"), SERVER, 8000).unwrap(), "http://[fd00:77::1]:8000/files/ipxe-amd64.efi");
    }

    #[test]
    fn damaged_classes_are_survived() {
        for bytes in [&[][..], &[0], &[0, 0, 1, 0x57], &[0, 0, 1, 0x57, 0], &[0, 0, 1, 0x57, 0, 9, 1], &[0; 64]] {
            assert_eq!(identify(&options(&[(16, bytes), (15, bytes)])), Client::System, "{bytes:?}");
        }
    }

    #[test]
    fn edk2_pxe_with_an_address_is_not_sent_to_port_4011_and_http_boot_gets_its_echo() {
        let (firmware, http) = (Client::Firmware(vec![Arch::X64]), Client::Http(vec![Arch::from(16)]));
        assert_eq!(vendor_class(&firmware, true), None);
        assert_eq!(vendor_class(&firmware, false), Some(class("PXEClient")));
        for with_address in [true, false] {
            assert_eq!(vendor_class(&http, with_address), Some(class("HTTPClient")));
            assert_eq!(vendor_class(&Client::Ipxe, with_address), None);
        }
    }
}
