//! Several subnets, relays, reservations, BOOTP and leases by client-id: one rule or field report each.

use super::super::testing::{SERVER, World, at, mac, packet, relayed, request};
use super::super::wire::{FLAG_BROADCAST, MIN_MESSAGE_BYTES, decode, encode};
use super::tests::{DECLINE, DISCOVER, RELEASE, REQUEST, address, held, kind_of, offered, renew, select};
use super::*;
use crate::config::LeaseKey;
use crate::id::MacAddr;
use crate::ledger::{Device, DeviceState};
use std::sync::Arc;

pub(super) const RELAY: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const INFORM: u8 = 8;

pub(super) fn far(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 78, 0, last)
}

/// With a second subnet behind [`RELAY`], with terms of its own.
pub(super) fn routed() -> World {
    let mut world = World::default();
    let dhcp = &mut world.config.dhcp;
    dhcp.local.router = Some(address(254));
    let (range_start, range_end) = (far(10), far(29));
    let (dns, domain) = (vec![far(5)], Some("far.example".to_owned()));
    dhcp.relayed = vec![Subnet { address: far(0), prefix: 25, range_start, range_end, lease_secs: 600, router: Some(RELAY), dns, domain }];
    world.leases = Leases::new(&world.config.dhcp, SERVER);
    world
}

pub(super) fn reserve(world: &mut World, who: MacAddr, state: DeviceState, address: Option<Ipv4Addr>) {
    world.record(who, state);
    let device = Device { address, ..Device::clone(&world.ledger.devices[&who]) };
    world.leases.heed(who, Some(&device));
    world.ledger.devices.insert(who, Arc::new(device));
}

fn held_far(world: &mut World, who: MacAddr) -> Ipv4Addr {
    let offer = world.ask(&relayed(RELAY, DISCOVER, who, &[]), at(0)).reply.unwrap().0.yiaddr;
    let asked = relayed(RELAY, REQUEST, who, &[(50, &offer.octets()), (54, &SERVER.octets())]);
    assert_eq!(kind_of(&world.ask(&asked, at(0))), Some(5));
    offer
}

#[test]
fn a_relayed_client_is_told_the_terms_of_its_subnet_and_to_boot_from_our_own_address() {
    let mut world = routed();
    let firmware: &[(u8, &[u8])] = &[(60, b"PXEClient:Arch:00007:UNDI:003016"), (93, &[0, 7])];
    let (offer, to) = world.ask(&relayed(RELAY, DISCOVER, mac(1), firmware), at(0)).reply.unwrap();
    assert!((10..30).map(far).any(|a| a == offer.yiaddr), "{}", offer.yiaddr);
    let options = &offer.options;
    assert_eq!(
        (options.address(1), options.address(3), options.address(6)),
        (Some([255, 255, 255, 128].into()), Some(RELAY), Some(far(5)))
    );
    assert_eq!(
        (options.address(28), options.bytes(15), options.bytes(51)),
        (Some(far(127)), Some(&b"far.example"[..]), Some(&[0, 0, 2, 88][..]))
    );
    assert_eq!((offer.siaddr, options.address(54), options.bytes(66)), (SERVER, Some(SERVER), Some(&b"10.77.0.1"[..])));
    assert_eq!(to, Destination::Relay(RELAY));
}

#[test]
fn a_machine_has_one_address_in_each_subnet_and_keeps_both() {
    let mut world = routed();
    let (near, far) = (held(&mut world, mac(1)), held_far(&mut world, mac(1)));
    assert_eq!((offered(&mut world, mac(1), 5), held_far(&mut world, mac(1))), (near, far));
    let holders: Vec<_> = world.leases.holders().into_iter().filter(|(_, m)| *m == mac(1)).collect();
    assert_eq!(holders.len(), 2);
}

