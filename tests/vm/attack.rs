//! Attacks with real machines and real messages: each is refused, and the reason is where the operator looks for it.

use crate::shared;
use anyhow::{Context, Result, ensure};
use kurrent_core::id::MacAddr;
use kurrent_harness::api;
use kurrent_harness::appliance::{ADDRESS, BOOT_PORT, Network, wait_until};
use kurrent_harness::frame;
use kurrent_harness::lab::Lab;
use kurrent_harness::machine::Firmware;
use kurrent_harness::netns::BRIDGE;
use kurrent_harness::timeline::read_capture;
use kurrent_harness::wire::Wire;
use kurrent_harness::worker::{self, LOGIN_WITHIN, REPORTS_WITHIN};
use serde_json::Value;
use std::net::SocketAddrV4;
use std::time::Duration;

/// From the refusal to the audit line and the screen.
const SHOWN_WITHIN: Duration = Duration::from_secs(60);
/// A DISCOVER is answered in milliseconds; this long without an answer is silence.
const SILENCE: Duration = Duration::from_secs(5);

#[test]
fn a_wiped_firmware_store_has_another_key_and_is_refused() -> Result<()> {
    shared::with(|shared| {
        let lab = &shared.lab;
        let operator = lab.operator()?;
        operator.open_window()?;
        let machine = lab.power_on(lab.worker_spec(4)?)?;
        let mac = worker::mac(machine.spec());
        worker::wait_for_state(lab.appliance()?, mac, "pooled", REPORTS_WITHIN)?;
        operator.create_worker("delta")?;
        operator.clone_disk("delta")?;
        operator.bind(mac, "delta")?;
        let spec = machine.cut_power();
        let Firmware::Uefi(variables) = &spec.firmware else { anyhow::bail!("workers of the lab have UEFI") };
        std::fs::remove_file(variables).context("wipe the firmware store")?;

        let mut machine = lab.power_on(spec)?;
        let found = machine.console.wait_for_any(&["key_mismatch", "verify_failed", "another key", "delta login:"], REPORTS_WITHIN)?;
        ensure!(found.which != 3, "a machine with another key got the disk");
        let reason = audited(lab, mac, &["key_mismatch", "verify_failed"])?;
        shows(lab, &reason)
    })
}

#[test]
fn a_replayed_answer_is_refused() -> Result<()> {
    shared::with(|shared| {
        let (lab, served) = shared.worker(2)?;
        let mac = worker::mac(served.machine.spec());
        served.machine.reset()?;
        served.machine.console.wait_for("Kurrent: booting as", REPORTS_WITHIN)?;
        // What the machine itself has just sent: right key, right Worker, a nonce that is still young and has been used.
        let request = posted(served.machine.capture(), "POST /boot-vars")?;
        let netns = lab.appliance()?.api.netns.clone();
        let answer = api::raw_exchange(netns.as_deref(), SocketAddrV4::new(ADDRESS, BOOT_PORT), &request)?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        for secret in ["kernel", "sealed", "DHHC-1", "hostnqn"] {
            ensure!(!answer.contains(secret), "the replay was given {secret}: {answer}");
        }
        // We are on the machine's own link, where the appliance sees whose address ours is: that is looked at before the nonce.
        ensure!(answer.contains("mac_mismatch"), "the refusal does not say why: {answer}");
        let reason = audited(lab, mac, &["mac_mismatch"])?;
        worker::wait_for_login(&mut served.machine, shared::hostname(2), LOGIN_WITHIN)?;
        worker::log_in(&mut served.machine)?;
        shows(lab, &reason)?;
        kurrent_harness::attack::note(
            "replay",
            &format!("{reason}, and no secret in the answer"),
            &format!("audit: boot-vars: {reason}; screen"),
        )
    })
}

#[test]
fn a_strangers_machine_waits_and_is_told_why() -> Result<()> {
    shared::with(|shared| {
        let lab = &shared.lab;
        lab.operator()?.close_window()?;
        let mut machine = lab.power_on(lab.worker_spec(6)?)?;
        let mac = worker::mac(machine.spec());
        machine.console.wait_for("not registered", REPORTS_WITHIN)?;
        audited(lab, mac, &["not_registered", "unknown", "window_closed"])?;
        let knocking = lab.appliance()?.api.get("/v1/knocking")?;
        ensure!(knocking.to_string().contains(&mac.to_string()), "not listed as knocking: {knocking}");
        let device = lab.appliance()?.api.request("GET", &format!("/v1/devices/{mac}"), None)?;
        ensure!(device.status == 404, "a stranger was registered: {}", device.text());
        lab.operator()?.open_window()
    })
}

