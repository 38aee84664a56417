//! The rules of RFC 2131 s4.3 and of the product, one test each; then random clients against the invariants.

use super::super::testing::{SERVER, World, at, mac, packet, relayed, request};
use super::super::wire::{FLAG_BROADCAST, option};
use super::*;
use crate::dhcp::msg::request as read;
use crate::id::MacAddr;
use crate::ledger::DeviceState;
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

pub(super) const DISCOVER: u8 = 1;
pub(super) const REQUEST: u8 = 3;
pub(super) const DECLINE: u8 = 4;
pub(super) const RELEASE: u8 = 7;
const INFORM: u8 = 8;
pub(super) const OTHER_SERVER: [u8; 4] = [10, 77, 0, 2];

pub(super) fn address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, last)
}

pub(super) fn kind_of(decision: &Decision) -> Option<u8> {
    decision.reply.as_ref().and_then(|(packet, _)| packet.options.exact::<1>(option::MESSAGE_TYPE)).map(|[kind]| kind)
}

pub(super) fn offered(world: &mut World, who: MacAddr, secs: u64) -> Ipv4Addr {
    world.ask(&request(DISCOVER, who, &[]), at(secs)).reply.unwrap().0.yiaddr
}

pub(super) fn select(who: MacAddr, address: Ipv4Addr) -> Request {
    request(REQUEST, who, &[(50, &address.octets()), (54, &SERVER.octets())])
}

pub(super) fn renew(who: MacAddr, address: Ipv4Addr) -> Request {
    Request { ciaddr: address, ..request(REQUEST, who, &[]) }
}

pub(super) fn held(world: &mut World, who: MacAddr) -> Ipv4Addr {
    let address = offered(world, who, 0);
    assert_eq!(kind_of(&world.ask(&select(who, address), at(0))), Some(5));
    address
}

#[test]
fn revoked_is_silence_on_every_message_type_even_for_what_it_holds() {
    let mut world = World::default();
    let own = held(&mut world, mac(1));
    world.record(mac(1), DeviceState::Revoked);
    for kind in [DISCOVER, REQUEST, DECLINE, RELEASE, INFORM] {
        let mut asked = request(kind, mac(1), &[(50, &own.octets())]);
        for ciaddr in [Ipv4Addr::UNSPECIFIED, own] {
            asked.ciaddr = ciaddr;
            let decision = world.decide(&asked, at(1));
            assert_eq!((decision.change, decision.reply, decision.reason), (None, None, Reason::Revoked), "{kind}");
        }
    }
    assert_eq!(world.decide(&select(mac(1), own), at(1)).reply, None);
}

#[test]
fn strangers_get_silence_when_the_operator_says_so() {
    let mut world = World::default();
    world.config.dhcp.unknown_devices = false;
    assert_eq!(world.ask(&request(DISCOVER, mac(1), &[]), at(0)).reason, Reason::UnknownDevice);
    world.record(mac(1), DeviceState::Pooled);
    assert_eq!(world.ask(&request(DISCOVER, mac(1), &[]), at(0)).reason, Reason::Offered);
}

#[test]
fn firmware_ipxe_and_system_of_one_machine_get_one_address_whatever_their_client_id() {
    let mut world = World::default();
    let first = held(&mut world, mac(1));
    for id in [&b"\x01\x02"[..], b"\xff uuid", b"system"] {
        let again = world.ask(&request(DISCOVER, mac(1), &[(61, id), (50, &address(200).octets())]), at(5));
        assert_eq!(again.reply.unwrap().0.yiaddr, first);
    }
}

#[test]
fn an_offer_holds_its_address_and_another_client_gets_another() {
    let mut world = World::with_range(100, 101);
    let (a, b) = (offered(&mut world, mac(1), 0), offered(&mut world, mac(2), 1));
    assert_ne!(a, b);
    assert_eq!(world.ask(&request(DISCOVER, mac(3), &[]), at(2)).reason, Reason::Exhausted);
    assert_eq!(world.ask(&select(mac(3), a), at(2)).reason, Reason::Taken);
    assert_eq!(world.ask(&select(mac(1), a), at(50)).reason, Reason::Acknowledged);
    // The hold of the other is over.
    assert_eq!(offered(&mut world, mac(3), 70), b);
}

