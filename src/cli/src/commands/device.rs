//! `kurrent device`, `kurrent explain device`.

mod explain;
mod pairs;

pub use explain::explain;

use super::batch::{self, Batch};
use crate::arguments::device::{Device, Edit, ImportFormat, List, Register};
use crate::arguments::{Look, Sure};
use crate::failure::Failure;
use crate::output::{Column, at, fields, table, text};
use crate::session::{Session, View, body, query};
use hyper::Method;
use kurrent_core::id::MacAddr;
use serde_json::{Value, json};
use std::io::Read;
use std::path::Path;

const DEVICES: View = View {
    key: "devices",
    columns: &[
        ("MAC", "mac"),
        ("STATE", "state"),
        ("WORKER", "bound_worker_id"),
        ("ADDRESS", "address"),
        ("LAST SEEN", "last_seen"),
        ("BOOT", "last_boot"),
        ("PRODUCT", "fingerprint.product"),
        ("LABELS", "labels"),
        ("NOTE", "note"),
    ],
    none: "no devices; open the window and start a machine, or register one",
};
const KNOCKING: View = View {
    key: "knocking",
    columns: &[
        ("MAC", "mac"),
        ("LAST SEEN", "last_seen"),
        ("REPORTS", "reports"),
        ("KEY HASH", "public_key_hash"),
        ("KEY CHANGED", "key_changed"),
        ("PRODUCT", "fingerprint.product"),
        ("SERIAL", "fingerprint.serial"),
    ],
    none: "nobody is knocking",
};
const MARKS: &[Column] = &[("STEP", "step"), ("AT", "at"), ("MS", "since_start_ms")];
const IMPORTED: &[Column] = &[("LINE", "line"), ("MAC", "mac"), ("CODE", "code"), ("DETAIL", "detail")];
const BIND: Batch = Batch {
    path: "/v1/devices/bind",
    columns: &[
        ("MAC", "mac"),
        ("WORKER", "worker_id"),
        ("DISPLACES", "displaces"),
        ("LEAVES", "leaves"),
        ("CODE", "code"),
        ("DETAIL", "detail"),
    ],
    question: "Bind these? What is displaced or leaves its Worker is cut off.",
};
/// More than an import of 10,000 devices.
const MAX_FILE_OCTETS: u64 = 16 * 1024 * 1024;

/// Carries it out.
pub async fn run(session: &Session, command: Device) -> Result<(), Failure> {
    let order = async |mac: MacAddr, verb: &str, body, tag| session.client.post_if(&format!("{}/{verb}", path(mac)), body, tag).await;
    let answer = match command {
        Device::List(wanted) => return list(session, wanted).await,
        Device::Knocking(look) => return session.list("/v1/knocking".into(), KNOCKING, all(look)).await,
        Device::Get { device, look } => return session.one(path(device.mac), look, fields).await,
        Device::Timeline { device, look } => return session.one(format!("{}/timeline", path(device.mac)), look, timeline).await,
        Device::Explain { device, look } => return explain(session, device.mac, look).await,
        Device::Import { file, format, dry_run } => return import(session, &file, format, dry_run).await,
        Device::BindBatch { file, force, dry_run, sure } => return bind_batch(session, &file, force, dry_run, sure).await,
        Device::Purge { device, sure } => return purge(session, device.mac, sure).await,
        Device::Register(wanted) => register(session, wanted).await?,
        Device::Admit { device, public_key_hash, note } => admit(session, device.mac, public_key_hash, note).await?,
        Device::Bind { device, worker, force, sure } => {
            let question = |d: &Value| format!("{} is to boot as {worker}; whatever stands in the way is cut off. Do it?", named(d));
            let tag = if force { session.ask(sure, &path(device.mac), question).await? } else { None };
            order(device.mac, "bind", json!({ "worker_id": worker.as_str(), "force": force }), tag).await?
        }
        Device::Unbind { device, sure } => {
            let tag = session.ask(sure, &path(device.mac), |d| format!("Unbind {}? If it runs, it loses its disk.", named(d))).await?;
            order(device.mac, "unbind", json!({}), tag).await?
        }
        Device::Revoke { device, sure } => {
            let tag = session.ask(sure, &path(device.mac), |d| format!("Shut out {}? If it runs, it loses its disk.", named(d))).await?;
            order(device.mac, "revoke", json!({}), tag).await?
        }
        Device::Rekey { device, minutes, replaced } => {
            order(device.mac, "rekey", json!({ "minutes": minutes, "replaced": replaced }), None).await?
        }
        Device::Label { device, labels } => {
            let body = json!({ "labels": map(labels) });
            session.client.change(Method::PUT, &format!("{}/labels", path(device.mac)), Some(body), None).await?
        }
        Device::Edit(wanted) => edit(session, wanted).await?,
    };
    changed(session, &answer)
}

