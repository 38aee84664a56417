//! A machine's serial console: kept as text with arrival times, readable by condition, writable.
//!
//! QEMU writes it into a file: that never makes it wait, needs no reader, and is the evidence, too. Typing goes through a FIFO.
//! Escape sequences are taken out (cursor movements become line ends), so a status screen and a plain log read the same.

use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Lines after which waiting for anything else is pointless.
const FATAL: [&str; 3] = ["Kernel panic", "double fault", "X64 Exception Type"];
/// How often the file is looked at: the precision of arrival times.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How much of a console an error message quotes.
const QUOTED_LINES: usize = 12;

#[derive(Default)]
struct State {
    text: String,
    /// End offset in `text` of everything that had arrived at that time.
    arrivals: Vec<(usize, Instant)>,
    closed: bool,
}

/// One console. Reading starts when it is made.
pub struct Console {
    name: String,
    shared: Arc<(Mutex<State>, Condvar)>,
    keyboard: File,
    stop: Arc<AtomicBool>,
    /// Where the next wait begins to look.
    position: usize,
}

/// What a wait found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Index of the pattern that matched.
    pub which: usize,
    /// When its last octet arrived.
    pub at: Instant,
    /// The line it is on, as far as it had arrived.
    pub line: String,
}

impl Console {
    /// Follows the file `output` for as long as `runs` says that the machine does; types into `keyboard`.
    pub fn new(name: &str, output: File, keyboard: File, runs: impl Fn() -> bool + Send + 'static) -> Self {
        let shared = Arc::new((Mutex::new(State::default()), Condvar::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (into, stopped) = (Arc::clone(&shared), Arc::clone(&stop));
        thread::spawn(move || follow(output, &into, || runs() && !stopped.load(Ordering::Relaxed)));
        Self { name: name.to_owned(), shared, keyboard, stop, position: 0 }
    }

    /// Waits until `pattern` appears after the last match.
    pub fn wait_for(&mut self, pattern: &str, within: Duration) -> Result<Found> {
        self.wait_for_any(&[pattern], within)
    }

    /// Waits until one of `patterns` appears after the last match; the earliest in the text wins.
    pub fn wait_for_any(&mut self, patterns: &[&str], within: Duration) -> Result<Found> {
        let deadline = Instant::now() + within;
        let (lock, changed) = &*self.shared;
        let mut state = locked(lock);
        loop {
            let rest = state.text.get(self.position..).unwrap_or_default();
            let hit = patterns.iter().enumerate().filter_map(|(which, p)| rest.find(p).map(|at| (at, which, p.len()))).min();
            if let Some((at, which, length)) = hit {
                let end = self.position + at + length;
                let line = line_around(&state.text, self.position + at, end);
                let when = state.arrivals.iter().find(|(offset, _)| *offset >= end).map_or_else(Instant::now, |(_, when)| *when);
                self.position = end;
                return Ok(Found { which, at: when, line });
            }
            if let Some(fatal) = FATAL.iter().find(|fatal| rest.contains(**fatal)) {
                bail!("{}: \"{fatal}\" on the console while waiting for {patterns:?}; last lines:\n{}", self.name, tail(&state.text));
            }
            if state.closed {
                bail!("{}: the machine ended while waiting for {patterns:?}; last lines:\n{}", self.name, tail(&state.text));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("{}: no {patterns:?} within {} s; last lines:\n{}", self.name, within.as_secs(), tail(&state.text));
            }
            state = changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until `find`, given everything that came after the last match, finds what it looks for and where that ends.
    pub fn wait_until<T>(&mut self, what: &str, within: Duration, find: impl Fn(&str) -> Option<(T, usize)>) -> Result<T> {
        let deadline = Instant::now() + within;
        let (lock, changed) = &*self.shared;
        let mut state = locked(lock);
        loop {
            if let Some((value, end)) = state.text.get(self.position..).and_then(&find) {
                self.position += end;
                return Ok(value);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.closed {
                let why = if state.closed { "the machine ended" } else { "the time is up" };
                bail!("{}: waiting for {what}: {why} ({} s); last lines:\n{}", self.name, within.as_secs(), tail(&state.text));
            }
            state = changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Everything seen so far.
    pub fn text(&self) -> String {
        locked(&self.shared.0).text.clone()
    }

    /// What has appeared since the last match.
    pub fn unread(&self) -> String {
        locked(&self.shared.0).text.get(self.position..).unwrap_or_default().to_owned()
    }

    /// Forgets what has appeared: the next wait looks only at what comes.
    pub fn skip_to_end(&mut self) {
        self.position = locked(&self.shared.0).text.len();
    }

    /// Types `line` and Enter.
    pub fn send_line(&mut self, line: &str) -> Result<()> {
        self.press(format!("{line}\r").as_bytes())
    }

    /// Types these octets as they are, such as 2 for Ctrl-B.
    pub fn press(&mut self, keys: &[u8]) -> Result<()> {
        self.keyboard.write_all(keys).with_context(|| format!("type on {}", self.name))
    }

    /// Runs `command` in the shell at this console; its output without the echo. The status must be 0.
    pub fn shell(&mut self, command: &str, within: Duration) -> Result<String> {
        // The marks are split in the echo of the command ("''"), so only their output matches.
        self.send_line(&format!("{{ echo kurrent-''begin; {command}; echo kurrent-''end=$?; }}"))?;
        self.wait_for("kurrent-begin\n", within)?;
        let start = self.position;
        self.wait_for("kurrent-end=", within)?;
        let end = self.position - "kurrent-end=".len();
        self.wait_for("\n", within)?;
        let text = self.text();
        let output = text.get(start..end).unwrap_or_default().to_owned();
        let status = text.get(end + "kurrent-end=".len()..self.position).unwrap_or_default().trim();
        if status != "0" {
            bail!("{}: `{command}` ended with status {status}: {output}", self.name);
        }
        Ok(output)
    }
}

fn locked(lock: &Mutex<State>) -> MutexGuard<'_, State> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

fn line_around(text: &str, start: usize, end: usize) -> String {
    let from = text.get(..start).and_then(|before| before.rfind('\n')).map_or(0, |at| at + 1);
    let to = text.get(end..).and_then(|after| after.find('\n')).map_or(text.len(), |at| end + at);
    text.get(from..to).unwrap_or_default().trim().to_owned()
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let from = lines.len().saturating_sub(QUOTED_LINES);
    lines.get(from..).unwrap_or_default().iter().map(|line| format!("  | {}\n", line.trim_end())).collect()
}

fn follow(mut output: File, into: &(Mutex<State>, Condvar), runs: impl Fn() -> bool) {
    let mut plain = PlainText::default();
    let mut buffer = [0_u8; 4096];
    loop {
        // Asked before reading: what a machine wrote before it ended is still taken.
        let last = !runs();
        match output.read(&mut buffer) {
            Ok(0) | Err(_) if last => break,
            Ok(0) | Err(_) => thread::sleep(LOOK_EVERY),
            Ok(count) => {
                let text = plain.push(buffer.get(..count).unwrap_or_default());
                let mut state = locked(&into.0);
                state.text.push_str(&text);
                let end = state.text.len();
                state.arrivals.push((end, Instant::now()));
                into.1.notify_all();
            }
        }
    }
    locked(&into.0).closed = true;
    into.1.notify_all();
}

impl Drop for Console {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Takes terminal control out of a stream of octets.
#[derive(Default)]
struct PlainText {
    escape: Escape,
}

#[derive(Clone, Copy, Default)]
enum Escape {
    #[default]
    None,
    Started,
    /// `ESC [ ... letter`.
    Control,
    /// `ESC ] ... BEL`, a window title.
    Title,
    /// `ESC ( X`: one octet follows.
    One,
}

impl PlainText {
    fn push(&mut self, octets: &[u8]) -> String {
        let mut text = String::new();
        for &octet in octets {
            self.escape = match (self.escape, octet) {
                (Escape::None, 0x1b) => Escape::Started,
                (Escape::None, b'\n' | b'\t' | 0x20..=0x7e) => {
                    text.push(char::from(octet));
                    Escape::None
                }
                (Escape::None, 0x80..) => {
                    text.push('?');
                    Escape::None
                }
                (Escape::None, _) => Escape::None,
                (Escape::Started, b'[') => Escape::Control,
                (Escape::Started, b']') => Escape::Title,
                (Escape::Started, b'(' | b')' | b'#') => Escape::One,
                (Escape::Started | Escape::One, _) | (Escape::Title, 0x07) => Escape::None,
                (Escape::Control, b'H' | b'f' | b'E' | b'J') => {
                    text.push('\n');
                    Escape::None
                }
                (Escape::Control, 0x40..=0x7e) => Escape::None,
                (Escape::Control, _) => Escape::Control,
                (Escape::Title, _) => Escape::Title,
            };
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_control_is_taken_out_and_cursor_movement_ends_a_line() {
        let mut plain = PlainText::default();
        let text = plain.push(b"\x1b[2J\x1b[1;1Hname \x1b[0;32mok\x1b[0m\r\n\x1b]0;title\x07next\x1b[");
        assert_eq!(text + &plain.push(b"3;1Hend"), "\n\nname ok\nnext\nend");
    }

    /// A console whose file holds `text`, of a machine that has ended when `ended` says so.
    fn console(text: &[u8], ended: bool) -> Result<Console> {
        static COUNTER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("kurrent-console-{}-{number}", std::process::id()));
        std::fs::write(&path, text)?;
        let (output, keyboard) = (File::open(&path)?, File::options().append(true).open(&path)?);
        std::fs::remove_file(&path)?;
        Ok(Console::new("test", output, keyboard, move || !ended))
    }

    #[test]
    fn a_wait_finds_the_earliest_pattern_then_looks_after_it() -> Result<()> {
        let mut console = console(b"one two one three\n", true)?;
        let second = Duration::from_secs(5);
        assert_eq!(console.wait_for_any(&["two", "one"], second)?.which, 1);
        assert_eq!(console.wait_for_any(&["one", "two"], second)?.which, 1);
        assert_eq!(console.wait_for("one", second)?.line, "one two one three");
        let error = console.wait_for("one", second).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains("the machine ended"), "{error}");
        Ok(())
    }

    #[test]
    fn a_panic_on_the_console_ends_the_wait_at_once() -> Result<()> {
        let mut console = console(b"[ 1.0] Kernel panic - not syncing\n", false)?;
        let error = console.wait_for("login:", Duration::from_secs(60)).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains("Kernel panic"), "{error}");
        Ok(())
    }
}
