//! New keys on real firmware and through stock iPXE: rotations of the server's key are followed, as many as are remembered; a device
//! makes a new key when that is ordered, wherever its power is cut meanwhile.

use anyhow::{Context, Result, ensure};
use kurrent_core::id::MacAddr;
use kurrent_handshake::MAX_LINKS;
use kurrent_harness::lab::Lab;
use kurrent_harness::machine::Machine;
use kurrent_harness::worker::{self, REPORTS_WITHIN};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const WORKER: &str = "kilo";
const BOOTS: &str = "Kurrent: booting as kilo";
const FOLLOWS: &str = "this server has a new key, signed by its old one; this machine now trusts the new key only";
const MAKES_KEY: &str = "made a new device key, as the server ordered";
const HAS_KEY: &str = "this machine's new device key is in place";
/// Rules of the network.
const NO_ANSWER: u32 = 1;
const NO_CHALLENGE: u32 = 2;
/// iPXE sends again after a second at most, then two, four, …
const SENT_AGAIN_WITHIN: Duration = Duration::from_secs(120);

#[test]
fn a_machine_follows_rotations_and_makes_a_new_key_when_ordered_also_when_its_power_is_cut() -> Result<()> {
    let lab = Lab::bridged("server-key")?;
    let began = Instant::now();
    let mut machine = booted(&lab)?;

    // As many links as there can be, through iPXE's variables and command line; then one, which makes the appliance forget the first
    // key: not refused, as the machine has proved that it followed.
    for times in [MAX_LINKS, 1] {
        rotate(&lab, times)?;
        machine.reset()?;
        machine.console.wait_for(FOLLOWS, REPORTS_WITHIN)?;
        machine.console.wait_for(BOOTS, REPORTS_WITHIN)?;
    }
    println!("server key: {MAX_LINKS} rotations and one more followed after {} s", began.elapsed().as_secs());

    let mac = worker::mac(machine.spec());
    let first = key(&lab, mac)?;
    order(&lab, mac)?;
    machine.reset()?;
    machine.console.wait_for(MAKES_KEY, REPORTS_WITHIN)?;
    machine.console.wait_for(HAS_KEY, REPORTS_WITHIN)?;
    machine.console.wait_for(BOOTS, REPORTS_WITHIN)?;
    let second = key(&lab, mac)?;
    ensure!(second != first, "the device has its old key: {first}");
    println!("server key: and a new device key after {} s", began.elapsed().as_secs());

    let third = cut_while_the_key_changes(&lab, machine, &second)?;
    ensure!(third != second, "the device has its old key: {second}");
    println!("server key: and two power cuts after {} s", began.elapsed().as_secs());
    lab.run.passed();
    Ok(())
}

/// A device that was admitted and bound, and has begun to boot. Its disk is empty: what comes behind the grant is another test's.
fn booted(lab: &Lab) -> Result<Machine> {
    let (appliance, operator) = (lab.appliance()?, lab.operator()?);
    operator.open_window()?;
    let mut machine = lab.power_on(lab.worker_spec(1)?)?;
    operator.create_worker(WORKER)?;
    let disk = json!({ "os": "debian", "os_version": "13", "size_bytes": 64 << 20 });
    appliance.api.ask("POST", &format!("/v1/workers/{WORKER}/disks"), Some(&disk))?;
    machine.console.wait_for("waiting to be bound", REPORTS_WITHIN)?;
    operator.bind(worker::mac(machine.spec()), WORKER)?;
    machine.console.wait_for(BOOTS, REPORTS_WITHIN)?;
    Ok(machine)
}

fn rotate(lab: &Lab, times: usize) -> Result<()> {
    (0..times).try_for_each(|_| lab.appliance()?.kurrent(&["server-key", "rotate", "--yes"]).map(drop))
}

fn order(lab: &Lab, mac: MacAddr) -> Result<()> {
    lab.appliance()?.kurrent(&["device", "rekey", &mac.to_string()]).map(drop)
}

/// The device's key as the appliance has it.
fn key(lab: &Lab, mac: MacAddr) -> Result<String> {
    let device = lab.appliance()?.api.get(&format!("/v1/devices/{mac}"))?;
    Ok(device.get("public_key").and_then(Value::as_str).with_context(|| format!("no key in {device}"))?.to_owned())
}

/// Power is cut when the new key is in the firmware's store and the appliance has not heard of it; and again when the appliance has
/// stored it and the machine does not know. The network holds the machine at both moments. The key that it has in the end.
fn cut_while_the_key_changes(lab: &Lab, machine: Machine, old: &str) -> Result<String> {
    let bridge = lab.network.bridge()?;
    let mac = worker::mac(machine.spec());
    order(lab, mac)?;
    let spec = machine.cut_power();
    let tap = spec.tap()?.to_owned();

    bridge.drop_segments(&tap, NO_ANSWER, "POST /boot-vars ")?;
    let mut machine = lab.power_on(spec)?;
    machine.console.wait_for(MAKES_KEY, REPORTS_WITHIN)?;
    let spec = machine.cut_power();
    ensure!(key(lab, mac)? == old, "the appliance has heard of the new key");

    let mut machine = lab.power_on(spec)?;
    machine.console.wait_for(MAKES_KEY, REPORTS_WITHIN)?;
    bridge.drop_segments(&tap, NO_CHALLENGE, "POST /devices/challenge")?;
    bridge.pass(&tap, NO_ANSWER)?;
    let path = format!("/v1/devices/{mac}");
    let stored = |device: &Value| device.get("public_key").and_then(Value::as_str).filter(|key| *key != old).map(str::to_owned);
    let new = lab.appliance()?.api.wait_for("the device's new key", &path, SENT_AGAIN_WITHIN, stored)?;
    ensure!(!machine.console.unread().contains(HAS_KEY), "the machine knows already: {}", machine.console.unread());
    let spec = machine.cut_power();

    bridge.pass(&tap, NO_CHALLENGE)?;
    let mut machine = lab.power_on(spec)?;
    machine.console.wait_for(HAS_KEY, REPORTS_WITHIN)?;
    machine.console.wait_for(BOOTS, REPORTS_WITHIN)?;
    ensure!(key(lab, mac)? == new, "the key has changed once more");
    Ok(new)
}
