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
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Time for processes that are nobody's service.
const STRAGGLERS: Duration = Duration::from_secs(3);
/// A disk that does not answer must not keep the machine from its end.
const BOUNDED: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Ends the machine's run.
pub fn finish(end: End) -> ! {
    // Bounded by itself; its children are PID 1's, whichever thread asks.
    let _ = catch_unwind(stop_processes);
    let steps: [(&str, fn()); 4] =
        [("network", leave_network), ("NVMe target", close_target), ("file systems", unmount_all), ("sync", rustix::fs::sync)];
    for (what, step) in steps {
        match bounded(step, BOUNDED, thread::Builder::new()) {
            Outcome::Done => {}
            Outcome::Panicked => console::say(&format!("{what}: failed, going on without")),
            Outcome::TimedOut => console::say(&format!("{what}: not done after {} s, going on without", BOUNDED.as_secs())),
        }
    }
    console::say(match end {
        End::PowerOff => "stopped, power off",
        End::Reboot => "stopped, starting again",
    });
    loop {
        let fault = power::end(end);
        console::say(&format!("the kernel does not end the machine's run: {fault}"));
        thread::sleep(BOUNDED);
    }
}

/// How a step went.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    /// A panic in a step must not be the reason that the steps after it are left out.
    Panicked,
    TimedOut,
}

/// Runs a step that may hang in a thread of its own, and goes on without it after a while. A machine that has no thread to spare
/// runs it in place: better without a bound than not at all.
fn bounded(step: fn(), within: Duration, threads: thread::Builder) -> Outcome {
    let run = move || if catch_unwind(step).is_ok() { Outcome::Done } else { Outcome::Panicked };
    let (done, finished) = mpsc::channel();
    let started = threads.spawn(move || {
        // Nobody waits any more when it took too long.
        let _ = done.send(run());
    });
    match started {
        Ok(_) => finished.recv_timeout(within).unwrap_or(Outcome::TimedOut),
        Err(_) => run(),
    }
}

fn stop_processes() {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        power::signal_all(signal);
        let started = Instant::now();
        while started.elapsed() < STRAGGLERS && kurrent_children() {
            thread::sleep(LOOK_AGAIN);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_step_that_hangs_or_fails_keeps_nothing_waiting() {
        let bounded = |step, millis| bounded(step, Duration::from_millis(millis), thread::Builder::new());
        assert_eq!(bounded(|| {}, 10_000), Outcome::Done);
        assert_eq!(bounded(|| panic!("on purpose"), 10_000), Outcome::Panicked);
        assert_eq!(bounded(thread::park, 10), Outcome::TimedOut);
    }

    #[test]
    fn without_a_thread_to_spare_a_step_runs_all_the_same() {
        static RUNS: AtomicUsize = AtomicUsize::new(0);
        // No address space has room for such a stack: the kernel refuses the thread.
        let refused = || thread::Builder::new().stack_size(1 << 60);
        assert!(refused().spawn(|| {}).is_err());
        let count = || {
            RUNS.fetch_add(1, Ordering::SeqCst);
        };
        assert_eq!(bounded(count, Duration::ZERO, refused()), Outcome::Done);
        assert_eq!(RUNS.load(Ordering::SeqCst), 1);
        assert_eq!(bounded(|| panic!("on purpose"), Duration::ZERO, refused()), Outcome::Panicked);
    }
}
