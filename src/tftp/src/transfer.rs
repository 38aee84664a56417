//! One read transfer as a pure state machine: it is told what arrived and what time it is, and says what to send.
//!
//! ```text
//!            options accepted            ACK 0
//! (start) ----------------------> Offering ----> Sending --ACK of the last block--> Ended
//!    |                               |              ^  |                              ^
//!    +--- no option accepted --------|--------------+  +-- ERROR, or no answer -------+
//!                                    +-- ERROR, or no answer -------------------------+
//! ```
//!
//! Blocks are counted in 64 bits; on the wire they wrap to 0 (rpi-eeprom 720). A repeated ACK re-sends at most once per
//! timer, so duplicates never multiply (Sorcerer's Apprentice, RFC 1123 s4.2.3.1; rs-tftpd 49), and before the first ACK
//! one packet is sent, three times at most: a forged request makes no amplifier of us. No client decides how long a transfer
//! takes a place: not with its timer, not by being mute, not by being slow.

use crate::wire::{Asked, DEFAULT_BLOCK_BYTES, Reply};
use std::time::Duration;

/// Sends of the first packet before the first ACK.
const FIRST_SENDS: u32 = 3;
/// Sends of one window after it.
const SENDS: u32 = 8;
/// Largest window (RFC 7440 allows more; firmware has been seen to lose larger ones, u-root 1966).
const MAX_WINDOW: u16 = 64;
/// Timer until a round trip was measured, and its bounds after.
const FIRST_TIMER: Duration = Duration::from_secs(1);
const MIN_TIMER: Duration = Duration::from_millis(100);
const MAX_TIMER: Duration = Duration::from_secs(5);
/// Until the first ACK: more than three sends of our own timer take (1 + 2 + 4 s).
const FIRST_ANSWER: Duration = Duration::from_secs(10);
/// From first to last, and what each block adds: beyond the former a client that is slower than 20 blocks a second is given up.
const LIFE: Duration = Duration::from_secs(300);
const LIFE_PER_BLOCK: Duration = Duration::from_millis(50);
/// Repeated ACKs that come closer to each other than this are one.
const MIN_REPEAT: Duration = Duration::from_millis(1);

/// Time of the caller's clock since any fixed point.
pub type Mono = Duration;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A datagram of the client.
    Received(Reply),
    /// The deadline passed.
    Timer,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Wait for the client or the deadline.
    Wait,
    /// Send the OACK (again).
    OptionAck,
    /// Send these blocks, counted from 1.
    Blocks {
        /// The first.
        first: u64,
        /// The last, included.
        last: u64,
    },
    /// The client has it all.
    Done,
    /// The client does not want it.
    Aborted,
    /// The client has gone.
    GaveUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Offering,
    Sending,
    Ended,
}

