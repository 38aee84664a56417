//! Octets <-> [`Packet`] (RFC 2131 s2, RFC 3396 long options, option 52 overload).
//!
//! The guard around `dhcproto`: its `chaddr()` panics on hlen > 16 and its owned decoder stops silently at the first odd
//! option, so only its bounds-checked [`Decoder`] and fixed-field view are used, after the checks here. What cannot be
//! read with certainty is refused whole: half a REQUEST would mean something else than the client said.

use dhcproto::Decoder;
use dhcproto::v4::borrowed::Message;
use std::net::Ipv4Addr;

/// Relays and old clients lose shorter BOOTP messages (RFC 1542 s2.1; opnsense 7744).
pub const MIN_MESSAGE_BYTES: usize = 300;
/// What every client takes when it names no limit: 576 octets (RFC 2132 s9.10) less IP and UDP headers.
pub const DEFAULT_MESSAGE_BYTES: usize = 576 - 28;
/// Fixed fields and magic cookie.
const HEAD_BYTES: usize = 240;
const MAGIC: &[u8] = &[99, 130, 83, 99];

/// BOOTREQUEST, `op` of a client's message.
pub const OP_REQUEST: u8 = 1;
/// BOOTREPLY, `op` of a server's message.
pub const OP_REPLY: u8 = 2;
/// Ethernet, `htype`.
pub const HTYPE_ETHERNET: u8 = 1;
/// The broadcast bit of `flags` (RFC 2131 figure 2).
pub const FLAG_BROADCAST: u16 = 0x8000;

/// Option codes (RFC 2132 unless said otherwise).
pub mod option {
    #![allow(missing_docs)] // the names are the RFCs' own
    pub const PAD: u8 = 0;
    pub const SUBNET_MASK: u8 = 1;
    pub const ROUTER: u8 = 3;
    pub const DNS: u8 = 6;
    pub const HOST_NAME: u8 = 12;
    pub const DOMAIN_NAME: u8 = 15;
    pub const BROADCAST_ADDRESS: u8 = 28;
    pub const VENDOR_SPECIFIC: u8 = 43;
    pub const REQUESTED_ADDRESS: u8 = 50;
    pub const LEASE_TIME: u8 = 51;
    pub const OVERLOAD: u8 = 52;
    pub const MESSAGE_TYPE: u8 = 53;
    pub const SERVER_ID: u8 = 54;
    pub const PARAMETER_LIST: u8 = 55;
    pub const MESSAGE: u8 = 56;
    pub const MAX_MESSAGE_SIZE: u8 = 57;
    pub const RENEWAL_TIME: u8 = 58;
    pub const REBINDING_TIME: u8 = 59;
    pub const VENDOR_CLASS: u8 = 60;
    pub const CLIENT_ID: u8 = 61;
    pub const TFTP_SERVER_NAME: u8 = 66;
    pub const BOOT_FILE_NAME: u8 = 67;
    /// RFC 3004.
    pub const USER_CLASS: u8 = 77;
    /// RFC 3046.
    pub const RELAY_AGENT: u8 = 82;
    /// RFC 4578.
    pub const CLIENT_ARCH: u8 = 93;
    /// RFC 4578.
    pub const CLIENT_NDI: u8 = 94;
    /// RFC 4578.
    pub const CLIENT_MACHINE_ID: u8 = 97;
    /// iPXE's encapsulated features (ipxe.org/howto/dhcpd).
    pub const IPXE_ENCAPSULATED: u8 = 175;
    pub const END: u8 = 255;
}

/// Why octets are not a DHCP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Shorter than the fixed fields.
    #[error("shorter than a DHCP message")]
    TooShort,
    /// What should be the magic cookie is neither that nor all zeros: some vendor's own words, or not BOOTP at all.
    #[error("no DHCP magic cookie, and not BOOTP without one")]
    NoCookie,
    /// `hlen` over the 16 octets of `chaddr`.
    #[error("hardware address longer than its field")]
    HardwareAddress,
    /// An option's length runs over its field: the message was cut.
    #[error("option {0} runs over the end of the message")]
    OptionOverrun(u8),
}

/// Options in order of first appearance; the parts of a split option are joined (RFC 3396).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options(Vec<(u8, Vec<u8>)>);

impl Options {
    /// The octets of one option.
    #[must_use]
    pub fn bytes(&self, code: u8) -> Option<&[u8]> {
        self.0.iter().find(|(c, _)| *c == code).map(|(_, v)| v.as_slice())
    }

    /// An option that must be exactly `N` octets; of another length it is as good as absent.
    #[must_use]
    pub fn exact<const N: usize>(&self, code: u8) -> Option<[u8; N]> {
        self.bytes(code)?.try_into().ok()
    }

