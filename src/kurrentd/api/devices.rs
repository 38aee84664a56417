//! Devices.

use super::body::{Body, Segments, query};
use super::problem::Problem;
use super::system::{List, minutes_ahead};
use super::{ACTOR, Api, data_plane};
use crate::ledger::knocking::Knock;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use kurrent_core::id::{MacAddr, WorkerId};
use kurrent_core::ledger::{Change, Device, DeviceState, Ledger};
use kurrent_core::timeline::Boot;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// A device with what is derived of it.
#[derive(Serialize)]
pub(super) struct View {
    #[serde(flatten)]
    device: Device,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<Ipv4Addr>,
    /// How far its latest boot is.
    last_boot: String,
    /// After a change: `followed`, or why the data plane has not yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    data_plane: Option<String>,
    /// After binding: what will still keep it from booting.
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
}

fn view(api: &Api, device: &Device, data_plane: Option<String>) -> View {
    let address = api.shared.leases.load().iter().find(|(_, mac)| **mac == device.mac).map(|(address, _)| *address);
    View { device: device.clone(), address, last_boot: api.shared.timelines.summary(device.mac), data_plane, warning: None }
}

fn device_of(ledger: &Ledger, mac: MacAddr) -> Result<&Device, Problem> {
    let none =
        || Problem::new(404, "device_not_found", format!("no device {mac} is in the ledger; see the device list, or register it first"));
    ledger.device(mac).ok_or_else(none)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    state: Option<DeviceState>,
    worker: Option<WorkerId>,
}

pub(super) async fn list(State(api): State<Api>, wanted: Result<Query<Wanted>, QueryRejection>) -> Result<Json<List<View>>, Problem> {
    let wanted = query(wanted)?;
    let ledger = api.shared.ledger.snapshot();
    let matches = |d: &Device| {
        wanted.state.is_none_or(|s| d.state == s) && wanted.worker.as_ref().is_none_or(|w| d.bound_worker_id.as_ref() == Some(w))
    };
    let leases = api.shared.leases.load();
    let addresses: BTreeMap<MacAddr, Ipv4Addr> = leases.iter().map(|(address, mac)| (*mac, *address)).collect();
    let item = |d: &Device| View {
        device: d.clone(),
        address: addresses.get(&d.mac).copied(),
        last_boot: api.shared.timelines.summary(d.mac),
        data_plane: None,
        warning: None,
    };
    Ok(Json(List("devices", ledger.devices.values().filter(|d| matches(d)).map(|d| item(d)).collect())))
}

