//! What is ordered of one device: admit, bind, unbind, revoke, rekey, labels.

use super::super::Api;
use super::super::body::{Body, Segments, unique_map};
use super::super::data_plane;
use super::super::etag::{Conditions, IfMatch, tagged};
use super::super::names::{Labelling, Note, Sha256, WorkerName};
use super::super::problem::Problem;
use super::super::settings::minutes_ahead;
use super::view::{DeviceView, view};
use super::{answer, device_of, register};
use crate::api::guard::actor;
use crate::ledger::expect::{Expectation, etag_of};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use kurrent_core::id::{MacAddr, WorkerId};
use kurrent_core::ledger::Change;
use serde::Deserialize;
use std::collections::BTreeMap;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(admit_device))
        .routes(routes!(bind_device))
        .routes(routes!(unbind_device))
        .routes(routes!(revoke_device))
        .routes(routes!(rekey_device))
        .routes(routes!(label_device))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Admit {
    /// Only if the key that it reported has this hash: the one that the person saw.
    #[schema(value_type = Option<Sha256>)]
    public_key_hash: Option<String>,
    #[serde(default)]
    #[schema(value_type = Note)]
    note: String,
}

/// Admit a knocking device
///
/// Registers it with the first key that it reported while it was knocking.
#[utoipa::path(post, path = "/v1/devices/{mac}/admit", tag = "devices", request_body = Admit,
    responses((status = 201, description = "In the pool", body = DeviceView, headers(("ETag" = String), ("Location" = String)))))]
async fn admit_device(State(api): State<Api>, path: Segments, Body(body): Body<Admit>) -> Result<Response, Problem> {
    let mac = path.read("mac")?;
    let key = knocked_key(&api, mac, body.public_key_hash.as_deref())?;
    let change =
        Change::Register { mac, public_key: Some(key), keyless_allowed: false, note: body.note, labels: BTreeMap::new(), address: None };
    register(&api, change, mac).await
}

/// The key that a knocking device reported first. With two keys for one MAC a person has to say which one they mean.
fn knocked_key(api: &Api, mac: MacAddr, named_hash: Option<&str>) -> Result<String, Problem> {
    let refused = |code, what: &str| Problem::new(409, code, format!("device {mac} {what}"));
    let none = || refused("not_knocking", "has not reported itself lately; start it, see the knocking list, and try again");
    let knock = api.shared.ledger.knocking().of(mac).ok_or_else(none)?;
    let keyless = || refused("no_key", "reported no key; register it with keyless_allowed if it can not have one");
    let key = knock.public_key.ok_or_else(keyless)?;
    match (named_hash, knock.public_key_hash) {
        (Some(named), Some(hash)) if named.eq_ignore_ascii_case(&hash) => Ok(key),
        (Some(_), _) => {
            let what =
                "reported a key with another hash than the one named; see the knocking list, and compare it with the machine's console";
            Err(refused("key_hash_mismatch", what).at("public_key_hash"))
        }
        (None, _) if knock.key_changed => {
            let what = "was reported with more than one key; compare the hash in the knocking list with the machine, and name it as public_key_hash";
            Err(refused("key_changed", what).at("public_key_hash"))
        }
        (None, _) => Ok(key),
    }
}

/// Submits a change of one device and waits for the data plane.
async fn change(api: &Api, mac: MacAddr, conditions: &Conditions, change: Change) -> Result<DeviceAnswer, Problem> {
    let (_, ledger) = api.shared.ledger.submit_if(change, &actor(), conditions.expect(|tag| Expectation::Device(mac, tag))).await?;
    let followed = data_plane(api, ledger.generation).await;
    let device = device_of(&ledger, mac)?;
    Ok(DeviceAnswer { tag: etag_of(device), view: view(api, device, Some(followed)) })
}

struct DeviceAnswer {
    tag: String,
    view: DeviceView,
}

impl DeviceAnswer {
    fn into_response(self) -> Response {
        tagged(&self.tag, Json(self.view))
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Bind {
    #[schema(value_type = WorkerName)]
    worker_id: WorkerId,
    /// Displace what stands in the way.
    #[serde(default)]
    force: bool,
}

/// Bind a device to a Worker
///
/// With `force` the binding moves in one step; what it displaces returns to the pool.
#[utoipa::path(post, path = "/v1/devices/{mac}/bind", tag = "devices", params(IfMatch), request_body = Bind,
    responses((status = 200, description = "Bound", body = DeviceView, headers(("ETag" = String)))))]