    /// An option that is one address; `0.0.0.0` says nothing and counts as absent.
    #[must_use]
    pub fn address(&self, code: u8) -> Option<Ipv4Addr> {
        self.exact::<4>(code).map(Ipv4Addr::from).filter(|a| !a.is_unspecified())
    }

    /// All addresses of a list option.
    #[must_use]
    pub fn addresses(&self, code: u8) -> Vec<Ipv4Addr> {
        let (quads, _) = self.bytes(code).unwrap_or_default().as_chunks::<4>();
        quads.iter().map(|q| Ipv4Addr::from(*q)).collect()
    }

    /// Appends an option, or more octets to one that is there.
    pub fn push(&mut self, code: u8, value: &[u8]) {
        match self.0.iter_mut().find(|(c, _)| *c == code) {
            Some((_, v)) => v.extend_from_slice(value),
            None => self.0.push((code, value.to_vec())),
        }
    }

    /// All options in order.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &[u8])> {
        self.0.iter().map(|(c, v)| (*c, v.as_slice()))
    }

    fn read(&mut self, area: &[u8]) -> Result<(), Malformed> {
        let mut decoder = Decoder::new(area);
        // An absent END is survived: some clients leave it out.
        while let Ok(code) = decoder.read_u8() {
            match code {
                option::PAD => {}
                option::END => break,
                code => {
                    let overrun = |_| Malformed::OptionOverrun(code);
                    let len = decoder.read_u8().map_err(overrun)?;
                    let value = decoder.read_slice(usize::from(len)).map_err(overrun)?;
                    self.push(code, value);
                }
            }
        }
        Ok(())
    }
}

/// A DHCP message with its options joined and its overloaded fields resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// [`OP_REQUEST`] or [`OP_REPLY`].
    pub op: u8,
    /// Hardware type; [`HTYPE_ETHERNET`].
    pub htype: u8,
    /// Hardware address length; at most 16.
    pub hlen: u8,
    /// Relays passed.
    pub hops: u8,
    /// Transaction id.
    pub xid: u32,
    /// Seconds since the client began.
    pub secs: u16,
    /// See [`FLAG_BROADCAST`].
    pub flags: u16,
    /// The client's address, when it has one and answers ARP for it.
    pub ciaddr: Ipv4Addr,
    /// "Your" address.
    pub yiaddr: Ipv4Addr,
    /// Next server: where the boot file is.
    pub siaddr: Ipv4Addr,
    /// The relay's address.
    pub giaddr: Ipv4Addr,
    /// Hardware address.
    pub chaddr: [u8; 16],
    /// Whether the magic cookie is there. Without it the message is of RFC 951, and has no options.
    pub cookie: bool,
    /// Server host name, up to its first NUL; empty when the field held options.
    pub sname: Vec<u8>,
    /// Boot file name, up to its first NUL; empty when the field held options.
    pub file: Vec<u8>,
    /// Options.
    pub options: Options,
}

impl Default for Packet {
    fn default() -> Self {
        const NONE: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
        Self {
            op: OP_REQUEST,
            htype: HTYPE_ETHERNET,
            hlen: 6,
            hops: 0,
            xid: 0,
            secs: 0,
            flags: 0,
            ciaddr: NONE,
            yiaddr: NONE,
            siaddr: NONE,
            giaddr: NONE,
            chaddr: [0; 16],
            cookie: true,
            sname: Vec::new(),
            file: Vec::new(),
            options: Options::default(),
        }
    }
}

/// Reads one datagram.
///
/// # Errors
/// [`Malformed`]: nothing of it is to be believed.
pub fn decode(octets: &[u8]) -> Result<Packet, Malformed> {
    let message = Message::new(octets).map_err(|_| Malformed::TooShort)?;
    if message.hlen() > 16 {
        return Err(Malformed::HardwareAddress);
    }
    let (Some(area), Some(chaddr), Some(sname), Some(file)) =
        (octets.get(HEAD_BYTES..), octets.get(28..44), octets.get(44..108), octets.get(108..236))
    else {
        return Err(Malformed::TooShort);
    };
    let cookie = match octets.get(236..HEAD_BYTES) {
        Some(MAGIC) => true,
        Some([0, 0, 0, 0]) => false,
        _ => return Err(Malformed::NoCookie),
    };
    let mut options = Options::default();
    if cookie {
        options.read(area)?;
    }
    let overload = options.exact::<1>(option::OVERLOAD).map_or(0, |[o]| o);
    // RFC 2131 s4.1: options field first, then `file`, then `sname`.
    let file = match overload {
        1 | 3 => options.read(file).map(|()| Vec::new())?,
        _ => until_nul(file),
    };
    let sname = match overload {
        2 | 3 => options.read(sname).map(|()| Vec::new())?,
        _ => until_nul(sname),
    };
    let mut hardware = [0; 16];
    hardware.copy_from_slice(chaddr);
    Ok(Packet {
        op: octets.first().copied().unwrap_or_default(),
        htype: octets.get(1).copied().unwrap_or_default(),
        hlen: message.hlen(),
        hops: message.hops(),
        xid: message.xid(),
        secs: message.secs(),
        flags: message.flags().into(),
        ciaddr: message.ciaddr(),
        yiaddr: message.yiaddr(),
        siaddr: message.siaddr(),
        giaddr: message.giaddr(),
        chaddr: hardware,
        cookie,
        sname,
        file,
        options,
    })
}

