//! Binding many devices at once.

use super::super::batch::{self, Applied};
use super::super::body::Body;
use super::super::names::{MacAddress, WorkerName};
use super::super::problem::Problem;
use super::super::{Api, data_plane};
use axum::Json;
use axum::extract::State;
use kurrent_core::id::{MacAddr, WorkerId};
use kurrent_core::ledger::Change;
use kurrent_core::ledger::plan::{self, PlannedBind};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(bind_devices))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Pair {
    #[schema(value_type = MacAddress)]
    mac: MacAddr,
    #[schema(value_type = WorkerName)]
    worker_id: WorkerId,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct BindAll {
    /// No device and no Worker may occur twice.
    #[schema(min_items = 1, max_items = 1000)]
    items: Vec<Pair>,
    /// Displace what stands in the way.
    #[serde(default)]
    force: bool,
    /// Only show what would be done.
    #[serde(default)]
    dry_run: bool,
    /// Only if the ledger is still at this generation: the plan's that was shown.
    generation: Option<u64>,
}

/// One binding of the plan.
#[derive(Serialize, ToSchema)]
#[schema(as = PlannedBinding)]
struct Planned {
    #[schema(value_type = MacAddress)]
    mac: MacAddr,
    #[schema(value_type = WorkerName)]
    worker_id: WorkerId,
    /// The device that loses this Worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<MacAddress>, nullable = false)]
    displaces: Option<MacAddr>,
    /// The Worker that this device leaves.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<WorkerName>, nullable = false)]
    leaves: Option<WorkerId>,
    /// Why it can not be done; then nothing of the batch is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    code: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    detail: Option<String>,
}

impl From<PlannedBind> for Planned {
    fn from(item: PlannedBind) -> Self {
        let PlannedBind { mac, worker, displaces, leaves, refused } = item;
        let (code, detail) = refused.map(|r| (r.code, r.detail)).unzip();
        Self { mac, worker_id: worker, displaces, leaves, code, detail }
    }
}

/// A plan, or what was done of it: all.
#[derive(Serialize, ToSchema)]
struct BindPlan {
    plan: Vec<Planned>,
    /// Of the ledger that the plan was made of; after it was carried out, of the ledger that has it.
    generation: u64,
    applied: bool,
    /// After it was carried out: `followed`, or why the data plane has not yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    data_plane: Option<String>,
}

/// Bind many devices
///
/// All or none. With `dry_run` the plan is shown; the plan that is carried out is the same.
#[utoipa::path(post, path = "/v1/devices/bind", tag = "devices", request_body = BindAll,
    responses((status = 200, description = "The plan", body = BindPlan)))]
async fn bind_devices(State(api): State<Api>, Body(body): Body<BindAll>) -> Result<Json<BindPlan>, Problem> {
    let BindAll { items, force, dry_run, generation } = body;
    batch::bounded(items.len(), "items")?;
    let pairs: Vec<(MacAddr, WorkerId)> = items.into_iter().map(|p| (p.mac, p.worker_id)).collect();
    let now = kurrent_sys::clock::now();
    let order = batch::Order { dry_run, generation, field: "items" };
    let done = batch::run(
        &api,
        order,
        |ledger| plan::bind(ledger, &pairs, force, now),
        |item| item.refused.as_ref(),
        |_| Change::BindAll { pairs: pairs.clone(), force },
    );
    let Applied { plan, generation, applied } = done.await?;
    let data_plane = if applied { Some(data_plane(&api, generation).await) } else { None };
    Ok(Json(BindPlan { plan: plan.into_iter().map(Into::into).collect(), generation, applied, data_plane }))
}
