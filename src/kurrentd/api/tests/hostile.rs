//! Bad input, field by field.

use super::*;

/// What no field of text with a form takes.
const NO_NAMES: [&str; 10] = ["", " ", "a b", "a\u{0}", "..", "../x", "a/b", "ｗ1", "w\u{200b}", "x\n"];

#[tokio::test]
async fn every_field_refuses_what_it_is_not() {
    let api = server().await;
    api.expect(("POST", "/v1/devices", json!({"mac": "52:54:00:00:00:01"})), 201, "").await;
    api.expect(("POST", "/v1/workers", json!({"worker_id": "w1"})), 201, "").await;
    let before = api.shared.ledger.snapshot().generation;
    let long = "x".repeat(2000);
    let wrong_types = [json!(1), json!(-1), json!(1.5), json!(true), json!([]), json!({"a": []}), json!(1e300)];
    let texts: Vec<Value> = NO_NAMES.iter().map(|t| json!(t)).chain([json!(long)]).chain(wrong_types.clone()).collect();
    let names = [
        ("POST", "/v1/devices", json!({}), "mac"),
        ("POST", "/v1/devices", json!({"mac": "52:54:00:00:00:02"}), "public_key"),
        ("POST", "/v1/workers", json!({}), "worker_id"),
        ("POST", "/v1/devices/52:54:00:00:00:01/bind", json!({}), "worker_id"),
        ("POST", "/v1/workers/w1/disks", json!({"size_bytes": 4096}), "os"),
        ("POST", "/v1/workers/w1/disks", json!({"os": "a"}), "master"),
        ("PUT", "/v1/workers/w1/default-disk", json!({}), "os_tag"),
        ("PATCH", MAC, json!({}), "loader"),
    ];
    for (method, path, base, field) in &names {
        for value in &texts {
            // Dots are part of versions and systems; in a file's name they are no way up.
            if (*field, value) != ("os", &json!("..")) {
                refuse(&api, method, path, base, field, value).await;
            }
        }
    }
    let others = [
        (
            "POST",
            "/v1/devices",
            json!({"mac": "52:54:00:00:00:02"}),
            "note",
            vec![json!(long), json!("a\u{0}"), json!("\u{1b}[1m"), json!(7)],
        ),
        ("POST", "/v1/devices", json!({"mac": "52:54:00:00:00:02"}), "keyless_allowed", vec![json!("true"), json!(1), Value::Null]),
        (
            "PUT",
            "/v1/devices/52:54:00:00:00:01/labels",
            json!({}),
            "labels",
            vec![
                json!({"": "x"}),
                json!({"a b": ""}),
                json!({"ä": ""}),
                json!({"a": "\u{0}"}),
                json!({"a": 1}),
                json!([]),
                json!({long.as_str(): ""}),
            ],
        ),
        (
            "POST",
            "/v1/devices/52:54:00:00:00:01/rekey",
            json!({"replaced": true}),
            "minutes",
            vec![json!(61), json!(-1), json!("5"), json!(1.5), json!(5_000_000_000_u64)],
        ),
        ("PUT", "/v1/settings/registration-window", json!({}), "minutes", vec![json!(0), json!(61), json!("5"), json!(-1)]),
        ("PATCH", "/v1/settings", json!({}), "enforcement", vec![json!("off"), json!(0), json!([])]),
        (
            "PATCH",
            "/v1/settings",
            json!({}),
            "boot",
            vec![json!([]), json!({"method": "x"}), json!({"menu_timeout_ms": -1}), json!({"more": 1})],
        ),
        (
            "POST",
            "/v1/workers/w1/disks",
            json!({"os": "a"}),
            "size_bytes",
            vec![json!(0), json!(1), json!(-4096), json!("4096"), json!(1e30)],
        ),
        ("POST", "/v1/workers/batch", json!({"prefix": "a"}), "count", vec![json!(0), json!(1001), json!(-1), json!("1")]),
    ];
    for (method, path, base, field, values) in &others {
        for value in values {
            refuse(&api, method, path, base, field, value).await;
        }
    }
    assert_eq!(api.shared.ledger.snapshot().generation, before, "nothing was changed");
}

