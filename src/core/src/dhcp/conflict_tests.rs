use super::super::Reason;
use super::super::lease::{Change, Claim};
use super::super::msg::Request;
use super::super::pool::SubnetId;
use super::super::testing::{World, at, mac, request};
use super::super::wire::option;
use super::*;
use crate::config::Config;
use crate::ledger::DeviceState;

fn address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, last)
}

fn subnet(first: u8, last: u8) -> Subnet {
    Subnet { range_start: address(first), range_end: address(last), ..Config::default().dhcp.local }
}

#[test]
fn a_stranger_on_an_address_of_nobody_is_avoided_and_one_on_anothers_is_only_told_of() {
    let mut conflicts = Conflicts::new(&subnet(100, 199));
    assert_eq!(conflicts.claimed(address(100), mac(9), Owner::Nobody, at(0)), Finding::Avoid);
    assert_eq!(conflicts.claimed(address(100), mac(9), Owner::Nobody, at(1)), Finding::Nothing, "known");
    assert_eq!(conflicts.claimed(address(101), mac(9), Owner::Offered(mac(1)), at(1)), Finding::Avoid, "merely offered");
    assert_eq!(conflicts.claimed(address(102), mac(9), Owner::Given(mac(1)), at(1)), Finding::UsedByAnother(mac(1)));
    assert_eq!(conflicts.claimed(address(103), mac(1), Owner::Given(mac(1)), at(1)), Finding::Nothing, "its own");
    let all: Vec<_> = conflicts.list().map(|c| (c.address, c.given_to)).collect();
    assert_eq!(all, [(address(100), None), (address(101), None), (address(102), Some(mac(1)))]);
    assert!(conflicts.expire(|_| Owner::Nobody, at(600).mono).is_empty());
    assert_eq!(conflicts.expire(|_| Owner::Nobody, at(601).mono), [address(100), address(101), address(102)]);
}

#[test]
fn whoever_answers_for_everything_keeps_nothing_from_us() {
    let mut conflicts = Conflicts::new(&subnet(1, 254));
    for last in 1..=16 {
        assert_eq!(conflicts.claimed(address(last), mac(9), Owner::Nobody, at(0)), Finding::Avoid);
    }
    let Finding::AnswersForAll(freed) = conflicts.claimed(address(17), mac(9), Owner::Nobody, at(0)) else { panic!("not found out") };
    assert_eq!((freed.len(), conflicts.list().count()), (MAX_OF_ONE, 0));
    assert_eq!(conflicts.claimed(address(18), mac(9), Owner::Nobody, at(1)), Finding::Nothing);
    assert_eq!(conflicts.claimed(address(18), mac(9), Owner::Nobody, at(601)), Finding::Avoid, "it may have been repaired");
    // With a new MAC for each answer: no more than a quarter.
    let forged = |n: u8| conflicts.claimed(address(n), mac(n), Owner::Nobody, at(700));
    let avoided = (19..=250).map(forged).filter(|f| *f == Finding::Avoid).count();
    assert_eq!(avoided + 1, 254 / 4);
}

#[test]
fn the_range_is_asked_through_once_and_users_of_addresses_again() {
    let local = subnet(100, 103);
    let mut conflicts = Conflicts::new(&local);
    let ask = |conflicts: &mut Conflicts, secs| conflicts.ask_next(&local, |a| a != address(101), at(secs).mono);
    assert_eq!(ask(&mut conflicts, 0), Some(address(100)));
    assert!(conflicts.ask_with_offer(address(102), at(0).mono));
    assert!(!conflicts.ask_with_offer(address(102), at(1).mono), "asked already");
    assert_eq!((ask(&mut conflicts, 0), ask(&mut conflicts, 0), conflicts.sweeps()), (Some(address(103)), None, false));
    conflicts.claimed(address(103), mac(9), Owner::Nobody, at(1));
    assert_eq!((ask(&mut conflicts, 200), ask(&mut conflicts, 241), ask(&mut conflicts, 242)), (None, Some(address(103)), None));
    assert!(conflicts.ask_with_offer(address(102), at(600).mono));
    let large = Subnet { range_end: Ipv4Addr::new(10, 77, 200, 1), ..local.clone() };
    let mut conflicts = Conflicts::new(&large);
    let asked = (0..5000).filter(|_| conflicts.ask_next(&large, |_| true, at(0).mono).is_some()).count();
    assert_eq!(asked, usize::try_from(SWEEP).unwrap());
    let burst = (0..250).filter(|n| conflicts.ask_with_offer(Ipv4Addr::new(10, 77, 100, *n), at(9).mono)).count();
    assert_eq!(burst, usize::try_from(MAX_BURST).unwrap());
}

