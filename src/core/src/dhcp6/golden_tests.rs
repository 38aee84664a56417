//! Captured messages -> their decoded text and the whole answer. `UPDATE=1` rewrites the texts; the difference is reviewed.
//!
//! `ovmf-*` and `ipxe-*` are one boot in QEMU (OVMF 2022.11, whose IPv6 stack asks for itself before PXE does, then stock iPXE 2.0.0
//! `snponly.efi`), `dhclient-*` is isc-dhcp-client 4.4.3 of Debian 12; all from the same NIC.

use super::decide_tests::OWN;
use super::machine::{self, Declined};
use super::wire::{self, Options, option};
use super::{View, boot, decide};
use crate::config::{Dhcpv6Mode, Ipv6};
use crate::ledger::Ledger;
use crate::time::Mono;
use std::fmt::Write as _;
use std::path::Path;

const NAMES: [&str; 10] = [
    "ovmf-system-solicit",
    "ovmf-system-request",
    "ovmf-system-release",
    "ovmf-pxe-solicit",
    "ovmf-pxe-request",
    "ovmf-http-solicit",
    "ovmf-http-request",
    "ipxe-solicit",
    "ipxe-request",
    "dhclient-solicit",
];
/// The server that the captured clients chose.
const SERVER_ID: [u8; 18] = [0, 4, 0x83, 0x97, 0x5b, 0xb2, 0x90, 0xbc, 0x39, 0x0a, 0x06, 0x37, 0xd0, 0x87, 0x2e, 0x9c, 0xc5, 0x2d];
const SOURCE: &str = "fe80::5054:ff:fe00:701";

fn text(options: &Options, out: &mut String) {
    for (code, value) in options.iter() {
        let readable = value.len() > 2 && value.iter().all(|b| (0x20..0x7f).contains(b));
        let shown = if readable { format!("{:?}", String::from_utf8_lossy(value)) } else { hex::encode(value) };
        let _ = writeln!(out, "  option {code} {shown}");
    }
}

#[test]
fn captured_messages_decode_and_are_answered_as_reviewed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/dhcp6");
    let ipv6 = Ipv6 { address: OWN, dhcp: Dhcpv6Mode::Managed, lease_secs: 3600, router_advertisements: true };
    let (ledger, declined) = (Ledger::default(), Declined::default());
    let view = View { ipv6: &ipv6, boot_port: 80, unknown_devices: true, ledger: &ledger, server_id: &SERVER_ID, declined: &declined };
    for name in NAMES {
        let hex_text = std::fs::read_to_string(folder.join(format!("{name}.hex"))).unwrap();
        let octets = hex::decode(hex_text.split_whitespace().collect::<String>()).unwrap();
        let received = wire::decode(&octets).unwrap();
        let mac = machine::machine(&received, OWN, SOURCE.parse().unwrap(), |address| machine::holder(OWN, address));
        assert_eq!(mac.unwrap().to_string(), "52:54:00:00:07:01", "{name}");
        let decision = decide(&received, mac, &view, Mono::default());
        let reply = decision.reply.unwrap();
        let mut got = format!("{:?}, {} octets, {:?}\n", received.kind, octets.len(), boot::identify(&received.options));
        text(&received.options, &mut got);
        let kind = if reply.advertise { "ADVERTISE" } else { "REPLY" };
        let _ = writeln!(got, "{:?}, {kind}, {} octets", decision.reason, wire::encode(&reply, &received).len());
        text(&reply.options, &mut got);
        assert_eq!(reply.options.bytes(option::CLIENT_ID), received.options.bytes(option::CLIENT_ID), "{name}");
        let expected = folder.join(format!("{name}.txt"));
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&expected, &got).unwrap();
        }
        assert_eq!(got, std::fs::read_to_string(&expected).unwrap(), "{name}");
    }
}
