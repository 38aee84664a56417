//! Which network boot client asks, and what it is given to boot. Firmware quirks live here.
//!
//! Order matters: iPXE's first DISCOVER also says `PXEClient` in option 60 (ipxe 1527), so iPXE is recognised first, by
//! user class *and* by its own option 175. An iPXE that speaks HTTP is never offered a loader again (loops: ipxe 908, 922).

use super::wire::{Options, option};
use std::net::SocketAddrV4;

/// The loaders that are served, by the short flat names that every firmware can take (smee 225).
pub const LOADERS: [&str; 4] = ["snponly.efi", "ipxe-amd64.efi", "ipxe-arm64.efi", "undionly.kpxe"];
/// Generated iPXE script that stock iPXE fetches from the TFTP folder it came from.
pub const AUTOEXEC: &str = "autoexec.ipxe";

/// Suboption of 175 by which iPXE says that it speaks HTTP.
const IPXE_FEATURE_HTTP: u8 = 19;
const CLASS_PXE: &[u8] = b"PXEClient";
const CLASS_HTTP: &[u8] = b"HTTPClient";
const USER_CLASS_IPXE: &[u8] = b"iPXE";

/// Client system architecture (RFC 4578 s2.1 and the IANA registry "Processor Architecture Types").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// 0.
    Bios,
    /// 7 and 9: firmware in the field sends either (RFC 4578 erratum).
    X64,
    /// 11.
    Arm64,
    /// 16.
    X64Http,
    /// 19.
    Arm64Http,
    /// Everything else: no loader for it.
    Other(u16),
}

impl From<u16> for Arch {
    fn from(number: u16) -> Self {
        match number {
            0 => Self::Bios,
            7 | 9 => Self::X64,
            11 => Self::Arm64,
            16 => Self::X64Http,
            19 => Self::Arm64Http,
            other => Self::Other(other),
        }
    }
}

impl Arch {
    fn is_http(self) -> bool {
        matches!(self, Self::X64Http | Self::Arm64Http | Self::Other(15 | 17 | 18 | 20))
    }

    fn loader(self) -> Option<&'static str> {
        match self {
            Self::Bios => Some("undionly.kpxe"),
            Self::X64 | Self::X64Http => Some("snponly.efi"),
            Self::Arm64 | Self::Arm64Http => Some("ipxe-arm64.efi"),
            Self::Other(_) => None,
        }
    }
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Client {
    /// An operating system, or anything else that does not boot from the network.
    System,
    /// Firmware that loads over TFTP, with its architectures in its order of preference.
    Firmware(Vec<Arch>),
    /// UEFI HTTP boot.
    Http(Vec<Arch>),
    /// An iPXE that fetches scripts over HTTP.
    Ipxe,
    /// An iPXE without HTTP (an option ROM): it is chained once into ours.
    WeakIpxe(Vec<Arch>),
}

impl Client {
    /// Firmware or iPXE, as opposed to an operating system.
    #[must_use]
    pub fn boots(&self) -> bool {
        *self != Self::System
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
}

/// Recognises the client by its options.
#[must_use]
pub fn identify(options: &Options) -> Client {
    let class = options.bytes(option::VENDOR_CLASS).unwrap_or_default();
    let features = options.bytes(option::IPXE_ENCAPSULATED);
    if has_user_class(options, USER_CLASS_IPXE) || features.is_some() {
        // Without the list of features there is nothing to doubt: every build that is in use speaks HTTP.
        return match features {
            Some(list) if !has_suboption(list, IPXE_FEATURE_HTTP) => Client::WeakIpxe(archs(options, class)),
            _ => Client::Ipxe,
        };
    }
    let http_class = class.starts_with(CLASS_HTTP);
    if !http_class && !class.starts_with(CLASS_PXE) && options.bytes(option::CLIENT_ARCH).is_none() {
        return Client::System;
    }
    let archs = archs(options, class);
    if http_class || archs.first().is_some_and(|a| a.is_http()) { Client::Http(archs) } else { Client::Firmware(archs) }
}

/// The loader that this client is given, if it is one that takes a loader and there is one for it. `chosen` is the device's own.
#[must_use]
pub fn loader(client: &Client, chosen: Option<&str>) -> Option<&'static str> {
    match client {
        Client::System | Client::Ipxe => None,
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
        Client::Ipxe => BootFile::Url(format!("{}/boot.ipxe", base_url(boot_plane))),
        Client::Http(_) => loader.map_or(BootFile::Nothing, |name| BootFile::HttpBoot(format!("{}/files/{name}", base_url(boot_plane)))),
        Client::Firmware(_) | Client::WeakIpxe(_) => loader.map_or(BootFile::Nothing, |name| BootFile::Tftp(name.to_owned())),
    }
}