pub(super) async fn one(State(api): State<Api>, path: Segments) -> Result<Json<View>, Problem> {
    let ledger = api.shared.ledger.snapshot();
    Ok(Json(view(&api, device_of(&ledger, path.read("mac")?)?, None)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Register {
    /// `ed25519:…` or `p256:…`.
    public_key: Option<String>,
    /// Take the key that this device reported while it was knocking.
    #[serde(default)]
    admit: bool,
    /// Only if that key has this hash: the one that the person saw in the list.
    public_key_hash: Option<String>,
    #[serde(default)]
    keyless_allowed: bool,
    #[serde(default)]
    note: String,
}

pub(super) async fn register(
    State(api): State<Api>,
    path: Segments,
    Body(body): Body<Register>,
) -> Result<(StatusCode, Json<View>), Problem> {
    let mac: MacAddr = path.read("mac")?;
    let public_key = match (body.public_key, body.admit) {
        (Some(_), true) => return Err(Problem::new(422, "body_invalid", "give either public_key or admit").at("admit")),
        (None, true) => Some(knocked_key(&api, mac, body.public_key_hash.as_deref())?),
        (_, false) if body.public_key_hash.is_some() => {
            return Err(Problem::new(422, "body_invalid", "public_key_hash goes with admit only").at("public_key_hash"));
        }
        (given, false) => given,
    };
    if public_key.as_deref().is_some_and(|k| !is_point(k)) {
        let what = "the public key is not valid; write ed25519: and 64 lower-case hex digits, or p256: and 130";
        return Err(Problem::new(422, "public_key_invalid", what).at("public_key"));
    }
    let change = Change::Register { mac, public_key, keyless_allowed: body.keyless_allowed, note: body.note, labels: BTreeMap::new() };
    let (_, ledger) = api.shared.ledger.submit(change, ACTOR).await?;
    Ok((StatusCode::CREATED, Json(view(&api, device_of(&ledger, mac)?, None))))
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

/// Whether a key text is a usable key: an Ed25519 point that is not of small order, or of the P-256 form.
fn is_point(key: &str) -> bool {
    let Some(octets) = kurrent_core::ledger::schema::key_octets(key) else { return false };
    <[u8; 32]>::try_from(octets.as_slice()).map_or(true, |key| kurrent_handshake::is_device_key(&key))
}

/// Submits a change of one device and waits for the data plane.
async fn change(api: &Api, mac: MacAddr, change: Change) -> Result<Json<View>, Problem> {
    let (_, ledger) = api.shared.ledger.submit(change, ACTOR).await?;
    let followed = data_plane(api, ledger.generation).await;
    Ok(Json(view(api, device_of(&ledger, mac)?, Some(followed))))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Bind {
    worker_id: WorkerId,
    #[serde(default)]
    force: bool,
}

pub(super) async fn bind(State(api): State<Api>, path: Segments, Body(body): Body<Bind>) -> Result<Json<View>, Problem> {
    let mac = path.read("mac")?;
    let Json(mut bound) = change(&api, mac, Change::Bind { mac, worker: body.worker_id, force: body.force }).await?;
    // K31: a device without a key is bound all the same, as it may still report one; but it does not boot.
    if api.shared.config.enforcement && bound.device.public_key.is_none() && !bound.device.keyless_allowed {
        let what = "the device has no key yet and will be refused: start it while the window is open, or order a rekey";
        bound.warning = Some(what.into());
    }
    Ok(Json(bound))
}

/// A body without fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

pub(super) async fn unbind(State(api): State<Api>, path: Segments, _: Body<Nothing>) -> Result<Json<View>, Problem> {
    let mac = path.read("mac")?;
    change(&api, mac, Change::Unbind { mac }).await
}

pub(super) async fn revoke(State(api): State<Api>, path: Segments, _: Body<Nothing>) -> Result<Json<View>, Problem> {
    let mac = path.read("mac")?;
    change(&api, mac, Change::Revoke { mac }).await
}

pub(super) async fn purge(State(api): State<Api>, path: Segments) -> Result<StatusCode, Problem> {
    let mac = path.read("mac")?;
    api.shared.ledger.submit(Change::Purge { mac }, ACTOR).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rekey {
    /// How long the order stands; 0 withdraws it.
    minutes: u32,
}

pub(super) async fn rekey(State(api): State<Api>, path: Segments, Body(body): Body<Rekey>) -> Result<Json<View>, Problem> {
    let mac = path.read("mac")?;
    let until = if body.minutes == 0 { None } else { Some(minutes_ahead(body.minutes)?) };
    let (_, ledger) = api.shared.ledger.submit(Change::Rekey { mac, until }, ACTOR).await?;
    Ok(Json(view(&api, device_of(&ledger, mac)?, None)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Labels {
    labels: BTreeMap<String, String>,
}

pub(super) async fn label(State(api): State<Api>, path: Segments, Body(body): Body<Labels>) -> Result<Json<View>, Problem> {
    let mac = path.read("mac")?;
    let (_, ledger) = api.shared.ledger.submit(Change::Label { mac, labels: body.labels }, ACTOR).await?;
    Ok(Json(view(&api, device_of(&ledger, mac)?, None)))
}

pub(super) async fn timeline(State(api): State<Api>, path: Segments) -> Result<Json<Boot>, Problem> {
    let mac = path.read("mac")?;
    let none = || Problem::new(404, "no_boot_seen", format!("nothing was seen of device {mac} since the appliance started; switch it on"));
    api.shared.timelines.of(mac).map(Json).ok_or_else(none)
}

pub(super) async fn knocking(State(api): State<Api>) -> Json<List<Knock>> {
    Json(List("knocking", api.shared.ledger.knocking().list()))
}