async fn refuse(api: &Server, method: &str, path: &str, base: &Value, field: &str, value: &Value) {
    let mut body = base.clone();
    body[field] = value.clone();
    // An empty key or remark may stand for none.
    let (status, answer) = api.ask(method, path, &body.to_string()).await;
    assert!(status == 400 || status == 422, "{method} {path} {field}={value}: {status} {answer}");
    assert!(answer["code"].is_string() && answer["type"].as_str().is_some_and(|t| t.starts_with("urn:kurrent:problem:")), "{answer}");
    if answer["code"] == "body_invalid" {
        assert!(answer["field"].as_str().is_some_and(|f| f.starts_with(field)), "{method} {path} {field}={value}: {answer}");
    }
}

#[tokio::test]
async fn a_key_that_is_there_twice_is_refused_wherever_it_is() {
    let api = server().await;
    api.expect(("POST", "/v1/devices", json!({"mac": "52:54:00:00:00:01"})), 201, "").await;
    for (method, path, body) in [
        ("POST", "/v1/workers", "{\"worker_id\":\"w1\",\"worker_id\":\"w2\"}"),
        ("PUT", "/v1/devices/52:54:00:00:00:01/labels", "{\"labels\":{\"a\":\"1\",\"a\":\"2\"}}"),
        ("PATCH", "/v1/settings", "{\"enforcement\":true,\"enforcement\":false}"),
        ("PATCH", "/v1/settings", "[null,null]"),
        ("POST", "/v1/devices/bind", "{\"items\":[{\"mac\":\"52:54:00:00:00:01\",\"mac\":\"52:54:00:00:00:02\",\"worker_id\":\"w\"}]}"),
    ] {
        let (status, answer) = api.ask(method, path, body).await;
        assert_eq!((status, answer["code"].as_str()), (422, Some("body_invalid")), "{body}: {answer}");
    }
}

#[tokio::test]
async fn bodies_of_any_size_and_depth_end_in_a_refusal() {
    let api = server().await;
    let auth = format!("Host: x\r\nConnection: close\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n", api.token);
    for (path, octets) in
        [("/v1/workers", 10 << 20), ("/v1/workers/batch", 10 << 20), ("/v1/devices/import", 10 << 20), ("/v1/workers", 65 << 10)]
    {
        for extra in ["", "Idempotency-Key: k\r\n"] {
            let head = format!("POST {path} HTTP/1.1\r\n{auth}{extra}Content-Length: {octets}\r\n\r\n");
            let (status, body) = api.raw(&[head.as_bytes(), &vec![b' '; octets]].concat()).await;
            assert_eq!(status, 413, "{path}: {body}");
        }
    }
    // Nothing of it was sent yet: the answer does not wait for it.
    let head = format!("POST /v1/workers HTTP/1.1\r\n{auth}Content-Length: 99999999999\r\n\r\n");
    assert_eq!(tokio::time::timeout(Duration::from_secs(5), api.raw(head.as_bytes())).await.map(|a| a.0), Ok(413));
    for deep in ["[".repeat(60_000), "{\"a\":".repeat(10_000)] {
        let (status, answer) = api.ask("POST", "/v1/workers", &deep).await;
        assert!(status == 400 || status == 422, "{status} {answer}");
    }
    assert_eq!(api.ask("GET", "/v1/status", "").await.0, 200);
}

#[tokio::test]
async fn a_wrong_method_is_told_the_right_ones() {
    let api = server().await;
    let head = format!("PATCH /v1/workers HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\r\n", api.token);
    let mut stream = TcpStream::connect(api.address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = rest(&mut stream).await.to_lowercase();
    assert!(answer.starts_with("http/1.1 405") && answer.contains("\r\nallow: ") && answer.contains("post"), "{answer}");
}
