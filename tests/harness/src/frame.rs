//! Just enough DHCP over Ethernet to ask as a machine would: built by hand from RFC 2131, sharing no code with the product.

use kurrent_core::id::MacAddr;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const PROTOCOL_UDP: u8 = 17;
const SERVER_PORT: u16 = 67;
const CLIENT_PORT: u16 = 68;
const MAGIC_COOKIE: [u8; 4] = [99, 130, 83, 99];
const OPTIONS_AT: usize = 240;
const OPTION_MESSAGE_TYPE: u8 = 53;
const OPTION_PARAMETER_LIST: u8 = 55;
const OPTION_VENDOR_CLASS: u8 = 60;
const OPTION_ARCHITECTURE: u8 = 93;
const OPTION_END: u8 = 255;

/// A DHCP message as seen on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dhcp {
    /// 1 from a client, 2 from a server.
    pub op: u8,
    /// Transaction.
    pub xid: u32,
    /// Client hardware address.
    pub client: MacAddr,
    /// `yiaddr`.
    pub offered: Ipv4Addr,
    /// Option 53: 1 DISCOVER, 2 OFFER, 3 REQUEST, 5 ACK, 6 NAK.
    pub message_type: u8,
    /// All options but the message type, in one piece each (RFC 3396).
    pub options: BTreeMap<u8, Vec<u8>>,
}

/// A broadcast DISCOVER of a UEFI x86-64 PXE client.
pub fn discover(client: MacAddr, xid: u32) -> Vec<u8> {
    let mut dhcp = vec![1, 1, 6, 0];
    dhcp.extend(xid.to_be_bytes());
    // secs, then flags with the broadcast bit.
    dhcp.extend([0, 0, 0x80, 0]);
    dhcp.extend([0; 16]);
    dhcp.extend(client.0);
    dhcp.resize(OPTIONS_AT - MAGIC_COOKIE.len(), 0);
    dhcp.extend(MAGIC_COOKIE);
    dhcp.extend([OPTION_MESSAGE_TYPE, 1, 1]);
    dhcp.extend([OPTION_PARAMETER_LIST, 5, 1, 3, 66, 67, 60]);
    dhcp.extend([OPTION_ARCHITECTURE, 2, 0, 7]);
    let class = b"PXEClient:Arch:00007:UNDI:003001";
    dhcp.extend([OPTION_VENDOR_CLASS, u8::try_from(class.len()).unwrap_or_default()]);
    dhcp.extend(class);
    dhcp.push(OPTION_END);
    // BOOTP's least size; some relays drop shorter ones.
    dhcp.resize(dhcp.len().max(300), 0);

    let mut udp = Vec::new();
    udp.extend(CLIENT_PORT.to_be_bytes());
    udp.extend(SERVER_PORT.to_be_bytes());
    udp.extend(length(dhcp.len() + 8));
    // Checksum 0: not computed (RFC 768).
    udp.extend([0, 0]);
    udp.extend(&dhcp);

    let mut ip = vec![0x45, 0];
    ip.extend(length(udp.len() + 20));
    ip.extend([0, 0, 0, 0, 64, PROTOCOL_UDP, 0, 0]);
    ip.extend(Ipv4Addr::UNSPECIFIED.octets());
    ip.extend(Ipv4Addr::BROADCAST.octets());
    let sum = checksum(&ip);
    ip.splice(10..12, sum);

    let mut frame = vec![0xff; 6];
    frame.extend(client.0);
    frame.extend(ETHERTYPE_IPV4);
    frame.extend(ip);
    frame.extend(udp);
    frame
}

/// Reads a frame as DHCP, if it is.
pub fn parse(frame: &[u8]) -> Option<Dhcp> {
    let ip = frame.strip_prefix(frame.get(..12)?)?.strip_prefix(&ETHERTYPE_IPV4)?;
    let header = usize::from(ip.first()? & 0x0f) * 4;
    if *ip.get(9)? != PROTOCOL_UDP {
        return None;
    }
    let udp = ip.get(header..)?;
    let ports = [word(udp, 0)?, word(udp, 2)?];
    if !ports.contains(&SERVER_PORT) {
        return None;
    }
    let dhcp = udp.get(8..)?;
    let xid = u32::from_be_bytes(dhcp.get(4..8)?.try_into().ok()?);
    let client = MacAddr(dhcp.get(28..34)?.try_into().ok()?);
    let offered = Ipv4Addr::from(<[u8; 4]>::try_from(dhcp.get(16..20)?).ok()?);
    let mut options = dhcp.get(OPTIONS_AT..)?;
    let mut found: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
    while let [code, rest @ ..] = options {
        if *code == OPTION_END {
            break;
        }
        if *code == 0 {
            options = rest;
            continue;
        }
        let [size, rest @ ..] = rest else { break };
        let (value, after) = rest.split_at_checked(usize::from(*size))?;
        found.entry(*code).or_default().extend(value);
        options = after;
    }
    let message_type = *found.remove(&OPTION_MESSAGE_TYPE)?.first()?;
    Some(Dhcp { op: *dhcp.first()?, xid, client, offered, message_type, options: found })
}

fn length(octets: usize) -> [u8; 2] {
    u16::try_from(octets).unwrap_or(u16::MAX).to_be_bytes()
}

fn word(octets: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(octets.get(at..at + 2)?.try_into().ok()?))
}

/// RFC 1071.
fn checksum(header: &[u8]) -> [u8; 2] {
    let mut sum: u32 = header.chunks(2).map(|pair| u32::from(word(pair, 0).unwrap_or_default())).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(!sum & 0xffff).unwrap_or_default().to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_built_discover_reads_back() {
        let client = MacAddr([0x52, 0x54, 0, 1, 2, 3]);
        let frame = discover(client, 7);
        let read = parse(&frame);
        let options = BTreeMap::from([
            (OPTION_PARAMETER_LIST, vec![1, 3, 66, 67, 60]),
            (OPTION_ARCHITECTURE, vec![0, 7]),
            (OPTION_VENDOR_CLASS, b"PXEClient:Arch:00007:UNDI:003001".to_vec()),
        ]);
        let expected = Dhcp { op: 1, xid: 7, client, offered: Ipv4Addr::UNSPECIFIED, message_type: 1, options };
        assert_eq!(read, Some(expected));
        assert_eq!(checksum(&frame[14..34]), [0, 0], "an IPv4 header sums to zero with its checksum");
    }

    #[test]
    fn other_frames_are_not_dhcp() {
        let frame = discover(MacAddr([2, 0, 0, 0, 0, 1]), 1);
        assert_eq!(parse(frame.get(..40).unwrap_or_default()), None);
        assert_eq!(parse(&[]), None);
    }
}
