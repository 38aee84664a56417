//! The rules of RFC 8415 s18.3 and of the product, one test each; then random clients.

use super::decide::*;
use super::machine::{self, Declined};
use super::wire::{Kind, Options, Received, Relay, option};
use crate::config::{Dhcpv6Mode, Ipv6};
use crate::dhcp::testing::World;
use crate::id::MacAddr;
use crate::ledger::{DeviceState, Ledger};
use crate::time::Mono;
use proptest::prelude::*;
use std::net::Ipv6Addr;

pub(super) const OWN: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 1);
pub(super) const SERVER_ID: &[u8] = &[0, 4, 9, 9, 9, 9];
const CLIENT_ID: &[u8] = &[0, 4, 1, 2, 3];
const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const ALL: [Kind; 8] =
    [Kind::Solicit, Kind::Request, Kind::Confirm, Kind::Renew, Kind::Rebind, Kind::Release, Kind::Decline, Kind::InformationRequest];

fn own() -> Ipv6Addr {
    machine::address(OWN, MAC, 0)
}

fn ia(addresses: &[Ipv6Addr]) -> Vec<u8> {
    let mut inner = Options::default();
    for address in addresses {
        inner.push(option::IA_ADDR, &[&address.octets()[..], &[0; 8]].concat());
    }
    [&[0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0][..], &inner.encode()].concat()
}

/// With the identifiers that its kind needs.
fn message(kind: Kind, more: &[(u16, &[u8])]) -> Received {
    let mut options = Options::default();
    options.push(option::CLIENT_ID, CLIENT_ID);
    if matches!(kind, Kind::Request | Kind::Renew | Kind::Release | Kind::Decline) {
        options.push(option::SERVER_ID, SERVER_ID);
    }
    for (code, value) in more {
        options.push(*code, value);
    }
    Received { relays: vec![], kind, xid: [1, 2, 3], options }
}

pub(super) fn ask_in(mode: Dhcpv6Mode, received: &Received, ledger: &Ledger, unknown_devices: bool, declined: &Declined) -> Decision {
    let ipv6 = Ipv6 { address: OWN, dhcp: mode, lease_secs: 3600, router_advertisements: false };
    let view = View { ipv6: &ipv6, boot_port: 80, unknown_devices, ledger, server_id: SERVER_ID, declined };
    decide(received, Some(MAC), &view, Mono::default())
}

fn ask(received: &Received) -> Decision {
    ask_in(Dhcpv6Mode::Managed, received, &Ledger::default(), true, &Declined::default())
}

/// Addresses and preferred lifetimes of each `IA_NA`, or its status.
fn told(decision: &Decision) -> Vec<Result<Vec<(Ipv6Addr, u32)>, u16>> {
    let options = &decision.reply.as_ref().unwrap().options;
    let number = |octets: &[u8]| u32::from_be_bytes(octets.try_into().unwrap());
    let one = |octets: &[u8]| {
        let inner = Options::read(&octets[12..]).unwrap();
        match inner.bytes(option::STATUS_CODE) {
            Some(status) => Err(u16::from_be_bytes([status[0], status[1]])),
            None => Ok(inner
                .all(option::IA_ADDR)
                .map(|a| (Ipv6Addr::from(<[u8; 16]>::try_from(&a[..16]).unwrap()), number(&a[16..20])))
                .collect()),
        }
    };
    options.all(option::IA_NA).map(one).collect()
}

fn status(decision: &Decision) -> Option<u16> {
    let status = decision.reply.as_ref()?.options.bytes(option::STATUS_CODE)?;
    Some(u16::from_be_bytes([status[0], status[1]]))
}

#[test]
fn solicit_request_and_rapid_commit_give_the_same_address() {
    let advertise = ask(&message(Kind::Solicit, &[(option::IA_NA, &ia(&[]))]));
    assert_eq!((advertise.reason, advertise.reply.as_ref().unwrap().advertise), (Reason::Advertised, true));
    let request = ask(&message(Kind::Request, &[(option::IA_NA, &ia(&[own()]))]));
    assert_eq!((request.reason, request.reply.as_ref().unwrap().advertise), (Reason::Replied, false));
    let rapid = ask(&message(Kind::Solicit, &[(option::IA_NA, &ia(&[])), (option::RAPID_COMMIT, &[])]));
    let reply = rapid.reply.clone().unwrap();
    assert!(!reply.advertise && reply.options.bytes(option::RAPID_COMMIT).is_some(), "committed only because asked for");
    assert_eq!(advertise.reply.as_ref().unwrap().options.bytes(option::RAPID_COMMIT), None);
    for decision in [advertise, request, rapid] {
        assert_eq!(told(&decision), [Ok(vec![(own(), 3600)])]);
        let options = decision.reply.unwrap().options;
        assert_eq!((options.bytes(option::CLIENT_ID), options.bytes(option::SERVER_ID)), (Some(CLIENT_ID), Some(SERVER_ID)));
    }
}

