//! PID 1 of the appliance, and its `/sbin/modprobe`.
//!
//! Finds the disk it came from, lets it grow at the first start, mounts it, names the machine, gives the NICs their addresses,
//! keeps the services running, shows a status screen and keeps the log. It never returns: every way out, a panic included, ends
//! in stopped processes, unmounted file systems, a bounded sync and the power action.
//!
//! ```text
//!  looking for the disk --found, grown, mounted, kurrent.yaml read--> serving --power button, Ctrl-Alt-Del--> stopping --> off
//!          |                                                                                                    ^
//!          +---- too small, several, damaged, bad kurrent.yaml ----> stuck: the screen says why, nothing serves -+
//! ```

mod appliance;
mod console;
mod disk;
mod events;
mod harden;
mod log;
mod network;
mod process;
mod setup;
mod shutdown;
mod writer;

use kurrent_sys::{kmod, power::End};
use std::path::Path;
use std::process::ExitCode;

/// Time for a person to read a panic's message before the machine starts again.
const PANIC_SHOWN: std::time::Duration = std::time::Duration::from_secs(10);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
    let mut words = arguments.iter().map(String::as_str);
    let program = words.next().and_then(|path| Path::new(path).file_name()).map(|name| name.to_string_lossy().into_owned());
    if program.as_deref() == Some("modprobe") {
        return ExitCode::from(kmod::answer_kernel(&words.collect::<Vec<_>>()));
    }
    if std::process::id() != 1 {
        eprintln!("kurrent-init is PID 1 of the appliance; there is nothing to run it for by hand");
        return ExitCode::from(2);
    }
    std::panic::set_hook(Box::new(|panic| console::say(&format!("PANIC in kurrent-init: {panic}; the appliance starts again"))));
    let end = std::panic::catch_unwind(appliance::run).unwrap_or_else(|_| {
        std::thread::sleep(PANIC_SHOWN);
        End::Reboot
    });
    shutdown::finish(end)
}

/// An error with everything that caused it, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
