//! System disks with the appliance's own file system and the kernel's own target: cloned, enlarged under a running worker, kept and
//! adopted by another Worker.

use crate::shared::{self, hostname};
use anyhow::{Context, Result, ensure};
use kurrent_harness::appliance::Appliance;
use kurrent_harness::lab::Lab;
use kurrent_harness::master::MASTER_NAME;
use kurrent_harness::worker::{self, LOGIN_WITHIN, SHELL_WITHIN};
use serde_json::{Value, json};

const GROWS_BY: u64 = 256 << 20;
/// What a clone may take of the file system for itself: its share of the tree, and what workers write meanwhile.
const CLONE_TAKES: u64 = 32 << 20;

#[test]
fn a_disk_that_grows_under_a_running_worker_is_larger_there() -> Result<()> {
    shared::with(|shared| {
        let (lab, served) = shared.worker(2)?;
        let disk = only_disk(lab, hostname(2))?;
        let (tag, was) = (text(&disk, "os_tag")?, disk.get("size_bytes").and_then(Value::as_u64).context("a size")?);
        let size = was + GROWS_BY;
        let console = &mut served.machine.console;
        let prepared = "dd if=/dev/urandom of=/root/kept bs=1M count=4 2>/dev/null && sha256sum /root/kept >/root/kept.sum && sync";
        console.shell(prepared, SHELL_WITHIN)?;
        lab.appliance()?.kurrent(&["disk", "resize", hostname(2), tag, &size.to_string()])?;
        // Nothing is done to the worker: the kernel's target tells it, by an event for its namespace.
        let sectors = size / 512;
        let larger = format!(
            "n=0; until [ $(cat /sys/class/block/nvme0n1/size) = {sectors} ]; do n=$((n+1)); [ $n -lt 250 ] || exit 1; sleep 0.2; done"
        );
        console.shell(&format!("( {larger} )"), SHELL_WITHIN).context("the worker was not told that its disk is larger")?;
        let last = size / 4096 - 1;
        let writes = format!(
            "echo grown | dd of=/dev/nvme0n1 bs=4096 seek={last} conv=sync oflag=direct 2>/dev/null; \
             dd if=/dev/nvme0n1 bs=4096 skip={last} count=1 iflag=direct 2>/dev/null | head -c 5"
        );
        let read = console.shell(&writes, SHELL_WITHIN)?;
        ensure!(read.trim() == "grown", "the new room holds {read:?}");
        console.shell("echo 3 >/proc/sys/vm/drop_caches; sha256sum -c --status /root/kept.sum", SHELL_WITHIN)?;
        let now = only_disk(lab, hostname(2))?;
        ensure!(now.get("size_bytes") == Some(&json!(size)) && now.get("fault").is_none_or(Value::is_null), "{now}");
        Ok(())
    })
}

#[test]
fn k24_a_clone_on_the_appliances_file_system_is_there_with_the_answer_and_takes_no_room() -> Result<()> {
    shared::with(|shared| {
        let api = &shared.lab.appliance()?.api;
        api.ask("POST", "/v1/workers", Some(&json!({ "worker_id": "clone" })))?;
        let free = || -> Result<u64> {
            let node = api.get("/v1/agents/local")?;
            node.get("free_bytes").and_then(Value::as_u64).with_context(|| format!("no free bytes in {node}"))
        };
        let (jobs, free_before) = (api.get("/v1/jobs")?, free()?);
        let order = json!({ "os": "debian", "os_version": "12", "master": MASTER_NAME });
        let answer = api.request("POST", "/v1/workers/clone/disks", Some(&order))?;
        ensure!(answer.status == 201, "{}: {}", answer.status, answer.text());
        ensure!(api.get("/v1/jobs")? == jobs, "a job has copied it");
        let took = free_before.saturating_sub(free()?);
        ensure!(took < CLONE_TAKES, "the clone took {took} bytes for itself");
        api.ask("DELETE", "/v1/workers/clone?delete_files=true", None).map(drop)
    })
}

#[test]
fn k37_k42_a_kept_disk_boots_as_the_worker_that_adopts_it() -> Result<()> {
    const OTHER: &str = "echo";
    shared::with(|shared| {
        let mut served = shared.take(2)?;
        let lab = &shared.lab;
        served.machine.console.shell("hostname >/root/was && sync", SHELL_WITHIN)?;
        let mac = worker::mac(served.machine.spec()).to_string();
        let before = only_disk(lab, hostname(2))?;
        let off = served.machine.cut_power();

        let appliance = lab.appliance()?;
        appliance.kurrent(&["worker", "create", OTHER])?;
        hand_over(appliance, hostname(2), &before, OTHER)?;
        appliance.kurrent(&["device", "bind", &mac, OTHER, "--force"])?;
        let adopted = only_disk(lab, OTHER)?;
        for identifier in ["os_tag", "nqn", "filename"] {
            ensure!(text(&before, identifier)? != text(&adopted, identifier)?, "{identifier} was kept: {adopted}");
        }
        let mut machine = lab.power_on(off)?;
        worker::wait_for_login(&mut machine, OTHER, LOGIN_WITHIN)?;
        worker::log_in(&mut machine)?;
        let was = machine.console.shell("cat /root/was", SHELL_WITHIN)?;
        ensure!(was.trim() == hostname(2), "the disk holds {was:?}");

        // As it was; the machine is switched on by whoever wants it next.
        drop(machine.cut_power());
        hand_over(appliance, OTHER, &adopted, hostname(2))?;
        appliance.kurrent(&["device", "bind", &mac, hostname(2), "--force"])?;
        appliance.kurrent(&["worker", "delete", OTHER]).map(drop)
    })
}

/// Deletes a disk, its file being kept, and adopts the file for another Worker.
fn hand_over(appliance: &Appliance, from: &str, disk: &Value, to: &str) -> Result<()> {
    let (tag, file) = (text(disk, "os_tag")?, text(disk, "filename")?);
    appliance.kurrent(&["disk", "delete", from, tag])?;
    let left = appliance.kurrent(&["leftover", "list"])?;
    ensure!(left.contains(file), "the file was not kept: {left}");
    let target = appliance.api.get("/v1/target")?.to_string();
    ensure!(!target.contains(tag), "the kernel still exports it: {target}");
    appliance.kurrent(&["disk", "adopt", to, file, "--os", "debian", "--os-version", "12"]).map(drop)
}

/// The Worker's one disk.
fn only_disk(lab: &Lab, worker: &str) -> Result<Value> {
    let answer = lab.appliance()?.api.get(&format!("/v1/workers/{worker}/disks"))?;
    let disks = answer.get("disks").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let [disk] = disks else { anyhow::bail!("{worker} has not one disk: {answer}") };
    Ok(disk.clone())
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value.get(key).and_then(Value::as_str).with_context(|| format!("no {key} in {value}"))
}