fn until_nul(field: &[u8]) -> Vec<u8> {
    field.split(|b| *b == 0).next().unwrap_or_default().to_vec()
}

/// Writes a message of at most `limit` octets (but never less than [`MIN_MESSAGE_BYTES`]), padded to that minimum.
/// Options that do not fit are left out from the end of the list; option 82 always fits and is always last (RFC 3046 s2.2).
/// Without the cookie there are none, and `vend` is zeros. `sname` and `file` are cut so that they end in a NUL, and option 67 is followed by one: see [`write_option`].
#[must_use]
pub fn encode(packet: &Packet, limit: usize) -> Vec<u8> {
    let limit = limit.max(MIN_MESSAGE_BYTES);
    let mut out = Vec::with_capacity(MIN_MESSAGE_BYTES);
    out.extend_from_slice(&[packet.op, packet.htype, packet.hlen.min(16), packet.hops]);
    out.extend_from_slice(&packet.xid.to_be_bytes());
    out.extend_from_slice(&packet.secs.to_be_bytes());
    out.extend_from_slice(&packet.flags.to_be_bytes());
    for address in [packet.ciaddr, packet.yiaddr, packet.siaddr, packet.giaddr] {
        out.extend_from_slice(&address.octets());
    }
    out.extend_from_slice(&packet.chaddr);
    for (text, width) in [(&packet.sname, 64), (&packet.file, 128)] {
        let end = out.len() + width;
        out.extend(text.iter().take(width - 1));
        out.resize(end, 0);
    }
    if !packet.cookie {
        out.resize(MIN_MESSAGE_BYTES, 0);
        return out;
    }
    out.extend_from_slice(MAGIC);
    let relay = packet.options.bytes(option::RELAY_AGENT);
    let reserved = 1 + relay.map_or(0, encoded_bytes);
    for (code, value) in packet.options.iter() {
        if code != option::RELAY_AGENT && out.len() + encoded_bytes(value) + usize::from(code == option::BOOT_FILE_NAME) + reserved <= limit
        {
            write_option(&mut out, code, value);
        }
    }
    if let Some(value) = relay {
        write_option(&mut out, option::RELAY_AGENT, value);
    }
    out.push(option::END);
    out.resize(out.len().max(MIN_MESSAGE_BYTES), option::PAD);
    out
}

/// Octets that an option takes on the wire, split in parts of 255 where needed.
fn encoded_bytes(value: &[u8]) -> usize {
    value.len() + 2 * value.len().div_ceil(255).max(1)
}

