//! Another appliance on the network of a machine that trusts ours.

use super::place::{MAC, Place};
use anyhow::{Context, Result, ensure};
use kurrent_harness::attack;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// From one step to the next under emulation, a busy machine beside it.
const NEXT_WITHIN: Duration = Duration::from_secs(180);

/// Real firmware, stock iPXE, the program that is in the image; only the appliance's identity is another one's.
#[test]
fn attack_an_impostor_is_refused_by_the_machine_and_changes_nothing() -> Result<()> {
    let place = Place::new("impostor", "")?;
    let api = place.api()?;
    api.ask("PUT", "/v1/settings/registration-window", Some(&json!({ "minutes": 10 })))?;
    let mut machine = place.uefi(&place.network, &[])?;
    place.reaches_script(&mut machine)?;
    machine.console.wait_for("waiting to be bound", NEXT_WITHIN)?;
    let device = api.get(&format!("/v1/devices/{MAC}"))?;
    let key = device.get("public_key").and_then(Value::as_str).context("no key is stored")?.to_owned();
    bind(&place)?;
    machine.console.wait_for("this machine now trusts this server only", NEXT_WITHIN)?;
    machine.console.wait_for("no system disk", NEXT_WITHIN)?;

    // The impostor knows all that can be known: MAC, address, the public key of the machine. Its own key is another one.
    let place = place.another_daemon("impostor", |dir| swap(dir, "state", "state-of-ours", "state-of-none"))?;
    place.api()?.ask("POST", "/v1/devices", Some(&json!({ "mac": MAC, "public_key": key })))?;
    place.api()?.ask("PUT", "/v1/settings/registration-window", Some(&json!({ "minutes": 10 })))?;
    bind(&place)?;
    machine.console.wait_for("not the one that this machine trusts", NEXT_WITHIN)?;
    machine.console.wait_for("refused (wrong_server)", NEXT_WITHIN)?;
    let audited = format!("/v1/operations?device={MAC}&result=wrong_server");
    place.api()?.wait_for("wrong_server in the impostor's audit", &audited, NEXT_WITHIN, |page| {
        page.get("operations")?.as_array()?.first().map(drop)
    })?;

    let place = place.another_daemon("ours-again", |dir| swap(dir, "state", "state-of-impostor", "state-of-ours"))?;
    machine.console.wait_for("no system disk", NEXT_WITHIN)?;
    let device = place.api()?.get(&format!("/v1/devices/{MAC}"))?;
    ensure!(device.get("public_key").and_then(Value::as_str) == Some(&key), "the machine has another key now: {device}");
    attack::note(
        "impostor appliance",
        "the machine answers nothing: wrong_server",
        "the machine's console; audit: boot-vars: wrong_server",
    )?;
    place.passed(machine);
    Ok(())
}

fn bind(place: &Place) -> Result<()> {
    let api = place.api()?;
    api.ask("POST", "/v1/workers", Some(&json!({ "worker_id": "atlas" })))?;
    api.ask("POST", &format!("/v1/devices/{MAC}/bind"), Some(&json!({ "worker_id": "atlas" }))).map(drop)
}

/// Puts `name` aside as `aside`, and `instead` (or an empty folder) in its place. The session of the API goes with it.
fn swap(dir: &Path, name: &str, aside: &str, instead: &str) -> Result<()> {
    fs::rename(dir.join(name), dir.join(aside)).context("put the state aside")?;
    if dir.join(instead).exists() {
        fs::rename(dir.join(instead), dir.join(name)).context("put the state back")?;
    } else {
        fs::create_dir(dir.join(name)).context("make an empty state")?;
    }
    let _ = fs::remove_file(dir.join("session"));
    Ok(())
}
