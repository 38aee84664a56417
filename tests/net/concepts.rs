//! Statements of the concept page "Devices, Workers and System Disks" that only the whole daemon shows: what is kept where, and
//! what is a projection of what. Ids as in the project's checklist.

use crate::crash::text;
use crate::net::{Net, wait_for};
use anyhow::{Context, Result, ensure};
use kurrent_harness::api::Api;
use serde_json::{Value, json};
use std::fs;

const A: &str = "52:54:00:00:0d:01";
const B: &str = "52:54:00:00:0d:02";

fn ask(api: &Api, method: &str, path: &str, body: &Value) -> Result<Value> {
    api.ask(method, path, Some(body))
}

/// Two devices; Worker `w1` with a disk and device A.
fn furnished(net: &Net) -> Result<Api> {
    let mut daemon = net.start()?;
    let api = net.up(&mut daemon)?.context("the daemon ended by itself")?;
    net.keep(daemon);
    for mac in [A, B] {
        crate::net::register(&api, mac)?;
    }
    ask(&api, "POST", "/v1/workers", &json!({ "worker_id": "w1" }))?;
    ask(&api, "POST", "/v1/workers/w1/disks", &json!({ "os": "data", "os_version": "1", "size_bytes": 1 << 20 }))?;
    ask(&api, "POST", &format!("/v1/devices/{A}/bind"), &json!({ "worker_id": "w1" }))?;
    Ok(api)
}

fn device(api: &Api, mac: &str) -> Result<Value> {
    api.get(&format!("/v1/devices/{mac}"))
}

fn disks(worker: &Value) -> Vec<Value> {
    worker.get("disks").and_then(Value::as_array).cloned().unwrap_or_default()
}

/// Waits until a ledger file holds a text: the files follow what was acknowledged.
fn wait_for_file(net: &Net, name: &str, holds: &str) -> Result<String> {
    let read = || fs::read_to_string(net.path("state").join(name)).unwrap_or_default();
    wait_for(&format!("{holds:?} in {name}"), || read().contains(holds))?;
    Ok(read())
}

/// Replaces a file as an editor does.
fn edit(net: &Net, name: &str, change: impl FnOnce(String) -> String) -> Result<()> {
    let path = net.path("state").join(name);
    let edited = change(fs::read_to_string(&path)?);
    let beside = net.path("state").join(format!("{name}~"));
    fs::write(&beside, edited)?;
    fs::rename(beside, path).context("put the edited file in place")
}

/// What stands before a device's record, and from there on. YAML quotes some MACs and others not.
fn from_record<'a>(ledger: &'a str, mac: &str) -> (&'a str, &'a str) {
    let at = ledger
        .match_indices("- mac: ")
        .find(|(at, _)| ledger.get(*at..).is_some_and(|l| l.lines().next().is_some_and(|l| l.contains(mac))));
    ledger.split_at(at.map_or(ledger.len(), |(at, _)| at))
}

/// The text without its `generation:` line.
fn without_generation(text: &str) -> String {
    text.lines().filter(|l| !l.starts_with("generation:")).collect::<Vec<_>>().join("\n")
}

#[test]
fn k01_device_worker_and_disk_are_replaced_separately() -> Result<()> {
    let net = Net::new("k01")?;
    let api = furnished(&net)?;
    let before = disks(&api.get("/v1/workers/w1")?);
    // Another machine: same identity, same disk.
    ask(&api, "POST", &format!("/v1/devices/{B}/bind"), &json!({ "worker_id": "w1", "force": true }))?;
    let worker = api.get("/v1/workers/w1")?;
    ensure!(disks(&worker) == before && text(&worker, "bound_device") == B, "{worker}");
    // Another disk: same machine, same identity.
    ask(&api, "POST", "/v1/workers/w1/disks", &json!({ "os": "data", "os_version": "2", "size_bytes": 1 << 20 }))?;
    let old = before.first().map_or("", |d| text(d, "os_tag"));
    ask(&api, "DELETE", &format!("/v1/workers/w1/disks/{old}?delete_file=true"), &json!({}))?;
    let worker = api.get("/v1/workers/w1")?;
    ensure!(text(&worker, "bound_device") == B && disks(&worker).len() == 1 && disks(&worker) != before, "{worker}");
    // Another identity: same machine.
    ask(&api, "DELETE", "/v1/workers/w1", &json!({}))?;
    ask(&api, "POST", "/v1/workers", &json!({ "worker_id": "w2" }))?;
    ask(&api, "POST", &format!("/v1/devices/{B}/bind"), &json!({ "worker_id": "w2" }))?;
    ensure!(text(&device(&api, B)?, "bound_worker_id") == "w2");
    net.passed();
    Ok(())
}

