//! Where a reply goes (RFC 2131 s4.1).

use super::msg::{ReplyKind, Request};
use crate::id::MacAddr;
use std::net::Ipv4Addr;

/// The server's port, also a relay's.
pub const SERVER_PORT: u16 = 67;
/// The client's port.
pub const CLIENT_PORT: u16 = 68;

/// Where a reply goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To port 67 of the relay.
    Relay(Ipv4Addr),
    /// To port 68 of a client that has this address.
    Client(Ipv4Addr),
    /// To port 68 of a client that does not answer ARP yet: the frame is addressed by hand.
    Link {
        /// Its hardware address.
        mac: MacAddr,
        /// The address it is being given.
        address: Ipv4Addr,
    },
    /// To 255.255.255.255 port 68.
    Broadcast,
}

/// RFC 2131 s4.1, the paragraph "A DHCP server … uses".
#[must_use]
pub fn destination(request: &Request, kind: ReplyKind, yiaddr: Ipv4Addr) -> Destination {
    if !request.giaddr.is_unspecified() {
        return Destination::Relay(request.giaddr);
    }
    match kind {
        ReplyKind::Nak => Destination::Broadcast,
        // A client that has an address and still asks for one does not get the offer at that address: ciaddr is for REQUEST.
        ReplyKind::Ack if !request.ciaddr.is_unspecified() => Destination::Client(request.ciaddr),
        ReplyKind::Offer | ReplyKind::Ack if request.broadcast => Destination::Broadcast,
        ReplyKind::Offer | ReplyKind::Ack => Destination::Link { mac: request.mac, address: yiaddr },
    }
}
