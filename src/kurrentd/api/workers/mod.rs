//! Workers.

mod batch;
mod live;
mod migrate;
mod view;

use super::body::{Body, Query, Segments};
use super::etag::{Conditions, IfMatch, IfNoneMatch, of_generation, tagged};
use super::names::{Cursor, DiskFile, DiskTag, WorkerName};
use super::page::Wanted;
use super::problem::Problem;
use super::{Api, data_plane};
use crate::api::guard::actor;
use crate::ledger::SubmitError;
use crate::ledger::expect::{Expectation, etag_of};
use crate::storage::Kept;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use kurrent_core::id::{FileName, OsTag, WorkerId};
use kurrent_core::ledger::view::Readiness;
use kurrent_core::ledger::{Change, Disk, Ledger, Worker};
pub(super) use migrate::NoteView;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
pub(super) use view::{BootForm, DiskView};
use view::{ReadinessWord, WorkerView};

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(list_workers, create_worker))
        .routes(routes!(get_worker, delete_worker))
        .routes(routes!(set_default_disk))
        .routes(routes!(set_boot))
        .merge(batch::routes())
        .merge(live::routes())
        .merge(migrate::routes())
}

pub(super) fn worker_of<'l>(ledger: &'l Ledger, id: &WorkerId) -> Result<&'l Worker, Problem> {
    ledger.known_worker(id).map_err(|refused| SubmitError::from(refused).into())
}

/// A Worker as it is in this ledger, with its tag.
fn answer(ledger: &Ledger, id: &WorkerId, status: StatusCode) -> Result<Response, Problem> {
    let worker = worker_of(ledger, id)?;
    Ok(tagged(&etag_of(worker), (status, Json(WorkerView::new(ledger, worker)))))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Filter {
    /// Only Workers that are so.
    #[param(value_type = Option<ReadinessWord>)]
    readiness: Option<Readiness>,
    /// Workers of one answer.
    #[param(minimum = 1, maximum = 1000, default = 200)]
    limit: Option<usize>,
    /// Where the previous answer ended.
    #[param(value_type = Option<Cursor>)]
    cursor: Option<String>,
}

/// Some Workers.
#[derive(Serialize, ToSchema)]
struct WorkerList {
    #[schema(max_items = 1000)]
    workers: Vec<WorkerView>,
    /// The cursor of what follows; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next: Option<String>,
    /// Of the ledger that this is from.
    generation: u64,
}

/// List Workers
#[utoipa::path(get, path = "/v1/workers", tag = "workers", params(Filter, IfNoneMatch),
    responses((status = 200, description = "Ordered by name", body = WorkerList, headers(("ETag" = String)))))]
async fn list_workers(State(api): State<Api>, conditions: Conditions, Query(filter): Query<Filter>) -> Result<Response, Problem> {
    let wanted = Wanted::new(filter.limit, filter.cursor.as_deref())?;
    let ledger = api.shared.ledger.snapshot();
    let matches = |worker: &&Worker| filter.readiness.is_none_or(|r| ledger.readiness(worker) == r);
    let page = wanted.take_sorted(ledger.workers.values().map(AsRef::as_ref).filter(matches), |w: &&Worker| w.worker_id.to_string());
    let workers = page.items.into_iter().map(|w| WorkerView::new(&ledger, w)).collect();
    let list = WorkerList { workers, next: page.next, generation: ledger.generation };
    Ok(conditions.answer(&of_generation(ledger.generation), Json(list)))
}

/// Get a Worker
#[utoipa::path(get, path = "/v1/workers/{id}", tag = "workers",
    responses((status = 200, description = "The Worker", body = WorkerView, headers(("ETag" = String)))))]
async fn get_worker(State(api): State<Api>, path: Segments) -> Result<Response, Problem> {
    let ledger = api.shared.ledger.snapshot();
    let worker = worker_of(&ledger, &path.read("id")?)?;
    // Who is bound to it is the device's record: never "unchanged".
    Ok(tagged(&etag_of(worker), Json(WorkerView::new(&ledger, worker))))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CreateWorker {
    #[schema(value_type = WorkerName)]
    worker_id: WorkerId,
}

/// Create a Worker
#[utoipa::path(post, path = "/v1/workers", tag = "workers", request_body = CreateWorker,
    responses((status = 201, description = "Created", body = WorkerView, headers(("ETag" = String), ("Location" = String)))))]
