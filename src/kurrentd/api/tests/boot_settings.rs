//! What a Worker boots with.

use super::*;

#[tokio::test]
async fn boot_settings_that_would_change_nothing_are_refused() {
    let api = server().await;
    api.expect(("POST", "/v1/workers", json!({"worker_id": "w1"})), 201, "").await;
    let path = "/v1/workers/w1/boot";
    api.expect(("PUT", path, json!({"method": "nvme", "kernel": "appliance"})), 200, "").await;
    for body in [json!({"method": "iscsi"}), json!({"kernel": "disk"})] {
        api.expect(("PUT", path, body), 422, "not_in_this_version").await;
    }
    api.expect(("PUT", path, json!({"menu_default": "0123456789ab"})), 422, "boot_settings_invalid").await;
    assert_eq!(api.expect(("GET", "/v1/workers/w1", Value::Null), 200, "").await["boot"]["method"], "nvme");
    let set = json!({"menu_default": "reboot", "menu_timeout_ms": 3000});
    assert_eq!(api.expect(("PUT", path, set.clone()), 200, "").await["boot"], set);
}

#[tokio::test]
async fn the_preview_of_a_key_that_seals_nothing_says_that_it_does_not_boot() {
    let api = server().await;
    let key = format!("p256:04{}", "11".repeat(64));
    api.expect(("POST", "/v1/devices", json!({"mac": "52:54:00:00:00:01", "public_key": key})), 201, "").await;
    api.expect(("POST", "/v1/workers", json!({"worker_id": "w1"})), 201, "").await;
    api.expect(("POST", "/v1/workers/w1/disks", json!({"os": "data", "size_bytes": 1_048_576})), 201, "").await;
    api.expect(("POST", "/v1/devices/52:54:00:00:00:01/bind", json!({"worker_id": "w1"})), 200, "").await;
    let vars = api.ask("GET", "/v1/workers/w1/boot-vars", "").await.1;
    assert_eq!((vars["boots"].as_bool(), vars["code"].as_str()), (Some(false), Some("no_channel")), "{vars}");
    assert_eq!(vars["variables"]["hostname"], "w1", "it is told its variables all the same: {vars}");
}