#[test]
fn lifetimes_are_the_configurations_and_t1_t2_lie_within() {
    let reply = ask(&message(Kind::Request, &[(option::IA_NA, &ia(&[]))])).reply.unwrap();
    let octets = reply.options.bytes(option::IA_NA).unwrap();
    let expected = [
        &[0, 0, 0, 7][..],
        &1800_u32.to_be_bytes(),
        &2880_u32.to_be_bytes(),
        &[0, 5, 0, 24],
        &own().octets(),
        &3600_u32.to_be_bytes(),
        &7200_u32.to_be_bytes(),
    ];
    assert_eq!(octets, expected.concat());
}

#[test]
fn revoked_is_silence_on_every_message() {
    let mut world = World::default();
    world.record(MAC, DeviceState::Revoked);
    for mode in [Dhcpv6Mode::Managed, Dhcpv6Mode::Stateless] {
        for kind in ALL {
            for more in [vec![], ia(&[own()])] {
                let received = message(kind, &[(option::IA_NA, &more), (61, &[0, 7])]);
                let decision = ask_in(mode, &received, &world.ledger, true, &Declined::default());
                assert_eq!(decision, Decision { reply: None, declined: vec![], reason: Reason::Revoked }, "{kind:?}");
            }
        }
    }
}

#[test]
fn strangers_get_silence_when_the_operator_says_so_and_nobody_is_answered_unknown() {
    let mut world = World::default();
    let solicit = message(Kind::Solicit, &[(option::IA_NA, &ia(&[]))]);
    let ask = |ledger: &Ledger| ask_in(Dhcpv6Mode::Managed, &solicit, ledger, false, &Declined::default());
    assert_eq!(ask(&world.ledger).reason, Reason::UnknownDevice);
    world.record(MAC, DeviceState::Pooled);
    assert_eq!(ask(&world.ledger).reason, Reason::Advertised);
    let ipv6 = Ipv6 { address: OWN, dhcp: Dhcpv6Mode::Managed, lease_secs: 60, router_advertisements: false };
    let declined = Declined::default();
    let view = View { ipv6: &ipv6, boot_port: 80, unknown_devices: true, ledger: &world.ledger, server_id: SERVER_ID, declined: &declined };
    assert_eq!(decide(&solicit, None, &view, Mono::default()).reason, Reason::NoMachine);
}

/// RFC 8415 s16.
#[test]
fn messages_without_their_identifiers_or_with_anothers_are_not_answered() {
    for kind in ALL {
        let named = matches!(kind, Kind::Request | Kind::Renew | Kind::Release | Kind::Decline);
        let ia = ia(&[own()]);
        let more: &[(u16, &[u8])] = if kind == Kind::InformationRequest { &[] } else { &[(option::IA_NA, &ia)] };
        let good = message(kind, more);
        assert!(ask(&good).reply.is_some(), "{kind:?}");
        let mut anonymous = good.clone();
        anonymous.options = Options::default();
        if named {
            anonymous.options.push(option::SERVER_ID, SERVER_ID);
        }
        assert_eq!(ask(&anonymous).reply.is_some(), kind == Kind::InformationRequest, "{kind:?} without a client identifier");
        let mut others = message(Kind::Solicit, more);
        others.kind = kind;
        others.options.push(option::SERVER_ID, b"\x00\x04another");
        assert_eq!(ask(&others).reply, None, "{kind:?} for another server");
        if named {
            let mut nobodys = message(Kind::Solicit, more);
            nobodys.kind = kind;
            assert_eq!(ask(&nobodys).reason, Reason::Invalid, "{kind:?} for nobody");
        }
    }
    let with_ia = message(Kind::InformationRequest, &[(option::IA_NA, &ia(&[]))]);
    assert_eq!(ask(&with_ia).reason, Reason::Invalid);
}

