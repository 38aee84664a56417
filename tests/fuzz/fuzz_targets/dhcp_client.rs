//! Any datagrams to the uplink's client: it neither panics nor asks more often than once a message, and its deadline never lies
//! behind it for ever.
#![no_main]

use kurrent_core::dhcp::client::{Client, Event};
use kurrent_core::dhcp::wire;
use kurrent_core::id::MacAddr;
use kurrent_core::time::Mono;
use libfuzzer_sys::fuzz_target;
use std::time::Duration;

const MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 1]);

fuzz_target!(|octets: &[u8]| {
    let mut now = Mono::default();
    let mut client = Client::new(MAC, "kurrent", None, now);
    // A message at a time: two octets of length, then the message; the client's own transaction, else nothing is believed.
    let mut rest = octets;
    while let Some((length, tail)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_be_bytes(*length)) % 600;
        let (message, tail) = tail.split_at(length.min(tail.len()));
        rest = tail;
        now = now.after(Duration::from_secs(2));
        let _ = client.on(Event::Timer, 7, now);
        if let Ok(mut packet) = wire::decode(message) {
            packet.xid = 7;
            packet.op = wire::OP_REPLY;
            packet.chaddr[..6].copy_from_slice(&MAC.0);
            let _ = client.on(Event::Received(&packet), 7, now);
        }
    }
});
