//! Many devices from a file: CSV, YAML or JSON. Each line by itself: what is there is skipped, what is wrong is told, the rest is
//! registered.

use super::super::Api;
use super::super::body::{self, Query};
use super::super::names::{Address, Labelling, MacAddress, Note, PublicKey};
use super::super::problem::Problem;
use super::rows::{self, Row};
use super::{checked_key, checked_reservation};
use crate::api::guard::actor;
use axum::Json;
use axum::extract::{Request, State};
use kurrent_core::config::Config;
use kurrent_core::id::MacAddr;
use kurrent_core::ledger::plan::{self, Import};
use kurrent_core::ledger::{Change, Ledger, Rejected};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(import_devices))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Options {
    /// Only show what would be done.
    #[serde(default)]
    #[param(required = false)]
    dry_run: bool,
}

/// One device of a file.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "describes rows::Row")]
struct ImportRow {
    #[schema(value_type = MacAddress)]
    mac: String,
    /// An empty one is none.
    #[schema(value_type = Option<PublicKey>)]
    public_key: Option<String>,
    #[schema(required = false)]
    keyless_allowed: bool,
    #[schema(value_type = Note, required = false)]
    note: String,
    #[schema(value_type = Labelling, required = false)]
    labels: BTreeMap<String, String>,
    /// The address that DHCP gives to it and to nobody else; an empty one is none.
    #[schema(value_type = Option<Address>)]
    address: Option<String>,
}

/// A device that is new.
#[derive(Serialize, ToSchema)]
struct Created {
    line: u64,
    #[schema(value_type = MacAddress)]
    mac: MacAddr,
}

/// A line that changed nothing.
#[derive(Serialize, ToSchema)]
struct NotCreated {
    line: u64,
    /// As written.
    mac: String,
    /// Stable.
    code: String,
    /// Why, and what to do.
    detail: String,
}

/// What became of each line.
#[derive(Serialize, ToSchema)]
struct Imported {
    created: Vec<Created>,
    /// In the ledger already.
    skipped: Vec<NotCreated>,
    failed: Vec<NotCreated>,
    /// Nothing was changed: this is what would be.
    dry_run: bool,
}

/// Import devices
///
/// CSV has a header line of `mac`, `public_key`, `keyless_allowed`, `note`, `labels` (`key=value` with `;` between) and `address` (a
/// reservation), of which only `mac` is needed; YAML and JSON are a list of the same, or `devices` with that list.
#[utoipa::path(post, path = "/v1/devices/import", tag = "devices", params(Options),
    request_body(content((Vec<ImportRow> = "application/json"), (String = "text/csv"), (Vec<ImportRow> = "application/yaml"))),
    responses((status = 200, description = "What became of each line", body = Imported)))]
async fn import_devices(State(api): State<Api>, Query(options): Query<Options>, request: Request) -> Result<Json<Imported>, Problem> {
    let kind = body::media_type(request.headers());
    let octets = body::octets("/v1/devices/import", request.into_body()).await?;
    let (snapshot, shared) = (api.shared.ledger.snapshot(), api.shared.clone());
    // Thousands of rows take a while, and machines that boot shall not wait for them.
    let read = tokio::task::spawn_blocking(move || planned(kind.as_deref(), &octets, &snapshot, &shared.config, options.dry_run));
    let (mut imported, waiting) = read.await.map_err(|_| super::super::problem::of_panic())??;
    register_all(&api, waiting, &mut imported).await;
    Ok(Json(imported))
}

/// A device to be registered, with its line.
type Waiting = (u64, MacAddr, Change);

/// What becomes of each row of a file, and what is to be done.
fn planned(
    kind: Option<&str>,
    octets: &[u8],
    ledger: &Ledger,
    config: &Config,
    dry_run: bool,
) -> Result<(Imported, Vec<Waiting>), Problem> {
    let rows = match kind {
        Some("text/csv") => rows::csv(octets),
        Some("application/json") => rows::json(octets),
        Some("application/yaml" | "application/x-yaml" | "text/yaml") => rows::yaml(octets),
        _ => {
            return Err(Problem::new(
                415,
                "not_importable",
                "send text/csv, application/yaml or application/json, and say which in Content-Type",
            ));
        }
    };
    let mut imported = Imported { created: Vec::new(), skipped: Vec::new(), failed: Vec::new(), dry_run };
    let (mut changes, mut from) = (Vec::new(), Vec::new());
    for Row { line, mac, change } in rows? {
        let checked = change.and_then(|change| match &change {
            Change::Register { public_key, address, .. } => {
                checked_key(public_key.as_deref()).and_then(|()| checked_reservation(config, *address)).map(|()| change)
            }
            _ => Ok(change),
        });
        match checked {
            Ok(change) => {
                changes.push(change);
                from.push((line, mac));
            }
            Err(problem) => {
                imported.failed.push(NotCreated { line, mac, code: problem.code().into(), detail: problem.detail().into() });
            }
        }
    }
    // Preview and execution refuse the same.
    let plan = plan::register(ledger, &changes, kurrent_sys::clock::now());
    let mut waiting = Vec::new();
    for (((line, written), change), planned) in from.into_iter().zip(changes).zip(plan) {
        let not = |r: Rejected| NotCreated { line, mac: written.clone(), code: r.code.into(), detail: r.detail };
        match planned {
            Import::Known(why) => imported.skipped.push(not(why)),
            Import::Refused(why) => imported.failed.push(not(why)),
            Import::New(mac) if dry_run => imported.created.push(Created { line, mac }),
            Import::New(mac) => waiting.push((line, mac, change)),
        }
    }
    imported.failed.sort_by_key(|f| f.line);
    Ok((imported, waiting))
}

/// Changes that are asked for together are written together.
const TOGETHER: usize = 256;

async fn register_all(api: &Api, waiting: Vec<Waiting>, imported: &mut Imported) {
    let mut waiting = waiting.into_iter().peekable();
    while waiting.peek().is_some() {
        let group: Vec<_> = waiting.by_ref().take(TOGETHER).collect();
        let asked = group.into_iter().map(async |(line, mac, change)| (line, mac, api.shared.ledger.submit(change, &actor()).await));
        for (line, mac, result) in futures_util::future::join_all(asked).await {
            match result.map_err(Problem::from) {
                Ok(_) => imported.created.push(Created { line, mac }),
                Err(problem) => {
                    let not = NotCreated { line, mac: mac.to_string(), code: problem.code().into(), detail: problem.detail().into() };
                    let list = if problem.code() == "device_exists" { &mut imported.skipped } else { &mut imported.failed };
                    list.push(not);
                }
            }
        }
    }
}
