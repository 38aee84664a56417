//! Why does this machine not boot? Gathers what is known of a MAC for `core::explain`, which answers.

use super::Api;
use super::body::Segments;
use super::names::{MacAddress, Time};
use super::problem::Problem;
use crate::audit::Filter;
use axum::Json;
use axum::extract::State;
use kurrent_core::explain::{self, Evidence, Facts, Finding, Knocked, Severity, TargetFacts};
use kurrent_core::id::{MacAddr, host_nqn};
use kurrent_core::ledger::Ledger;
use kurrent_core::time::Wall;
use serde::Serialize;
use std::net::Ipv4Addr;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Lines of the audit that are looked at.
const AUDIT_LINES: usize = 5;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(explain_device))
}

#[derive(Serialize, ToSchema)]
struct Explanation {
    #[schema(value_type = MacAddress)]
    mac: MacAddr,
    /// The first finding in one line.
    summary: String,
    /// The most important first.
    findings: Vec<FindingView>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Finding)]
struct FindingView {
    /// Stable, for programs.
    code: &'static str,
    #[schema(value_type = SeverityWord)]
    severity: Severity,
    /// What is so.
    what: String,
    /// What to do; empty when there is nothing.
    next_step: &'static str,
    evidence: Vec<EvidenceView>,
}

/// How much a finding matters.
#[derive(ToSchema)]
#[schema(as = Severity, rename_all = "lowercase")]
#[expect(dead_code, reason = "describes core's Severity")]
enum SeverityWord {
    Blocking,
    Warning,
    Fine,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Evidence)]
struct EvidenceView {
    what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Time>, nullable = false)]
    at: Option<Wall>,
}

impl From<Finding> for FindingView {
    fn from(finding: Finding) -> Self {
        let Finding { code, severity, what, next_step, evidence } = finding;
        let evidence = evidence.into_iter().map(|Evidence { what, at }| EvidenceView { what, at }).collect();
        Self { code, severity, what, next_step, evidence }
    }
}

/// Explain why a machine boots or does not
///
/// Also for machines that are not in the ledger.
#[utoipa::path(get, path = "/v1/devices/{mac}/explain", tag = "devices",
    responses((status = 200, description = "Findings", body = Explanation)))]
async fn explain_device(State(api): State<Api>, path: Segments) -> Result<Json<Explanation>, Problem> {
    let mac: MacAddr = path.read("mac")?;
    let shared = &api.shared;
    let ledger = shared.ledger.snapshot();
    let audit = shared.audit.clone();
    let filter = Filter { device: Some(mac), limit: Some(AUDIT_LINES), ..Filter::default() };
    let read = tokio::task::spawn_blocking(move || audit.read(&filter)).await;
    // What can not be read is told by the audit's own fault; the rest is explained all the same.
    let entries = read.ok().and_then(Result::ok).map(|page| page.entries).unwrap_or_default();
    let line = |e: &crate::audit::Entry| Evidence { what: format!("{} by {}: {}", e.verb, e.actor, e.result), at: Some(e.at) };
    let address = shared.address_of(mac);
    let knocked = shared.ledger.knocking().of(mac).map(|k| Knocked {
        has_key: k.public_key.is_some(),
        key_changed: k.key_changed,
        last_seen: k.last_seen,
    });
    let bound = ledger.device(mac).and_then(|d| Some((d.bound_worker_id.clone()?, d.epoch)));
    let findings = explain::explain(&Facts {
        ledger: &ledger,
        mac,
        knocked,
        address,
        boot: shared.timelines.of(mac).as_ref(),
        sightings: &shared.timelines.sightings(mac),
        enforcement: ledger.enforcement(shared.config.enforcement),
        served: !shared.ledger.unreadable(),
        target: &target(&api, &ledger, mac, address),
        has_credentials: bound.is_some_and(|(worker, epoch)| shared.credentials.of(&worker, epoch, mac).is_some()),
        dhcp_served: shared.config.dhcp.mode == kurrent_core::config::DhcpMode::Server,
        audit: &entries.iter().map(line).collect::<Vec<_>>(),
        now: kurrent_sys::clock::now().wall,
    });
    let summary = findings.first().map(|f| f.what.clone()).unwrap_or_default();
    Ok(Json(Explanation { mac, summary, findings: findings.into_iter().map(Into::into).collect() }))
}

fn target(api: &Api, ledger: &Ledger, mac: MacAddr, address: Option<Ipv4Addr>) -> TargetFacts {
    let seen = api.shared.target.observation();
    let disk = ledger.worker_of(mac).and_then(|w| ledger.boot_disk(w).map(|d| (w, d)));
    let host = ledger
        .device(mac)
        .zip(disk)
        .map(|(d, (w, disk))| (disk.nqn.to_string(), host_nqn(&api.shared.config.agent.nqn_base, &w.worker_id, d.epoch).to_string()));
    // Where its boots were granted to: without our DHCP nobody has a lease.
    let record = ledger.device(mac).and_then(|d| api.shared.credentials.of(d.bound_worker_id.as_ref()?, d.epoch, mac));
    let granted = record.map(|r| r.addresses).unwrap_or_default();
    TargetFacts {
        looked: seen.looked,
        exported: host.is_some_and(|(nqn, host)| seen.export(&nqn).is_some_and(|e| e.host == host)),
        connected: seen.sessions.iter().any(|s| Some(s.address) == address || granted.contains(&s.address)),
        faults: seen.faults.clone(),
    }
}
