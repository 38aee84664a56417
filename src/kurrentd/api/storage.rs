//! Disks, masters, leftovers, jobs.

use super::body::{self, Query, Segments};
use super::names::{DiskFile, NodeName, Note, SystemName, SystemVersion, Time};
use super::problem::Problem;
use super::workers::{DiskView, worker_of};
use super::{ACTOR, Api};
use crate::audit::Event;
use crate::storage::{Content, Created, JobView, Leftover, Master, NewDisk};
use axum::Json;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_LENGTH;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use kurrent_core::id::{AgentName, FileName, OsName, OsVersion};
use kurrent_core::placement::Wanted;
use kurrent_core::time::Wall;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;

const DRAIN_WITHIN: Duration = Duration::from_secs(20);

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(list_worker_disks, create_disk))
        .routes(routes!(delete_disk))
        .routes(routes!(list_masters))
        .routes(routes!(import_master).map(|r| r.layer(DefaultBodyLimit::disable())))
        .routes(routes!(list_leftovers))
        .routes(routes!(list_jobs))
        .routes(routes!(get_job))
}

#[derive(Serialize, ToSchema)]
struct DiskList {
    disks: Vec<DiskView>,
}

/// List a Worker's disks
#[utoipa::path(get, path = "/v1/workers/{id}/disks", tag = "disks", responses((status = 200, description = "Its disks", body = DiskList)))]
async fn list_worker_disks(State(api): State<Api>, path: Segments) -> Result<Json<DiskList>, Problem> {
    let ledger = api.shared.ledger.snapshot();
    let disks = worker_of(&ledger, &path.read("id")?)?.disks.iter().cloned().map(Into::into).collect();
    Ok(Json(DiskList { disks }))
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

/// Work that goes on.
#[derive(Serialize, ToSchema)]
struct JobStarted {
    job: String,
}

/// Create a disk
#[utoipa::path(post, path = "/v1/workers/{id}/disks", tag = "disks", request_body = CreateDisk, responses(
    (status = 201, description = "Created", body = DiskView),
    (status = 202, description = "It takes longer: see the job", body = JobStarted)))]
async fn create_disk(State(api): State<Api>, path: Segments, body::Body(body): body::Body<CreateDisk>) -> Result<Response, Problem> {
    let content = match (body.master, body.size_bytes) {
        (Some(master), None) => Content::Master(master),
        (None, Some(size)) => Content::Empty(size),
        (Some(_), Some(_)) | (None, None) => {
            return Err(Problem::new(422, "body_invalid", "give either master (a clone) or size_bytes (an empty disk)").at("master"));
        }
    };
    let os_version = match body.os_version {
        Some(version) => version,
        None => "".parse()?,
    };
    let wanted = Wanted { worker: path.read("id")?, os: body.os, os_version, content, pin: body.agent };
    let request = NewDisk { wanted, remark: body.remark };
    Ok(match api.shared.storage.create_disk(request, ACTOR).await? {
        Created::Disk(disk) => (StatusCode::CREATED, Json(DiskView::from(disk))).into_response(),
        Created::Job(job) => (StatusCode::ACCEPTED, Json(JobStarted { job })).into_response(),
    })
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

/// Delete a disk
#[utoipa::path(delete, path = "/v1/workers/{id}/disks/{tag}", tag = "disks", params(DeleteOptions),
    responses((status = 204, description = "Deleted")))]
async fn delete_disk(State(api): State<Api>, path: Segments, Query(options): Query<DeleteOptions>) -> Result<StatusCode, Problem> {
    let (worker, tag) = (path.read("id")?, path.read("tag")?);
    api.shared.storage.delete_disk(&worker, &tag, options.delete_file, ACTOR, &api.shared.target).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A master image.
#[derive(Serialize, ToSchema)]
#[schema(as = Master)]
struct MasterView {
    name: String,
    size_bytes: u64,
    #[schema(value_type = Time)]
    modified_at: Wall,
    /// Sector size that its partition table is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    sector_bytes: Option<u64>,
    /// Empty when it is not usable.
    partitions: Vec<PartitionView>,
    /// Of its content, in hex; absent until it is computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    sha256: Option<String>,
    /// Stable code of why it can not be cloned.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    fault_code: Option<&'static str>,
    /// Why it can not be cloned.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    fault: Option<String>,
}

/// One partition of a master.
#[derive(Serialize, ToSchema)]
#[schema(as = Partition)]
struct PartitionView {
    number: u32,
    /// Type GUID.
    kind: String,
    label: String,
    size_bytes: u64,
}

impl From<Master> for MasterView {
    fn from(master: Master) -> Self {
        let partition =
            |p: crate::storage::MasterPartition| PartitionView { number: p.number, kind: p.kind, label: p.label, size_bytes: p.size_bytes };
        let Master { name, size_bytes, modified_at, sector_bytes, partitions, sha256, fault_code, fault } = master;
        let partitions = partitions.into_iter().map(partition).collect();
        Self { name: name.to_string(), size_bytes, modified_at, sector_bytes, partitions, sha256, fault_code, fault }
    }
}

#[derive(Serialize, ToSchema)]
struct MasterList {
    masters: Vec<MasterView>,
}

/// List master images
#[utoipa::path(get, path = "/v1/masters", tag = "masters", responses((status = 200, description = "Also those that can not be cloned", body = MasterList)))]
async fn list_masters(State(api): State<Api>) -> Result<Json<MasterList>, Problem> {
    let masters = api.shared.storage.masters().await?.into_iter().map(Into::into).collect();
    Ok(Json(MasterList { masters }))
}

/// Import a master image
///
/// The body is the raw image.
#[utoipa::path(put, path = "/v1/masters/{name}", tag = "masters", request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, description = "Imported", body = MasterView)))]
async fn import_master(State(api): State<Api>, path: Segments, request: Request) -> Result<(StatusCode, Json<MasterView>), Problem> {
    let name: FileName = path.read("name")?;
    let length = request.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok());
    let mut body = request.into_body();
    let imported = api.shared.storage.import_master(name.clone(), length, &mut body).await;
    if imported.is_err() {
        drain(body).await;
    }
    let result = imported.as_ref().map_or_else(|e| e.code, |_| "ok").to_owned();
    api.shared.audit.record(Event { actor: ACTOR.into(), verb: "master-import", device: None, object: name.to_string(), result });
    Ok((StatusCode::CREATED, Json(imported?.into())))
}

