//! `kurrent disk`, `master`, `leftover`, `job`.

use super::values::size;
use super::{Listing, Look, Sure};
use clap::{Args, Subcommand};
use kurrent_core::id::{AgentName, FileName, OsName, OsTag, OsVersion, WorkerId};
use std::path::PathBuf;

/// One disk.
#[derive(Clone, Debug, Args)]
pub struct One {
    /// The Worker.
    pub worker: WorkerId,
    /// The disk's tag, as `disk list` shows it.
    pub os_tag: OsTag,
}

/// Disk commands.
#[derive(Debug, Subcommand)]
pub enum Disk {
    /// All disks, or those of a Worker.
    #[command(after_help = "Examples:\n  kurrent disk list\n  kurrent disk list w1\n  kurrent disk list --os debian")]
    List {
        /// Only those of this Worker.
        worker: Option<WorkerId>,
        /// Only those on this storage node.
        #[arg(long)]
        agent: Option<AgentName>,
        /// Only those with this operating system.
        #[arg(long)]
        os: Option<OsName>,
        #[command(flatten)]
        listing: Listing,
    },
    /// One disk.
    #[command(after_help = "Example:\n  kurrent disk get w1 0123456789ab")]
    Get {
        #[command(flatten)]
        disk: One,
        #[command(flatten)]
        look: Look,
    },
    /// Create a disk: a clone of a master, or an empty one.
    #[command(
        after_help = "Examples:\n  kurrent disk create w1 --os debian --os-version 12 --master debian_tpl_12.img\n  kurrent disk create w1 --os data --size 10G"
    )]
    Create {
        /// The Worker.
        worker: WorkerId,
        #[command(flatten)]
        wanted: Wanted,
        /// Free text.
        #[arg(long)]
        remark: Option<String>,
        /// Answer with the job instead of waiting for a long copy.
        #[arg(long)]
        no_wait: bool,
    },
    /// Create the same kind of disk for many Workers.
    #[command(
        after_help = "Examples:\n  kurrent disk create-batch w1 w2 w3 --os debian --os-version 12 --master debian_tpl_12.img --dry-run\n  kurrent disk create-batch w1 w2 w3 --os data --size 10G"
    )]
    CreateBatch {
        /// The Workers.
        #[arg(required = true)]
        workers: Vec<WorkerId>,
        #[command(flatten)]
        wanted: Wanted,
        /// Only show the plan: which disk on which storage node.
        #[arg(long)]
        dry_run: bool,
        /// Answer with the jobs instead of waiting for them.
        #[arg(long)]
        no_wait: bool,
    },
    /// Mount a file that was kept again, as a new disk.
    #[command(after_help = "Example:\n  kurrent disk adopt w1 w1.debian.0123456789ab.img --os debian --os-version 12")]
    Adopt {
        /// The Worker.
        worker: WorkerId,
        /// The file, as `leftover list` shows it.
        filename: FileName,
        /// Operating system, for people: debian.
        #[arg(long)]
        os: OsName,
        /// Its version, for people: 12.
        #[arg(long, default_value = "")]
        os_version: OsVersion,
        /// Free text.
        #[arg(long)]
        remark: Option<String>,
    },
    /// Make a disk larger; it never gets smaller.
    #[command(after_help = "Example:\n  kurrent disk resize w1 0123456789ab 20G")]
    Resize {
        #[command(flatten)]
        disk: One,
        /// The new size: 20G, 512M or bytes.
        #[arg(value_parser = size)]
        size: u64,
    },
    /// Change what people wrote down about it.
    #[command(after_help = "Example:\n  kurrent disk edit w1 0123456789ab --remark golden")]
    Edit {
        #[command(flatten)]
        disk: One,
        /// Free text; empty removes it.
        #[arg(long)]
        remark: String,
    },
    /// Delete a disk; the default passes to the newest remaining one.
    #[command(after_help = "Examples:\n  kurrent disk delete w1 0123456789ab\n  kurrent disk delete w1 0123456789ab --delete-file")]
    Delete {
        #[command(flatten)]
        disk: One,
        /// Also its file; else that is kept.
        #[arg(long)]
        delete_file: bool,
        #[command(flatten)]
        sure: Sure,
    },
    /// Choose the disk that boots.
    #[command(after_help = "Example:\n  kurrent disk default w1 0123456789ab")]
    Default(One),
}

