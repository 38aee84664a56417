//! What a Worker does now, and what its machine would be told.

use super::super::body::{Body, Query, Segments};
use super::super::devices::{BootView, Nothing};
use super::super::etag::{Conditions, IfMatch};
use super::super::names::{Address, Cursor, MacAddress, WorkerName};
use super::super::page::Wanted;
use super::super::problem::Problem;
use super::super::{Api, data_plane};
use super::view::ReadinessWord;
use super::worker_of;
use crate::api::guard::actor;
use crate::ledger::expect::Expectation;
use axum::Json;
use axum::extract::State;
use kurrent_core::boot::{self, Evidence, Proven};
use kurrent_core::id::{MacAddr, WorkerId, host_nqn};
use kurrent_core::ledger::Change;
use kurrent_core::ledger::view::Readiness;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(get_worker_status))
        .routes(routes!(get_boot_vars))
        .routes(routes!(rotate_credentials))
        .routes(routes!(list_credentials))
}

/// What a Worker does now.
#[derive(Serialize, ToSchema)]
struct WorkerStatus {
    #[schema(value_type = WorkerName)]
    worker_id: WorkerId,
    #[schema(value_type = ReadinessWord)]
    readiness: Readiness,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<MacAddress>, nullable = false)]
    device: Option<MacAddr>,
    /// Its device's lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Address>, nullable = false)]
    address: Option<Ipv4Addr>,
    /// How far its device's latest boot is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    boot: Option<BootView>,
    /// Its disks that the kernel exports to its device, by NQN.
    exported: Vec<String>,
    /// Connections from its device's address: 0 when its machine does not use a disk.
    connections: usize,
    /// What stands in the way of its disks, in words.
    faults: Vec<String>,
}

/// What a Worker does now
#[utoipa::path(get, path = "/v1/workers/{id}/status", tag = "workers", responses((status = 200, description = "As last seen", body = WorkerStatus)))]
async fn get_worker_status(State(api): State<Api>, path: Segments) -> Result<Json<WorkerStatus>, Problem> {
    let (shared, ledger) = (&api.shared, api.shared.ledger.snapshot());
    let worker = worker_of(&ledger, &path.read("id")?)?;
    let device = ledger.device_of(&worker.worker_id);
    let host = device.map(|d| host_nqn(&shared.config.agent.nqn_base, &worker.worker_id, d.epoch).to_string());
    let address = device.and_then(|d| shared.address_of(d.mac));
    let seen = shared.target.observation();
    let exports = worker.disks.iter().filter_map(|d| seen.export(d.nqn.as_str())).filter(|e| Some(&e.host) == host.as_ref());
    let about = |fault: &&String| worker.disks.iter().any(|d| fault.contains(d.nqn.as_str()));
    Ok(Json(WorkerStatus {
        worker_id: worker.worker_id.clone(),
        readiness: ledger.readiness(worker),
        device: device.map(|d| d.mac),
        address,
        boot: device.and_then(|d| shared.timelines.of(d.mac)).map(Into::into),
        exported: exports.map(|e| e.subsystem).collect(),
        connections: seen.sessions.iter().filter(|s| Some(s.address) == address).map(|s| s.connections).sum(),
        faults: seen.faults.iter().filter(about).cloned().collect(),
    }))
}

/// What a Worker's machine would be told.
#[derive(Serialize, ToSchema)]
struct BootVars {
    #[schema(value_type = WorkerName)]
    worker_id: WorkerId,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<MacAddress>, nullable = false)]
    device: Option<MacAddr>,
    /// Whether a genuine answer of its device would boot a disk now.
    boots: bool,
    /// Stable code of why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    code: Option<&'static str>,
    /// Why not, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    reason: Option<&'static str>,
    /// Under the names that scripts know; no secret is among them.
    variables: BTreeMap<&'static str, String>,
}

/// What a Worker's machine would be told
///
/// As if its device had proven itself, by the same decision as the boot itself. Secrets are never shown.
#[utoipa::path(get, path = "/v1/workers/{id}/boot-vars", tag = "workers", responses((status = 200, description = "The preview", body = BootVars)))]
async fn get_boot_vars(State(api): State<Api>, path: Segments) -> Result<Json<BootVars>, Problem> {
    let ledger = api.shared.ledger.snapshot();
    let worker = worker_of(&ledger, &path.read("id")?)?;
    let device = ledger.device_of(&worker.worker_id).map(|d| d.mac);
    let decided = match device {
        Some(mac) => boot::boot_vars(&ledger, &api.shared.config, mac, Evidence::Genuine),
        None => Err(boot::Refusal::NotBound),
    };
    let worker_id = worker.worker_id.clone();
    Ok(Json(match decided {
        Ok((proven, grant)) => {
            // A genuine answer of such a key gets the variables and then waits: there is nothing to seal the secrets to.
            let refusal = (proven == Proven::Unsealable).then_some(boot::Refusal::NoChannel);
            let (code, reason) = refusal.map(|r| (r.code(), r.line())).unzip();
            BootVars { worker_id, device, boots: refusal.is_none(), code, reason, variables: grant.variables().into() }
        }
        Err(refusal) => {
            let variables = if refusal == boot::Refusal::NoDisk { boot::no_disk_variables().into() } else { BTreeMap::new() };
            BootVars { worker_id, device, boots: false, code: Some(refusal.code()), reason: Some(refusal.line()), variables }
        }
    }))
}

