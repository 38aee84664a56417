//! New keys over the wire: of the appliance, which machines follow by signatures, and of a device, which signs its own successor.
//! `crash::keys` cuts both at each write.

use crate::attack::device::{BELIEVED, Device, read, set};
use crate::net::{Net, wait_for};
use anyhow::{Context, Result, ensure};
use ed25519_dalek::SigningKey;
use kurrent_handshake::{Challenge, FLAG_REKEY, Link, MAX_LINKS, Rekey, SignedRekey, follow};
use kurrent_harness::api::Api;
use serde_json::{Value, json};
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

const PASSWORD: &str = "an unlikely pass phrase";
const KEY: &str = "/v1/server-key";
const ROTATE: &str = "/v1/server-key/rotate";

/// A challenge and the server key that it names.
type Asked = (Challenge, [u8; 32]);

fn octets<const N: usize>(text: &str) -> Result<[u8; N]> {
    hex::decode(text).ok().context("hex")?.try_into().ok().with_context(|| format!("{N} octets: {text}"))
}

fn server_key(api: &Api) -> Result<[u8; 32]> {
    octets(api.get(KEY)?["public_key"].as_str().context("a key")?)
}

fn rotate(api: &Api) -> Result<[u8; 32]> {
    octets(api.ask("POST", ROTATE, Some(&json!({})))?["public_key"].as_str().context("a key")?)
}

/// What a machine with this pin is told: the challenge, whose signature is good, and the way from its pin.
fn asked_with_pin(device: &Device, pinned: &[u8; 32]) -> Result<(Asked, Vec<Link>)> {
    let script = device.post("/devices/challenge", &format!("mac={}&pinned={}", device.text(), hex::encode(pinned)))?.text();
    let asked = read(&script, &device.mac).with_context(|| format!("a challenge: {script}"))?;
    let signature = octets(set(&script, "ksig").context("a signature")?)?;
    ensure!(asked.0.verify(&asked.1, &signature).is_ok(), "the challenge is not signed by the key that it names");
    let links = hex::decode(set(&script, "klinks").unwrap_or_default()).ok().context("links in hex")?;
    ensure!(links.len() % Link::LEN == 0, "a link is cut: {script}");
    Ok((asked, links.chunks_exact(Link::LEN).filter_map(|link| Some(Link::from_bytes(link.try_into().ok()?))).collect()))
}

/// After `kill -9` and, between the two, `prepare`: the API.
fn starts_again(net: &Net, prepare: impl FnOnce() -> Result<()>) -> Result<Api> {
    net.daemon_ends()?;
    prepare()?;
    net.keep(net.serve()?);
    net.api()
}

/// How often the audit has this result of a boot.
fn audited(api: &Api, result: &str) -> Result<usize> {
    let page = api.get(&format!("/v1/operations?verb=boot-vars&result={result}"))?;
    page["operations"].as_array().map(Vec::len).context("operations")
}

