//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use kurrent_core::id::{FileName, MacAddr, OsName, OsTag, OsVersion, WorkerId};
use std::path::PathBuf;

const AFTER: &str = "\
Exit codes:
  0 done                        4 the token is missing or wrong
  1 failed                      5 what was named is not there
  2 the command line is wrong   6 refused; the message says why and what to do
  3 the appliance can not be reached

The token is read from --token-file, KURRENT_TOKEN_FILE or KURRENT_TOKEN, never from the command line, where every user of
this host could read it. The appliance's console shows the first-run token.

Examples:
  export KURRENT_URL=http://10.77.0.1:8080 KURRENT_TOKEN_FILE=~/.kurrent-token
  kurrent status
  kurrent window open --minutes 10              # let new machines register themselves
  kurrent device knocking                       # who would like to
  kurrent worker create w1
  kurrent master import debian_tpl_12.img
  kurrent disk create w1 --os debian --os-version 12 --master debian_tpl_12.img
  kurrent device bind 52:54:00:12:34:56 w1      # the waiting machine boots as w1
  kurrent device timeline 52:54:00:12:34:56     # where its boot is
  kurrent audit --device 52:54:00:12:34:56";

/// Operates a Kurrent appliance.
#[derive(Debug, Parser)]
#[command(name = "kurrent", version, after_help = AFTER)]
pub struct Arguments {
    /// Where the API is.
    #[arg(long, global = true, env = "KURRENT_URL", default_value = "http://127.0.0.1:8080")]
    pub url: String,
    /// File that holds the token.
    #[arg(long, global = true, env = "KURRENT_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// Form of the answer.
    #[arg(short, long, global = true, value_enum, default_value_t = Form::Table)]
    pub output: Form,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Forms of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// For people.
    Table,
    /// As the API gives it.
    Json,
    /// The same as YAML.
    Yaml,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// How the appliance is.
    Status,
    /// The registration window: while it is open, new machines with a key register themselves.
    #[command(subcommand)]
    Window(Window),
    /// Machines.
    #[command(subcommand)]
    Device(Device),
    /// Compute identities.
    #[command(subcommand)]
    Worker(Worker),
    /// System disks.
    #[command(subcommand)]
    Disk(Disk),
    /// Master images.
    #[command(subcommand)]
    Master(Master),
    /// DHCP leases.
    #[command(subcommand)]
    Lease(Lease),
    /// Long work.
    #[command(subcommand)]
    Job(Job),
    /// Who did what, when, with which result.
    Audit(Audit),
    /// What the kernel exports, and who is connected.
    Target,
}

/// Window commands.
#[derive(Debug, Subcommand)]
pub enum Window {
    /// Open it.
    Open {
        /// How long, 1 to 60; without it what the appliance's configuration says.
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=60))]
        minutes: Option<u32>,
    },
    /// Close it.
    Close,
    /// Whether it is open.
    Show,
}

/// Device commands.
#[derive(Debug, Subcommand)]
pub enum Device {
    /// All devices.
    List {
        /// Only those in this state.
        #[arg(long, value_parser = ["pooled", "bound", "revoked"])]
        state: Option<String>,
        /// Only the one bound to this Worker.
        #[arg(long)]
        worker: Option<WorkerId>,
    },
    /// One device.
    Get {
        /// Its MAC address.
        mac: MacAddr,
    },
    /// Add a device to the pool by hand.
    Register {
        /// Its MAC address.
        mac: MacAddr,
        /// Its public key: ed25519:HEX or p256:HEX.
        #[arg(long, conflicts_with = "admit")]
        public_key: Option<String>,
        /// Take the key that it reported while it was knocking.
        #[arg(long)]
        admit: bool,
        /// Only if that key has this hash: the one that `device knocking` showed.
        #[arg(long, requires = "admit")]
        public_key_hash: Option<String>,
        /// It may boot without a key (BIOS machines).
        #[arg(long)]
        keyless_allowed: bool,
        /// Free text.
        #[arg(long, default_value = "")]
        note: String,
    },
    /// Make it boot as a Worker.
    Bind {
        /// Its MAC address.
        mac: MacAddr,
        /// The Worker.
        worker: WorkerId,
        /// Displace the device or the binding that stands in the way.
        #[arg(long)]
        force: bool,
    },
    /// Return it to the pool; the Worker keeps its disks.
    Unbind {
        /// Its MAC address.
        mac: MacAddr,
    },
    /// Shut it out: no lease, no boot, no disk; a live session is cut.
    Revoke {
        /// Its MAC address.
        mac: MacAddr,
    },
    /// Forget a revoked device.
    Purge {
        /// Its MAC address.
        mac: MacAddr,
    },
    /// Let its next report set a new key, once.
    Rekey {
        /// Its MAC address.
        mac: MacAddr,
        /// How long the order stands; 0 withdraws it.
        #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(0..=60))]
        minutes: u32,
    },
    /// Replace its labels.
    Label {
        /// Its MAC address.
        mac: MacAddr,
        /// KEY=VALUE; none removes all.
        #[arg(value_parser = label)]
        labels: Vec<(String, String)>,
    },
    /// What its latest boot has done, step by step.
    Timeline {
        /// Its MAC address.
        mac: MacAddr,
    },
    /// Unknown machines that reported themselves while they could not be admitted.
    Knocking,
}