fn path(mac: MacAddr) -> String {
    format!("/v1/devices/{mac}")
}

fn all(look: Look) -> crate::arguments::Listing {
    crate::arguments::Listing { limit: None, look }
}

fn map(labels: Vec<(String, String)>) -> Value {
    labels.into_iter().map(|(k, v)| (k, Value::from(v))).collect::<serde_json::Map<_, _>>().into()
}

/// How a question names a device.
fn named(device: &Value) -> String {
    let worker = at(device, "bound_worker_id").as_str().map(|w| format!(", bound to {}", crate::output::clean(w))).unwrap_or_default();
    let product = at(device, "fingerprint.product").as_str().filter(|p| !p.is_empty());
    let product = product.map(|p| format!(", {}", crate::output::clean(p))).unwrap_or_default();
    format!("{} ({}{worker}{product})", text(at(device, "mac")), text(at(device, "state")))
}

/// Says how a device is after a change.
fn changed(session: &Session, answer: &Value) -> Result<(), Failure> {
    session.show(answer, |d| {
        let bound = at(d, "bound_worker_id").as_str().map(|w| format!(" to {}", crate::output::clean(w))).unwrap_or_default();
        format!("{} is {}{bound}", text(at(d, "mac")), text(at(d, "state")))
    })
}

async fn list(session: &Session, wanted: List) -> Result<(), Failure> {
    let mut pairs = vec![("state", wanted.state), ("worker", wanted.worker.map(|w| w.to_string())), ("source", wanted.source)];
    pairs.extend(wanted.label.into_iter().map(|label| ("label", Some(label))));
    session.list(query("/v1/devices", &pairs), DEVICES, wanted.listing).await
}

async fn register(session: &Session, wanted: Register) -> Result<Value, Failure> {
    let mac = wanted.device.mac;
    if wanted.admit {
        return admit(session, mac, wanted.public_key_hash, Some(wanted.note)).await;
    }
    let order = body([
        ("mac", Some(mac.to_string().into())),
        ("public_key", wanted.public_key.map(Value::from)),
        ("keyless_allowed", Some(wanted.keyless_allowed.into())),
        ("note", Some(wanted.note.into())),
        ("labels", Some(wanted.labels).filter(|l| !l.is_empty()).map(map)),
    ]);
    session.client.post("/v1/devices", order).await
}

async fn admit(session: &Session, mac: MacAddr, hash: Option<String>, note: Option<String>) -> Result<Value, Failure> {
    let note = note.filter(|n| !n.is_empty());
    let order = body([("public_key_hash", hash.map(Value::from)), ("note", note.map(Value::from))]);
    session.client.post(&format!("{}/admit", path(mac)), order).await
}

async fn edit(session: &Session, wanted: Edit) -> Result<Value, Failure> {
    let changes = wanted.changes;
    let loader = if changes.no_loader { Some(Value::Null) } else { changes.loader.map(Value::from) };
    let address = if changes.no_address { Some(Value::Null) } else { changes.address.map(|a| a.to_string().into()) };
    let order = body([
        ("note", changes.note.map(Value::from)),
        ("keyless_allowed", changes.keyless_allowed.map(Value::from)),
        ("loader", loader),
        ("reserved_address", address),
    ]);
    session.client.change(Method::PATCH, &path(wanted.device.mac), Some(order), None).await
}

async fn purge(session: &Session, mac: MacAddr, sure: Sure) -> Result<(), Failure> {
    let tag = session.ask(sure, &path(mac), |d| format!("Forget {} and its key?", named(d))).await?;
    session.client.change(Method::DELETE, &path(mac), None, tag).await?;
    session.show(&json!({ "purged": mac.to_string() }), |_| format!("{mac} is forgotten"))
}

