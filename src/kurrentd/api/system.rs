//! Status, the state folder and target.

use super::Api;
use super::names::Address;
use super::problem::Problem;
use super::settings::Window;
use crate::confine;
use crate::reconcile::Observation;
use axum::Json;
use axum::extract::State;
use kurrent_core::ledger::DeviceState;
use serde::Serialize;
use std::net::Ipv4Addr;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(get_status)).routes(routes!(get_state)).routes(routes!(get_target))
}

/// How the appliance is.
#[derive(Serialize, ToSchema)]
struct Status {
    name: String,
    #[schema(value_type = String)]
    version: &'static str,
    /// False: the ledgers do not read, and nothing that they govern is served.
    serving: bool,
    generation: u64,
    devices: Counts,
    workers: usize,
    knocking: usize,
    registration_window: Window,
    enforcement: bool,
    /// What `kurrentd` has given up, part by part.
    #[schema(value_type = Vec<confine::Part>)]
    confinement: &'static [confine::Part],
    /// Where the API answers.
    api: Vec<String>,
    /// SHA-256 of the CA certificate in hex; absent while the CA can not be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    ca_fingerprint: Option<String>,
    /// What is wrong now, with what to do.
    faults: Vec<String>,
    #[schema(value_type = Vec<String>)]
    warnings: Vec<&'static str>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = DeviceCounts)]
struct Counts {
    pooled: usize,
    bound: usize,
    revoked: usize,
}

/// Get the status
#[utoipa::path(get, path = "/v1/status", tag = "system", responses((status = 200, description = "How the appliance is", body = Status)))]
async fn get_status(State(api): State<Api>) -> Json<Status> {
    let (shared, ledger) = (&api.shared, api.shared.ledger.snapshot());
    let count = |state| ledger.devices.values().filter(|d| d.state == state).count();
    let enforcement = ledger.enforcement(shared.config.enforcement);
    let warnings =
        [(enforcement, "enforcement is off: devices without a key get their disks"), (shared.config.confinement, confine::OFF_WARNING)];
    Json(Status {
        name: shared.config.name.clone(),
        version: env!("CARGO_PKG_VERSION"),
        serving: !shared.ledger.unreadable(),
        generation: ledger.generation,
        devices: Counts { pooled: count(DeviceState::Pooled), bound: count(DeviceState::Bound), revoked: count(DeviceState::Revoked) },
        workers: ledger.workers.len(),
        knocking: shared.ledger.knocking().list().len(),
        registration_window: Window::of(&ledger),
        enforcement,
        confinement: confine::held(),
        api: crate::status::api_addresses(&shared.config),
        ca_fingerprint: shared.tls.ca_fingerprint(),
        faults: shared.all_faults(),
        warnings: warnings.into_iter().filter(|(is_on, _)| !is_on).map(|(_, warning)| warning).collect(),
    })
}

/// What lies in the state folder.
#[derive(Serialize, ToSchema)]
struct StateCheck {
    /// All of it would be served.
    holds: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    devices: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workers: Option<usize>,
    /// Changes in the journal that the YAML files do not have yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<u64>,
    /// Entries of the audit, when its chain holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    audit_entries: Option<u64>,
    /// What is wrong, with file and line, and what to do.
    faults: Vec<String>,
}

/// Check the state folder
///
/// Reads ledgers, journal and audit from the disk as the next start would.
#[utoipa::path(get, path = "/v1/state", tag = "system", responses((status = 200, description = "What was found", body = StateCheck)))]
async fn get_state(State(api): State<Api>) -> Result<Json<StateCheck>, Problem> {
    let folder = api.shared.config.state_dir.clone();
    let checked = tokio::task::spawn_blocking(move || crate::state_check::check(&folder)).await;
    let found = checked.map_err(|e| Problem::new(500, "internal", format!("the check was ended ({e}); see the log")))?;
    let ledgers = found.ledgers;
    Ok(Json(StateCheck {
        holds: found.faults.is_empty(),
        generation: ledgers.map(|l| l.generation),
        devices: ledgers.map(|l| l.devices),
        workers: ledgers.map(|l| l.workers),
        waiting: ledgers.map(|l| l.waiting),
        audit_entries: found.audit_entries,
        faults: found.faults,
    }))
}

/// What the kernel exports.
#[derive(Serialize, ToSchema)]
struct Target {
    /// The ledger's generation that was followed.
    generation: u64,
    /// Whether the kernel was looked at since the start.
    looked: bool,
    exports: Vec<ExportView>,
    sessions: Vec<SessionView>,
    /// What stands in the way.
    faults: Vec<String>,
}

/// One exported disk.
#[derive(Serialize, ToSchema)]
#[schema(as = Export)]
struct ExportView {
    subsystem: String,
    /// The one host that may connect.
    host: String,
    path: String,
}

/// Who is connected.
#[derive(Serialize, ToSchema)]
#[schema(as = Session)]
pub(super) struct SessionView {
    #[schema(value_type = Address)]
    address: Ipv4Addr,
    /// One admin queue and its I/O queues.
    connections: usize,
}

impl From<crate::reconcile::Session> for SessionView {
    fn from(session: crate::reconcile::Session) -> Self {
        Self { address: session.address, connections: session.connections }
    }
}

impl From<&Observation> for Target {
    fn from(seen: &Observation) -> Self {
        let export = |e: crate::reconcile::Export| ExportView { subsystem: e.subsystem, host: e.host, path: e.path };
        Self {
            generation: seen.generation,
            looked: seen.looked,
            exports: seen.exports().into_iter().map(export).collect(),
            sessions: seen.sessions.iter().cloned().map(Into::into).collect(),
            faults: seen.faults.clone(),
        }
    }
}

/// Get what the kernel exports
#[utoipa::path(get, path = "/v1/target", tag = "system", responses((status = 200, description = "As last seen", body = Target)))]
async fn get_target(State(api): State<Api>) -> Json<Target> {
    Json(Target::from(&*api.shared.target.observation()))
}
