//! Status, settings, leases, audit, target.

use super::body::{Body, query};
use super::problem::Problem;
use super::{ACTOR, Api};
use crate::audit::{Entry, Filter};
use crate::reconcile::Observation;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use kurrent_core::id::MacAddr;
use kurrent_core::ledger::{Change, DeviceState, Ledger};
use kurrent_core::time::Wall;
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;

/// A list under the name of what it holds (`{"devices": […]}`): an object, so that other fields can join it.
pub(super) struct List<T>(pub(super) &'static str, pub(super) Vec<T>);

impl<T: Serialize> Serialize for List<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map([(self.0, &self.1)])
    }
}

#[derive(Serialize)]
pub(super) struct Status {
    name: String,
    version: &'static str,
    serving: bool,
    generation: u64,
    devices: Counts,
    workers: usize,
    knocking: usize,
    registration_window: Window,
    enforcement: bool,
    api: Vec<String>,
    faults: Vec<String>,
    warnings: Vec<&'static str>,
}

#[derive(Serialize)]
struct Counts {
    pooled: usize,
    bound: usize,
    revoked: usize,
}

pub(super) async fn status(State(api): State<Api>) -> Json<Status> {
    let (shared, ledger) = (&api.shared, api.shared.ledger.snapshot());
    let count = |state| ledger.devices.values().filter(|d| d.state == state).count();
    let enforcement = shared.config.enforcement;
    let off = "security.enforcement is off: devices without a key get their disks";
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
        api: crate::status::api_addresses(shared.config.api_port),
        faults: shared.all_faults(),
        warnings: if enforcement { vec![] } else { vec![off] },
    })
}

#[derive(Serialize)]
pub(super) struct Window {
    open: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Wall>,
}

impl Window {
    fn of(ledger: &Ledger) -> Self {
        let open = ledger.window_open(kurrent_sys::clock::now().wall);
        Self { open, until: ledger.settings.registration_open_until.filter(|_| open) }
    }
}

pub(super) async fn window(State(api): State<Api>) -> Json<Window> {
    Json(Window::of(&api.shared.ledger.snapshot()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OpenWindow {
    minutes: Option<u32>,
}

/// `minutes` from now.
pub(super) fn minutes_ahead(minutes: u32) -> Result<Wall, Problem> {
    let ahead = jiff::SignedDuration::from_mins(i64::from(minutes));
    let wrong = |_| Problem::new(422, "minutes_out_of_range", "choose 1 to 60 minutes").at("minutes");
    kurrent_sys::clock::now().wall.checked_add(ahead).map_err(wrong)
}

pub(super) async fn open_window(State(api): State<Api>, Body(body): Body<OpenWindow>) -> Result<Json<Window>, Problem> {
    let minutes = body.minutes.unwrap_or(u32::from(api.shared.config.registration_minutes));
    let (_, ledger) = api.shared.ledger.submit(Change::OpenWindow { until: minutes_ahead(minutes)? }, ACTOR).await?;
    Ok(Json(Window::of(&ledger)))
}

pub(super) async fn close_window(State(api): State<Api>) -> Result<Json<Window>, Problem> {
    let (_, ledger) = api.shared.ledger.submit(Change::CloseWindow, ACTOR).await?;
    Ok(Json(Window::of(&ledger)))
}

#[derive(Serialize)]
pub(super) struct Lease {
    address: Ipv4Addr,
    mac: MacAddr,
}

pub(super) async fn leases(State(api): State<Api>) -> Json<List<Lease>> {
    let mut items: Vec<Lease> = api.shared.leases.load().iter().map(|(address, mac)| Lease { address: *address, mac: *mac }).collect();
    items.sort_by_key(|l| l.address);
    Json(List("leases", items))
}

/// One page of the audit.
#[derive(Serialize)]
pub(super) struct Operations {
    operations: Vec<Entry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

pub(super) async fn operations(State(api): State<Api>, filter: Result<Query<Filter>, QueryRejection>) -> Result<Json<Operations>, Problem> {
    let filter = query(filter)?;
    let audit = api.shared.audit.clone();
    let read = tokio::task::spawn_blocking(move || audit.read(&filter)).await;
    let page = read.map_err(|e| e.to_string()).and_then(|r| r.map_err(|e| e.to_string()));
    let failed = |e| Problem::new(500, "audit_unreadable", format!("the audit can not be read: {e}; check the data partition"));
    let page = page.map_err(failed)?;
    Ok(Json(Operations { operations: page.entries, next: page.next.map(|n| n.to_string()) }))
}

pub(super) async fn target(State(api): State<Api>) -> Json<Observation> {
    Json(Observation::clone(&api.shared.target.observation()))
}
