//! Captured requests -> their decoded text and the whole answer. `UPDATE=1` rewrites the texts; the difference is reviewed.
//!
//! `ovmf-*` and `ipxe-rom-*` are from QEMU (OVMF 2022.11; iPXE option ROM), `udhcpc-*` and `dhclient-*` from Debian 12,
//! `bios-pxe-*` written by hand after RFC 4578 as Intel's boot agents send it. The others say in their first line where they come
//! from. After the server's answer comes the proxy's. `*-4011-request` goes to port 4011, which answers the same in both modes.
//!
//! All of them also hold what a reply may cost a stranger (`AMPLIFICATION`), and whom it must never reach.

use super::address::Destination;
use super::msg::Request;
use super::testing::{SERVER, World, at, mac, packet};
use super::wire::{Packet, decode, encode, option};
use super::{msg, proxy};
use crate::config::Subnet;
use crate::ledger::DeviceState;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};

const NAMES: [&str; 30] = [
    "ovmf-pxe-discover",
    "ovmf-pxe-request",
    "ovmf-4011-request",
    "ovmf-http-discover",
    "ovmf-http-request",
    "ipxe-rom-discover",
    "ipxe-rom-request",
    "ipxe-uefi-rom-discover",
    "ipxe-uefi-rom-request",
    "ipxe-uefi-chained-discover",
    "ipxe-uefi-chained-request",
    "udhcpc-discover",
    "udhcpc-request",
    "dhclient-discover",
    "dhclient-request",
    "dhcpcd-discover",
    "dhcpcd-request",
    "systemd-networkd-discover",
    "systemd-networkd-request",
    "windows-10-discover",
    "windows-10-request",
    "windows-inform",
    "windows-wds-4011-request",
    "bios-pxe-discover",
    "bios-pxe-request",
    "hp-bios-pxe-discover",
    "supermicro-bios-pxe-discover",
    "raspberry-pi-3-discover",
    "raspberry-pi-4-discover",
    "u-boot-arm64-discover",
];
/// A reply is at most so many times as long as the request that caused it.
const AMPLIFICATION: usize = 3;
/// Nobody of ours.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/dhcp")
}

fn captured(name: &str) -> Vec<u8> {
    let text = std::fs::read_to_string(folder().join(format!("{name}.hex"))).unwrap();
    hex::decode(text.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace).collect::<String>()).unwrap()
}

/// Where a captured request to port 4011 came from: EDK2 listens on the same port, Windows on the client's.
fn source_4011(name: &str, request: &Request) -> Option<SocketAddrV4> {
    let port = if name.starts_with("windows") { 68 } else { 4011 };
    name.contains("-4011-").then(|| SocketAddrV4::new(request.ciaddr, port))
}

/// The captured clients ask for the address that the server of the capture gave them.
fn world(request: &Request) -> World {
    let mut world = World::default();
    if let Some(address) = request.requested {
        world.bind(request.mac, address);
    }
    world
}

fn view(world: &World) -> proxy::View<'_> {
    proxy::View { config: &world.config, ledger: &world.ledger }
}

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
    for name in NAMES {
        let octets = captured(name);
        let packet = decode(&octets).unwrap();
        let request = msg::request(&packet).unwrap();
        let mut got = format!("request, {} octets, {:?}\n", octets.len(), request.client);
        text(&packet, &mut got);
        let world = world(&request);
        let (reply, wire) = match source_4011(name, &request) {
            None => from_both(&request, &world, &mut got),
            Some(source) => {
                let (answer, reason) = proxy::decide_4011(&request, source, &view(&world));
                let (reply, to) = answer.unwrap();
                let wire = encode(&reply, request.max_reply_bytes);
                let _ = writeln!(got, "on port 4011: {reason:?}, {} octets, to {to}", wire.len());
                text(&decode(&wire).unwrap(), &mut got);
                (reply, wire)
            }
        };
        let file = folder().join(format!("{name}.txt"));
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

/// Port 67: the server's answer, which is returned, and the proxy's.
fn from_both(request: &Request, world: &World, got: &mut String) -> (Packet, Vec<u8>) {
    let decision = world.decide(request, at(0));
    let (reply, to) = decision.reply.unwrap();
    let wire = encode(&reply, request.max_reply_bytes);
    let to = match to {
        Destination::Link { mac, address } => format!("frame to {mac}, {address}"),
        other => format!("{other:?}"),
    };
    let _ = writeln!(got, "{:?}, {} octets, {to}", decision.reason, wire.len());
    text(&decode(&wire).unwrap(), got);
    let (proxied, reason) = proxy::decide(request, &view(world));
    let _ = writeln!(got, "as a proxy: {reason:?}");
    if let Some((proxied, to)) = proxied {
        let wire = encode(&proxied, request.max_reply_bytes);
        let _ = writeln!(got, "{} octets, {to:?}", wire.len());
        text(&decode(&wire).unwrap(), got);
    }
    (reply, wire)
}

/// All that a request makes us send, in both modes and on both ports, in octets.
fn lengths(request: &Request, world: &World) -> impl Iterator<Item = usize> {
    let view = view(world);
    let from = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 9), 68);
    let replies = [
        world.decide(request, at(0)).reply.map(|(reply, _)| reply),
        proxy::decide(request, &view).0.map(|(reply, _)| reply),
        proxy::decide_4011(request, from, &view).0.map(|(reply, _)| reply),
    ];
    replies.into_iter().flatten().map(|reply| encode(&reply, request.max_reply_bytes).len())
}

