//! `GET /v1/openapi.json`: the router and this document are made of the same list, so neither can lack what the other has.
//!
//! Handlers are annotated with what is theirs: the successful answer, the body, the query. What is the same for all of them
//! (errors, path segments, conditional requests, `Idempotency-Key`, the token) is added here by rule.

use super::etag::{IF_MATCH_NAME, IF_NONE_MATCH_NAME};
use super::names::{Address, DiskFile, DiskTag, MacAddress, Name, NodeName, UserName, WorkerName};
use super::problem::{self, Problem};
use axum::http::Method;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use kurrent_core::access::{self, Asker};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::LazyLock;
use utoipa::openapi::OpenApi;
use utoipa::{PartialSchema, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const ABOUT: &str = "Devices, Workers, system disks and settings of one Kurrent appliance. Who asks has a bearer token; what may be done with it is a matter of roles. Lists \
    come in pieces: `limit`, `cursor`, and `next` when more follows. Single records have an `ETag`; `If-Match` makes a change depend on \
    it. Every `POST` takes an `Idempotency-Key`: asked again with the same key and the same request, the first answer comes again.";

/// Answers that any operation may give: name, status, when.
const ERRORS: &[(&str, u16, &str)] = &[
    ("Invalid", 400, "The path, the query string, a header or the body can not be read."),
    ("TokenNeeded", 401, "The bearer token is missing or wrong."),
    ("NotPermitted", 403, "Who asks may not do this."),
    ("NotFound", 404, "What the path names is not there."),
    ("TooSlow", 408, "The body did not arrive in time."),
    ("Conflict", 409, "What is so now does not allow it."),
    ("PreconditionFailed", 412, "If-Match names another version than the present one."),
    ("TooLarge", 413, "The body is larger than this path takes."),
    ("WrongMediaType", 415, "The body is of another media type than this path takes."),
    ("NotAllowed", 422, "The body can be read, but is not allowed."),
    ("TooMany", 429, "There were wrong passwords before; Retry-After says how long to wait."),
    ("Fault", 500, "kurrentd or the disk failed; for a change, whether it was made is unknown."),
    ("NotServed", 503, "The ledgers can not be served now."),
    ("NotDurable", 507, "It could not be made durable; nothing changed."),
];

static DOCUMENT: LazyLock<String> = LazyLock::new(|| document(super::routes().into_openapi()).to_string());

/// Methods and paths of the operations that say they heed `If-Match`.
static CONDITIONAL: LazyLock<BTreeSet<(String, String)>> = LazyLock::new(|| {
    operations(|operation| operation["parameters"].as_array().is_some_and(|p| p.iter().any(|p| p["name"] == IF_MATCH_NAME)))
});

/// Methods and paths of all operations.
static DESCRIBED: LazyLock<BTreeSet<(String, String)>> = LazyLock::new(|| operations(|_| true));

fn operations(wanted: impl Fn(&Value) -> bool) -> BTreeSet<(String, String)> {
    let document = document(super::routes().into_openapi());
    let of = |(path, item): (&String, &Value)| {
        let methods = item.as_object().into_iter().flatten().filter(|(_, operation)| wanted(operation));
        methods.map(|(method, _)| (method.to_uppercase(), path.clone())).collect::<Vec<_>>()
    };
    document["paths"].as_object().into_iter().flatten().flat_map(of).collect()
}

/// Whether there is such a call. `path` is as the router has it.
pub(super) fn is_described(method: &Method, path: &str) -> bool {
    let method = if *method == Method::HEAD { Method::GET } else { method.clone() };
    DESCRIBED.contains(&(method.to_string(), path.to_owned()))
}

/// Whether a call looks at `If-Match`. `path` is as the router has it.
pub(super) fn heeds_if_match(method: &Method, path: &str) -> bool {
    CONDITIONAL.contains(&(method.to_string(), path.to_owned()))
}

pub(super) fn routes() -> OpenApiRouter<super::Api> {
    OpenApiRouter::new().routes(routes!(get_openapi))
}

/// This document
#[utoipa::path(get, path = "/v1/openapi.json", tag = "system", responses((status = 200, description = "OpenAPI 3.1", body = Object)))]
async fn get_openapi() -> Response {
    ([(CONTENT_TYPE, "application/json")], DOCUMENT.as_str()).into_response()
}

/// The whole document.
pub(super) fn document(openapi: OpenApi) -> Value {
    let mut document = serde_json::to_value(&openapi).unwrap_or_default();
    document["info"] = json!({
        "title": "Kurrent", "version": env!("CARGO_PKG_VERSION"), "description": ABOUT,
        "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
    });
    document["security"] = json!([{ "token": [] }]);
    document["components"]["securitySchemes"] = json!({ "token": { "type": "http", "scheme": "bearer", "description": "`POST /v1/login` gives one; the first-run token on the appliance's screen only makes the first admin." } });
    document["components"]["schemas"]["Problem"] = schema::<Problem>();
    for (name, text) in super::names::all() {
        document["components"]["schemas"][name] = serde_json::to_value(text).unwrap_or_default();
    }
    for (name, _, when) in ERRORS {
        document["components"]["responses"][name] = problem::response(when);
    }
    let needed: Vec<String> = (document["components"]["schemas"].as_object().into_iter().flatten())
        .filter(|(_, schema)| schema["required"].as_array().is_some_and(|r| !r.is_empty()))
        .map(|(name, _)| format!("#/components/schemas/{name}"))
        .collect();
    if let Some(paths) = document["paths"].as_object_mut() {
        for (path, item) in paths {
            for (method, operation) in item.as_object_mut().into_iter().flatten() {
                complete(path, method, operation);
                if access::may(Asker::Nobody, &method.to_uppercase(), path).is_ok() {
                    operation["security"] = json!([]);
                }
                if let Some(body) = operation.get_mut("requestBody") {
                    // An empty body stands for `{}`; a raw one may be empty.
                    let content = &body["content"];
                    let is_list = content["application/json"]["schema"]["type"] == "array";
                    let schema = content["application/json"]["schema"]["$ref"].as_str().unwrap_or_default();
                    body["required"] = (is_list || needed.iter().any(|n| n == schema)).into();
                }
            }
        }
    }
    document
}

fn schema<T: PartialSchema + ToSchema>() -> Value {
    serde_json::to_value(T::schema()).unwrap_or_default()
}

/// Adds to one operation what it has in common with others.
fn complete(path: &str, method: &str, operation: &mut Value) {
    let segments: Vec<&str> = path.split('/').filter_map(|s| s.strip_prefix('{')?.strip_suffix('}')).collect();
    let (has_body, changes) = (operation.get("requestBody").is_some(), method != "get");
    let mut parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
    parameters.iter_mut().for_each(|p| without_null(&mut p["schema"]));
    for segment in &segments {
        parameters.push(json!({ "name": segment, "in": "path", "required": true, "schema": segment_schema(path, segment) }));
    }
    let header = |name: &str, what: &str, schema: Value| json!({ "name": name, "in": "header", "required": false, "description": what, "schema": schema });
    if method == "post" {
        let what = "The same key with the same request gets the first answer again, for 24 hours.";
        let schema = json!({ "type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$" });
        parameters.push(header("Idempotency-Key", what, schema));
    }
    let heeds = |name: &str| parameters.iter().any(|p| p["in"] == "header" && p["name"] == name);
    let conditional = heeds(IF_MATCH_NAME);
    if heeds(IF_NONE_MATCH_NAME) {
        operation["responses"]["304"] = json!({ "description": "The client has this version." });
    }
    if !parameters.is_empty() {
        operation["parameters"] = Value::Array(parameters);
    }
    let applies = |status: u16| match status {
        400 | 401 | 403 | 500 | 503 => true,
        404 => !segments.is_empty() || method == "post",
        408 | 413 | 415 | 422 => has_body || method == "post",
        409 | 507 => changes,
        412 => conditional,
        429 => ["/v1/login", "/v1/whoami/password"].contains(&path),
        _ => false,
    };
    let Some(responses) = operation["responses"].as_object_mut() else { return };
    for (name, status, _) in ERRORS.iter().filter(|(_, status, _)| applies(*status)) {
        responses.entry(status.to_string()).or_insert_with(|| json!({ "$ref": format!("#/components/responses/{name}") }));
    }
}

/// A query key that may be left out can not be null all the same.
fn without_null(schema: &mut Value) {
    if let Some(types) = schema["type"].as_array_mut() {
        types.retain(|t| t != "null");
        if let [one] = types.as_slice() {
            schema["type"] = one.clone();
        }
    }
    if let Some([_, only]) = schema["oneOf"].as_array().filter(|o| o.first() == Some(&json!({ "type": "null" }))).map(Vec::as_slice) {
        *schema = only.clone();
    }
    let Some(map) = schema.as_object_mut() else { return };
    map.retain(|_, v| !v.is_null());
}

/// The form of a path segment.
fn segment_schema(path: &str, segment: &str) -> Value {
    match segment {
        "mac" => schema::<MacAddress>(),
        "tag" => schema::<DiskTag>(),
        "address" => schema::<Address>(),
        "id" if path.starts_with("/v1/workers/") => schema::<WorkerName>(),
        "name" if path.starts_with("/v1/users/") => schema::<UserName>(),
        "name" if path.starts_with("/v1/agents/") => schema::<NodeName>(),
        "name" => schema::<DiskFile>(),
        _ => schema::<Name>(),
    }
}
