//! Random clients in two subnets, with relays, other servers, lost offers and restarts, against what was promised to them.

use super::super::lease_file::{Record, RecordState};
use super::super::testing::{SERVER, World, at, mac, relayed};
use super::subnet_tests::{RELAY, bootp, far, reserve, routed};
use super::tests::{DECLINE, DISCOVER, RELEASE, REQUEST, address, kind_of};
use super::*;
use crate::config::LeaseKey;
use crate::id::MacAddr;
use crate::ledger::DeviceState;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap, HashSet};

const OTHER_SERVER: [u8; 4] = [10, 77, 0, 2];
const BOUND: u8 = 1;
const REVOKED: u8 = 3;

#[derive(Clone, Copy, Debug)]
enum Act {
    Discover,
    /// Takes what it was offered.
    Take,
    Select(u8),
    Reboot(u8),
    Renew(u8),
    ToAnotherServer(u8),
    Decline(u8),
    Release(u8),
    Bootp,
    /// Is heard by ARP on an address that it was not given.
    Squat(u8),
    /// Is not heard there any more.
    Leave(u8),
    /// The operator reserves an address for the device, or takes that back.
    Reserve(Option<u8>),
    /// The appliance starts again with its lease file.
    Restart,
}

/// Who, through which relay, does what after how many seconds.
fn sequences() -> impl Strategy<Value = Vec<(u8, usize, Act, u64)>> {
    let named = 0u8..8;
    let act = prop_oneof![
        4 => Just(Act::Discover),
        6 => Just(Act::Take),
        1 => named.clone().prop_map(Act::Select),
        1 => named.clone().prop_map(Act::Reboot),
        2 => named.clone().prop_map(Act::Renew),
        1 => named.clone().prop_map(Act::ToAnotherServer),
        1 => named.clone().prop_map(Act::Decline),
        1 => named.clone().prop_map(Act::Release),
        1 => Just(Act::Bootp),
        1 => named.clone().prop_map(Act::Squat),
        1 => named.clone().prop_map(Act::Leave),
        1 => prop::option::of(0u8..8).prop_map(Act::Reserve),
        1 => Just(Act::Restart),
    ];
    let pause = prop_oneof![6 => 0u64..20, 2 => 0u64..400, 1 => 0u64..4000];
    prop::collection::vec((1u8..12, 0usize..3, act, pause), 1..150)
}

/// What was promised, and what a disk has.
#[derive(Default)]
struct Promises {
    holders: HashMap<Ipv4Addr, (MacAddr, u64)>,
    /// By client and whether it is behind the relay: the offer, and until when it is held.
    offers: HashMap<(MacAddr, bool), (Packet, u64)>,
    of_bound: HashSet<Ipv4Addr>,
    avoided: HashMap<Ipv4Addr, MacAddr>,
    reserved: HashMap<Ipv4Addr, MacAddr>,
    file: BTreeMap<Ipv4Addr, Record>,
}

fn small(key: LeaseKey) -> World {
    let mut world = routed();
    let dhcp = &mut world.config.dhcp;
    dhcp.lease_key = key;
    (dhcp.local.range_start, dhcp.local.range_end) = (address(100), address(105));
    (dhcp.relayed[0].range_start, dhcp.relayed[0].range_end) = (far(100), far(105));
    world.leases = Leases::new(&world.config.dhcp, SERVER);
    world.record(mac(BOUND), DeviceState::Bound);
    world.record(mac(2), DeviceState::Pooled);
    world.record(mac(REVOKED), DeviceState::Revoked);
    reserve(&mut world, mac(4), DeviceState::Pooled, Some(address(103)));
    reserve(&mut world, mac(5), DeviceState::Pooled, Some(far(40)));
    world
}

