//! Cold migration against the real daemon. This kernel has no NVMe target, so nothing is exported and no boot is granted: here is what
//! is refused, and what becomes of a migration that the daemon finds in its ledger, killed at every stage of the way back. What a
//! target is needed for runs in `kurrentd`'s `migrations::tests`.

use crate::net::{Net, wait_for};
use anyhow::{Context, Result, ensure};
use kurrent_harness::api::Api;
use serde_json::{Value, json};
use std::fs;
use std::process::Command;
use std::time::Duration;

const A: &str = "52:54:00:00:0b:01";
const B: &str = "52:54:00:00:0b:02";
const KEY: &str = "ed25519:d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
const WITHIN: Duration = Duration::from_secs(30);

/// A has `w1` with a disk; B waits in the pool.
fn furnish(api: &Api) -> Result<()> {
    for mac in [A, B] {
        api.ask("POST", "/v1/devices", Some(&json!({ "mac": mac, "public_key": KEY })))?;
    }
    api.ask("POST", "/v1/workers", Some(&json!({ "worker_id": "w1" })))?;
    api.ask("POST", "/v1/workers/w1/disks", Some(&json!({ "os": "debian", "size_bytes": 1 << 20 })))?;
    api.ask("POST", &format!("/v1/devices/{A}/bind"), Some(&json!({ "worker_id": "w1" }))).map(drop)
}

fn holder(api: &Api) -> Result<Value> {
    Ok(api.ask("GET", "/v1/workers/w1", None)?["bound_device"].clone())
}

/// The clock that the daemon reads, moved by so many seconds, as the ledger writes it.
fn wall(seconds: i64) -> Result<String> {
    let said = Command::new("date").args(["-u", "-d", &format!("{seconds} seconds"), "+%Y-%m-%dT%H:%M:%SZ"]).output()?;
    Ok(String::from_utf8(said.stdout)?.trim().to_owned())
}

/// Binds B and notes, by hand, that `w1` came from A and goes back after so many seconds.
fn note(net: &Net, api: &Api, seconds: i64) -> Result<()> {
    api.ask("POST", &format!("/v1/devices/{B}/bind"), Some(&json!({ "worker_id": "w1", "force": true })))?;
    let path = net.path("state/workers.yml");
    let devices = net.path("state/devices.yml");
    let bound =
        || fs::read_to_string(&devices).is_ok_and(|text| text.split("- mac:").any(|d| d.contains(B) && d.contains("bound_worker_id: w1")));
    // The files follow one after the other: none may have the former note.
    let bare = || fs::read_to_string(&path).is_ok_and(|text| !text.contains("migration:"));
    wait_for("the files of the ledger", || bound() && bare())?;
    let text = fs::read_to_string(&path)?;
    let line = text.lines().find(|line| line.contains("worker_id: w1")).context("the record of w1")?;
    let indent = " ".repeat(line.find("worker_id").unwrap_or_default());
    let (since, until) = (wall(-60)?, wall(seconds)?);
    let note = format!("{indent}migration:\n{indent}  from: {A}\n{indent}  to: {B}\n{indent}  since: {since}\n{indent}  until: {until}");
    fs::write(&path, text.replacen(line, &format!("{line}\n{note}"), 1)).context("edit workers.yml")
}

fn job(api: &Api, doing: &str) -> Result<String> {
    api.wait_for(&format!("a job that is {doing:?}"), "/v1/jobs", WITHIN, |v| {
        let jobs = v["jobs"].as_array()?;
        let fits = |j: &&Value| j["kind"] == "migrate" && j["doing"].as_str().is_some_and(|d| d.contains(doing));
        jobs.iter().find(fits)?["id"].as_str().map(str::to_owned)
    })
}

#[test]
fn k31_what_stands_in_the_way_is_refused_and_nothing_is_changed() -> Result<()> {
    let net = Net::new("migrate-refused")?;
    let _daemon = net.serve()?;
    let api = net.api()?;
    furnish(&api)?;
    api.wait_for("the target", "/v1/target", WITHIN, |v| (v["looked"] == true).then_some(()))?;
    let before = api.ask("GET", "/v1/workers", None)?;
    let migrate = |body: &Value| api.request("POST", "/v1/workers/w1/migrate", Some(body));
    for (body, status, code) in [
        (json!({ "to": B }), 409, "no_target"),
        (json!({ "to": A }), 409, "already_there"),
        (json!({ "to": "52:54:00:00:0b:09" }), 404, "device_not_found"),
        (json!({ "to": B, "wait_minutes": 1441 }), 422, "minutes_out_of_range"),
        (json!({ "to": B, "attest_minutes": 0 }), 422, "minutes_out_of_range"),
    ] {
        let answer = migrate(&body)?;
        ensure!(answer.status == status && answer.text().contains(code), "{body}: {}", answer.text());
    }
    let plan = migrate(&json!({ "to": B, "dry_run": true }))?.json()?;
    ensure!(plan["from"] == A && plan["refused"][0]["code"] == "no_target", "{plan}");
    ensure!(api.ask("GET", "/v1/workers", None)? == before);
    net.passed();
    Ok(())
}

