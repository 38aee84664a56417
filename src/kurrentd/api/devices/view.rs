//! What is shown of a device, and what is seen of machines: timelines, who knocks.

use super::super::Api;
use super::super::body::Segments;
use super::super::names::{Address, MacAddress, Time, WorkerName};
use super::super::problem::Problem;
use super::super::workers::NoteView;
use crate::ledger::knocking::Knock;
use axum::Json;
use axum::extract::State;
use kurrent_core::id::{MacAddr, WorkerId};
use kurrent_core::ledger::schema::{Fingerprint, Source};
use kurrent_core::ledger::{Device, DeviceState};
use kurrent_core::time::Wall;
use kurrent_core::timeline::{Boot, Step};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(get_timeline)).routes(routes!(list_knocking))
}

/// Where a device stands.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = DeviceState)]
#[expect(dead_code, reason = "describes kurrent_core's DeviceState")]
pub(in crate::api) enum StateWord {
    Pooled,
    Bound,
    Revoked,
}

/// How a device came into the ledger.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = DeviceSource)]
#[expect(dead_code, reason = "describes kurrent_core's Source")]
pub(in crate::api) enum SourceWord {
    Ipxe,
    Manual,
}

/// What the firmware says about the machine: never authority.
#[derive(Serialize, ToSchema)]
#[schema(as = Fingerprint)]
pub(in crate::api) struct FingerprintView {
    manufacturer: String,
    product: String,
    serial: String,
    cpu_model: String,
    /// MiB.
    memory_total: String,
    memory_type: String,
    /// MT/s.
    memory_speed: String,
    nic_chip: String,
    nic_busid: String,
}

impl From<Fingerprint> for FingerprintView {
    fn from(f: Fingerprint) -> Self {
        let Fingerprint { manufacturer, product, serial, cpu_model, memory_total, memory_type, memory_speed, nic_chip, nic_busid } = f;
        Self { manufacturer, product, serial, cpu_model, memory_total, memory_type, memory_speed, nic_chip, nic_busid }
    }
}

/// A device with what is derived of it.
#[derive(Serialize, ToSchema)]
#[schema(as = Device)]
pub(in crate::api) struct DeviceView {
    #[schema(value_type = MacAddress)]
    mac: MacAddr,
    /// SMBIOS UUID as reported; empty when unknown.
    uuid: String,
    #[schema(value_type = StateWord)]
    state: DeviceState,
    /// The Worker that it boots as.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<WorkerName>, nullable = false)]
    bound_worker_id: Option<WorkerId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    public_key: Option<String>,
    /// What people compare.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    public_key_hash: Option<String>,
    #[schema(value_type = SourceWord)]
    source: Source,
    #[schema(value_type = Time)]
    first_seen: Wall,
    /// Its last accepted report.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Time>, nullable = false)]
    last_seen: Option<Wall>,
    /// When it last proved its key: a report is only what it says.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Time>, nullable = false)]
    proved_at: Option<Wall>,
    /// Grows with every binding and key: part of its host NQN.
    epoch: u64,
    /// Until then a new key of it is ordered.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Time>, nullable = false)]
    rekey_until: Option<Wall>,
    /// The ordered key must be signed by the present one; else the next report may bring any.
    rekey_signed: bool,
    /// May boot without a key although enforcement is on.
    keyless_allowed: bool,
    /// Loader to offer instead of the architecture's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    loader: Option<String>,
    /// The address that is reserved for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Address>, nullable = false)]
    reserved_address: Option<Ipv4Addr>,
    labels: BTreeMap<String, String>,
    note: String,
    #[schema(value_type = FingerprintView)]
    fingerprint: FingerprintView,
    /// Its lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Address>, nullable = false)]
    address: Option<Ipv4Addr>,
    /// How far its latest boot is; empty when none was seen.
    last_boot: String,
    /// When a Worker is on its way to it or from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    migration: Option<NoteView>,
    /// After a change: `followed`, or why the data plane has not yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    data_plane: Option<String>,
    /// After binding: what will still keep it from booting.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) warning: Option<String>,
}

