//! Why a command failed, with its exit code.

use crate::output::clean;
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
    /// Some of it is done; the answer, which is printed, lists what is not.
    InPart(String),
    /// Ctrl-C.
    Interrupted,
}

/// The API's `application/problem+json` (RFC 9457).
#[derive(Debug, Deserialize)]
pub struct Problem {
    /// HTTP status.
    pub status: u16,
    /// Stable code.
    pub code: String,
    /// One sentence with the next step.
    pub detail: String,
    /// What of the request is at fault.
    #[serde(default)]
    pub field: Option<String>,
}

impl Problem {
    /// One that was not in an answer.
    pub fn new(status: u16, code: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { status, code: code.into(), detail: detail.into(), field: None }
    }
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
            Self::Refused(problem) => match (problem.status, problem.code.as_str()) {
                (401, _) => 4,
                (404, _) => 5,
                (412, _) | (_, "plan_stale" | "outcome_unknown" | "in_progress" | "answer_not_kept" | "shown_once") => 7,
                (400..=499, _) => 6,
                _ => 1,
            },
            Self::InPart(_) => 8,
            // 128 + SIGINT, as shells have it.
            Self::Interrupted => 130,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(what) | Self::Unreachable(what) | Self::InPart(what) => f.write_str(&clean(what)),
            Self::Refused(Problem { code, detail, field, .. }) => {
                write!(f, "{} ({}", clean(detail), clean(code))?;
                match field {
                    Some(field) => write!(f, ", {})", clean(field)),
                    None => f.write_str(")"),
                }
            }
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_the_help() {
        let refused = |status, code: &str| Failure::Refused(Problem::new(status, code, ""));
        for (failure, expected) in [
            (Failure::local(""), 1),
            (refused(500, "in_doubt"), 1),
            (Failure::Unreachable(String::new()), 3),
            (refused(401, "token_wrong"), 4),
            (refused(404, "device_not_found"), 5),
            (refused(409, "worker_exists"), 6),
            (refused(422, "body_invalid"), 6),
            (refused(412, "precondition_failed"), 7),
            (refused(409, "plan_stale"), 7),
            (refused(409, "outcome_unknown"), 7),
            (refused(409, "answer_not_kept"), 7),
            (Failure::InPart(String::new()), 8),
            (Failure::Interrupted, 130),
        ] {
            assert_eq!(failure.exit_code(), expected, "{failure:?}");
        }
    }

    #[test]
    fn what_a_server_says_moves_no_cursor() {
        let mut problem = Problem::new(409, "co\u{9b}de", "a\u{1b}]0;title\u{7}b\nc");
        problem.field = Some("no\rte".into());
        assert_eq!(Failure::Refused(problem).to_string(), r"a\u{1b}]0;title\u{7}b\nc (co\u{9b}de, no\rte)");
    }
}
