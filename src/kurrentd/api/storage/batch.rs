//! Several disks at once.

use super::disks::{content, version};
use crate::api::Api;
use crate::api::body::Body;
use crate::api::guard::actor;
use crate::api::names::{DiskFile, NodeName, SystemName, SystemVersion, WorkerName};
use crate::api::problem::Problem;
use crate::storage::{Batch, PlannedBatch, PlannedDisk};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use kurrent_core::id::{AgentName, FileName, OsName, OsVersion, WorkerId};
use kurrent_core::placement::Wanted;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(create_disks))
}

/// One disk of a batch.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct DiskItem {
    #[schema(value_type = WorkerName)]
    worker_id: WorkerId,
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
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CreateDisks {
    /// Placed in this order.
    #[schema(min_items = 1, max_items = 256)]
    items: Vec<DiskItem>,
    /// Only show the plan.
    #[serde(default)]
    #[schema(required = false)]
    dry_run: bool,
    /// Generation of the plan that was shown: when that is no longer the plan, nothing is made.
    generation: Option<u64>,
}

/// Where a disk of a batch goes, or why nowhere.
#[derive(Serialize, ToSchema)]
struct PlannedView {
    #[schema(value_type = WorkerName)]
    worker_id: WorkerId,
    #[schema(value_type = SystemName)]
    os: OsName,
    #[schema(value_type = SystemVersion)]
    os_version: OsVersion,
    /// What is cloned.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<DiskFile>, nullable = false)]
    master: Option<FileName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    size_bytes: Option<u64>,
    /// The storage node that it goes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<NodeName>, nullable = false)]
    agent: Option<AgentName>,
    /// Stable code of why it goes nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    code: Option<&'static str>,
    /// Why it goes nowhere, each storage node with its reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    detail: Option<String>,
}

impl From<PlannedDisk> for PlannedView {
    fn from(planned: PlannedDisk) -> Self {
        let PlannedDisk { worker_id, os, os_version, master, size_bytes, agent, code, detail } = planned;
        Self { worker_id, os, os_version, master, size_bytes, agent, code, detail }
    }
}

/// A plan, and what was begun of it.
#[derive(Serialize, ToSchema)]
struct DisksPlanned {
    /// One entry for each item, in order.
    plan: Vec<PlannedView>,
    /// Generation of the ledger that it was made for.
    generation: u64,
    /// The jobs that carry it out, in order; absent when nothing was begun, because it was only to be shown or an item goes nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    jobs: Option<Vec<String>>,
}

/// Create disks
///
/// All of them or, when one goes nowhere, none. Each is a job of its own.
#[utoipa::path(post, path = "/v1/disks/batch", tag = "disks", request_body = CreateDisks, responses(
    (status = 200, description = "Only the plan", body = DisksPlanned),
    (status = 202, description = "The plan is being carried out", body = DisksPlanned)))]
async fn create_disks(State(api): State<Api>, Body(body): Body<CreateDisks>) -> Result<Response, Problem> {
    let wanted = body.items.into_iter().enumerate().map(|(number, item)| {
        let DiskItem { worker_id, os, os_version, master, size_bytes, agent } = item;
        let content = content(master, size_bytes).map_err(|p| p.at(format!("items[{number}].master")))?;
        Ok(Wanted { worker: worker_id, os, os_version: version(os_version)?, content, pin: agent })
    });
    let batch = Batch { wanted: wanted.collect::<Result<_, Problem>>()?, dry_run: body.dry_run, generation: body.generation };
    let PlannedBatch { plan, generation, jobs } = api.shared.storage.create_batch(batch, &actor()).await?;
    let status = if jobs.is_some() { StatusCode::ACCEPTED } else { StatusCode::OK };
    let plan = plan.into_iter().map(Into::into).collect();
    Ok((status, Json(DisksPlanned { plan, generation, jobs })).into_response())
}