#[test]
fn a_bound_device_is_told_its_workers_name() {
    let mut world = World::default();
    world.record(mac(1), DeviceState::Bound);
    for decision in [world.ask(&request(DISCOVER, mac(1), &[(55, &[1])]), at(0)), world.ask(&request(INFORM, mac(1), &[]), at(0))] {
        if let Some((packet, _)) = decision.reply {
            assert_eq!(packet.options.bytes(option::HOST_NAME), Some(&b"worker-1"[..]));
        }
    }
}

#[test]
fn the_address_of_a_bound_device_is_never_given_to_another_however_long_it_is_silent() {
    let mut world = World::with_range(100, 101);
    world.record(mac(1), DeviceState::Bound);
    let kept = held(&mut world, mac(1));
    held(&mut world, mac(2));
    let year = 365 * 86_400;
    let given = offered(&mut world, mac(3), year);
    assert_ne!(given, kept);
    assert_eq!(world.ask(&request(DISCOVER, mac(4), &[]), at(year)).reason, Reason::Exhausted);
    assert_eq!(world.ask(&renew(mac(4), kept), at(year)).reason, Reason::Taken);
}

#[test]
fn the_longest_unused_stranger_gives_way_before_a_known_device() {
    let mut world = World::with_range(100, 102);
    world.record(mac(1), DeviceState::Pooled);
    let known = held(&mut world, mac(1));
    let (older, newer) = (held(&mut world, mac(2)), held(&mut world, mac(3)));
    world.ask(&renew(mac(3), newer), at(100));
    assert_eq!(offered(&mut world, mac(4), 10_000), older);
    assert_eq!(offered(&mut world, mac(5), 10_001), newer);
    assert_eq!(offered(&mut world, mac(6), 10_002), known);
}

#[test]
fn a_request_to_another_server_is_never_refused() {
    let mut world = World::default();
    let own = offered(&mut world, mac(1), 0);
    for asked in [own, address(9), Ipv4Addr::new(192, 0, 2, 1)] {
        let decision = world.ask(&request(REQUEST, mac(1), &[(50, &asked.octets()), (54, &OTHER_SERVER)]), at(1));
        assert_eq!((decision.reply, decision.reason), (None, Reason::OtherServer));
    }
    assert_eq!(world.leases.lease(own), None, "the offer is withdrawn");
}

#[test]
fn init_reboot_is_confirmed_refused_on_the_wrong_network_and_silent_without_a_record() {
    let mut world = World::default();
    let own = held(&mut world, mac(1));
    let reboot = |who, address: Ipv4Addr| request(REQUEST, who, &[(50, &address.octets())]);
    assert_eq!(world.ask(&reboot(mac(1), own), at(1)).reason, Reason::Acknowledged);
    assert_eq!(world.ask(&reboot(mac(1), address(9)), at(1)).reason, Reason::Taken);
    assert_eq!(world.ask(&reboot(mac(2), own), at(1)).reason, Reason::NoRecord);
    let wrong = world.ask(&reboot(mac(2), Ipv4Addr::new(192, 0, 2, 9)), at(1));
    assert_eq!((kind_of(&wrong), wrong.reply.unwrap().1), (Some(6), Destination::Broadcast));
}

#[test]
fn renewing_extends_and_is_answered_at_the_clients_address() {
    let mut world = World::default();
    let own = held(&mut world, mac(1));
    let decision = world.ask(&renew(mac(1), own), at(1800));
    assert_eq!(decision.reply.unwrap().1, Destination::Client(own));
    assert_eq!(world.leases.lease(own).unwrap().until, at(1800 + 3600).mono);
}

#[test]
fn renewing_anothers_address_is_refused_and_an_address_that_is_not_ours_is_met_with_silence() {
    let mut world = World::default();
    let own = held(&mut world, mac(1));
    assert_eq!(kind_of(&world.ask(&renew(mac(2), own), at(1))), Some(6));
    assert_eq!(world.ask(&renew(mac(2), address(9)), at(1)).reason, Reason::NoRecord);
    assert_eq!(world.ask(&renew(mac(2), Ipv4Addr::new(192, 0, 2, 9)), at(1)).reason, Reason::OtherNetwork);
}