fn asked(who: MacAddr, relay: usize, act: Act, offered: Option<Ipv4Addr>) -> Option<Request> {
    let behind = relay > 0;
    let giaddr = if behind { RELAY } else { Ipv4Addr::UNSPECIFIED };
    let named = |n: u8| if behind { far(99 + n) } else { address(99 + n) };
    // The second relay has us called by its own name (RFC 5107).
    let (agent, server): (&[u8], _) = if relay == 2 { (&[11, 4, 10, 78, 0, 1], RELAY) } else { (&[1, 1, 7], SERVER) };
    let ask = |kind, ciaddr: Ipv4Addr, extra: &[(u8, [u8; 4])]| {
        let mut options: Vec<(u8, &[u8])> = extra.iter().map(|(code, value)| (*code, &value[..])).collect();
        options.extend([(61, &b"\xffid"[..]), (55, &[1, 3, 6, 12, 15, 28, 51])]);
        if behind {
            options.push((82, agent));
        }
        Some(Request { ciaddr, ..relayed(giaddr, kind, who, &options) })
    };
    let none = Ipv4Addr::UNSPECIFIED;
    match act {
        Act::Discover => ask(DISCOVER, none, &[]),
        Act::Take => ask(REQUEST, none, &[(50, offered?.octets()), (54, server.octets())]),
        Act::Select(n) => ask(REQUEST, none, &[(50, named(n).octets()), (54, server.octets())]),
        Act::Reboot(n) => ask(REQUEST, none, &[(50, named(n).octets())]),
        Act::Renew(n) => ask(REQUEST, named(n), &[]),
        Act::ToAnotherServer(n) => ask(REQUEST, none, &[(50, named(n).octets()), (54, OTHER_SERVER)]),
        Act::Decline(n) => ask(DECLINE, none, &[(50, named(n).octets()), (54, server.octets())]),
        Act::Release(n) => ask(RELEASE, named(n), &[(54, server.octets())]),
        Act::Bootp => Some(Request { giaddr, ..bootp(who) }),
        Act::Squat(_) | Act::Leave(_) | Act::Reserve(_) | Act::Restart => None,
    }
}

/// What happens besides requests; whether it was such a thing.
fn happens(world: &mut World, made: &mut Promises, who: MacAddr, behind: bool, act: Act, now: u64) -> bool {
    let named = |n: u8| if behind { far(99 + n) } else { address(99 + n) };
    match act {
        Act::Squat(n) => {
            if world.leases.avoid(named(n), who) {
                made.avoided.insert(named(n), who);
                // Taken back: its REQUEST is refused.
                made.offers.retain(|_, (packet, _)| packet.yiaddr != named(n));
            }
        }
        Act::Leave(n) => {
            world.leases.stop_avoiding(named(n));
            made.avoided.remove(&named(n));
        }
        Act::Reserve(wanted) => {
            // The others stand for devices that are bound or revoked, or that nobody knows.
            if who == mac(4) || who == mac(5) {
                made.reserved.retain(|_, mac| *mac != who);
                let wanted = wanted.map(named).filter(|address| !made.reserved.contains_key(address));
                reserve(world, who, DeviceState::Pooled, wanted);
                made.reserved.extend(wanted.map(|address| (address, who)));
            }
        }
        Act::Restart => {
            let records: Vec<Record> = made.file.values().copied().collect();
            world.leases = Leases::restore(&world.config.dhcp, SERVER, &records, &world.ledger, at(now));
            // These are of this run only.
            made.offers.clear();
            made.avoided.clear();
        }
        Act::Discover | Act::Take | Act::Select(_) | Act::Reboot(_) | Act::Renew(_) | Act::ToAnotherServer(_) => return false,
        Act::Decline(_) | Act::Release(_) | Act::Bootp => return false,
    }
    true
}

fn packet_of(who: MacAddr) -> [u8; 16] {
    let mut chaddr = [0; 16];
    chaddr[..6].copy_from_slice(&who.0);
    chaddr
}

fn but_type(packet: &Packet) -> Vec<(u8, Vec<u8>)> {
    packet.options.iter().filter(|(code, _)| *code != option::MESSAGE_TYPE).map(|(code, value)| (code, value.to_vec())).collect()
}