/// What kind of disk.
#[derive(Clone, Debug, Args)]
pub struct Wanted {
    /// Operating system, for people: debian.
    #[arg(long)]
    pub os: OsName,
    /// Its version, for people: 12.
    #[arg(long, default_value = "")]
    pub os_version: OsVersion,
    /// Clone this master.
    #[arg(long, required_unless_present = "size", conflicts_with = "size")]
    pub master: Option<FileName>,
    /// Make an empty disk of this size: 10G, 512M or bytes.
    #[arg(long, value_parser = size)]
    pub size: Option<u64>,
    /// On this storage node; else the appliance chooses.
    #[arg(long)]
    pub agent: Option<AgentName>,
}

/// Master commands.
#[derive(Debug, Subcommand)]
pub enum Master {
    /// All masters.
    #[command(after_help = "Example:\n  kurrent master list")]
    List(Listing),
    /// One master, with its partitions.
    #[command(after_help = "Example:\n  kurrent master get debian_tpl_12.img")]
    Get {
        /// Its name.
        name: FileName,
        #[command(flatten)]
        look: Look,
    },
    /// Send an image to the appliance.
    #[command(
        after_help = "Examples:\n  kurrent master import debian_tpl_12.img\n  kurrent master import disk.img --name debian_tpl_12.img"
    )]
    Import {
        /// The image: raw, 4K-native GPT.
        file: PathBuf,
        /// Its name there, with _tpl_ in it; else the file's own name.
        #[arg(long)]
        name: Option<FileName>,
    },
    /// Say what it holds; what is not given is removed.
    #[command(after_help = "Example:\n  kurrent master tag debian_tpl_12.img --os debian --os-version 12")]
    Tag {
        /// Its name.
        name: FileName,
        /// Operating system.
        #[arg(long)]
        os: Option<OsName>,
        /// Its version.
        #[arg(long)]
        os_version: Option<OsVersion>,
        /// Free text.
        #[arg(long)]
        remark: Option<String>,
    },
    /// Delete an image; disks cloned from it stay.
    #[command(after_help = "Example:\n  kurrent master delete debian_tpl_12.img")]
    Delete {
        /// Its name.
        name: FileName,
        #[command(flatten)]
        sure: Sure,
    },
}

/// Leftover commands.
#[derive(Debug, Subcommand)]
pub enum Leftover {
    /// All of them.
    #[command(after_help = "Example:\n  kurrent leftover list")]
    List(Listing),
    /// Delete such a file, for ever.
    #[command(after_help = "Example:\n  kurrent leftover delete w1.debian.0123456789ab.img")]
    Delete {
        /// Its name.
        name: String,
        #[command(flatten)]
        sure: Sure,
    },
}

/// Job commands.
#[derive(Debug, Subcommand)]
pub enum Job {
    /// All jobs since the daemon started.
    #[command(after_help = "Example:\n  kurrent job list --watch")]
    List(Listing),
    /// One job.
    #[command(after_help = "Example:\n  kurrent job get 7")]
    Get {
        /// Its id.
        id: String,
        #[command(flatten)]
        look: Look,
    },
    /// Wait until it is done; a job that failed fails this command.
    #[command(after_help = "Example:\n  kurrent job wait 7")]
    Wait {
        /// Its id.
        id: String,
    },
    /// Stop it; what it made so far is removed.
    #[command(after_help = "Example:\n  kurrent job cancel 7")]
    Cancel {
        /// Its id.
        id: String,
        #[command(flatten)]
        sure: Sure,
    },
}