#[test]
fn a_unicast_renewal_from_behind_a_router_is_served_at_its_address_and_refused_when_it_is_anothers() {
    let mut world = routed();
    let own = held_far(&mut world, mac(1));
    let decision = world.ask(&renew(mac(1), own), at(300));
    let (ack, to) = decision.reply.unwrap();
    assert_eq!((ack.yiaddr, ack.options.address(3), to), (own, Some(RELAY), Destination::Client(own)));
    assert_eq!(world.leases.lease(own).unwrap().until, at(900).mono);
    // RFC 2131 s4.1 has the NAK broadcast on our link, where its client is not; the same on our own link is.
    let nak = world.ask(&renew(mac(2), own), at(301));
    assert_eq!((kind_of(&nak), nak.reply.map(|(_, to)| to)), (Some(6), Some(Destination::Client(own))));
    let near = held(&mut world, mac(3));
    let nak = world.ask(&renew(mac(4), near), at(301));
    assert_eq!((kind_of(&nak), nak.reply.map(|(_, to)| to)), (Some(6), Some(Destination::Broadcast)));
    let inform = Request { ciaddr: own, ..request(INFORM, mac(1), &[]) };
    let (ack, to) = world.ask(&inform, at(302)).reply.unwrap();
    assert_eq!((ack.options.address(3), to), (Some(RELAY), Destination::Client(own)));
    let release = Request { ciaddr: own, ..request(RELEASE, mac(1), &[(54, &SERVER.octets())]) };
    assert_eq!(world.ask(&release, at(303)).reason, Reason::Released);
}

#[test]
fn who_moved_to_another_subnet_is_refused_through_the_relay_with_the_broadcast_bit() {
    let mut world = routed();
    let near = held(&mut world, mac(1));
    let reboot = relayed(RELAY, REQUEST, mac(1), &[(50, &near.octets())]);
    let rebind = Request { ciaddr: near, ..relayed(RELAY, REQUEST, mac(1), &[]) };
    for asked in [reboot, rebind] {
        let decision = world.ask(&asked, at(1));
        assert_eq!((kind_of(&decision), decision.reason), (Some(6), Reason::WrongNetwork));
        let (nak, to) = decision.reply.unwrap();
        assert_eq!((to, nak.flags & FLAG_BROADCAST), (Destination::Relay(RELAY), FLAG_BROADCAST));
    }
    // The other way round, and its address there is still its own.
    let far = held_far(&mut world, mac(1));
    assert_eq!(world.ask(&request(REQUEST, mac(1), &[(50, &far.octets())]), at(1)).reason, Reason::WrongNetwork);
    assert_eq!(world.ask(&renew(mac(1), far), at(1)).reason, Reason::Acknowledged);
}

#[test]
fn ipxe_798_no_nak_for_what_another_server_offered_or_gave() {
    let mut world = routed();
    let own = held(&mut world, mac(1));
    for relay in [Ipv4Addr::UNSPECIFIED, RELAY, address(3)] {
        for asked in [own, address(9), far(12), Ipv4Addr::new(192, 0, 2, 9)] {
            for ciaddr in [Ipv4Addr::UNSPECIFIED, own] {
                let request = relayed(relay, REQUEST, mac(1), &[(50, &asked.octets()), (54, &[10, 77, 0, 2])]);
                let decision = world.ask(&Request { ciaddr, ..request }, at(1));
                assert_eq!((decision.reply, decision.reason), (None, Reason::OtherServer));
            }
        }
    }
    // Of a machine that we know nothing of, INIT-REBOOT on the right network is not ours to refuse (RFC 2131 s4.3.2).
    assert_eq!(world.ask(&request(REQUEST, mac(2), &[(50, &address(9).octets())]), at(1)).reason, Reason::NoRecord);
}

