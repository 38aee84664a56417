//! Work that takes longer than a request: listed, watched, cancelled.

use crate::api::Api;
use crate::api::body::{Query, Segments};
use crate::api::events::Place;
use crate::api::guard::{Asked, actor};
use crate::api::names::{Name, Time};
use crate::api::page::Piece;
use crate::api::problem::Problem;
use crate::api::workers::DiskView;
use crate::audit::Event;
use crate::storage::jobs::{Jobs, Kind};
use crate::storage::{JobState, JobView};
use axum::extract::State;
use axum::response::sse::{Event as Told, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures_util::stream::{self, Stream};
use kurrent_core::time::Wall;
use serde::Serialize;
use std::convert::Infallible;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list_jobs)).routes(routes!(get_job, cancel_job)).routes(routes!(watch_job))
}

/// Work that takes longer than a request.
#[derive(Serialize, ToSchema)]
pub(in crate::api) struct Job {
    #[schema(value_type = Name)]
    id: String,
    #[schema(value_type = KindWord)]
    kind: Kind,
    /// In words.
    what: String,
    #[schema(value_type = StateWord)]
    state: JobState,
    done_bytes: u64,
    /// 0 when that is not known.
    total_bytes: u64,
    bytes_per_second: u64,
    #[schema(value_type = Time)]
    started_at: Wall,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Time>, nullable = false)]
    finished_at: Option<Wall>,
    /// Why it takes so long, if there is something to know.
    warning: String,
    /// Where it is, in words; empty when the bytes say it.
    doing: String,
    /// Path of what it made, when done.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    result: Option<String>,
    /// The disk, when done.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    disk: Option<DiskView>,
    /// Stable code of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    code: Option<&'static str>,
    /// The failure in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    detail: Option<String>,
}

/// How far a job is.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = JobState)]
#[expect(dead_code, reason = "describes the storage's JobState")]
enum StateWord {
    /// For others to end.
    Waiting,
    Running,
    /// It clears away what it made.
    Cancelling,
    Done,
    /// It made nothing.
    Failed,
    /// It was stopped and left nothing.
    Cancelled,
}

/// What a job does.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = JobKind)]
#[expect(dead_code, reason = "describes the storage's Kind")]
enum KindWord {
    Clone,
    Create,
    Import,
    /// Moves a Worker to another device.
    Migrate,
}

impl From<JobView> for Job {
    fn from(job: JobView) -> Self {
        Self {
            id: job.id,
            kind: job.kind,
            what: job.what,
            state: job.state,
            done_bytes: job.done_bytes,
            total_bytes: job.total_bytes,
            bytes_per_second: job.bytes_per_second,
            started_at: job.started_at,
            finished_at: job.finished_at,
            warning: job.warning,
            doing: job.doing,
            result: job.result,
            disk: job.disk.map(Into::into),
            code: job.code,
            detail: job.detail,
        }
    }
}

#[derive(Serialize, ToSchema)]
struct JobList {
    #[schema(max_items = 1000)]
    jobs: Vec<Job>,
    /// The cursor of what follows; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next: Option<String>,
}

/// List jobs
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", params(Piece),
    responses((status = 200, description = "Of this run of kurrentd, the oldest first", body = JobList)))]
async fn list_jobs(State(api): State<Api>, Query(piece): Query<Piece>) -> Result<Json<JobList>, Problem> {
    let wanted = piece.wanted()?;
    // Many begin within one second, so the id is part of the order.
    let key = |job: &JobView| format!("{:020} {}", job.started_at.as_nanosecond().max(0), job.id);
    let mut jobs = api.shared.storage.jobs().views();
    jobs.sort_by_key(key);
    let page = wanted.take_sorted(jobs.into_iter(), key);
    Ok(Json(JobList { jobs: page.items.into_iter().map(Into::into).collect(), next: page.next }))
}