#[test]
fn what_is_held_is_renewed_and_what_is_not_is_taken_away() {
    let old: Ipv6Addr = "fd00:76::6b75:200:0:1".parse().unwrap();
    let renew = |addresses: &[Ipv6Addr]| told(&ask(&message(Kind::Renew, &[(option::IA_NA, &ia(addresses))])));
    assert_eq!(renew(&[own()]), [Ok(vec![(own(), 3600)])]);
    assert_eq!(renew(&[old]), [Ok(vec![(old, 0), (own(), 3600)])], "the prefix has changed");
    assert_eq!(renew(&[]), [Ok(vec![(own(), 3600)])]);
    let others = machine::address(OWN, MacAddr([2, 0, 0, 0, 0, 9]), 0);
    assert_eq!(renew(&[others]), [Ok(vec![(others, 0), (own(), 3600)])]);
}

#[test]
fn rebind_of_what_another_server_gave_is_not_answered() {
    let rebind = |addresses: &[Ipv6Addr]| ask(&message(Kind::Rebind, &[(option::IA_NA, &ia(addresses))]));
    assert_eq!(told(&rebind(&[own()])), [Ok(vec![(own(), 3600)])]);
    for addresses in [vec![], vec!["2001:db8::5".parse().unwrap()], vec![own(), "fd00:77::5".parse().unwrap()]] {
        assert_eq!(rebind(&addresses).reason, Reason::NotOurs);
    }
}

#[test]
fn confirm_says_whether_the_addresses_fit_the_link() {
    let confirm = |addresses: &[Ipv6Addr]| ask(&message(Kind::Confirm, &[(option::IA_NA, &ia(addresses))]));
    assert_eq!(status(&confirm(&[own(), "fd00:77::5".parse().unwrap()])), Some(0));
    assert_eq!(status(&confirm(&[own(), "fd00:78::5".parse().unwrap()])), Some(4));
    assert_eq!(confirm(&[]).reply, None);
}

#[test]
fn one_machine_has_one_address_and_no_prefix() {
    let second = [&[0, 0, 0, 8][..], &[0; 8]].concat();
    let more: [(u16, &[u8]); 4] =
        [(option::IA_NA, &ia(&[])), (option::IA_NA, &second), (option::IA_TA, &[0, 0, 0, 9]), (option::IA_PD, &second)];
    let decision = ask(&message(Kind::Request, &more));
    assert_eq!(told(&decision), [Ok(vec![(own(), 3600)]), Err(2)]);
    let options = decision.reply.unwrap().options;
    assert!(options.bytes(option::IA_TA).unwrap().starts_with(&[0, 0, 0, 9, 0, 13]));
    assert!(options.bytes(option::IA_PD).unwrap().ends_with(b"\x00\x06"));
}

#[test]
fn a_declined_address_is_replaced_and_a_promise_is_kept() {
    let decline = ask(&message(Kind::Decline, &[(option::IA_NA, &ia(&[own()]))]));
    assert_eq!((status(&decline), &decline.declined[..]), (Some(0), &[own()][..]));
    let mut declined = Declined::default();
    declined.decline(OWN, MAC, own(), Mono::default());
    let again = ask_in(Dhcpv6Mode::Managed, &message(Kind::Solicit, &[(option::IA_NA, &ia(&[]))]), &Ledger::default(), true, &declined);
    let next = machine::address(OWN, MAC, 1);
    assert_eq!(told(&again), [Ok(vec![(next, 3600)])]);
    let renewed = ask(&message(Kind::Renew, &[(option::IA_NA, &ia(&[next]))]));
    assert_eq!(told(&renewed), [Ok(vec![(next, 3600)])], "also after a restart, which forgets declines");
    assert_eq!(status(&ask(&message(Kind::Release, &[(option::IA_NA, &ia(&[own()]))]))), Some(0));
}