#[test]
fn no_captured_request_is_answered_with_more_than_three_times_its_length() {
    for name in NAMES {
        let octets = captured(name);
        let request = msg::request(&decode(&octets).unwrap()).unwrap();
        for answer in lengths(&request, &world(&request)) {
            assert!(answer <= AMPLIFICATION * octets.len(), "{name}: {answer} for {}", octets.len());
        }
    }
}

/// The shortest request of each kind, to a server that has the most to say.
#[test]
fn the_shortest_requests_are_answered_with_no_more_than_three_times_their_length() {
    let mut world = World::default();
    world.config.dhcp.bootp = crate::config::Bootp::On;
    world.config.dhcp.local.dns = (1..=8).map(|last| Ipv4Addr::new(10, 77, 0, last)).collect();
    world.config.dhcp.local.domain = Some("d".repeat(253));
    world.config.dhcp.local.router = Some(SERVER);
    world.record(mac(1), DeviceState::Bound);
    let loud: [&[(u8, &[u8])]; 5] = [&[], &[(60, b"PXEClient")], &[(93, &[0, 16])], &[(77, b"iPXE")], &[(55, &[1, 3, 6, 12, 15, 28])]];
    for kind in [None, Some(1), Some(3), Some(8)] {
        for more in loud {
            let mut asked = packet(kind.unwrap_or(1), mac(1), more);
            if kind.is_none() {
                asked.options = super::wire::Options::default();
            }
            asked.options.push(option::MAX_MESSAGE_SIZE, &1500_u16.to_be_bytes());
            // Without the padding that `encode` adds.
            let fixed = encode(&Packet { options: super::wire::Options::default(), ..asked.clone() }, 0);
            let shortest = 240 + 1 + asked.options.iter().map(|(_, value)| 2 + value.len()).sum::<usize>();
            assert_eq!(&fixed[236..241], &[0x63, 0x82, 0x53, 0x63, option::END]);
            for answer in lengths(&msg::request(&asked).unwrap(), &world) {
                assert!(answer <= AMPLIFICATION * shortest, "{kind:?} {more:?}: {answer} for {shortest}");
            }
        }
    }
}

#[test]
fn without_a_relay_nothing_is_sent_off_our_links() {
    let ours = |world: &World, address| world.config.dhcp.subnets().any(|subnet: &Subnet| subnet.contains(address));
    for name in NAMES {
        let request = msg::request(&decode(&captured(name)).unwrap()).unwrap();
        let world = world(&request);
        for ciaddr in [request.ciaddr, ELSEWHERE, Ipv4Addr::new(10, 78, 0, 9)] {
            let request = Request { ciaddr, ..request.clone() };
            let reached = |to: Destination| match to {
                Destination::Broadcast => true,
                Destination::Link { address, .. } | Destination::Client(address) => ours(&world, address),
                Destination::Relay(_) => false,
            };
            assert!(world.decide(&request, at(0)).reply.is_none_or(|(_, to)| reached(to)), "{name} {ciaddr}");
            assert!(proxy::decide(&request, &view(&world)).0.is_none_or(|(_, to)| reached(to)), "{name} {ciaddr}");
            for port in [68, 4011, 53] {
                let from = SocketAddrV4::new(ELSEWHERE, port);
                assert_eq!(proxy::decide_4011(&request, from, &view(&world)).0, None, "{name} {ciaddr}");
            }
            let nowhere = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68);
            let told = proxy::decide_4011(&request, nowhere, &view(&world)).0;
            assert!(told.is_none_or(|(_, to)| ours(&world, *to.ip())), "{name} {ciaddr}");
        }
    }
}
