//! Power: what was acknowledged is there after a power cut, and the power button shuts down in order.

use anyhow::{Result, ensure};
use kurrent_core::id::MacAddr;
use kurrent_harness::appliance::{Appliance, Network, OUR_ADDRESS};
use kurrent_harness::lab::Lab;
use kurrent_harness::netns::BootNetwork;
use kurrent_harness::process::Lifetime;
use kurrent_harness::{appliance, evidence::Run};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// Stop children, unmount, sync, off.
const OFF_WITHIN: Duration = Duration::from_secs(120);

#[test]
fn what_was_acknowledged_survives_a_power_cut() -> Result<()> {
    let mut lab = Lab::bridged("power")?;
    let mac = MacAddr([0x52, 0x54, 0, 0x70, 0, 1]);
    let api = lab.appliance()?.api.clone();
    api.ask("POST", "/v1/devices", Some(&json!({ "mac": mac })))?;
    lab.operator()?.create_worker("kept")?;
    // At once after the acknowledgement, with nothing flushed.
    let again = lab.take_appliance()?.cut_power_and_restart(&lab.run)?;
    let api = again.api.clone();
    lab.put_appliance(again);
    ensure!(api.get(&format!("/v1/devices/{mac}"))?.get("state") == Some(&json!("pooled")), "the device is gone");
    ensure!(api.get("/v1/workers/kept").is_ok(), "the Worker is gone");
    lab.run.passed();
    Ok(())
}

#[test]
fn the_power_button_shuts_down_in_order_and_the_next_start_is_clean() -> Result<()> {
    let run = Run::new("button")?;
    let network = Network::Bridge(Arc::new(BootNetwork::new(OUR_ADDRESS)?));
    let first = Appliance::boot(&run, &network, &appliance::configuration(&network), Lifetime::Ours)?;
    let token = first.api.token.clone();
    let spec = first.machine.power_off(OFF_WITHIN)?;
    let second = Appliance::start(&run, &network, spec)?;
    let session = kurrent_harness::api::Api { token, ..second.api.clone() };
    ensure!(session.get("/v1/whoami").is_ok(), "the session did not survive");
    run.passed();
    Ok(())
}
