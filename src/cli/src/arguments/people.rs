//! Logging in and out, users, tokens. No secret is ever on the command line.

use super::{Listing, Sure};
use clap::{Args, Subcommand, ValueEnum};
use kurrent_core::id::UserName;
use std::path::PathBuf;

/// What somebody is trusted with.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Role {
    /// Reads everything that is no secret.
    Viewer,
    /// Runs machines.
    Operator,
    /// Decides about people, keys and the appliance.
    Admin,
}

impl Role {
    /// As the API has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

/// Where a password is.
#[derive(Clone, Debug, Args)]
pub struct Password {
    /// Its first line is the password; without it, it is asked for unseen.
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
}

/// `login`.
#[derive(Clone, Debug, Args)]
pub struct Login {
    /// Who; without it, it is asked for.
    #[arg(long)]
    pub user: Option<UserName>,
    #[command(flatten)]
    pub password: Password,
    /// Make the first admin, with the first-run token of the appliance's screen, and log in.
    #[arg(long)]
    pub first_run: bool,
    /// Its first line is the first-run token; without it, it is asked for unseen.
    #[arg(long, value_name = "FILE", requires = "first_run")]
    pub first_run_token_file: Option<PathBuf>,
}

/// User commands.
#[derive(Debug, Subcommand)]
pub enum User {
    /// All of them.
    #[command(after_help = "Example:\n  kurrent user list")]
    List(Listing),
    /// One of them.
    #[command(after_help = "Example:\n  kurrent user get olga")]
    Get {
        /// Who.
        name: UserName,
    },
    /// Make one.
    #[command(after_help = "Example:\n  kurrent user create olga --role operator --password-file ~/.kurrent-password")]
    Create {
        /// Who.
        name: UserName,
        /// What the user is trusted with.
        #[arg(long, value_enum)]
        role: Role,
        #[command(flatten)]
        password: Password,
    },
    /// Change the role, or keep somebody out.
    #[command(after_help = "Examples:\n  kurrent user edit olga --role viewer\n  kurrent user edit olga --disable")]
    Edit {
        /// Who.
        name: UserName,
        #[command(flatten)]
        changes: Changes,
    },
    /// Delete one, with all tokens.
    #[command(after_help = "Example:\n  kurrent user delete olga")]
    Delete {
        /// Who.
        name: UserName,
        #[command(flatten)]
        sure: Sure,
    },
    /// Another password: one's own, or, as an admin, somebody else's. All tokens of the user end.
    #[command(
        after_help = "Examples:\n  kurrent user passwd --old-password-file ~/.kurrent-password --password-file ~/.kurrent-password2\n  kurrent user passwd olga --password-file ~/.kurrent-password"
    )]
    Passwd {
        /// Whose; without it, one's own.
        name: Option<UserName>,
        #[command(flatten)]
        password: Password,
        /// Its first line is the password so far; without it, it is asked for unseen.
        #[arg(long, value_name = "FILE", conflicts_with = "name")]
        old_password_file: Option<PathBuf>,
    },
}

/// `user edit`.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = true)]
pub struct Changes {
    /// What the user is trusted with from now on.
    #[arg(long, value_enum)]
    pub role: Option<Role>,
    /// Can not log in any more; all tokens end.
    #[arg(long, conflicts_with = "enable")]
    pub disable: bool,
    /// Can log in again.
    #[arg(long)]
    pub enable: bool,
}

/// Token commands.
#[derive(Debug, Subcommand)]
pub enum Token {
    /// One's own, or a user's; never the tokens themselves.
    #[command(after_help = "Examples:\n  kurrent token list\n  kurrent token list --user olga")]
    List {
        /// Whose.
        #[arg(long)]
        user: Option<UserName>,
        #[command(flatten)]
        listing: Listing,
    },
    /// Make one for a program. It is shown this once.
    #[command(
        after_help = "Examples:\n  kurrent token create --role viewer --days 90 --note monitoring\n  kurrent token create --only devices --only workers --out ci-token\n  kurrent token create --user olga"
    )]
    Create {
        /// Whose; an admin's to say.
        #[arg(long)]
        user: Option<UserName>,
        /// At most one's own; that when left out.
        #[arg(long, value_enum)]
        role: Option<Role>,
        /// Limit it to calls of this kind, as `kurrent api openapi` tags them; may repeat.
        #[arg(long, value_name = "TAG")]
        only: Vec<String>,
        /// How long it lives, up to 366; 30 when left out.
        #[arg(long, value_parser = clap::value_parser!(i64).range(1..=366))]
        days: Option<i64>,
        /// The same in minutes, from 5.
        #[arg(long, conflicts_with = "days", value_parser = clap::value_parser!(i64).range(5..=527_040))]
        minutes: Option<i64>,
        /// One line.
        #[arg(long)]
        note: Option<String>,
        /// Write it into this new file, for its user alone, instead of showing it.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Make one worthless.
    #[command(after_help = "Examples:\n  kurrent token revoke 0123456789ab\n  kurrent token revoke 0123456789ab --user olga")]
    Revoke {
        /// Its id.
        id: String,
        /// Whose.
        #[arg(long)]
        user: Option<UserName>,
    },
}
