//! Conditional requests, settings, what a Worker does and would be told.

use super::*;

#[tokio::test]
async fn a_change_that_names_an_older_version_is_refused_by_the_writer() {
    let api = server().await;
    api.expect(("POST", "/v1/devices", json!({"mac": "52:54:00:00:00:01", "keyless_allowed": true})), 201, "").await;
    api.expect(("POST", "/v1/workers", json!({"worker_id": "w1"})), 201, "").await;
    let boot = "/v1/workers/w1/boot";
    let bind = format!("{MAC}/bind");
    let table = [
        (MAC, "PATCH", MAC, json!({"note": "n"}), 200),
        (MAC, "PUT", &format!("{MAC}/labels"), json!({"labels": {"a": "b"}}), 200),
        (MAC, "POST", &format!("{MAC}/rekey"), json!({"minutes": 5, "replaced": true}), 200),
        (MAC, "POST", &bind, json!({"worker_id": "w1"}), 200),
        (MAC, "POST", &format!("{MAC}/revoke"), json!({}), 200),
        ("/v1/workers/w1", "PUT", boot, json!({"method": "nvme"}), 200),
        ("/v1/settings", "PATCH", "/v1/settings", json!({"enforcement": false}), 200),
        (MAC, "DELETE", MAC, Value::Null, 204),
        ("/v1/workers/w1", "DELETE", "/v1/workers/w1", Value::Null, 200),
    ];
    for (record, method, path, body, status) in &table {
        let tag = api.tag(record).await;
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (found, answer) = api.ask_with(method, path, &[("If-Match", "\"older\"")], &body).await;
        assert_eq!((found, answer["code"].as_str()), (412, Some("precondition_failed")), "{method} {path}: {answer}");
        assert_eq!(api.tag(record).await, tag, "{method} {path}");
        let (found, answer) = api.ask_with(method, path, &[("If-Match", "older")], &body).await;
        assert_eq!((found, answer["field"].as_str()), (400, Some("if-match")), "{method} {path}: {answer}");
        let (found, answer) = api.ask_with(method, path, &[("If-Match", &format!("\"x\", {tag}"))], &body).await;
        assert_eq!(found, *status, "{method} {path}: {answer}");
    }
}

#[tokio::test]
async fn who_has_the_version_gets_304_without_a_body() {
    let api = server().await;
    api.expect(("POST", "/v1/devices", json!({"mac": "52:54:00:00:00:01"})), 201, "").await;
    api.expect(("POST", "/v1/workers", json!({"worker_id": "w1"})), 201, "").await;
    let path = "/v1/workers";
    let tag = api.tag(path).await;
    for (given, status) in [(tag.clone(), 304), (format!("W/{tag}"), 304), ("*".into(), 304), ("\"other\"".into(), 200)] {
        let (found, body) = api.ask_with("GET", path, &[("If-None-Match", &given)], "").await;
        assert_eq!((found, body.is_null()), (status, status == 304), "{path} {given}");
    }
    // The tag does not cover all of these: an address, a boot, a clock or another record has a part in them.
    for path in [MAC, "/v1/devices", "/v1/workers/w1", "/v1/settings", "/v1/disks", "/v1/workers/w1/disks"] {
        let tag = api.tag(path).await;
        let (found, body) = api.ask_with("GET", path, &[("If-None-Match", &tag)], "").await;
        assert_eq!((found, body.is_null()), (200, false), "{path}");
    }
    let before = api.tag("/v1/devices").await;
    api.expect(("POST", "/v1/workers", json!({"worker_id": "w2"})), 201, "").await;
    assert_ne!(api.tag("/v1/devices").await, before, "a list's tag is the ledger's generation");
}