/// Old firmware reads the name in option 67 on to the next NUL, over the option's end: it asks for `snponly.efi\xff`
/// (netboot.xyz 1198). EDK2 writes a NUL behind the option, over the code of the next one (`PxeBcParseDhcp4Packet`). A NUL in
/// the option would be against RFC 2132 s2, and part of the name for others; PAD is an option of its own and the same octet.
fn write_option(out: &mut Vec<u8>, code: u8, value: &[u8]) {
    if value.is_empty() {
        out.extend_from_slice(&[code, 0]);
    }
    for part in value.chunks(255) {
        out.push(code);
        out.push(u8::try_from(part.len()).unwrap_or(u8::MAX));
        out.extend_from_slice(part);
    }
    if code == option::BOOT_FILE_NAME {
        out.push(option::PAD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with_options(area: &[u8]) -> Vec<u8> {
        let mut octets = encode(&Packet::default(), 0);
        octets.truncate(HEAD_BYTES);
        octets.extend_from_slice(area);
        octets
    }

    #[test]
    fn hardware_address_longer_than_its_field_is_refused() {
        let mut octets = encode(&Packet::default(), 0);
        octets[2] = 17;
        assert_eq!(decode(&octets), Err(Malformed::HardwareAddress));
    }

    #[test]
    fn message_cut_inside_an_option_is_refused_whole() {
        assert_eq!(decode(&with_options(&[53, 1, 3, 54, 4, 10, 0])), Err(Malformed::OptionOverrun(54)));
        assert_eq!(decode(&with_options(&[53])), Err(Malformed::OptionOverrun(53)));
    }

    #[test]
    fn missing_end_option_is_survived() {
        assert_eq!(decode(&with_options(&[53, 1, 3])).unwrap().options.bytes(53), Some(&[3][..]));
    }

    #[test]
    fn rfc3396_parts_of_a_split_option_are_joined_even_when_apart() {
        let packet = decode(&with_options(&[77, 2, b'i', b'P', 53, 1, 1, 77, 2, b'X', b'E', 255])).unwrap();
        assert_eq!(packet.options.bytes(77), Some(&b"iPXE"[..]));
    }

    #[test]
    fn option_52_moves_options_into_file_and_sname() {
        let mut octets = with_options(&[52, 1, 3, 53, 1, 1, 255]);
        octets[108..112].copy_from_slice(&[12, 1, b'a', 255]);
        octets[44..48].copy_from_slice(&[12, 1, b'b', 255]);
        let packet = decode(&octets).unwrap();
        assert_eq!(packet.options.bytes(12), Some(&b"ab"[..]));
        assert!(packet.file.is_empty() && packet.sname.is_empty());
    }

    #[test]
    fn long_option_is_split_and_option_82_stays_last_within_the_limit() {
        let mut packet = Packet::default();
        packet.options.push(option::RELAY_AGENT, &[1, 2, 9, 9]);
        packet.options.push(43, &[7; 290]);
        packet.options.push(44, &[8; 200]);
        let octets = encode(&packet, DEFAULT_MESSAGE_BYTES);
        assert!(octets.len() <= DEFAULT_MESSAGE_BYTES);
        let back = decode(&octets).unwrap();
        assert_eq!(back.options.bytes(43), Some(&[7; 290][..]));
        assert_eq!(back.options.bytes(44), None);
        assert_eq!(back.options.iter().last(), Some((82, &[1, 2, 9, 9][..])));
    }

    #[test]
    fn rfc_951_zeros_instead_of_the_cookie_are_a_message_without_options_and_other_octets_are_none() {
        let mut octets = with_options(&[53, 1, 3, 52, 1, 9]);
        octets[236..240].fill(0);
        octets[108] = b'f';
        let packet = decode(&octets).unwrap();
        assert_eq!((packet.cookie, packet.options.iter().count(), packet.file.as_slice()), (false, 0, &b"f"[..]));
        let mut full = packet.clone();
        full.options.push(1, &[255, 255, 255, 0]);
        let written = encode(&full, DEFAULT_MESSAGE_BYTES);
        assert!(written.len() == MIN_MESSAGE_BYTES && written[236..].iter().all(|octet| *octet == 0));
        assert_eq!(decode(&written), Ok(packet));
        octets[236..240].copy_from_slice(b"CMU\0");
        assert_eq!(decode(&octets), Err(Malformed::NoCookie));
    }

    #[test]
    fn names_always_end_in_a_nul() {
        let packet = Packet { file: vec![b'f'; 200], sname: vec![b's'; 200], ..Packet::default() };
        let octets = encode(&packet, 0);
        assert_eq!((octets[44 + 63], octets[108 + 127], octets.len()), (0, 0, MIN_MESSAGE_BYTES));
    }

    proptest! {
        #[test]
        fn no_octets_make_the_decoder_panic(octets in prop::collection::vec(any::<u8>(), 0..1500)) {
            let _ = decode(&octets);
        }

        #[test]
        fn no_option_area_makes_the_decoder_panic(area in prop::collection::vec(any::<u8>(), 0..600), over in 0u8..5) {
            let mut whole = vec![52, 1, over];
            whole.extend_from_slice(&area);
            let _ = decode(&with_options(&whole));
        }

        #[test]
        fn what_is_written_is_read_back(xid: u32, flags: u16, file in "[a-z/:.]{0,127}", values in prop::collection::vec((1u8..82, prop::collection::vec(any::<u8>(), 0..40)), 0..8)) {
            let mut packet = Packet { xid, flags, file: file.into_bytes(), ..Packet::default() };
            for (code, value) in &values {
                if *code != option::OVERLOAD { packet.options.push(*code, value); }
            }
            prop_assert_eq!(decode(&encode(&packet, 1472)), Ok(packet));
        }
    }
}
