//! The transfer against scripted and random networks.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn plain(size: u64) -> (Transfer, Output) {
    Transfer::start(&Asked::default(), size, 1468, MS(0))
}

fn ack(number: u16) -> Event {
    Event::Received(Reply::Ack(number))
}

fn blocks(first: u64, last: u64) -> Output {
    Output::Blocks { first, last }
}

#[test]
fn without_options_the_first_block_answers_the_request() {
    let (mut transfer, output) = plain(600);
    assert_eq!(output, blocks(1, 1));
    assert_eq!(transfer.on(ack(1), MS(1)), blocks(2, 2));
    assert_eq!(transfer.on(ack(2), MS(2)), Output::Done);
}

#[test]
fn crowbar_core_1078_a_file_of_whole_blocks_ends_with_an_empty_one_and_an_empty_file_is_one_empty_block() {
    let (mut transfer, _) = plain(512);
    assert_eq!(transfer.on(ack(1), MS(1)), blocks(2, 2));
    assert_eq!(transfer.on(ack(2), MS(2)), Output::Done);
    let (mut transfer, _) = plain(0);
    assert_eq!(transfer.on(ack(1), MS(1)), Output::Done);
}

#[test]
fn node_tftp_13_the_oack_holds_exactly_what_was_asked_for_and_cut() {
    let asked = Asked { block_bytes: Some(65_464), window_blocks: Some(500), size: true, ..Asked::default() };
    let (transfer, output) = Transfer::start(&asked, 1000, 1468, MS(0));
    assert_eq!(output, Output::OptionAck);
    assert_eq!(transfer.accepted(), [("blksize", 1468), ("tsize", 1000), ("windowsize", 64)]);
    let asked = Asked { timeout_secs: Some(3), ..Asked::default() };
    assert_eq!(Transfer::start(&asked, 1000, 1468, MS(0)).0.accepted(), [("timeout", 3)]);
}

#[test]
fn no_data_before_the_oack_is_acknowledged() {
    let asked = Asked { window_blocks: Some(4), ..Asked::default() };
    let (mut transfer, _) = Transfer::start(&asked, 5000, 1468, MS(0));
    assert_eq!(transfer.on(ack(1), MS(1)), Output::Wait);
    assert_eq!(transfer.on(ack(0), MS(2)), blocks(1, 4));
    assert_eq!(transfer.on(ack(4), MS(3)), blocks(5, 8));
    assert_eq!(transfer.on(ack(6), MS(4)), blocks(7, 10), "an ACK of less than the window says what was lost");
}

#[test]
fn a_client_that_never_answers_is_sent_three_packets_at_most() {
    for asked in [Asked::default(), Asked { size: true, window_blocks: Some(64), ..Asked::default() }] {
        let (mut transfer, _) = Transfer::start(&asked, 1 << 20, 1468, MS(0));
        let mut sends = 1;
        loop {
            match transfer.on(Event::Timer, transfer.deadline()) {
                Output::GaveUp => break,
                Output::Blocks { first, last } => sends += last - first + 1,
                _ => sends += 1,
            }
        }
        assert_eq!(sends, 3);
    }
}

#[test]
fn a_timer_longer_than_five_seconds_is_not_accepted() {
    let timer = |timeout_secs, timeout_micros| {
        let asked = Asked { timeout_secs, timeout_micros, size: true, ..Asked::default() };
        let (transfer, _) = Transfer::start(&asked, 1000, 1468, MS(0));
        (transfer.accepted().to_vec(), transfer.deadline())
    };
    let size = ("tsize", 1000);
    assert_eq!(timer(Some(5), None), (vec![size, ("timeout", 5)], MS(5000)));
    assert_eq!(timer(Some(6), None), (vec![size], MS(1000)));
    assert_eq!(timer(Some(255), Some(255_000_000)), (vec![size], MS(1000)));
    assert_eq!(timer(None, Some(5_000_000)), (vec![size, ("utimeout", 5_000_000)], MS(5000)));
    assert_eq!(timer(None, Some(5_000_001)), (vec![size], MS(1000)));
    assert_eq!(timer(Some(255), Some(500_000)), (vec![size, ("utimeout", 500_000)], MS(500)));
    let asked = Asked { timeout_secs: Some(255), ..Asked::default() };
    assert_eq!(Transfer::start(&asked, 1000, 1468, MS(0)).1, blocks(1, 1), "no option is left, so no OACK");
}

