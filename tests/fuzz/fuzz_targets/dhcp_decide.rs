//! Any sequence of datagrams to port 67, decided as the listener decides: no panic; no address to two machines; an ACK names its
//! lease; no answer is larger than its client takes; and no answer is larger than three questions.
#![no_main]

use kurrent_core::config::{Config, Subnet};
use kurrent_core::dhcp::lease::{Change, Leases};
use kurrent_core::dhcp::{View, decide, msg, wire};
use kurrent_core::ledger::Ledger;
use kurrent_core::time::{Mono, Now, Wall};
use libfuzzer_sys::fuzz_target;
use std::time::Duration;

fuzz_target!(|octets: &[u8]| {
    let mut config = Config::default();
    let relayed = Subnet { address: [10, 78, 0, 0].into(), range_start: [10, 78, 0, 2].into(), range_end: [10, 78, 0, 9].into(), ..config.dhcp.local.clone() };
    config.dhcp.relayed = vec![relayed];
    let ledger = Ledger::default();
    let mut leases = Leases::new(&config.dhcp, config.boot_network.address);
    let mut secs = 0_u64;
    let mut rest = octets;
    // A message at a time: seconds, length, then the message.
    while let Some(([wait, high, low], tail)) = rest.split_first_chunk::<3>() {
        let (message, tail) = tail.split_at((usize::from(u16::from_be_bytes([*high, *low])) % 700).min(tail.len()));
        rest = tail;
        secs += u64::from(*wait);
        let now = Now { mono: Mono(Duration::from_secs(secs)), wall: Wall::from_second(1_796_000_000 + secs as i64).expect("a time") };
        leases.advance(now.mono);
        let Some(request) = wire::decode(message).ok().and_then(|packet| msg::request(&packet).ok()) else { continue };
        let view = View { dhcp: &config.dhcp, network: &config.boot_network, boot_port: 80, ledger: &ledger, leases: &leases };
        let decision = decide(&request, &view, now);
        if let Some((packet, _)) = &decision.reply {
            let answer = wire::encode(packet, request.max_reply_bytes);
            let relay = packet.options.bytes(wire::option::RELAY_AGENT).map_or(0, |value| value.len() + 2 * value.len().div_ceil(255).max(1));
            assert!((wire::MIN_MESSAGE_BYTES..=request.max_reply_bytes + relay).contains(&answer.len()), "{} octets", answer.len());
            assert!(answer.len() <= 3 * message.len(), "{} octets for {}", answer.len(), message.len());
            if let Some(Change::Bind { address, .. }) = &decision.change {
                assert_eq!(packet.yiaddr, *address);
            }
        }
        if let Some(change) = decision.change {
            leases.apply(change, now);
        }
    }
});