/// A file, or stdin.
fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |e: std::io::Error| Failure::local(format!("{}: {e}", file.display()));
    let mut octets = Vec::new();
    let read = if file == Path::new("-") {
        std::io::stdin().take(MAX_FILE_OCTETS + 1).read_to_end(&mut octets)
    } else {
        std::fs::File::open(file).map_err(failed)?.take(MAX_FILE_OCTETS + 1).read_to_end(&mut octets)
    };
    match u64::try_from(read.map_err(failed)?) {
        Ok(length) if length <= MAX_FILE_OCTETS => Ok(octets),
        _ => Err(Failure::local(format!("{}: more than {MAX_FILE_OCTETS} octets; cut it into several files", file.display()))),
    }
}

async fn import(session: &Session, file: &Path, format: Option<ImportFormat>, dry_run: bool) -> Result<(), Failure> {
    let by_name = match file.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase).as_deref() {
        Some("csv") => Some(ImportFormat::Csv),
        Some("yaml" | "yml") => Some(ImportFormat::Yaml),
        Some("json") => Some(ImportFormat::Json),
        _ => None,
    };
    let format = format.or(by_name);
    let format = format.ok_or_else(|| Failure::local(format!("{}: say what it is: --format csv, yaml or json", file.display())))?;
    let kind = match format {
        ImportFormat::Csv => "text/csv",
        ImportFormat::Yaml => "application/yaml",
        ImportFormat::Json => "application/json",
    };
    let path = query("/v1/devices/import", &[("dry_run", dry_run.then(|| "true".to_owned()))]);
    let answer = session.client.post_document(&path, kind, read(file)?).await?;
    let count = |key: &str| at(&answer, key).as_array().map_or(0, Vec::len);
    let failed = count("failed");
    session.show(&answer, |answer| {
        let would = if dry_run { "would be " } else { "" };
        let sum = format!("{} {would}created, {} skipped, {failed} failed", count("created"), count("skipped"));
        let lists = ["skipped", "failed"].into_iter().filter(|key| count(key) > 0);
        let lists = lists.map(|key| format!("\n{key}:\n{}", table(answer, key, IMPORTED, "")));
        std::iter::once(sum).chain(lists).collect::<Vec<_>>().join("\n")
    })?;
    match failed {
        0 => Ok(()),
        _ => Err(Failure::InPart(format!("{failed} devices can not be imported; correct their lines, and import the file again"))),
    }
}

async fn bind_batch(session: &Session, file: &Path, force: bool, dry_run: bool, sure: Sure) -> Result<(), Failure> {
    let pairs = pairs::parse(&read(file)?).map_err(|e| Failure::local(format!("{}:{e}", file.display())))?;
    let items: Vec<Value> = pairs.iter().map(|(mac, worker)| json!({ "mac": mac.to_string(), "worker_id": worker.as_str() })).collect();
    let count = items.len();
    match batch::run(session, BIND, json!({ "items": items, "force": force }), dry_run, sure).await? {
        None => Ok(()),
        Some(answer) => session.show(&answer, |_| format!("{count} devices are bound")),
    }
}

fn timeline(boot: &Value) -> String {
    let marks = table(boot, "marks", MARKS, "no step seen");
    match at(boot, "fault") {
        Value::Null => marks,
        fault => format!("{marks}\nstopped: {}", text(fault)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_is_a_table_of_steps_and_says_where_it_stopped() {
        let mark = |step, at, ms| json!({ "step": step, "at": at, "since_start_ms": ms });
        let marks = [mark("dhcp", "2026-11-30T10:00:00.123456Z", 0), mark("script", "2026-11-30T10:00:07.5Z", 7377)];
        let table = "STEP    AT                    MS\n\
                     dhcp    2026-11-30T10:00:00Z  0\n\
                     script  2026-11-30T10:00:07Z  7377";
        assert_eq!(timeline(&json!({ "marks": marks, "fault": null })), table);
        assert_eq!(timeline(&json!({ "marks": marks, "fault": "no\u{1b} key" })), format!("{table}\nstopped: no\\u{{1b}} key"));
        assert_eq!(timeline(&json!({ "marks": [], "fault": "no key" })), "no step seen\nstopped: no key");
    }

    #[test]
    fn a_question_names_the_device_so_that_a_person_knows_it() {
        let device =
            json!({ "mac": "52:54:00:00:00:01", "state": "bound", "bound_worker_id": "w1", "fingerprint": { "product": "X\u{1b}1" } });
        assert_eq!(named(&device), r"52:54:00:00:00:01 (bound, bound to w1, X\u{1b}1)");
    }
}
