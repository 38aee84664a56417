//! Octets <-> messages (RFC 8415 s8, s9, s21), through `dhcproto`'s bounds-checked [`Decoder`].
//!
//! Its owned messages stop silently at the first odd option and nest without bound, so they are not used. What cannot be read
//! with certainty is refused whole.

use crate::id::MacAddr;
use dhcproto::Decoder;
use std::net::Ipv6Addr;

/// UDP port of servers and relays (RFC 8415 s7.2).
pub const SERVER_PORT: u16 = 547;
/// UDP port of clients.
pub const CLIENT_PORT: u16 = 546;
/// `All_DHCP_Relay_Agents_and_Servers` (RFC 8415 s7.1).
pub const ALL_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
/// Relays around one message: `HOP_COUNT_LIMIT` (RFC 8415 s7.6).
pub const MAX_RELAYS: usize = 8;
/// A DUID has at most 128 octets besides its type (RFC 8415 s11.1).
const MAX_DUID_BYTES: usize = 130;
/// Options that are kept of one message; firmware sends about ten.
const MAX_OPTIONS: usize = 64;
/// `RELAY-REPL` (RFC 8415 s7.3).
const RELAY_REPL: u8 = 13;
/// `RELAY-FORW`.
const RELAY_FORW: u8 = 12;
/// Hardware type Ethernet in DUIDs and option 79 (IANA ARP parameters).
pub const HTYPE_ETHERNET: u16 = 1;

/// Option codes (RFC 8415 s21 unless said otherwise).
pub mod option {
    #![allow(missing_docs)] // the names are the RFCs' own
    pub const CLIENT_ID: u16 = 1;
    pub const SERVER_ID: u16 = 2;
    pub const IA_NA: u16 = 3;
    pub const IA_TA: u16 = 4;
    pub const IA_ADDR: u16 = 5;
    pub const RELAY_MESSAGE: u16 = 9;
    pub const STATUS_CODE: u16 = 13;
    pub const RAPID_COMMIT: u16 = 14;
    pub const USER_CLASS: u16 = 15;
    pub const VENDOR_CLASS: u16 = 16;
    pub const INTERFACE_ID: u16 = 18;
    pub const IA_PD: u16 = 25;
    /// RFC 5970.
    pub const BOOTFILE_URL: u16 = 59;
    /// RFC 5970.
    pub const CLIENT_ARCH: u16 = 61;
    /// RFC 6939.
    pub const CLIENT_LINK_LAYER: u16 = 79;
}

/// What a client sends (RFC 8415 s7.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names are the RFC's own
pub enum Kind {
    Solicit,
    Request,
    Confirm,
    Renew,
    Rebind,
    Release,
    Decline,
    InformationRequest,
}

impl Kind {
    fn of(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Solicit,
            3 => Self::Request,
            4 => Self::Confirm,
            5 => Self::Renew,
            6 => Self::Rebind,
            8 => Self::Release,
            9 => Self::Decline,
            11 => Self::InformationRequest,
            _ => return None,
        })
    }
}

/// Why octets are no message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Shorter than its fixed fields.
    #[error("shorter than a DHCPv6 message")]
    TooShort,
    /// Of a server, or of no known type.
    #[error("message type {0} is none that clients send")]
    Kind(u8),
    /// An option's length runs over the end.
    #[error("an option runs over the end of the message")]
    OptionOverrun,
    /// More than any client sends.
    #[error("too many options")]
    TooManyOptions,
    /// A relay's message without the one it relays.
    #[error("a relay's message without a message in it")]
    NothingRelayed,
    /// More relays than [`MAX_RELAYS`].
    #[error("too many relays")]
    TooManyRelays,
    /// A client identifier of a length that RFC 8415 s11.1 forbids.
    #[error("a client identifier of a length that is none")]
    Duid,
}

/// Options in their order; some appear several times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options(Vec<(u16, Vec<u8>)>);

impl Options {
    /// Reads a list of options.
    ///
    /// # Errors
    /// It is cut, or longer than any client's.
    pub fn read(octets: &[u8]) -> Result<Self, Malformed> {
        let mut options = Self::default();
        let mut decoder = Decoder::new(octets);
        while !decoder.buffer().is_empty() {
            let code = decoder.read_u16().map_err(|_| Malformed::OptionOverrun)?;
            let len = decoder.read_u16().map_err(|_| Malformed::OptionOverrun)?;
            let value = decoder.read_slice(usize::from(len)).map_err(|_| Malformed::OptionOverrun)?;
            if options.0.len() >= MAX_OPTIONS {
                return Err(Malformed::TooManyOptions);
            }
            options.push(code, value);
        }
        Ok(options)
    }

