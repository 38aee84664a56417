//! Disks, masters, jobs.

use super::body::{self, Segments, query};
use super::problem::Problem;
use super::system::List;
use super::{ACTOR, Api};
use crate::audit::Event;
use crate::storage::{Content, Created, JobView, Leftover, Master, NewDisk};
use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_LENGTH;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use kurrent_core::id::{AgentName, FileName, OsName, OsVersion};
use kurrent_core::placement::Wanted;
use serde::{Deserialize, Serialize};
use std::time::Duration;

const DRAIN_WITHIN: Duration = Duration::from_secs(20);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Create {
    os: OsName,
    os_version: Option<OsVersion>,
    master: Option<FileName>,
    size_bytes: Option<u64>,
    agent: Option<AgentName>,
    #[serde(default)]
    remark: String,
}

#[derive(Serialize)]
struct Job {
    job: String,
}

pub(super) async fn create_disk(State(api): State<Api>, path: Segments, body::Body(body): body::Body<Create>) -> Result<Response, Problem> {
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
        Created::Disk(disk) => (StatusCode::CREATED, Json(disk)).into_response(),
        Created::Job(job) => (StatusCode::ACCEPTED, Json(Job { job })).into_response(),
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteOptions {
    /// Also the file; else it is retained.
    #[serde(default)]
    delete_file: bool,
}

pub(super) async fn delete_disk(
    State(api): State<Api>,
    path: Segments,
    options: Result<Query<DeleteOptions>, QueryRejection>,
) -> Result<StatusCode, Problem> {
    let options = query(options)?;
    let (worker, tag) = (path.read("id")?, path.read("tag")?);
    api.shared.storage.delete_disk(&worker, &tag, options.delete_file, ACTOR, &api.shared.target).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn masters(State(api): State<Api>) -> Result<Json<List<Master>>, Problem> {
    Ok(Json(List("masters", api.shared.storage.masters().await?)))
}

pub(super) async fn import_master(State(api): State<Api>, path: Segments, request: Request) -> Result<(StatusCode, Json<Master>), Problem> {
    let name: FileName = path.read("name")?;
    let length = request.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok());
    let mut body = request.into_body();
    let imported = api.shared.storage.import_master(name.clone(), length, &mut body).await;
    if imported.is_err() {
        drain(body).await;
    }
    let result = imported.as_ref().map_or_else(|e| e.code, |_| "ok").to_owned();
    api.shared.audit.record(Event { actor: ACTOR.into(), verb: "master-import", device: None, object: name.to_string(), result });
    Ok((StatusCode::CREATED, Json(imported?)))
}

/// Takes what a refused sender still sends, for a while: closing on unread octets resets the connection, and the refusal with
/// its reason would be lost on the way.
async fn drain(mut body: Body) {
    let all = async { while body.frame().await.is_some_and(|frame| frame.is_ok()) {} };
    // Whoever sends on for longer is cut off.
    let _ = tokio::time::timeout(DRAIN_WITHIN, all).await;
}

pub(super) async fn leftovers(State(api): State<Api>) -> Result<Json<List<Leftover>>, Problem> {
    Ok(Json(List("leftovers", api.shared.storage.leftovers().await?)))
}

pub(super) async fn jobs(State(api): State<Api>) -> Json<List<JobView>> {
    Json(List("jobs", api.shared.storage.jobs().views()))
}

pub(super) async fn job(State(api): State<Api>, path: Segments) -> Result<Json<JobView>, Problem> {
    let id = path.text("id");
    let none = || Problem::new(404, "job_not_found", "there is no such job of this run of the daemon; see the job list");
    api.shared.storage.jobs().view(id).map(Json).ok_or_else(none)
}
