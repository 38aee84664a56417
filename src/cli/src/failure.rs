//! Why a command failed, with its exit code.

use serde::Deserialize;
use std::fmt;

/// The command did not do what was asked.
#[derive(Debug)]
pub enum Failure {
    /// Something on this side: a file, the answer's form.
    Local(String),
    /// The appliance can not be reached, with what to check.
    Unreachable(String),
    /// The appliance said no.
    Refused(Problem),
}

/// The API's `application/problem+json`.
#[derive(Debug, Deserialize)]
pub struct Problem {
    /// HTTP status.
    pub status: u16,
    /// Stable code.
    pub code: String,
    /// One sentence with the next step.
    pub detail: String,
}

impl Failure {
    /// A fault on this side.
    pub fn local(what: impl Into<String>) -> Self {
        Self::Local(what.into())
    }

    /// As `--help` documents them; 2 is clap's for a wrong command line.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Local(_) => 1,
            Self::Unreachable(_) => 3,
            Self::Refused(problem) => match problem.status {
                401 => 4,
                404 => 5,
                400..=499 => 6,
                _ => 1,
            },
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(what) | Self::Unreachable(what) => f.write_str(what),
            Self::Refused(Problem { code, detail, .. }) => write!(f, "{detail} ({code})"),
        }
    }
}
