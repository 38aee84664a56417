//! How far long work is: a bar on a terminal, a line now and then elsewhere.

use crate::output::{clean, size};
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

const BAR: u64 = 24;
const REDRAW_AFTER: Duration = Duration::from_millis(100);
/// Logs are read by people, too.
const LINE_AFTER: Duration = Duration::from_secs(10);

/// One piece of work of a known length.
pub struct Progress {
    what: String,
    total: u64,
    terminal: bool,
    started: Instant,
    shown: Option<Instant>,
    drawn: usize,
    /// It says something else than what was shown.
    news: bool,
}

impl Progress {
    /// Of `total` bytes; 0 when nobody knows.
    pub fn new(what: &str, total: u64) -> Self {
        let terminal = io::stderr().is_terminal();
        Self { what: clean(what), total, terminal, started: Instant::now(), shown: None, drawn: 0, news: false }
    }

    /// What it does now. Numbers that run down are no news: a log has them every few seconds.
    pub fn say(&mut self, what: &str) {
        let what = clean(what);
        let words = |text: &str| text.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
        self.news |= words(&what) != words(&self.what);
        self.what = what;
    }

    /// Now it is known of how many bytes.
    pub fn set_total(&mut self, total: u64) {
        self.total = total;
    }

    /// Of so many bytes.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Shows how far it is, if it is time to.
    pub fn show(&mut self, done: u64) {
        let every = if self.terminal { REDRAW_AFTER } else { LINE_AFTER };
        let first = if self.terminal { None } else { Some(self.started) };
        let due = self.shown.or(first).is_none_or(|at| at.elapsed() >= every);
        let last = self.terminal && self.total > 0 && done >= self.total;
        if !due && !last && !self.news {
            return;
        }
        self.news = false;
        self.shown = Some(Instant::now());
        let line = line(&self.what, done, self.total, self.started.elapsed());
        // A terminal that is gone shows nothing; the work goes on.
        let _ = if self.terminal {
            let (bar, width) = (bar(done, self.total), self.drawn);
            let drawn = format!("{bar} {line}");
            self.drawn = drawn.chars().count();
            write!(io::stderr(), "\r{drawn:width$}")
        } else {
            writeln!(io::stderr(), "kurrent: {line}")
        };
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal && self.shown.is_some() {
            let _ = writeln!(io::stderr());
        }
    }
}

fn bar(done: u64, total: u64) -> String {
    let full = u128::from(done.min(total)) * u128::from(BAR);
    let full = full.checked_div(u128::from(total)).and_then(|f| usize::try_from(f).ok()).unwrap_or(0);
    let width = usize::try_from(BAR).unwrap_or(0);
    format!("[{:-<width$}]", "#".repeat(full))
}

fn line(what: &str, done: u64, total: u64, spent: Duration) -> String {
    if total == 0 {
        return if done == 0 { what.to_owned() } else { format!("{what}: {}", size(done)) };
    }
    let percent = (u128::from(done.min(total)) * 100).checked_div(u128::from(total)).unwrap_or(100);
    let millis = spent.as_millis().max(1);
    let rate = u64::try_from(u128::from(done) * 1000 / millis).unwrap_or(u64::MAX);
    let left = match u128::from(total.saturating_sub(done)).checked_div(u128::from(rate)) {
        // The first moments say nothing about the rest.
        Some(left) if left > 0 && millis >= 1000 => format!(", {left} s left"),
        _ => String::new(),
    };
    format!("{what}: {percent} % of {}, {}/s{left}", size(total), size(rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_and_its_line_say_how_far_it_is() {
        assert_eq!(bar(0, 100), format!("[{}]", "-".repeat(24)));
        assert_eq!(bar(50, 100), format!("[{}{}]", "#".repeat(12), "-".repeat(12)));
        assert_eq!(bar(200, 100), format!("[{}]", "#".repeat(24)));
        assert_eq!(bar(0, 0), format!("[{}]", "-".repeat(24)));
        let found = line("sending x", 300 << 20, 1 << 30, Duration::from_secs(3));
        assert_eq!(found, "sending x: 29 % of 1 GiB, 100 MiB/s, 7 s left");
        assert_eq!(line("copying", 0, 0, Duration::ZERO), "copying");
        assert_eq!(line("copying", 4096, 0, Duration::ZERO), "copying: 4 KiB");
    }
}