proptest! {
    #[test]
    fn no_sequence_of_clients_relays_and_restarts_breaks_a_promise(sequence in sequences(), by_client_id: bool) {
        let mut world = small(if by_client_id { LeaseKey::ClientId } else { LeaseKey::Mac });
        let mut made = Promises { reserved: HashMap::from([(address(103), mac(4)), (far(40), mac(5))]), ..Promises::default() };
        let mut now = 0;
        for (n, relay, act, pause) in sequence {
            now += pause;
            let (who, behind) = (mac(n), relay > 0);
            if happens(&mut world, &mut made, who, behind, act, now) {
                continue;
            }
            let offer = made.offers.get(&(who, behind)).cloned();
            let Some(request) = asked(who, relay, act, offer.as_ref().map(|(packet, _)| packet.yiaddr)) else { continue };
            world.leases.advance(at(now).mono);
            let decision = world.decide(&request, at(now));
            let record = decision.change.and_then(|change| world.leases.apply(change, at(now)));
            if let Some(record) = record {
                made.file.insert(record.address, record);
            }
            let kind = kind_of(&decision);
            let reply = decision.reply.as_ref().map(|(packet, _)| packet);
            if n == REVOKED || matches!(act, Act::ToAnotherServer(_)) {
                prop_assert_eq!(reply, None);
            }
            let gives = reply.filter(|_| kind != Some(6));
            if let Some(packet) = gives {
                let given = packet.yiaddr;
                if let Some((holder, until)) = made.holders.get(&given) {
                    prop_assert!(*holder == who || *until <= now, "{given} is {holder}'s until {until}, and goes to {who} at {now}");
                }
                let others = made.offers.iter().find(|((other, _), (packet, until))| *other != who && packet.yiaddr == given && now < *until);
                prop_assert!(others.is_none(), "{given} is offered to {:?}, and goes to {who}", others.map(|(key, _)| key));
                prop_assert!(n == BOUND || !made.of_bound.contains(&given), "{given} is a bound device's");
                // Who had it or was offered it when it was reserved keeps it.
                let had = made.file.get(&given).is_some_and(|record| record.holder.mac == who)
                    || made.offers.values().any(|(packet, _)| packet.yiaddr == given && packet.chaddr == packet_of(who));
                prop_assert!(had || made.reserved.get(&given).is_none_or(|mac| *mac == who), "{given} is reserved");
                // A reservation counts for more: its device gets the address, and people are told of the other machine.
                let reserved = made.reserved.get(&given) == Some(&who);
                prop_assert!(reserved || made.avoided.get(&given).is_none_or(|user| *user == who), "{given} is used by another machine");
            }
            match (kind, gives) {
                (Some(2), Some(packet)) => drop(made.offers.insert((who, behind), (packet.clone(), now + 60))),
                // ACK, or BOOTREPLY: it is in the file already.
                (Some(5) | None, Some(packet)) => {
                    let committed = record.is_some_and(|r| r.address == packet.yiaddr && r.holder.mac == who && r.state == RecordState::Bound);
                    prop_assert!(committed, "{:?} was not committed", packet.yiaddr);
                    if let (Act::Take, Some((offer, _))) = (act, &offer) && offer.options.bytes(82) == packet.options.bytes(82) {
                        prop_assert_eq!(but_type(packet), but_type(offer), "OFFER and ACK differ");
                    }
                    made.avoided.remove(&packet.yiaddr);
                    if n == BOUND { made.of_bound.insert(packet.yiaddr); }
                    let until = if kind.is_none() { u64::MAX } else if behind { now + 600 } else { now + 3600 };
                    made.holders.insert(packet.yiaddr, (who, until));
                    // Who takes another address than it was offered has no offer any more.
                    if offer.as_ref().is_some_and(|(offer, _)| offer.yiaddr != packet.yiaddr) { made.offers.remove(&(who, behind)); }
                }
                _ => {}
            }
            if let (Act::Take, Some((_, until))) = (act, &offer) && kind != Some(5) && n != REVOKED {
                // By another name for us than that of the offer it is not our offer that is taken.
                let same_name = offer.as_ref().and_then(|(packet, _)| packet.options.address(54)) == request.server_id;
                prop_assert!(!same_name || now >= *until, "an offer was not kept: {:?}", decision.reason);
            }
            match decision.reason {
                Reason::Released | Reason::Declined => {
                    let address = if decision.reason == Reason::Released { request.ciaddr } else { request.requested.unwrap() };
                    prop_assert_eq!(made.holders.remove(&address).map(|(holder, _)| holder), Some(who));
                    if offer.is_some_and(|(packet, _)| packet.yiaddr == address) { made.offers.remove(&(who, behind)); }
                }
                Reason::OtherServer => drop(made.offers.remove(&(who, behind))),
                _ => {}
            }
        }
    }
}