fn job_of(jobs: &Jobs, id: &str) -> Result<JobView, Problem> {
    let none = || Problem::new(404, "job_not_found", "there is no such job of this run of the daemon; see the job list");
    jobs.view(id).ok_or_else(none)
}

/// Get a job
#[utoipa::path(get, path = "/v1/jobs/{id}", tag = "jobs", responses((status = 200, description = "The job", body = Job)))]
async fn get_job(State(api): State<Api>, path: Segments) -> Result<Json<Job>, Problem> {
    Ok(Json(job_of(api.shared.storage.jobs(), path.text("id"))?.into()))
}

/// Cancel a job
///
/// The answer comes when it has cleared away what it made; a migration gives the Worker back. What is being recorded, or has
/// ended, is not cancelled.
#[utoipa::path(delete, path = "/v1/jobs/{id}", tag = "jobs", responses((status = 200, description = "It is cancelled", body = Job)))]
async fn cancel_job(State(api): State<Api>, path: Segments) -> Result<Json<Job>, Problem> {
    let id = path.text("id");
    let what = job_of(api.shared.storage.jobs(), id)?.what;
    let cancelled = api.shared.storage.jobs().cancel(id).await;
    let result = cancelled.as_ref().map_or_else(|e| e.code, |_| "ok").to_owned();
    api.shared.audit.record(Event { actor: actor(), verb: "job-cancel", device: None, object: what, result, detail: String::new() });
    Ok(Json(cancelled?.into()))
}

/// Watch a job
///
/// Server-sent events, each with the job as it is then: the first at once, the last when it has ended. `ended`, with a problem, is the
/// last one when the token has ended or is worth too little.
#[utoipa::path(get, path = "/v1/jobs/{id}/events", tag = "jobs",
    responses((status = 200, description = "Events named job", body = Job, content_type = "text/event-stream")))]
async fn watch_job(State(api): State<Api>, Extension(asked): Extension<Asked>, path: Segments) -> Result<Response, Problem> {
    let jobs = api.shared.storage.jobs().clone();
    // Before the first look, so that nothing is missed in between.
    let news = jobs.subscribe();
    let now = job_of(&jobs, path.text("id"))?;
    let place = api.listeners.take(asked)?;
    Ok(Sse::new(events(place, jobs, news, now)).keep_alive(KeepAlive::default()).into_response())
}

/// Where a watcher is.
struct Watch {
    place: Place,
    jobs: Jobs,
    news: Receiver<JobView>,
    id: String,
    /// What is to be told next.
    next: Option<JobView>,
}

fn events(place: Place, jobs: Jobs, news: Receiver<JobView>, now: JobView) -> impl Stream<Item = Result<Told, Infallible>> + Send {
    let watch = Watch { place, jobs, news, id: now.id.clone(), next: Some(now) };
    stream::unfold(Some(watch), async |watch| {
        let mut watch = watch?;
        let job = match watch.next.take() {
            Some(job) => job,
            None => match news_of(&mut watch).await? {
                Ok(job) => job,
                Err(last) => return Some((Ok(last), None)),
            },
        };
        let ended = job.state.is_final();
        let told = Told::default().event("job").json_data(Job::from(job)).unwrap_or_default();
        Some((Ok(told), Some(watch).filter(|_| !ended)))
    })
}

/// The job as it is then; the last event, when who watches may not any more.
async fn news_of(watch: &mut Watch) -> Option<Result<JobView, Told>> {
    loop {
        let news = tokio::select! {
            last = watch.place.ended() => return last.map(Err),
            news = watch.news.recv() => news,
        };
        match news {
            Ok(job) if job.id == watch.id => return Some(Ok(job)),
            Ok(_) => {}
            // Whoever lags behind gets what is so now.
            Err(RecvError::Lagged(_)) => return watch.jobs.view(&watch.id).map(Ok),
            Err(RecvError::Closed) => return None,
        }
    }
}
