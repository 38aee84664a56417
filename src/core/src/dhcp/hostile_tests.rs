//! What strangers cannot do: take or move an address with forged messages, silence new machines, take the whole range.

use super::super::testing::{SERVER, World, at, mac, packet, request};
use super::super::wire::{decode, encode};
use super::tests::{DECLINE, DISCOVER, RELEASE, REQUEST, address, held, kind_of, offered, renew, select};
use super::*;
use crate::id::MacAddr;
use crate::ledger::DeviceState;

const NAK: u8 = 6;
/// `newcomersPerMinute` here.
const MAX_NEWCOMERS: u32 = 128;
const YEAR: u64 = 365 * 86_400;

/// A MAC nobody has seen.
fn forged(n: u32) -> MacAddr {
    let [a, b, c, d] = n.to_be_bytes();
    MacAddr([0x0e, 0x66, a, b, c, d])
}

fn decline(who: MacAddr, address: Ipv4Addr) -> Request {
    request(DECLINE, who, &[(50, &address.octets()), (54, &SERVER.octets())])
}

fn release(who: MacAddr, address: Ipv4Addr) -> Request {
    Request { ciaddr: address, ..request(RELEASE, who, &[(54, &SERVER.octets())]) }
}

fn with_bound_victim(first: u8, last: u8) -> (World, Ipv4Addr) {
    let mut world = World::with_range(first, last);
    world.record(mac(1), DeviceState::Bound);
    let own = held(&mut world, mac(1));
    (world, own)
}

/// Takes everything that can be had, now and when all that can run out has, and looks whether `own` was among it.
fn assert_never_given(world: &mut World, own: Ipv4Addr) {
    for secs in [2, 2000, YEAR] {
        for n in 100..150 {
            for asked in [request(DISCOVER, mac(n), &[(50, &own.octets())]), select(mac(n), own), renew(mac(n), own)] {
                let given = world.ask(&asked, at(secs)).reply.map(|(packet, _)| packet.yiaddr);
                assert_ne!(given, Some(own), "to {n} after {secs} s: {asked:?}");
            }
        }
    }
}

/// Each forged message names an address that is free, or the victim's own.
fn forgeries(own: Ipv4Addr, free: Ipv4Addr) -> Vec<Request> {
    vec![
        select(mac(1), free),
        renew(mac(1), free),
        request(REQUEST, mac(1), &[(50, &free.octets())]),
        request(DISCOVER, mac(1), &[(50, &free.octets())]),
        request(REQUEST, mac(1), &[(50, &free.octets()), (54, &[10, 77, 0, 2])]),
        release(mac(1), own),
        decline(mac(1), own),
        release(mac(1), free),
        decline(mac(1), free),
    ]
}

/// It is echoed whole and last, whatever else there is no room for.
#[test]
fn option_82_of_any_length_neither_drives_out_what_an_answer_needs_nor_makes_it_longer_than_allowed() {
    for giaddr in [Ipv4Addr::UNSPECIFIED, Ipv4Addr::new(10, 77, 0, 3)] {
        for len in [0, 1, 200, 254, 255, 256, 510, 1000, 1400] {
            let options: [(u8, &[u8]); 4] = [(60, b"PXEClient"), (93, &[0, 7]), (61, &[9; 255]), (97, &[0; 17])];
            let mut packet = packet(DISCOVER, mac(1), &options);
            packet.options.push(option::RELAY_AGENT, &vec![1; len]);
            packet.giaddr = giaddr;
            let Ok(request) = msg::request(&packet) else {
                assert!(len > 255, "{len}");
                continue;
            };
            assert!(len <= 255, "{len}");
            let (reply, _) = World::default().ask(&request, at(0)).reply.unwrap();
            let octets = encode(&reply, request.max_reply_bytes);
            assert!(octets.len() <= 548, "{} octets for {len}", octets.len());
            let back = decode(&octets).unwrap().options;
            assert_eq!((back.bytes(53), back.address(54)), (Some(&[2][..]), Some(SERVER)), "{len}");
            assert_eq!(back.iter().last().map(|(code, value)| (code, value.len())), Some((82, len)));
        }
    }
}

#[test]
fn no_forged_message_nor_two_of_them_move_or_free_the_address_of_a_bound_device() {
    for first in 0..forgeries(SERVER, SERVER).len() {
        for second in 0..forgeries(SERVER, SERVER).len() {
            let (mut world, own) = with_bound_victim(100, 107);
            let free = (100..108).map(address).find(|a| *a != own).unwrap();
            for (turn, n) in [(1, first), (2, second)] {
                world.ask(&forgeries(own, free)[n], at(turn));
            }
            assert_never_given(&mut world, own);
        }
    }
}

