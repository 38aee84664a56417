//! The audit: who did what, when, with which result.

use super::Api;
use super::body::Query;
use super::names::{MacAddress, Time};
use super::problem::Problem;
use crate::audit::{Entry, Filter, MAX_LIMIT};
use axum::Json;
use axum::extract::State;
use kurrent_core::id::MacAddr;
use kurrent_core::time::Wall;
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list_operations))
}

/// Which entries; see [`Filter`].
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes the audit's Filter")]
struct Wanted {
    /// Exactly this device.
    #[param(value_type = Option<MacAddress>)]
    device: Option<String>,
    /// Exactly this object, or a word of it.
    object: Option<String>,
    /// Exactly this verb.
    verb: Option<String>,
    /// Exactly this actor.
    actor: Option<String>,
    /// Exactly this result.
    result: Option<String>,
    /// At or after this time.
    #[param(value_type = Option<Time>)]
    since: Option<String>,
    /// Before this time.
    #[param(value_type = Option<Time>)]
    until: Option<String>,
    /// Entries of one answer.
    #[param(minimum = 1, maximum = 1000, default = 200)]
    limit: Option<usize>,
    /// Where the previous answer ended.
    #[param(value_type = Option<String>, pattern = "^[0-9]+$")]
    cursor: Option<u64>,
}

/// One line of the audit.
#[derive(Serialize, ToSchema)]
struct Operation {
    seq: u64,
    #[schema(value_type = Time)]
    at: Wall,
    actor: String,
    verb: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<MacAddress>, nullable = false)]
    device: Option<MacAddr>,
    /// Worker or disk.
    object: String,
    /// `ok`, or a stable reason.
    result: String,
    /// What exactly was asked, as words and numbers; empty when the others say it.
    detail: String,
    /// How many further events like this one were counted instead of written.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    repeated: Option<u64>,
    /// SHA-256 of the line before, in hex.
    prev: String,
}

impl From<Entry> for Operation {
    fn from(entry: Entry) -> Self {
        let Entry { seq, at, actor, verb, device, object, result, detail, repeated, prev } = entry;
        Self { seq, at, actor, verb, device, object, result, detail, repeated, prev }
    }
}

#[derive(Serialize, ToSchema)]
struct OperationList {
    #[schema(max_items = 1000)]
    operations: Vec<Operation>,
    /// The cursor of what follows; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next: Option<String>,
}

/// List what was done
#[utoipa::path(get, path = "/v1/operations", tag = "operations", params(Wanted),
    responses((status = 200, description = "The latest first", body = OperationList)))]
async fn list_operations(State(api): State<Api>, Query(filter): Query<Filter>) -> Result<Json<OperationList>, Problem> {
    if filter.limit.is_some_and(|limit| !(1..=MAX_LIMIT).contains(&limit)) {
        let what = format!("the limit is 1 to {MAX_LIMIT}; choose one in that range");
        return Err(Problem::new(400, "query_invalid", what).at("limit"));
    }
    let audit = api.shared.audit.clone();
    let read = tokio::task::spawn_blocking(move || audit.read(&filter)).await;
    let page = read.map_err(|e| e.to_string()).and_then(|r| r.map_err(|e| e.to_string()));
    let failed = |e| Problem::new(500, "audit_unreadable", format!("the audit can not be read: {e}; check the data partition"));
    let page = page.map_err(failed)?;
    let operations = page.entries.into_iter().map(Into::into).collect();
    Ok(Json(OperationList { operations, next: page.next.map(|n| n.to_string()) }))
}
