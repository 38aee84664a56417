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
