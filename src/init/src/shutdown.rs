//! The last steps, whatever the way here: stop processes, leave the network, close the NVMe target, unmount, sync, power.
//!
//! Network first: workers see a boot server that does not answer, and wait for it. They must never see one that answers without
//! their disk, because that they take for final.

use crate::{chain, console};
use kurrent_core::init::mounts::{BOOT, DATA};
use kurrent_core::target::{plan, tree::Desired};
use kurrent_sys::configfs::Nvmet;
use kurrent_sys::power::{self, End};
use kurrent_sys::{link, mount};
use nix::sys::signal::Signal;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Time for processes that are nobody's service.
const STRAGGLERS: Duration = Duration::from_secs(3);
/// A disk that does not answer must not keep the machine from its end.
const BOUNDED: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Ends the machine's run.
pub fn finish(end: End) -> ! {
    // A panic in here must not be the reason that the machine stays half alive.
    let _ = std::panic::catch_unwind(|| {
        stop_processes();
        bounded("network", leave_network);
        bounded("NVMe target", close_target);
        bounded("file systems", unmount_all);
        bounded("sync", rustix::fs::sync);
    });
    console::say(match end {
        End::PowerOff => "stopped, power off",
        End::Reboot => "stopped, starting again",
    });
    loop {
        let fault = power::end(end);
        console::say(&format!("the kernel does not end the machine's run: {fault}"));
        std::thread::sleep(BOUNDED);
    }
}

/// Runs a step that may hang in a thread of its own, and goes on without it after a while.
fn bounded(what: &str, step: fn()) {
    let (done, finished) = mpsc::channel();
    std::thread::spawn(move || {
        step();
        // Nobody waits any more when it took too long.
        let _ = done.send(());
    });
    if finished.recv_timeout(BOUNDED).is_err() {
        console::say(&format!("{what}: not done after {} s, going on without", BOUNDED.as_secs()));
    }
}

fn stop_processes() {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        power::signal_all(signal);
        let started = Instant::now();
        while started.elapsed() < STRAGGLERS && kurrent_children() {
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

/// Whether PID 1 still has children; reaps those that ended.
fn kurrent_children() -> bool {
    use nix::sys::wait::{WaitPidFlag, waitpid};
    crate::process::reap();
    waitpid(None::<nix::unistd::Pid>, Some(WaitPidFlag::WNOHANG)).is_ok()
}

fn leave_network() {
    for link in link::links().unwrap_or_default() {
        if let Err(fault) = link::set_up(link.index, false) {
            console::say(&chain(&fault));
        }
    }
}

/// The target holds files of the data partition open: without this it could not be unmounted.
fn close_target() {
    let nvmet = Nvmet::real();
    let Ok(observed) = nvmet.observe() else { return };
    let nothing = Desired { base: String::new(), port: None, hosts: [].into(), subsystems: [].into() };
    for step in plan::plan(&nothing, &observed) {
        if let Err(fault) = nvmet.run(&step) {
            console::say(&chain(&fault));
        }
    }
}

fn unmount_all() {
    for target in [DATA, BOOT] {
        if !mount::is_mounted(target) {
            continue;
        }
        if let Err(fault) = mount::unmount(Path::new(target), false) {
            console::say(&format!("{}; syncing it", chain(&fault)));
            rustix::fs::sync();
            let _ = mount::unmount(Path::new(target), true);
        }
    }
}
