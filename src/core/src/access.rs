//! Who may do what: one table of every route of the API ([`table`]), one question ([`may`]).
//!
//! What is not in the table is refused to everybody, so a new route is closed until it has a row. `tests/golden/roles.csv` is the
//! same table for people.

pub mod lockout;
pub mod people;
mod table;

use serde::{Deserialize, Serialize};
use std::fmt;
pub use table::ROUTES;

/// What somebody is trusted with; each role has all that the one before it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Reads everything that is no secret.
    Viewer,
    /// Runs machines: devices, Workers, disks, masters, leases.
    Operator,
    /// Decides about people, keys and the appliance itself.
    Admin,
}

impl Role {
    /// Every role, the least first.
    pub const ALL: [Self; 3] = [Self::Viewer, Self::Operator, Self::Admin];

    /// As it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Who asks, as far as the table cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker<'a> {
    /// Without any proof.
    Nobody,
    /// With the first-run token: good for making the first admin.
    FirstRun,
    /// With a token of a person.
    Person {
        /// At most this.
        role: Role,
        /// Tags of the routes that the token is limited to; empty: all.
        only: &'a [String],
    },
}

/// The least that a route asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Least {
    /// Nothing: it proves somebody, or is public.
    Nobody,
    /// A person of this role.
    Role(Role),
}

/// One route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// `GET`, `POST`, …
    pub method: &'static str,
    /// As the API's description has it.
    pub path: &'static str,
    /// The tag of the API's description, for tokens that are limited to some.
    pub tag: &'static str,
    /// Who may.
    pub least: Least,
    /// The first-run token may, too.
    pub first_run: bool,
}

/// Why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The route is not in the table.
    NotListed,
    /// Nobody has proven himself.
    TokenMissing,
    /// The first-run token is good for the first admin only.
    FirstRunOnly,
    /// It takes more.
    RoleMissing {
        /// The least role.
        needs: Role,
        /// The one at hand.
        has: Role,
    },
    /// The token is limited to other tags.
    TagMissing {
        /// The tag of this route.
        needs: &'static str,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotListed => f.write_str("nobody may do this: the call is in no role's list; report it"),
            Self::TokenMissing => f.write_str("a token is needed; log in with 'kurrent login'"),
            Self::FirstRunOnly => f.write_str("the first-run token only makes the first admin; do that with 'kurrent login --first-run'"),
            Self::RoleMissing { needs, has } => write!(f, "this takes the role {needs}, and yours is {has}; ask an admin"),
            Self::TagMissing { needs } => write!(f, "this token is limited to other calls than those of '{needs}'; use another token"),
        }
    }
}

/// What concerns only the person who asks; no limit of a token keeps it from that.
pub const TAG_SESSION: &str = "session";
/// No limited token reaches these: whoever makes users or tokens can give himself the rest.
const TAGS_OF_POWER: [&str; 2] = ["users", "tokens"];

/// Whether `asker` may use a route; the path is as the description has it, not as it was asked for.
///
/// # Errors
/// Why not.
pub fn may(asker: Asker, method: &str, path: &str) -> Result<(), Refusal> {
    // RFC 9110 section 9.3.2: HEAD is GET without the body.
    let method = if method == "HEAD" { "GET" } else { method };
    let route = ROUTES.iter().find(|r| r.method == method && r.path == path).ok_or(Refusal::NotListed)?;
    let Least::Role(needs) = route.least else { return Ok(()) };
    match asker {
        Asker::Nobody => Err(Refusal::TokenMissing),
        Asker::FirstRun if route.first_run => Ok(()),
        Asker::FirstRun => Err(Refusal::FirstRunOnly),
        Asker::Person { role, .. } if role < needs => Err(Refusal::RoleMissing { needs, has: role }),
        Asker::Person { only, .. } => {
            let fine = only.is_empty() || route.tag == TAG_SESSION || (may_limit_to(route.tag) && only.iter().any(|t| t == route.tag));
            if fine { Ok(()) } else { Err(Refusal::TagMissing { needs: route.tag }) }
        }
    }
}

/// Whether a token can be limited to this tag.
#[must_use]
pub fn may_limit_to(tag: &str) -> bool {
    tag != TAG_SESSION && !TAGS_OF_POWER.contains(&tag) && ROUTES.iter().any(|r| r.tag == tag)
}

/// The tags that a token can be limited to, in order.
#[must_use]
pub fn limits() -> Vec<&'static str> {
    let mut tags: Vec<_> = ROUTES.iter().map(|r| r.tag).filter(|t| may_limit_to(t)).collect();
    tags.sort_unstable();
    tags.dedup();
    tags
}

#[cfg(test)]
#[path = "access/people_tests.rs"]
mod people_tests;

#[cfg(test)]
#[path = "access/tests.rs"]
mod tests;