#[test]
fn a_migration_in_the_ledger_survives_kills_and_goes_back_when_its_time_is_up() -> Result<()> {
    let net = Net::new("migrate-killed")?;
    let daemon = net.serve()?;
    let api = net.api()?;
    furnish(&api)?;
    note(&net, &api, 600)?;
    job(&api, "prove itself")?;
    ensure!(api.ask("GET", "/v1/workers/w1", None)?["migration"]["from"] == A);
    ensure!(api.ask("GET", &format!("/v1/devices/{A}"), None)?["migration"]["to"] == B);
    let findings = api.ask("GET", &format!("/v1/devices/{A}/explain"), None)?.to_string();
    ensure!(findings.contains("migrating_away"), "{findings}");
    let again = api.request("POST", "/v1/workers/w1/migrate", Some(&json!({ "to": A })))?;
    ensure!(again.status == 409 && again.text().contains("migration_under_way"), "{}", again.text());
    daemon.kill();
    // Killed while it waits: the next one waits for the same proof.
    let daemon = net.serve()?;
    let api = net.api()?;
    job(&api, "prove itself")?;
    ensure!(holder(&api)? == B);
    // An edit of a record for which a change waits in the journal would be refused.
    api.wait_for("the files of the ledger", "/v1/state", WITHIN, |v| (v["waiting"] == 0).then_some(()))?;
    daemon.kill();
    // Its time runs out while nobody is there.
    let file = net.path("state/workers.yml");
    let text = fs::read_to_string(&file)?;
    let until = text.lines().find_map(|line| line.trim().strip_prefix("until: ")).with_context(|| format!("no migration: {text}"))?;
    fs::write(&file, text.replace(until.trim_matches(['"', '\'']), &wall(-1)?)).context("edit the note")?;
    let daemon = net.serve()?;
    let api = net.api()?;
    api.wait_for("the way back", "/v1/workers/w1", WITHIN, |v| (v["bound_device"] == A && v["migration"].is_null()).then_some(()))?;
    let ended =
        api.wait_for("the job's end", "/v1/jobs", WITHIN, |v| v["jobs"].as_array()?.iter().find(|j| j["state"] == "failed").cloned())?;
    ensure!(ended["code"] == "rolled_back", "{ended}");
    let audit = api.ask("GET", "/v1/operations", None)?.to_string();
    ensure!(audit.contains("migrate-rollback"), "{audit}");
    daemon.kill();
    let _daemon = net.serve()?;
    ensure!(holder(&net.api()?)? == A, "what was given back stays");
    net.passed();
    Ok(())
}

#[test]
fn a_cancelled_migration_goes_back_and_one_whose_device_is_revoked_does_not() -> Result<()> {
    let net = Net::new("migrate-cancel")?;
    let _daemon = net.serve()?;
    let api = net.api()?;
    furnish(&api)?;
    note(&net, &api, 600)?;
    let id = job(&api, "prove itself")?;
    let ended = api.ask("DELETE", &format!("/v1/jobs/{id}"), None)?;
    ensure!(ended["state"] == "cancelled" && ended["warning"].as_str().is_some_and(|w| w.contains(A)), "{ended}");
    ensure!(holder(&api)? == A);
    note(&net, &api, 600)?;
    let id = job(&api, "prove itself").and_then(|_| {
        api.wait_for("the second job", "/v1/jobs", WITHIN, |v| {
            v["jobs"].as_array()?.iter().find(|j| j["kind"] == "migrate" && j["state"] == "running")?["id"].as_str().map(str::to_owned)
        })
    })?;
    api.ask("POST", &format!("/v1/devices/{B}/revoke"), Some(&json!({})))?;
    let ended = api.wait_for("its end", &format!("/v1/jobs/{id}"), WITHIN, |j| (j["state"] == "failed").then(|| j.clone()))?;
    ensure!(ended["code"] == "overtaken", "{ended}");
    ensure!(holder(&api)?.is_null());
    net.passed();
    Ok(())
}
