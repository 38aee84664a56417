//! [`Packet`] -> [`Request`], [`Reply`] -> [`Packet`].

use super::pxe::{self, BootFile, Client};
use super::wire::{DEFAULT_MESSAGE_BYTES, FLAG_BROADCAST, HTYPE_ETHERNET, MIN_MESSAGE_BYTES, OP_REPLY, OP_REQUEST, Packet, option};
use crate::id::MacAddr;
use std::net::Ipv4Addr;

/// Nothing larger is sent: one Ethernet frame less IP and UDP headers.
const MAX_MESSAGE_BYTES: usize = 1500 - 28;

/// iPXE setting 175.176: do not wait seconds for a proxy's offer, there is none.
const IPXE_NO_PROXY_DHCP: [u8; 3] = [176, 1, 1];

/// What one option holds.
const MAX_RELAY_AGENT_BYTES: usize = 255;
/// Suboption of option 82 (RFC 3527).
const SUBOPTION_LINK_SELECTION: u8 = 5;
/// Suboption of option 82 (RFC 5107).
const SUBOPTION_SERVER_OVERRIDE: u8 = 11;

/// What a client's message is (RFC 2132 s9.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// 1.
    Discover,
    /// 3.
    Request,
    /// 4.
    Decline,
    /// 7.
    Release,
    /// 8.
    Inform,
    /// No option 53: BOOTP (RFC 951, 1534).
    Bootp,
}

/// What a server's message is (RFC 2132 s9.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyKind {
    /// 2.
    Offer,
    /// 5.
    Ack,
    /// 6.
    Nak,
}

/// A client's message, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its type.
    pub kind: RequestKind,
    /// Transaction id.
    pub xid: u32,
    /// `flags` as sent, echoed.
    pub flags: u16,
    /// The broadcast bit.
    pub broadcast: bool,
    /// Whether it has options at all ([`Packet::cookie`]).
    pub cookie: bool,
    /// The client's configured address.
    pub ciaddr: Ipv4Addr,
    /// The relay.
    pub giaddr: Ipv4Addr,
    /// The client: leases go by this and nothing else, so that firmware, iPXE and system of one machine get one address.
    pub mac: MacAddr,
    /// Option 50.
    pub requested: Option<Ipv4Addr>,
    /// Option 54.
    pub server_id: Option<Ipv4Addr>,
    /// Option 55; empty when it is absent.
    pub wanted: Vec<u8>,
    /// The longest reply it takes, in octets of DHCP message.
    pub max_reply_bytes: usize,
    /// Options echoed as they came: 61 (RFC 6842), 97 (RFC 4578), 82 (RFC 3046).
    pub echoed: Vec<(u8, Vec<u8>)>,
    /// Suboption 5 of option 82 (RFC 3527): the link that the client is on. Only a relay's word, so never without `giaddr`.
    pub link_selection: Option<Ipv4Addr>,
    /// Suboption 11 of option 82 (RFC 5107): the address that the client shall know as its server's. As above.
    pub server_override: Option<Ipv4Addr>,
    /// Which network boot client asks.
    pub client: Client,
    /// The boot item that it asks for on port 4011.
    pub boot_item: Option<[u8; 4]>,
}

impl Request {
    /// An option that is echoed.
    #[must_use]
    pub fn echoed(&self, code: u8) -> Option<&[u8]> {
        self.echoed.iter().find(|(c, _)| *c == code).map(|(_, value)| value.as_slice())
    }
}

/// Why a well-formed packet is not a request that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRequest {
    /// `op` is not BOOTREQUEST.
    NotFromClient,
    /// Not an Ethernet address of one machine.
    HardwareAddress,
    /// A message type that clients do not send to servers.
    MessageType(u8),
    /// Option 82 in several parts: no relay agent writes more than one option holds (RFC 3046 s2.0), and all of it is echoed.
    RelayAgent,
}

