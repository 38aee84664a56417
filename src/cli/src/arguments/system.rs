//! What concerns the appliance as a whole.

use super::worker::Overrides;
use super::{Listing, Look, Sure};
use clap::{Args, Subcommand, ValueEnum};
use kurrent_core::id::{MacAddr, WorkerId};
use std::net::Ipv4Addr;
use std::path::PathBuf;

/// What to explain.
#[derive(Debug, Subcommand)]
pub enum Explain {
    /// Why a device boots, or why not.
    #[command(after_help = "Example:\n  kurrent explain device 52:54:00:12:34:56")]
    Device {
        /// Its MAC address.
        mac: MacAddr,
        #[command(flatten)]
        look: Look,
    },
}

/// What to do with the state folder.
#[derive(Debug, Subcommand)]
pub enum StateFolder {
    /// Read ledgers, journal and audit from the disk as the next start would; exit code 1 when something is wrong.
    #[command(after_help = "Example:\n  kurrent state check")]
    Check,
}

/// `events`.
#[derive(Debug, Args)]
pub struct Events {
    /// End after so many; else with Ctrl-C.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Only those of this device.
    #[arg(long)]
    pub device: Option<MacAddr>,
}

/// Window commands.
#[derive(Debug, Subcommand)]
pub enum Window {
    /// Open it.
    #[command(after_help = "Example:\n  kurrent window open --minutes 10")]
    Open {
        /// How long, 1 to 60; without it what the appliance's configuration says.
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=60))]
        minutes: Option<u32>,
    },
    /// Close it.
    #[command(after_help = "Example:\n  kurrent window close")]
    Close,
    /// Whether it is open.
    #[command(after_help = "Example:\n  kurrent window show")]
    Show,
}

/// Settings commands.
#[derive(Debug, Subcommand)]
pub enum Settings {
    /// What holds now.
    #[command(after_help = "Example:\n  kurrent settings show")]
    Show(Look),
    /// Change some; what is not given stays.
    #[command(
        after_help = "Examples:\n  kurrent settings set --enforcement on\n  kurrent settings set --method nvme\n  kurrent settings set --no-boot      # boot defaults of this version"
    )]
    Set {
        #[command(flatten)]
        changes: SettingsChanges,
        #[command(flatten)]
        sure: Sure,
    },
}

/// `settings set`.
#[derive(Clone, Debug, Args)]
pub struct SettingsChanges {
    /// Whether a device has to prove its key before it boots; `config` is what the configuration file says.
    #[arg(long, value_enum)]
    pub enforcement: Option<Enforcement>,
    #[command(flatten)]
    pub boot: Overrides,
    /// Remove the boot defaults.
    #[arg(long, conflicts_with_all = ["method", "kernel", "menu_default", "menu_timeout_ms"])]
    pub no_boot: bool,
}

/// Whether keys have to be proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Enforcement {
    /// They have.
    On,
    /// Devices without a key get their disks too.
    Off,
    /// As the configuration says.
    Config,
}

/// DHCP commands.
#[derive(Debug, Subcommand)]
pub enum Dhcp {
    /// Subnets and how full they are, other DHCP servers on the boot network, and what became of all requests since the start.
    #[command(
        after_help = "Examples:\n  kurrent dhcp status\n  kurrent dhcp status --watch               # while a rack is switched on\n  kurrent dhcp status -o json"
    )]
    Status(Look),
}

/// Lease commands.
#[derive(Debug, Subcommand)]
pub enum Lease {
    /// Leases: all, or those of one network.
    #[command(after_help = "Examples:\n  kurrent lease list\n  kurrent lease list --subnet 10.78.0.0/24")]
    List {
        /// Only of this network, with its prefix length.
        #[arg(long, value_name = "NETWORK")]
        subnet: Option<String>,
        #[command(flatten)]
        listing: Listing,
    },
    /// Take an address back; its machine gets one when it asks again.
    #[command(after_help = "Example:\n  kurrent lease release 10.77.0.50")]
    Release {
        /// The address.
        address: Ipv4Addr,
        #[command(flatten)]
        sure: Sure,
    },
}

/// Credentials commands.
#[derive(Debug, Subcommand)]
pub enum Credentials {
    /// Whose there are.
    #[command(after_help = "Example:\n  kurrent credentials list")]
    List(Listing),
    /// Make new ones for a Worker; a running machine is cut off and boots again.
    #[command(after_help = "Example:\n  kurrent credentials rotate w1")]
    Rotate {
        /// The Worker.
        worker: WorkerId,
        #[command(flatten)]
        sure: Sure,
    },
}

/// Server key commands.
#[derive(Debug, Subcommand)]
pub enum ServerKey {
    /// The key, the ones before it, and how many machines have not followed yet.
    #[command(after_help = "Example:\n  kurrent server-key show")]
    Show(Look),
    /// Make a new one, signed by the present one: machines follow at their next boot. Make a backup afterwards.
    #[command(
        after_help = "Examples:\n  kurrent server-key rotate\n  kurrent server-key rotate --yes\n  kurrent server-key rotate --force --yes      # although machines may be left behind"
    )]
    Rotate {
        /// Although machines may still have pinned a key that is forgotten now: the pinned key of these has to be cleared in
        /// their firmware.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        sure: Sure,
    },
}

/// `audit`.
#[derive(Debug, Args)]
pub struct Audit {
    /// Only this device.
    #[arg(long)]
    pub device: Option<MacAddr>,
    /// Only this object: a Worker, a disk, a master.
    #[arg(long)]
    pub object: Option<String>,
    /// Only this verb: bind, report, boot-vars, …
    #[arg(long)]
    pub verb: Option<String>,
    /// Only what this one did.
    #[arg(long)]
    pub actor: Option<String>,
    /// Only this result: ok, no_key, …
    #[arg(long)]
    pub result: Option<String>,
    /// Only from this time on (RFC 3339).
    #[arg(long)]
    pub since: Option<String>,
    /// Only before this time (RFC 3339).
    #[arg(long)]
    pub until: Option<String>,
    /// The latest so many.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    #[command(flatten)]
    pub look: Look,
}

/// `backup`.
#[derive(Debug, Args)]
pub struct Backup {
    /// Where to: a new file, mode 0600.
    pub file: PathBuf,
    #[command(flatten)]
    pub passphrase: Passphrase,
}

/// `restore`.
#[derive(Debug, Args)]
pub struct Restore {
    /// The backup.
    pub file: PathBuf,
    #[command(flatten)]
    pub passphrase: Passphrase,
    /// Only check it and say what is in it.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub sure: Sure,
}

/// Where the passphrase is.
#[derive(Clone, Debug, Args)]
pub struct Passphrase {
    /// File whose first line is the passphrase (12 characters or more); else it is asked for. Never given in the open: other
    /// users see command lines.
    #[arg(long, env = "KURRENT_PASSPHRASE_FILE", value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,
}

/// `api`.
#[derive(Debug, Subcommand)]
pub enum Api {
    /// Its description, OpenAPI 3.1.
    #[command(after_help = "Example:\n  kurrent api openapi > openapi.json")]
    Openapi,
}
