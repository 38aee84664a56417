//! Just enough DHCP over Ethernet to ask as a machine would, and TCP to read what was said: built by hand from RFC 2131 and RFC 9293,
//! sharing no code with the product.

use kurrent_core::id::MacAddr;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const PROTOCOL_TCP: u8 = 6;
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

/// A TCP segment over IPv4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Who sent it.
    pub from: SocketAddrV4,
    /// To whom.
    pub to: SocketAddrV4,
    /// Number of the first octet.
    pub sequence: u32,
    /// What it carries.
    pub payload: Vec<u8>,
}

/// Reads a frame as a TCP segment, if it is one and was captured whole.
pub fn segment(frame: &[u8]) -> Option<Segment> {
    let ip = frame.get(12..)?.strip_prefix(&ETHERTYPE_IPV4)?;
    let ip = ip.get(..usize::from(word(ip, 2)?))?;
    if *ip.get(9)? != PROTOCOL_TCP {
        return None;
    }
    let address = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(ip.get(at..at + 4)?).ok()?));
    let tcp = ip.get(usize::from(ip.first()? & 0x0f) * 4..)?;
    Some(Segment {
        from: SocketAddrV4::new(address(12)?, word(tcp, 0)?),
        to: SocketAddrV4::new(address(16)?, word(tcp, 2)?),
        sequence: u32::from_be_bytes(tcp.get(4..8)?.try_into().ok()?),
        payload: tcp.get(usize::from(tcp.get(12)? >> 4) * 4..)?.to_vec(),
    })
}

/// What was said in each direction of each connection, in the order of `frames`; what was sent twice is there once.
pub fn streams<'a>(frames: impl Iterator<Item = &'a [u8]>) -> BTreeMap<(SocketAddrV4, SocketAddrV4), Vec<u8>> {
    let mut streams: BTreeMap<_, (u32, Vec<u8>)> = BTreeMap::new();
    for segment in frames.filter_map(segment).filter(|segment| !segment.payload.is_empty()) {
        let (next, octets) = streams.entry((segment.from, segment.to)).or_insert((segment.sequence, Vec::new()));
        // Half of the numbers are behind, half are ahead (RFC 9293, section 3.4).
        if segment.sequence.wrapping_sub(*next) < 1 << 31 {
            octets.extend(&segment.payload);
            *next = segment.sequence.wrapping_add(u32::try_from(segment.payload.len()).unwrap_or_default());
        }
    }
    streams.into_iter().map(|(direction, (_, octets))| (direction, octets)).collect()
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

    /// A segment as it is on the wire, without a right checksum.
    fn tcp(port: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
        let head = [&port.to_be_bytes()[..], &80_u16.to_be_bytes(), &sequence.to_be_bytes(), &[0; 4], &[0x50, 0x18], &[0; 6]].concat();
        let tcp = [&head, payload].concat();
        let ip = [&[0x45, 0][..], &length(tcp.len() + 20), &[0, 0, 0, 0, 64, PROTOCOL_TCP, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]].concat();
        // Ethernet pads short frames.
        [&[2; 12][..], &ETHERTYPE_IPV4, &ip, &tcp, &[0; 6]].concat()
    }

    #[test]
    fn streams_are_put_together_by_direction_and_without_what_was_sent_twice() {
        let frames = [tcp(9, u32::MAX, b"GE"), tcp(8, 5, b"other"), tcp(9, 1, b"T /"), tcp(9, 1, b"T /"), tcp(9, 4, b""), tcp(9, 4, b"x")];
        let streams = streams(frames.iter().map(Vec::as_slice));
        let said: Vec<(u16, &[u8])> = streams.iter().map(|((from, _), octets)| (from.port(), octets.as_slice())).collect();
        assert_eq!(said, [(8, b"other".as_slice()), (9, b"GET /x")]);
        assert_eq!(segment(&discover(MacAddr([2, 0, 0, 0, 0, 1]), 1)), None);
        assert_eq!(segment(tcp(9, 0, b"cut").get(..40).unwrap_or_default()), None);
    }

    #[test]
    fn other_frames_are_not_dhcp() {
        let frame = discover(MacAddr([2, 0, 0, 0, 0, 1]), 1);
        assert_eq!(parse(frame.get(..40).unwrap_or_default()), None);
        assert_eq!(parse(&[]), None);
    }
}
