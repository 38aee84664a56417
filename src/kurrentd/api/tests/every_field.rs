//! Each field, path segment and query key of each call, as the description has them: whatever is put there is refused with a
//! reason or taken, never a fault of ours.

use super::described::{operations, resolved};
use super::*;

const LONG: usize = 20_000;
/// Percent-encoded, as they stand in a URL: ways up, NUL, no UTF-8, look-alikes of `w1`, a line break.
const SEGMENTS: [&str; 8] = ["..%2f..%2fetc%2fpasswd", "%2e%2e", "%00", "w1%00", "%ff%fe", "%EF%BD%97%EF%BC%91", "%D0%B0", "a%0d%0ab"];

/// A path whose segments are names that are there, or could be.
fn filled(path: &str, tag: &str) -> String {
    let names = [("{mac}", "52:54:00:00:00:01"), ("{tag}", tag), ("{name}", "local"), ("{address}", "10.77.0.9"), ("{id}", "w1")];
    names.iter().fold(path.to_owned(), |path, (key, name)| path.replace(key, name))
}

/// Whether a schema takes a JSON value of this kind.
fn takes(document: &Value, schema: &Value, kind: &str) -> bool {
    let schema = resolved(document, schema);
    let is = |word: &Value| word == kind || (word == "number" && kind == "integer");
    let mut several = ["oneOf", "anyOf", "allOf"].iter().filter_map(|key| schema[*key].as_array()).flatten();
    match &schema["type"] {
        Value::Array(kinds) => kinds.iter().any(is),
        Value::Null => several.any(|s| takes(document, s, kind)),
        one => is(one),
    }
}

/// What one value must come to.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Must {
    /// Refused: it is of another kind, too long or not text at all.
    Refuse,
    /// Anything but a fault.
    Answer,
}

/// `name` is the field's: a passphrase may be anything.
fn values(document: &Value, name: &str, schema: &Value) -> Vec<(Value, Must)> {
    let kinds = [
        ("string", json!("x")),
        ("integer", json!(7)),
        ("boolean", json!(true)),
        ("array", json!([[]])),
        ("object", json!({"a": {"b": []}})),
    ];
    let wrong = kinds.into_iter().filter(|(kind, _)| !takes(document, schema, kind)).map(|(_, value)| (value, Must::Refuse));
    let mut all: Vec<(Value, Must)> = wrong.chain([(json!(1.5), Must::Refuse)]).collect();
    if takes(document, schema, "string") {
        let must = if name == "passphrase" { Must::Answer } else { Must::Refuse };
        all.extend([(json!("x".repeat(LONG)), must), (json!("a\u{0}b"), must)]);
        let odd = ["", " ", "../../etc/passwd", "ｗ１", "а", "\u{202e}x", "a\r\nb", "%2e%2e", "-", "null"];
        all.extend(odd.map(|text| (json!(text), Must::Answer)));
    }
    if takes(document, schema, "integer") {
        all.extend([json!(-1), json!(u64::MAX), json!(0)].map(|number| (number, Must::Answer)));
    }
    all
}

impl Server {
    /// Sends octets as JSON; what comes back is an answer with a reason, if it is none.
    async fn odd(&self, method: &str, path: &str, body: &str, must: Must) {
        let (status, answer) = self.ask(method, path, body).await;
        let shown: String = body.chars().take(120).collect();
        let here = format!("{method} {path} {shown}: {status} {answer}");
        // A disk of 2^64 octets does not fit.
        assert!((200..500).contains(&status) || status == 507, "{here}");
        assert!(must == Must::Answer || status >= 400, "it was taken: {here}");
        if status >= 400 {
            assert!(answer["code"].is_string() && answer["detail"].as_str().is_some_and(|d| d.len() > 10), "{here}");
        }
    }
}

async fn furnished() -> (Server, Value, String) {
    let api = server().await;
    api.expect(("POST", "/v1/devices", json!({"mac": "52:54:00:00:00:01", "keyless_allowed": true})), 201, "").await;
    api.expect(("POST", "/v1/workers", json!({"worker_id": "w1"})), 201, "").await;
    let disk = api.expect(("POST", "/v1/workers/w1/disks", json!({"os": "data", "size_bytes": 1 << 20})), 201, "").await;
    let document = api.expect(("GET", "/v1/openapi.json", Value::Null), 200, "").await;
    let tag = disk["os_tag"].as_str().unwrap().to_owned();
    (api, document, tag)
}

#[tokio::test]
async fn each_field_of_each_body_is_refused_or_taken_and_never_a_fault() {
    let (api, document, tag) = furnished().await;
    let mut fields = 0;
    for (method, path, operation) in operations() {
        let body = resolved(&document, &operation["requestBody"]);
        let schema = resolved(&document, &body["content"]["application/json"]["schema"]);
        let path = filled(&path, &tag);
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            fields += 1;
            for (value, must) in values(&document, name, property) {
                api.odd(&method, &path, &json!({ name: value }).to_string(), must).await;
            }
            let item = resolved(&document, resolved(&document, property).get("items").unwrap_or(&Value::Null));
            for (inner, property) in item["properties"].as_object().into_iter().flatten() {
                fields += 1;
                for (value, must) in values(&document, inner, property) {
                    api.odd(&method, &path, &json!({ name: [{ inner: value }] }).to_string(), must).await;
                }
            }
            api.odd(&method, &path, &format!("{{\"{name}\": null, \"{name}\": null}}"), Must::Answer).await;
        }
        if schema.is_object() {
            api.odd(&method, &path, &"[".repeat(LONG), Must::Refuse).await;
            api.odd(&method, &path, &json!({"no such field": 1}).to_string(), Must::Refuse).await;
            api.odd(&method, &path, "{\"a\":", Must::Refuse).await;
        }
    }
    assert!(fields > 60, "{fields} fields");
}

#[tokio::test]
async fn each_path_segment_and_query_key_is_refused_or_taken_and_never_a_fault() {
    let (api, document, tag) = furnished().await;
    let long = "x".repeat(5000);
    let mut keys = 0;
    for (method, path, operation) in operations() {
        // Ends with what it watches, not by itself.
        let is_stream = path.ends_with("/events");
        let body = if operation["requestBody"].is_object() { "{}" } else { "" };
        let segments: Vec<&str> = path.split('/').filter(|s| s.starts_with('{')).collect();
        for segment in &segments {
            keys += 1;
            for value in SEGMENTS.iter().copied().chain([long.as_str()]) {
                let path = filled(&path.replacen(segment, value, 1), &tag);
                api.odd(&method, &path, body, Must::Refuse).await;
            }
        }
        let parameters = operation["parameters"].as_array().into_iter().flatten().map(|p| resolved(&document, p));
        for name in parameters.filter(|p| p["in"] == "query" && !is_stream).filter_map(|p| p["name"].as_str()) {
            keys += 1;
            let path = filled(&path, &tag);
            for value in SEGMENTS.iter().copied().chain(["", "-1", "1e9", "18446744073709551616", long.as_str()]) {
                api.odd(&method, &format!("{path}?{name}={value}"), body, Must::Answer).await;
            }
        }
        if method == "GET" && !is_stream {
            api.odd(&method, &format!("{}?no_such_key=1", filled(&path, &tag)), "", Must::Answer).await;
        }
    }
    assert!(keys > 60, "{keys} segments and keys");
}
