//! The command line. One file per noun; every command carries an example, and a test tries each of them.

pub mod context;
pub mod device;
pub mod disk;
pub mod node;
pub mod people;
pub mod system;
pub mod values;
pub mod worker;

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

const AFTER: &str = "\
Which appliance, and who asks:
  Flags come before the environment, the environment before the current context (`kurrent context --help`).
  KURRENT_URL, KURRENT_TOKEN_FILE, KURRENT_TOKEN, KURRENT_CONTEXT, KURRENT_CA_FILE and KURRENT_CA_FINGERPRINT are read. The token is never on the command line, where
  every user of this host could read it, and a context's token goes to that context's address only.
  Without any of them it is http://127.0.0.1:8443: the appliance that `kurrent` runs on. Plain http is for this host only: to any other
  address nothing secret is sent but over https.
  `kurrent login` asks for name and password and keeps the session; `kurrent login --first-run` makes the first admin with the
  token that the appliance's console shows.

Questions:
  On a terminal, a command that cuts machines off or destroys data asks first; --yes answers it. Scripts and pipes are not asked.

Exit codes:
  0 done                                    5 what was named is not there
  1 failed                                  6 refused; the message says why and what to do
  2 the command line is wrong               7 it changed meanwhile, or the outcome is unknown: look, then ask again
  3 the appliance can not be reached        8 done in part: the answer lists what failed
  4 the token is missing or wrong         130 ended with Ctrl-C

Examples:
  kurrent context add lab --url https://10.77.0.1:8443 --token-file ~/.kurrent-token
  kurrent login --user ada --password-file ~/.kurrent-password
  kurrent status
  kurrent window open --minutes 10              # let new machines register themselves
  kurrent device knocking                       # who would like to
  kurrent worker create w1
  kurrent master import debian_tpl_12.img
  kurrent disk create w1 --os debian --os-version 12 --master debian_tpl_12.img
  kurrent device bind 52:54:00:12:34:56 w1      # the waiting machine boots as w1
  kurrent explain device 52:54:00:12:34:56      # why it boots, or why not
  kurrent audit --device 52:54:00:12:34:56";