#[tokio::test]
async fn enforcement_can_be_overridden_and_the_boot_decision_follows() {
    let api = server().await;
    api.expect(("POST", "/v1/devices", json!({"mac": "52:54:00:00:00:01"})), 201, "").await;
    api.expect(("POST", "/v1/workers", json!({"worker_id": "w1"})), 201, "").await;
    let disk = api.expect(("POST", "/v1/workers/w1/disks", json!({"os": "data", "size_bytes": 1_048_576})), 201, "").await;
    api.expect(("POST", &format!("{MAC}/bind"), json!({"worker_id": "w1"})), 200, "").await;
    let vars = api.ask("GET", "/v1/workers/w1/boot-vars", "").await.1;
    assert_eq!((vars["boots"].as_bool(), vars["code"].as_str()), (Some(false), Some("no_key")), "{vars}");
    for (value, now) in [(json!(false), false), (Value::Null, true), (json!(true), true), (json!(false), false)] {
        let settings = api.expect(("PATCH", "/v1/settings", json!({"enforcement": value})), 200, "").await;
        assert_eq!((settings["enforcement"].as_bool(), &settings["enforcement_override"]), (Some(now), &value));
        assert_eq!(api.expect(("GET", "/v1/status", Value::Null), 200, "").await["enforcement"], now);
    }
    let vars = api.ask("GET", "/v1/workers/w1/boot-vars", "").await.1;
    assert_eq!((vars["boots"].as_bool(), &vars["variables"]["os-tag"]), (Some(true), &disk["os_tag"]), "{vars}");
    assert_eq!(vars["variables"]["hostname"], "w1");
    // K21: with nothing chosen to boot the machine is told to reboot, never a wrong system.
    api.expect(("PATCH", "/v1/settings", json!({"boot": {"menu_default": "reboot"}})), 200, "").await;
    let vars = api.ask("GET", "/v1/workers/w1/boot-vars", "").await.1;
    assert_eq!((vars["code"].as_str(), vars["variables"]["menu-default"].as_str()), (Some("no_disk"), Some("reboot")), "{vars}");
    for body in [json!({"boot": {"method": "iscsi"}, "enforcement": true}), json!({"enforcement": true, "boot": {"kernel": "disk"}})] {
        api.expect(("PATCH", "/v1/settings", body), 422, "not_in_this_version").await;
        assert_eq!(api.expect(("GET", "/v1/settings", Value::Null), 200, "").await["enforcement_override"], false, "all or nothing");
    }
}

#[tokio::test]
async fn k41_credentials_are_shown_without_their_secrets_and_replaced() {
    let api = server().await;
    api.expect(("POST", "/v1/devices", json!({"mac": "52:54:00:00:00:01", "keyless_allowed": true})), 201, "").await;
    api.expect(("POST", "/v1/workers", json!({"worker_id": "w1"})), 201, "").await;
    let rotate = "/v1/workers/w1/credentials/rotate";
    api.expect(("POST", rotate, json!({})), 409, "worker_not_bound").await;
    api.expect(("POST", "/v1/workers/none/credentials/rotate", json!({})), 404, "worker_not_found").await;
    api.expect(("POST", "/v1/workers/w1/disks", json!({"os": "data", "size_bytes": 1_048_576})), 201, "").await;
    let bound = api.expect(("POST", &format!("{MAC}/bind"), json!({"worker_id": "w1"})), 200, "").await;
    assert_eq!(bound["data_plane"], "followed");
    let list = api.expect(("GET", "/v1/credentials", Value::Null), 200, "").await;
    let first = list["credentials"][0].clone();
    assert_eq!(
        (first["worker_id"].as_str(), first["epoch"].as_u64(), first["current"].as_bool()),
        (Some("w1"), bound["epoch"].as_u64(), Some(true))
    );
    let secrets = std::fs::read_to_string(api.shared.config.state_dir.join("secrets/credentials.yml")).unwrap();
    assert!(secrets.contains("DHHC-1") && !list.to_string().contains("DHHC-1"), "{list}");
    let status = api.expect(("GET", "/v1/workers/w1/status", Value::Null), 200, "").await;
    assert_eq!((status["device"].as_str(), status["exported"].as_array().map(Vec::len)), (Some("52:54:00:00:00:01"), Some(1)), "{status}");
    let rotated = api.expect(("POST", rotate, json!({})), 200, "").await;
    assert!(rotated["epoch"].as_u64() > bound["epoch"].as_u64() && rotated["data_plane"] == "followed", "{rotated}");
    api.expect(("DELETE", "/v1/workers/w1", Value::Null), 200, "").await;
    let list = api.expect(("GET", "/v1/credentials", Value::Null), 200, "").await;
    assert!(list["credentials"].as_array().unwrap().iter().all(|c| c["current"] == false), "{list}");
}

