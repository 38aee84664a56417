//! Other DHCP servers on the boot network: how one is recognised, and what is remembered of it.
//!
//! Whatever says that it is a server may be forged, so this decides nothing: it is for people. What is remembered is bounded
//! and expires.

use super::msg::{Request, RequestKind};
use super::wire::{FLAG_BROADCAST, HTYPE_ETHERNET, OP_REPLY, OP_REQUEST, Packet, option};
use crate::id::MacAddr;
use crate::time::{Mono, Now, Wall};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

/// Servers that are remembered; a network with more has other worries. Those that came first stay.
pub const MAX_OTHERS: usize = 16;
/// How often we ask for others: a switch does not show us their unicast answers to machines.
pub const ASK_EVERY: Duration = Duration::from_secs(300);
/// A server that was not heard of for so long is gone: it missed three of our questions.
pub const FORGET_AFTER: Duration = Duration::from_secs(1000);

/// How a server was noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It offered an address.
    Offer,
    /// It offered boot information without an address (proxy DHCP).
    ProxyOffer,
    /// It gave an address.
    Ack,
    /// It refused one.
    Nak,
    /// A machine said that it chose this server.
    Chosen,
}

/// One sign of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// Option 54, else the address that the message came from.
    pub server: Ipv4Addr,
    /// Where its frame came from; a relay's or router's for a distant server. Unknown when only a machine spoke of it.
    pub mac: Option<MacAddr>,
    /// See [`Heard`].
    pub heard: Heard,
    /// The address that it offered or gave.
    pub address: Option<Ipv4Addr>,
}

/// One server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Other {
    /// The latest sign of it.
    pub latest: Sighting,
    /// When it was first heard of.
    pub first: Wall,
    /// When last.
    pub last: Wall,
    heard_at: Mono,
}

/// Reads a datagram to port 68 as a sign of another server. `own`: our own address and MAC on this network.
#[must_use]
pub fn sighting(packet: &Packet, source: Ipv4Addr, mac: MacAddr, own: (Ipv4Addr, MacAddr)) -> Option<Sighting> {
    let address = Some(packet.yiaddr).filter(|a| !a.is_unspecified());
    let heard = match (packet.op, packet.options.exact::<1>(option::MESSAGE_TYPE)?, address) {
        (OP_REPLY, [2], Some(_)) => Heard::Offer,
        (OP_REPLY, [2], None) => Heard::ProxyOffer,
        (OP_REPLY, [5], _) => Heard::Ack,
        (OP_REPLY, [6], _) => Heard::Nak,
        _ => return None,
    };
    let server = packet.options.address(option::SERVER_ID).unwrap_or(source);
    // Our own, sent back by the network or on its way through a relay.
    let ours = mac == own.1 || server == own.0 && !packet.giaddr.is_unspecified();
    (!ours && !server.is_unspecified()).then_some(Sighting { server, mac: Some(mac), heard, address })
}

/// A REQUEST names the server that it is for, and is broadcast: so a switch shows also servers that answer by unicast.
#[must_use]
pub fn chosen(request: &Request, own: Ipv4Addr) -> Option<Sighting> {
    let server = request.server_id.filter(|server| *server != own)?;
    let here = request.kind == RequestKind::Request && request.giaddr.is_unspecified() && request.ciaddr.is_unspecified();
    here.then_some(Sighting { server, mac: None, heard: Heard::Chosen, address: request.requested })
}

/// Our question. It is a plain DISCOVER that no REQUEST follows, so no server gives anything away: an offer is held for a minute
/// or so, and always the same one, as the MAC is always our NIC's. Not as a network boot client, so proxies stay silent as they
/// should.
#[must_use]
pub fn question(own: MacAddr, xid: u32) -> Packet {
    let mut packet = Packet { op: OP_REQUEST, htype: HTYPE_ETHERNET, hlen: 6, xid, flags: FLAG_BROADCAST, ..Packet::default() };
    for (to, from) in packet.chaddr.iter_mut().zip(own.0) {
        *to = from;
    }
    packet.options.push(option::MESSAGE_TYPE, &[1]);
    packet.options.push(option::PARAMETER_LIST, &[option::SUBNET_MASK, option::ROUTER]);
    packet
}

/// All that are remembered.
#[derive(Clone, Debug, Default)]
pub struct Others(BTreeMap<Ipv4Addr, Other>);

impl Others {
    /// Remembers; whether it is the first of this server. Always false when too many are remembered already.
    pub fn note(&mut self, sighting: Sighting, now: Now) -> bool {
        self.forget(now.mono);
        let full = self.0.len() >= MAX_OTHERS;
        match self.0.get_mut(&sighting.server) {
            Some(other) => {
                // A machine's word says less than the server's own.
                if sighting.heard != Heard::Chosen || other.latest.heard == Heard::Chosen {
                    other.latest = sighting;
                }
                (other.last, other.heard_at) = (now.wall, now.mono);
                false
            }
            None if full => false,
            None => {
                self.0.insert(sighting.server, Other { latest: sighting, first: now.wall, last: now.wall, heard_at: now.mono });
                true
            }
        }
    }