/// One transfer.
#[derive(Clone, Debug)]
pub struct Transfer {
    state: State,
    accepted: Vec<(&'static str, u64)>,
    block_bytes: usize,
    window: u64,
    /// The block that carries the end: shorter than the others, maybe empty.
    last_block: u64,
    /// First block that was not acknowledged.
    base: u64,
    /// First block that was not sent yet.
    next: u64,
    /// When an ACK of something new came; one shows that the client is real.
    progressed: Option<Mono>,
    /// Sends since the last progress.
    sends: u32,
    /// An answer to what was sent last measures a round trip.
    measures: bool,
    /// A timer that the client chose, or ours.
    fixed_timer: Option<Duration>,
    smoothed: Option<(Duration, Duration)>,
    timer: Duration,
    /// [`Self::timer`] as measured, without its least: an answer to what was sent this long ago would be here.
    repeat_timer: Duration,
    sent_at: Mono,
    repeated_at: Option<Mono>,
    deadline: Mono,
    began: Mono,
}

impl Transfer {
    /// A transfer of `size` octets. `max_block_bytes` keeps a block in one frame. Returns what to send first.
    #[must_use]
    pub fn start(asked: &Asked, size: u64, max_block_bytes: u16, now: Mono) -> (Self, Output) {
        let mut accepted = Vec::new();
        let mut block_bytes = DEFAULT_BLOCK_BYTES;
        if let Some(wanted) = asked.block_bytes {
            let granted = wanted.min(max_block_bytes.max(8));
            accepted.push(("blksize", u64::from(granted)));
            block_bytes = usize::from(granted);
        }
        if asked.size {
            accepted.push(("tsize", size));
        }
        // RFC 2349 has no smaller counter-offer: a longer timer than ours is left out of the OACK.
        let mut fixed_timer = None;
        let secs = asked.timeout_secs.map(|secs| (u64::from(secs), Duration::from_secs(u64::from(secs))));
        if let Some((secs, timer)) = secs.filter(|(_, timer)| *timer <= MAX_TIMER) {
            accepted.push(("timeout", secs));
            fixed_timer = Some(timer);
        }
        let micros = asked.timeout_micros.map(|micros| (u64::from(micros), Duration::from_micros(u64::from(micros))));
        if let Some((micros, timer)) = micros.filter(|(_, timer)| *timer <= MAX_TIMER) {
            accepted.push(("utimeout", micros));
            fixed_timer = Some(timer);
        }
        let mut window = 1;
        if let Some(wanted) = asked.window_blocks {
            window = u64::from(wanted.min(MAX_WINDOW));
            accepted.push(("windowsize", window));
        }
        let block = u64::try_from(block_bytes).unwrap_or(u64::MAX);
        let mut transfer = Self {
            state: if accepted.is_empty() { State::Sending } else { State::Offering },
            accepted,
            block_bytes,
            window,
            last_block: size / block + 1,
            base: 1,
            next: 1,
            progressed: None,
            sends: 0,
            measures: true,
            fixed_timer,
            smoothed: None,
            timer: fixed_timer.unwrap_or(FIRST_TIMER),
            repeat_timer: MIN_TIMER,
            sent_at: now,
            repeated_at: None,
            deadline: now,
            began: now,
        };
        let output = transfer.send(now);
        (transfer, output)
    }

