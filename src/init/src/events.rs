//! What wakes PID 1: signals, new devices, the kernel's messages, power buttons, output of services, time.

use crate::process::Output;
use kurrent_sys::kmod::Uevents;
use kurrent_sys::power::{self, PowerButtons};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::fs::{File, OpenOptions};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

/// Everything that can wake the loop.
pub struct Sources {
    /// SIGCHLD, and the signals that ask for an end.
    pub signals: Option<SignalFd>,
    /// New devices.
    pub uevents: Option<Uevents>,
    /// The kernel's messages.
    pub kernel_log: Option<File>,
    /// Power buttons.
    pub buttons: PowerButtons,
}

impl Sources {
    /// Opens what is there; what cannot be opened is told to `say`, and the loop goes on without it.
    pub fn open(mut say: impl FnMut(&str)) -> Self {
        let mut wanted = SigSet::empty();
        for signal in [Signal::SIGCHLD, Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR2] {
            wanted.add(signal);
        }
        let signals = wanted.thread_block().and_then(|()| SignalFd::with_flags(&wanted, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC));
        let mut keep = |what: &str, fault: String| say(&format!("{what}: {fault}"));
        let signals = signals.map_err(|fault| keep("signals", fault.to_string())).ok();
        if let Err(fault) = power::catch_ctrl_alt_del() {
            keep("Ctrl-Alt-Del", fault.to_string());
        }
        let uevents = Uevents::listen().map_err(|fault| keep("device events", fault.to_string())).ok();
        let kernel_log = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg");
        let kernel_log = kernel_log.map_err(|fault| keep("kernel log", fault.to_string())).ok();
        Self { signals, uevents, kernel_log, buttons: PowerButtons::default() }
    }

    /// Sleeps until something happens or time passes; which service outputs have something.
    pub fn wait(&self, outputs: &[Output], longest: Duration) -> Vec<bool> {
        let mut fds: Vec<PollFd<'_>> = Vec::new();
        let mut add = |fd| fds.push(PollFd::new(fd, PollFlags::POLLIN));
        outputs.iter().for_each(|output| add(output.as_fd()));
        self.signals.iter().for_each(|signals| add(signals.as_fd()));
        self.uevents.iter().for_each(|uevents| add(uevents.as_fd()));
        self.kernel_log.iter().for_each(|kernel_log| add(kernel_log.as_fd()));
        self.buttons.devices().for_each(&mut add);
        let timeout = PollTimeout::try_from(longest).unwrap_or(PollTimeout::ZERO);
        // An interrupted or failed poll is looked at like any other wake-up: every source is read without blocking.
        if poll(&mut fds, timeout).is_err() {
            return vec![false; outputs.len()];
        }
        fds.iter().take(outputs.len()).map(|fd| fd.any().unwrap_or(false)).collect()
    }
}
