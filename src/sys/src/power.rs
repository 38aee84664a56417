//! Power: its buttons, and the end of the machine's run.

use nix::sys::reboot::{RebootMode, reboot, set_cad_enabled};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// `KEY_POWER` and `EV_KEY` of `linux/input-event-codes.h`.
const KEY_POWER: u16 = 116;
const EV_KEY: u16 = 1;
/// Octets of `struct input_event`: a time of two words, type, code, value.
const EVENT: usize = 24;

/// How the machine's run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Off.
    PowerOff,
    /// And on again.
    Reboot,
}

/// Ctrl-Alt-Del becomes a SIGINT to PID 1 instead of a reset on the spot.
pub fn catch_ctrl_alt_del() -> io::Result<()> {
    Ok(set_cad_enabled(false)?)
}

/// Ends the machine's run at once: everything has to be on the disk before. Comes back only when the kernel refuses.
pub fn end(end: End) -> io::Error {
    let mode = match end {
        End::PowerOff => RebootMode::RB_POWER_OFF,
        End::Reboot => RebootMode::RB_AUTOBOOT,
    };
    match reboot(mode) {
        Ok(never) => match never {},
        Err(fault) => fault.into(),
    }
}

/// Sends a signal to every process but PID 1. Nothing to send it to is fine.
pub fn signal_all(signal: Signal) {
    let _ = kill(Pid::from_raw(-1), signal);
}

/// Input devices with a power button.
#[derive(Debug, Default)]
pub struct PowerButtons {
    /// Open devices; readable when a key was pressed.
    pub devices: Vec<File>,
    names: Vec<String>,
}

impl PowerButtons {
    /// Opens buttons that have appeared since the last look.
    pub fn look(&mut self, sysfs: &Path, dev: &Path) {
        for entry in fs::read_dir(sysfs.join("class/input")).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with("event") || self.names.contains(&name) {
                continue;
            }
            let keys = fs::read_to_string(entry.path().join("device/capabilities/key")).unwrap_or_default();
            if !has_key(&keys, KEY_POWER) {
                continue;
            }
            let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
            if let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(dev.join("input").join(&name)) {
                self.devices.push(file);
                self.names.push(name);
            }
        }
    }

    /// Reads what is there; whether a power button was pressed.
    pub fn pressed(&mut self) -> bool {
        let mut pressed = false;
        for device in &mut self.devices {
            let mut events = [0; EVENT * 64];
            while let Ok(length) = device.read(&mut events) {
                pressed |= events.get(..length).unwrap_or_default().chunks_exact(EVENT).any(is_power_press);
                if length < events.len() {
                    break;
                }
            }
        }
        pressed
    }
}

fn is_power_press(event: &[u8]) -> bool {
    let half = |at: usize| event.get(at..).and_then(|rest| rest.first_chunk()).map(|two| u16::from_ne_bytes(*two));
    let value = event.get(20..).and_then(|rest| rest.first_chunk()).map(|four| i32::from_ne_bytes(*four));
    (half(16), half(18), value) == (Some(EV_KEY), Some(KEY_POWER), Some(1))
}

/// sysfs shows a bitmap as hex words of 64 bits, the highest first.
fn has_key(bitmap: &str, key: u16) -> bool {
    let (word, bit) = (usize::from(key / 64), key % 64);
    let words: Vec<&str> = bitmap.split_ascii_whitespace().rev().collect();
    words.get(word).and_then(|word| u64::from_str_radix(word, 16).ok()).is_some_and(|word| word >> bit & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_key_is_found_in_the_bitmap() {
        assert!(has_key("10000000000000 0\n", KEY_POWER));
        assert!(!has_key("0 10000000000000\n", KEY_POWER));
        assert!(!has_key("", KEY_POWER));
        assert!(!has_key("zz 0", KEY_POWER));
    }

    #[test]
    fn only_pressing_the_power_key_counts() {
        let event = |kind: u16, code: u16, value: i32| {
            let mut event = vec![0; 16];
            event.extend(kind.to_ne_bytes());
            event.extend(code.to_ne_bytes());
            event.extend(value.to_ne_bytes());
            event
        };
        assert!(is_power_press(&event(EV_KEY, KEY_POWER, 1)));
        assert!(!is_power_press(&event(EV_KEY, KEY_POWER, 0)));
        assert!(!is_power_press(&event(EV_KEY, 30, 1)));
        assert!(!is_power_press(&event(0, KEY_POWER, 1)));
        assert!(!is_power_press(&[0; 5]));
    }
}