    /// The accepted options: none that was not asked for (node-tftp 13).
    #[must_use]
    pub fn accepted(&self) -> &[(&'static str, u64)] {
        &self.accepted
    }

    /// Payload octets per block.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// When [`Event::Timer`] is due.
    #[must_use]
    pub fn deadline(&self) -> Mono {
        self.deadline.min(self.ends())
    }

    /// When the transfer is over, whatever the client does.
    fn ends(&self) -> Mono {
        let blocks = u32::try_from(self.base - 1).unwrap_or(u32::MAX);
        self.began.saturating_add(if self.answered() { LIFE.saturating_add(LIFE_PER_BLOCK.saturating_mul(blocks)) } else { FIRST_ANSWER })
    }

    /// Whether the client has shown that it exists, by an ACK.
    #[must_use]
    pub fn answered(&self) -> bool {
        self.progressed.is_some()
    }

    /// When the client last acknowledged something new; absent before its first ACK.
    #[must_use]
    pub fn progressed(&self) -> Option<Mono> {
        self.progressed
    }

    /// Whether its time is up: the next event ends it.
    #[must_use]
    pub fn is_over(&self, now: Mono) -> bool {
        now >= self.ends()
    }

    /// What was to be sent left only now: a disk was slow, or the link's queue full. The client's time runs from here.
    pub fn left(&mut self, now: Mono) {
        self.sent_at = now;
        self.deadline = now.saturating_add(self.timer);
    }

    /// What to do about an event.
    pub fn on(&mut self, event: Event, now: Mono) -> Output {
        // Before the event is looked at: junk without a pause must not keep the time from being up.
        if self.state != State::Ended && self.is_over(now) {
            return self.end(Output::GaveUp);
        }
        match (self.state, event) {
            (State::Ended, _) | (_, Event::Received(Reply::Junk)) => Output::Wait,
            (State::Offering | State::Sending, Event::Received(Reply::Error)) => self.end(Output::Aborted),
            (State::Offering | State::Sending, Event::Timer) if now < self.deadline => Output::Wait,
            (State::Offering | State::Sending, Event::Timer) => self.timed_out(now),
            (State::Offering, Event::Received(Reply::Ack(0))) => {
                self.progress(now);
                self.state = State::Sending;
                self.send(now)
            }
            (State::Offering, Event::Received(Reply::Ack(_))) => Output::Wait,
            (State::Sending, Event::Received(Reply::Ack(number))) => self.acknowledged(number, now),
        }
    }

    fn acknowledged(&mut self, number: u16, now: Mono) -> Output {
        // Blocks base-1 (a repeat) to next-1 can be meant; 16 bits tell them apart because the window is small.
        let ahead = u64::from(number.wrapping_sub(low_bits(self.base - 1)));
        if self.base - 1 + ahead >= self.next {
            return Output::Wait;
        }
        if ahead == 0 {
            return self.repeated(now);
        }
        self.base += ahead;
        self.progress(now);
        if self.base > self.last_block {
            return self.end(Output::Done);
        }
        // In a window, an ACK of less than all means that what follows was lost (RFC 7440 s4). Clients say so again for each
        // block that follows the gap.
        let gap = self.base < self.next;
        if gap {
            self.repeated_at = Some(now);
        }
        self.next = self.base;
        let output = self.send(now);
        self.measures = !gap;
        output
    }

    /// The client says again what it had said: it did not get what follows, or it repeats itself.
    fn repeated(&mut self, now: Mono) -> Output {
        let since = |then: Mono| now.saturating_sub(then);
        let recently = self.repeated_at.is_some_and(|then| since(then) < self.repeat_timer);
        // With a window of one, our own timer nearly always knows better; a repeat right after a send is an echo.
        let echo = self.window == 1 && since(self.sent_at) < self.timer / 2;
        if !self.answered() || recently || echo {
            return Output::Wait;
        }
        self.repeated_at = Some(now);
        // It is there, so this does not count towards giving up; but a busy client says it for each block of a long queue.
        self.repeat_timer = (self.repeat_timer * 2).min(MAX_TIMER);
        self.sends = self.sends.saturating_sub(1);
        self.again(now)
    }

    fn timed_out(&mut self, now: Mono) -> Output {
        if self.fixed_timer.is_none() {
            self.timer = (self.timer * 2).min(MAX_TIMER);
        }
        self.again(now)
    }

    fn again(&mut self, now: Mono) -> Output {
        let limit = if self.answered() { SENDS } else { FIRST_SENDS };
        if self.sends >= limit {
            return self.end(Output::GaveUp);
        }
        self.next = self.base;
        let output = self.send(now);
        self.measures = false;
        output
    }

    fn progress(&mut self, now: Mono) {
        self.progressed = Some(now);
        // Karn: an answer to something that was sent twice measures nothing.
        if self.measures {
            let measured = now.saturating_sub(self.sent_at);
            // RFC 6298.
            let (smoothed, variation) = match self.smoothed {
                None => (measured, measured / 2),
                Some((s, v)) => ((s * 7 + measured) / 8, (v * 3 + s.abs_diff(measured)) / 4),
            };
            self.smoothed = Some((smoothed, variation));
            self.timer = self.fixed_timer.unwrap_or((smoothed + variation * 4).clamp(MIN_TIMER, MAX_TIMER));
            // Twice the round trip at least: an echo of an echo is older than that, so a chain of them ends.
            self.repeat_timer = (smoothed + smoothed.max(variation * 4)).clamp(MIN_REPEAT, MAX_TIMER);
        }
        self.sends = 0;
    }

    fn send(&mut self, now: Mono) -> Output {
        self.sends += 1;
        self.measures = true;
        self.sent_at = now;
        self.deadline = now.saturating_add(self.timer);
        if self.state == State::Offering {
            return Output::OptionAck;
        }
        let last = (self.base + self.window - 1).min(self.last_block);
        self.next = last + 1;
        Output::Blocks { first: self.base, last }
    }

    fn end(&mut self, output: Output) -> Output {
        self.state = State::Ended;
        output
    }
}

/// A block's number on the wire.
#[must_use]
pub fn low_bits(block: u64) -> u16 {
    let [.., high, low] = block.to_be_bytes();
    u16::from_be_bytes([high, low])
}

#[cfg(test)]
#[path = "transfer_tests.rs"]
mod tests;