/// What opens a Worker's disks, without the secrets.
#[derive(Serialize, ToSchema)]
struct Credentials {
    #[schema(value_type = WorkerName)]
    worker_id: WorkerId,
    #[schema(value_type = MacAddress)]
    device: MacAddr,
    epoch: u64,
    /// The host that they belong to.
    host_nqn: String,
    #[schema(value_type = String, format = Uuid)]
    host_id: uuid::Uuid,
    /// Whether they are of the present binding; others are about to go.
    current: bool,
    /// Where boots were granted to.
    #[schema(value_type = Vec<Address>)]
    addresses: Vec<Ipv4Addr>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct CredentialsQuery {
    /// Only of this Worker.
    #[param(value_type = Option<WorkerName>)]
    worker: Option<WorkerId>,
    /// Credentials of one answer.
    #[param(minimum = 1, maximum = 1000, default = 200)]
    limit: Option<usize>,
    /// Where the previous answer ended.
    #[param(value_type = Option<Cursor>)]
    cursor: Option<String>,
}

#[derive(Serialize, ToSchema)]
struct CredentialsList {
    #[schema(max_items = 1000)]
    credentials: Vec<Credentials>,
    /// The cursor of what follows; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next: Option<String>,
}

/// List credentials
///
/// Only what they are for: secrets are never shown.
#[utoipa::path(get, path = "/v1/credentials", tag = "credentials", params(CredentialsQuery),
    responses((status = 200, description = "Ordered by Worker", body = CredentialsList)))]
async fn list_credentials(State(api): State<Api>, Query(asked): Query<CredentialsQuery>) -> Result<Json<CredentialsList>, Problem> {
    let (shared, wanted) = (&api.shared, Wanted::new(asked.limit, asked.cursor.as_deref())?);
    if let Some(fault) = shared.credentials.fault() {
        return Err(Problem::new(503, "credentials_unreadable", fault.to_string()));
    }
    let ledger = shared.ledger.snapshot();
    let metadata = |r: crate::credentials::Record| Credentials {
        host_nqn: host_nqn(&shared.config.agent.nqn_base, &r.worker_id, r.epoch).to_string(),
        current: ledger.device_of(&r.worker_id).is_some_and(|d| d.mac == r.device && d.epoch == r.epoch),
        worker_id: r.worker_id,
        device: r.device,
        epoch: r.epoch,
        host_id: r.host_id,
        addresses: r.addresses,
    };
    let all = shared.credentials.all().into_iter().filter(|r| asked.worker.as_ref().is_none_or(|w| r.worker_id == *w));
    // NUL sorts before whatever a name goes on with.
    let page = wanted.take_sorted(all, |r| format!("{}\0{:020}\0{}", r.worker_id, r.epoch, r.device));
    Ok(Json(CredentialsList { credentials: page.items.into_iter().map(metadata).collect(), next: page.next }))
}

/// New credentials.
#[derive(Serialize, ToSchema)]
struct Rotated {
    #[schema(value_type = WorkerName)]
    worker_id: WorkerId,
    #[schema(value_type = MacAddress)]
    device: MacAddr,
    epoch: u64,
    /// `followed`: the old ones open nothing any more; or why the data plane has not yet.
    data_plane: String,
}

/// Replace a Worker's credentials
///
/// The old ones open nothing any more: a machine that runs loses its disks, and gets new credentials at its next boot.
#[utoipa::path(post, path = "/v1/workers/{id}/credentials/rotate", tag = "credentials", params(IfMatch), request_body = Nothing,
    responses((status = 200, description = "Replaced", body = Rotated)))]
async fn rotate_credentials(
    State(api): State<Api>,
    conditions: Conditions,
    path: Segments,
    _: Body<Nothing>,
) -> Result<Json<Rotated>, Problem> {
    let worker: WorkerId = path.read("id")?;
    let expected = conditions.expect(|tag| Expectation::Worker(worker.clone(), tag));
    let (_, ledger) = api.shared.ledger.submit_if(Change::RotateCredentials { worker: worker.clone() }, &actor(), expected).await?;
    let data_plane = data_plane(&api, ledger.generation).await;
    let gone = || Problem::new(500, "internal", "the device is not in the ledger that has its new epoch; report this");
    let device = ledger.device_of(&worker).ok_or_else(gone)?;
    Ok(Json(Rotated { worker_id: worker, device: device.mac, epoch: device.epoch, data_plane }))
}