/// A ping before the OFFER costs seconds; here the question leaves with it.
#[test]
fn opnsense_9872_an_address_that_was_never_asked_for_is_offered_at_once() {
    let mut world = World::with_range(100, 101);
    let mut conflicts = Conflicts::new(&world.config.dhcp.local);
    for last in 1..=2 {
        let decision = world.ask(&request(1, mac(last), &[]), at(0));
        let (offer, _) = decision.reply.expect("an OFFER, with nothing else to happen first");
        assert!(decision.reason == Reason::Offered && conflicts.ask_with_offer(offer.yiaddr, at(0).mono), "{last}");
    }
}

#[test]
fn an_offer_of_an_address_that_somebody_uses_is_taken_back_and_another_one_is_offered() {
    let mut world = World::with_range(100, 101);
    let offered = |world: &mut World| world.ask(&request(1, mac(1), &[]), at(1)).reply.unwrap().0.yiaddr;
    let first = offered(&mut world);
    assert!(world.leases.avoid(first, mac(9)));
    let server = super::super::testing::SERVER.octets();
    let take = request(3, mac(1), &[(option::REQUESTED_ADDRESS, &first.octets()), (option::SERVER_ID, &server)]);
    assert_eq!(world.ask(&take, at(2)).reason, Reason::Taken);
    let second = offered(&mut world);
    assert_ne!(first, second);
    world.leases.stop_avoiding(first);
    assert_eq!(world.leases.claim(mac(2).into(), SubnetId::LOCAL, first, at(3).mono), Claim::Free);
}

#[test]
fn what_was_given_or_is_reserved_is_never_avoided() {
    let mut world = World::with_range(100, 109);
    world.bind(mac(1), address(100));
    assert!(!world.leases.avoid(address(100), mac(9)));
    world.record(mac(2), DeviceState::Bound);
    world.reserve(mac(2), address(105));
    assert!(!world.leases.avoid(address(105), mac(9)));
    world.leases.apply(Change::Offer { holder: mac(2).into(), address: address(105) }, at(0));
    assert!(!world.leases.avoid(address(105), mac(9)), "an offer of a reserved address stands");
    assert_eq!(world.ask(&request(1, mac(2), &[]), at(1)).reply.unwrap().0.yiaddr, address(105));
}

/// A lost lease file, or another server that was before us: machines run on addresses, and ARP tells of them.
#[test]
fn a_machine_that_runs_on_an_address_nobody_gave_it_keeps_it_by_renewal_and_by_a_new_start() {
    let mut world = World::with_range(100, 109);
    let renewal = |n: u8, last: u8| Request { ciaddr: address(last), ..request(3, mac(n), &[]) };
    assert!(world.leases.avoid(address(105), mac(1)) && world.leases.avoid(address(106), mac(2)));
    assert_eq!(world.ask(&renewal(3, 105), at(1)).reason, Reason::Taken, "another one");
    assert_eq!(world.ask(&renewal(1, 105), at(1)).reason, Reason::Acknowledged);
    assert_eq!(Owner::of(address(105), &world.leases), Owner::Given(mac(1)));
    // It starts anew and asks for what it had; nobody else gets that, whatever he asks for.
    let starts = |n: u8, last: u8| request(1, mac(n), &[(option::REQUESTED_ADDRESS, &address(last).octets())]);
    let given = |decision: super::super::Decision| decision.reply.unwrap().0.yiaddr;
    assert_ne!(given(world.ask(&starts(4, 106), at(2))), address(106));
    assert_eq!(given(world.ask(&starts(2, 106), at(2))), address(106));
    let server = super::super::testing::SERVER.octets();
    let take = request(3, mac(2), &[(option::REQUESTED_ADDRESS, &address(106).octets()), (option::SERVER_ID, &server)]);
    assert_eq!(world.ask(&take, at(3)).reason, Reason::Acknowledged);
    // The avoidance ended with that: what it gives back is anybody's, later.
    world.ask(&Request { ciaddr: address(106), ..request(7, mac(2), &[]) }, at(4));
    assert_eq!(world.leases.claim(mac(3).into(), SubnetId::LOCAL, address(106), at(4).mono.after(AVOID_FOR)), Claim::Free);
}

