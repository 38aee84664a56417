//! What holds after every start, seen through the API and in the disk folder.

use crate::net::Net;
use anyhow::{Context, Result, bail, ensure};
use kurrent_harness::api::Api;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// All records of a list, page by page.
pub fn all(api: &Api, what: &str) -> Result<Vec<Value>> {
    let mut records = Vec::new();
    let mut path = format!("/v1/{what}");
    loop {
        let page = api.get(&path)?;
        records.extend(page.get(what).and_then(Value::as_array).cloned().with_context(|| format!("no {what} in {page}"))?);
        let Some(next) = page.get("next").and_then(Value::as_str) else { return Ok(records) };
        path = format!("/v1/{what}?cursor={next}");
    }
}

/// A text field; empty when it is not there.
pub fn text<'a>(record: &'a Value, field: &str) -> &'a str {
    record.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// One device per Worker, one Worker per device, the default disk exists, no two disks of one system, every record's file exists;
/// and the ledgers read without the daemon, too. Files that no record names are returned.
pub fn invariants(net: &Net, api: &Api) -> Result<Vec<String>> {
    let (devices, workers) = (all(api, "devices")?, all(api, "workers")?);
    let mut holders: BTreeMap<&str, &str> = BTreeMap::new();
    for device in &devices {
        let (mac, state, worker) = (text(device, "mac"), text(device, "state"), text(device, "bound_worker_id"));
        ensure!((state == "bound") != worker.is_empty(), "{device}");
        if !worker.is_empty()
            && let Some(other) = holders.insert(worker, mac)
        {
            bail!("{other} and {mac} are both bound to {worker}");
        }
    }
    let mut files = BTreeSet::new();
    for worker in &workers {
        let id = text(worker, "worker_id");
        ensure!(holders.remove(id).unwrap_or_default() == text(worker, "bound_device"), "what {id} says of its device: {worker}");
        let disks = worker.get("disks").and_then(Value::as_array).context("disks")?;
        let systems: BTreeSet<_> = disks.iter().map(|d| (text(d, "os"), text(d, "os_version"))).collect();
        ensure!(systems.len() == disks.len(), "two disks for one system: {worker}");
        let default = text(worker, "default_disk");
        ensure!(default.is_empty() == disks.is_empty(), "disks without a default, or the other way round: {worker}");
        ensure!(default.is_empty() || disks.iter().any(|d| text(d, "os_tag") == default), "the default disk is not there: {worker}");
        for disk in disks {
            let file = net.path("disks").join(text(disk, "filename"));
            let length = file.metadata().with_context(|| format!("the file of {disk}"))?.len();
            ensure!(disk.get("size_bytes").and_then(Value::as_u64).is_some_and(|size| size <= length), "{length} bytes: {disk}");
            files.insert(text(disk, "filename").to_owned());
        }
    }
    ensure!(holders.is_empty(), "bound to Workers that are not there: {holders:?}");
    readable(net)?;
    let found = std::fs::read_dir(net.path("disks"))?.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    Ok(found.filter(|name| !files.contains(name)).collect())
}

/// The state folder passes `kurrentd state check` as it is.
pub fn readable(net: &Net) -> Result<()> {
    let check = Command::new(env!("CARGO_BIN_EXE_kurrentd")).args(["state", "check", "--state-dir"]).arg(net.path("state")).output()?;
    ensure!(check.status.success(), "state check: {}{}", String::from_utf8_lossy(&check.stdout), String::from_utf8_lossy(&check.stderr));
    Ok(())
}
