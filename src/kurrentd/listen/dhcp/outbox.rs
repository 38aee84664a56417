//! Answers that wait for room in the kernel's queues: in order, bounded, and not for longer than anybody waits for them.

use kurrent_core::time::Mono;
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

/// Answers that may wait: a storm of a thousand clients, twice.
const MAX_WAITING: usize = 2048;
/// Then the client has asked again (RFC 2131 s4.1: 4 s; the fastest firmware 1 s), and a late answer is only in the way.
const GIVE_UP_AFTER: Duration = Duration::from_secs(1);

/// The queue.
pub struct Outbox<T>(VecDeque<(Mono, T)>);

impl<T> Default for Outbox<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Outbox<T> {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Puts one at the end. Returns the one that is given up for it when there are too many: the oldest, which is the first to
    /// be asked for again.
    pub fn push(&mut self, item: T, now: Mono) -> Option<T> {
        let given_up = if self.0.len() >= MAX_WAITING { self.0.pop_front() } else { None };
        self.0.push_back((now, item));
        given_up.map(|(_, item)| item)
    }

    /// Sends from the front until there is no room. Returns what is given up: what waited too long, and what can not be sent.
    pub fn flush(
        &mut self,
        now: Mono,
        mut send: impl FnMut(&T) -> io::Result<()>,
        is_full: impl Fn(&io::Error) -> bool,
    ) -> Vec<(io::Error, T)> {
        let mut failed = Vec::new();
        while let Some((since, item)) = self.0.pop_front() {
            if now.since(since) >= GIVE_UP_AFTER {
                failed.push((io::ErrorKind::TimedOut.into(), item));
                continue;
            }
            match send(&item) {
                Ok(()) => {}
                Err(error) if is_full(&error) => {
                    self.0.push_front((since, item));
                    break;
                }
                Err(error) => failed.push((error, item)),
            }
        }
        failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Mono {
        Mono(Duration::from_millis(millis))
    }

    fn full(error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::WouldBlock
    }

    /// Flushes with room for so many; what was sent, and what was given up.
    fn flush(outbox: &mut Outbox<u32>, now: Mono, room: usize) -> (Vec<u32>, Vec<u32>) {
        let mut sent = Vec::new();
        let send = |item: &u32| match item {
            666 => Err(io::ErrorKind::NetworkDown.into()),
            _ if sent.len() >= room => Err(io::ErrorKind::WouldBlock.into()),
            _ => {
                sent.push(*item);
                Ok(())
            }
        };
        let failed = outbox.flush(now, send, full);
        (sent, failed.into_iter().map(|(_, item)| item).collect())
    }

    #[test]
    fn a_full_queue_keeps_the_order_and_loses_nothing_that_came_later() {
        let mut outbox = Outbox::default();
        for item in [1, 2, 666, 3] {
            assert_eq!(outbox.push(item, at(0)), None);
        }
        assert_eq!(flush(&mut outbox, at(2), 1), (vec![1], vec![]));
        assert_eq!(flush(&mut outbox, at(4), 0), (vec![], vec![]));
        assert_eq!(flush(&mut outbox, at(6), 9), (vec![2, 3], vec![666]), "what can not be sent holds up nobody");
        assert!(outbox.is_empty());
    }

    #[test]
    fn what_nobody_waits_for_any_more_is_given_up() {
        let mut outbox = Outbox::default();
        outbox.push(1, at(0));
        outbox.push(2, at(900));
        assert_eq!(flush(&mut outbox, at(1000), 9), (vec![2], vec![1]));
    }

    #[test]
    fn it_is_bounded_and_the_oldest_gives_way() {
        let mut outbox = Outbox::default();
        let given_up: Vec<usize> = (0..MAX_WAITING + 2).filter_map(|item| outbox.push(item, at(0))).collect();
        assert_eq!(given_up, [0, 1]);
        assert_eq!(outbox.0.len(), MAX_WAITING);
    }
}
