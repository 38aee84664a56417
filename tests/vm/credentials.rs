//! Authorisation taken away and given anew while a worker runs: by rotated credentials, and by a restored backup.

use crate::shared::{self, hostname};
use anyhow::{Context, Result, ensure};
use kurrent_harness::appliance::{Appliance, SERVES_WITHIN, wait_until};
use kurrent_harness::worker::{self, LOGIN_WITHIN};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

/// A closed connection is gone from the kernel's list, which is looked at every ten seconds: one look may meet a refused knock.
const GONE_WITHIN: Duration = Duration::from_secs(60);
/// Decision 0005: the generation leaps by this, so that nothing given out after the backup is valid again.
const LEAP: u64 = 1 << 32;

#[test]
fn rotated_credentials_cut_a_running_worker_which_boots_again_with_new_ones() -> Result<()> {
    shared::with(|shared| {
        let (lab, served) = shared.worker(2)?;
        let appliance = lab.appliance()?;
        let mac = worker::mac(served.machine.spec()).to_string();
        let explained = json_of(appliance, &["device", "explain", &mac])?;
        ensure!(explained.pointer("/findings/0/code") == Some(&json!("running")), "a worker that runs: {explained}");
        let connections = || -> Result<(u64, usize)> {
            let status = json_of(appliance, &["worker", "status", hostname(2)])?;
            let exported = status.get("exported").and_then(Value::as_array).context("exported")?.len();
            Ok((status.get("connections").and_then(Value::as_u64).context("connections")?, exported))
        };
        let (used, exported) = connections()?;
        ensure!(used >= 2 && exported == 1, "{used} connections, {exported} disks: an admin queue, an I/O queue and a disk are expected");
        worker::check_reads_disk(&mut served.machine)?;

        let before = epoch(appliance, &mac)?;
        appliance.kurrent(&["credentials", "rotate", hostname(2)])?;
        worker::check_reads_no_disk(&mut served.machine)?;
        ensure!(epoch(appliance, &mac)? > before, "the epoch is the old one");
        // It may knock with what it has: it is not let in, and nothing stays.
        wait_until("the cut worker has no connection", GONE_WITHIN, || Ok(connections()? == (0, 1)))?;

        served.machine.reset()?;
        worker::wait_for_login(&mut served.machine, hostname(2), LOGIN_WITHIN)?;
        worker::log_in(&mut served.machine)?;
        worker::check_reads_disk(&mut served.machine)?;
        Ok(())
    })
}

#[test]
fn a_restored_backup_is_served_by_the_same_process_and_cuts_who_runs_until_it_boots_again() -> Result<()> {
    const LATER: &str = "after-the-backup";
    shared::with(|shared| {
        // Whoever runs is cut: the other one is switched on again by whoever wants it next.
        if let Some(other) = shared.take_if_on(2) {
            drop(other.machine.cut_power());
        }
        let (lab, served) = shared.worker(1)?;
        let appliance = lab.appliance()?;
        let mac = worker::mac(served.machine.spec()).to_string();
        let path = |name: &str| lab.run.scratch().join(name);
        let (archive, passphrase) = (path("backup.tar"), path("passphrase"));
        fs::write(&passphrase, "of twelve letters or more\n").context("write the passphrase")?;
        let with_passphrase = |command: &str| {
            let paths = [&archive, &passphrase].map(|path| path.display().to_string());
            appliance.kurrent(&[command, &paths[0], "--passphrase-file", &paths[1]])
        };
        with_passphrase("backup")?;
        appliance.kurrent(&["worker", "create", LATER])?;
        let before = epoch(appliance, &mac)?;
        let shown = appliance.machine.console.text().len();

        with_passphrase("restore")?;
        let mut restored = None;
        wait_until("restored state", SERVES_WITHIN, || {
            // Sessions end with a restore.
            let api = appliance.api.clone().logged_in(None)?;
            let status = api.get("/v1/status")?;
            let leapt = status.get("generation").and_then(Value::as_u64).is_some_and(|generation| generation > LEAP);
            let whole = leapt && status.get("faults").and_then(Value::as_array).is_some_and(Vec::is_empty);
            restored = whole.then_some(api);
            Ok(whole)
        })?;
        ensure!(appliance.api.get("/v1/status").is_err(), "the session of before the restore is still good");
        shared.lab.use_api(restored.context("restored state")?)?;
        let (lab, served) = shared.worker(1)?;
        let appliance = lab.appliance()?;
        let later = appliance.api.request("GET", &format!("/v1/workers/{LATER}"), None)?;
        ensure!(later.status == 404, "what came after the backup is still there: {}", later.text());
        ensure!(epoch(appliance, &mac)? >= before + LEAP, "the device has no new epoch");
        ensure!(appliance.kurrent(&["audit", "--verb", "restored"])?.contains("state.before-restore-"), "the audit does not tell");
        worker::check_reads_no_disk(&mut served.machine)?;
        // PID 1 forgets what a service has told it when that service's process ends.
        let screen = appliance.machine.console.text();
        let screen = screen.get(shown..).unwrap_or_default();
        ensure!(!screen.contains("State          starting") && !screen.contains("NOT SERVING"), "the screen did not go on: {screen}");

        served.machine.reset()?;
        worker::wait_for_login(&mut served.machine, hostname(1), LOGIN_WITHIN)?;
        worker::log_in(&mut served.machine)
    })
}

/// What `kurrent` answers, for programs.
fn json_of(appliance: &Appliance, arguments: &[&str]) -> Result<Value> {
    let text = appliance.kurrent(&[arguments, &["--output", "json"]].concat())?;
    serde_json::from_str(&text).with_context(|| text)
}

/// The device's epoch.
fn epoch(appliance: &Appliance, mac: &str) -> Result<u64> {
    let device = appliance.api.get(&format!("/v1/devices/{mac}"))?;
    device.get("epoch").and_then(Value::as_u64).with_context(|| format!("no epoch in {device}"))
}