#[test]
fn stateless_gives_boot_information_and_leaves_addresses_to_others() {
    let stateless = |received: &Received| ask_in(Dhcpv6Mode::Stateless, received, &Ledger::default(), true, &Declined::default());
    for kind in [Kind::Solicit, Kind::Request, Kind::Renew, Kind::Rebind, Kind::Confirm] {
        let decision = stateless(&message(kind, &[(option::IA_NA, &ia(&[own()]))]));
        assert_eq!((decision.reply, decision.reason), (None, Reason::NotOurs), "{kind:?}: an operating system");
    }
    let pxe = message(Kind::Solicit, &[(option::IA_NA, &ia(&[])), (option::CLIENT_ARCH, &[0, 7])]);
    let decision = stateless(&pxe);
    assert_eq!(told(&decision), [Err(2)]);
    let options = decision.reply.unwrap().options;
    assert_eq!(options.bytes(option::BOOTFILE_URL), Some(&b"tftp://[fd00:77::1]/snponly.efi"[..]));
    assert_eq!(options.bytes(option::VENDOR_CLASS), Some(&b"\x00\x00\x01\x57\x00\x09PXEClient"[..]));
    let informed = stateless(&message(Kind::InformationRequest, &[(option::CLIENT_ARCH, &[0, 7])]));
    assert_eq!(informed.reason, Reason::Informed);
    assert!(informed.reply.unwrap().options.bytes(option::BOOTFILE_URL).is_some());
}

#[test]
fn behind_a_relay_on_another_link_there_is_no_address_of_ours() {
    let relay = |link: &str| Relay {
        hops: 0,
        link: link.parse().unwrap(),
        peer: "fe80::ff:fe00:1".parse().unwrap(),
        interface_id: None,
        link_layer: None,
    };
    let ask = |relays: Vec<Relay>| ask(&Received { relays, ..message(Kind::Solicit, &[(option::IA_NA, &ia(&[])), (61, &[0, 7])]) });
    assert_eq!(told(&ask(vec![relay("fd00:77::2")])), [Ok(vec![(own(), 3600)])]);
    assert_eq!(told(&ask(vec![relay("fd00:78::2")])), [Err(2)]);
    // The nearest to the client names only its interface; the next names the link.
    assert_eq!(told(&ask(vec![relay("fd00:78::2"), relay("::")])), [Err(2)]);
}

#[test]
fn the_devices_own_loader_is_offered() {
    let mut world = World::default();
    world.record(MAC, DeviceState::Pooled);
    if let Some(device) = world.ledger.devices.get_mut(&MAC) {
        std::sync::Arc::make_mut(device).loader = Some("ipxe-amd64.efi".into());
    }
    let solicit = message(Kind::Solicit, &[(option::IA_NA, &ia(&[])), (61, &[0, 7])]);
    let decision = ask_in(Dhcpv6Mode::Managed, &solicit, &world.ledger, true, &Declined::default());
    assert_eq!(decision.reply.unwrap().options.bytes(option::BOOTFILE_URL), Some(&b"tftp://[fd00:77::1]/ipxe-amd64.efi"[..]));
}

proptest! {
    /// Whatever is asked in whatever order: only a machine's own addresses are ever given, and junk in options is survived.
    #[test]
    fn only_ones_own_addresses_are_given(
        kind in proptest::sample::select(&ALL[..]),
        wanted in proptest::collection::vec(any::<u128>().prop_map(Ipv6Addr::from_bits), 0..4),
        junk in proptest::collection::vec((0_u16..100, proptest::collection::vec(any::<u8>(), 0..30)), 0..6),
    ) {
        let ia = ia(&wanted);
        let mut more: Vec<(u16, &[u8])> = vec![(option::IA_NA, &ia)];
        more.extend(junk.iter().map(|(code, value)| (*code, value.as_slice())));
        let decision = ask(&message(kind, &more));
        if let Some(reply) = &decision.reply {
            let read = Options::read(&reply.options.encode());
            prop_assert_eq!(read.as_ref(), Ok(&reply.options));
            for (address, secs) in told(&decision).into_iter().flatten().flatten() {
                prop_assert!(secs == 0 || (0..machine::VARIANTS).any(|n| machine::address(OWN, MAC, n) == address));
            }
        }
    }
}

/// Whoever forges a neighbour's address must not make us say much more to it than was said to us, whatever is asked for.
#[test]
fn many_small_questions_in_one_message_make_no_amplifier_of_us() {
    let mut asked = message(Kind::Solicit, &[]);
    for _ in 0..8 {
        for code in [option::IA_NA, option::IA_PD] {
            asked.options.push(code, &[0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
        }
        asked.options.push(option::IA_TA, &[0, 0, 0, 7]);
    }
    let answer = super::wire::encode(&ask(&asked).reply.unwrap(), &asked);
    let question = 4 + asked.options.encode().len();
    assert!(answer.len() <= question, "{} octets for {question}", answer.len());
}