#[test]
fn a_revoked_worker_is_cut_off_and_met_with_silence() -> Result<()> {
    shared::with(|shared| {
        let lab = &shared.lab;
        lab.operator()?.open_window()?;
        let mut served = lab.serve(3, "charlie", &mut |_| {})?;
        let mac = worker::mac(served.machine.spec());
        worker::log_in(&mut served.machine)?;
        worker::check_reads_disk(&mut served.machine)?;
        lab.operator()?.revoke(mac)?;
        worker::check_reads_no_disk(&mut served.machine)?;
        let sessions = lab.appliance()?.api.get("/v1/target")?.to_string();
        ensure!(!sessions.contains("charlie"), "the kernel still exports the disk: {sessions}");

        let Network::Bridge(bridge) = &lab.network else { anyhow::bail!("machine tests run on a bridge") };
        let mut wire = Wire::in_netns(bridge.name(), BRIDGE)?;
        // The capture at the machine's own NIC, not the bridge, decides: it also holds unicast answers.
        let before = answers(&served.machine, mac)?;
        ensure!(before > 0, "the capture holds no answer to the boot that was allowed: it can not show silence");
        served.machine.reset()?;
        let is_discover = |frame: &[u8]| frame::parse(frame).is_some_and(|dhcp| dhcp.client == mac && dhcp.message_type == 1);
        ensure!(wire.receive(REPORTS_WITHIN, is_discover)?.is_some(), "no DISCOVER after the reset");
        ensure!(wire.receive(SILENCE, |_| false)?.is_none(), "nothing was wanted");
        ensure!(answers(&served.machine, mac)? == before, "the revoked device was answered");
        // As a client, which asks again: the appliance is emulated and busy.
        wait_until("another machine is answered, or that silence proves nothing", REPORTS_WITHIN, || {
            wire.send(&frame::discover(MacAddr([0x52, 0x54, 0, 0x5a, 0, 1]), 1))?;
            let offered = wire.receive(SILENCE, |frame| frame::parse(frame).is_some_and(|dhcp| dhcp.op == 2 && dhcp.client != mac))?;
            Ok(offered.is_some())
        })?;
        Ok(())
    })
}

/// DHCP answers to `mac` in the capture at the machine's NIC.
fn answers(machine: &kurrent_harness::machine::Machine, mac: MacAddr) -> Result<usize> {
    let frames = read_capture(machine.capture())?;
    Ok(frames.iter().filter_map(|captured| frame::parse(&captured.frame)).filter(|dhcp| dhcp.client == mac && dhcp.op == 2).count())
}

/// Waits for an audit line about `mac` with one of these reasons; the reason found.
fn audited(lab: &Lab, mac: MacAddr, reasons: &[&str]) -> Result<String> {
    let path = format!("/v1/operations?device={mac}");
    lab.appliance()?.api.wait_for(&format!("audit line with {reasons:?}"), &path, SHOWN_WITHIN, |operations| {
        let lines = operations.as_array().or_else(|| operations.get("operations").and_then(Value::as_array))?;
        let texts: Vec<String> = lines.iter().map(Value::to_string).collect();
        reasons.iter().find(|reason| texts.iter().any(|text| text.contains(**reason))).map(|reason| (*reason).to_owned())
    })
}

/// The appliance's own screen names the reason among its last refusals.
fn shows(lab: &Lab, reason: &str) -> Result<()> {
    let console = &lab.appliance()?.machine.console;
    wait_until(&format!("{reason} on the appliance's screen"), SHOWN_WITHIN, || Ok(console.text().contains(reason)))
}

/// The octets of the last request that begins with `line`, put together from the TCP segments in a capture.
fn posted(capture: &std::path::Path, line: &str) -> Result<Vec<u8>> {
    let segments = read_capture(capture)?.into_iter().filter_map(|captured| frame::segment(&captured.frame));
    let segments: Vec<frame::Segment> = segments.filter(|segment| segment.to.port() == BOOT_PORT).collect();
    let first =
        segments.iter().rev().find(|s| s.payload.starts_with(line.as_bytes())).with_context(|| format!("no {line} in the capture"))?;
    let mut request = Vec::new();
    let mut next = first.sequence;
    for part in segments.iter().filter(|s| s.from == first.from) {
        if part.sequence == next && !part.payload.is_empty() {
            request.extend(&part.payload);
            next = next.wrapping_add(u32::try_from(part.payload.len())?);
        }
    }
    // iPXE keeps the connection: what it asked for afterwards (the kernel, which is no secret) is not part of the replay.
    let end = request_length(&request).context("a whole request in the capture")?;
    request.truncate(end);
    Ok(request)
}

/// Octets of the first HTTP request: its head and the body that the head announces.
fn request_length(octets: &[u8]) -> Option<usize> {
    let head = octets.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(octets.get(..head)?).to_ascii_lowercase();
    let body = text.lines().find_map(|line| line.strip_prefix("content-length:"))?.trim().parse::<usize>().ok()?;
    (head + body <= octets.len()).then_some(head + body)
}
