//! `Idempotency-Key`: a client that lost an answer asks again with the same key, and what it asked for is done once.
//!
//! Before the handler runs, a *begun* record is durable; its answer follows behind it. After a crash in between nobody knows
//! whether the handler did its work, and that is what a repetition is told. [`store`] has the file.

mod shares;
mod store;

use super::guard::Actor;
use super::problem::Problem;
use super::{Api, body};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, ETAG, LOCATION};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;
pub(super) use store::Store;
use store::{Answer, Begin, End, Slot};

const HEADER: HeaderName = HeaderName::from_static("idempotency-key");
/// Says that an answer is the first one again.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const MAX_KEY_OCTETS: usize = 255;
/// Headers that are part of an answer.
const KEPT_HEADERS: [HeaderName; 3] = [CONTENT_TYPE, LOCATION, ETAG];
/// Their bodies hold a passphrase or a password: no digest of one is kept, so a repetition is recognised by all the rest.
const SECRET_BODIES: [&str; 4] = ["/v1/backup", "/v1/restore", "/v1/users", "/v1/login"];
/// Their names in those bodies.
const SECRET_FIELDS: [&str; 2] = ["passphrase", "password"];

/// On an answer that holds a secret: it is not kept, and a repetition is told so.
#[derive(Clone, Copy)]
pub(super) struct ShownOnce;

/// Runs what changes something to its end, whether or not the client waits for it, and once per key.
pub(super) async fn once(State(api): State<Api>, request: Request, next: Next) -> Result<Response, Problem> {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(next.run(request).await);
    }
    let key = if request.method() == Method::POST { key(request.headers())? } else { None };
    let actor = request.extensions().get::<Actor>().cloned();
    // Nobody leaves nothing behind here.
    let key = key.zip(actor);
    let Some((key, Actor(actor))) = key else {
        // A task of its own: a client that goes away must not leave half a change behind, nor a panic end the connection.
        return tokio::spawn(next.run(request)).await.map_err(|_| super::problem::of_panic());
    };
    let (parts, body) = request.into_parts();
    let octets = body::octets(parts.uri.path(), body).await?;
    let slot = Slot { actor, key };
    let digest = digest(&parts, &octets);
    let store = Arc::clone(&api.once);
    let began = blocking({
        let (store, slot) = (Arc::clone(&store), slot.clone());
        move || store.begin(slot, digest, kurrent_sys::clock::now().wall)
    });
    match began.await? {
        Begin::Fresh => {}
        Begin::Refused(problem) => return Err(problem),
        Begin::Again(answer) => return Ok(replay(answer)),
    }
    let request = Request::from_parts(parts, Body::from(octets));
    let ran = tokio::spawn(async move {
        // In the task, so that the answer is kept also when nobody waits for it any more.
        let ran = tokio::spawn(next.run(request)).await;
        let (response, end) = match ran {
            Ok(response) => kept(response).await,
            Err(_) => (super::problem::of_panic().into_response(), End::Unknown),
        };
        // What could not be written is told by the store; the answer is good all the same.
        let _ = blocking(move || store.end(&slot, end)).await;
        response
    });
    ran.await.map_err(|_| super::problem::of_panic())
}

fn key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all(HEADER).iter();
    let (first, second) = (values.next(), values.next());
    let Some(value) = first else { return Ok(None) };
    let fine = |b: &u8| (0x21..=0x7e).contains(b);
    if second.is_some() || !(1..=MAX_KEY_OCTETS).contains(&value.len()) || !value.as_bytes().iter().all(fine) {
        let what = format!("an Idempotency-Key is one header of 1 to {MAX_KEY_OCTETS} visible ASCII characters, like a UUID; correct it");
        return Err(Problem::new(400, "idempotency_key_invalid", what).at("Idempotency-Key"));
    }
    Ok(value.to_str().ok().map(str::to_owned))
}

/// What makes a request the same request.
fn digest(parts: &axum::http::request::Parts, body: &[u8]) -> String {
    let target = parts.uri.path_and_query().map_or("", |p| p.as_str());
    let kind = body::media_type(&parts.headers).unwrap_or_default();
    let shown;
    let body = if SECRET_BODIES.contains(&parts.uri.path()) {
        shown = without_secrets(body);
        shown.as_bytes()
    } else {
        body
    };
    let mut sha = Sha256::new();
    for part in [target.as_bytes(), kind.as_bytes(), body] {
        sha.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        sha.update(part);
    }
    hex::encode(sha.finalize())
}

/// The fields of a body but its secrets, which are not copied; of what is no object nothing, as it will be refused.
fn without_secrets(body: &[u8]) -> String {
    let mut fields: BTreeMap<String, &serde_json::value::RawValue> = serde_json::from_slice(body).unwrap_or_default();
    fields.retain(|name, _| !SECRET_FIELDS.contains(&name.as_str()));
    serde_json::to_string(&fields).unwrap_or_default()
}

/// What is kept of an answer, and the answer itself.
async fn kept(response: Response) -> (Response, End) {
    match response.status() {
        // Nothing was done: the client may ask again with the same key.
        StatusCode::REQUEST_TIMEOUT
        | StatusCode::PAYLOAD_TOO_LARGE
        | StatusCode::TOO_MANY_REQUESTS
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::INSUFFICIENT_STORAGE => return (response, End::Forgotten),
        status if status.is_server_error() => return (response, End::Unknown),
        _ => {}
    }
    if response.extensions().get::<ShownOnce>().is_some() {
        return (response, End::ShownOnce);
    }
    let (parts, body) = response.into_parts();
    let Ok(collected) = body.collect().await else {
        return (super::problem::of_panic().into_response(), End::Unknown);
    };
    let octets = collected.to_bytes();
    let headers: BTreeMap<String, String> =
        KEPT_HEADERS.iter().filter_map(|name| Some((name.to_string(), parts.headers.get(name)?.to_str().ok()?.to_owned()))).collect();
    let end = String::from_utf8(octets.to_vec())
        .map_or(End::NotKept, |body| End::Answered(Answer { status: parts.status.as_u16(), headers, body }).bounded());
    (Response::from_parts(parts, Body::from(octets)), end)
}

fn replay(answer: Answer) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, answer.body).into_response();
    response.headers_mut().remove(CONTENT_TYPE);
    for (name, value) in &answer.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_str(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    tokio::task::spawn_blocking(work).await.map_err(|_| super::problem::of_panic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_with_a_passphrase_is_told_apart_by_all_but_the_passphrase() {
        let of = |path: &str, body: &str| digest(&Request::builder().uri(path).body(()).unwrap().into_parts().0, body.as_bytes());
        let restore = |body: &str| of("/v1/restore", body);
        let dry = restore(r#"{"passphrase": "one", "dry_run": true}"#);
        assert_ne!(dry, restore(r#"{"passphrase": "one", "dry_run": false}"#), "a restore is not its preview");
        assert_eq!(dry, restore(r#"{"dry_run":true,"pass\u0070hrase":"two"}"#), "nothing of the passphrase is in it");
        assert_eq!(restore("x"), restore("[]"));
        let user = |password: &str| of("/v1/users", &format!(r#"{{"name": "ada", "password": "{password}"}}"#));
        assert_eq!(user("one"), user("two"), "nor of a password");
        assert_ne!(of("/v1/devices", r#"{"passphrase": "one"}"#), of("/v1/devices", r#"{"passphrase": "two"}"#));
    }
}
