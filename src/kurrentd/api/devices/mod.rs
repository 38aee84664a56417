//! Devices.

mod batch;
mod import;
mod orders;
mod rows;
mod view;

use super::Api;
use super::body::{Body, Query, Segments, given, unique_map};
use super::etag::{Conditions, IfMatch, of_generation, tagged};
use super::names::{Address, Cursor, DiskFile, Labelling, MacAddress, Note, PublicKey, WorkerName};
use super::page::{MAX_LIMIT, Wanted};
use super::problem::Problem;
use crate::api::guard::actor;
use crate::ledger::SubmitError;
use crate::ledger::expect::{Expectation, etag_of};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use kurrent_core::config::Config;
use kurrent_core::id::{MacAddr, WorkerId};
use kurrent_core::ledger::schema::Source;
use kurrent_core::ledger::{Change, Device, DeviceState, Ledger};
pub(super) use orders::Nothing;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
pub(super) use view::BootView;
use view::{DeviceView, SourceWord, StateWord, view};

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(list_devices, register_device))
        .routes(routes!(get_device, edit_device, purge_device))
        .merge(batch::routes())
        .merge(import::routes())
        .merge(orders::routes())
        .merge(view::routes())
}

fn device_of(ledger: &Ledger, mac: MacAddr) -> Result<&Device, Problem> {
    ledger.known_device(mac).map_err(|refused| SubmitError::from(refused).into())
}

/// A device as it is in this ledger, with its tag.
fn answer(api: &Api, ledger: &Ledger, mac: MacAddr, status: StatusCode) -> Result<Response, Problem> {
    let device = device_of(ledger, mac)?;
    Ok(tagged(&etag_of(device), (status, Json(view(api, device, None)))))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Filter {
    /// Only devices in this state.
    #[param(value_type = Option<StateWord>)]
    state: Option<DeviceState>,
    /// Only devices that have this label: `key`, or `key=value`. May repeat; all must fit.
    #[serde(default)]
    #[param(max_items = 64)]
    label: Vec<String>,
    /// Only the device of this Worker.
    #[param(value_type = Option<WorkerName>)]
    worker: Option<WorkerId>,
    /// Only devices that came into the ledger this way.
    #[param(value_type = Option<SourceWord>)]
    source: Option<Source>,
    /// Devices of one answer.
    #[param(minimum = 1, maximum = 1000, default = 200)]
    limit: Option<usize>,
    /// Where the previous answer ended.
    #[param(value_type = Option<Cursor>)]
    cursor: Option<String>,
}

impl Filter {
    fn matches(&self, device: &Device) -> bool {
        let labelled = |wanted: &String| match wanted.split_once('=') {
            Some((key, value)) => device.labels.get(key).is_some_and(|v| v == value),
            None => device.labels.contains_key(wanted),
        };
        self.state.is_none_or(|s| device.state == s)
            && self.worker.as_ref().is_none_or(|w| device.bound_worker_id.as_ref() == Some(w))
            && self.source.is_none_or(|s| device.source == s)
            && self.label.iter().all(labelled)
    }
}

/// Some devices.
#[derive(Serialize, ToSchema)]
struct DeviceList {
    #[schema(max_items = 1000)]
    devices: Vec<DeviceView>,
    /// The cursor of what follows; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next: Option<String>,
    /// Of the ledger that this is from.
    generation: u64,
}

/// List devices
#[utoipa::path(get, path = "/v1/devices", tag = "devices", params(Filter),
    responses((status = 200, description = "Ordered by MAC", body = DeviceList, headers(("ETag" = String)))))]
async fn list_devices(State(api): State<Api>, Query(filter): Query<Filter>) -> Result<Response, Problem> {
    let wanted = Wanted::new(filter.limit, filter.cursor.as_deref())?;
    if filter.label.len() > MAX_LIMIT {
        return Err(Problem::new(400, "query_invalid", "too many labels; name fewer").at("label"));
    }
    let ledger = api.shared.ledger.snapshot();
    let after: Option<MacAddr> = wanted.after().map(str::parse).transpose()?;
    let leases = api.shared.leases.load_full();
    let follows = |device: &&Device| after.is_none_or(|after| device.mac > after) && filter.matches(device);
    let page = wanted.take(ledger.devices.values().map(AsRef::as_ref).filter(follows), |d| d.mac.to_string());
    let devices =
        page.items.into_iter().map(|d| DeviceView::new(d, leases.address_of(d.mac), api.shared.timelines.summary(d.mac))).collect();
    let list = DeviceList { devices, next: page.next, generation: ledger.generation };
    // Addresses and boots are in no ledger: never "unchanged".
    Ok(tagged(&of_generation(ledger.generation), Json(list)))
}

/// Get a device
#[utoipa::path(get, path = "/v1/devices/{mac}", tag = "devices",
    responses((status = 200, description = "The device", body = DeviceView, headers(("ETag" = String)))))]
