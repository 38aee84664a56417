//! System disks. A disk is part of its Worker's record, so its `ETag` is the Worker's.

use crate::api::body::{Body, Query, Segments};
use crate::api::etag::{Conditions, IfMatch, of_generation, tagged};
use crate::api::guard::actor;
use crate::api::names::{Cursor, DiskFile, NodeName, Note, SystemName, SystemVersion, WorkerName};
use crate::api::page::Wanted as Piece;
use crate::api::problem::Problem;
use crate::api::workers::{DiskView, KeptView, worker_of};
use crate::api::{Api, FOLLOWED, data_plane};
use crate::ledger::expect::{Expectation, etag_of};
use crate::storage::{Adoption, Content, Created, NewDisk};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use kurrent_core::id::{AgentName, FileName, OsName, OsTag, OsVersion, WorkerId, disk_iqn};
use kurrent_core::ledger::{Change, Disk, Ledger};
use kurrent_core::placement::Wanted;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(list_disks))
        .routes(routes!(list_worker_disks, create_disk))
        .routes(routes!(adopt_disk))
        .routes(routes!(get_disk, edit_disk, delete_disk))
        .routes(routes!(resize_disk))
}

/// A system disk, whose it is, and how its file is.
#[derive(Serialize, ToSchema)]
struct DiskDetail {
    #[schema(value_type = WorkerName)]
    worker_id: WorkerId,
    #[serde(flatten)]
    disk: DiskView,
    /// The iSCSI name, derived of the NQN.
    iqn: String,
    /// What is wrong with its file, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    fault: Option<String>,
}

impl DiskDetail {
    fn new(worker: &WorkerId, disk: Disk, fault: Option<String>) -> Self {
        Self { worker_id: worker.clone(), iqn: disk_iqn(&disk.nqn), disk: disk.into(), fault }
    }
}

async fn details(api: &Api, disks: Vec<(WorkerId, Disk)>) -> Result<Vec<DiskDetail>, Problem> {
    let faults = api.shared.storage.file_faults(disks.iter().map(|(_, d)| d.clone()).collect()).await?;
    Ok(disks.into_iter().zip(faults).map(|((worker, disk), fault)| DiskDetail::new(&worker, disk, fault)).collect())
}

/// One disk of this ledger, with its tag.
async fn answer(api: &Api, ledger: &Ledger, worker: &WorkerId, tag: &OsTag) -> Result<(String, DiskDetail), Problem> {
    let record = worker_of(ledger, worker)?;
    let none = || Problem::new(404, "disk_not_found", format!("Worker {worker} has no disk {tag}; see its disk list"));
    let disk = record.disks.iter().find(|d| d.os_tag == *tag).ok_or_else(none)?;
    let detail = details(api, vec![(worker.clone(), disk.clone())]).await?.pop().ok_or_else(none)?;
    Ok((etag_of(record), detail))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Filter {
    /// Only those on this storage node.
    #[param(value_type = Option<NodeName>)]
    agent: Option<AgentName>,
    /// Only those of this system.
    #[param(value_type = Option<SystemName>)]
    os: Option<OsName>,
    /// Only those of this Worker.
    #[param(value_type = Option<WorkerName>)]
    worker: Option<WorkerId>,
    /// Disks of one answer.
    #[param(minimum = 1, maximum = 1000, default = 200)]
    limit: Option<usize>,
    /// Where the previous answer ended.
    #[param(value_type = Option<Cursor>)]
    cursor: Option<String>,
}

/// Some disks.
#[derive(Serialize, ToSchema)]
struct DiskList {
    #[schema(max_items = 1000)]
    disks: Vec<DiskDetail>,
    /// The cursor of what follows; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next: Option<String>,
    /// Of the ledger that this is from.
    generation: u64,
}

async fn list(api: &Api, filter: Filter) -> Result<Response, Problem> {
    let piece = Piece::new(filter.limit, filter.cursor.as_deref())?;
    let ledger = api.shared.ledger.snapshot();
    let workers = ledger.workers.values().filter(|w| filter.worker.as_ref().is_none_or(|id| *id == w.worker_id));
    let disks = workers.flat_map(|worker| {
        let mut disks: Vec<&Disk> = worker.disks.iter().collect();
        disks.sort_by(|a, b| a.os_tag.cmp(&b.os_tag));
        disks.into_iter().map(|d| (&worker.worker_id, d))
    });
    let fits = |(_, d): &(&WorkerId, &Disk)| {
        filter.agent.as_ref().is_none_or(|a| *a == d.agent) && filter.os.as_ref().is_none_or(|os| *os == d.os)
    };
    // A blank sorts before whatever a Worker's name may hold, so that the keys are in the order of the list.
    let page = piece.take_sorted(disks.filter(fits), |(worker, d)| format!("{worker} {}", d.os_tag));
    let found = page.items.into_iter().map(|(worker, disk)| (worker.clone(), disk.clone())).collect();
    let list = DiskList { disks: details(api, found).await?, next: page.next, generation: ledger.generation };
    // Their files are looked at as well: never "unchanged".
    Ok(tagged(&of_generation(ledger.generation), Json(list)))
}

/// List all disks
#[utoipa::path(get, path = "/v1/disks", tag = "disks", params(Filter),
    responses((status = 200, description = "Ordered by Worker and tag", body = DiskList, headers(("ETag" = String)))))]
