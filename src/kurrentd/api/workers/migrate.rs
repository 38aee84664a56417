//! A Worker goes to another device, with its disk.

use super::super::Api;
use super::super::body::{Body, Segments};
use super::super::guard::actor;
use super::super::names::{Address, MacAddress, Time, WorkerName};
use super::super::problem::Problem;
use super::worker_of;
use crate::migrations::{self, Order};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use kurrent_core::id::{MacAddr, WorkerId};
use kurrent_core::ledger::{Ledger, Migration, Rejected};
use kurrent_core::migrate::{ATTEST_MINUTES, MAX_MINUTES, WAIT_MINUTES};
use kurrent_core::time::Wall;
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use std::time::Duration;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(migrate_worker))
}

/// A Worker on its way to another device.
#[derive(Serialize, ToSchema)]
#[schema(as = MigrationNote)]
pub(in crate::api) struct NoteView {
    #[schema(value_type = WorkerName)]
    worker_id: WorkerId,
    /// The device that gets it back if the new one does not prove itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<MacAddress>, nullable = false)]
    from: Option<MacAddr>,
    #[schema(value_type = MacAddress)]
    to: MacAddr,
    #[schema(value_type = Time)]
    since: Wall,
    /// The new device must have proven itself by then.
    #[schema(value_type = Time)]
    until: Wall,
}

impl NoteView {
    pub(super) fn new(worker_id: WorkerId, note: Migration) -> Self {
        let Migration { from, to, since, until } = note;
        Self { worker_id, from, to, since, until }
    }

    /// The migration that a device has to do with.
    pub(in crate::api) fn of_device(ledger: &Ledger, mac: MacAddr) -> Option<Self> {
        let mut notes = ledger.migrating.iter().filter_map(|id| Some((id, ledger.workers.get(id)?.migration.as_ref()?)));
        let (id, note) = notes.find(|(_, note)| note.to == mac || note.from == Some(mac))?;
        Some(Self::new(id.clone(), note.clone()))
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Migrate {
    /// A pooled device that can prove itself.
    #[schema(value_type = MacAddress)]
    to: MacAddr,
    /// How long the present device may take to go; 0: it is cut off at once.
    #[serde(default = "wait_minutes")]
    #[schema(required = false, maximum = 1440, default = 10)]
    wait_minutes: u32,
    /// How long the new device may take to prove itself; then the present one gets the Worker back.
    #[serde(default = "attest_minutes")]
    #[schema(required = false, minimum = 1, maximum = 1440, default = 15)]
    attest_minutes: u32,
    /// Only say what would be.
    #[serde(default)]
    #[schema(required = false)]
    dry_run: bool,
}

fn wait_minutes() -> u32 {
    WAIT_MINUTES
}

fn attest_minutes() -> u32 {
    ATTEST_MINUTES
}

#[derive(Serialize, ToSchema)]
struct Connected {
    #[schema(value_type = Address)]
    address: Ipv4Addr,
    connections: usize,
}

/// Something in the way of a migration.
#[derive(Serialize, ToSchema)]
struct Obstacle {
    /// Stable, for programs.
    #[schema(value_type = String)]
    code: &'static str,
    /// In words, with the next step.
    detail: String,
}

impl From<Rejected> for Obstacle {
    fn from(Rejected { code, detail, .. }: Rejected) -> Self {
        Self { code, detail }
    }
}

/// What a migration would be.
#[derive(Serialize, ToSchema)]
struct MigrationPlan {
    #[schema(value_type = WorkerName)]
    worker_id: WorkerId,
    /// The device that loses the Worker; absent when nobody has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<MacAddress>, nullable = false)]
    from: Option<MacAddr>,
    #[schema(value_type = MacAddress)]
    to: MacAddr,
    /// From where that device is connected to the disks now.
    connected: Vec<Connected>,
    /// All that stands in the way; empty when it can be done.
    refused: Vec<Obstacle>,
    /// What to know before.
    warnings: Vec<String>,
}

#[derive(Serialize, ToSchema)]
struct MigrationStarted {
    job: String,
}

fn minutes(minutes: u32) -> Duration {
    Duration::from_secs(u64::from(minutes) * 60)
}

fn check(wanted: &Migrate) -> Result<(), Problem> {
    let wrong = |field: &str, least: u32| {
        let what = format!("{field} is {least} to {MAX_MINUTES}; choose a number in that range");
        Err(Problem::new(422, "minutes_out_of_range", what).at(field))
    };
    if wanted.wait_minutes > MAX_MINUTES {
        return wrong("wait_minutes", 0);
    }
    if !(1..=MAX_MINUTES).contains(&wanted.attest_minutes) {
        return wrong("attest_minutes", 1);
    }
    Ok(())
}

/// Move a Worker to another device
///
/// A job: it waits until the present device is gone, cuts it off, binds the new one, and watches it boot. When the new device does
/// not prove itself in time, the present one gets the Worker back. The disk and the Worker's identity stay. With `dry_run` nothing
/// is done.
#[utoipa::path(post, path = "/v1/workers/{id}/migrate", tag = "workers", request_body = Migrate, responses(
    (status = 200, description = "What it would be", body = MigrationPlan),
    (status = 202, description = "It goes on as a job", body = MigrationStarted, headers(("Location" = String)))))]
async fn migrate_worker(State(api): State<Api>, path: Segments, Body(body): Body<Migrate>) -> Result<Response, Problem> {
    let worker_id: WorkerId = path.read("id")?;
    worker_of(&api.shared.ledger.snapshot(), &worker_id)?;
    check(&body)?;
    let to = body.to;
    if body.dry_run {
        let (plan, connected) = migrations::plan(&api.shared, &worker_id, to).await;
        let connected = connected.into_iter().map(|(address, connections)| Connected { address, connections }).collect();
        let refused = plan.refused.into_iter().map(Into::into).collect();
        let plan = MigrationPlan { worker_id, from: plan.from, to, connected, refused, warnings: plan.warnings };
        return Ok(Json(plan).into_response());
    }
    let order = Order { worker: worker_id, to, wait: minutes(body.wait_minutes), attest: minutes(body.attest_minutes) };
    let job = migrations::begin(&api.shared, order, &actor()).await?;
    Ok((StatusCode::ACCEPTED, [(LOCATION, format!("/v1/jobs/{job}"))], Json(MigrationStarted { job })).into_response())
}