#[test]
fn a_machine_keeps_its_address_when_the_lease_file_was_lost() {
    let mut world = World::default();
    assert_eq!(world.ask(&renew(mac(1), address(200)), at(0)).reason, Reason::Acknowledged);
    assert_ne!(offered(&mut world, mac(2), 1), address(200));
}

#[test]
fn release_and_decline_are_the_holders_only() {
    let mut world = World::default();
    let own = held(&mut world, mac(1));
    let release = |who| Request { ciaddr: own, ..request(RELEASE, who, &[(54, &SERVER.octets())]) };
    let decline = |who| request(DECLINE, who, &[(50, &own.octets()), (54, &SERVER.octets())]);
    assert_eq!(world.ask(&release(mac(2)), at(1)).reason, Reason::NotHolder);
    assert_eq!(world.ask(&decline(mac(2)), at(1)).reason, Reason::NotHolder);
    assert_eq!(world.ask(&decline(mac(1)), at(1)).reason, Reason::Declined);
    assert_ne!(offered(&mut world, mac(1), 2), own, "in quarantine");
    assert_eq!(world.ask(&release(mac(1)), at(3)).reason, Reason::NotHolder);
}

#[test]
fn a_released_address_rests_but_its_machine_may_have_it_at_once() {
    let mut world = World::with_range(100, 100);
    let own = held(&mut world, mac(1));
    world.ask(&Request { ciaddr: own, ..request(RELEASE, mac(1), &[]) }, at(1));
    assert_eq!(world.ask(&request(DISCOVER, mac(2), &[]), at(2)).reason, Reason::Exhausted);
    assert_eq!(offered(&mut world, mac(1), 3), own);
    assert_eq!(offered(&mut world, mac(2), 400), own);
}

#[test]
fn one_machine_that_declines_all_it_gets_does_not_shut_the_range() {
    // Nine: two in quarantine, one that is not for strangers.
    let mut world = World::with_range(100, 108);
    for turn in 0..100 {
        let got = held(&mut world, mac(1));
        assert_eq!(world.ask(&request(DECLINE, mac(1), &[(50, &got.octets())]), at(turn)).reason, Reason::Declined);
    }
    let others: Vec<_> = (2..8).map(|n| held(&mut world, mac(n))).collect();
    assert_eq!(others.len(), 6);
}

#[test]
fn inform_gets_parameters_without_lease_or_address() {
    let mut world = World::default();
    let asked = Request { ciaddr: address(9), ..request(INFORM, mac(1), &[]) };
    let (packet, to) = world.ask(&asked, at(0)).reply.unwrap();
    assert_eq!(
        (packet.yiaddr, packet.options.bytes(option::LEASE_TIME), to),
        (Ipv4Addr::UNSPECIFIED, None, Destination::Client(address(9)))
    );
}

#[test]
fn link_and_network_destination_follow_flag_relay_and_nak() {
    let mut world = World::default();
    let discover = request(DISCOVER, mac(1), &[]);
    let own = offered(&mut world, mac(1), 0);
    let to = |asked: &Request| world.decide(asked, at(1)).reply.unwrap();
    assert_eq!(to(&discover).1, Destination::Link { mac: mac(1), address: own });
    assert_eq!(to(&Request { broadcast: true, ..discover.clone() }).1, Destination::Broadcast);
    assert_eq!(to(&Request { giaddr: address(3), broadcast: true, ..discover.clone() }).1, Destination::Relay(address(3)));
    let wrong = Request { giaddr: address(3), ..request(REQUEST, mac(1), &[(50, &[192, 0, 2, 1])]) };
    let (nak, to) = to(&wrong);
    assert_eq!((to, nak.flags & FLAG_BROADCAST), (Destination::Relay(address(3)), FLAG_BROADCAST));
}

#[test]
fn relays_of_other_networks_are_met_with_silence_and_link_selection_counts() {
    let mut world = World::default();
    let elsewhere = Ipv4Addr::new(192, 0, 2, 1);
    let discover = request(DISCOVER, mac(1), &[]);
    assert_eq!(world.ask(&Request { giaddr: elsewhere, ..discover.clone() }, at(0)).reason, Reason::OtherNetwork);
    world.config.dhcp.relays = vec![elsewhere];
    let selected = relayed(elsewhere, DISCOVER, mac(1), &[(82, &[1, 2, 0, 9, 5, 4, 10, 77, 0, 0])]);
    let (packet, to) = world.ask(&selected, at(0)).reply.unwrap();
    assert_eq!(to, Destination::Relay(elsewhere));
    assert_eq!(packet.options.bytes(82), Some(&[1, 2, 0, 9, 5, 4, 10, 77, 0, 0][..]));
}