async fn create_worker(State(api): State<Api>, Body(body): Body<CreateWorker>) -> Result<Response, Problem> {
    let worker = body.worker_id;
    let (_, ledger) = api.shared.ledger.submit(Change::CreateWorker { worker: worker.clone() }, &actor()).await?;
    Ok(([(LOCATION, format!("/v1/workers/{worker}"))], answer(&ledger, &worker, StatusCode::CREATED)?).into_response())
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DeleteOptions {
    /// Also the files of its disks; else they are retained.
    #[serde(default)]
    #[param(required = false)]
    delete_files: bool,
}

/// A file that was to go with its record, and is still there: a leftover.
#[derive(Serialize, ToSchema)]
#[schema(as = KeptFile)]
pub(in crate::api) struct KeptView {
    #[schema(value_type = DiskFile)]
    filename: FileName,
    /// Stable code of why.
    #[schema(value_type = String)]
    code: &'static str,
    /// Why, with the next step.
    detail: String,
}

impl From<Kept> for KeptView {
    fn from(kept: Kept) -> Self {
        let Kept { filename, code, detail } = kept;
        Self { filename, code, detail }
    }
}

/// What becomes of the files of disks whose records went at `generation`: those that are still there, and of these the ones that
/// were to go.
async fn files_of(api: &Api, disks: Vec<Disk>, delete: bool, generation: u64) -> (Vec<String>, Vec<KeptView>) {
    if !delete {
        return (disks.iter().map(|d| d.filename.to_string()).collect(), Vec::new());
    }
    let kept = api.shared.storage.remove_files(disks, generation, &actor()).await;
    (kept.iter().map(|k| k.filename.to_string()).collect(), kept.into_iter().map(Into::into).collect())
}

#[derive(Serialize, ToSchema)]
#[schema(as = WorkerDeleted)]
struct Deleted {
    /// Disk files that are still there.
    retained: Vec<String>,
    /// Those of them that were to go, and why they are still there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    failed: Vec<KeptView>,
    /// `followed`, or why the data plane has not yet.
    data_plane: String,
}

/// Delete a Worker
///
/// Its device is unbound and cut off, its credentials are gone; the files of its disks by option.
#[utoipa::path(delete, path = "/v1/workers/{id}", tag = "workers", params(DeleteOptions, IfMatch),
    responses((status = 200, description = "Deleted", body = Deleted)))]
async fn delete_worker(
    State(api): State<Api>,
    conditions: Conditions,
    path: Segments,
    Query(options): Query<DeleteOptions>,
) -> Result<Json<Deleted>, Problem> {
    let id = path.read::<WorkerId>("id")?;
    let disks = worker_of(&api.shared.ledger.snapshot(), &id)?.disks.clone();
    let expected = conditions.expect(|tag| Expectation::Worker(id.clone(), tag));
    let (_, ledger) = api.shared.ledger.submit_if(Change::DeleteWorker { worker: id.clone() }, &actor(), expected).await?;
    api.shared.storage.forget_worker(&id);
    let data_plane = data_plane(&api, ledger.generation).await;
    let (retained, failed) = files_of(&api, disks, options.delete_files, ledger.generation).await;
    Ok(Json(Deleted { retained, failed, data_plane }))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct DefaultDisk {
    #[schema(value_type = DiskTag)]
    os_tag: OsTag,
}

/// Choose the disk that a Worker boots
#[utoipa::path(put, path = "/v1/workers/{id}/default-disk", tag = "workers", params(IfMatch), request_body = DefaultDisk,
    responses((status = 200, description = "As it is now", body = WorkerView, headers(("ETag" = String)))))]
async fn set_default_disk(
    State(api): State<Api>,
    conditions: Conditions,
    path: Segments,
    Body(body): Body<DefaultDisk>,
) -> Result<Response, Problem> {
    let id: WorkerId = path.read("id")?;
    let change = Change::SetDefaultDisk { worker: id.clone(), os_tag: body.os_tag };
    let expected = conditions.expect(|tag| Expectation::Worker(id.clone(), tag));
    let (_, ledger) = api.shared.ledger.submit_if(change, &actor(), expected).await?;
    answer(&ledger, &id, StatusCode::OK)
}

/// Replace a Worker's boot settings
#[utoipa::path(put, path = "/v1/workers/{id}/boot", tag = "workers", params(IfMatch), request_body = BootForm,
    responses((status = 200, description = "As it is now", body = WorkerView, headers(("ETag" = String)))))]
async fn set_boot(State(api): State<Api>, conditions: Conditions, path: Segments, Body(boot): Body<BootForm>) -> Result<Response, Problem> {
    let id: WorkerId = path.read("id")?;
    let expected = conditions.expect(|tag| Expectation::Worker(id.clone(), tag));
    let change = Change::SetBoot { worker: id.clone(), boot: boot.into() };
    let (_, ledger) = api.shared.ledger.submit_if(change, &actor(), expected).await?;
    answer(&ledger, &id, StatusCode::OK)
}
