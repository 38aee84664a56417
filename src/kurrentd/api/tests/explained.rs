//! `GET /v1/devices/{mac}/explain`.

use super::*;

#[tokio::test]
async fn every_mac_is_explained_also_one_that_nobody_knows() {
    let api = server().await;
    let first = async |mac: &str| {
        let answer = api.expect(("GET", &format!("/v1/devices/{mac}/explain"), Value::Null), 200, "").await;
        assert_eq!(answer["summary"], answer["findings"][0]["what"]);
        answer["findings"][0]["code"].as_str().unwrap_or_default().to_owned()
    };
    let mac = "52:54:00:00:00:77";
    assert_eq!(first(mac).await, "never_seen");
    api.expect(("POST", "/v1/devices", json!({"mac": mac})), 201, "").await;
    assert_eq!(first(mac).await, "pooled");
    api.expect(("POST", "/v1/workers", json!({"worker_id": "w1"})), 201, "").await;
    api.expect(("POST", &format!("/v1/devices/{mac}/bind"), json!({"worker_id": "w1"})), 200, "").await;
    assert_eq!(first(mac).await, "no_key");
    api.expect(("POST", &format!("/v1/devices/{mac}/revoke"), json!({})), 200, "").await;
    assert_eq!(first(mac).await, "revoked");
    api.expect(("GET", "/v1/devices/nonsense/explain", Value::Null), 400, "name_invalid").await;
}