#[test]
fn a_mute_client_has_gone_within_ten_seconds_whatever_timer_it_asked_for() {
    let micros = [10_000, 1_000_000, 3_400_000, 5_000_000, 255_000_000].map(|n| Asked { timeout_micros: Some(n), ..Asked::default() });
    let secs = (1..=255).map(|n| Asked { timeout_secs: Some(n), ..Asked::default() });
    for asked in secs.chain(micros) {
        for junk in [false, true] {
            let (mut transfer, _) = Transfer::start(&asked, 1 << 20, 1468, MS(7));
            let mut now = MS(7);
            loop {
                now = if junk { now + MS(3) } else { transfer.deadline() };
                // Neither junk nor ACKs of what was not sent make it a client.
                let event =
                    if junk { [Event::Received(Reply::Junk), ack(9), Event::Timer][now.as_millis() as usize % 3] } else { Event::Timer };
                assert!(now <= MS(7 + 10_003), "{asked:?}");
                if transfer.on(event, now) == Output::GaveUp {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_client_that_is_slow_on_purpose_is_given_up_after_five_minutes_and_little_more() {
    let asked = Asked { timeout_secs: Some(5), ..Asked::default() };
    let (mut transfer, _) = Transfer::start(&asked, 1 << 30, 1468, MS(0));
    let (mut now, mut acked, mut silent) = (MS(1), 0_u64, 0);
    assert_eq!(transfer.on(ack(0), now), blocks(1, 1));
    let output = loop {
        // One ACK at the last moment, again and again.
        silent += 1;
        now = transfer.deadline();
        let event = if silent % 8 == 0 { ack(low_bits(acked + 1)) } else { Event::Timer };
        match transfer.on(event, now) {
            Output::Blocks { first, .. } => acked = first - 1,
            other => break other,
        }
    };
    assert_eq!((output, now), (Output::GaveUp, MS(300_000 + acked * 50)));
    assert!(acked > 5, "it was kept going by its ACKs");
    assert_eq!(transfer.on(ack(low_bits(acked + 1)), now), Output::Wait);
}

#[test]
fn u_root_1966_a_window_over_64_is_cut_and_said_so() {
    for (asked, granted) in [(65, 64), (128, 64), (65_535, 64), (64, 64), (1, 1)] {
        let asked = Asked { window_blocks: Some(asked), ..Asked::default() };
        let (mut transfer, _) = Transfer::start(&asked, 1 << 20, 1468, MS(0));
        assert_eq!(transfer.accepted(), [("windowsize", granted)]);
        assert_eq!(transfer.on(ack(0), MS(1)), blocks(1, granted));
    }
}

#[test]
fn rs_tftpd_49_repeated_acks_do_not_multiply_blocks() {
    let (mut transfer, _) = plain(1 << 20);
    assert_eq!(transfer.on(ack(1), MS(10)), blocks(2, 2));
    assert_eq!(transfer.on(ack(1), MS(11)), Output::Wait);
    assert_eq!(transfer.on(ack(2), MS(20)), blocks(3, 3));
    assert_eq!(transfer.on(ack(1), MS(21)), Output::Wait, "an old ACK");
    assert_eq!(transfer.on(ack(2), MS(22)), Output::Wait);
}

#[test]
fn a_repeated_ack_in_a_window_sends_again_once_per_timer() {
    let asked = Asked { window_blocks: Some(4), ..Asked::default() };
    let (mut transfer, _) = Transfer::start(&asked, 1 << 20, 1468, MS(0));
    assert_eq!(transfer.on(ack(0), MS(10)), blocks(1, 4));
    assert_eq!(transfer.on(ack(0), MS(20)), blocks(1, 4));
    assert_eq!(transfer.on(ack(0), MS(21)), Output::Wait);
    assert_eq!(transfer.on(ack(0), MS(22)), Output::Wait);
    assert_eq!(transfer.on(ack(0), MS(79)), Output::Wait, "the measured timer is 30 ms, twice that after each");
    assert_eq!(transfer.on(ack(0), MS(80)), blocks(1, 4), "twice that after each");
}

#[test]
fn a_busy_client_that_repeats_an_ack_for_each_block_of_a_long_queue_is_not_given_up() {
    let asked = Asked { window_blocks: Some(64), ..Asked::default() };
    let (mut transfer, _) = Transfer::start(&asked, 1 << 20, 1468, MS(0));
    transfer.on(ack(0), MS(1));
    transfer.on(ack(64), MS(2));
    let mut windows = 0;
    for now in 3..2000 {
        match transfer.on(ack(64), MS(now)) {
            Output::Blocks { first: 65, last: 128 } => windows += 1,
            other => assert_eq!(other, Output::Wait),
        }
    }
    assert!((2..=12).contains(&windows), "{windows}");
    assert_eq!(transfer.on(ack(128), MS(2000)), blocks(129, 192));
}

#[test]
fn rfc7440_a_gap_that_a_client_reports_for_each_later_block_is_filled_once() {
    let asked = Asked { window_blocks: Some(16), ..Asked::default() };
    let (mut transfer, _) = Transfer::start(&asked, 1 << 20, 1468, MS(0));
    assert_eq!(transfer.on(ack(0), MS(10)), blocks(1, 16));
    assert_eq!(transfer.on(ack(3), MS(15)), blocks(4, 19));
    for _ in 5..=16 {
        assert_eq!(transfer.on(ack(3), MS(16)), Output::Wait);
    }
    assert_eq!(transfer.on(ack(19), MS(25)), blocks(20, 35));
}

#[test]
fn what_waited_for_a_disk_is_not_late() {
    let (mut transfer, _) = plain(1 << 20);
    transfer.on(ack(1), MS(2));
    transfer.left(MS(4000));
    assert_eq!(transfer.deadline(), MS(4100));
    assert_eq!(transfer.on(Event::Timer, MS(4050)), Output::Wait);
    assert_eq!(transfer.on(ack(2), MS(4001)), blocks(3, 3));
}

#[test]
fn a_large_file_in_small_blocks_over_a_slow_link_has_the_time_it_needs() {
    let (mut transfer, mut output) = plain(20 << 20);
    let mut now = MS(0);
    for block in 1..=40_961_u64 {
        assert_eq!(output, blocks(block, block), "{now:?}");
        now += MS(30);
        output = transfer.on(ack(low_bits(block)), now);
    }
    assert_eq!(output, Output::Done);
    assert!(now > LIFE * 4);
}

#[test]
fn error_ends_a_transfer_for_good() {
    let (mut transfer, _) = plain(5000);
    assert_eq!(transfer.on(Event::Received(Reply::Error), MS(1)), Output::Aborted);
    for event in [ack(1), Event::Timer, Event::Received(Reply::Error), Event::Received(Reply::Junk)] {
        assert_eq!(transfer.on(event, MS(9_999)), Output::Wait);
    }
}

#[test]
fn rpi_eeprom_720_block_numbers_wrap_to_zero() {
    let (mut transfer, mut output) = plain(70_000 * 512);
    let mut now = MS(0);
    for block in 1..=70_001_u64 {
        assert_eq!(output, blocks(block, block));
        now += MS(1);
        output = transfer.on(ack(low_bits(block)), now);
    }
    assert_eq!(output, Output::Done);
}

#[test]
fn acks_of_what_was_not_sent_are_ignored() {
    let (mut transfer, _) = plain(1 << 20);
    for number in [0, 2, 3, 100, 65_535] {
        assert_eq!(transfer.on(ack(number), MS(5)), Output::Wait, "{number}");
    }
    assert_eq!(transfer.on(ack(1), MS(6)), blocks(2, 2));
}

#[test]
fn the_timer_follows_the_network_and_a_timer_that_the_client_chose_stays() {
    let (mut transfer, _) = plain(1 << 20);
    assert_eq!(transfer.deadline(), MS(1000));
    transfer.on(ack(1), MS(2));
    assert_eq!(transfer.deadline(), MS(102), "not under the least");
    transfer.on(Event::Timer, MS(102));
    assert_eq!(transfer.deadline(), MS(302), "doubled");
    let asked = Asked { timeout_secs: Some(2), ..Asked::default() };
    let (mut transfer, _) = Transfer::start(&asked, 1 << 20, 1468, MS(0));
    transfer.on(ack(0), MS(2));
    transfer.on(Event::Timer, MS(2002));
    assert_eq!(transfer.deadline(), MS(4002));
}

/// What the network does to each datagram in turn.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Deliver,
    Lose,
    Double,
    Delay,
}

/// A client as RFC 7440 wants it: acknowledges a full window, the last block, and the last good block at a gap or its timer.
struct Client {
    window: u64,
    last_block: u64,
    have: u64,
    in_window: u64,
    seen: BTreeMap<u64, u64>,
}

impl Client {
    fn take(&mut self, number: u16) -> Option<u16> {
        *self.seen.entry(u64::from(number)).or_default() += 1;
        if number == low_bits(self.have + 1) {
            self.have += 1;
            self.in_window += 1;
            if self.in_window == self.window || self.have == self.last_block {
                self.in_window = 0;
                return Some(low_bits(self.have));
            }
            return None;
        }
        self.in_window = 0;
        Some(low_bits(self.have))
    }
}

fn run(size: u64, window: u16, mut fate: impl FnMut() -> Fate) -> (bool, u64) {
    let asked = Asked { window_blocks: Some(window), ..Asked::default() };
    let (mut transfer, mut output) = Transfer::start(&asked, size, 1468, MS(0));
    let last_block = size / 512 + 1;
    let mut client = Client { window: u64::from(window.min(64)), last_block, have: 0, in_window: 0, seen: BTreeMap::new() };
    let mut wire: VecDeque<(Mono, u64, Option<u16>)> = VecDeque::new(); // arrival, 0 = to the client, block or ACK
    let mut now = MS(0);
    let (mut sent, mut heard_at, mut done) = (0_u64, MS(0), false);
    for _ in 0..200_000 {
        let mut push = |to: u64, number: Option<u16>, now: Mono, fate: Fate| match fate {
            Fate::Lose => {}
            Fate::Deliver => wire.push_back((now + MS(1), to, number)),
            Fate::Double => wire.extend([(now + MS(1), to, number), (now + MS(2), to, number)]),
            Fate::Delay => wire.push_back((now + MS(30), to, number)),
        };
        match output {
            Output::OptionAck => push(0, None, now, fate()),
            Output::Blocks { first, last } => {
                for block in first..=last {
                    sent += 1;
                    push(0, Some(low_bits(block)), now, fate());
                }
            }
            Output::Done => done = true,
            Output::GaveUp => return (false, sent),
            Output::Wait | Output::Aborted => {}
        }
        if done {
            return (client.have == last_block, sent);
        }
        // Next: an arrival, the server's timer or the client's.
        let arrival = wire.iter().map(|(at, ..)| *at).min();
        let client_timer = heard_at + MS(1000);
        now = arrival.unwrap_or(client_timer).min(transfer.deadline()).min(client_timer).max(now);
        output = Output::Wait;
        if let Some(index) = wire.iter().position(|(at, ..)| *at <= now) {
            let (_, to, number) = wire.remove(index).unwrap();
            if to == 0 {
                heard_at = now;
                let answer = match number {
                    None if client.have == 0 => Some(0),
                    None => None,
                    Some(block) => client.take(block),
                };
                if let Some(number) = answer {
                    match fate() {
                        Fate::Lose => {}
                        _ => wire.push_back((now + MS(1), 1, Some(number))),
                    }
                }
            } else {
                output = transfer.on(Event::Received(Reply::Ack(number.unwrap())), now);
            }
        } else if now >= transfer.deadline() {
            output = transfer.on(Event::Timer, now);
        } else {
            heard_at = now;
            client.in_window = 0;
            wire.push_back((now + MS(1), 1, Some(low_bits(client.have))));
        }
    }
    (false, sent)
}

proptest! {
    #[test]
    fn a_transfer_ends_well_whatever_is_lost_doubled_or_late(size in 0u64..60_000, window in 1u16..80, seed in 1u64..) {
        let mut state = seed;
        let fate = || {
            // xorshift64: a fate of its own for every datagram, the same in every run of one seed.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            match state % 40 { 0 | 1 => Fate::Lose, 2 => Fate::Double, 3 => Fate::Delay, _ => Fate::Deliver }
        };
        let (complete, sent) = run(size, window, fate);
        prop_assert!(complete);
        prop_assert!(sent <= 40 * (size / 512 + 1) + 1000, "sent {sent}");
    }
}

#[test]
fn on_a_good_network_every_block_is_sent_once() {
    for window in [1, 4, 16, 64] {
        assert_eq!(run(100_000, window, || Fate::Deliver), (true, 100_000 / 512 + 1), "window {window}");
    }
}