    /// Forgets those that are gone.
    pub fn forget(&mut self, now: Mono) {
        self.0.retain(|_, other| now.since(other.heard_at) < FORGET_AFTER);
    }

    /// All, by address.
    pub fn list(&self) -> impl Iterator<Item = &Other> {
        self.0.values()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{SERVER, at, mac, packet, request};
    use super::*;

    const RIVAL: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 66);
    const OWN: (Ipv4Addr, MacAddr) = (SERVER, MacAddr([2, 0, 0, 0, 0, 0xaa]));

    fn reply(kind: u8, server: Ipv4Addr, yiaddr: Ipv4Addr) -> Packet {
        Packet { op: OP_REPLY, yiaddr, ..packet(kind, mac(1), &[(option::SERVER_ID, &server.octets())]) }
    }

    #[test]
    fn offers_acks_and_naks_of_others_are_seen_and_nothing_else() {
        let given = Ipv4Addr::new(10, 77, 0, 9);
        let check = |packet: &Packet, expected| {
            let seen = sighting(packet, RIVAL, mac(6), OWN);
            assert_eq!(seen.map(|s| (s.server, s.heard, s.address)), expected, "{packet:?}");
        };
        check(&reply(2, RIVAL, given), Some((RIVAL, Heard::Offer, Some(given))));
        check(&reply(2, RIVAL, Ipv4Addr::UNSPECIFIED), Some((RIVAL, Heard::ProxyOffer, None)));
        check(&reply(5, RIVAL, given), Some((RIVAL, Heard::Ack, Some(given))));
        check(&reply(6, RIVAL, Ipv4Addr::UNSPECIFIED), Some((RIVAL, Heard::Nak, None)));
        check(&Packet { op: OP_REPLY, ..packet(2, mac(1), &[]) }, Some((RIVAL, Heard::ProxyOffer, None)));
        check(&packet(1, mac(1), &[]), None);
        check(&reply(3, RIVAL, given), None);
        // Somebody else who uses our own address as his is the worst of all.
        check(&reply(2, SERVER, given), Some((SERVER, Heard::Offer, Some(given))));
        check(&Packet { giaddr: RIVAL, ..reply(2, SERVER, given) }, None);
        assert_eq!(sighting(&reply(2, SERVER, given), SERVER, OWN.1, OWN), None);
    }

    #[test]
    fn a_machine_that_chose_another_server_tells_of_it_on_its_own_network_only() {
        let own = Ipv4Addr::new(10, 77, 0, 200).octets();
        let of = |server: Ipv4Addr| request(3, mac(1), &[(option::SERVER_ID, &server.octets()), (option::REQUESTED_ADDRESS, &own)]);
        let seen = chosen(&of(RIVAL), SERVER);
        assert_eq!(seen.map(|s| (s.server, s.heard, s.mac)), Some((RIVAL, Heard::Chosen, None)));
        assert_eq!(chosen(&of(SERVER), SERVER), None);
        assert_eq!(chosen(&Request { giaddr: Ipv4Addr::new(10, 78, 0, 1), ..of(RIVAL) }, SERVER), None);
        assert_eq!(chosen(&Request { kind: RequestKind::Release, ..of(RIVAL) }, SERVER), None);
    }

    #[test]
    fn what_is_remembered_is_bounded_expires_and_is_news_once() {
        let of = |last: u8, heard| Sighting { server: Ipv4Addr::new(192, 0, 2, last), mac: None, heard, address: None };
        let mut others = Others::default();
        assert!(others.note(of(1, Heard::Chosen), at(0)));
        assert!(!others.note(of(1, Heard::Offer), at(10)));
        assert!(!others.note(of(1, Heard::Chosen), at(20)));
        let first = others.list().next().copied().unwrap();
        assert_eq!((first.latest.heard, first.first, first.last), (Heard::Offer, at(0).wall, at(20).wall));
        let news = (2..200).filter(|last| others.note(of(*last, Heard::Offer), at(30))).count();
        assert_eq!((news, others.list().count()), (MAX_OTHERS - 1, MAX_OTHERS));
        assert!(!others.note(of(1, Heard::Nak), at(40)), "the first ones stay");
        others.forget(at(30 + FORGET_AFTER.as_secs()).mono);
        assert_eq!(others.list().map(|o| o.latest.heard).collect::<Vec<_>>(), [Heard::Nak]);
        assert!(others.note(of(2, Heard::Offer), at(2000)));
    }

    #[test]
    fn our_question_is_a_discover_that_asks_for_no_boot_file() {
        let read = super::super::msg::request(&question(OWN.1, 5)).unwrap();
        assert_eq!((read.kind, read.mac, read.broadcast), (RequestKind::Discover, OWN.1, true));
        assert!(!read.client.boots());
    }
}
