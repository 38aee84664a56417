//! `kurrent agent`, `join-token`.

use super::{Listing, Look, Sure};
use clap::{Args, Subcommand};
use kurrent_core::id::AgentName;

/// One storage node.
#[derive(Clone, Debug, Args)]
pub struct One {
    /// Its name.
    pub agent: AgentName,
}

/// Agent commands.
#[derive(Debug, Subcommand)]
pub enum Agent {
    /// All storage nodes.
    #[command(after_help = "Example:\n  kurrent agent list --watch")]
    List(Listing),
    /// One storage node: its capacity, its health, its disks.
    #[command(after_help = "Example:\n  kurrent agent get local")]
    Get {
        #[command(flatten)]
        agent: One,
        #[command(flatten)]
        look: Look,
    },
    /// Add one.
    #[command(after_help = "Example:\n  kurrent agent add store2 --base-url https://10.0.0.2:8443")]
    Add {
        #[command(flatten)]
        agent: One,
        /// Where its API is.
        #[arg(long)]
        base_url: String,
        /// Free text.
        #[arg(long)]
        note: Option<String>,
    },
    /// Ask it now how it is.
    #[command(after_help = "Example:\n  kurrent agent probe local")]
    Probe(One),
    /// Change its address, or what people wrote down.
    #[command(after_help = "Example:\n  kurrent agent edit local --note 'the one in the cellar'")]
    Edit {
        #[command(flatten)]
        agent: One,
        #[command(flatten)]
        changes: Changes,
    },
    /// Give it no new disks; those it has stay in service.
    #[command(after_help = "Example:\n  kurrent agent drain local")]
    Drain(One),
    /// Give it new disks again.
    #[command(after_help = "Example:\n  kurrent agent undrain local")]
    Undrain(One),
    /// Forget one that holds no disk.
    #[command(after_help = "Example:\n  kurrent agent remove store2")]
    Remove {
        #[command(flatten)]
        agent: One,
        #[command(flatten)]
        sure: Sure,
    },
}

/// `agent edit`.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = true)]
pub struct Changes {
    /// Where its API is.
    #[arg(long)]
    pub base_url: Option<String>,
    /// Free text; empty removes it.
    #[arg(long)]
    pub note: Option<String>,
}

/// Join token commands.
#[derive(Debug, Subcommand)]
pub enum JoinToken {
    /// Make one. It is shown this once.
    #[command(after_help = "Example:\n  kurrent join-token create --minutes 30 --note store2")]
    Create {
        /// How long it can be used, 1 to 60; else as long as the appliance says.
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=60))]
        minutes: Option<u32>,
        /// Free text.
        #[arg(long)]
        note: Option<String>,
    },
    /// All of them, without the tokens themselves.
    #[command(after_help = "Example:\n  kurrent join-token list")]
    List(Listing),
    /// Make one worthless.
    #[command(after_help = "Example:\n  kurrent join-token revoke 0123456789ab")]
    Revoke {
        /// Its id.
        id: String,
    },
}
