//! The REST API, on all addresses, behind a bearer token: JSON in and out, errors as `application/problem+json` (RFC 9457) with
//! a stable `code` and a sentence that says what to do.
//!
//! [`serve`] has the limits in front of the router (connections, head size, times), [`body`] those of bodies. Handlers only
//! translate: what is allowed is the ledger's and the storage's business.

mod body;
mod devices;
mod problem;
mod serve;
mod storage;
mod system;
mod workers;

use crate::secrets::Token;
use crate::shared::SharedRef;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::AUTHORIZATION;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{delete, get, post, put};
use problem::Problem;
pub use serve::serve;
use std::time::Duration;

/// Who acts when a token holder acts: there is one token until users come.
const ACTOR: &str = "admin";
/// How long a device mutation waits for the data plane before it answers that it has not followed yet.
const FOLLOW_WITHIN: Duration = Duration::from_secs(5);
/// When the target is at fault already, there is less to wait for.
const FOLLOW_AT_ONCE: Duration = Duration::from_secs(1);

/// What handlers are handed.
#[derive(Clone)]
pub struct Api {
    shared: SharedRef,
    token: Token,
}

/// The whole router.
fn router(api: Api) -> Router {
    Router::new()
        .route("/v1/status", get(system::status))
        .route("/v1/settings/registration-window", get(system::window).put(system::open_window).delete(system::close_window))
        .route("/v1/leases", get(system::leases))
        .route("/v1/operations", get(system::operations))
        .route("/v1/target", get(system::target))
        .route("/v1/devices", get(devices::list))
        .route("/v1/devices/{mac}", get(devices::one).post(devices::register).delete(devices::purge))
        .route("/v1/devices/{mac}/bind", post(devices::bind))
        .route("/v1/devices/{mac}/unbind", post(devices::unbind))
        .route("/v1/devices/{mac}/revoke", post(devices::revoke))
        .route("/v1/devices/{mac}/rekey", post(devices::rekey))
        .route("/v1/devices/{mac}/labels", put(devices::label))
        .route("/v1/devices/{mac}/timeline", get(devices::timeline))
        .route("/v1/knocking", get(devices::knocking))
        .route("/v1/workers", get(workers::list).post(workers::create))
        .route("/v1/workers/{id}", get(workers::one).delete(workers::delete))
        .route("/v1/workers/{id}/default-disk", put(workers::default_disk))
        .route("/v1/workers/{id}/boot", put(workers::boot))
        .route("/v1/workers/{id}/disks", get(workers::disks).post(storage::create_disk))
        .route("/v1/workers/{id}/disks/{tag}", delete(storage::delete_disk))
        .route("/v1/masters", get(storage::masters))
        .route("/v1/masters/{name}", put(storage::import_master).layer(DefaultBodyLimit::disable()))
        .route("/v1/leftovers", get(storage::leftovers))
        .route("/v1/jobs", get(storage::jobs))
        .route("/v1/jobs/{id}", get(storage::job))
        .fallback(async || {
            Problem::new(404, "no_such_path", "there is nothing at this path; the API lives under /v1, see the documentation")
        })
        .method_not_allowed_fallback(async || {
            Problem::new(405, "method_not_allowed", "this path does not know this method; see the documentation")
        })
        .layer(from_fn_with_state(api.clone(), guard))
        .with_state(api)
}

/// Nobody without the token gets past here; with unreadable ledgers only what does not need them.
async fn guard(State(api): State<Api>, request: Request, next: Next) -> Result<Response, Problem> {
    let offered = request.headers().get(AUTHORIZATION).map(|v| v.as_bytes());
    let offered = offered.and_then(|v| v.split_at_checked(7)).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
    match offered {
        None => {
            let what = "a bearer token is needed: send the header 'Authorization: Bearer TOKEN'; the console shows the first-run token";
            return Err(Problem::new(401, "token_missing", what));
        }
        Some((_, token)) if !api.token.matches(token) => {
            let event = crate::audit::Event {
                actor: "api client".into(),
                verb: "api",
                device: None,
                object: String::new(),
                result: "token_wrong".into(),
            };
            api.shared.audit.record(event);
            return Err(Problem::new(401, "token_wrong", "this token is not valid here; the appliance's console shows the right one"));
        }
        Some(_) => {}
    }
    let without_ledger = ["/v1/status", "/v1/operations", "/v1/masters", "/v1/target", "/v1/jobs"];
    if api.shared.ledger.unreadable() && !without_ledger.contains(&request.uri().path()) {
        return Err(Problem::new(503, "ledger_unreadable", api.shared.ledger.fault().unwrap_or_default()));
    }
    Ok(next.run(request).await)
}

/// Waits until the kernel has followed a change; `followed`, or why not yet (it goes on trying).
async fn data_plane(api: &Api, generation: u64) -> String {
    let target = &api.shared.target;
    let mut reached = target.settled(generation, FOLLOW_AT_ONCE).await;
    let seen = target.observation();
    if reached.is_err() && !(seen.looked && seen.generation >= generation) {
        reached = target.settled(generation, FOLLOW_WITHIN).await;
    }
    reached.map_or_else(|why| format!("not yet: {why}"), |()| "followed".into())
}

#[cfg(test)]
mod tests;