#[tokio::test]
async fn credentials_come_in_pieces_and_of_one_worker() {
    let api = server().await;
    // A name that begins with another one is not in its way.
    for (n, worker) in ["w1", "w1-a", "w10"].iter().enumerate() {
        let mac = format!("52:54:00:00:00:0{n}");
        api.expect(("POST", "/v1/devices", json!({"mac": mac, "keyless_allowed": true})), 201, "").await;
        api.expect(("POST", "/v1/workers", json!({"worker_id": worker})), 201, "").await;
        api.expect(("POST", &format!("/v1/workers/{worker}/disks"), json!({"os": "data", "size_bytes": 1_048_576})), 201, "").await;
        api.expect(("POST", &format!("/v1/devices/{mac}/bind"), json!({"worker_id": worker})), 200, "").await;
    }
    let (mut seen, mut path) = (Vec::new(), "/v1/credentials?limit=1".to_owned());
    loop {
        let piece = api.expect(("GET", &path, Value::Null), 200, "").await;
        seen.extend(piece["credentials"].as_array().unwrap().iter().map(|c| c["worker_id"].as_str().unwrap().to_owned()));
        let Some(next) = piece["next"].as_str() else { break };
        path = format!("/v1/credentials?limit=1&cursor={next}");
    }
    assert_eq!(seen, ["w1", "w1-a", "w10"]);
    let one = api.expect(("GET", "/v1/credentials?worker=w1", Value::Null), 200, "").await;
    assert_eq!((one["credentials"].as_array().map(Vec::len), one["credentials"][0]["worker_id"].as_str()), (Some(1), Some("w1")));
}

#[tokio::test]
async fn leases_name_their_subnet_and_are_filtered_by_it() {
    let api = server().await;
    let mac = |last: u8| kurrent_core::id::MacAddr([0x52, 0x54, 0, 0, 0, last]);
    let held = [([10, 77, 0, 130], 1), ([10, 77, 0, 131], 2), ([192, 0, 2, 9], 3)];
    api.shared.leases.store(std::sync::Arc::new(held.into_iter().map(|(address, last)| (address.into(), mac(last))).collect()));
    let all = api.expect(("GET", "/v1/leases", Value::Null), 200, "").await;
    assert_eq!((all["leases"][0]["subnet"].as_str(), all["leases"][2].get("subnet")), (Some("10.77.0.0/24"), None), "{all}");
    for (subnet, found) in [("10.77.0.0/24", 2), ("10.77.0.128/30", 2), ("10.77.0.131/32", 1), ("10.78.0.0/24", 0), ("0.0.0.0/0", 3)] {
        let some = api.expect(("GET", &format!("/v1/leases?subnet={subnet}"), Value::Null), 200, "").await;
        assert_eq!(some["leases"].as_array().map(Vec::len), Some(found), "{subnet}: {some}");
    }
    let wrong = api.expect(("GET", "/v1/leases?subnet=10.77.0.1/24", Value::Null), 400, "query_invalid").await;
    assert_eq!(wrong["field"], "subnet", "{wrong}");
}

#[tokio::test]
async fn a_lease_is_released_by_its_owner_only() {
    let api = server().await;
    api.expect(("DELETE", "/v1/leases/10.77.0.101", Value::Null), 503, "dhcp_not_served").await;
    for address in ["10.77.0", "10.77.0.256", "::1", "10.77.0.101%00", "１0.77.0.101"] {
        let (status, answer) = api.ask("DELETE", &format!("/v1/leases/{address}"), "").await;
        assert!(status == 400 || status == 0, "{address}: {status} {answer}");
    }
}
