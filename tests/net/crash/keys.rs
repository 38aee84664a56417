//! A new key of the appliance, and a new key of a device, cut at each write step: the old one or the new one, never neither.

use super::check::text;
use super::steps::{Scenario, asks, at_every_step};
use crate::attack::device::{answer, read, set};
use crate::net::SERVER;
use anyhow::{Context, Result, ensure};
use ed25519_dalek::SigningKey;
use kurrent_core::id::MacAddr;
use kurrent_handshake::Rekey;
use kurrent_harness::api::Api;
use serde_json::{Value, json};
use std::net::SocketAddrV4;

const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0x0c, 1];
/// So many digits of a key go into the name of a Worker.
const DIGITS: usize = 20;

/// What the device has, and what it makes when that is ordered.
fn keys() -> [SigningKey; 2] {
    [1, 2].map(|n| SigningKey::from_bytes(&[n; 32]))
}

fn stored(key: &SigningKey) -> String {
    format!("ed25519:{}", hex::encode(key.verifying_key().as_bytes()))
}

/// Asks the boot plane from the appliance itself: no lease says who that is, so the signature alone counts.
fn post(api: &Api, path: &str, form: &str) -> Result<String> {
    let plane = Api { address: SocketAddrV4::new(SERVER, 80), token: String::new(), ..api.clone() };
    Ok(plane.exchange("POST", path, "Content-Type: application/x-www-form-urlencoded\r\n", form.as_bytes())?.text())
}

#[test]
fn a_rotated_server_key_is_the_old_one_or_the_new_one_wherever_it_is_cut() -> Result<()> {
    at_every_step(&Scenario {
        name: "rotate-server-key",
        // Which key it was is kept in the name of a Worker.
        before: Some(|api| {
            let key = api.get("/v1/server-key")?;
            let name = text(&key, "public_key").get(..DIGITS).context("a key")?.to_owned();
            api.ask("POST", "/v1/workers", Some(&json!({ "worker_id": format!("k{name}") }))).map(drop)
        }),
        act: |api| asks(api, "POST", "/v1/server-key/rotate", &json!({})),
        happened: |api| {
            let workers = api.get("/v1/workers")?;
            let first = text(&workers["workers"][0], "worker_id").trim_start_matches('k').to_owned();
            let key = api.get("/v1/server-key")?;
            let former: Vec<&str> = key["former"].as_array().context("former keys")?.iter().map(|k| text(k, "public_key")).collect();
            let is_first = |key: &str| key.starts_with(&first) && first.len() == DIGITS;
            match former.as_slice() {
                [] if is_first(text(&key, "public_key")) => Ok(false),
                [old] if is_first(old) && !is_first(text(&key, "public_key")) => Ok(true),
                other => anyhow::bail!("neither: {key}, {other:?} before"),
            }
        },
        from_the_start: false,
    })
}

#[test]
fn a_signed_new_device_key_is_stored_or_the_old_one_proves_wherever_it_is_cut() -> Result<()> {
    at_every_step(&Scenario {
        name: "signed-rekey",
        before: Some(|api| {
            let device = format!("/v1/devices/{}", MacAddr(MAC));
            let [old, _] = keys();
            api.ask("POST", "/v1/devices", Some(&json!({ "mac": MacAddr(MAC).to_string(), "public_key": stored(&old) })))?;
            api.ask("POST", "/v1/workers", Some(&json!({ "worker_id": "w1" })))?;
            api.ask("POST", &format!("{device}/bind"), Some(&json!({ "worker_id": "w1" })))?;
            api.ask("POST", &format!("{device}/rekey"), Some(&json!({ "minutes": 60 }))).map(drop)
        }),
        act: |api| {
            let [old, new] = keys();
            let Ok(script) = post(api, "/devices/challenge", &format!("mac={}", MacAddr(MAC))) else { return Ok(false) };
            let (challenge, server_key) = read(&script, &MAC).with_context(|| format!("a challenge: {script}"))?;
            let (old_key, new_key) = (old.verifying_key().to_bytes(), new.verifying_key().to_bytes());
            let rekey = Rekey { nonce: challenge.nonce, mac: MAC, server_key, old: old_key, new: new_key }.sign(&old, &new);
            let form = answer(&MAC, challenge, server_key, |answer| answer.sign(&old));
            // No answer is no acknowledgement.
            let Ok(said) = post(api, "/boot-vars", &format!("{form}&rekey={}", hex::encode(rekey.to_bytes()))) else { return Ok(false) };
            ensure!(said.is_empty() || set(&said, "kagain") == Some("1"), "{said}");
            Ok(!said.is_empty())
        },
        happened: |api| {
            let device: Value = api.get(&format!("/v1/devices/{}", MacAddr(MAC)))?;
            let [old, new] = keys();
            let is = |key: &SigningKey| text(&device, "public_key") == stored(key);
            ensure!(is(&old) || is(&new), "neither: {device}");
            ensure!(device["rekey_signed"] == is(&old), "the order stands as long as it was not followed: {device}");
            Ok(is(&new))
        },
        from_the_start: false,
    })
}