#[test]
fn rfc_5107_the_relays_name_for_us_is_echoed_and_means_us_but_refuses_nobody() {
    let mut world = routed();
    let agent = [11, 4, 10, 78, 0, 1, 1, 2, 0, 7];
    let offer = world.ask(&relayed(RELAY, DISCOVER, mac(1), &[(82, &agent)]), at(0)).reply.unwrap().0;
    assert_eq!((offer.options.address(54), offer.siaddr), (Some(RELAY), Ipv4Addr::UNSPECIFIED));
    let select = |address: Ipv4Addr| relayed(RELAY, REQUEST, mac(1), &[(50, &address.octets()), (54, &RELAY.octets()), (82, &agent)]);
    // Another server behind the same relay made that offer.
    assert_eq!(world.decide(&select(far(100)), at(1)).reason, Reason::OtherServer);
    let ack = world.ask(&select(offer.yiaddr), at(1)).reply.unwrap().0;
    assert_eq!((ack.options.address(54), ack.options.bytes(82)), (Some(RELAY), Some(&agent[..])));
    // By our own name, too; and without the relay's word that name is another server's.
    assert_eq!(world.ask(&Request { server_id: Some(SERVER), ..select(offer.yiaddr) }, at(2)).reason, Reason::Acknowledged);
    assert_eq!(
        world.ask(&request(REQUEST, mac(1), &[(50, &offer.yiaddr.octets()), (54, &RELAY.octets())]), at(3)).reason,
        Reason::OtherServer
    );
}

#[test]
fn rfc_3046_option_82_is_the_last_one_byte_for_byte_and_counts_only_with_a_relays_address() {
    let mut world = routed();
    let agent: Vec<u8> = [&[5, 4, 10, 78, 0, 0, 1, 200][..], &[9; 200]].concat();
    for relay in [RELAY, Ipv4Addr::UNSPECIFIED] {
        let asked = relayed(relay, DISCOVER, mac(1), &[(82, &agent), (61, b"\xffid"), (97, &[0; 17])]);
        let (offer, _) = world.ask(&asked, at(0)).reply.unwrap();
        let octets = encode(&offer, asked.max_reply_bytes);
        let end = octets.iter().rposition(|b| *b == 255).unwrap();
        assert_eq!(octets[end - agent.len() - 2..end], [&[82, 208][..], &agent].concat());
        assert_eq!(world.leases.subnet_of(offer.yiaddr), world.leases.subnet_of(if relay == RELAY { RELAY } else { SERVER }));
    }
}

#[test]
fn opnsense_7744_replies_have_at_least_300_octets_also_through_a_relay_and_as_nak() {
    let mut world = routed();
    for asked in [
        relayed(RELAY, DISCOVER, mac(1), &[(55, &[1])]),
        relayed(RELAY, REQUEST, mac(1), &[(50, &[192, 0, 2, 9])]),
        request(DISCOVER, mac(2), &[(55, &[1])]),
    ] {
        let (reply, _) = world.ask(&asked, at(0)).reply.unwrap();
        assert!(encode(&reply, asked.max_reply_bytes).len() >= MIN_MESSAGE_BYTES);
    }
}

#[test]
fn option_57_is_respected_and_never_less_than_every_client_takes() {
    let mut world = routed();
    let dns = (0..100).map(address).collect();
    world.config.dhcp.local.dns = dns;
    for (sent, most) in [(None, 548), (Some(100_u16), 548), (Some(576), 548), (Some(700), 672), (Some(65_535), 1472)] {
        let octets = sent.map(u16::to_be_bytes);
        let options: Vec<(u8, &[u8])> = octets.iter().map(|o| (57, &o[..])).collect();
        let asked = request(DISCOVER, mac(1), &options);
        let (reply, _) = world.ask(&asked, at(0)).reply.unwrap();
        let len = encode(&reply, asked.max_reply_bytes).len();
        assert!(len <= most, "{sent:?}: {len}");
    }
}