#[test]
fn a_new_server_key_is_an_admins_order_and_machines_are_led_to_it_from_the_one_they_pinned() -> Result<()> {
    let net = Net::new("keys-rotation")?;
    net.keep(net.serve()?);
    let api = net.api()?;
    let device = Device::bound(&net, &api, 1, "atlas")?;
    let first = server_key(&api)?;
    let (asked, links) = asked_with_pin(&device, &first)?;
    ensure!((asked.1, links.len()) == (first, 0) && device.boots(asked)?.contains(BELIEVED), "before any rotation");

    for role in ["viewer", "operator"] {
        api.ask("POST", "/v1/users", Some(&json!({ "name": role, "role": role, "password": PASSWORD })))?;
        let body = json!({ "name": role, "password": PASSWORD }).to_string();
        let session = api.exchange("POST", "/v1/login", "Content-Type: application/json\r\n", body.as_bytes())?.json()?;
        let theirs = Api { token: session["token"].as_str().context("a session")?.to_owned(), ..api.clone() };
        ensure!(server_key(&theirs)? == first, "what is public is shown to a {role}");
        let refused = theirs.request("POST", ROTATE, Some(&json!({})))?;
        ensure!(refused.status == 403 && refused.text().contains("role_missing"), "{role}: {}", refused.text());
    }
    let nobody = Api { token: String::new(), ..api.clone() };
    for (method, path) in [("GET", KEY), ("POST", ROTATE)] {
        ensure!(nobody.request(method, path, None)?.status == 401, "{method} {path}");
    }
    ensure!(server_key(&api)? == first, "somebody else has rotated it");

    let second = rotate(&api)?;
    let third = rotate(&api)?;
    ensure!(first != second && second != third && server_key(&api)? == third, "each rotation makes a new key");
    for (pinned, steps) in [(first, 2), (second, 1), (third, 0)] {
        let (asked, links) = asked_with_pin(&device, &pinned)?;
        ensure!(asked.1 == third && links.len() == steps, "{} links from {}", links.len(), hex::encode(pinned));
        ensure!(follow(&pinned, &links) == Ok(third), "the way from {} does not lead there", hex::encode(pinned));
        ensure!(device.boots(asked)?.contains(BELIEVED), "an answer to the new key");
    }
    ensure!(asked_with_pin(&device, &[9; 32])?.1.is_empty(), "a way from a key that it never had");
    // It has the former keys after a restart, too.
    starts_again(&net, || Ok(()))?;
    let (asked, links) = asked_with_pin(&device, &first)?;
    ensure!(follow(&first, &links) == Ok(third) && device.boots(asked)?.contains(BELIEVED), "after kill -9");
    net.passed();
    Ok(())
}

#[test]
fn an_answer_on_its_way_during_a_rotation_is_asked_again_and_is_not_a_wrong_one() -> Result<()> {
    let net = Net::new("keys-underway")?;
    net.keep(net.serve()?);
    let api = net.api()?;
    let device = Device::bound(&net, &api, 1, "atlas")?;
    let first = server_key(&api)?;
    let (asked, _) = asked_with_pin(&device, &first)?;
    rotate(&api)?;
    let said = device.boots(asked)?;
    ensure!(set(&said, "kagain") == Some("1") && !said.contains(BELIEVED), "{said}");
    let (asked, links) = asked_with_pin(&device, &first)?;
    ensure!(links.len() == 1 && device.boots(asked)?.contains(BELIEVED), "the same boot goes on with the new key");
    for wrong in ["verify_failed", "nonce_unknown", "nonce_expired", "wrong_server"] {
        ensure!(audited(&api, wrong)? == 0, "{wrong} in the audit");
    }
    net.passed();
    Ok(())
}

#[test]
fn a_seventeenth_rotation_waits_for_machines_that_may_have_pinned_the_first_key() -> Result<()> {
    let net = Net::new("keys-sixteen")?;
    net.keep(net.serve()?);
    let api = net.api()?;
    let device = Device::bound(&net, &api, 1, "atlas")?;
    let first = server_key(&api)?;
    let mut keys = vec![first];
    for _ in 0..MAX_LINKS {
        keys.push(rotate(&api)?);
    }
    let shown = api.get(KEY)?;
    ensure!((&shown["rotations_left"], &shown["left_behind_next"]) == (&json!(0), &json!(1)), "{shown}");
    let refused = api.request("POST", ROTATE, Some(&json!({})))?;
    ensure!(refused.status == 409 && refused.text().contains("machines_left_behind"), "{}", refused.text());
    ensure!(refused.text().contains(&device.text()), "it names the machine: {}", refused.text());
    ensure!(server_key(&api)? == keys[MAX_LINKS], "a refusal changes nothing");

    // Sixteen links in one word, as iPXE is given them.
    let (asked, links) = asked_with_pin(&device, &first)?;
    ensure!(links.len() == MAX_LINKS && follow(&first, &links) == Ok(keys[MAX_LINKS]), "{} links", links.len());
    // Times are whole seconds: what was proved in that of the rotation may have been before it.
    let second = || SystemTime::now().duration_since(UNIX_EPOCH).map(|since| since.as_secs()).unwrap_or_default();
    let rotated = second();
    wait_for("the next second", || second() > rotated)?;
    ensure!(device.report(&device.key)?.contains("set kstate bound"), "a machine that reports");
    ensure!(api.get(KEY)?["left_behind_next"] == 1, "a report is no proof: it comes before the machine has looked at any key");
    ensure!(device.boots(asked)?.contains(BELIEVED), "sixteen rotations later");
    let shown = api.get(KEY)?;
    ensure!(shown["left_behind_next"] == 0, "the machine has proved itself to the new key: {shown}");
    let last = rotate(&api)?;
    ensure!(asked_with_pin(&device, &first)?.1.is_empty(), "the first key is forgotten");
    let (_, links) = asked_with_pin(&device, &keys[1])?;
    ensure!(follow(&keys[1], &links) == Ok(last), "the second one is not");
    net.passed();
    Ok(())
}

