//! Logs that a stranger cannot flood: one line per event class and interval, with a count of what was left out.

use kurrent_core::time::Mono;
use std::collections::HashMap;
use std::time::Duration;

/// Lines of one class are at least this far apart.
const INTERVAL: Duration = Duration::from_secs(5);

/// Per class of event: when it was last logged and how many were not since. Classes are words of this program, so there
/// are few.
#[derive(Default)]
pub struct Quiet(HashMap<&'static str, (Mono, u64)>);

impl Quiet {
    /// Whether to log an event of this class now, and how many of it were left out since the last line.
    pub fn admit(&mut self, class: &'static str, now: Mono) -> Option<u64> {
        match self.0.get_mut(class) {
            Some((last, left_out)) if now.since(*last) < INTERVAL => {
                *left_out += 1;
                None
            }
            Some((last, left_out)) => {
                *last = now;
                Some(std::mem::take(left_out))
            }
            None => {
                self.0.insert(class, (now, 0));
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_class_and_interval_with_the_count_of_the_rest() {
        let at = |secs| Mono(Duration::from_secs(secs));
        let mut quiet = Quiet::default();
        assert_eq!(quiet.admit("a", at(0)), Some(0));
        assert_eq!(quiet.admit("a", at(1)), None);
        assert_eq!(quiet.admit("b", at(1)), Some(0));
        assert_eq!(quiet.admit("a", at(4)), None);
        assert_eq!(quiet.admit("a", at(5)), Some(2));
    }
}