#[test]
fn systemd_27471_offer_and_ack_carry_the_same_options_also_for_renewals_and_behind_relays() {
    let mut world = routed();
    let options: &[(u8, &[u8])] = &[(61, b"\xff\0\0\0\x01"), (55, &[1, 3, 6, 15, 28, 51, 54]), (82, &[1, 1, 7])];
    let but_type = |p: &Packet| p.options.iter().filter(|(c, _)| *c != 53).map(|(c, v)| (c, v.to_vec())).collect::<Vec<_>>();
    for relay in [RELAY, Ipv4Addr::UNSPECIFIED] {
        let offer = world.ask(&relayed(relay, DISCOVER, mac(1), options), at(0)).reply.unwrap().0;
        let (own, server) = (offer.yiaddr.octets(), SERVER.octets());
        let chosen = [options, &[(50, &own), (54, &server)]].concat();
        let ack = world.ask(&relayed(relay, REQUEST, mac(1), &chosen), at(0)).reply.unwrap().0;
        let renewal = Request { ciaddr: offer.yiaddr, ..relayed(relay, REQUEST, mac(1), options) };
        let renewed = world.ask(&renewal, at(9)).reply.unwrap().0;
        assert_eq!((but_type(&ack), but_type(&renewed)), (but_type(&offer), but_type(&offer)));
    }
}

#[test]
fn warewulf_802_understack_1928_firmware_ipxe_and_system_of_one_machine_get_one_address() {
    let mut world = World::default();
    let uuid = [&[0][..], &[0x4c; 16]].concat();
    let system = [&[0xff, 0, 0, 0, 1, 0, 4][..], &[0x4c; 16]].concat();
    let addresses: Vec<Ipv4Addr> = [&uuid[..], &[1, 2, 0, 0, 0, 0, 1], &system]
        .into_iter()
        .map(|id| {
            let offer = world.ask(&request(DISCOVER, mac(1), &[(61, id)]), at(0)).reply.unwrap().0;
            let asked = [(61, id), (50, &offer.yiaddr.octets()[..]), (54, &SERVER.octets())];
            let ack = world.ask(&request(REQUEST, mac(1), &asked), at(0)).reply.unwrap().0;
            assert_eq!(ack.options.bytes(61), Some(id), "RFC 6842");
            ack.yiaddr
        })
        .collect();
    assert!(addresses.iter().all(|a| *a == addresses[0]), "{addresses:?}");
}

#[test]
fn talos_7694_fog_196_equal_or_empty_uuids_and_client_ids_of_two_machines_share_nothing() {
    for key in [LeaseKey::Mac, LeaseKey::ClientId] {
        let mut world = World::default();
        world.config.dhcp.lease_key = key;
        for uuid in [[0_u8; 17], [0xff; 17], [3; 17]] {
            for id in [&uuid[..], b"", b"\xffclone"] {
                let of =
                    |world: &mut World, n| world.ask(&request(DISCOVER, mac(n), &[(61, id), (97, &uuid)]), at(0)).reply.unwrap().0.yiaddr;
                assert_ne!(of(&mut world, 1), of(&mut world, 2), "{key:?}");
            }
        }
    }
}

#[test]
fn by_client_id_each_client_of_a_machine_has_an_address_and_a_forger_takes_eight_at_most() {
    let mut world = World::default();
    world.config.dhcp.lease_key = LeaseKey::ClientId;
    world.record(mac(1), DeviceState::Bound);
    let of = |world: &mut World, id: &[u8]| world.ask(&request(DISCOVER, mac(1), &[(61, id)]), at(0)).reply.unwrap().0.yiaddr;
    let (a, b) = (of(&mut world, b"a"), of(&mut world, b"b"));
    assert_ne!(a, b);
    assert_eq!((of(&mut world, b"a"), of(&mut world, b"b")), (a, b));
    let mut all: Vec<_> = (0..=255_u8).map(|n| of(&mut world, &[n, n])).collect();
    all.extend([a, b]);
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 9, "eight, and that without identifier");
    reserve(&mut world, mac(1), DeviceState::Bound, Some(address(20)));
    assert_eq!((of(&mut world, b"a"), of(&mut world, b"z")), (address(20), address(20)), "a reservation is the machine's");
}