async fn list_disks(State(api): State<Api>, Query(filter): Query<Filter>) -> Result<Response, Problem> {
    list(&api, filter).await
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PieceQuery {
    /// Disks of one answer.
    #[param(minimum = 1, maximum = 1000, default = 200)]
    limit: Option<usize>,
    /// Where the previous answer ended.
    #[param(value_type = Option<Cursor>)]
    cursor: Option<String>,
}

/// List a Worker's disks
#[utoipa::path(get, path = "/v1/workers/{id}/disks", tag = "disks", params(PieceQuery),
    responses((status = 200, description = "Ordered by tag", body = DiskList, headers(("ETag" = String)))))]
async fn list_worker_disks(State(api): State<Api>, path: Segments, Query(piece): Query<PieceQuery>) -> Result<Response, Problem> {
    let worker: WorkerId = path.read("id")?;
    worker_of(&api.shared.ledger.snapshot(), &worker)?;
    let filter = Filter { agent: None, os: None, worker: Some(worker), limit: piece.limit, cursor: piece.cursor };
    list(&api, filter).await
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CreateDisk {
    #[schema(value_type = SystemName)]
    os: OsName,
    #[schema(value_type = Option<SystemVersion>)]
    os_version: Option<OsVersion>,
    /// What is cloned; or else `size_bytes`.
    #[schema(value_type = Option<DiskFile>)]
    master: Option<FileName>,
    /// An empty disk of this size, a multiple of 4096; or else `master`.
    size_bytes: Option<u64>,
    /// The storage node to take; by default the appliance chooses.
    #[schema(value_type = Option<NodeName>)]
    agent: Option<AgentName>,
    #[serde(default)]
    #[schema(value_type = Note)]
    remark: String,
}

/// What a disk is made of.
pub(super) fn content(master: Option<FileName>, size_bytes: Option<u64>) -> Result<Content, Problem> {
    match (master, size_bytes) {
        (Some(master), None) => Ok(Content::Master(master)),
        (None, Some(size)) => Ok(Content::Empty(size)),
        (Some(_), Some(_)) | (None, None) => {
            Err(Problem::new(422, "body_invalid", "give either master (a clone) or size_bytes (an empty disk)").at("master"))
        }
    }
}

/// An empty version is what none is.
pub(super) fn version(version: Option<OsVersion>) -> Result<OsVersion, Problem> {
    version.map_or_else(|| Ok("".parse()?), Ok)
}

/// Work that goes on.
#[derive(Serialize, ToSchema)]
struct JobStarted {
    job: String,
}

fn created(worker: &WorkerId, disk: Disk) -> Response {
    let location = format!("/v1/workers/{worker}/disks/{}", disk.os_tag);
    (StatusCode::CREATED, [(LOCATION, location)], Json(DiskDetail::new(worker, disk, None))).into_response()
}

/// Create a disk
///
/// An empty one, and a clone where the file system clones by reference, is there with the answer; else a job copies it.
#[utoipa::path(post, path = "/v1/workers/{id}/disks", tag = "disks", params(IfMatch), request_body = CreateDisk, responses(
    (status = 201, description = "Created", body = DiskDetail, headers(("Location" = String))),
    (status = 202, description = "It takes longer: see the job", body = JobStarted, headers(("Location" = String)))))]