impl DeviceView {
    pub(super) fn new(device: &Device, address: Option<Ipv4Addr>, last_boot: String) -> Self {
        let d = device.clone();
        Self {
            mac: d.mac,
            uuid: d.uuid,
            state: d.state,
            bound_worker_id: d.bound_worker_id,
            public_key: d.public_key,
            public_key_hash: d.public_key_hash,
            source: d.source,
            first_seen: d.first_seen,
            last_seen: d.last_seen,
            proved_at: d.proved_at,
            epoch: d.epoch,
            rekey_until: d.rekey_until,
            rekey_signed: d.rekey_signed,
            keyless_allowed: d.keyless_allowed,
            loader: d.loader,
            reserved_address: d.address,
            labels: d.labels,
            note: d.note,
            fingerprint: d.fingerprint.into(),
            address,
            last_boot,
            migration: None,
            data_plane: None,
            warning: None,
        }
    }

    /// Whether it has what enforcement asks for.
    pub(super) fn may_boot(&self) -> bool {
        self.public_key.is_some() || self.keyless_allowed
    }
}

/// One device; `data_plane` after a change.
pub(super) fn view(api: &Api, device: &Device, data_plane: Option<String>) -> DeviceView {
    let address = api.shared.address_of(device.mac);
    let migration = NoteView::of_device(&api.shared.ledger.snapshot(), device.mac);
    DeviceView { migration, data_plane, ..DeviceView::new(device, address, api.shared.timelines.summary(device.mac)) }
}

/// A step of a boot.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = BootStep)]
#[expect(dead_code, reason = "describes kurrent_core's Step")]
enum StepWord {
    Dhcp,
    Loader,
    Script,
    Attest,
    Kernel,
    Connect,
    Root,
}

#[derive(Serialize, ToSchema)]
#[schema(as = BootMark)]
struct MarkView {
    #[schema(value_type = StepWord)]
    step: Step,
    #[schema(value_type = Time)]
    at: Wall,
    /// Milliseconds since the first step of this boot.
    since_start_ms: u64,
}

/// The latest boot of a device.
#[derive(Serialize, ToSchema)]
#[schema(as = Boot)]
pub(in crate::api) struct BootView {
    /// In order of time.
    marks: Vec<MarkView>,
    /// The last thing that was refused or failed, in words.
    fault: Option<String>,
}

impl From<Boot> for BootView {
    fn from(boot: Boot) -> Self {
        let marks = boot.marks.into_iter().map(|m| MarkView { step: m.step, at: m.at, since_start_ms: m.since_start_ms }).collect();
        Self { marks, fault: boot.fault }
    }
}

/// How far a device's latest boot is
#[utoipa::path(get, path = "/v1/devices/{mac}/timeline", tag = "devices",
    responses((status = 200, description = "Its steps", body = BootView)))]
async fn get_timeline(State(api): State<Api>, path: Segments) -> Result<Json<BootView>, Problem> {
    let mac = path.read("mac")?;
    let none = || Problem::new(404, "no_boot_seen", format!("nothing was seen of device {mac} since the appliance started; switch it on"));
    api.shared.timelines.of(mac).map(|boot| Json(boot.into())).ok_or_else(none)
}

/// An unknown machine that reported itself in vain.
#[derive(Serialize, ToSchema)]
#[schema(as = Knock)]
struct KnockView {
    #[schema(value_type = MacAddress)]
    mac: MacAddr,
    uuid: String,
    /// The first one that it reported.
    public_key: Option<String>,
    /// What people compare, and name when they admit it.
    public_key_hash: Option<String>,
    /// Another key was reported for this MAC since.
    key_changed: bool,
    #[schema(value_type = FingerprintView)]
    fingerprint: FingerprintView,
    #[schema(value_type = Time)]
    first_seen: Wall,
    #[schema(value_type = Time)]
    last_seen: Wall,
    reports: u64,
}

impl From<Knock> for KnockView {
    fn from(knock: Knock) -> Self {
        let Knock { mac, uuid, public_key, public_key_hash, key_changed, fingerprint, first_seen, last_seen, reports } = knock;
        let fingerprint = fingerprint.into();
        Self { mac, uuid, public_key, public_key_hash, key_changed, fingerprint, first_seen, last_seen, reports }
    }
}

#[derive(Serialize, ToSchema)]
struct KnockList {
    /// The latest first; bounded.
    knocking: Vec<KnockView>,
}

/// List unknown machines that ask to be let in
#[utoipa::path(get, path = "/v1/knocking", tag = "devices", responses((status = 200, description = "The latest first", body = KnockList)))]
async fn list_knocking(State(api): State<Api>) -> Json<KnockList> {
    Json(KnockList { knocking: api.shared.ledger.knocking().list().into_iter().map(Into::into).collect() })
}