#[test]
fn a_reserved_address_is_offered_at_once_and_to_nobody_else_inside_or_outside_the_range() {
    for kept in [address(20), address(200)] {
        let mut world = World::default();
        let before = held(&mut world, mac(1));
        reserve(&mut world, mac(1), DeviceState::Pooled, Some(kept));
        for asked in [request(DISCOVER, mac(2), &[(50, &kept.octets())]), select(mac(2), kept), renew(mac(2), kept)] {
            assert_ne!(world.ask(&asked, at(1)).reply.map(|(p, _)| p.yiaddr), Some(kept), "{asked:?}");
        }
        assert_eq!(world.ask(&renew(mac(1), before), at(1)).reason, Reason::Acknowledged, "it runs on that");
        assert_eq!(held(&mut world, mac(1)), kept);
        // Long unused it is still nobody else's, and after it is not reserved any more it is like any other.
        assert_ne!(offered(&mut world, mac(3), 1_000_000), kept);
        assert_eq!(offered(&mut world, mac(1), 1_000_000), kept);
        reserve(&mut world, mac(1), DeviceState::Pooled, None);
        assert_eq!(offered(&mut world, mac(1), 1_000_001) == kept, kept == address(200));
    }
}

#[test]
fn a_device_waits_for_its_reserved_address_while_another_machine_runs_on_it() {
    for (state, secs) in [(None, 3601), (Some(DeviceState::Pooled), 3601), (Some(DeviceState::Bound), 1_000_000)] {
        let mut world = World::default();
        if let Some(state) = state {
            world.record(mac(2), state);
        }
        let kept = held(&mut world, mac(2));
        reserve(&mut world, mac(1), DeviceState::Pooled, Some(kept));
        let meanwhile = world.ask(&request(DISCOVER, mac(1), &[]), at(1));
        assert_eq!(meanwhile.reason, Reason::OfferedMeanwhile);
        assert_ne!(meanwhile.reply.unwrap().0.yiaddr, kept);
        let waits = offered(&mut world, mac(1), secs) != kept;
        assert_eq!(waits, state == Some(DeviceState::Bound), "a bound device's address is free only when that starts anew");
        if waits {
            assert_eq!(world.ask(&renew(mac(2), kept), at(secs)).reason, Reason::Acknowledged);
            let moved = offered(&mut world, mac(2), secs);
            assert_ne!(moved, kept);
            world.ask(&select(mac(2), moved), at(secs));
            assert_eq!(world.ask(&renew(mac(2), kept), at(secs)).reason, Reason::Acknowledged, "it may be in use still");
        }
    }
}

#[test]
fn reservations_of_a_full_range_are_still_in_force() {
    let mut world = World::with_range(100, 102);
    reserve(&mut world, mac(9), DeviceState::Pooled, Some(address(101)));
    world.record(mac(1), DeviceState::Pooled);
    world.record(mac(2), DeviceState::Pooled);
    let mut others = [held(&mut world, mac(1)), held(&mut world, mac(2))];
    others.sort();
    assert_eq!(others, [address(100), address(102)]);
    assert_eq!(world.ask(&request(DISCOVER, mac(3), &[]), at(1)).reason, Reason::Exhausted);
    assert_eq!(held(&mut world, mac(9)), address(101));
    // Purged from the ledger, it is a stranger that holds a dynamic address.
    world.ledger.devices.remove(&mac(9));
    world.leases.heed(mac(9), None);
    assert_eq!(offered(&mut world, mac(3), 3601), address(101));
}

pub(super) fn bootp(who: MacAddr) -> Request {
    let mut packet = packet(DISCOVER, who, &[]);
    packet.options = Default::default();
    msg::request(&packet).unwrap()
}

