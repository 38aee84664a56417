//! `kurrent context`.

use clap::Subcommand;

/// How the file looks.
pub const AFTER: &str = "\
The file is $XDG_CONFIG_HOME/kurrent/contexts.yaml (else ~/.config/kurrent/contexts.yaml), mode 0600:

  current: lab
  contexts:
    lab:
      url: https://10.77.0.1:8443
      token_file: ~/.kurrent-token
      ca: ca-lab.crt

For https the appliance's CA has to be known, and no other is believed: `context add` shows its fingerprint, which stands on the
appliance's screen as well, asks, and keeps the certificate beside this file. Scripts give --ca-fingerprint or --ca. Plain http is
for this host only.

A token itself can not stand in it: such files are copied, shown and kept in version control by people who forget what is in
them. A file that holds nothing but the token can have its own mode, and a program can replace it.

Examples:
  kurrent context add lab --url https://10.77.0.1:8443 --token-file ~/.kurrent-token
  kurrent context use lab
  kurrent status --context lab";

/// Context commands.
#[derive(Debug, Subcommand)]
pub enum Context {
    /// All contexts.
    #[command(after_help = "Example:\n  kurrent context list")]
    List,
    /// What a command would use, and from where it has it.
    #[command(after_help = "Example:\n  kurrent context show --context lab")]
    Show,
    /// Add one, or replace it.
    #[command(after_help = "Example:\n  kurrent context add lab --url https://10.77.0.1:8443 --token-file ~/.kurrent-token")]
    Add {
        /// Its name; --url and --token-file say the rest. The first one becomes the current one.
        name: String,
    },
    /// Make one the current one.
    #[command(after_help = "Example:\n  kurrent context use lab")]
    Use {
        /// Its name.
        name: String,
    },
    /// Forget one; its token file stays.
    #[command(after_help = "Example:\n  kurrent context remove lab")]
    Remove {
        /// Its name.
        name: String,
    },
}
