//! `GET /v1/events`: what changes, as server-sent events (WHATWG HTML, section 9.2).
//!
//! A listener that falls behind is told so (`lagged`) and must look at the lists itself. Listeners are bounded; they are let go when
//! kurrentd stops, so that none holds it up, and when their token ends or is worth too little, with a last event that says why (`ended`).

use super::Api;
use super::guard::Asked;
use super::names::MacAddress;
use super::problem::Problem;
use crate::ledger::ChangeNote;
use axum::Extension;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::Stream;
use serde::Serialize;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Interval, MissedTickBehavior};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Listeners at once.
const MAX_LISTENERS: usize = 64;
/// A comment in the silence: both sides see when the connection is gone.
const COMMENT_EVERY: Duration = Duration::from_secs(15);
/// How often it is looked whether a listener still may.
const ASK_EVERY: Duration = Duration::from_secs(1);

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(watch_events))
}

/// Who may listen, and until when.
pub(super) struct Listeners {
    places: Arc<Semaphore>,
    stopped: watch::Receiver<bool>,
}

/// One listener's place; given back when dropped.
pub(super) struct Place {
    _permit: OwnedSemaphorePermit,
    stopped: watch::Receiver<bool>,
    asked: Asked,
    again: Interval,
}

impl Listeners {
    pub(super) fn new(stopped: watch::Receiver<bool>) -> Self {
        Self { places: Arc::new(Semaphore::new(MAX_LISTENERS)), stopped }
    }

    pub(super) fn take(&self, asked: Asked) -> Result<Place, Problem> {
        let full = |_| Problem::new(503, "too_many_listeners", format!("{MAX_LISTENERS} programs listen already; end one, or ask again"));
        let permit = Arc::clone(&self.places).try_acquire_owned().map_err(full)?;
        let mut again = tokio::time::interval(ASK_EVERY);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Place { _permit: permit, stopped: self.stopped.clone(), asked, again })
    }
}

impl Place {
    /// Returns when kurrentd stops, with nothing, or when who listens may not any more, with a last event.
    pub(super) async fn ended(&mut self) -> Option<Event> {
        loop {
            tokio::select! {
                // Without a sender nothing is served any more either.
                _ = self.stopped.wait_for(|s| *s) => return None,
                _ = self.again.tick() => {}
            }
            if let Err(why) = self.asked.still() {
                return Some(event("ended", &why));
            }
        }
    }
}

/// An answer that goes on: `events` makes the next one; `None` ends it.
pub(super) fn stream<S: Stream<Item = Result<Event, Infallible>> + Send + 'static>(
    events: S,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    Sse::new(events).keep_alive(KeepAlive::new().interval(COMMENT_EVERY))
}

/// One event of this name.
pub(super) fn event(name: &str, data: &impl Serialize) -> Event {
    let plain = Event::default().event(name);
    // Our own types always serialize; an event without data is ignored by every client.
    plain.clone().json_data(data).unwrap_or(plain)
}

/// Data of a `change`.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes the ledger's ChangeNote")]
struct ChangeEvent {
    generation: u64,
    /// As the audit names it.
    verb: String,
    #[schema(value_type = Option<MacAddress>, nullable = false)]
    device: Option<String>,
    /// The Worker, disk, master or node that it is about.
    #[schema(nullable = false)]
    object: Option<String>,
}

/// Watch what changes
///
/// Server-sent events: `change` for every durable change of the ledger, `job` with a job as it gets on, `lagged` when some were missed;
/// `ended`, the last one, with a problem, when the token has ended or is worth too little.
#[utoipa::path(get, path = "/v1/events", tag = "events",
    responses((status = 200, description = "Goes on until one side ends it", body = ChangeEvent, content_type = "text/event-stream")))]
async fn watch_events(
    State(api): State<Api>,
    Extension(asked): Extension<Asked>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let place = api.listeners.take(asked)?;
    let state = (place, api.shared.ledger.changes(), api.shared.storage.jobs().subscribe());
    Ok(stream(futures_util::stream::unfold(Some(state), |state| async move {
        let (mut place, mut changes, mut jobs) = state?;
        let next = tokio::select! {
            last = place.ended() => return last.map(|event| (Ok(event), None)),
            change = changes.recv() => told("change", change.map(|note: ChangeNote| note)),
            job = jobs.recv() => told("job", job.map(super::storage::Job::from)),
        };
        next.map(|event| (Ok(event), Some((place, changes, jobs))))
    })))
}

/// What a listener is told; `None` when nothing more can come.
pub(super) fn told<T: Serialize>(name: &str, received: Result<T, RecvError>) -> Option<Event> {
    match received {
        Ok(data) => Some(event(name, &data)),
        Err(broadcast::error::RecvError::Lagged(missed)) => Some(event("lagged", &serde_json::json!({ "missed": missed }))),
        Err(broadcast::error::RecvError::Closed) => None,
    }
}
