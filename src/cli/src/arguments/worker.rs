//! `kurrent worker`.

use super::values::minutes;
use super::{Listing, Look, Sure};
use clap::{Args, Subcommand};
use kurrent_core::id::{MacAddr, WorkerId};

/// One Worker.
#[derive(Clone, Debug, Args)]
pub struct One {
    /// Its name.
    pub worker: WorkerId,
}

/// Worker commands.
#[derive(Debug, Subcommand)]
pub enum Worker {
    /// All Workers.
    #[command(after_help = "Example:\n  kurrent worker list --readiness partial")]
    List {
        /// Only those of this readiness.
        #[arg(long, value_parser = ["ready", "partial", "idle"])]
        readiness: Option<String>,
        #[command(flatten)]
        listing: Listing,
    },
    /// One Worker.
    #[command(after_help = "Example:\n  kurrent worker get w1")]
    Get {
        #[command(flatten)]
        worker: One,
        #[command(flatten)]
        look: Look,
    },
    /// Create one.
    #[command(after_help = "Example:\n  kurrent worker create w1")]
    Create {
        /// Its name, also its hostname.
        worker: WorkerId,
    },
    /// Create many: all of them, or none.
    #[command(
        after_help = "Examples:\n  kurrent worker create-batch w1 w2 w3\n  kurrent worker create-batch --prefix node- --count 20 --width 3      # node-001 to node-020"
    )]
    CreateBatch(CreateBatch),
    /// Delete one: its device returns to the pool.
    #[command(after_help = "Examples:\n  kurrent worker delete w1\n  kurrent worker delete w1 --delete-files")]
    Delete {
        #[command(flatten)]
        worker: One,
        /// Also the files of its disks; else they are kept.
        #[arg(long)]
        delete_files: bool,
        #[command(flatten)]
        sure: Sure,
    },
    /// Delete many; one that can not be deleted does not keep the others.
    #[command(after_help = "Example:\n  kurrent worker delete-batch w1 w2 w3")]
    DeleteBatch {
        /// Their names.
        #[arg(required = true)]
        workers: Vec<WorkerId>,
        /// Also the files of their disks; else they are kept.
        #[arg(long)]
        delete_files: bool,
        #[command(flatten)]
        sure: Sure,
    },
    /// Replace its boot overrides; what is not given is the appliance's choice.
    #[command(after_help = "Examples:\n  kurrent worker boot w1 --method nvme\n  kurrent worker boot w1      # no overrides")]
    Boot {
        #[command(flatten)]
        worker: One,
        #[command(flatten)]
        boot: Overrides,
    },
    /// How it is now: its machine, its boot, its disks, its connections.
    #[command(after_help = "Example:\n  kurrent worker status w1 --watch")]
    Status {
        #[command(flatten)]
        worker: One,
        #[command(flatten)]
        look: Look,
    },
    /// Move it to another device, with its disk: cold, and back when the new device does not prove itself.
    #[command(
        after_help = "Examples:\n  kurrent worker migrate w1 --to 52:54:00:12:34:57 --dry-run\n  kurrent worker migrate w1 --to 52:54:00:12:34:57 --wait 30m     # switch the old machine off meanwhile\n  kurrent worker migrate w1 --to 52:54:00:12:34:57 --wait 0 --yes  # cut it off now"
    )]
    Migrate {
        #[command(flatten)]
        worker: One,
        /// The new device: pooled, and with a key.
        #[arg(long, value_name = "MAC")]
        to: MacAddr,
        /// How long the present device may take to go (10m, 2h); 0 cuts it off at once.
        #[arg(long, value_name = "TIME", default_value = "10m", value_parser = minutes)]
        wait: u32,
        /// How long the new one may take to prove itself; then the present one has the Worker again.
        #[arg(long, value_name = "TIME", default_value = "15m", value_parser = minutes)]
        attest: u32,
        /// Only say what would be.
        #[arg(long)]
        dry_run: bool,
        /// Do not wait for its end.
        #[arg(long)]
        no_follow: bool,
        #[command(flatten)]
        sure: Sure,
    },
    /// What its machine would be told at boot; without secrets.
    #[command(after_help = "Example:\n  kurrent worker boot-vars w1")]
    BootVars {
        #[command(flatten)]
        worker: One,
        #[command(flatten)]
        look: Look,
    },
}

/// `worker create-batch`.
#[derive(Debug, Args)]
pub struct CreateBatch {
    /// Their names, also their hostnames.
    #[arg(required_unless_present = "prefix", conflicts_with_all = ["prefix", "start", "count", "width"])]
    pub workers: Vec<WorkerId>,
    /// Make names of this and a number.
    #[arg(long, requires = "count")]
    pub prefix: Option<String>,
    /// So many.
    #[arg(long, requires = "prefix", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub count: Option<u32>,
    /// The first number; else 1.
    #[arg(long, requires = "prefix")]
    pub start: Option<u32>,
    /// Digits of the number at least, with zeros in front.
    #[arg(long, requires = "prefix", value_parser = clap::value_parser!(u8).range(1..=9))]
    pub width: Option<u8>,
    /// Only show the plan.
    #[arg(long)]
    pub dry_run: bool,
}

/// Boot settings.
#[derive(Clone, Debug, Args)]
pub struct Overrides {
    /// How it reaches its disk: nvme. iscsi is not in this version.
    #[arg(long)]
    pub method: Option<String>,
    /// Whose kernel it runs: appliance. disk is not in this version.
    #[arg(long)]
    pub kernel: Option<String>,
    /// Menu entry that is taken when the time is up.
    #[arg(long)]
    pub menu_default: Option<String>,
    /// Time of the menu, in milliseconds.
    #[arg(long)]
    pub menu_timeout_ms: Option<u32>,
}