/// The form by which a device answers and brings a new key.
fn with_rekey(device: &Device, (challenge, server_key): Asked, rekey: &SignedRekey) -> String {
    let form = device.answer(challenge, server_key, |answer| answer.sign(&device.key));
    format!("{form}&rekey={}", hex::encode(rekey.to_bytes()))
}

fn signed(device: &Device, (challenge, server_key): Asked, by_old: &SigningKey, new: &SigningKey) -> SignedRekey {
    let (old, new_key) = (device.key.verifying_key().to_bytes(), new.verifying_key().to_bytes());
    Rekey { nonce: challenge.nonce, mac: device.mac, server_key, old, new: new_key }.sign(by_old, new)
}

fn stored(api: &Api, device: &Device) -> Result<Value> {
    api.get(&format!("/v1/devices/{}", device.text()))
}

fn is_stored(api: &Api, device: &Device, key: &SigningKey) -> Result<bool> {
    Ok(stored(api, device)?["public_key"] == format!("ed25519:{}", hex::encode(key.verifying_key().as_bytes())))
}

fn order(api: &Api, device: &Device, order: &Value) -> Result<Value> {
    api.ask("POST", &format!("/v1/devices/{}/rekey", device.text()), Some(order))
}

#[test]
fn an_ordered_device_key_needs_both_signatures_and_outlives_a_crash() -> Result<()> {
    let net = Net::new("keys-rekey")?;
    net.keep(net.serve()?);
    let api = net.api()?;
    let mut device = Device::bound(&net, &api, 1, "atlas")?;
    let (new, thief) = (SigningKey::from_bytes(&[3; 32]), SigningKey::from_bytes(&[9; 32]));

    // One that nobody ordered is not looked at.
    let asked = device.challenge(&device.mac)?;
    ensure!(asked.0.flags & FLAG_REKEY == 0, "no order, no flag");
    let said = device.post("/boot-vars", &with_rekey(&device, asked, &signed(&device, asked, &device.key, &new)))?.text();
    ensure!(said.contains(BELIEVED) && is_stored(&api, &device, &device.key)?, "{said}");

    let ordered = order(&api, &device, &json!({ "minutes": 10 }))?;
    ensure!(ordered["rekey_signed"] == true, "{ordered}");
    let asked = device.challenge(&device.mac)?;
    ensure!(asked.0.flags & FLAG_REKEY != 0 && asked.0.expects(device.key.verifying_key().as_bytes()), "{:?}", asked.0);
    let good = signed(&device, asked, &device.key, &new);
    for (why, bad) in [
        ("not by the old key", signed(&device, asked, &thief, &new)),
        ("not by the new key", SignedRekey { by_new: good.by_old, ..good }),
        ("another new key", SignedRekey { new: thief.verifying_key().to_bytes(), ..good }),
        ("for another challenge", signed(&device, device.challenge(&device.mac)?, &device.key, &new)),
    ] {
        let said = device.post("/boot-vars", &with_rekey(&device, asked, &bad))?.text();
        ensure!(said.contains("rekey_failed") && is_stored(&api, &device, &device.key)?, "{why}: {said}");
    }
    ensure!(audited(&api, "rekey_failed")? > 0, "the refusals are in the audit");
    // Nothing was used up: neither the challenge nor the order.
    let said = device.post("/boot-vars", &with_rekey(&device, asked, &good))?.text();
    ensure!(set(&said, "kagain") == Some("1"), "{said}");
    let api = starts_again(&net, || Ok(()))?;
    let kept = stored(&api, &device)?;
    ensure!(is_stored(&api, &device, &new)? && kept["rekey_signed"] == false, "after kill -9: {kept}");

    let asked = device.challenge(&device.mac)?;
    ensure!(asked.0.flags & FLAG_REKEY == 0 && asked.0.expects(new.verifying_key().as_bytes()), "the new key is expected, once");
    let said = device.boots(asked)?;
    ensure!(said.contains("verify_failed"), "the old key signs nothing any more: {said}");
    device.key = new;
    ensure!(device.boots(asked)?.contains(BELIEVED), "the new key");
    net.passed();
    Ok(())
}

