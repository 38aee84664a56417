//! `kurrent device`.

use super::values::{label, label_filter};
use super::{Listing, Look, Sure};
use clap::{Args, Subcommand, ValueEnum};
use kurrent_core::id::{MacAddr, WorkerId};
use std::net::Ipv4Addr;
use std::path::PathBuf;

const BATCH: &str = "\
The file has one pair a line: MAC,WORKER; empty lines, lines with # and a heading `mac,worker` are passed over.
All of it is done, or nothing. The plan that is shown is the plan that runs: if the ledger changed since, it is refused.

Examples:
  kurrent device bind-batch rack7.csv --dry-run
  kurrent device bind-batch rack7.csv
  kurrent device bind-batch - --yes";

const IMPORT: &str = "\
CSV has a heading: mac,public_key,keyless_allowed,note,labels,address, of which only mac is needed; labels are KEY=VALUE with ;
between, address is reserved for the device.
YAML and JSON are lists of the same fields.

Examples:
  kurrent device import machines.csv --dry-run
  kurrent device import - --format yaml";

/// One device.
#[derive(Clone, Copy, Debug, Args)]
pub struct One {
    /// Its MAC address.
    pub mac: MacAddr,
}

/// Device commands.
#[derive(Debug, Subcommand)]
pub enum Device {
    /// All devices.
    #[command(
        after_help = "Examples:\n  kurrent device list\n  kurrent device list --state pooled --label rack=7\n  kurrent device list --watch"
    )]
    List(List),
    /// One device.
    #[command(after_help = "Example:\n  kurrent device get 52:54:00:12:34:56")]
    Get {
        #[command(flatten)]
        device: One,
        #[command(flatten)]
        look: Look,
    },
    /// Add a device to the pool by hand.
    #[command(
        after_help = "Examples:\n  kurrent device register 52:54:00:12:34:56 --note 'rack-7'\n  kurrent device register 52:54:00:12:34:56 --keyless-allowed"
    )]
    Register(Register),
    /// Add many devices to the pool from a file.
    #[command(after_help = IMPORT)]
    Import {
        /// CSV, YAML or JSON; `-` reads from stdin.
        file: PathBuf,
        /// What the file is; else its name says it.
        #[arg(long, value_enum)]
        format: Option<ImportFormat>,
        /// Only say what would happen.
        #[arg(long)]
        dry_run: bool,
    },
    /// Add a knocking device to the pool, with the key that it reported.
    #[command(after_help = "Example:\n  kurrent device admit 52:54:00:12:34:56")]
    Admit {
        #[command(flatten)]
        device: One,
        /// Only if its key has this hash: the one that `device knocking` showed.
        #[arg(long)]
        public_key_hash: Option<String>,
        /// Free text.
        #[arg(long)]
        note: Option<String>,
    },
    /// Make it boot as a Worker.
    #[command(
        after_help = "Examples:\n  kurrent device bind 52:54:00:12:34:56 w1\n  kurrent device bind 52:54:00:12:34:56 w1 --force      # in the place of another"
    )]
    Bind {
        #[command(flatten)]
        device: One,
        /// The Worker.
        worker: WorkerId,
        /// Displace the device or the binding that stands in the way.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        sure: Sure,
    },
    /// Bind many devices at once.
    #[command(after_help = BATCH)]
    BindBatch {
        /// Pairs of MAC and Worker; `-` reads from stdin.
        file: PathBuf,
        /// Displace what stands in the way.
        #[arg(long)]
        force: bool,
        /// Only show the plan.
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        sure: Sure,
    },
    /// Return it to the pool; the Worker keeps its disks.
    #[command(after_help = "Example:\n  kurrent device unbind 52:54:00:12:34:56")]
    Unbind {
        #[command(flatten)]
        device: One,
        #[command(flatten)]
        sure: Sure,
    },
    /// Shut it out: no lease, no boot, no disk; a live session is cut.
    #[command(after_help = "Example:\n  kurrent device revoke 52:54:00:12:34:56")]
    Revoke {
        #[command(flatten)]
        device: One,
        #[command(flatten)]
        sure: Sure,
    },
    /// Forget a revoked device.
    #[command(after_help = "Example:\n  kurrent device purge 52:54:00:12:34:56")]
    Purge {
        #[command(flatten)]
        device: One,
        #[command(flatten)]
        sure: Sure,
    },
    /// Give it a new key, once: the machine makes it and signs it with its old one at its next boot.
    #[command(
        after_help = "Examples:\n  kurrent device rekey 52:54:00:12:34:56\n  kurrent device rekey 52:54:00:12:34:56 --replaced      # a new mainboard\n  kurrent device rekey 52:54:00:12:34:56 --minutes 0     # withdraw the order"
    )]
    Rekey {
        #[command(flatten)]
        device: One,
        /// How long the order stands; 0 withdraws it.
        #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(0..=60))]
        minutes: u32,
        /// Its mainboard was replaced, or it had no key: its next report may bring any key.
        #[arg(long)]
        replaced: bool,
    },
    /// Replace its labels.
    #[command(
        after_help = "Examples:\n  kurrent device label 52:54:00:12:34:56 rack=7 size=big\n  kurrent device label 52:54:00:12:34:56      # removes all"
    )]
    Label {
        #[command(flatten)]
        device: One,
        /// KEY=VALUE; none removes all.
        #[arg(value_parser = label)]
        labels: Vec<(String, String)>,
    },
    /// Change what people wrote down about it, and how it boots.
    #[command(
        after_help = "Examples:\n  kurrent device edit 52:54:00:12:34:56 --note 'moved'\n  kurrent device edit 52:54:00:12:34:56 --no-loader\n  kurrent device edit 52:54:00:12:34:56 --address 10.77.0.9"
    )]
    Edit(Edit),
    /// What its latest boot has done, step by step.
    #[command(after_help = "Example:\n  kurrent device timeline 52:54:00:12:34:56 --watch")]
    Timeline {
        #[command(flatten)]
        device: One,
        #[command(flatten)]
        look: Look,
    },
    /// Why it boots, or why not, in plain words.
    #[command(after_help = "Example:\n  kurrent device explain 52:54:00:12:34:56")]
    Explain {
        #[command(flatten)]
        device: One,
        #[command(flatten)]
        look: Look,
    },
    /// Unknown machines that reported themselves while they could not be admitted.
    #[command(after_help = "Example:\n  kurrent device knocking --watch")]
    Knocking(Look),
}