/// Reads a packet as a client's request.
///
/// # Errors
/// [`NotRequest`]: it is answered by silence.
pub fn request(packet: &Packet) -> Result<Request, NotRequest> {
    if packet.op != OP_REQUEST {
        return Err(NotRequest::NotFromClient);
    }
    let [a, b, c, d, e, f, ..] = packet.chaddr;
    let mac = MacAddr([a, b, c, d, e, f]);
    if packet.htype != HTYPE_ETHERNET || packet.hlen != 6 || !mac.is_unicast() {
        return Err(NotRequest::HardwareAddress);
    }
    let options = &packet.options;
    let kind = match options.bytes(option::MESSAGE_TYPE) {
        None => RequestKind::Bootp,
        Some([1]) => RequestKind::Discover,
        Some([3]) => RequestKind::Request,
        Some([4]) => RequestKind::Decline,
        Some([7]) => RequestKind::Release,
        Some([8]) => RequestKind::Inform,
        Some(other) => return Err(NotRequest::MessageType(other.first().copied().unwrap_or_default())),
    };
    if options.bytes(option::RELAY_AGENT).is_some_and(|agent| agent.len() > MAX_RELAY_AGENT_BYTES) {
        return Err(NotRequest::RelayAgent);
    }
    let relay = options.bytes(option::RELAY_AGENT).filter(|_| !packet.giaddr.is_unspecified()).unwrap_or_default();
    let max_message = options.exact::<2>(option::MAX_MESSAGE_SIZE).map_or(0, u16::from_be_bytes);
    let echoed = [option::CLIENT_ID, option::CLIENT_MACHINE_ID, option::RELAY_AGENT];
    Ok(Request {
        kind,
        xid: packet.xid,
        flags: packet.flags,
        broadcast: packet.flags & FLAG_BROADCAST != 0,
        cookie: packet.cookie,
        ciaddr: packet.ciaddr,
        giaddr: packet.giaddr,
        mac,
        requested: options.address(option::REQUESTED_ADDRESS),
        server_id: options.address(option::SERVER_ID),
        wanted: options.bytes(option::PARAMETER_LIST).unwrap_or_default().to_vec(),
        // Option 57 counts the IP and UDP headers; values under its own minimum are nonsense and ignored.
        max_reply_bytes: match kind {
            RequestKind::Bootp => MIN_MESSAGE_BYTES,
            _ => usize::from(max_message).saturating_sub(28).clamp(DEFAULT_MESSAGE_BYTES, MAX_MESSAGE_BYTES),
        },
        echoed: echoed.into_iter().filter_map(|code| Some((code, options.bytes(code)?.to_vec()))).collect(),
        link_selection: relayed_address(relay, SUBOPTION_LINK_SELECTION),
        server_override: relayed_address(relay, SUBOPTION_SERVER_OVERRIDE),
        client: pxe::identify(options, Some(mac)),
        boot_item: pxe::boot_item(options),
    })
}

/// A suboption of option 82 that is one address; `0.0.0.0` says nothing.
fn relayed_address(mut suboptions: &[u8], wanted: u8) -> Option<Ipv4Addr> {
    while let [code, len, tail @ ..] = suboptions {
        let (value, rest) = tail.split_at_checked(usize::from(*len))?;
        if *code == wanted {
            return <[u8; 4]>::try_from(value).ok().map(Ipv4Addr::from).filter(|a| !a.is_unspecified());
        }
        suboptions = rest;
    }
    None
}

/// What is told to a client besides its address; the same in OFFER and ACK (systemd 27471).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Option 54: our address, or what the relay said (RFC 5107).
    pub server_id: Ipv4Addr,
    /// Our address on the boot network: `siaddr`, and where boot files are. Clients of all subnets have a route to it.
    pub server: Ipv4Addr,
    /// Option 1.
    pub mask: Ipv4Addr,
    /// Option 28.
    pub broadcast: Ipv4Addr,
    /// Option 3.
    pub router: Option<Ipv4Addr>,
    /// Option 6.
    pub dns: Vec<Ipv4Addr>,
    /// Option 15.
    pub domain: Option<String>,
    /// Option 12: the Worker's name.
    pub hostname: Option<String>,
    /// What it boots.
    pub boot: BootFile,
}

