//! Any datagram to port 67: decoded without a panic; what is decoded is encoded to a message that reads back the same, at least
//! 300 octets long and no longer than the client takes; a request is read, and answered within the same bounds.
#![no_main]

use kurrent_core::dhcp::{msg, wire};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|octets: &[u8]| {
    let Ok(packet) = wire::decode(octets) else { return };
    let again = wire::encode(&packet, usize::MAX);
    assert!(again.len() >= wire::MIN_MESSAGE_BYTES);
    let read = wire::decode(&again).expect("what was encoded is read");
    assert_eq!(read.chaddr, packet.chaddr);
    assert_eq!(read.options.bytes(wire::option::RELAY_AGENT), packet.options.bytes(wire::option::RELAY_AGENT));
    let Ok(request) = msg::request(&packet) else { return };
    let short = wire::encode(&msg::refused(&request, std::net::Ipv4Addr::new(10, 77, 0, 1), "no"), request.max_reply_bytes);
    let relay = request.echoed.iter().find(|(code, _)| *code == wire::option::RELAY_AGENT).map_or(0, |(_, value)| value.len() * 2 + 2);
    assert!((wire::MIN_MESSAGE_BYTES..=request.max_reply_bytes + relay).contains(&short.len()), "{} octets", short.len());
});
