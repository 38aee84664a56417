//! Master images: files that are cloned, with the tags that people gave them. The `ETag` is that of the tags.

use crate::api::Api;
use crate::api::body::{Body, Query, Segments, drain};
use crate::api::etag::{Conditions, IfMatch, tagged};
use crate::api::guard::actor;
use crate::api::names::{DiskFile, Note, SystemName, SystemVersion, Time};
use crate::api::page::Piece;
use crate::api::problem::Problem;
use crate::audit::Event;
use crate::ledger::expect::{Expectation, etag_of, untagged};
use crate::storage::{Master, MasterPartition};
use axum::Json;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, LOCATION};
use axum::response::{IntoResponse, Response};
use kurrent_core::id::{FileName, OsName, OsVersion};
use kurrent_core::ledger::{Change, Ledger, MasterTags};
use kurrent_core::time::Wall;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(list_masters))
        .routes(routes!(get_master, import_master, delete_master).map(|r| r.layer(DefaultBodyLimit::disable())))
        .routes(routes!(tag_master))
}

/// A master image.
#[derive(Serialize, ToSchema)]
#[schema(as = Master)]
struct MasterView {
    #[schema(value_type = DiskFile)]
    name: FileName,
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
    /// What people say it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<SystemName>, nullable = false)]
    os: Option<OsName>,
    /// What people say it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<SystemVersion>, nullable = false)]
    os_version: Option<OsVersion>,
    #[schema(value_type = Note)]
    remark: String,
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

fn tags_of(ledger: &Ledger, name: &FileName) -> MasterTags {
    ledger.masters.get(name).map_or_else(|| untagged(name.clone()), |tags| MasterTags::clone(tags))
}

impl MasterView {
    fn new(ledger: &Ledger, master: Master) -> Self {
        let partition = |p: MasterPartition| PartitionView { number: p.number, kind: p.kind, label: p.label, size_bytes: p.size_bytes };
        let MasterTags { os, os_version, remark, .. } = tags_of(ledger, &master.name);
        let Master { name, size_bytes, modified_at, sector_bytes, partitions, sha256, fault_code, fault } = master;
        let partitions = partitions.into_iter().map(partition).collect();
        Self { name, size_bytes, modified_at, sector_bytes, partitions, sha256, fault_code, fault, os, os_version, remark }
    }
}

fn answer(ledger: &Ledger, master: Master, status: StatusCode) -> Response {
    let etag = etag_of(&tags_of(ledger, &master.name));
    tagged(&etag, (status, Json(MasterView::new(ledger, master))))
}

#[derive(Serialize, ToSchema)]
struct MasterList {
    #[schema(max_items = 1000)]
    masters: Vec<MasterView>,
    /// The cursor of what follows; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next: Option<String>,
}

/// List master images
#[utoipa::path(get, path = "/v1/masters", tag = "masters", params(Piece),
    responses((status = 200, description = "Also those that can not be cloned", body = MasterList)))]
async fn list_masters(State(api): State<Api>, Query(piece): Query<Piece>) -> Result<Json<MasterList>, Problem> {
    let wanted = piece.wanted()?;
    let ledger = api.shared.ledger.snapshot();
    let page = wanted.take_sorted(api.shared.storage.masters().await?.into_iter(), |m| m.name.to_string());
    let masters = page.items.into_iter().map(|m| MasterView::new(&ledger, m)).collect();
    Ok(Json(MasterList { masters, next: page.next }))
}

/// Get a master image
#[utoipa::path(get, path = "/v1/masters/{name}", tag = "masters",
    responses((status = 200, description = "The master", body = MasterView, headers(("ETag" = String)))))]
async fn get_master(State(api): State<Api>, path: Segments) -> Result<Response, Problem> {
    let master = api.shared.storage.master(&path.read("name")?).await?;
    Ok(answer(&api.shared.ledger.snapshot(), master, StatusCode::OK))
}

/// Import a master image
///
/// The body is the raw image. It is a job as well: how far it is can be seen, and it can be cancelled, from elsewhere.
#[utoipa::path(put, path = "/v1/masters/{name}", tag = "masters", request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, description = "Imported", body = MasterView, headers(("ETag" = String), ("Location" = String)))))]
async fn import_master(State(api): State<Api>, path: Segments, request: Request) -> Result<Response, Problem> {
    let name: FileName = path.read("name")?;
    let length = request.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok());
    let mut body = request.into_body();
    let imported = api.shared.storage.import_master(name.clone(), length, &mut body).await;
    if imported.is_err() {
        drain(body).await;
    }
    let result = imported.as_ref().map_or_else(|e| e.code, |_| "ok").to_owned();
    api.shared.audit.record(Event {
        actor: actor(),
        verb: "master-import",
        device: None,
        object: name.to_string(),
        result,
        detail: String::new(),
    });
    let answer = answer(&api.shared.ledger.snapshot(), imported?, StatusCode::CREATED);
    Ok(([(LOCATION, format!("/v1/masters/{name}"))], answer).into_response())
}

/// Delete a master image
///
/// With its tags. Refused while it is being cloned; disks that were cloned from it do not need it.
#[utoipa::path(delete, path = "/v1/masters/{name}", tag = "masters", params(IfMatch), responses((status = 204, description = "Deleted")))]
async fn delete_master(State(api): State<Api>, conditions: Conditions, path: Segments) -> Result<StatusCode, Problem> {
    let name: FileName = path.read("name")?;
    let expected = conditions.expect(|tag| Expectation::Master(name.clone(), tag));
    let deleted = api.shared.storage.delete_master(&name, &actor(), expected).await;
    let result = deleted.as_ref().map_or_else(|e| e.code, |()| "ok").to_owned();
    api.shared.audit.record(Event {
        actor: actor(),
        verb: "master-delete",
        device: None,
        object: name.to_string(),
        result,
        detail: String::new(),
    });
    deleted?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Tags {
    #[schema(value_type = Option<SystemName>)]
    os: Option<OsName>,
    #[schema(value_type = Option<SystemVersion>)]
    os_version: Option<OsVersion>,
    #[serde(default)]
    #[schema(value_type = Note)]
    remark: String,
}

/// Replace a master's tags
///
/// They are for display and selection only.
#[utoipa::path(put, path = "/v1/masters/{name}/tags", tag = "masters", params(IfMatch), request_body = Tags,
    responses((status = 200, description = "As it is now", body = MasterView, headers(("ETag" = String)))))]
async fn tag_master(State(api): State<Api>, conditions: Conditions, path: Segments, Body(body): Body<Tags>) -> Result<Response, Problem> {
    let name: FileName = path.read("name")?;
    let master = api.shared.storage.master(&name).await?;
    let expected = conditions.expect(|tag| Expectation::Master(name.clone(), tag));
    let tags = MasterTags { name, os: body.os, os_version: body.os_version, remark: body.remark };
    let (_, ledger) = api.shared.ledger.submit_if(Change::TagMaster { tags }, &actor(), expected).await?;
    Ok(answer(&ledger, master, StatusCode::OK))
}
