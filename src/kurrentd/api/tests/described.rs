//! The description of the API is complete: it is made of the routes, so it can not lack one; here is what each must say.

use super::*;

pub(super) fn operations() -> Vec<(String, String, Value)> {
    let document = openapi::document(routes().into_openapi());
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            all.push((method.to_uppercase(), path.clone(), operation.clone()));
        }
    }
    all
}

/// Follows `$ref`s; whatever one points to must be there.
pub(super) fn resolved<'d>(document: &'d Value, value: &'d Value) -> &'d Value {
    match value["$ref"].as_str() {
        None => value,
        Some(to) => {
            let found = document.pointer(to.strip_prefix('#').unwrap()).unwrap_or_else(|| panic!("{to} is not there"));
            resolved(document, found)
        }
    }
}

fn walk(document: &Value, value: &Value, depth: usize) {
    assert!(depth < 64, "no end: {value}");
    resolved(document, value);
    match value {
        Value::Object(map) => map.values().for_each(|v| walk(document, v, depth + 1)),
        Value::Array(list) => list.iter().for_each(|v| walk(document, v, depth + 1)),
        _ => {}
    }
}

#[test]
fn every_operation_is_described_in_full() {
    let document = openapi::document(routes().into_openapi());
    assert_eq!(document["openapi"], "3.1.0");
    walk(&document, &document, 0);
    let mut ids = std::collections::BTreeSet::new();
    for (method, path, operation) in operations() {
        let here = format!("{method} {path}: {operation}");
        let id = operation["operationId"].as_str().unwrap_or_else(|| panic!("{here}"));
        assert!(ids.insert(id.to_owned()), "{id} twice");
        assert!(operation["summary"].as_str().is_some_and(|s| !s.is_empty()), "{here}");
        assert!(operation["tags"][0].is_string(), "{here}");
        let responses = operation["responses"].as_object().unwrap();
        for status in ["400", "401", "403", "500", "503"] {
            assert!(responses.contains_key(status), "{status} of {here}");
        }
        let changes = method != "GET";
        for status in ["409", "507"] {
            assert_eq!(responses.contains_key(status), changes, "{status} of {here}");
        }
        assert!(responses.keys().any(|s| s.starts_with('2')), "{here}");
        for (status, response) in responses {
            let response = resolved(&document, response);
            assert!(response["description"].is_string(), "{here}");
            if status.starts_with('4') || status.starts_with('5') {
                assert!(response["content"]["application/problem+json"].is_object(), "{status} of {here}");
            }
        }
        let empty = Vec::new();
        let parameters = operation["parameters"].as_array().unwrap_or(&empty);
        let has = |place: &str, name: &str| parameters.iter().any(|p| p["in"] == place && p["name"] == name);
        assert_eq!(responses.contains_key("412"), has("header", "If-Match"), "{here}");
        assert_eq!(responses.contains_key("304"), has("header", "If-None-Match"), "{here}");
        for segment in path.split('/').filter_map(|s| s.strip_prefix('{')?.strip_suffix('}')) {
            assert!(has("path", segment), "{here}");
        }
        assert_eq!(has("header", "Idempotency-Key"), method == "POST", "{here}");
        if let Some(schema) = operation["requestBody"]["content"]["application/json"].get("schema") {
            let schema = resolved(&document, schema);
            let schema = schema.get("items").map_or(schema, |items| resolved(&document, items));
            assert_eq!(schema["additionalProperties"], false, "an unknown field is refused: {here} {schema}");
        }
    }
}

#[tokio::test]
async fn the_description_is_served_and_is_what_the_router_has() {
    let api = server().await;
    let document = api.expect(("GET", "/v1/openapi.json", Value::Null), 200, "").await;
    assert_eq!(document, openapi::document(routes().into_openapi()));
    for (method, path, operation) in operations() {
        if operation["responses"]["200"]["content"].get("text/event-stream").is_some() {
            continue; // It does not end by itself.
        }
        // Any value of the right form: what matters is that the path has this method.
        let path = path.replace("{mac}", "52:54:00:00:00:99").replace("{id}", "none").replace("{tag}", "000000000000");
        let path = path.replace("{name}", "none").replace("{address}", "10.0.0.1");
        let (status, answer) = api.ask(&method, &path, "{\"nonsense\":1}").await;
        assert!(answer["code"] != "no_such_path" && status != 405, "{method} {path}: {status} {answer}");
    }
}

#[tokio::test]
async fn a_condition_is_heeded_where_the_description_has_it_and_refused_elsewhere() {
    let api = server().await;
    for (method, path, operation) in operations().into_iter().filter(|(method, ..)| method != "GET") {
        let described = operation["parameters"].as_array().is_some_and(|p| p.iter().any(|p| p["name"] == "If-Match"));
        let path = path.replace("{mac}", "52:54:00:00:00:99").replace("{id}", "none").replace("{tag}", "000000000000");
        let path = path.replace("{name}", "none").replace("{address}", "10.0.0.1");
        for (header, refused) in [("If-Match", !described), ("If-None-Match", true)] {
            let (status, answer) = api.ask_with(&method, &path, &[(header, "\"older\"")], "{\"nonsense\":1}").await;
            let found = (status, answer["code"].as_str()) == (400, Some("condition_not_supported"));
            assert_eq!(found, refused, "{header} {method} {path}: {status} {answer}");
        }
    }
}