/// `http://192.0.2.1` or `http://192.0.2.1:8000`: an address, not a name, and no port where it is the usual one.
fn base_url(boot_plane: SocketAddrV4) -> String {
    match boot_plane.port() {
        80 => format!("http://{}", boot_plane.ip()),
        port => format!("http://{}:{port}", boot_plane.ip()),
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

fn has_suboption(mut list: &[u8], wanted: u8) -> bool {
    loop {
        match list {
            [option::PAD, tail @ ..] => list = tail,
            [option::END, ..] | [] | [_] => return false,
            [code, _, ..] if *code == wanted => return true,
            [_, len, tail @ ..] => match tail.get(usize::from(*len)..) {
                Some(rest) => list = rest,
                None => return false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLANE: SocketAddrV4 = SocketAddrV4::new(std::net::Ipv4Addr::new(10, 77, 0, 1), 80);

    fn options(list: &[(u8, &[u8])]) -> Options {
        let mut options = Options::default();
        for (code, value) in list {
            options.push(*code, value);
        }
        options
    }

    fn check(list: &[(u8, &[u8])], expected: BootFile) {
        assert_eq!(boot_file(&identify(&options(list)), None, PLANE), expected, "{list:?}");
    }

    fn tftp(name: &str) -> BootFile {
        BootFile::Tftp(name.to_owned())
    }

    #[test]
    fn loader_follows_the_architecture_list() {
        check(&[(60, b"PXEClient:Arch:00000:UNDI:002001"), (93, &[0, 0])], tftp("undionly.kpxe"));
        check(&[(60, b"PXEClient"), (93, &[0, 7])], tftp("snponly.efi"));
        check(&[(60, b"PXEClient"), (93, &[0, 9])], tftp("snponly.efi"));
        check(&[(60, b"PXEClient"), (93, &[0, 11])], tftp("ipxe-arm64.efi"));
        check(&[(60, b"PXEClient"), (93, &[0, 6, 0, 7])], tftp("snponly.efi"));
        check(&[(60, b"PXEClient"), (93, &[0, 10])], BootFile::Nothing);
    }

    #[test]
    fn missing_architecture_is_read_from_the_vendor_class_then_taken_as_x64() {
        check(&[(60, b"PXEClient:Arch:00011:UNDI:003016")], tftp("ipxe-arm64.efi"));
        check(&[(60, b"PXEClient:Arch:000")], tftp("snponly.efi"));
        check(&[(60, "PXEClient:Arch:0000é".as_bytes())], tftp("snponly.efi"));
        check(&[(60, b"PXEClient"), (93, &[])], tftp("snponly.efi"));
    }

    #[test]
    fn ipxe_is_recognised_before_option_60_by_user_class_and_by_features() {
        let script = BootFile::Url("http://10.77.0.1/boot.ipxe".into());
        check(&[(60, b"PXEClient:Arch:00007"), (93, &[0, 7]), (77, b"iPXE")], script.clone());
        check(&[(60, b"PXEClient"), (77, b"\x04iPXE")], script.clone());
        check(&[(60, b"PXEClient"), (77, b"\x01x\x04iPXE")], script.clone());
        check(&[(60, b"PXEClient"), (175, &[19, 1, 1])], script);
    }

    #[test]
    fn ipxe_without_http_is_chained_once_into_ours() {
        check(&[(60, b"PXEClient"), (77, b"iPXE"), (93, &[0, 0]), (175, &[18, 1, 1])], tftp("undionly.kpxe"));
    }

    #[test]
    fn http_boot_gets_a_url_with_the_echo() {
        check(
            &[(60, b"HTTPClient:Arch:00016:UNDI:003001"), (93, &[0, 16])],
            BootFile::HttpBoot("http://10.77.0.1/files/snponly.efi".into()),
        );
        check(&[(93, &[0, 19])], BootFile::HttpBoot("http://10.77.0.1/files/ipxe-arm64.efi".into()));
        check(&[(60, b"HTTPClient"), (93, &[0, 15])], BootFile::Nothing);
    }

    #[test]
    fn operating_system_is_offered_nothing() {
        check(&[(60, b"udhcp 1.36.1")], BootFile::Nothing);
        check(&[], BootFile::Nothing);
    }

    #[test]
    fn device_override_names_a_loader_of_the_table_and_nothing_else() {
        let firmware = Client::Firmware(vec![Arch::X64]);
        assert_eq!(boot_file(&firmware, Some("ipxe-amd64.efi"), PLANE), tftp("ipxe-amd64.efi"));
        assert_eq!(boot_file(&firmware, Some("../etc/passwd"), PLANE), tftp("snponly.efi"));
        assert_eq!(
            boot_file(&Client::Ipxe, Some("ipxe-amd64.efi"), SocketAddrV4::new(*PLANE.ip(), 8000)),
            BootFile::Url("http://10.77.0.1:8000/boot.ipxe".into())
        );
    }

    #[test]
    fn damaged_lists_are_survived() {
        for bytes in [&[][..], &[5], &[5, 9, 1], &[0, 0, 255], &[255]] {
            assert!(!has_suboption(bytes, IPXE_FEATURE_HTTP));
            assert!(!has_user_class(&options(&[(77, bytes)]), USER_CLASS_IPXE));
        }
    }
}