#[test]
fn a_conflict_ends_when_the_user_of_the_address_is_given_it() {
    let mut world = World::with_range(100, 109);
    let mut conflicts = Conflicts::new(&world.config.dhcp.local);
    for n in [1, 2] {
        assert_eq!(conflicts.claimed(address(100 + n), mac(n), Owner::of(address(100 + n), &world.leases), at(0)), Finding::Avoid);
        world.leases.avoid(address(100 + n), mac(n));
    }
    world.ask(&Request { ciaddr: address(101), ..request(3, mac(1), &[]) }, at(1));
    let over = conflicts.expire(|address| Owner::of(address, &world.leases), at(2).mono);
    assert_eq!((over, conflicts.list().count()), (vec![address(101)], 1));
}

#[test]
fn a_reserved_address_that_somebody_else_uses_is_told_of_and_is_its_devices_all_the_same() {
    let mut world = World::with_range(100, 109);
    world.record(mac(2), DeviceState::Pooled);
    world.reserve(mac(2), address(105));
    world.record(mac(3), DeviceState::Pooled);
    world.reserve(mac(3), address(50));
    let mut conflicts = Conflicts::new(&world.config.dhcp.local);
    for (last, device) in [(105, 2), (50, 3)] {
        let owner = Owner::of(address(last), &world.leases);
        assert_eq!(owner, Owner::Reserved(mac(device)));
        assert_eq!(conflicts.claimed(address(last), mac(device), owner, at(0)), Finding::Nothing, "set by hand, as reserved");
        assert_eq!(conflicts.claimed(address(last), mac(9), owner, at(0)), Finding::ReservedForAnother(mac(device)));
    }
    assert!(conflicts.list().all(|c| c.given_to.is_some()), "nobody says that they are not given out");
    world.leases.apply(Change::Offer { holder: mac(2).into(), address: address(105) }, at(0));
    assert_eq!(Owner::of(address(105), &world.leases), Owner::Reserved(mac(2)), "offered");
    world.bind(mac(2), address(105));
    assert_eq!(Owner::of(address(105), &world.leases), Owner::Given(mac(2)));
}

#[test]
fn users_of_given_addresses_take_no_place_from_addresses_that_must_be_avoided() {
    let mut conflicts = Conflicts::new(&subnet(100, 139));
    for n in 0..20 {
        let finding = conflicts.claimed(address(100 + n), mac(100 + n), Owner::Given(mac(1)), at(0));
        assert_eq!(finding, Finding::UsedByAnother(mac(1)));
    }
    let avoided = (20..40).map(|n| conflicts.claimed(address(100 + n), mac(100 + n), Owner::Nobody, at(0)));
    assert_eq!(avoided.filter(|f| *f == Finding::Avoid).count(), 10, "a quarter");
}

#[test]
fn claims_forged_in_a_victims_name_do_not_free_the_address_that_it_uses() {
    let mut conflicts = Conflicts::new(&subnet(1, 254));
    assert_eq!(conflicts.claimed(address(1), mac(9), Owner::Nobody, at(0)), Finding::Avoid);
    let mut freed = Vec::new();
    for n in 2..100 {
        match conflicts.claimed(address(n), mac(9), Owner::Nobody, at(300)) {
            Finding::AnswersForAll(all) => freed.extend(all),
            Finding::Avoid | Finding::Nothing => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((freed.len(), freed.contains(&address(1))), (MAX_OF_ONE - 1, false));
    // And it is still heard while the rest counts for nothing.
    for secs in [500, 900, 1300] {
        assert_eq!(conflicts.claimed(address(1), mac(9), Owner::Nobody, at(secs)), Finding::Nothing);
        assert!(conflicts.expire(|_| Owner::Nobody, at(secs).mono).is_empty());
    }
    assert_eq!(conflicts.list().map(|c| c.address).collect::<Vec<_>>(), [address(1)]);
}