    /// The first option of this code.
    #[must_use]
    pub fn bytes(&self, code: u16) -> Option<&[u8]> {
        self.all(code).next()
    }

    /// All options of this code.
    pub fn all(&self, code: u16) -> impl Iterator<Item = &[u8]> {
        self.0.iter().filter(move |(c, _)| *c == code).map(|(_, v)| v.as_slice())
    }

    /// All options in order.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &[u8])> {
        self.0.iter().map(|(code, value)| (*code, value.as_slice()))
    }

    /// Appends an option; what is longer than an option can be is left out.
    pub fn push(&mut self, code: u16, value: &[u8]) {
        if u16::try_from(value.len()).is_ok() {
            self.0.push((code, value.to_vec()));
        }
    }

    /// As octets.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut octets = Vec::new();
        for (code, value) in &self.0 {
            octets.extend(code.to_be_bytes());
            octets.extend(u16::try_from(value.len()).unwrap_or(u16::MAX).to_be_bytes());
            octets.extend(value);
        }
        octets
    }
}

/// One relay that a message came through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relay {
    /// Relays before it.
    pub hops: u8,
    /// An address of the link that the message came from; unspecified when the relay only names its interface.
    pub link: Ipv6Addr,
    /// Who sent the message to the relay.
    pub peer: Ipv6Addr,
    /// Option 18, to be echoed.
    pub interface_id: Option<Vec<u8>>,
    /// Option 79: the client's link-layer address.
    pub link_layer: Option<MacAddr>,
}

/// A client's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The relays, that nearest to us first.
    pub relays: Vec<Relay>,
    /// What it is.
    pub kind: Kind,
    /// Transaction identifier.
    pub xid: [u8; 3],
    /// Its options.
    pub options: Options,
}

/// Reads a client's message out of its relays.
///
/// # Errors
/// See [`Malformed`].
pub fn decode(octets: &[u8]) -> Result<Received, Malformed> {
    let mut relays = Vec::new();
    let mut message = octets.to_vec();
    loop {
        let (number, rest) = message.split_first().ok_or(Malformed::TooShort)?;
        if *number != RELAY_FORW {
            let kind = Kind::of(*number).ok_or(Malformed::Kind(*number))?;
            let (xid, options) = rest.split_first_chunk::<3>().ok_or(Malformed::TooShort)?;
            let options = Options::read(options)?;
            if options.bytes(option::CLIENT_ID).is_some_and(|duid| !(3..=MAX_DUID_BYTES).contains(&duid.len())) {
                return Err(Malformed::Duid);
            }
            return Ok(Received { relays, kind, xid: *xid, options });
        }
        if relays.len() >= MAX_RELAYS {
            return Err(Malformed::TooManyRelays);
        }
        let mut decoder = Decoder::new(rest);
        let hops = decoder.read_u8().map_err(|_| Malformed::TooShort)?;
        let link = decoder.read::<16>().map_err(|_| Malformed::TooShort)?;
        let peer = decoder.read::<16>().map_err(|_| Malformed::TooShort)?;
        let options = Options::read(decoder.buffer())?;
        relays.push(Relay {
            hops,
            link: link.into(),
            peer: peer.into(),
            interface_id: options.bytes(option::INTERFACE_ID).map(<[u8]>::to_vec),
            link_layer: options.bytes(option::CLIENT_LINK_LAYER).and_then(ethernet),
        });
        message = options.bytes(option::RELAY_MESSAGE).ok_or(Malformed::NothingRelayed)?.to_vec();
    }
}

/// Hardware type and address, as in option 79 and at the end of DUID-LL.
pub(super) fn ethernet(octets: &[u8]) -> Option<MacAddr> {
    let (kind, address) = octets.split_first_chunk::<2>()?;
    let mac = MacAddr(address.try_into().ok()?);
    (u16::from_be_bytes(*kind) == HTYPE_ETHERNET && mac.is_unicast()).then_some(mac)
}

/// What a server says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// ADVERTISE instead of REPLY.
    pub advertise: bool,
    /// Its options.
    pub options: Options,
}