#[test]
fn rfc_1534_bootp_gets_a_plain_reply_and_a_lease_without_end() {
    let mut world = World::default();
    world.config.dhcp.local.router = Some(address(254));
    assert_eq!(world.ask(&bootp(mac(1)), at(0)).reason, Reason::NoBootp, "a stranger");
    world.record(mac(1), DeviceState::Bound);
    let decision = world.decide(&bootp(mac(1)), at(0));
    let record = world.leases.apply(decision.change.unwrap(), at(0)).unwrap();
    let (reply, to) = decision.reply.unwrap();
    assert_eq!((reply.op, to), (2, Destination::Link { mac: mac(1), address: reply.yiaddr }));
    let codes: Vec<u8> = reply.options.iter().map(|(code, _)| code).collect();
    assert_eq!(codes, [1, 3, 28, 12], "no 51, 53, 54");
    assert_eq!(encode(&reply, bootp(mac(1)).max_reply_bytes).len(), MIN_MESSAGE_BYTES);
    assert!(record.is_forever());
    let later = at(400 * 86_400);
    let restored = Leases::restore(&world.config.dhcp, SERVER, &[record], &world.ledger, later);
    assert!(restored.lease(reply.yiaddr).unwrap().until > later.mono.after(std::time::Duration::from_secs(40 * 365 * 86_400)));
    assert_eq!(offered(&mut world, mac(1), 9), reply.yiaddr, "its system has the same by DHCP");
}

#[test]
fn rfc_951_who_sends_no_cookie_gets_an_address_a_file_and_no_options_under_the_same_policy() {
    let mut world = World::default();
    let plain = || {
        let mut octets = encode(&Packet { options: Default::default(), ..packet(DISCOVER, mac(1), &[]) }, MIN_MESSAGE_BYTES);
        octets[236..].fill(0);
        msg::request(&decode(&octets).unwrap()).unwrap()
    };
    assert_eq!(world.ask(&plain(), at(0)).reason, Reason::NoBootp, "a stranger");
    world.record(mac(1), DeviceState::Pooled);
    let device = Device { loader: Some("undionly.kpxe".into()), ..Device::clone(&world.ledger.devices[&mac(1)]) };
    world.ledger.devices.insert(mac(1), Arc::new(device));
    let (reply, to) = world.ask(&plain(), at(0)).reply.unwrap();
    assert_eq!((reply.siaddr, reply.file.as_slice()), (SERVER, &b"undionly.kpxe"[..]));
    assert_eq!(to, Destination::Link { mac: mac(1), address: reply.yiaddr });
    let written = encode(&reply, plain().max_reply_bytes);
    assert!(written.len() == MIN_MESSAGE_BYTES && written[236..].iter().all(|octet| *octet == 0), "{written:?}");
    assert_eq!(world.ask(&bootp(mac(1)), at(1)).reply.unwrap().0.yiaddr, reply.yiaddr, "the same with options");
    world.record(mac(1), DeviceState::Revoked);
    assert_eq!(world.ask(&plain(), at(2)).reason, Reason::Revoked);
}

#[test]
pub(super) fn bootp_is_for_whom_the_operator_says_and_strangers_find_its_bounds() {
    let mut world = World::with_range(100, 115);
    world.config.dhcp.bootp = Bootp::On;
    world.config.dhcp.newcomers_per_minute = 20;
    let given = (1..=20).filter(|n| world.ask(&bootp(mac(*n)), at(0)).reason == Reason::Acknowledged).count();
    assert_eq!(given, 14, "seven eighths");
    world.record(mac(99), DeviceState::Revoked);
    assert_eq!(world.ask(&bootp(mac(99)), at(0)).reply, None);
    world.config.dhcp.bootp = Bootp::Off;
    world.record(mac(1), DeviceState::Bound);
    assert_eq!(world.ask(&bootp(mac(1)), at(0)).reason, Reason::NoBootp);
}

#[test]
fn a_decline_counts_in_the_subnet_of_the_address() {
    let mut world = routed();
    let (near, far) = (held(&mut world, mac(1)), held_far(&mut world, mac(1)));
    let decline = relayed(RELAY, DECLINE, mac(1), &[(50, &far.octets()), (54, &SERVER.octets())]);
    assert_eq!(world.ask(&decline, at(1)).reason, Reason::Declined);
    assert_ne!(held_far(&mut world, mac(1)), far);
    assert_eq!(offered(&mut world, mac(1), 1), near);
}
