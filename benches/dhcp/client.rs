//! The clients of the load: messages as firmware writes them, built by hand from RFC 2131, sharing no code with the product.

use std::net::Ipv4Addr;

const MAGIC_COOKIE: [u8; 4] = [99, 130, 83, 99];
const OPTIONS_AT: usize = 240;
const OPTION_REQUESTED_ADDRESS: u8 = 50;
const OPTION_MESSAGE_TYPE: u8 = 53;
const OPTION_SERVER_ID: u8 = 54;
const OPTION_END: u8 = 255;
/// What an x86-64 UEFI firmware asks with (EDK2, NetworkPkg/UefiPxeBcDxe): parameter list, message size, machine id, UNDI,
/// architecture, vendor class.
const FIRMWARE_OPTIONS: &[u8] = &[
    55, 24, 1, 2, 3, 4, 5, 6, 12, 13, 15, 17, 18, 22, 23, 28, 40, 41, 42, 43, 50, 51, 54, 58, 59, 60, 57, 2, 5, 192, 97, 17, 0, 0, 1, 2, 3,
    4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 94, 3, 1, 3, 16, 93, 2, 0, 7, 60, 32, 80, 88, 69, 67, 108, 105, 101, 110, 116, 58, 65, 114,
    99, 104, 58, 48, 48, 48, 48, 55, 58, 85, 78, 68, 73, 58, 48, 48, 51, 48, 49, 54,
];

/// DISCOVER, REQUEST; OFFER, ACK, NAK.
pub const DISCOVER: u8 = 1;
/// See [`DISCOVER`].
pub const OFFER: u8 = 2;
/// See [`DISCOVER`].
pub const REQUEST: u8 = 3;
/// See [`DISCOVER`].
pub const ACK: u8 = 5;
/// See [`DISCOVER`].
pub const NAK: u8 = 6;

/// What a client asks.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Which of the load's clients; its MAC and its transaction follow from it.
    pub client: u32,
    /// The relay, or 0.0.0.0.
    pub giaddr: Ipv4Addr,
    /// The offer that is taken: address and server.
    pub takes: Option<(Ipv4Addr, Ipv4Addr)>,
}

/// The MAC of a client: locally administered.
pub fn mac(client: u32) -> [u8; 6] {
    let [a, b, c, d] = client.to_be_bytes();
    [0x52, 0x54, a, b, c, d]
}

impl Ask {
    /// The message; at least BOOTP's 300 octets.
    pub fn message(&self) -> Vec<u8> {
        let hops = u8::from(!self.giaddr.is_unspecified());
        let mut dhcp = vec![1, 1, 6, hops];
        dhcp.extend(self.client.to_be_bytes());
        // secs, flags (no broadcast bit, as firmware), ciaddr, yiaddr, siaddr.
        dhcp.extend([0; 16]);
        dhcp.extend(self.giaddr.octets());
        dhcp.extend(mac(self.client));
        dhcp.resize(OPTIONS_AT - MAGIC_COOKIE.len(), 0);
        dhcp.extend(MAGIC_COOKIE);
        dhcp.extend([OPTION_MESSAGE_TYPE, 1, if self.takes.is_some() { REQUEST } else { DISCOVER }]);
        if let Some((address, server)) = self.takes {
            dhcp.extend([OPTION_REQUESTED_ADDRESS, 4]);
            dhcp.extend(address.octets());
            dhcp.extend([OPTION_SERVER_ID, 4]);
            dhcp.extend(server.octets());
        }
        dhcp.extend(FIRMWARE_OPTIONS);
        dhcp.push(OPTION_END);
        dhcp.resize(dhcp.len().max(300), 0);
        dhcp
    }

    /// The message in a broadcast frame of the client.
    pub fn frame(&self) -> Vec<u8> {
        let dhcp = self.message();
        let mut udp = vec![0, 68, 0, 67];
        udp.extend(length(dhcp.len() + 8));
        // Checksum 0: not computed (RFC 768).
        udp.extend([0, 0]);
        udp.extend(&dhcp);
        let mut ip = vec![0x45, 0];
        ip.extend(length(udp.len() + 20));
        ip.extend([0, 0, 0, 0, 64, 17, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255]);
        let sum = checksum(&ip);
        ip.splice(10..12, sum);
        let mut frame = vec![0xff; 6];
        frame.extend(mac(self.client));
        frame.extend([0x08, 0x00]);
        frame.extend(ip);
        frame.extend(udp);
        frame
    }
}

/// What a server said.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// To which client, by its transaction.
    pub client: u32,
    /// Option 53.
    pub kind: u8,
    /// `yiaddr`.
    pub address: Ipv4Addr,
    /// Option 54.
    pub server: Ipv4Addr,
}

/// Reads a server's message.
pub fn told(dhcp: &[u8]) -> Option<Told> {
    if *dhcp.first()? != 2 {
        return None;
    }
    let client = u32::from_be_bytes(dhcp.get(4..8)?.try_into().ok()?);
    if dhcp.get(28..34)? != mac(client) {
        return None;
    }
    let address = Ipv4Addr::from(<[u8; 4]>::try_from(dhcp.get(16..20)?).ok()?);
    let (mut kind, mut server) = (None, Ipv4Addr::UNSPECIFIED);
    let mut options = dhcp.get(OPTIONS_AT..)?;
    loop {
        match options {
            [0, rest @ ..] => options = rest,
            [OPTION_END, ..] | [] | [_] => break,
            [code, len, rest @ ..] => {
                let (value, rest) = rest.split_at_checked(usize::from(*len))?;
                match *code {
                    OPTION_MESSAGE_TYPE => kind = value.first().copied(),
                    OPTION_SERVER_ID => server = Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?),
                    _ => {}
                }
                options = rest;
            }
        }
    }
    Some(Told { client, kind: kind?, address, server })
}

/// The DHCP message in a frame to port 68, if there is one.
pub fn in_frame(frame: &[u8]) -> Option<&[u8]> {
    let ip = frame.get(14..).filter(|_| frame.get(12..14) == Some(&[0x08, 0x00]))?;
    let header = usize::from(ip.first()? & 0x0f) * 4;
    let udp = ip.get(header..).filter(|_| ip.get(9) == Some(&17))?;
    udp.get(8..).filter(|_| udp.get(2..4) == Some(&[0, 68]))
}

fn length(octets: usize) -> [u8; 2] {
    u16::try_from(octets).unwrap_or(u16::MAX).to_be_bytes()
}

/// RFC 1071.
fn checksum(header: &[u8]) -> [u8; 2] {
    let (pairs, _) = header.as_chunks::<2>();
    let mut sum: u32 = pairs.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(!sum & 0xffff).unwrap_or_default().to_be_bytes()
}
