//! `kurrent-lab`: the whole product on one machine, in QEMU, without privileges. `make lab` calls it.

mod bench;
mod show;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use kurrent_harness::{kept, master, process};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;

/// The appliance and a diskless worker in QEMU: from power-on to a login prompt, then revoked.
#[derive(Parser)]
#[command(name = "kurrent-lab", version)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Boot appliance and worker, show each step, a timeline, and what revoking does.
    ///
    /// With LAB_KEEP=1 in the environment both are left running, before the revocation, with the commands to reach them.
    Run,
    /// Measure the figures of the README: sizes, times, memory.
    Bench,
    /// Build the Debian master (target/lab/debian_tpl_12.img) when it is missing or its recipe has changed.
    Master,
    /// List labs left running.
    List,
    /// Connect to a console of a lab left running; Ctrl-] leaves it.
    Console {
        /// appliance or worker0.
        machine: String,
    },
    /// End the labs left running and remove their disks.
    Stop,
}

fn main() -> ExitCode {
    let what = Arguments::parse().what;
    if let Err(error) = process::end_all_on_signal() {
        eprintln!("kurrent-lab: {error:#}");
        return ExitCode::FAILURE;
    }
    let outcome = match what {
        What::Run => show::run(),
        What::Bench => bench::run(),
        What::Master => master::ensure_built(&mut |line| println!("{line}")).map(|path| println!("{}", path.display())),
        What::List => {
            kept::list().iter().for_each(|lab| println!("{}", lab.display()));
            Ok(())
        }
        What::Console { machine } => only_kept_lab().and_then(|lab| attach(&lab.join(format!("{machine}.console")))),
        What::Stop => stop(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kurrent-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn stop() -> Result<()> {
    let labs = kept::list();
    if labs.is_empty() {
        println!("no lab is left running");
    }
    for lab in labs {
        println!("{}: {} machines ended", lab.display(), kept::stop(&lab)?);
    }
    Ok(())
}

fn only_kept_lab() -> Result<PathBuf> {
    let labs = kept::list();
    match labs.as_slice() {
        [lab] => Ok(lab.clone()),
        [] => bail!("no lab is left running; LAB_KEEP=1 make lab leaves one"),
        _ => bail!("several labs run; `kurrent-lab stop` ends them"),
    }
}

/// Joins this terminal and a console.
fn attach(socket: &std::path::Path) -> Result<()> {
    /// Ctrl-], as in telnet.
    const LEAVE: u8 = 0x1d;
    let folder = socket.parent().context("a folder")?;
    let folder = std::fs::File::open(folder).with_context(|| format!("open {}", folder.display()))?;
    // Through the open folder: socket paths are limited to 107 octets.
    let short = format!("/proc/self/fd/{}/{}", folder.as_raw_fd(), socket.file_name().unwrap_or_default().to_string_lossy());
    let mut console = UnixStream::connect(short).with_context(|| format!("connect to {}", socket.display()))?;
    let _raw = RawTerminal::enter();
    println!("connected; Ctrl-] leaves\r");
    let mut from = console.try_clone().context("second handle of the console")?;
    std::thread::spawn(move || {
        let mut buffer = [0_u8; 4096];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let mut out = std::io::stdout().lock();
            let _ = out.write_all(buffer.get(..count).unwrap_or_default()).and_then(|()| out.flush());
        }
    });
    let mut buffer = [0_u8; 256];
    loop {
        let count = std::io::stdin().read(&mut buffer).context("read the keyboard")?;
        let typed = buffer.get(..count).unwrap_or_default();
        if count == 0 || typed.contains(&LEAVE) {
            return Ok(());
        }
        console.write_all(typed).context("type on the console")?;
    }
}

/// The terminal passes every key on while this lives.
struct RawTerminal(Option<nix::sys::termios::Termios>);

impl RawTerminal {
    fn enter() -> Self {
        use nix::sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr};
        let before = tcgetattr(std::io::stdin()).ok();
        if let Some(mut raw) = before.clone() {
            cfmakeraw(&mut raw);
            let _ = tcsetattr(std::io::stdin(), SetArg::TCSANOW, &raw);
        }
        Self(before)
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = nix::sys::termios::tcsetattr(std::io::stdin(), nix::sys::termios::SetArg::TCSANOW, before);
        }
    }
}
