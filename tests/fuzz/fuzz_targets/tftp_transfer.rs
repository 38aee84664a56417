//! Any datagram to port 69, and any answers during the transfer that it begins: no panic; only what was asked for is accepted;
//! before the first ACK nothing is sent more than three times; no more than a window is sent at once; every transfer ends.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::time::Duration;
use tftp_server::transfer::{Event, Output, Transfer};
use tftp_server::wire::{self, Initial, Reply};

fuzz_target!(|octets: &[u8]| {
    let (Some((size, rest)), now) = (octets.split_first_chunk::<4>(), Duration::ZERO) else { return };
    let at = rest.iter().position(|b| *b == 0xfe).unwrap_or(rest.len());
    let (first, answers) = rest.split_at(at);
    let Initial::Read(request) = wire::initial(first) else { return };
    let size = u64::from(u32::from_be_bytes(*size));
    let (mut transfer, output) = Transfer::start(&request.asked, size, 1468, now);
    for (name, _) in transfer.accepted() {
        assert!(first.to_ascii_lowercase().windows(name.len()).any(|w| w == name.as_bytes()), "{name} was not asked for");
    }
    let (mut now, mut answered, mut sends) = (now, false, 0);
    let mut check = |output: &Output, answered: bool| {
        match output {
            Output::Blocks { first, last } => assert!(last - first < 64 && first <= last),
            Output::OptionAck | Output::Wait | Output::Done | Output::Aborted | Output::GaveUp => {}
        }
        sends += u32::from(matches!(output, Output::Blocks { .. } | Output::OptionAck));
        assert!(answered || sends <= 3, "sent {sends} times before the first ACK");
    };
    check(&output, answered);
    for chunk in answers.chunks(5) {
        now += Duration::from_millis(u64::from(chunk.first().copied().unwrap_or_default()) * 20);
        let event = if chunk.len() < 3 { Event::Timer } else { Event::Received(wire::reply(&chunk[1..])) };
        answered |= matches!(event, Event::Received(Reply::Ack(_)));
        let output = transfer.on(event, now);
        check(&output, answered);
    }
    // Whatever was said before: left alone, it ends.
    for _ in 0..64 {
        now = now.max(transfer.deadline());
        if let Output::Done | Output::Aborted | Output::GaveUp = transfer.on(Event::Timer, now) {
            return;
        }
    }
    let ended = matches!(transfer.on(Event::Received(Reply::Error), now), Output::Wait);
    assert!(ended, "a transfer that nobody answers goes on");
});
