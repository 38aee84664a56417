//! The REST API, on all addresses, behind a bearer token: JSON in and out, errors as `application/problem+json` (RFC 9457) with
//! a stable `code` and a sentence that says what to do.
//!
//! [`serve`] has the limits in front of the router (connections, head size, times), [`body`] those of bodies, [`idempotency`] the
//! repetition of requests. [`openapi`] describes what is here; a route without a description can not be added. Handlers only
//! translate: what is allowed is the ledger's and the storage's business.

mod agents;
mod archives;
mod batch;
mod body;
mod ca;
mod devices;
mod dhcp;
mod etag;
mod events;
mod explain;
mod file_body;
mod guard;
mod https;
mod idempotency;
mod join_tokens;
mod leases;
mod names;
mod openapi;
mod operations;
mod page;
mod people;
mod problem;
mod serve;
mod server_key;
mod settings;
mod storage;
mod system;
mod workers;

use crate::shared::SharedRef;
use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use problem::Problem;
pub use serve::serve;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use utoipa_axum::router::OpenApiRouter;

/// How long a device mutation waits for the data plane before it answers that it has not followed yet.
const FOLLOW_WITHIN: Duration = Duration::from_secs(5);
/// What a mutation's `data_plane` says when the kernel has done it.
const FOLLOWED: &str = "followed";
/// When the target is at fault already, there is less to wait for.
const FOLLOW_AT_ONCE: Duration = Duration::from_secs(1);
/// What handlers are handed.
#[derive(Clone)]
pub struct Api {
    shared: SharedRef,
    once: Arc<idempotency::Store>,
    listeners: Arc<events::Listeners>,
}

impl Api {
    fn new(shared: SharedRef, stopped: watch::Receiver<bool>) -> Self {
        let once = Arc::new(idempotency::Store::open(&shared.config.state_dir.join("idempotency.jsonl")));
        Self { shared, once, listeners: Arc::new(events::Listeners::new(stopped)) }
    }
}

/// Every route with its description.
fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .merge(openapi::routes())
        .merge(system::routes())
        .merge(ca::routes())
        .merge(server_key::routes())
        .merge(settings::routes())
        .merge(events::routes())
        .merge(operations::routes())
        .merge(leases::routes())
        .merge(dhcp::routes())
        .merge(devices::routes())
        .merge(workers::routes())
        .merge(storage::routes())
        .merge(agents::routes())
        .merge(join_tokens::routes())
        .merge(archives::routes())
        .merge(explain::routes())
        .merge(people::routes())
}

/// The whole router.
fn router(api: Api) -> Router {
    let (router, _) = routes().split_for_parts();
    router
        .fallback(async || {
            Problem::new(404, "no_such_path", "there is nothing at this path; the API lives under /v1, see /v1/openapi.json")
        })
        .method_not_allowed_fallback(async || {
            Problem::new(405, "method_not_allowed", "this path does not know this method; see the header Allow, and /v1/openapi.json")
        })
        // Innermost: the task that a change runs in knows who asked for it.
        .layer(from_fn(guard::act))
        .layer(from_fn_with_state(api.clone(), idempotency::once))
        .layer(from_fn_with_state(api.clone(), guard::guard))
        .with_state(api)
}

/// Waits until the kernel has followed a change; `followed`, or why not yet (it goes on trying).
async fn data_plane(api: &Api, generation: u64) -> String {
    let target = &api.shared.target;
    // Nothing is exported, so nobody has to be cut and there is nothing to wait for.
    if let Some(why) = &target.observation().no_target {
        return format!("not yet: {why}");
    }
    let mut reached = target.settled(generation, FOLLOW_AT_ONCE).await;
    let seen = target.observation();
    if reached.is_err() && !(seen.looked && seen.generation >= generation) {
        reached = target.settled(generation, FOLLOW_WITHIN).await;
    }
    reached.map_or_else(|why| format!("not yet: {why}"), |()| FOLLOWED.into())
}

#[cfg(test)]
mod tests;