#[test]
fn a_machine_that_was_given_an_address_is_refused_a_free_one() {
    for state in [Some(DeviceState::Bound), Some(DeviceState::Pooled), None] {
        let mut world = World::default();
        if let Some(state) = state {
            world.record(mac(1), state);
        }
        let own = held(&mut world, mac(1));
        let before = *world.leases.lease(own).unwrap();
        let free = address(if own == address(200) { 201 } else { 200 });
        for asked in [select(mac(1), free), renew(mac(1), free)] {
            let decision = world.ask(&asked, at(1));
            assert_eq!((kind_of(&decision), decision.reason, decision.change), (Some(NAK), Reason::Taken, None), "{asked:?}");
        }
        assert_eq!((world.leases.lease(own), world.leases.lease(free)), (Some(&before), None));
        // Given back is not yet another's: it may still be in use.
        world.ask(&release(mac(1), own), at(2));
        assert_eq!(world.ask(&select(mac(1), free), at(3)).reason, Reason::Taken);
        assert_eq!(world.ask(&select(mac(1), own), at(4)).reason, Reason::Acknowledged);
    }
}

#[test]
fn an_offer_is_taken_or_left_and_does_not_stop_a_machine_that_runs_on_another_address() {
    let mut world = World::default();
    let own = offered(&mut world, mac(1), 0);
    let other = address(if own == address(200) { 201 } else { 200 });
    assert_eq!(kind_of(&world.ask(&select(mac(1), other), at(1))), Some(NAK));
    assert_eq!(world.ask(&select(mac(1), own), at(2)).reason, Reason::Acknowledged);
    // The lease file was lost, and a stranger has a DISCOVER in the machine's name.
    let mut world = World::default();
    assert_eq!(offered(&mut world, mac(1), 0), own);
    assert_eq!(world.ask(&renew(mac(1), other), at(1)).reason, Reason::Acknowledged);
    assert_eq!(world.leases.address_of(mac(1).into(), SubnetId::LOCAL), Some(other));
}

#[test]
fn a_bound_device_whose_address_was_declined_in_its_name_keeps_it_when_it_renews() {
    let (mut world, own) = with_bound_victim(100, 107);
    assert_eq!(world.ask(&decline(mac(1), own), at(1)).reason, Reason::Declined);
    assert_eq!(world.ask(&renew(mac(2), own), at(2)).reason, Reason::Taken);
    assert_eq!(world.ask(&renew(mac(1), own), at(2)).reason, Reason::Acknowledged);
    assert_eq!(offered(&mut world, mac(1), 3), own);
}

#[test]
fn declines_in_the_name_of_a_bound_device_free_none_of_its_addresses_and_do_not_shut_the_range() {
    let (mut world, own) = with_bound_victim(100, 199);
    let mut declined = vec![own];
    for turn in 1..200 {
        let got = held(&mut world, mac(1));
        match world.ask(&decline(mac(1), got), at(turn)).reason {
            Reason::Declined => declined.push(got),
            reason => assert_eq!((reason, world.leases.address_of(mac(1).into(), SubnetId::LOCAL)), (Reason::TooManyDeclined, Some(got))),
        }
    }
    declined.sort();
    declined.dedup();
    assert_eq!(declined.len(), 4);
    // Strangers that decline all they get end no quarantine but their own.
    for n in 0..40 {
        let got = held(&mut world, mac(100 + n));
        assert_eq!(world.ask(&decline(mac(100 + n), got), at(300)).reason, Reason::Declined);
    }
    for kept in declined {
        assert_never_given(&mut world, kept);
    }
}

#[test]
fn a_quarantine_that_only_bound_devices_fill_takes_no_more() {
    let (mut world, own) = with_bound_victim(100, 107);
    world.record(mac(2), DeviceState::Bound);
    for (who, reason) in [(1, Reason::Declined), (2, Reason::Declined), (3, Reason::TooManyDeclined)] {
        let got = held(&mut world, mac(who));
        assert_eq!(world.ask(&decline(mac(who), got), at(1)).reason, reason);
    }
    assert_never_given(&mut world, own);
}

#[test]
fn an_address_that_a_device_declined_is_anybodys_again_once_it_is_not_bound() {
    let (mut world, own) = with_bound_victim(100, 100);
    world.ask(&decline(mac(1), own), at(1));
    assert_eq!(world.ask(&request(DISCOVER, mac(2), &[]), at(1000)).reason, Reason::Exhausted);
    world.record(mac(1), DeviceState::Pooled);
    assert_eq!(world.ask(&request(DISCOVER, mac(2), &[]), at(600)).reason, Reason::Exhausted, "in quarantine");
    assert_eq!(offered(&mut world, mac(2), 601), own);
}

/// A range of 60000 addresses.
fn big_world() -> World {
    let mut world = World::default();
    let dhcp = &mut world.config.dhcp;
    dhcp.newcomers_per_minute = MAX_NEWCOMERS;
    dhcp.local.prefix = 8;
    (dhcp.local.range_start, dhcp.local.range_end) = (Ipv4Addr::new(10, 78, 0, 0), Ipv4Addr::new(10, 78, 234, 95));
    world.leases = Leases::new(dhcp, SERVER);
    world
}