/// The answer to `received`, wrapped for the relays that it came through (RFC 8415 s19.3).
#[must_use]
pub fn encode(reply: &Reply, received: &Received) -> Vec<u8> {
    let mut octets = vec![if reply.advertise { 2 } else { 7 }];
    octets.extend(received.xid);
    octets.extend(reply.options.encode());
    for relay in received.relays.iter().rev() {
        let mut options = Options::default();
        if let Some(interface) = &relay.interface_id {
            options.push(option::INTERFACE_ID, interface);
        }
        options.push(option::RELAY_MESSAGE, &octets);
        octets = vec![RELAY_REPL, relay.hops];
        octets.extend(relay.link.octets());
        octets.extend(relay.peer.octets());
        octets.extend(options.encode());
    }
    octets
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wrap(inner: &[u8], hops: u8) -> Vec<u8> {
        let mut options = Options::default();
        options.push(option::CLIENT_LINK_LAYER, &[0, 1, 2, 0, 0, 0, 0, 7]);
        options.push(option::INTERFACE_ID, &[hops]);
        options.push(option::RELAY_MESSAGE, inner);
        [&[RELAY_FORW, hops][..], &[0x20; 16], &[0xfe; 16], &options.encode()].concat()
    }

    #[test]
    fn a_message_comes_out_of_its_relays_and_the_answer_goes_back_through_them() {
        let solicit = [1, 9, 8, 7, 0, 1, 0, 4, 0, 3, 0, 1];
        let received = decode(&wrap(&wrap(&solicit, 0), 1)).unwrap();
        assert_eq!((received.kind, received.xid, received.relays.len()), (Kind::Solicit, [9, 8, 7], 2));
        assert_eq!(received.relays[1].link_layer, Some(MacAddr([2, 0, 0, 0, 0, 7])));
        let mut options = Options::default();
        options.push(option::SERVER_ID, &[5]);
        let octets = encode(&Reply { advertise: true, options }, &received);
        let mut expected = vec![2, 9, 8, 7, 0, 2, 0, 1, 5];
        for hops in [0, 1] {
            let len = u8::try_from(expected.len()).unwrap();
            let head = [&[RELAY_REPL, hops][..], &[0x20; 16], &[0xfe; 16]].concat();
            expected = [&head[..], &[0, 18, 0, 1, hops], &[0, 9, 0, len], &expected].concat();
        }
        assert_eq!(octets, expected);
    }

    #[test]
    fn relays_nest_up_to_the_hop_count_limit_and_no_further() {
        let mut octets = vec![11, 0, 0, 1];
        for hops in 0..8 {
            octets = wrap(&octets, hops);
        }
        assert_eq!(decode(&octets).unwrap().relays.len(), MAX_RELAYS);
        assert_eq!(decode(&wrap(&octets, 8)), Err(Malformed::TooManyRelays));
    }

    #[test]
    fn what_can_not_be_read_with_certainty_is_refused_whole() {
        let check = |octets: &[u8], expected| assert_eq!(decode(octets), Err(expected), "{octets:?}");
        check(&[], Malformed::TooShort);
        check(&[1, 0, 0], Malformed::TooShort);
        check(&[2, 0, 0, 0], Malformed::Kind(2));
        check(&[1, 0, 0, 0, 0, 1], Malformed::OptionOverrun);
        check(&[1, 0, 0, 0, 0, 1, 0, 9, 1], Malformed::OptionOverrun);
        check(&[1, 0, 0, 0, 0, 1, 0, 0], Malformed::Duid);
        check(&[12, 0, 1], Malformed::TooShort);
        check(&[&[12; 34][..], &[0, 18, 0, 0]].concat(), Malformed::NothingRelayed);
        check(&[&[1, 0, 0, 0][..], &[0; 4 * 65]].concat(), Malformed::TooManyOptions);
    }

    proptest! {
        #[test]
        fn random_octets_are_survived(octets in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&octets);
        }

        #[test]
        fn options_read_back_as_they_were(list in proptest::collection::vec((any::<u16>(), proptest::collection::vec(any::<u8>(), 0..40)), 0..20)) {
            let mut options = Options::default();
            for (code, value) in &list {
                options.push(*code, value);
            }
            prop_assert_eq!(Options::read(&options.encode()), Ok(options));
        }
    }
}