/// Operates a Kurrent appliance.
#[derive(Debug, Parser)]
#[command(name = "kurrent", version, after_help = AFTER)]
pub struct Arguments {
    /// Where the API is: https://ADDRESS:8443 [env: KURRENT_URL] [default: http://127.0.0.1:8443, the appliance itself].
    #[arg(long, global = true)]
    pub url: Option<String>,
    /// File that holds the token [env: KURRENT_TOKEN_FILE].
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// An appliance from the contexts file [env: KURRENT_CONTEXT].
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Certificate of the CA that the appliance's has to come from, as PEM [env: KURRENT_CA_FILE].
    #[arg(long, global = true, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Fingerprint of that CA, as the appliance's screen shows it [env: KURRENT_CA_FINGERPRINT].
    #[arg(long, global = true, value_name = "SHA256", value_parser = crate::trust::fingerprint, conflicts_with = "ca")]
    pub ca_fingerprint: Option<crate::trust::Fingerprint>,
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

/// How much of a list, and for how long.
#[derive(Clone, Copy, Debug, Args)]
pub struct Listing {
    /// At most so many; without it all, however many pages that takes.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    #[command(flatten)]
    pub look: Look,
}

/// For how long to look.
#[derive(Clone, Copy, Debug, Args)]
pub struct Look {
    /// Keep looking until Ctrl-C: redrawn on a terminal, elsewhere only what changes.
    #[arg(short, long)]
    pub watch: bool,
}

/// Whether to ask.
#[derive(Clone, Copy, Debug, Args)]
pub struct Sure {
    /// Do not ask.
    #[arg(short, long)]
    pub yes: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// How the appliance is.
    #[command(after_help = "Example:\n  kurrent status --watch")]
    Status(Look),
    /// What lies in the appliance's state folder.
    #[command(subcommand, after_help = "Example:\n  kurrent state check")]
    State(system::StateFolder),
    /// Why something is as it is, in plain words.
    #[command(subcommand, after_help = "Example:\n  kurrent explain device 52:54:00:12:34:56")]
    Explain(system::Explain),
    /// What changes, as it changes.
    #[command(after_help = "Examples:\n  kurrent events\n  kurrent events --count 1 -o json      # wait for the next one")]
    Events(system::Events),
    /// Log in: the session's token is kept beside the contexts file.
    #[command(
        after_help = "Examples:\n  kurrent login --user ada --password-file ~/.kurrent-password\n  kurrent login --first-run --user ada --password-file ~/.kurrent-password --first-run-token-file ~/.kurrent-token"
    )]
    Login(people::Login),
    /// End the session.
    #[command(after_help = "Example:\n  kurrent logout")]
    Logout,
    /// Who asks, and what the token is worth.
    #[command(after_help = "Example:\n  kurrent whoami")]
    Whoami,
    /// People, and programs with a name of their own.
    #[command(subcommand, after_help = "Example:\n  kurrent user list")]
    User(people::User),
    /// Tokens for programs.
    #[command(subcommand, after_help = "Example:\n  kurrent token list")]
    Token(people::Token),
    /// Machines.
    #[command(subcommand, after_help = "Example:\n  kurrent device list --state pooled")]
    Device(device::Device),
    /// Compute identities.
    #[command(subcommand, after_help = "Example:\n  kurrent worker create w1")]
    Worker(worker::Worker),
    /// System disks.
    #[command(subcommand, after_help = "Example:\n  kurrent disk list w1")]
    Disk(disk::Disk),
    /// Master images: disks are cloned from them.
    #[command(subcommand, after_help = "Example:\n  kurrent master import debian_tpl_12.img")]
    Master(disk::Master),
    /// Disk files that no record names: kept, or cut off while they were written.
    #[command(subcommand, after_help = "Example:\n  kurrent leftover list")]
    Leftover(disk::Leftover),
    /// Long work.
    #[command(subcommand, after_help = "Example:\n  kurrent job list --watch")]
    Job(disk::Job),
    /// Storage nodes.
    #[command(subcommand, after_help = "Example:\n  kurrent agent list")]
    Agent(node::Agent),
    /// Orders by which a storage node may join.
    #[command(subcommand, after_help = "Example:\n  kurrent join-token create --minutes 30")]
    JoinToken(node::JoinToken),
    /// The registration window: while it is open, new machines with a key register themselves.
    #[command(subcommand, after_help = "Example:\n  kurrent window open --minutes 10")]
    Window(system::Window),
    /// What holds for the whole appliance.
    #[command(subcommand, after_help = "Example:\n  kurrent settings show")]
    Settings(system::Settings),
    /// DHCP: how full it is, who else answers, what became of requests.
    #[command(subcommand, after_help = "Example:\n  kurrent dhcp status")]
    Dhcp(system::Dhcp),
    /// DHCP leases.
    #[command(subcommand, after_help = "Example:\n  kurrent lease list")]
    Lease(system::Lease),
    /// What Workers authenticate to their disks with; never the secrets themselves.
    #[command(subcommand, after_help = "Example:\n  kurrent credentials list")]
    Credentials(system::Credentials),
    /// What the kernel exports, and who is connected.
    #[command(after_help = "Example:\n  kurrent target --watch")]
    Target(Look),
    /// Who did what, when, with which result.
    #[command(after_help = "Example:\n  kurrent audit --device 52:54:00:12:34:56 --since 2026-11-30T00:00:00Z")]
    Audit(system::Audit),
    /// Save ledgers and secrets, sealed with a passphrase.
    #[command(
        after_help = "Examples:\n  kurrent backup monday.kurrent\n  kurrent backup monday.kurrent --passphrase-file ~/.kurrent-passphrase"
    )]
    Backup(system::Backup),
    /// Put a backup in the place of what the appliance has.
    #[command(after_help = "Examples:\n  kurrent restore monday.kurrent --dry-run\n  kurrent restore monday.kurrent")]
    Restore(system::Restore),
    /// The certificate of the appliance's CA, for browsers and other programs (`kurrent status` has its fingerprint).
    #[command(after_help = "Example:\n  kurrent ca > kurrent-ca.crt")]
    Ca,
    /// The key that machines pin: they boot from the appliance that has it, and from no other.
    #[command(subcommand, after_help = "Example:\n  kurrent server-key show")]
    ServerKey(system::ServerKey),
    /// The API itself.
    #[command(subcommand, after_help = "Example:\n  kurrent api openapi > openapi.json")]
    Api(system::Api),
    /// Appliances this user works with.
    #[command(subcommand, after_help = context::AFTER)]
    Context(context::Context),
    /// Completions for a shell.
    #[command(after_help = "Example:\n  kurrent completions bash > ~/.local/share/bash-completion/completions/kurrent")]
    Completions {
        /// Which.
        #[arg(value_parser = clap::builder::EnumValueParser::<clap_complete::Shell>::new())]
        shell: clap_complete::Shell,
    },
}

#[cfg(test)]
mod tests;