/// An OFFER or ACK. `lease_secs` is absent in the answer to an INFORM, which must have no lease (RFC 2131 s4.3.5).
#[must_use]
pub fn granted(request: &Request, kind: ReplyKind, yiaddr: Ipv4Addr, lease_secs: Option<u32>, terms: &Terms) -> Packet {
    let mut packet = head(request, kind, terms.server_id);
    packet.yiaddr = yiaddr;
    if kind == ReplyKind::Ack {
        packet.ciaddr = request.ciaddr;
    }
    // In order of need: what does not fit is left out from the end.
    if let Some(secs) = lease_secs {
        packet.options.push(option::LEASE_TIME, &secs.to_be_bytes());
    }
    packet.options.push(option::SUBNET_MASK, &terms.mask.octets());
    pxe::put(&mut packet, terms.server, &terms.boot);
    if matches!(request.client, Client::Ipxe | Client::WeakIpxe(_)) {
        packet.options.push(option::IPXE_ENCAPSULATED, &IPXE_NO_PROXY_DHCP);
    }
    echo(&mut packet, request);
    if let Some(name) = &terms.hostname {
        packet.options.push(option::HOST_NAME, name.as_bytes());
    }
    network_options(&mut packet, request, terms);
    if let Some(secs) = lease_secs {
        // RFC 2131 s4.4.5: T1 is half, T2 seven eighths.
        packet.options.push(option::RENEWAL_TIME, &(secs / 2).to_be_bytes());
        packet.options.push(option::REBINDING_TIME, &(secs - secs / 8).to_be_bytes());
    }
    packet
}

/// A BOOTREPLY (RFC 951, 1542). What does not fit into the 64 octets of `vend` is left out from the end. Who sends no magic cookie
/// gets none, and so no options, as from ISC dhcpd, bootpd and HPE's switches where they are not told otherwise: what such a client
/// reads in `vend` is its vendor's own format.
#[must_use]
pub fn bootp_reply(request: &Request, yiaddr: Ipv4Addr, terms: &Terms) -> Packet {
    let mut packet = bare(request);
    (packet.ciaddr, packet.yiaddr) = (request.ciaddr, yiaddr);
    if let BootFile::Tftp(name) = &terms.boot {
        (packet.siaddr, packet.sname, packet.file) = (terms.server, terms.server.to_string().into_bytes(), name.as_bytes().to_vec());
    }
    if !request.cookie {
        return packet;
    }
    packet.options.push(option::SUBNET_MASK, &terms.mask.octets());
    network_options(&mut packet, request, terms);
    if let Some(name) = &terms.hostname {
        packet.options.push(option::HOST_NAME, name.as_bytes());
    }
    echo(&mut packet, request);
    packet
}

/// What a client that names its wishes gets only when it names these.
fn network_options(packet: &mut Packet, request: &Request, terms: &Terms) {
    let asked = |code: u8| request.wanted.is_empty() || request.wanted.contains(&code);
    if let Some(router) = terms.router.filter(|_| asked(option::ROUTER)) {
        packet.options.push(option::ROUTER, &router.octets());
    }
    if asked(option::DNS) {
        for server in &terms.dns {
            packet.options.push(option::DNS, &server.octets());
        }
    }
    if let Some(domain) = terms.domain.as_ref().filter(|_| asked(option::DOMAIN_NAME)) {
        packet.options.push(option::DOMAIN_NAME, domain.as_bytes());
    }
    if asked(option::BROADCAST_ADDRESS) {
        packet.options.push(option::BROADCAST_ADDRESS, &terms.broadcast.octets());
    }
}

/// A NAK with its reason in words.
#[must_use]
pub fn refused(request: &Request, server_id: Ipv4Addr, why: &str) -> Packet {
    let mut packet = head(request, ReplyKind::Nak, server_id);
    if !request.giaddr.is_unspecified() {
        // RFC 2131 s4.1: the relay must broadcast it, the client's address may be wrong.
        packet.flags |= FLAG_BROADCAST;
    }
    packet.options.push(option::MESSAGE, why.as_bytes());
    echo(&mut packet, request);
    packet
}

pub(super) fn head(request: &Request, kind: ReplyKind, server_id: Ipv4Addr) -> Packet {
    let mut packet = bare(request);
    let number = match kind {
        ReplyKind::Offer => 2,
        ReplyKind::Ack => 5,
        ReplyKind::Nak => 6,
    };
    packet.options.push(option::MESSAGE_TYPE, &[number]);
    packet.options.push(option::SERVER_ID, &server_id.octets());
    packet
}

fn bare(request: &Request) -> Packet {
    let (xid, flags, giaddr, cookie) = (request.xid, request.flags, request.giaddr, request.cookie);
    let mut packet = Packet { op: OP_REPLY, xid, flags, giaddr, cookie, ..Packet::default() };
    for (to, from) in packet.chaddr.iter_mut().zip(request.mac.0) {
        *to = from;
    }
    packet
}

pub(super) fn echo(packet: &mut Packet, request: &Request) {
    for (code, value) in &request.echoed {
        packet.options.push(*code, value);
    }
}
