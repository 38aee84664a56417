//! `kurrentd`: the daemon and its one-shot commands.

use anyhow::Context;
use clap::{Parser, Subcommand};
use kurrentd::backup::offline;
use kurrentd::config_file;
use kurrentd::daemon::Ending;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The file to be read is wrong; what is wrong stands on stderr.
const EXIT_BAD_INPUT: u8 = 2;

/// The Kurrent daemon: DHCP, TFTP, HTTP boot, ledgers, system disks and the API of a network-boot appliance.
#[derive(Parser)]
#[command(version, after_help = "Exit codes: 0 fine, 1 failed, 2 the given file or command line is wrong.")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve until a SIGTERM or SIGINT.
    Run {
        /// The configuration.
        #[arg(long, default_value = "/boot/kurrent.yaml")]
        config: PathBuf,
        /// Where the status for the screen is written.
        #[arg(long, default_value = "/run/kurrent/status")]
        status: PathBuf,
    },
    /// Check a configuration: says nothing when it is right, else `FILE:LINE: what is wrong; what to do` and exit code 2.
    Check {
        /// The configuration.
        file: PathBuf,
    },
    /// Print what PID 1 needs of a configuration as `key=value` lines.
    Plan {
        /// The configuration.
        file: PathBuf,
    },
    /// Get and keep an address for the uplink from a DHCP server.
    Uplink {
        /// Kernel name of the NIC.
        #[arg(long)]
        interface: String,
        /// Where the lease is kept.
        #[arg(long)]
        lease_file: PathBuf,
        /// Where the resolvers are written.
        #[arg(long, default_value = "/etc/resolv.conf")]
        resolv_conf: PathBuf,
    },
    /// Back up a state folder that no kurrentd uses. A running one is asked with `kurrent backup`.
    Backup {
        /// The state folder.
        #[arg(long)]
        state_dir: PathBuf,
        /// The archive to be made; a new file.
        #[arg(long)]
        out: PathBuf,
        /// Its first line is the passphrase for the secrets.
        #[arg(long)]
        passphrase_file: PathBuf,
        /// The configuration, of which a copy goes along.
        #[arg(long)]
        config: Option<PathBuf>,
    },
    /// Put a backup in the place of a state folder that no kurrentd uses.
    Restore {
        /// The state folder.
        #[arg(long)]
        state_dir: PathBuf,
        /// The archive.
        file: PathBuf,
        /// Its first line is the passphrase of the backup.
        #[arg(long)]
        passphrase_file: PathBuf,
        /// Where disk files are, to be told which are missing.
        #[arg(long)]
        disk_dir: Option<PathBuf>,
        /// Replace ledgers that are there; they are kept aside.
        #[arg(long)]
        force: bool,
    },
    /// Look after the ledgers.
    State {
        #[command(subcommand)]
        command: StateCommand,
    },
}

#[derive(Subcommand)]
enum StateCommand {
    /// Check the ledgers and the audit's chain without changing anything: exit code 2 and `FILE:LINE: what is wrong` when the
    /// ledgers can not be served or the audit was changed.
    Check {
        /// The configuration that names the state folder.
        #[arg(long, default_value = "/boot/kurrent.yaml", conflicts_with = "state_dir")]
        config: PathBuf,
        /// The state folder itself.
        #[arg(long)]
        state_dir: Option<PathBuf>,
    },
}

/// A thread that reads a disk may not end sooner; it is cut off then.
const THREADS_END_WITHIN: Duration = Duration::from_secs(5);

/// This program in its own place, with the same process id: whoever supervises it notices nothing.
fn start_again() -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("finding this program's file to start it again")?;
    let error = std::process::Command::new(&program).args(std::env::args_os().skip(1)).exec();
    Err(error).with_context(|| format!("starting {} again", program.display()))
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("KURRENT_LOG").unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    match run(Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("kurrentd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    let bad_input = |what: &dyn std::fmt::Display| {
        eprintln!("{what}");
        Ok(ExitCode::from(EXIT_BAD_INPUT))
    };
    match command {
        Command::Run { config, status } => {
            let checked = match config_file::load(&config) {
                Ok(checked) => checked,
                Err(fault) => {
                    kurrentd::status::write_fault(&status, &fault.to_string());
                    return bad_input(&fault);
                }
            };
            kurrentd::daemon::prepare(&checked, &status);
            let runtime = tokio::runtime::Runtime::new().context("starting the runtime")?;
            let result = runtime.block_on(kurrentd::daemon::run(checked, status.clone()));
            if let Err(error) = &result {
                kurrentd::status::write_fault(&status, &format!("{error:#}"));
            }
            let ending = result?;
            runtime.shutdown_timeout(THREADS_END_WITHIN);
            match ending {
                Ending::Stop => Ok(ExitCode::SUCCESS),
                Ending::Restart => start_again(),
            }
        }
        Command::Check { file } => match config_file::load(&file) {
            Ok(_) => Ok(ExitCode::SUCCESS),
            Err(fault) => bad_input(&fault),
        },
        Command::Plan { file } => match config_file::load(&file) {
            Ok(config) => {
                print!("{}", kurrent_core::init::Plan::of(&config).encode());
                Ok(ExitCode::SUCCESS)
            }
            Err(fault) => bad_input(&fault),
        },
        Command::Uplink { interface, lease_file, resolv_conf } => {
            kurrentd::uplink::run(&kurrentd::uplink::Options { interface, lease_file, resolv_conf })?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Backup { state_dir, out, passphrase_file, config } => {
            let made = offline::passphrase(&passphrase_file)
                .and_then(|passphrase| offline::backup(&state_dir, &out, passphrase, config, kurrent_sys::clock::now()));
            match made {
                Ok(manifest) => {
                    let (count, generation) = (manifest.members.len(), manifest.generation);
                    println!("{}: generation {generation}, {count} files; disk images and masters are not in it", out.display());
                    Ok(ExitCode::SUCCESS)
                }
                Err(error) => bad_input(&error),
            }
        }
        Command::Restore { state_dir, file, passphrase_file, disk_dir, force } => {
            let now = kurrent_sys::clock::now();
            let done = offline::passphrase(&passphrase_file)
                .and_then(|passphrase| offline::restore(&state_dir, &file, passphrase, disk_dir.as_deref(), force, now));
            match done {
                Ok(restored) => {
                    println!("{}", serde_json::to_string_pretty(&restored)?);
                    Ok(ExitCode::SUCCESS)
                }
                Err(error) => bad_input(&error),
            }
        }
        Command::State { command: StateCommand::Check { config, state_dir } } => {
            let folder = match state_dir {
                Some(folder) => folder,
                None => match config_file::load(&config) {
                    Ok(config) => config.state_dir,
                    Err(fault) => return bad_input(&fault),
                },
            };
            let found = kurrentd::state_check::check(&folder);
            if !found.faults.is_empty() {
                return bad_input(&found.faults.join("\n"));
            }
            let shown = folder.display();
            if let Some(l) = found.ledgers {
                let waiting = if l.waiting == 0 { String::new() } else { format!("; {} changes wait in journal.jsonl", l.waiting) };
                println!("{shown}: generation {}, {} devices, {} Workers{waiting}", l.generation, l.devices, l.workers);
            } else {
                println!("{shown}: no ledgers yet; kurrentd begins empty ones at its first start");
            }
            if let Some(entries) = found.audit_entries {
                println!("{shown}: the audit's chain holds, {entries} entries");
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}
