use super::super::Reason;
use super::super::lease::{Change, Claim};
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
    assert_eq!(conflicts.claimed(address(100), mac(9), None, false, at(0)), Finding::Avoid);
    assert_eq!(conflicts.claimed(address(100), mac(9), None, false, at(1)), Finding::Nothing, "known");
    assert_eq!(conflicts.claimed(address(101), mac(9), Some(mac(1)), false, at(1)), Finding::Avoid, "merely offered");
    assert_eq!(conflicts.claimed(address(102), mac(9), Some(mac(1)), true, at(1)), Finding::UsedByAnother(mac(1)));
    assert_eq!(conflicts.claimed(address(103), mac(1), Some(mac(1)), true, at(1)), Finding::Nothing, "its own");
    let all: Vec<_> = conflicts.list().map(|c| (c.address, c.given_to)).collect();
    assert_eq!(all, [(address(100), None), (address(101), None), (address(102), Some(mac(1)))]);
    assert!(conflicts.expire(at(600).mono).is_empty());
    assert_eq!(conflicts.expire(at(601).mono), [address(100), address(101), address(102)]);
}

#[test]
fn whoever_answers_for_everything_keeps_nothing_from_us() {
    let mut conflicts = Conflicts::new(&subnet(1, 254));
    for last in 1..=16 {
        assert_eq!(conflicts.claimed(address(last), mac(9), None, false, at(0)), Finding::Avoid);
    }
    let Finding::AnswersForAll(freed) = conflicts.claimed(address(17), mac(9), None, false, at(0)) else { panic!("not found out") };
    assert_eq!((freed.len(), conflicts.list().count()), (MAX_OF_ONE, 0));
    assert_eq!(conflicts.claimed(address(18), mac(9), None, false, at(1)), Finding::Nothing);
    assert_eq!(conflicts.claimed(address(18), mac(9), None, false, at(601)), Finding::Avoid, "it may have been repaired");
    // With a new MAC for each answer: no more than a quarter.
    let forged = |n: u8| conflicts.claimed(address(n), mac(n), None, false, at(700));
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
    conflicts.claimed(address(103), mac(9), None, false, at(1));
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
    assert!(world.leases.avoid(first));
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
    assert!(!world.leases.avoid(address(100)));
    world.record(mac(2), DeviceState::Bound);
    world.reserve(mac(2), address(105));
    assert!(!world.leases.avoid(address(105)));
    world.leases.apply(Change::Offer { holder: mac(2).into(), address: address(105) }, at(0));
    assert!(!world.leases.avoid(address(105)), "an offer of a reserved address stands");
    assert_eq!(world.ask(&request(1, mac(2), &[]), at(1)).reply.unwrap().0.yiaddr, address(105));
}
