//! DHCP's frames, octet by octet, as a client's NIC sees them.

use crate::net::{Client, DEADLINE, Net, SERVER};
use crate::raw_dhcp::{ACK, DISCOVER, OFFER, REQUEST, kind, message};
use anyhow::{Context, Result, ensure};
use kurrent_core::dhcp::wire::{self, FLAG_BROADCAST, Packet, option};
use kurrent_harness::wire::Wire;
use std::net::Ipv4Addr;

const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 7, 1];

/// A frame with a DHCP answer in it.
#[derive(Debug)]
struct Answer {
    to_mac: [u8; 6],
    from_mac: [u8; 6],
    from: Ipv4Addr,
    to: Ipv4Addr,
    packet: Packet,
}

fn sum(octets: &[u8]) -> u32 {
    let mut sum: u32 = octets.chunks(2).map(|p| u32::from(p[0]) << 8 | u32::from(*p.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

/// Reads a frame from port 67 to port 68, and holds every field of its headers against the RFCs.
fn answer(frame: &[u8]) -> Result<Option<Answer>> {
    if frame.get(12..14) != Some(&[8, 0]) || frame.get(23) != Some(&17) || frame.get(34..38) != Some(&[0, 67, 0, 68]) {
        return Ok(None);
    }
    let mac = |at: usize| <[u8; 6]>::try_from(&frame[at..at + 6]).unwrap_or_default();
    let (ip, udp) = (&frame[14..34], &frame[34..]);
    let address = |at: usize| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]);
    ensure!(ip[0] == 0x45 && ip[8] == 64, "version, header length, TTL");
    ensure!(ip[6] & 0x40 != 0 || ip[4..6] != [0, 0], "RFC 6864: what may be cut has an identification");
    ensure!(sum(ip) == 0xffff, "IP checksum");
    let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let udp_len = usize::from(u16::from_be_bytes([udp[4], udp[5]]));
    ensure!(total == 20 + udp_len && udp.len() >= udp_len && udp_len >= 308, "lengths: {total}, {udp_len}");
    let pseudo = [&ip[12..20], &[0, 17], &udp[4..6], &udp[..udp_len]].concat();
    ensure!(udp[6..8] != [0, 0] && sum(&pseudo) == 0xffff, "UDP checksum");
    let packet = wire::decode(&udp[8..udp_len])?;
    Ok(Some(Answer { to_mac: mac(0), from_mac: mac(6), from: address(12), to: address(16), packet }))
}

/// Sends a message as a frame and returns the frame that answers it.
fn ask(nic: &mut Wire, packet: &Packet) -> Result<Answer> {
    nic.send(&request_frame(&wire::encode(packet, 1472)))?;
    let mut fault = None;
    let mut found = None;
    nic.receive(DEADLINE, |frame| match answer(frame) {
        Ok(Some(answer)) if answer.packet.xid == packet.xid => {
            found = Some(answer);
            true
        }
        Ok(_) => false,
        Err(error) => {
            fault = Some(error);
            true
        }
    })?;
    fault.map_or(Ok(()), Err)?;
    found.context("an answer")
}

/// From nobody to everybody. No UDP checksum, as firmware sends it.
fn request_frame(dhcp: &[u8]) -> Vec<u8> {
    let udp_len = u16::try_from(dhcp.len() + 8).unwrap_or_default().to_be_bytes();
    let total = u16::try_from(dhcp.len() + 28).unwrap_or_default().to_be_bytes();
    let mut ip = [0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, 17, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255];
    let checksum = u16::try_from(!sum(&ip) & 0xffff).unwrap_or_default().to_be_bytes();
    ip[10..12].copy_from_slice(&checksum);
    [&[0xff; 6][..], &MAC, &[8, 0], &ip, &[0, 68, 0, 67], &udp_len, &[0, 0], dhcp].concat()
}

/// OFFER and ACK, with and without the broadcast flag.
fn all_destinations(nic: &mut Wire, server_mac: [u8; 6]) -> Result<()> {
    for (xid, flags) in [(10, 0), (20, FLAG_BROADCAST)] {
        let mut discover = message(DISCOVER, MAC, xid, &[]);
        discover.flags = flags;
        let offer = ask(nic, &discover)?;
        let own = offer.packet.yiaddr;
        let mut request =
            message(REQUEST, MAC, xid + 1, &[(option::REQUESTED_ADDRESS, &own.octets()), (option::SERVER_ID, &SERVER.octets())]);
        request.flags = flags;
        let ack = ask(nic, &request)?;
        ensure!((kind(&offer.packet), kind(&ack.packet)) == (OFFER, ACK));
        for answer in [offer, ack] {
            let expected = if flags == 0 { (MAC, own) } else { ([0xff; 6], Ipv4Addr::BROADCAST) };
            ensure!((answer.to_mac, answer.to) == expected, "link and network destination: {answer:?}");
            ensure!((answer.from_mac, answer.from) == (server_mac, SERVER), "{answer:?}");
            ensure!(answer.packet.yiaddr == own && answer.packet.options.address(option::SERVER_ID) == Some(SERVER));
        }
    }
    Ok(())
}

fn mac_of(net: &Net, interface: &str) -> Result<[u8; 6]> {
    let interface = interface.to_owned();
    let link = kurrent_harness::netns::enter(net.netns(), move || kurrent_sys::link::link(&interface))??;
    Ok(link.mac.context("a hardware address")?.0)
}

fn nic(net: &Net, interface: &str) -> Result<(Client, Wire)> {
    let client = net.client(&kurrent_core::id::MacAddr(MAC).to_string())?;
    let wire = Wire::in_netns(&client.netns, interface)?;
    Ok((client, wire))
}

#[test]
fn link_and_network_destination_agree_and_all_sums_are_right_on_ethernet() -> Result<()> {
    let net = Net::new("frames")?;
    // Another address on the same NIC, one that a broadcast or a route would rather leave from; and another NIC.
    for arguments in [
        "address add 10.77.0.2/16 dev boot",
        "link add elsewhere type veth peer name nowhere",
        "address add 10.77.0.3/24 dev elsewhere",
        "link set elsewhere up",
        "link set nowhere up",
        "route add default dev elsewhere",
    ] {
        kurrent_harness::tools::run(net.command("ip").args(arguments.split(' ')))?;
    }
    let _daemon = net.serve()?;
    let (_client, mut wire) = nic(&net, "eth0")?;
    let server_mac = mac_of(&net, "boot")?;
    all_destinations(&mut wire, server_mac)?;
    net.passed();
    Ok(())
}

#[test]
fn replies_are_larger_than_576_octets_only_where_option_57_allows_it() -> Result<()> {
    let net = Net::new("option-57")?;
    net.configure(&format!("  dhcp:\n    dns: [{}]\n", vec!["10.77.0.1"; 80].join(", ")))?;
    let _daemon = net.serve()?;
    let (_client, mut wire) = nic(&net, "eth0")?;
    // 57 counts the IP and UDP headers (RFC 2132 s9.10).
    for (xid, option_57, most) in
        [(1, None, 576), (2, Some(300), 576), (3, Some(1000), 1000), (4, Some(1500), 1500), (5, Some(65535), 1500)]
    {
        let size = option_57.map(u16::to_be_bytes);
        let options: Vec<(u8, &[u8])> = size.iter().map(|size| (57, &size[..])).chain([(55, &[1_u8, 3, 6, 15, 51][..])]).collect();
        let reply = ask(&mut wire, &message(DISCOVER, MAC, xid, &options))?;
        let octets = wire::encode(&reply.packet, 1472).len() + 28;
        ensure!(octets <= most, "{option_57:?}: {octets}");
        ensure!(reply.packet.options.bytes(option::LEASE_TIME).is_some(), "{option_57:?}: what is needed is there");
    }
    net.passed();
    Ok(())
}

/// A `ciaddr` that nobody answers ARP for would wait in the kernel for three seconds, in a buffer that all answers share.
#[test]
fn forged_addresses_of_absent_hosts_are_answered_without_arp_and_hold_up_nobody() -> Result<()> {
    let net = Net::new("absent-hosts")?;
    let _daemon = net.serve()?;
    let client = net.client("52:54:00:00:07:01")?;
    let mut nic = Wire::in_netns(&client.netns, "eth0")?;
    let inform = |last: u8, xid| Packet { ciaddr: Ipv4Addr::new(10, 77, 0, last), flags: 0, ..message(8, MAC, xid, &[]) };
    for round in 0..4_u32 {
        for last in 2..=250_u8 {
            nic.send(&request_frame(&wire::encode(&inform(last, 0x1000 * (round + 1) + u32::from(last)), 1472)))?;
        }
    }
    let offer = ask(&mut nic, &message(DISCOVER, MAC, 1, &[]))?;
    ensure!(kind(&offer.packet) == OFFER);
    let told = ask(&mut nic, &inform(9, 2))?;
    ensure!((kind(&told.packet), told.to_mac, told.to) == (ACK, MAC, Ipv4Addr::new(10, 77, 0, 9)), "{told:?}");
    // Port 4011 is asked from that address.
    let mut question = request_frame(&wire::encode(&message(REQUEST, MAC, 3, &[(60, b"PXEClient"), (93, &[0, 7])]), 1472));
    question[26..34].copy_from_slice(&[10, 77, 0, 9, 10, 77, 0, 1]);
    question[36..38].copy_from_slice(&4011_u16.to_be_bytes());
    question[24..26].copy_from_slice(&[0, 0]);
    let checksum = u16::try_from(!sum(&question[14..34]) & 0xffff).unwrap_or_default().to_be_bytes();
    question[24..26].copy_from_slice(&checksum);
    nic.send(&question)?;
    let from_4011 = |frame: &[u8]| frame.get(34..36) == Some(&4011_u16.to_be_bytes()) && frame.get(..6) == Some(&MAC);
    nic.receive(DEADLINE, from_4011)?.context("an answer from port 4011")?;
    net.passed();
    Ok(())
}
