//! The uplink's client against scripted servers.

use super::*;
use crate::dhcp::wire;
use proptest::prelude::*;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const GIVEN: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 50);

fn at(secs: u64) -> Mono {
    Mono(Duration::from_secs(secs))
}

fn reply(kind: u8, to: &Send, lease: u32) -> Packet {
    let mut packet = Packet { op: OP_REPLY, xid: to.packet.xid, yiaddr: GIVEN, chaddr: to.packet.chaddr, ..Packet::default() };
    packet.options.push(option::MESSAGE_TYPE, &[kind]);
    packet.options.push(option::SERVER_ID, &SERVER.octets());
    packet.options.push(option::LEASE_TIME, &lease.to_be_bytes());
    packet.options.push(option::SUBNET_MASK, &[255, 255, 255, 0]);
    packet.options.push(option::ROUTER, &SERVER.octets());
    packet.options.push(option::DOMAIN_NAME, b"lab.example\nnameserver 6.6.6.6");
    packet
}

fn bound(now: Mono, lease: u32) -> (Client, Terms) {
    let mut client = Client::new(MAC, "kurrent", None, now);
    let (discover, _) = client.on(Event::Timer, 7, now);
    let (request, _) = client.on(Event::Received(&reply(2, &discover.unwrap(), lease)), 8, now);
    match client.on(Event::Received(&reply(5, &request.unwrap(), lease)), 9, now) {
        (None, Some(News::Have(terms))) => (client, terms),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_address_is_had_after_four_messages_and_text_from_the_server_is_checked() {
    let (client, terms) = bound(at(100), 3600);
    assert_eq!((terms.address, terms.prefix, terms.router, terms.domain), (GIVEN, 24, Some(SERVER), None));
    assert_eq!(client.deadline(), at(100 + 1800));
}

#[test]
fn it_renews_with_its_server_then_with_any_then_gives_the_address_up() {
    let (mut client, terms) = bound(at(0), 800);
    let mut seen = Vec::new();
    let lost = loop {
        let now = client.deadline();
        let (send, news) = client.on(Event::Timer, 5, now);
        if let Some(News::Lost(lost)) = news {
            break (lost, now);
        }
        let send = send.unwrap();
        assert_eq!((send.packet.ciaddr, *send.from.ip()), (GIVEN, GIVEN));
        seen.push((now, *send.to.ip()));
    };
    assert_eq!(lost, (terms, at(800)));
    assert_eq!(seen.first(), Some(&(at(400), SERVER)));
    assert!(seen.iter().all(|(now, to)| (*to == SERVER) == (*now < at(700))), "{seen:?}");
    assert!(seen.len() <= 10, "{seen:?}");
}

#[test]
fn an_ack_while_renewing_starts_the_lease_anew_and_a_nak_ends_it() {
    let (mut client, terms) = bound(at(0), 800);
    let (renew, _) = client.on(Event::Timer, 5, at(400));
    let renew = renew.unwrap();
    assert_eq!(client.clone().on(Event::Received(&reply(6, &renew, 800)), 6, at(401)).1, Some(News::Lost(terms)));
    assert!(matches!(client.on(Event::Received(&reply(5, &renew, 800)), 6, at(401)).1, Some(News::Have(_))));
    assert_eq!(client.deadline(), at(801));
}

#[test]
fn a_request_without_an_answer_starts_over() {
    let mut client = Client::new(MAC, "kurrent", Some(GIVEN), at(0));
    let (discover, _) = client.on(Event::Timer, 7, at(0));
    let discover = discover.unwrap();
    assert_eq!(discover.packet.options.address(option::REQUESTED_ADDRESS), Some(GIVEN));
    client.on(Event::Received(&reply(2, &discover, 800)), 8, at(0));
    for _ in 0..REQUESTS {
        assert!(matches!(client.state(), State::Requesting(_)));
        client.on(Event::Timer, 7, client.deadline());
    }
    assert_eq!(client.state(), &State::Selecting);
}

#[test]
fn answers_for_others_and_for_earlier_questions_are_ignored() {
    let mut client = Client::new(MAC, "kurrent", None, at(0));
    let (discover, _) = client.on(Event::Timer, 7, at(0));
    let right = reply(2, &discover.unwrap(), 800);
    for wrong in [
        Packet { xid: 8, ..right.clone() },
        Packet { op: wire::OP_REQUEST, ..right.clone() },
        Packet { chaddr: [9; 16], ..right.clone() },
        Packet { yiaddr: Ipv4Addr::UNSPECIFIED, ..right.clone() },
        Packet { yiaddr: Ipv4Addr::LOCALHOST, ..right.clone() },
    ] {
        assert_eq!(client.on(Event::Received(&wrong), 8, at(0)), (None, None), "{wrong:?}");
    }
}

#[test]
fn a_lease_for_ever_is_never_renewed() {
    let (client, _) = bound(at(0), u32::MAX);
    assert_eq!(client.deadline(), Mono(Duration::MAX));
}

proptest! {
    #[test]
    fn no_answer_makes_it_panic_or_ask_more_than_once_a_second(octets in prop::collection::vec(any::<u8>(), 60..200), kinds in prop::collection::vec(0u8..8, 1..20)) {
        let mut client = Client::new(MAC, "kurrent", None, at(0));
        let mut last = None;
        for (turn, kind) in kinds.iter().enumerate() {
            let now = client.deadline().max(at(turn as u64));
            let (send, _) = client.on(Event::Timer, 3, now);
            last = send.or(last);
            let Some(sent) = &last else { continue };
            let mut packet = reply(*kind, sent, u32::from(octets[turn]));
            packet.options.push(octets[turn + 20], &octets[turn + 21..turn + 21 + usize::from(octets[turn + 20] % 9)]);
            client.on(Event::Received(&packet), 4, now);
            prop_assert!(client.deadline() > now);
        }
    }
}
