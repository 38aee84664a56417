//! People: logging in and out, users, tokens. What may be is decided by `core::access`; `kurrentd::people` keeps it.
//!
//! A token is in one answer, the one that makes it; the password of nobody is in any.

mod session;
mod tokens;
mod users;

use super::Api;
use crate::api::guard::actor;
use crate::audit::Event;
use crate::people::PeopleError;
use kurrent_core::access::Role;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().merge(session::routes()).merge(users::routes()).merge(tokens::routes())
}

/// What somebody is trusted with: each has all that the one before it has.
#[derive(Clone, Copy, Serialize, serde::Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = Role)]
enum RoleName {
    Viewer,
    Operator,
    Admin,
}

impl From<Role> for RoleName {
    fn from(role: Role) -> Self {
        match role {
            Role::Viewer => Self::Viewer,
            Role::Operator => Self::Operator,
            Role::Admin => Self::Admin,
        }
    }
}

impl From<RoleName> for Role {
    fn from(role: RoleName) -> Self {
        match role {
            RoleName::Viewer => Self::Viewer,
            RoleName::Operator => Self::Operator,
            RoleName::Admin => Self::Admin,
        }
    }
}

/// Tells the audit, and waits until it has it.
async fn audited<T>(
    api: &Api,
    verb: &'static str,
    object: String,
    detail: String,
    result: Result<T, PeopleError>,
) -> Result<T, PeopleError> {
    let word = match &result {
        Ok(_) => "ok",
        Err(PeopleError::Refused(refused)) => refused.code,
        Err(PeopleError::LockedOut(_)) => "locked_out",
        Err(PeopleError::Busy) => "busy",
        Err(PeopleError::Unreadable) => "users_unreadable",
        Err(PeopleError::Edited(_)) => "users_edited",
        Err(PeopleError::NotDurable(_)) => "not_durable",
    };
    api.shared.audit.record(Event { actor: actor(), verb, device: None, object, result: word.into(), detail });
    api.shared.audit.written().await;
    result
}
