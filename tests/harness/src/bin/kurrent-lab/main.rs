//! `kurrent-lab`: the whole product on one machine, in QEMU, without privileges. `make lab` calls it.

mod bench;
mod show;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use kurrent_harness::{kept, master, process};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

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
        What::Console { machine } => only_kept_lab().and_then(|lab| attach(&lab, &machine)),
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

/// Joins this terminal and a console: its last screenful, then what comes; what is typed goes to it.
fn attach(lab: &Path, machine: &str) -> Result<()> {
    /// Ctrl-], as in telnet.
    const LEAVE: u8 = 0x1d;
    const SCREENFUL: u64 = 2000;
    let log = kept::evidence_of(lab)?.join(format!("{machine}.console"));
    let mut output = File::open(&log).with_context(|| format!("open {}", log.display()))?;
    let length = output.metadata().context("size of the console's file")?.len();
    output.seek(SeekFrom::Start(length.saturating_sub(SCREENFUL))).context("go to its end")?;
    let keyboard = lab.join(format!("{machine}.in"));
    let mut keyboard = File::options().write(true).open(&keyboard).with_context(|| format!("open {}", keyboard.display()))?;
    let _raw = RawTerminal::enter();
    println!("connected; Ctrl-] leaves\r");
    std::thread::spawn(move || {
        let mut buffer = [0_u8; 4096];
        loop {
            let count = output.read(&mut buffer).unwrap_or_default();
            let mut out = std::io::stdout().lock();
            let _ = out.write_all(buffer.get(..count).unwrap_or_default()).and_then(|()| out.flush());
            drop(out);
            if count == 0 {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    });
    let mut buffer = [0_u8; 256];
    loop {
        let count = std::io::stdin().read(&mut buffer).context("read the keyboard")?;
        let typed = buffer.get(..count).unwrap_or_default();
        if count == 0 || typed.contains(&LEAVE) {
            return Ok(());
        }
        keyboard.write_all(typed).context("type on the console")?;
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
