//! Attacks on the boot plane.

use super::device::{BELIEVED, Device};
use super::refused;
use crate::net::{Net, SERVER};
use crate::raw_tftp;
use anyhow::{Result, ensure};
use ed25519_dalek::{Signer, SigningKey};
use kurrent_handshake::{Answer, Challenge, Side, boot_public_key, fields};
use kurrent_harness::api;
use kurrent_harness::attack;
use serde_json::json;
use std::net::{Ipv4Addr, SocketAddrV4};

/// Challenges that a stranger asks for in a victim's name.
const FLOOD: usize = 2000;

#[test]
fn a_challenge_that_is_relayed_to_another_device_is_answered_for_nobody() -> Result<()> {
    let net = Net::new("attack-relay")?;
    net.keep(net.serve()?);
    let api = net.api()?;
    let victim = Device::bound(&net, &api, 1, "atlas")?;
    let other = Device::bound(&net, &api, 2, "borea")?;
    // The other machine answers, with its own right key, what the victim was asked.
    let (challenge, server) = victim.challenge(&victim.mac)?;
    let said = other.boots((challenge, server))?;
    ensure!(said.contains("nonce_unknown"), "{said}");
    // And the victim's name does not help it: its address is its own.
    let as_victim = other.answer(challenge, server, |answer| answer.sign(&other.key)).replace(&other.text(), &victim.text());
    let said = other.post("/boot-vars", &as_victim)?.text();
    ensure!(said.contains("mac_mismatch"), "{said}");
    ensure!(victim.boots((challenge, server))?.contains(BELIEVED), "the victim's own challenge was used up");
    refused(&api, "relay of a challenge", "a nonce is its MAC's only", &["boot-vars"], "nonce_unknown")?;
    net.passed();
    Ok(())
}

#[test]
fn a_spoofed_mac_has_the_lease_but_not_the_key() -> Result<()> {
    let net = Net::new("attack-spoof")?;
    net.keep(net.serve()?);
    let api = net.api()?;
    let victim = Device::bound(&net, &api, 1, "atlas")?;
    let stranger = SigningKey::from_bytes(&[99; 32]);
    // As if another machine had taken the victim's MAC and address: all but its key.
    let said = victim.report(&stranger)?;
    ensure!(said.contains("key_mismatch"), "{said}");
    let (challenge, server) = victim.challenge(&victim.mac)?;
    let form = victim.answer(challenge, server, |answer| answer.sign(&stranger));
    let said = victim.post("/boot-vars", &form)?.text();
    ensure!(said.contains("verify_failed"), "{said}");
    ensure!(victim.boots((challenge, server))?.contains(BELIEVED), "the victim itself");
    refused(&api, "MAC spoofing of a bound device", "its key is another", &["boot-vars"], "verify_failed")?;
    net.passed();
    Ok(())
}

#[test]
fn boot_variables_are_told_to_no_hostname_and_to_nobody_without_a_mac() -> Result<()> {
    let net = Net::new("attack-hostname")?;
    net.keep(net.serve()?);
    let api = net.api()?;
    let victim = Device::bound(&net, &api, 1, "atlas")?;
    for form in ["hostname=atlas", "", "mac=&hostname=atlas", "hostname=atlas&format=json", "worker_id=atlas"] {
        let answer = victim.post("/boot-vars", form)?;
        ensure!(answer.status == 404 && answer.body.is_empty(), "{form}: {} {}", answer.status, answer.text());
    }
    refused(&api, "hostname-only and MAC-less boot-vars", "404, empty", &["boot-vars"], "no_mac")?;
    net.passed();
    Ok(())
}

#[test]
fn the_window_admits_no_machine_without_a_key_none_from_elsewhere_and_changes_no_key() -> Result<()> {
    let net = Net::new("attack-window")?;
    net.keep(net.serve()?);
    let api = net.api()?;
    let victim = Device::bound(&net, &api, 1, "atlas")?;
    let stranger = Device::new(&net, 2)?;
    ensure!(stranger.report(&stranger.key)?.contains("not registered"), "closed");
    api.ask("PUT", "/v1/settings/registration-window", Some(&json!({ "minutes": 10 })))?;
    let without = stranger.post("/devices/report", &format!("mac={}", stranger.text()))?.text();
    ensure!(without.contains("no_key"), "{without}");
    let elsewhere = stranger.post("/devices/report", "mac=52:54:00:00:0a:77&public_key=00")?.text();
    ensure!(elsewhere.contains("no_lease") || elsewhere.contains("mac_mismatch"), "{elsewhere}");
    ensure!(victim.report(&stranger.key)?.contains("key_mismatch"), "a key was replaced while the window was open");
    for path in [format!("/v1/devices/{}", stranger.text()), "/v1/devices/52:54:00:00:0a:77".into()] {
        ensure!(api.request("GET", &path, None)?.status == 404, "{path} was admitted");
    }
    refused(&api, "window abuse", "no key, no lease, or another's key", &["report"], "key_mismatch")?;
    net.passed();
    Ok(())
}

