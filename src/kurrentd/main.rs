//! `kurrentd`: the daemon and its one-shot commands.

use anyhow::Context;
use clap::{Parser, Subcommand};
use kurrentd::config_file;
use std::path::PathBuf;
use std::process::ExitCode;

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
            let runtime = tokio::runtime::Runtime::new().context("starting the runtime")?;
            let result = runtime.block_on(kurrentd::daemon::run(checked, status.clone()));
            if let Err(error) = &result {
                kurrentd::status::write_fault(&status, &format!("{error:#}"));
            }
            result.map(|()| ExitCode::SUCCESS)
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
        Command::State { command: StateCommand::Check { config, state_dir } } => {
            let folder = match state_dir {
                Some(folder) => folder,
                None => match config_file::load(&config) {
                    Ok(config) => config.state_dir,
                    Err(fault) => return bad_input(&fault),
                },
            };
            match kurrentd::ledger::load::check(&folder) {
                Ok(Some(ledger)) => {
                    let (generation, devices, workers) = (ledger.generation, ledger.devices.len(), ledger.workers.len());
                    println!("{}: generation {generation}, {devices} devices, {workers} Workers", folder.display());
                }
                Ok(None) => println!("{}: no ledgers yet; kurrentd begins empty ones at its first start", folder.display()),
                Err(error) => return bad_input(&error),
            }
            match kurrentd::audit::verify(&folder) {
                Ok(entries) => {
                    println!("{}: the audit's chain holds, {entries} entries", folder.display());
                    Ok(ExitCode::SUCCESS)
                }
                Err(broken) => bad_input(&broken),
            }
        }
    }
}