async fn create_disk(
    State(api): State<Api>,
    conditions: Conditions,
    path: Segments,
    Body(body): Body<CreateDisk>,
) -> Result<Response, Problem> {
    let worker: WorkerId = path.read("id")?;
    let content = content(body.master, body.size_bytes)?;
    let wanted = Wanted { worker: worker.clone(), os: body.os, os_version: version(body.os_version)?, content, pin: body.agent };
    let expected = conditions.expect(|tag| Expectation::Worker(worker.clone(), tag));
    Ok(match api.shared.storage.create_disk(NewDisk { wanted, remark: body.remark, expected }, &actor()).await? {
        Created::Disk(disk) => created(&worker, disk),
        Created::Job(job) => (StatusCode::ACCEPTED, [(LOCATION, format!("/v1/jobs/{job}"))], Json(JobStarted { job })).into_response(),
    })
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct AdoptDisk {
    /// A file without a record, as `/leftovers` lists it.
    #[schema(value_type = DiskFile)]
    filename: FileName,
    #[schema(value_type = SystemName)]
    os: OsName,
    #[schema(value_type = Option<SystemVersion>)]
    os_version: Option<OsVersion>,
    #[serde(default)]
    #[schema(value_type = Note)]
    remark: String,
}

/// Make a retained file a disk again
///
/// It gets a new tag, NQN and UUID, and the name that belongs to them.
#[utoipa::path(post, path = "/v1/workers/{id}/disks/adopt", tag = "disks", params(IfMatch), request_body = AdoptDisk,
    responses((status = 201, description = "Adopted", body = DiskDetail, headers(("Location" = String)))))]
async fn adopt_disk(
    State(api): State<Api>,
    conditions: Conditions,
    path: Segments,
    Body(body): Body<AdoptDisk>,
) -> Result<Response, Problem> {
    let worker: WorkerId = path.read("id")?;
    let AdoptDisk { filename, os, os_version, remark } = body;
    let expected = conditions.expect(|tag| Expectation::Worker(worker.clone(), tag));
    let adoption = Adoption { worker: worker.clone(), file: filename, os, os_version: version(os_version)?, remark, expected };
    Ok(created(&worker, api.shared.storage.adopt_disk(adoption, &actor()).await?))
}

/// Get a disk
#[utoipa::path(get, path = "/v1/workers/{id}/disks/{tag}", tag = "disks",
    responses((status = 200, description = "The disk; the tag is its Worker's", body = DiskDetail, headers(("ETag" = String)))))]
async fn get_disk(State(api): State<Api>, path: Segments) -> Result<Response, Problem> {
    let ledger = api.shared.ledger.snapshot();
    // Its file is looked at as well, and has no tag: never "unchanged".
    let (etag, detail) = answer(&api, &ledger, &path.read("id")?, &path.read("tag")?).await?;
    Ok(tagged(&etag, Json(detail)))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct EditDisk {
    #[schema(value_type = Note)]
    remark: String,
}

/// Replace a disk's remark
#[utoipa::path(patch, path = "/v1/workers/{id}/disks/{tag}", tag = "disks", params(IfMatch), request_body = EditDisk,
    responses((status = 200, description = "As it is now", body = DiskDetail, headers(("ETag" = String)))))]
