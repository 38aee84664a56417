//! The monitor (`/dev/tty0`) and the serial line (`/dev/ttyS0`).
//!
//! The monitor is cleared and redrawn. The serial line is often captured into a file: there the same lines follow each other as
//! blocks, without cursor movements. Neither may ever block PID 1: what a stopped terminal does not take is lost.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;

const MONITOR: &str = "/dev/tty0";
const SERIAL: &str = "/dev/ttyS0";
/// ECMA-48: cursor home, clear; Linux: cursor off, no blanking (console_codes(4)).
const CLEAR: &str = "\x1b[H\x1b[2J\x1b[?25l\x1b[9;0]";

/// What is on the screen.
#[derive(Default)]
pub struct Screen {
    shown: Vec<String>,
}

impl Screen {
    /// Draws when something changed.
    pub fn show(&mut self, lines: Vec<String>) {
        if lines == self.shown {
            return;
        }
        write(MONITOR, &format!("{CLEAR}{}", lines.join("\n")));
        write(SERIAL, &format!("\n{}\n", lines.join("\n")));
        self.shown = lines;
    }
}

/// One line on both, for what happens before there is a screen and after it.
pub fn say(text: &str) {
    for device in [MONITOR, SERIAL] {
        write(device, &format!("\nkurrent: {text}\n"));
    }
}

fn open(device: &str) -> Option<File> {
    // A machine without a serial port has no such device, or one that answers with an error: then nobody reads there.
    OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(device).ok()
}

fn write(device: &str, text: &str) {
    if let Some(mut device) = open(device) {
        let _ = device.write_all(text.as_bytes());
    }
}
