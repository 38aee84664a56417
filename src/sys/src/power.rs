//! Power: its buttons, and the end of the machine's run.

use nix::sys::reboot::{RebootMode, reboot, set_cad_enabled};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
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
    /// Name under `/dev/input`, and the open device.
    devices: Vec<(String, File)>,
}

impl PowerButtons {
    /// Opens buttons that have appeared since the last look.
    pub fn look(&mut self, sysfs: &Path, dev: &Path) {
        for entry in fs::read_dir(sysfs.join("class/input")).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with("event") || self.devices.iter().any(|(open, _)| *open == name) {
                continue;
            }
            let keys = fs::read_to_string(entry.path().join("device/capabilities/key")).unwrap_or_default();
            if !has_key(&keys, KEY_POWER) {
                continue;
            }
            let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
            if let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(dev.join("input").join(&name)) {
                self.devices.push((name, file));
            }
        }
    }

    /// To be polled: readable when a key was pressed, or when the device is gone.
    pub fn devices(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.devices.iter().map(|(_, device)| device.as_fd())
    }

    /// Reads what is there; whether a power button was pressed. A device that is gone (a keyboard pulled out: `ENODEV`) is let
    /// go, because it would wake every poll from now on; [`Self::look`] finds it when it comes back.
    pub fn pressed(&mut self) -> bool {
        let mut pressed = false;
        self.devices.retain_mut(|(_, device)| {
            let mut events = [0; EVENT * 64];
            match device.read(&mut events) {
                Ok(0) => false,
                Ok(length) => {
                    pressed |= events.get(..length).unwrap_or_default().chunks_exact(EVENT).any(is_power_press);
                    true
                }
                Err(fault) => matches!(fault.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
            }
        });
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

    fn event(kind: u16, code: u16, value: i32) -> Vec<u8> {
        let mut event = vec![0; 16];
        event.extend(kind.to_ne_bytes());
        event.extend(code.to_ne_bytes());
        event.extend(value.to_ne_bytes());
        event
    }

    #[test]
    fn a_device_that_is_gone_is_let_go_and_found_again() {
        use std::io::Write as _;
        let folder = tempfile::tempdir().unwrap();
        let (sysfs, dev) = (folder.path().join("sys"), folder.path().join("dev"));
        for name in ["event0", "event1", "mouse0"] {
            let capabilities = sysfs.join("class/input").join(name).join("device/capabilities");
            fs::create_dir_all(&capabilities).unwrap();
            fs::write(capabilities.join("key"), "10000000000000 0\n").unwrap();
        }
        // A pipe is quiet like a keyboard while its writer is there, and at its end afterwards; a folder cannot be read at all.
        fs::create_dir_all(dev.join("input/event1")).unwrap();
        let pipe = dev.join("input/event0");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut buttons = PowerButtons::default();
        let names = |buttons: &PowerButtons| buttons.devices.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        buttons.look(&sysfs, &dev);
        assert_eq!(buttons.devices().count(), 2);
        let mut keyboard = OpenOptions::new().write(true).open(&pipe).unwrap();
        assert!(!buttons.pressed());
        assert_eq!(names(&buttons), ["event0"], "an error is the end, nothing to read is not");
        keyboard.write_all(&event(EV_KEY, KEY_POWER, 1)).unwrap();
        assert!(buttons.pressed());
        assert!(!buttons.pressed());
        assert_eq!(names(&buttons), ["event0"]);
        drop(keyboard);
        assert!(!buttons.pressed());
        assert_eq!(buttons.devices().count(), 0);
        fs::remove_dir_all(sysfs.join("class/input/event1")).unwrap();
        buttons.look(&sysfs, &dev);
        assert_eq!(names(&buttons), ["event0"]);
    }

    #[test]
    fn only_pressing_the_power_key_counts() {
        assert!(is_power_press(&event(EV_KEY, KEY_POWER, 1)));
        assert!(!is_power_press(&event(EV_KEY, KEY_POWER, 0)));
        assert!(!is_power_press(&event(EV_KEY, 30, 1)));
        assert!(!is_power_press(&event(0, KEY_POWER, 1)));
        assert!(!is_power_press(&[0; 5]));
    }
}