async fn edit_disk(
    State(api): State<Api>,
    conditions: Conditions,
    path: Segments,
    Body(body): Body<EditDisk>,
) -> Result<Response, Problem> {
    let (worker, os_tag): (WorkerId, OsTag) = (path.read("id")?, path.read("tag")?);
    let change = Change::RemarkDisk { worker: worker.clone(), os_tag: os_tag.clone(), remark: body.remark };
    let expected = conditions.expect(|tag| Expectation::Worker(worker.clone(), tag));
    let (_, ledger) = api.shared.ledger.submit_if(change, &actor(), expected).await?;
    let (etag, detail) = answer(&api, &ledger, &worker, &os_tag).await?;
    Ok(tagged(&etag, Json(detail)))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ResizeDisk {
    /// A multiple of 4096, not less than now.
    size_bytes: u64,
}

/// A disk that is larger now.
#[derive(Serialize, ToSchema)]
struct DiskResized {
    #[serde(flatten)]
    disk: DiskDetail,
    /// `followed`, or why the data plane has not yet.
    data_plane: String,
}

/// Enlarge a disk
///
/// Its Worker goes on running and sees the new size. A disk never gets smaller.
#[utoipa::path(post, path = "/v1/workers/{id}/disks/{tag}/resize", tag = "disks", params(IfMatch), request_body = ResizeDisk,
    responses((status = 200, description = "As it is now", body = DiskResized, headers(("ETag" = String)))))]
async fn resize_disk(
    State(api): State<Api>,
    conditions: Conditions,
    path: Segments,
    Body(body): Body<ResizeDisk>,
) -> Result<Response, Problem> {
    let (worker, os_tag): (WorkerId, OsTag) = (path.read("id")?, path.read("tag")?);
    let expected = conditions.expect(|tag| Expectation::Worker(worker.clone(), tag));
    let (_, ledger) = api.shared.storage.resize_disk(&worker, &os_tag, body.size_bytes, &actor(), expected).await?;
    let data_plane = data_plane(&api, ledger.generation).await;
    let (etag, disk) = answer(&api, &ledger, &worker, &os_tag).await?;
    Ok(tagged(&etag, Json(DiskResized { disk, data_plane })))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DeleteOptions {
    /// Also the file; else it is retained.
    #[serde(default)]
    #[param(required = false)]
    delete_file: bool,
}

/// A disk that is deleted, but not its file, or that the kernel has not let go of yet.
#[derive(Serialize, ToSchema)]
struct DiskDeleted {
    /// The file, and why it is still there.
    failed: Vec<KeptView>,
    /// `followed`: nobody reaches the disk any more; or why the data plane has not yet.
    data_plane: String,
}

/// Delete a disk
///
/// The export and the record go; the file is kept unless asked for. Without its default disk a Worker gets its newest one.
#[utoipa::path(delete, path = "/v1/workers/{id}/disks/{tag}", tag = "disks", params(DeleteOptions, IfMatch),
    responses(
        (status = 204, description = "Deleted, and nobody reaches it any more"),
        (status = 200, description = "Deleted, with what is still to come", body = DiskDeleted)))]
async fn delete_disk(
    State(api): State<Api>,
    conditions: Conditions,
    path: Segments,
    Query(options): Query<DeleteOptions>,
) -> Result<Response, Problem> {
    let (worker, tag): (WorkerId, OsTag) = (path.read("id")?, path.read("tag")?);
    let expected = conditions.expect(|etag| Expectation::Worker(worker.clone(), etag));
    let (kept, ledger) = api.shared.storage.delete_disk(&worker, &tag, options.delete_file, &actor(), expected).await?;
    let data_plane = data_plane(&api, ledger.generation).await;
    // A kernel without target exports nothing: there is nothing that it has to let go of.
    let closed = data_plane == FOLLOWED || api.shared.target.observation().no_target.is_some();
    if kept.is_empty() && closed {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    Ok(Json(DiskDeleted { failed: kept.into_iter().map(Into::into).collect(), data_plane }).into_response())
}