#[test]
fn a_flood_of_challenges_in_a_victims_name_does_not_disturb_it() -> Result<()> {
    let net = Net::new("attack-nonces")?;
    net.keep(net.serve()?);
    let api = net.api()?;
    let victim = Device::bound(&net, &api, 1, "atlas")?;
    let held = victim.challenge(&victim.mac)?;
    let attacker = Device::new(&net, 2)?;
    let mut refusals = 0;
    for _ in 0..FLOOD {
        let answer = attacker.post("/devices/challenge", &format!("mac={}", victim.text()))?;
        refusals += usize::from(!answer.text().contains("knonce"));
    }
    ensure!(refusals == FLOOD, "{} of {FLOOD} were given a challenge of another machine", FLOOD - refusals);
    ensure!(victim.boots(held)?.contains(BELIEVED), "the victim's challenge from before the flood is gone");
    ensure!(victim.boots(victim.challenge(&victim.mac)?)?.contains(BELIEVED), "the victim gets no new one");
    refused(&api, "nonce exhaustion", "nothing is stored; the victim goes on", &["challenge"], "mac_mismatch")?;
    net.passed();
    Ok(())
}

#[test]
fn an_unsigned_answer_opens_nothing() -> Result<()> {
    let net = Net::new("attack-downgrade")?;
    net.keep(net.serve()?);
    let api = net.api()?;
    let victim = Device::bound(&net, &api, 1, "atlas")?;
    let (challenge, server) = victim.challenge(&victim.mac)?;
    let signed = victim.answer(challenge, server, |answer| answer.sign(&victim.key));
    let without: Vec<&str> = signed.split('&').filter(|field| !field.starts_with("sig=")).collect();
    for (form, reason) in [
        (without.join("&"), "missing_sig"),
        (format!("mac={}", victim.text()), "missing_sig"),
        (format!("mac={}&keyless=1&enforcement=off", victim.text()), "missing_sig"),
        (format!("{}&error=no_entropy", without.join("&")), "firmware"),
        (format!("{}&sig={}", without.join("&"), "00".repeat(64)), "verify_failed"),
    ] {
        let said = victim.post("/boot-vars", &form)?.text();
        ensure!(said.contains(reason), "{form}: {said}");
    }
    refused(&api, "downgrade to unsigned", "missing_sig", &["boot-vars"], "missing_sig")?;
    net.passed();
    Ok(())
}

#[test]
fn a_signature_over_reordered_or_joined_fields_is_none() -> Result<()> {
    let net = Net::new("attack-fields")?;
    net.keep(net.serve()?);
    let api = net.api()?;
    let victim = Device::bound(&net, &api, 1, "atlas")?;
    let (challenge, server) = victim.challenge(&victim.mac)?;
    // The same values, by the right key: in another order, without lengths, and for another purpose.
    let purposes: [&[u8]; 2] = [b"kurrent/answer/v2", b"kurrent/challenge/v2"];
    for attempt in 0..4 {
        let form = victim.answer(challenge, server, |answer| {
            let c = &answer.challenge;
            let flags = [c.flags];
            let mut parts: Vec<&[u8]> = vec![
                purposes[usize::from(attempt == 2)],
                &c.nonce,
                &c.mac,
                &answer.uuid,
                &answer.server_key,
                &answer.device_boot_key,
                &c.server_boot_key,
                &flags,
                &c.expected,
            ];
            match attempt {
                0 => parts.swap(4, 5),
                1 => parts.swap(5, 6),
                _ => {}
            }
            let octets = if attempt == 3 { parts.concat() } else { fields(&parts) };
            victim.key.sign(&octets).to_bytes()
        });
        let said = victim.post("/boot-vars", &form)?.text();
        ensure!(said.contains("verify_failed"), "attempt {attempt}: {said}");
    }
    ensure!(victim.boots((challenge, server))?.contains(BELIEVED), "the right order");
    refused(&api, "signature over reordered fields", "verify_failed", &["boot-vars"], "verify_failed")?;
    net.passed();
    Ok(())
}