#[test]
fn an_order_that_ended_takes_no_key_and_the_old_one_boots() -> Result<()> {
    let net = Net::new("keys-ended")?;
    net.keep(net.serve()?);
    let api = net.api()?;
    let device = Device::bound(&net, &api, 1, "atlas")?;
    let new = SigningKey::from_bytes(&[3; 32]);
    let refuses = |asked: Asked| -> Result<()> {
        let said = device.post("/boot-vars", &with_rekey(&device, asked, &signed(&device, asked, &device.key, &new)))?.text();
        ensure!(said.contains(BELIEVED) && is_stored(&api, &device, &device.key)?, "{said}");
        Ok(())
    };
    // Withdrawn while the answer was on its way.
    order(&api, &device, &json!({ "minutes": 10 }))?;
    let asked = device.challenge(&device.mac)?;
    order(&api, &device, &json!({ "minutes": 0 }))?;
    refuses(asked)?;

    // Its time is over: as if this had been ordered long ago.
    let until = order(&api, &device, &json!({ "minutes": 10 }))?["rekey_until"].as_str().context("an end")?.to_owned();
    let asked = device.challenge(&device.mac)?;
    let file = net.path("state/devices.yml");
    wait_for("the order in the file", || fs::read_to_string(&file).is_ok_and(|text| text.contains(&until)))?;
    starts_again(&net, || {
        let text = fs::read_to_string(&file)?;
        fs::write(&file, text.replace(&until, "2026-01-01T00:00:00Z")).context("edit the order")
    })?;
    let after = device.challenge(&device.mac)?;
    ensure!(after.0.flags & FLAG_REKEY == 0, "an order that is over is given to nobody: {}", stored(&api, &device)?);
    refuses(after)?;
    // And a challenge of before the restart is of another process.
    let said = device.post("/boot-vars", &with_rekey(&device, asked, &signed(&device, asked, &device.key, &new)))?.text();
    ensure!(said.contains("nonce_unknown") && is_stored(&api, &device, &device.key)?, "{said}");
    net.passed();
    Ok(())
}

#[test]
fn only_a_replaced_board_may_bring_any_key_and_only_once() -> Result<()> {
    let net = Net::new("keys-replaced")?;
    net.keep(net.serve()?);
    let api = net.api()?;
    let mut device = Device::bound(&net, &api, 1, "atlas")?;
    let (new, other) = (SigningKey::from_bytes(&[3; 32]), SigningKey::from_bytes(&[9; 32]));
    ensure!(device.report(&new)?.contains("key_mismatch"), "nothing was ordered");
    order(&api, &device, &json!({ "minutes": 10 }))?;
    ensure!(device.report(&new)?.contains("key_mismatch"), "a signed order is for the machine itself");
    ensure!(is_stored(&api, &device, &device.key)?, "a report has brought a key");
    let ordered = order(&api, &device, &json!({ "minutes": 10, "replaced": true }))?;
    ensure!(ordered["rekey_signed"] == false, "{ordered}");
    // The board that is there makes no key for such an order.
    ensure!(device.challenge(&device.mac)?.0.flags & FLAG_REKEY == 0, "the flag is for signed orders");
    device.report(&new)?;
    ensure!(is_stored(&api, &device, &new)?, "the new board's key");
    ensure!(device.report(&other)?.contains("key_mismatch") && is_stored(&api, &device, &new)?, "a second one");
    device.key = new;
    ensure!(device.boots(device.challenge(&device.mac)?)?.contains(BELIEVED), "the new board boots");
    net.passed();
    Ok(())
}
