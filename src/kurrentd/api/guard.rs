//! In front of every handler: who asks, and whether `core::access` lets them.

use super::problem::Problem;
use super::{Api, etag, openapi};
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::Response;
use kurrent_core::access::{Asker, Refusal, Role, may};

/// What is served although the ledgers do not read: it says what is wrong, or does not need them.
const WITHOUT_LEDGER: [&str; 10] = [
    "/v1/ca",
    "/v1/status",
    "/v1/state",
    "/v1/operations",
    "/v1/masters",
    "/v1/target",
    "/v1/jobs",
    "/v1/openapi.json",
    // A ledger that does not read is why one restores.
    "/v1/restore/archive",
    "/v1/restore",
];

/// Nobody gets past here whom the table does not let; with unreadable ledgers only what does not need them.
pub(super) async fn guard(State(api): State<Api>, request: Request, next: Next) -> Result<Response, Problem> {
    let offered = request.headers().get(AUTHORIZATION).map(|v| v.as_bytes());
    let offered = offered.and_then(|v| v.split_at_checked(7)).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
    let asker = match offered {
        None => Asker::Nobody,
        Some((_, token)) if !api.token.matches(token) => {
            let event = crate::audit::Event {
                actor: "api client".into(),
                verb: "api",
                device: None,
                object: String::new(),
                result: "token_wrong".into(),
                detail: String::new(),
            };
            api.shared.audit.record(event);
            return Err(Problem::new(401, "token_wrong", "this token is not valid here; the appliance's console shows the right one"));
        }
        Some(_) => Asker::Person { role: Role::Admin, only: &[] },
    };
    permitted(asker, &request)?;
    if api.shared.ledger.unreadable() && !WITHOUT_LEDGER.contains(&request.uri().path()) {
        return Err(Problem::new(503, "ledger_unreadable", api.shared.ledger.fault().unwrap_or_default()));
    }
    etag::check(request.headers())?;
    etag::heeded(&request)?;
    Ok(next.run(request).await)
}

/// Asks the table. What is no route at all is the router's to answer, but not to nobody.
fn permitted(asker: Asker, request: &Request) -> Result<(), Problem> {
    let path = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    match may(asker, request.method().as_str(), path) {
        Ok(()) => Ok(()),
        Err(Refusal::NotListed) if asker != Asker::Nobody && !openapi::is_described(request.method(), path) => Ok(()),
        Err(Refusal::NotListed | Refusal::TokenMissing) if asker == Asker::Nobody => {
            let what = "a bearer token is needed: send the header 'Authorization: Bearer TOKEN'; the console shows the first-run token";
            Err(Problem::new(401, "token_missing", what))
        }
        Err(refusal) => Err(Problem::new(403, code(&refusal), refusal.to_string())),
    }
}

/// The stable word for a refusal.
fn code(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::NotListed | Refusal::RoleMissing { .. } => "role_missing",
        Refusal::TokenMissing => "token_missing",
        Refusal::FirstRunOnly => "first_run_only",
        Refusal::TagMissing { .. } => "tag_missing",
    }
}