/// Takes what a refused sender still sends, for a while: closing on unread octets resets the connection, and the refusal with
/// its reason would be lost on the way.
pub(super) async fn drain(mut body: Body) {
    let all = async { while body.frame().await.is_some_and(|frame| frame.is_ok()) {} };
    // Whoever sends on for longer is cut off.
    let _ = tokio::time::timeout(DRAIN_WITHIN, all).await;
}

/// A file that no record explains.
#[derive(Serialize, ToSchema)]
#[schema(as = Leftover)]
struct LeftoverView {
    name: String,
    size_bytes: u64,
    #[schema(value_type = LeftoverWord)]
    kind: crate::storage::LeftoverKind,
}

/// What a leftover is.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = LeftoverKind)]
#[expect(dead_code, reason = "describes the storage's LeftoverKind")]
enum LeftoverWord {
    /// Cut off while it was written; removed at the start.
    Unfinished,
    /// A disk file without a record.
    Unrecorded,
}

impl From<Leftover> for LeftoverView {
    fn from(leftover: Leftover) -> Self {
        Self { name: leftover.name, size_bytes: leftover.size_bytes, kind: leftover.kind }
    }
}

#[derive(Serialize, ToSchema)]
struct LeftoverList {
    leftovers: Vec<LeftoverView>,
}

/// List files without a record
#[utoipa::path(get, path = "/v1/leftovers", tag = "disks", responses((status = 200, description = "In the disk folder", body = LeftoverList)))]
async fn list_leftovers(State(api): State<Api>) -> Result<Json<LeftoverList>, Problem> {
    let leftovers = api.shared.storage.leftovers().await?.into_iter().map(Into::into).collect();
    Ok(Json(LeftoverList { leftovers }))
}

/// Work that takes longer than a request.
#[derive(Serialize, ToSchema)]
struct Job {
    id: String,
    #[schema(value_type = KindWord)]
    kind: crate::storage::jobs::Kind,
    what: String,
    #[schema(value_type = StateWord)]
    state: crate::storage::jobs::JobState,
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
    Waiting,
    Running,
    Cancelling,
    Done,
    Failed,
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
}

impl From<JobView> for Job {
    fn from(job: JobView) -> Self {
        let JobView { id, kind, what, state, done_bytes, total_bytes, bytes_per_second, started_at, finished_at, .. } = job;
        let JobView { warning, result, disk, code, detail, .. } = job;
        let disk = disk.map(Into::into);
        Self {
            id,
            kind,
            what,
            state,
            done_bytes,
            total_bytes,
            bytes_per_second,
            started_at,
            finished_at,
            warning,
            result,
            disk,
            code,
            detail,
        }
    }
}

#[derive(Serialize, ToSchema)]
struct JobList {
    jobs: Vec<Job>,
}

/// List jobs
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", responses((status = 200, description = "Of this run of kurrentd", body = JobList)))]
async fn list_jobs(State(api): State<Api>) -> Json<JobList> {
    Json(JobList { jobs: api.shared.storage.jobs().views().into_iter().map(Into::into).collect() })
}

/// Get a job
#[utoipa::path(get, path = "/v1/jobs/{id}", tag = "jobs", responses((status = 200, description = "The job", body = Job)))]
async fn get_job(State(api): State<Api>, path: Segments) -> Result<Json<Job>, Problem> {
    let none = || Problem::new(404, "job_not_found", "there is no such job of this run of the daemon; see the job list");
    api.shared.storage.jobs().view(path.text("id")).map(|job| Json(job.into())).ok_or_else(none)
}
