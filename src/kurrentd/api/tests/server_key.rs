//! `/v1/server-key`, and orders of new device keys.

use super::*;
use kurrent_core::ledger::Change;

const KEY: &str = "/v1/server-key";
const ROTATE: &str = "/v1/server-key/rotate";

fn device_key(n: u8) -> String {
    format!("ed25519:{}", hex::encode(ed25519_dalek::SigningKey::from_bytes(&[n; 32]).verifying_key().to_bytes()))
}

#[tokio::test]
async fn a_rotation_is_durable_audited_and_shown_with_its_time_and_no_seed_is_ever_told() {
    let api = server().await;
    let file = api.shared.config.state_dir.join("secrets/server.key");
    let seed = || std::fs::read_to_string(&file).unwrap().lines().next().unwrap().to_owned();
    let (first, first_seed) = (api.expect(("GET", KEY, Value::Null), 200, "").await, seed());
    assert_eq!((&first["former"], &first["rotations_left"], &first["not_followed"]), (&json!([]), &json!(16), &json!(0)));
    let second = api.expect(("POST", ROTATE, json!({})), 200, "").await;
    let held = crate::identity::Identity::open(&api.shared.config.state_dir.join("secrets")).unwrap().now();
    assert_eq!(second["public_key"], hex::encode(held.public()), "what is answered is in the file");
    assert_eq!(held.former().map(hex::encode).collect::<Vec<_>>(), [first["public_key"].as_str().unwrap()]);
    assert_eq!(second["former"][0]["fingerprint"], first["fingerprint"]);
    assert_ne!(second["fingerprint"], first["fingerprint"]);
    assert_eq!(second["rotations_left"], 15);
    assert_eq!(api.expect(("GET", KEY, Value::Null), 200, "").await, second);
    let audit = api.expect(("GET", "/v1/operations?verb=server-key-rotate", Value::Null), 200, "").await;
    let line = &audit["operations"][0];
    assert_eq!((&line["result"], &line["object"]), (&json!("ok"), &second["fingerprint"]));
    assert!(line["actor"].as_str().is_some_and(|a| a.contains("ada")), "{line}");
    assert_eq!(second["former"][0]["replaced_at"], line["at"]);
    for told in [&second, &audit] {
        assert!(!told.to_string().contains(&first_seed) && !told.to_string().contains(&seed()));
    }
}

#[tokio::test]
async fn a_rotation_that_forgets_a_key_is_refused_while_machines_may_have_it_pinned_unless_forced() {
    let api = server().await;
    let (seen, unseen) = ("52:54:00:00:00:01", "52:54:00:00:00:02");
    for (mac, n) in [(seen, 1), (unseen, 2)] {
        api.expect(("POST", "/v1/devices", json!({"mac": mac, "public_key": device_key(n)})), 201, "").await;
    }
    for left in (0..16).rev() {
        let rotated = api.expect(("POST", ROTATE, json!({})), 200, "").await;
        assert_eq!((rotated["rotations_left"].as_u64(), rotated["not_followed"].as_u64()), (Some(left), Some(2)));
    }
    let full = api.expect(("GET", KEY, Value::Null), 200, "").await;
    assert_eq!(full["left_behind_next"], 2);
    let proved = |mac: &str| Change::Proved { mac: mac.parse().unwrap(), at: kurrent_sys::clock::now().wall };
    api.shared.ledger.submit(proved(seen), "device").await.unwrap();
    let refused = api.expect(("POST", ROTATE, json!({})), 409, "machines_left_behind").await;
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains(unseen) && !detail.contains(seen) && detail.contains("1 machine"), "{detail}");
    assert_eq!(api.expect(("GET", KEY, Value::Null), 200, "").await["public_key"], full["public_key"], "nothing has changed");
    let forced = api.expect(("POST", ROTATE, json!({"force": true})), 200, "").await;
    assert_eq!(forced["former"][0], full["former"][1], "the oldest is forgotten");
    api.shared.ledger.submit(proved(unseen), "device").await.unwrap();
    api.expect(("POST", ROTATE, json!({})), 200, "").await;
}

#[tokio::test]
async fn a_key_that_can_not_be_stored_is_told_and_the_old_one_holds() {
    let api = server().await;
    let before = api.expect(("GET", KEY, Value::Null), 200, "").await;
    std::fs::remove_dir_all(api.shared.config.state_dir.join("secrets")).unwrap();
    api.expect(("POST", ROTATE, json!({})), 507, "not_durable").await;
    assert_eq!(api.expect(("GET", KEY, Value::Null), 200, "").await, before);
}

#[tokio::test]
async fn a_rekey_is_signed_where_the_key_can_sign_and_any_key_only_when_the_board_was_replaced() {
    let api = server().await;
    let order = format!("{MAC}/rekey");
    api.expect(("POST", "/v1/devices", json!({"mac": "52:54:00:00:00:01"})), 201, "").await;
    let refused = api.expect(("POST", &order, json!({"minutes": 5})), 409, "rekey_unsignable").await;
    assert_eq!(refused["field"], "replaced");
    let device = api.expect(("POST", &order, json!({"minutes": 5, "replaced": true})), 200, "").await;
    assert_eq!((device["rekey_signed"].as_bool(), device["rekey_until"].is_string()), (Some(false), true));
    let mac = "52:54:00:00:00:01".parse().unwrap();
    let report = |n| Change::Report { mac, uuid: String::new(), public_key: Some(device_key(n)), fingerprint: Default::default() };
    api.shared.ledger.submit(report(1), "device").await.unwrap();
    let device = api.expect(("POST", &order, json!({"minutes": 5})), 200, "").await;
    assert_eq!((device["rekey_signed"].as_bool(), device["public_key"].as_str()), (Some(true), Some(device_key(1).as_str())));
    api.shared.ledger.submit(report(2), "device").await.unwrap();
    let device = api.expect(("GET", MAC, Value::Null), 200, "").await;
    assert_eq!((device["rekey_signed"].as_bool(), device["public_key"].as_str()), (Some(true), Some(device_key(1).as_str())), "unsigned");
    let answer = api.expect(("GET", &format!("{MAC}/explain"), Value::Null), 200, "").await;
    assert!(answer["findings"].as_array().unwrap().iter().any(|f| f["code"] == "rekey_waits"), "{answer}");
    let device = api.expect(("POST", &order, json!({"minutes": 0})), 200, "").await;
    assert_eq!((device["rekey_signed"].as_bool(), device.get("rekey_until")), (Some(false), None));
}
