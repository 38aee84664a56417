//! Captured requests -> their decoded text and the whole answer. `UPDATE=1` rewrites the texts; the difference is reviewed.
//!
//! `ovmf-*` and `ipxe-rom-*` are from QEMU (OVMF 2022.11; iPXE option ROM), `udhcpc-*` and `dhclient-*` from Debian 12,
//! `bios-pxe-*` written by hand after RFC 4578 as Intel's boot agents send it. The others say in their first line where they come
//! from. After the server's answer comes the proxy's.

use super::testing::{World, at};
use super::wire::{Packet, decode, encode, option};
use super::{address::Destination, msg, proxy};
use std::fmt::Write as _;
use std::path::Path;

const NAMES: [&str; 14] = [
    "ovmf-pxe-discover",
    "ovmf-pxe-request",
    "ovmf-http-discover",
    "ovmf-http-request",
    "ipxe-rom-discover",
    "ipxe-rom-request",
    "udhcpc-discover",
    "udhcpc-request",
    "dhclient-discover",
    "dhclient-request",
    "bios-pxe-discover",
    "bios-pxe-request",
    "raspberry-pi-3-discover",
    "u-boot-arm64-discover",
];

fn text(packet: &Packet, out: &mut String) {
    let _ = writeln!(out, "  op {} hops {} xid {:08x} secs {} flags {:04x}", packet.op, packet.hops, packet.xid, packet.secs, packet.flags);
    let _ = writeln!(out, "  ciaddr {} yiaddr {} siaddr {} giaddr {}", packet.ciaddr, packet.yiaddr, packet.siaddr, packet.giaddr);
    let _ = writeln!(out, "  chaddr {}", hex::encode(&packet.chaddr[..usize::from(packet.hlen)]));
    for (name, field) in [("sname", &packet.sname), ("file", &packet.file)] {
        let _ = writeln!(out, "  {name} {:?}", String::from_utf8_lossy(field));
    }
    for (code, value) in packet.options.iter() {
        let readable = value.len() > 2 && value.iter().all(|b| (0x20..0x7f).contains(b)) && code != option::PARAMETER_LIST;
        let shown = if readable { format!("{:?}", String::from_utf8_lossy(value)) } else { hex::encode(value) };
        let _ = writeln!(out, "  option {code} {shown}");
    }
}

#[test]
fn captured_requests_decode_and_are_answered_as_reviewed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/dhcp");
    for name in NAMES {
        let hex_text = std::fs::read_to_string(folder.join(format!("{name}.hex"))).unwrap();
        let octets =
            hex::decode(hex_text.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace).collect::<String>())
                .unwrap();
        let packet = decode(&octets).unwrap();
        let request = msg::request(&packet).unwrap();
        let mut world = World::default();
        // The captured clients ask for the address that the server of the capture gave them.
        if let Some(address) = request.requested {
            world.bind(request.mac, address);
        }
        let decision = world.decide(&request, at(0));
        let (reply, to) = decision.reply.unwrap();
        let wire = encode(&reply, request.max_reply_bytes);
        let mut got = format!("request, {} octets, {:?}\n", octets.len(), request.client);
        text(&packet, &mut got);
        let to = match to {
            Destination::Link { mac, address } => format!("frame to {mac}, {address}"),
            other => format!("{other:?}"),
        };
        let _ = writeln!(got, "{:?}, {} octets, {to}", decision.reason, wire.len());
        text(&decode(&wire).unwrap(), &mut got);
        let (proxied, reason) = proxy::decide(&request, &proxy::View { config: &world.config, ledger: &world.ledger });
        let _ = writeln!(got, "as a proxy: {reason:?}");
        if let Some((reply, to)) = proxied {
            let wire = encode(&reply, request.max_reply_bytes);
            let _ = writeln!(got, "{} octets, {to:?}", wire.len());
            text(&decode(&wire).unwrap(), &mut got);
        }
        let file = folder.join(format!("{name}.txt"));
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&file, &got).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap_or_default(), got, "{name}: UPDATE=1 rewrites it");
        // An independent reader takes what we write.
        let independent = <dhcproto::v4::Message as dhcproto::Decodable>::decode(&mut dhcproto::Decoder::new(&wire)).unwrap();
        assert_eq!(independent.yiaddr(), reply.yiaddr);
        assert_eq!(independent.opts().iter().count(), reply.options.iter().count(), "{name}");
    }
}