/// `device list`.
#[derive(Debug, Args)]
pub struct List {
    /// Only those in this state.
    #[arg(long, value_parser = ["pooled", "bound", "revoked"])]
    pub state: Option<String>,
    /// Only those with this label: KEY=VALUE, or KEY for any value; may be repeated, then all must match.
    #[arg(long, value_parser = label_filter)]
    pub label: Vec<String>,
    /// Only the one bound to this Worker.
    #[arg(long)]
    pub worker: Option<WorkerId>,
    /// Only those that came this way.
    #[arg(long, value_parser = ["ipxe", "manual"])]
    pub source: Option<String>,
    #[command(flatten)]
    pub listing: Listing,
}

/// `device register`.
#[derive(Debug, Args)]
pub struct Register {
    #[command(flatten)]
    pub device: One,
    /// Its public key: ed25519:HEX or p256:HEX.
    #[arg(long, conflicts_with = "admit")]
    pub public_key: Option<String>,
    /// Take the key that it reported while it was knocking; the same as `device admit`.
    #[arg(long, conflicts_with_all = ["keyless_allowed", "labels"])]
    pub admit: bool,
    /// Only if that key has this hash: the one that `device knocking` showed.
    #[arg(long, requires = "admit")]
    pub public_key_hash: Option<String>,
    /// It may boot without a key (BIOS machines).
    #[arg(long)]
    pub keyless_allowed: bool,
    /// Free text.
    #[arg(long, default_value = "")]
    pub note: String,
    /// KEY=VALUE; may be repeated.
    #[arg(long = "label", value_parser = label)]
    pub labels: Vec<(String, String)>,
}

/// `device edit`.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct Changes {
    /// Free text; empty removes it.
    #[arg(long)]
    pub note: Option<String>,
    /// Whether it may boot without a key.
    #[arg(long, value_name = "BOOL")]
    pub keyless_allowed: Option<bool>,
    /// The loader it is offered in the place of its architecture's.
    #[arg(long, conflicts_with = "no_loader")]
    pub loader: Option<String>,
    /// The loader of its architecture again.
    #[arg(long)]
    pub no_loader: bool,
    /// The address that DHCP gives to it and to nobody else.
    #[arg(long, conflicts_with = "no_address")]
    pub address: Option<Ipv4Addr>,
    /// A dynamic address again.
    #[arg(long)]
    pub no_address: bool,
}

/// `device edit`.
#[derive(Debug, Args)]
pub struct Edit {
    #[command(flatten)]
    pub device: One,
    #[command(flatten)]
    pub changes: Changes,
}

/// What an import is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ImportFormat {
    /// RFC 4180, with a heading.
    Csv,
    /// A list.
    Yaml,
    /// A list.
    Json,
}
