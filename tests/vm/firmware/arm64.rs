//! An arm64 machine (AAVMF) with the stock arm64 iPXE and our arm64 program in its firmware: it is registered, proves who it is,
//! and is told what it waits for. There is no worker kernel for it.

use super::place::{MAC, Place, SCRIPT_WITHIN};
use anyhow::{Context, Result, ensure};
use kurrent_harness::machine::Machine;
use serde_json::{Value, json};
use std::time::Duration;

/// From one step to the next under emulation, a busy machine beside it.
const NEXT_WITHIN: Duration = Duration::from_secs(120);

#[test]
fn an_arm64_machine_makes_a_key_pins_its_server_and_proves_who_it_is() -> Result<()> {
    let place = Place::new("arm64", "")?;
    let api = place.api()?;
    api.ask("PUT", "/v1/settings/registration-window", Some(&json!({"minutes": 10})))?;
    let mut machine = place.arm64(&place.network)?;
    place.reaches_script(&mut machine)?;
    machine.console.wait_for("made this machine's device key", NEXT_WITHIN)?;
    machine.console.wait_for("waiting to be bound", NEXT_WITHIN)?;
    let path = format!("/v1/devices/{MAC}");
    let device = api.get(&path)?;
    let key = device.get("public_key").and_then(Value::as_str).context("no key is stored")?.to_owned();
    ensure!(key.starts_with("ed25519:"), "{key}");
    let memory = device.pointer("/fingerprint/memory_total").and_then(Value::as_str).unwrap_or_default();
    ensure!(memory == "256", "the firmware's memory modules: {memory:?} MiB");

    api.ask("POST", "/v1/workers", Some(&json!({"worker_id": "atlas"})))?;
    api.ask("POST", &format!("{path}/bind"), Some(&json!({"worker_id": "atlas"})))?;
    machine.console.wait_for("this machine now trusts this server only", NEXT_WITHIN)?;
    // What comes after the signature was found genuine, and before it nothing would be told.
    machine.console.wait_for("no system disk", NEXT_WITHIN)?;
    has_the_same_key_after_power_off(&place, machine, &key)
}

fn has_the_same_key_after_power_off(place: &Place, machine: Machine, key: &str) -> Result<()> {
    let spec = machine.cut_power();
    let mut machine = Machine::start(&place.run, spec)?;
    machine.console.wait_for("no system disk", SCRIPT_WITHIN)?;
    let device = place.api()?.get(&format!("/v1/devices/{MAC}"))?;
    ensure!(device.get("public_key").and_then(Value::as_str) == Some(key), "another key: {device}");
    Ok(())
}