async fn get_device(State(api): State<Api>, path: Segments) -> Result<Response, Problem> {
    let ledger = api.shared.ledger.snapshot();
    let device = device_of(&ledger, path.read("mac")?)?;
    Ok(tagged(&etag_of(device), Json(view(&api, device, None))))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Register {
    #[schema(value_type = MacAddress)]
    mac: MacAddr,
    #[schema(value_type = Option<PublicKey>)]
    public_key: Option<String>,
    /// May boot without a key although enforcement is on.
    #[serde(default)]
    keyless_allowed: bool,
    #[serde(default)]
    #[schema(value_type = Note)]
    note: String,
    #[serde(default, deserialize_with = "unique_map")]
    #[schema(value_type = Labelling)]
    labels: BTreeMap<String, String>,
}

/// Register a device
///
/// Adds it to the pool; not limited by the registration window.
#[utoipa::path(post, path = "/v1/devices", tag = "devices", request_body = Register,
    responses((status = 201, description = "Registered", body = DeviceView, headers(("ETag" = String), ("Location" = String)))))]
async fn register_device(State(api): State<Api>, Body(body): Body<Register>) -> Result<Response, Problem> {
    let Register { mac, public_key, keyless_allowed, note, labels } = body;
    checked_key(public_key.as_deref())?;
    register(&api, Change::Register { mac, public_key, keyless_allowed, note, labels, address: None }, mac).await
}

/// Puts a device into the ledger and answers with it.
async fn register(api: &Api, change: Change, mac: MacAddr) -> Result<Response, Problem> {
    let (_, ledger) = api.shared.ledger.submit(change, &actor()).await?;
    Ok(([(LOCATION, format!("/v1/devices/{mac}"))], answer(api, &ledger, mac, StatusCode::CREATED)?).into_response())
}

/// An address to be reserved must be one that the configuration gives out.
fn checked_reservation(config: &Config, address: Option<Ipv4Addr>) -> Result<(), Problem> {
    match address.and_then(|address| config.check_reservation(address)) {
        Some(what) => Err(Problem::new(422, "address_invalid", what).at("reserved_address")),
        None => Ok(()),
    }
}

/// A key text must be a usable key: an Ed25519 point that is not of small order, or of the P-256 form.
fn checked_key(key: Option<&str>) -> Result<(), Problem> {
    let usable = |key: &str| {
        let Some(octets) = kurrent_core::ledger::schema::key_octets(key) else { return false };
        <[u8; 32]>::try_from(octets.as_slice()).map_or(true, |key| kurrent_handshake::is_device_key(&key))
    };
    if key.is_none_or(usable) {
        return Ok(());
    }
    let what = "the public key is not valid; write ed25519: and 64 lower-case hex digits, or p256: and 130";
    Err(Problem::new(422, "public_key_invalid", what).at("public_key"))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Edit {
    #[schema(value_type = Option<Note>)]
    note: Option<String>,
    /// May boot without a key although enforcement is on.
    keyless_allowed: Option<bool>,
    /// A file of the loader table to offer instead of the architecture's; null: the architecture's again.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<DiskFile>)]
    loader: Option<Option<String>>,
    /// The address that DHCP gives to it and to nobody else, in force from its next DISCOVER on; null: a dynamic one again.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Address>)]
    reserved_address: Option<Option<Ipv4Addr>>,
}

/// Edit a device
///
/// What is left out stays as it is.
#[utoipa::path(patch, path = "/v1/devices/{mac}", tag = "devices", params(IfMatch), request_body = Edit,
    responses((status = 200, description = "As it is now", body = DeviceView, headers(("ETag" = String)))))]
async fn edit_device(State(api): State<Api>, conditions: Conditions, path: Segments, Body(body): Body<Edit>) -> Result<Response, Problem> {
    let mac = path.read("mac")?;
    let Edit { note, keyless_allowed, loader, reserved_address } = body;
    checked_reservation(&api.shared.config, reserved_address.flatten())?;
    let change = Change::EditDevice { mac, note, keyless_allowed, loader, address: reserved_address };
    let (_, ledger) = api.shared.ledger.submit_if(change, &actor(), conditions.expect(|tag| Expectation::Device(mac, tag))).await?;
    answer(&api, &ledger, mac, StatusCode::OK)
}

/// Purge a revoked device
///
/// Removes its record; then the MAC is unknown again.
#[utoipa::path(delete, path = "/v1/devices/{mac}", tag = "devices", params(IfMatch), responses((status = 204, description = "Purged")))]
async fn purge_device(State(api): State<Api>, conditions: Conditions, path: Segments) -> Result<StatusCode, Problem> {
    let mac = path.read("mac")?;
    api.shared.ledger.submit_if(Change::Purge { mac }, &actor(), conditions.expect(|tag| Expectation::Device(mac, tag))).await?;
    Ok(StatusCode::NO_CONTENT)
}