#[test]
fn k02_the_device_ledger_is_the_authority_for_devices() -> Result<()> {
    let net = Net::new("k02")?;
    let api = furnished(&net)?;
    wait_for_file(&net, "devices.yml", B)?;
    wait_for_file(&net, "devices.yml", "state: bound")?;
    // Whoever edits it changes what is so.
    edit(&net, "devices.yml", |ledger| {
        let (head, record) = from_record(&ledger, B);
        format!("{head}{}", record.replacen("\n", "\n  note: by hand\n", 1))
    })?;
    wait_for("the edit is taken up", || device(&api, B).is_ok_and(|d| text(&d, "note") == "by hand"))?;
    net.passed();
    Ok(())
}

#[test]
fn k03_the_worker_ledger_is_the_authority_for_workers() -> Result<()> {
    let net = Net::new("k03")?;
    let api = furnished(&net)?;
    wait_for_file(&net, "workers.yml", "worker_id: w1")?;
    edit(&net, "workers.yml", |text| format!("{text}\n- worker_id: by-hand\n  created_at: \"2026-11-30T00:00:00Z\"\n"))?;
    wait_for("the edit is taken up", || api.get("/v1/workers/by-hand").is_ok())?;
    net.passed();
    Ok(())
}

#[test]
fn k04_a_disk_is_its_file_and_its_record_under_one_nqn() -> Result<()> {
    let net = Net::new("k04")?;
    let api = furnished(&net)?;
    let disk = disks(&api.get("/v1/workers/w1")?).pop().context("a disk")?;
    let tag = text(&disk, "os_tag");
    ensure!(text(&disk, "nqn") == format!("nqn.2026-11.io.kurrent:w1.data.{tag}"), "{disk}");
    ensure!(text(&disk, "filename") == format!("w1.data.{tag}.img"), "{disk}");
    ensure!(net.path("disks").join(text(&disk, "filename")).metadata()?.len() == 1 << 20);
    let ledger = wait_for_file(&net, "workers.yml", tag)?;
    ensure!(ledger.contains(text(&disk, "nqn")), "{ledger}");
    // The file alone is no disk.
    ask(&api, "DELETE", &format!("/v1/workers/w1/disks/{tag}"), &json!({}))?;
    ensure!(disks(&api.get("/v1/workers/w1")?).is_empty());
    let left = api.get("/v1/leftovers")?;
    ensure!(left.to_string().contains(text(&disk, "filename")), "{left}");
    net.passed();
    Ok(())
}

#[test]
fn k27_the_binding_is_in_the_device_ledger_and_all_else_is_a_projection() -> Result<()> {
    let net = Net::new("k27")?;
    let api = furnished(&net)?;
    wait_for_file(&net, "devices.yml", "bound_worker_id: w1")?;
    let workers = wait_for_file(&net, "workers.yml", "worker_id: w1")?;
    ensure!(!workers.contains(A) && !workers.contains("bound"), "the Worker ledger knows of a device: {workers}");
    // Moved by hand in the one place where it is: everything else follows.
    edit(&net, "devices.yml", |ledger| {
        let moved = ledger.replace("  state: bound\n  bound_worker_id: w1\n", "  state: pooled\n");
        let (head, record) = from_record(&moved, B);
        format!("{head}{}", record.replacen("  state: pooled\n", "  state: bound\n  bound_worker_id: w1\n", 1))
    })?;
    wait_for("the Worker's answer follows", || api.get("/v1/workers/w1").is_ok_and(|w| text(&w, "bound_device") == B))?;
    ensure!(text(&device(&api, A)?, "state") == "pooled");
    let after = wait_for_file(&net, "workers.yml", "worker_id: w1")?;
    ensure!(without_generation(&after) == without_generation(&workers), "the Worker ledger changed: {after}");
    net.passed();
    Ok(())
}