#[test]
fn what_contradicts_itself_is_met_with_silence() {
    let mut world = World::default();
    let own = held(&mut world, mac(1));
    for asked in [
        request(REQUEST, mac(1), &[]),
        request(REQUEST, mac(1), &[(54, &SERVER.octets())]),
        Request { ciaddr: address(9), ..select(mac(1), own) },
        request(INFORM, mac(1), &[]),
    ] {
        assert_eq!(world.ask(&asked, at(1)).reason, Reason::Contradictory, "{asked:?}");
    }
}

#[test]
fn boot_fields_agree_and_option_60_is_for_http_boot_only() {
    let mut world = World::default();
    type Sent<'a> = &'a [(u8, &'a [u8])];
    let cases: [(Sent<'_>, &str, bool); 3] = [
        (&[(60, b"PXEClient:Arch:00007:UNDI:003016"), (93, &[0, 7])], "snponly.efi", false),
        (&[(60, b"HTTPClient:Arch:00016:UNDI:003001"), (93, &[0, 16])], "http://10.77.0.1/files/snponly.efi", true),
        (&[(60, b"PXEClient"), (77, b"iPXE")], "http://10.77.0.1/boot.ipxe", false),
    ];
    for (options, file, echoed) in cases {
        let discover = world.ask(&request(DISCOVER, mac(1), options), at(0)).reply.unwrap().0;
        assert_eq!((discover.siaddr, discover.sname.as_slice()), (SERVER, &b"10.77.0.1"[..]));
        assert_eq!(discover.options.bytes(66), Some(&b"10.77.0.1"[..]));
        assert_eq!((discover.file.as_slice(), discover.options.bytes(67)), (file.as_bytes(), Some(file.as_bytes())));
        assert_eq!(discover.options.bytes(60), echoed.then_some(&b"HTTPClient"[..]));
        let mut asked = options.to_vec();
        let own = discover.yiaddr.octets();
        asked.extend([(50, &own[..]), (54, &[10, 77, 0, 1])]);
        let ack = world.ask(&request(REQUEST, mac(1), &asked), at(0)).reply.unwrap().0;
        let but_type = |p: &Packet| p.options.iter().filter(|(c, _)| *c != 53).map(|(c, v)| (c, v.to_vec())).collect::<Vec<_>>();
        assert_eq!(but_type(&ack), but_type(&discover), "the same in OFFER and ACK");
    }
    let system = world.ask(&request(DISCOVER, mac(2), &[]), at(0)).reply.unwrap().0;
    assert_eq!((system.siaddr, system.file.len(), system.options.bytes(67)), (Ipv4Addr::UNSPECIFIED, 0, None));
}

#[test]
fn a_wall_clock_that_jumps_does_not_end_leases() {
    let mut world = World::with_range(100, 100);
    held(&mut world, mac(1));
    let jumped = Now { wall: at(10_000_000).wall, ..at(10) };
    assert_eq!(world.ask(&request(DISCOVER, mac(2), &[]), jumped).reason, Reason::Exhausted);
}

#[test]
fn leases_survive_a_restart_and_none_is_longer_than_a_lease() {
    let mut world = World::with_range(100, 101);
    let records = [1, 2]
        .map(|n| world.leases.apply(Change::Bind { holder: mac(n).into(), address: address(99 + n), secs: 3600 }, at(n.into())).unwrap());
    let late = Now { mono: at(5).mono, wall: at(3602).wall };
    let restored = Leases::restore(&world.config.dhcp, SERVER, &records, &world.ledger, late);
    assert_eq!(restored.lease(address(100)).unwrap().until, late.mono);
    assert_eq!(restored.address_of(mac(2).into(), SubnetId::LOCAL), Some(address(101)));
    let early = Now { mono: at(5).mono, wall: crate::time::Wall::UNIX_EPOCH };
    let restored = Leases::restore(&world.config.dhcp, SERVER, &records, &world.ledger, early);
    assert_eq!(restored.lease(address(100)).unwrap().until, at(3605).mono);
}

/// One step of a random client.
#[derive(Clone, Debug)]
struct Act {
    who: u8,
    kind: u8,
    asked: Option<u8>,
    server: u8,
    ciaddr: Option<u8>,
    pause: u64,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = (
        1u8..12,
        prop::sample::select(vec![1u8, 1, 3, 3, 3, 4, 7, 8]),
        prop::option::of(98u8..108),
        0u8..4,
        prop::option::of(98u8..108),
        0u64..900,
    )
        .prop_map(|(who, kind, asked, server, ciaddr, pause)| Act { who, kind, asked, server, ciaddr, pause });
    prop::collection::vec(act, 1..120)
}

proptest! {
    /// No address has two holders; an ACK names an address that is nobody else's; an offer is kept while it is held; a
    /// request to another server is never refused; revoked is silence; what a bound device was ever given goes to nobody.
    #[test]
    fn random_clients_never_break_a_promise(acts in acts()) {
        let mut world = World::with_range(100, 105);
        world.record(mac(1), DeviceState::Bound);
        world.record(mac(2), DeviceState::Pooled);
        world.record(mac(3), DeviceState::Revoked);
        let mut holders: HashMap<Ipv4Addr, (MacAddr, u64)> = HashMap::new();
        let mut offers: HashMap<MacAddr, (Ipv4Addr, u64)> = HashMap::new();
        let mut of_bound = HashSet::new();
        let mut now = 0;
        for act in acts {
            now += act.pause;
            let who = mac(act.who);
            // Half of the requests follow the offer, as honest clients do.
            let follows = act.kind == 3 && act.server % 2 == 0;
            let asked = if follows { offers.get(&who).map(|(a, _)| *a) } else { act.asked.map(address) };
            let server = match (follows, act.server) { (true, _) | (_, 1) => Some(SERVER.octets()), (_, 3) => Some(OTHER_SERVER), _ => None };
            let mut asking = packet(act.kind, who, &[]);
            if let Some(a) = asked { asking.options.push(50, &a.octets()); }
            if let Some(s) = server { asking.options.push(54, &s); }
            if let Some(c) = act.ciaddr.filter(|_| !follows) { asking.ciaddr = address(c); }
            let asking = read(&asking).unwrap();
            let decision = world.ask(&asking, at(now));
            let kind = kind_of(&decision);
            if act.who == 3 { prop_assert_eq!(&decision.reply, &None); continue; }
            if server == Some(OTHER_SERVER) && act.kind != 1 && act.kind != 8 { prop_assert_eq!(&decision.reply, &None); }
            let given = decision.reply.as_ref().map(|(p, _)| p.yiaddr);
            match (kind, given) {
                (Some(2), Some(given)) => { offers.insert(who, (given, now)); }
                (Some(5), Some(given)) if act.kind == 3 => {
                    if let Some((other, until)) = holders.get(&given) {
                        prop_assert!(*other == who || *until <= now, "{} is {}'s until {}", given, other, until);
                    }
                    prop_assert!(who == mac(1) || !of_bound.contains(&given), "a bound device's address was given away");
                    if who == mac(1) { of_bound.insert(given); }
                    // Who takes another address than it was offered has no offer any more.
                    if offers.get(&who).is_some_and(|(offered, _)| *offered != given) { offers.remove(&who); }
                    holders.retain(|_, (holder, _)| *holder != who);
                    holders.insert(given, (who, now + 3600));
                }
                _ => {}
            }
            if follows && kind != Some(5) && let Some((address, when)) = offers.get(&who) {
                prop_assert!(now >= when + 60, "the offer of {} was not kept: {:?}", address, decision.reason);
            }
            match decision.reason {
                Reason::Released => holders.retain(|_, (holder, _)| *holder != who),
                Reason::Declined | Reason::OtherServer => { holders.retain(|a, (holder, _)| *holder != who || decision.reason == Reason::OtherServer && world.leases.lease(*a).is_some()); offers.remove(&who); }
                _ => {}
            }
        }
    }
}
