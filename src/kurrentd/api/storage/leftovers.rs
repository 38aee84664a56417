//! Files in the disk folder without a record.

use crate::api::Api;
use crate::api::body::{Query, Segments};
use crate::api::guard::actor;
use crate::api::page::Piece;
use crate::api::problem::Problem;
use crate::audit::Event;
use crate::storage::{Leftover, LeftoverKind};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use kurrent_core::id::FileName;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list_leftovers)).routes(routes!(delete_leftover))
}

/// A file that no record explains.
#[derive(Serialize, ToSchema)]
#[schema(as = Leftover)]
struct LeftoverView {
    name: String,
    size_bytes: u64,
    #[schema(value_type = LeftoverWord)]
    kind: LeftoverKind,
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
    #[schema(max_items = 1000)]
    leftovers: Vec<LeftoverView>,
    /// The cursor of what follows; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next: Option<String>,
}

/// List files without a record
#[utoipa::path(get, path = "/v1/leftovers", tag = "disks", params(Piece),
    responses((status = 200, description = "In the disk folder, and what the start removed from it", body = LeftoverList)))]
async fn list_leftovers(State(api): State<Api>, Query(piece): Query<Piece>) -> Result<Json<LeftoverList>, Problem> {
    let wanted = piece.wanted()?;
    let mut leftovers = api.shared.storage.leftovers().await?;
    leftovers.sort_by(|a, b| a.name.cmp(&b.name));
    let page = wanted.take_sorted(leftovers.into_iter(), |l| l.name.clone());
    Ok(Json(LeftoverList { leftovers: page.items.into_iter().map(Into::into).collect(), next: page.next }))
}

/// Remove a file without a record
///
/// Refused for a disk's file, a master, and what the kernel still exports.
#[utoipa::path(delete, path = "/v1/leftovers/{name}", tag = "disks", responses((status = 204, description = "Removed")))]
async fn delete_leftover(State(api): State<Api>, path: Segments) -> Result<StatusCode, Problem> {
    let name: FileName = path.read("name")?;
    let removed = api.shared.storage.delete_leftover(&name).await;
    let result = removed.as_ref().map_or_else(|e| e.code, |()| "ok").to_owned();
    api.shared.audit.record(Event {
        actor: actor(),
        verb: "leftover-delete",
        device: None,
        object: name.to_string(),
        result,
        detail: String::new(),
    });
    removed?;
    Ok(StatusCode::NO_CONTENT)
}