/// Worker commands.
#[derive(Debug, Subcommand)]
pub enum Worker {
    /// All Workers.
    List,
    /// One Worker.
    Get {
        /// Its name.
        worker: WorkerId,
    },
    /// Create one.
    Create {
        /// Its name, also its hostname.
        worker: WorkerId,
    },
    /// Delete one: its device returns to the pool.
    Delete {
        /// Its name.
        worker: WorkerId,
        /// Also the files of its disks; else they are kept.
        #[arg(long)]
        delete_files: bool,
    },
    /// Replace its boot overrides; what is not given is the appliance's choice.
    Boot {
        /// Its name.
        worker: WorkerId,
        /// How it reaches its disk: nvme. iscsi is not in this version.
        #[arg(long)]
        method: Option<String>,
        /// Whose kernel it runs: appliance. disk is not in this version.
        #[arg(long)]
        kernel: Option<String>,
    },
}

/// Disk commands.
#[derive(Debug, Subcommand)]
pub enum Disk {
    /// The disks of a Worker.
    List {
        /// The Worker.
        worker: WorkerId,
    },
    /// Create a disk: a clone of a master, or an empty one.
    Create(CreateDisk),
    /// Delete a disk; the default passes to the newest remaining one.
    Delete {
        /// The Worker.
        worker: WorkerId,
        /// The disk's tag.
        os_tag: OsTag,
        /// Also its file; else that is kept.
        #[arg(long)]
        delete_file: bool,
    },
    /// Choose the disk that boots.
    Default {
        /// The Worker.
        worker: WorkerId,
        /// The disk's tag.
        os_tag: OsTag,
    },
}

/// `disk create`.
#[derive(Debug, Args)]
pub struct CreateDisk {
    /// The Worker.
    pub worker: WorkerId,
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
    /// Answer with the job instead of waiting for a long copy.
    #[arg(long)]
    pub no_wait: bool,
}

/// Master commands.
#[derive(Debug, Subcommand)]
pub enum Master {
    /// All masters.
    List,
    /// Send an image to the appliance.
    Import {
        /// The image: raw, 4K-native GPT.
        file: PathBuf,
        /// Its name there, with _tpl_ in it; else the file's own name.
        #[arg(long)]
        name: Option<FileName>,
    },
}

/// Lease commands.
#[derive(Debug, Subcommand)]
pub enum Lease {
    /// All leases.
    List,
}

/// Job commands.
#[derive(Debug, Subcommand)]
pub enum Job {
    /// All jobs since the daemon started.
    List,
    /// One job.
    Get {
        /// Its id.
        id: String,
    },
    /// Wait until it is done.
    Wait {
        /// Its id.
        id: String,
    },
}

/// `audit`.
#[derive(Debug, Args)]
pub struct Audit {
    /// Only this device.
    #[arg(long)]
    pub device: Option<MacAddr>,
    /// Only this verb: bind, report, boot-vars, …
    #[arg(long)]
    pub verb: Option<String>,
    /// Only this result: ok, no_key, …
    #[arg(long)]
    pub result: Option<String>,
    /// Only from this time on (RFC 3339).
    #[arg(long)]
    pub since: Option<String>,
    /// The latest so many.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: u32,
}

fn label(text: &str) -> Result<(String, String), String> {
    text.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())).ok_or_else(|| "write KEY=VALUE".to_owned())
}

/// `10G`, `512M`, `64K`, `4096`: powers of 1024.
fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.strip_suffix(['K', 'M', 'G', 'T', 'k', 'm', 'g', 't']) {
        None => (text, 0),
        Some(digits) => match text.to_ascii_uppercase().chars().last() {
            Some('K') => (digits, 10),
            Some('M') => (digits, 20),
            Some('G') => (digits, 30),
            _ => (digits, 40),
        },
    };
    let wrong = || "write a size like 10G, 512M or a number of bytes".to_owned();
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, expected) in [
            ("4096", Some(4096)),
            ("64K", Some(65536)),
            ("1m", Some(1 << 20)),
            ("10G", Some(10 << 30)),
            ("2T", Some(2 << 40)),
            ("", None),
            ("G", None),
            ("1.5G", None),
            ("-1", None),
            ("99999999999G", None),
        ] {
            assert_eq!(size(text).ok(), expected, "{text}");
        }
    }
}