async fn bind_device(State(api): State<Api>, conditions: Conditions, path: Segments, Body(body): Body<Bind>) -> Result<Response, Problem> {
    let mac = path.read("mac")?;
    let order = Change::Bind { mac, worker: body.worker_id, force: body.force };
    let mut bound = change(&api, mac, &conditions, order).await?;
    // K31: a device without a key is bound all the same, as it may still report one; but it does not boot.
    let enforced = api.shared.ledger.snapshot().enforcement(api.shared.config.enforcement);
    if enforced && !bound.view.may_boot() {
        let what =
            "the device has no key yet and will be refused: start it while the window is open, or order a rekey of a replaced device";
        bound.view.warning = Some(what.into());
    }
    Ok(bound.into_response())
}

/// A body without fields.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct Nothing {}

/// Return a device to the pool
#[utoipa::path(post, path = "/v1/devices/{mac}/unbind", tag = "devices", params(IfMatch), request_body = Nothing,
    responses((status = 200, description = "In the pool", body = DeviceView, headers(("ETag" = String)))))]
async fn unbind_device(State(api): State<Api>, conditions: Conditions, path: Segments, _: Body<Nothing>) -> Result<Response, Problem> {
    let mac = path.read("mac")?;
    Ok(change(&api, mac, &conditions, Change::Unbind { mac }).await?.into_response())
}

/// Revoke a device
///
/// It gets no answer to anything any more; a bound one is unbound and cut off in the same step.
#[utoipa::path(post, path = "/v1/devices/{mac}/revoke", tag = "devices", params(IfMatch), request_body = Nothing,
    responses((status = 200, description = "Revoked", body = DeviceView, headers(("ETag" = String)))))]
async fn revoke_device(State(api): State<Api>, conditions: Conditions, path: Segments, _: Body<Nothing>) -> Result<Response, Problem> {
    let mac = path.read("mac")?;
    Ok(change(&api, mac, &conditions, Change::Revoke { mac }).await?.into_response())
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Rekey {
    /// How long the order stands; 0 withdraws it.
    #[schema(maximum = 60)]
    minutes: u32,
    /// For a replaced mainboard: the next report may bring any key. Otherwise the machine makes the new key itself and signs it
    /// with its old one.
    #[serde(default)]
    replaced: bool,
}

/// Order a new key of a device
#[utoipa::path(post, path = "/v1/devices/{mac}/rekey", tag = "devices", params(IfMatch), request_body = Rekey,
    responses((status = 200, description = "Ordered, or withdrawn", body = DeviceView, headers(("ETag" = String)))))]
async fn rekey_device(
    State(api): State<Api>,
    conditions: Conditions,
    path: Segments,
    Body(body): Body<Rekey>,
) -> Result<Response, Problem> {
    let mac = path.read("mac")?;
    let until = if body.minutes == 0 { None } else { Some(minutes_ahead(body.minutes)?) };
    let expected = conditions.expect(|tag| Expectation::Device(mac, tag));
    let order = Change::Rekey { mac, until, signed: !body.replaced };
    let (_, ledger) = api.shared.ledger.submit_if(order, &actor(), expected).await?;
    answer(&api, &ledger, mac, StatusCode::OK)
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct LabelDevice {
    /// The whole new set.
    #[serde(deserialize_with = "unique_map")]
    #[schema(value_type = Labelling)]
    labels: BTreeMap<String, String>,
}

/// Replace a device's labels
#[utoipa::path(put, path = "/v1/devices/{mac}/labels", tag = "devices", params(IfMatch), request_body = LabelDevice,
    responses((status = 200, description = "As it is now", body = DeviceView, headers(("ETag" = String)))))]
async fn label_device(
    State(api): State<Api>,
    conditions: Conditions,
    path: Segments,
    Body(body): Body<LabelDevice>,
) -> Result<Response, Problem> {
    let mac = path.read("mac")?;
    let expected = conditions.expect(|tag| Expectation::Device(mac, tag));
    let (_, ledger) = api.shared.ledger.submit_if(Change::Label { mac, labels: body.labels }, &actor(), expected).await?;
    answer(&api, &ledger, mac, StatusCode::OK)
}