/// The daemon seals, stage-1 opens: with the same library, which is tried here at each octet. Whoever changes a blob on the way, or
/// sends that of another boot, makes a machine that says so on its console and starts again.
#[test]
fn a_sealed_blob_that_was_changed_opens_for_nobody() -> Result<()> {
    let challenge = Challenge { nonce: [3; 32], mac: [2; 6], server_boot_key: boot_public_key(&[4; 32]), flags: 0, expected: [8; 16] };
    let answer = Answer { challenge, uuid: [0; 16], server_key: [1; 32], device_boot_key: boot_public_key(&[6; 32]) };
    let session = |own: &[u8; 32], side| answer.session(own, side).map_err(|why| anyhow::anyhow!("{why:?}"));
    let blob = session(&[4; 32], Side::Appliance)?.seal(b"the credentials of one boot");
    let machine = session(&[6; 32], Side::Device)?;
    ensure!(machine.open(&blob).is_ok_and(|plain| plain.as_slice() == b"the credentials of one boot"), "as it was sent");
    for at in 0..blob.len() {
        let mut changed = blob.clone();
        changed[at] ^= 1;
        ensure!(machine.open(&changed).is_err() && machine.open(&blob[..at]).is_err(), "octet {at}");
    }
    let later = Answer { challenge: Challenge { nonce: [9; 32], ..challenge }, ..answer };
    let of_another_boot = later.session(&[6; 32], Side::Device).map_err(|why| anyhow::anyhow!("{why:?}"))?;
    ensure!(of_another_boot.open(&blob).is_err(), "the blob of another boot");
    attack::note("sealed-blob tampering", "it does not open (each octet, each cut)", "the worker's console; its timeline stays at 'kernel'")
}

/// `silence.rs` walks all paths; this is what the operator sees of it.
#[test]
fn a_revoked_device_hears_nothing_and_is_seen() -> Result<()> {
    let net = Net::new("attack-revoked")?;
    net.keep(net.serve()?);
    let api = net.api()?;
    let victim = Device::bound(&net, &api, 1, "atlas")?;
    let held = victim.challenge(&victim.mac)?;
    api.ask("POST", &format!("/v1/devices/{}/revoke", victim.text()), None)?;
    let form = victim.answer(held.0, held.1, |answer| answer.sign(&victim.key));
    for (path, form) in
        [("/boot-vars", form.as_str()), ("/devices/report", "mac=52:54:00:00:0a:01"), ("/devices/challenge", "mac=52:54:00:00:0a:01")]
    {
        let answer = victim.post(path, form)?;
        ensure!(answer.status == 404 && answer.body.is_empty(), "{path}: {} {}", answer.status, answer.text());
    }
    refused(&api, "revoked device on every path", "silence (all 20 paths: tests/net/silence.rs)", &[], "revoked")?;
    net.passed();
    Ok(())
}

#[test]
fn no_path_leads_out_of_the_served_files() -> Result<()> {
    let net = Net::new("attack-paths")?;
    let daemon = net.serve()?;
    let machine = Device::new(&net, 1)?;
    let boot = SocketAddrV4::new(SERVER, 80);
    for path in [
        "/files/../state/secrets/server.key",
        "/files/%2e%2e/state/secrets/server.key",
        "/files/..%2fstate/secrets/server.key",
        "/files//etc/passwd",
        "//files/../../etc/passwd",
        "/files/worker/../../state/secrets/server.key",
        "/stage1/../state/secrets/server.key",
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let answer = api::raw_exchange(Some(&machine.client.netns), boot, request.as_bytes())?;
        let text = String::from_utf8_lossy(&answer).into_owned();
        ensure!(text.starts_with("HTTP/1.1 404") || text.starts_with("HTTP/1.1 400"), "{path}: {text}");
    }
    let secret = std::fs::read_to_string(net.path("state/secrets/server.key"))?;
    for name in [
        "../state/secrets/server.key",
        "/../state/secrets/server.key",
        "..\\state\\secrets\\server.key",
        "files/../../state/secrets/server.key",
    ] {
        let socket = raw_tftp::socket(&machine.client, Ipv4Addr::UNSPECIFIED)?;
        socket.send_to(&raw_tftp::request(1, name, &[]), (SERVER, 69))?;
        socket.set_read_timeout(Some(crate::net::SILENCE))?;
        let mut buffer = [0; 2048];
        let length = socket.recv(&mut buffer).unwrap_or(0);
        let answer = buffer.get(..length).unwrap_or_default();
        ensure!(answer.get(..2) != Some(&[0, 3]), "TFTP {name}: data");
        ensure!(!String::from_utf8_lossy(answer).contains(secret.trim()), "TFTP {name}");
    }
    let log = daemon.log();
    ensure!(!log.contains(secret.trim()), "the key is in the log");
    attack::note("path traversal", "404 over HTTP, an error over TFTP", "log at debug: the request, without content")?;
    net.keep(daemon);
    net.passed();
    Ok(())
}
