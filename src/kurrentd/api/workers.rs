//! Workers.

use super::body::{Body, Segments, query};
use super::problem::Problem;
use super::system::List;
use super::{ACTOR, Api, data_plane};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use kurrent_core::id::{MacAddr, OsTag, WorkerId};
use kurrent_core::ledger::schema::BootSettings;
use kurrent_core::ledger::view::Readiness;
use kurrent_core::ledger::{Change, Disk, Ledger, Worker};
use serde::{Deserialize, Serialize};

/// A Worker with what is derived of it.
#[derive(Serialize)]
pub(super) struct View {
    #[serde(flatten)]
    worker: Worker,
    /// `registered` or `ready`.
    state: &'static str,
    readiness: Readiness,
    #[serde(skip_serializing_if = "Option::is_none")]
    bound_device: Option<MacAddr>,
}

fn view(ledger: &Ledger, worker: &Worker) -> View {
    View {
        worker: worker.clone(),
        state: worker.state(),
        readiness: ledger.readiness(worker),
        bound_device: ledger.bound.get(&worker.worker_id).copied(),
    }
}

fn worker_of<'l>(ledger: &'l Ledger, id: &WorkerId) -> Result<&'l Worker, Problem> {
    let none =
        || Problem::new(404, "worker_not_found", format!("no Worker {id} is in the ledger; see the Worker list, or create it first"));
    ledger.workers.get(id).map(AsRef::as_ref).ok_or_else(none)
}

pub(super) async fn list(State(api): State<Api>) -> Json<List<View>> {
    let ledger = api.shared.ledger.snapshot();
    Json(List("workers", ledger.workers.values().map(|w| view(&ledger, w)).collect()))
}

pub(super) async fn one(State(api): State<Api>, path: Segments) -> Result<Json<View>, Problem> {
    let ledger = api.shared.ledger.snapshot();
    Ok(Json(view(&ledger, worker_of(&ledger, &path.read("id")?)?)))
}

pub(super) async fn disks(State(api): State<Api>, path: Segments) -> Result<Json<List<Disk>>, Problem> {
    let ledger = api.shared.ledger.snapshot();
    Ok(Json(List("disks", worker_of(&ledger, &path.read("id")?)?.disks.clone())))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Create {
    worker_id: WorkerId,
}

pub(super) async fn create(State(api): State<Api>, Body(body): Body<Create>) -> Result<(StatusCode, Json<View>), Problem> {
    let (_, ledger) = api.shared.ledger.submit(Change::CreateWorker { worker: body.worker_id.clone() }, ACTOR).await?;
    Ok((StatusCode::CREATED, Json(view(&ledger, worker_of(&ledger, &body.worker_id)?))))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteOptions {
    /// Also the files of its disks; else they are retained.
    #[serde(default)]
    delete_files: bool,
}

#[derive(Serialize)]
pub(super) struct Deleted {
    /// Disk files that are still there.
    retained: Vec<String>,
    data_plane: String,
}

pub(super) async fn delete(
    State(api): State<Api>,
    path: Segments,
    options: Result<Query<DeleteOptions>, QueryRejection>,
) -> Result<Json<Deleted>, Problem> {
    let (id, options) = (path.read::<WorkerId>("id")?, query(options)?);
    let disks = worker_of(&api.shared.ledger.snapshot(), &id)?.disks.clone();
    let (_, ledger) = api.shared.ledger.submit(Change::DeleteWorker { worker: id }, ACTOR).await?;
    let data_plane = data_plane(&api, ledger.generation).await;
    if options.delete_files {
        api.shared.storage.remove_files(&disks, ledger.generation, &api.shared.target).await?;
        return Ok(Json(Deleted { retained: Vec::new(), data_plane }));
    }
    Ok(Json(Deleted { retained: disks.iter().map(|d| d.filename.to_string()).collect(), data_plane }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DefaultDisk {
    os_tag: OsTag,
}

pub(super) async fn default_disk(State(api): State<Api>, path: Segments, Body(body): Body<DefaultDisk>) -> Result<Json<View>, Problem> {
    let id: WorkerId = path.read("id")?;
    let (_, ledger) = api.shared.ledger.submit(Change::SetDefaultDisk { worker: id.clone(), os_tag: body.os_tag }, ACTOR).await?;
    Ok(Json(view(&ledger, worker_of(&ledger, &id)?)))
}

pub(super) async fn boot(State(api): State<Api>, path: Segments, Body(boot): Body<BootSettings>) -> Result<Json<View>, Problem> {
    let id: WorkerId = path.read("id")?;
    let (_, ledger) = api.shared.ledger.submit(Change::SetBoot { worker: id.clone(), boot }, ACTOR).await?;
    Ok(Json(view(&ledger, worker_of(&ledger, &id)?)))
}
