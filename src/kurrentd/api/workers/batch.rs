//! Many Workers at once.

use super::super::batch::{self, Applied};
use super::super::body::Body;
use super::super::names::WorkerName;
use super::super::problem::Problem;
use super::super::{Api, data_plane};
use super::{KeptView, files_of};
use crate::api::guard::actor;
use axum::Json;
use axum::extract::State;
use kurrent_core::id::WorkerId;
use kurrent_core::ledger::plan::{self, PlannedWorker};
use kurrent_core::ledger::{Change, Disk};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(create_workers)).routes(routes!(delete_workers))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CreateWorkers {
    /// The names; or else `prefix` and `count`.
    #[schema(value_type = Option<Vec<WorkerName>>, min_items = 1, max_items = 1000)]
    names: Option<Vec<WorkerId>>,
    /// What made names begin with.
    #[schema(pattern = "^[a-z0-9]([a-z0-9-]*)$", max_length = 62)]
    prefix: Option<String>,
    /// The first number; 1 by default.
    #[schema(maximum = 999999999)]
    start: Option<u32>,
    /// How many.
    #[schema(minimum = 1, maximum = 1000)]
    count: Option<usize>,
    /// Digits of a number, with zeros in front.
    #[schema(maximum = 9)]
    width: Option<usize>,
    /// Only show what would be done.
    #[serde(default)]
    dry_run: bool,
    /// Only if the ledger is still at this generation: the plan's that was shown.
    generation: Option<u64>,
}

/// One Worker of the plan.
#[derive(Serialize, ToSchema)]
#[schema(as = PlannedWorker)]
struct Planned {
    #[schema(value_type = WorkerName)]
    worker_id: WorkerId,
    /// Why it can not be made; then nothing of the batch is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    code: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    detail: Option<String>,
}

impl From<PlannedWorker> for Planned {
    fn from(item: PlannedWorker) -> Self {
        let (code, detail) = item.refused.map(|r| (r.code, r.detail)).unzip();
        Self { worker_id: item.worker, code, detail }
    }
}

/// A plan, or what was done of it: all.
#[derive(Serialize, ToSchema)]
struct WorkerPlan {
    plan: Vec<Planned>,
    /// Of the ledger that the plan was made of; after it was carried out, of the ledger that has it.
    generation: u64,
    applied: bool,
}

/// Create many Workers
///
/// All or none. With `dry_run` the plan is shown; the plan that is carried out is the same.
#[utoipa::path(post, path = "/v1/workers/batch", tag = "workers", request_body = CreateWorkers,
    responses((status = 200, description = "The plan", body = WorkerPlan)))]
async fn create_workers(State(api): State<Api>, Body(body): Body<CreateWorkers>) -> Result<Json<WorkerPlan>, Problem> {
    let CreateWorkers { names, prefix, start, count, width, dry_run, generation } = body;
    let made = start.is_some() || count.is_some() || width.is_some();
    let wanted = match (names, prefix, count) {
        (Some(names), None, None) if !made => names,
        (None, Some(prefix), Some(count)) => plan::names(&prefix, start.unwrap_or(1), count, width.unwrap_or(0))
            .map_err(|r| Problem::new(r.status, r.code, r.detail).at("prefix"))?,
        _ => {
            let what = "give either names, or prefix and count (with start and width if wanted)";
            return Err(Problem::new(422, "body_invalid", what).at("names"));
        }
    };
    batch::bounded(wanted.len(), "names")?;
    let order = batch::Order { dry_run, generation, field: "names" };
    let change = |_: &[PlannedWorker]| Change::CreateWorkers { workers: wanted.clone() };
    let done = batch::run(&api, order, |ledger| plan::create(ledger, &wanted), |item| item.refused.as_ref(), change);
    let Applied { plan, generation, applied } = done.await?;
    Ok(Json(WorkerPlan { plan: plan.into_iter().map(Into::into).collect(), generation, applied }))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct DeleteWorkers {
    #[schema(value_type = Vec<WorkerName>, min_items = 1, max_items = 1000)]
    workers: Vec<WorkerId>,
    /// Also the files of their disks; else they are retained.
    #[serde(default)]
    delete_files: bool,
}

/// A Worker that is deleted.
#[derive(Serialize, ToSchema)]
struct DeletedWorker {
    #[schema(value_type = WorkerName)]
    worker_id: WorkerId,
    /// Disk files that are still there.
    retained: Vec<String>,
    /// Those of them that were to go, and why they are still there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    failed: Vec<KeptView>,
}

/// A Worker that is not deleted.
#[derive(Serialize, ToSchema)]
struct FailedWorker {
    #[schema(value_type = WorkerName)]
    worker_id: WorkerId,
    code: String,
    detail: String,
}

#[derive(Serialize, ToSchema)]
struct WorkersDeleted {
    deleted: Vec<DeletedWorker>,
    failed: Vec<FailedWorker>,
    /// `followed`, or why the data plane has not yet.
    data_plane: String,
}

/// Delete many Workers
///
/// Each by itself: what fails keeps no other from being deleted.
#[utoipa::path(post, path = "/v1/workers/batch-delete", tag = "workers", request_body = DeleteWorkers,
    responses((status = 200, description = "What became of each", body = WorkersDeleted)))]
async fn delete_workers(State(api): State<Api>, Body(body): Body<DeleteWorkers>) -> Result<Json<WorkersDeleted>, Problem> {
    batch::bounded(body.workers.len(), "workers")?;
    let (mut gone, mut failed): (Vec<(WorkerId, Vec<Disk>)>, Vec<FailedWorker>) = (Vec::new(), Vec::new());
    let failure = |worker_id: WorkerId, code: &str, detail: String| FailedWorker { worker_id, code: code.into(), detail };
    // All at once: the writer makes many durable together, and the data plane follows all of them at once.
    let orders = body.workers.into_iter().map(|worker| {
        let disks = api.shared.ledger.snapshot().workers.get(&worker).map(|w| w.disks.clone()).unwrap_or_default();
        let (ledger, actor) = (api.shared.ledger.clone(), actor());
        async move {
            let submitted = ledger.submit(Change::DeleteWorker { worker: worker.clone() }, &actor).await;
            (worker, disks, submitted)
        }
    });
    for (id, disks, submitted) in futures_util::future::join_all(orders).await {
        match submitted {
            Ok(_) => {
                api.shared.storage.forget_worker(&id);
                gone.push((id, disks));
            }
            Err(error) => {
                let problem = Problem::from(error);
                failed.push(failure(id, problem.code(), problem.detail().into()));
            }
        }
    }
    let generation = api.shared.ledger.snapshot().generation;
    let data_plane = data_plane(&api, generation).await;
    let disks = gone.iter().flat_map(|(_, disks)| disks).cloned().collect();
    let (mut retained, mut kept) = files_of(&api, disks, body.delete_files, generation).await;
    let deleted = gone.into_iter().map(|(worker_id, disks)| {
        let theirs = |name: &str| disks.iter().any(|d| d.filename.as_str() == name);
        let retained = retained.extract_if(.., |name| theirs(name)).collect();
        let failed = kept.extract_if(.., |k| theirs(k.filename.as_str())).collect();
        DeletedWorker { worker_id, retained, failed }
    });
    let deleted = deleted.collect();
    Ok(Json(WorkersDeleted { deleted, failed, data_plane }))
}