#[test]
fn a_flood_of_random_macs_stops_at_the_budget_and_new_machines_come_in_again_afterwards() {
    let mut world = big_world();
    world.record(mac(1), DeviceState::Pooled);
    let mut n = 0;
    for minute in 0..80 {
        let mut offers = 0;
        for _ in 0..300 {
            n += 1;
            let reason = world.ask(&request(DISCOVER, forged(n), &[]), at(minute * 60)).reason;
            match reason {
                Reason::Offered => offers += 1,
                _ => assert_eq!(reason, Reason::TooManyStrangers),
            }
        }
        assert_eq!(offers, MAX_NEWCOMERS, "minute {minute}");
        // Offers that nobody takes are forgotten, not kept for ever.
        let open = (0..=n).filter(|n| world.leases.address_of(forged(*n).into(), SubnetId::LOCAL).is_some()).count();
        assert_eq!(open, usize::try_from(MAX_NEWCOMERS).unwrap());
    }
    held(&mut world, mac(1));
    assert_eq!(world.ask(&request(DISCOVER, mac(9), &[]), at(80 * 60 - 1)).reason, Reason::TooManyStrangers);
    assert_eq!(world.ask(&request(DISCOVER, mac(9), &[]), at(80 * 60)).reason, Reason::Offered);
}

#[test]
fn the_budget_is_for_strangers_without_an_address_by_whatever_message() {
    let mut world = big_world();
    let plain = |n: u32| Ipv4Addr::from_bits(Ipv4Addr::new(10, 78, 0, 1).to_bits() + n);
    world.record(mac(1), DeviceState::Pooled);
    let kept = held(&mut world, mac(2));
    for n in 1..MAX_NEWCOMERS {
        let asked = if n % 2 == 0 { select(forged(n), plain(n)) } else { renew(forged(n), plain(n)) };
        world.ask(&asked, at(1));
    }
    for asked in [request(DISCOVER, forged(5000), &[]), select(forged(5000), plain(5000)), renew(forged(5000), plain(5000))] {
        assert_eq!(world.ask(&asked, at(2)).reason, Reason::TooManyStrangers, "{asked:?}");
    }
    assert_eq!(world.ask(&renew(mac(2), kept), at(2)).reason, Reason::Acknowledged);
    assert_eq!(world.ask(&request(DISCOVER, forged(1), &[]), at(2)).reason, Reason::Offered);
    assert_eq!(world.ask(&request(DISCOVER, mac(1), &[]), at(2)).reason, Reason::Offered);
}

#[test]
fn strangers_take_seven_eighths_of_the_range_and_the_ledgers_devices_find_the_rest() {
    let mut world = World::with_range(100, 199);
    let mut taken = 0;
    for n in 0..400_u32 {
        let now = at(u64::from(n));
        let who = forged(n);
        // Full handshakes, and requests without one.
        let wanted = match n % 3 {
            0 => address(100 + u8::try_from(n % 100).unwrap()),
            _ => match world.ask(&request(DISCOVER, who, &[]), now).reply {
                Some((packet, _)) => packet.yiaddr,
                None => continue,
            },
        };
        taken += u32::from(world.ask(&select(who, wanted), now).reason == Reason::Acknowledged);
    }
    assert_eq!(taken, 88);
    assert_eq!(world.ask(&request(DISCOVER, forged(9999), &[]), at(401)).reason, Reason::Exhausted);
    for n in 1..=12 {
        world.record(mac(n), DeviceState::Pooled);
        held(&mut world, mac(n));
    }
    // When the leases of strangers are over, a new machine gets one of those, never one of the devices'.
    let given = offered(&mut world, forged(9999), 8000);
    assert!((1..=12).all(|n| world.leases.address_of(mac(n).into(), SubnetId::LOCAL) != Some(given)));
}

/// A range of 32 that strangers have filled as far as they may.
fn filled_by_strangers() -> World {
    let mut world = World::with_range(100, 131);
    for n in 0..64 {
        let who = forged(n);
        if let Some((packet, _)) = world.ask(&request(DISCOVER, who, &[]), at(0)).reply {
            world.ask(&select(who, packet.yiaddr), at(0));
        }
    }
    world
}

#[test]
fn what_is_kept_for_the_ledgers_devices_is_not_used_up_by_arp_claims() {
    let mut world = World::with_range(100, 131);
    let claimed = (100..132).filter(|n| world.leases.avoid(address(*n), forged(u32::from(*n)))).count();
    assert_eq!(claimed, 28, "an eighth is kept");
    world = filled_by_strangers();
    assert_eq!((100..132).filter(|n| world.leases.avoid(address(*n), forged(9))).count(), 0);
    for n in 1..=4 {
        world.record(mac(n), DeviceState::Pooled);
        held(&mut world, mac(n));
    }
}

#[test]
fn what_is_kept_for_the_ledgers_devices_is_not_used_up_by_declines_forged_in_the_name_of_one() {
    let mut world = filled_by_strangers();
    world.record(mac(1), DeviceState::Pooled);
    for _ in 0..20 {
        let Some((packet, _)) = world.ask(&request(DISCOVER, mac(1), &[]), at(1)).reply else { break };
        world.ask(&select(mac(1), packet.yiaddr), at(1));
        world.ask(&decline(mac(1), packet.yiaddr), at(1));
    }
    world.record(mac(2), DeviceState::Pooled);
    held(&mut world, mac(2));
}
