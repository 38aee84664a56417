//! What comes in: JSON bodies, path segments and query strings, each with one strict way to be read. What is wrong is told with
//! the field's name.

use super::problem::Problem;
use axum::body::HttpBody;
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use http_body_util::{BodyExt, Limited};
use hyper::body::Bytes;
use kurrent_core::id::InvalidName;
use serde::de::{DeserializeOwned, Deserializer, Error as _, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Larger than any order; a label set of the largest size fits.
const MAX_BODY_OCTETS: usize = 64 * 1024;
/// A thousand items.
const MAX_BATCH_OCTETS: usize = 1024 * 1024;
/// A ledger full of devices with notes and labels.
const MAX_IMPORT_OCTETS: usize = 8 * 1024 * 1024;
/// A body that trickles in holds a connection that others want.
const BODY_WITHIN: Duration = Duration::from_secs(15);
/// So much of a body that is refused is still taken, and dropped: closing on unread octets resets the connection, and the refusal
/// with its reason would be lost on the way. Whoever announces more is answered at once.
const MAX_DROPPED_OCTETS: u64 = 16 * 1024 * 1024;
const DROPPED_WITHIN: Duration = Duration::from_secs(5);
/// The same for what is streamed to a disk.
const DRAIN_WITHIN: Duration = Duration::from_secs(20);

/// Most octets of the body of a request to this path.
pub(super) fn max_octets(path: &str) -> usize {
    match path {
        "/v1/devices/import" => MAX_IMPORT_OCTETS,
        "/v1/devices/bind" | "/v1/workers/batch-delete" => MAX_BATCH_OCTETS,
        _ if path.ends_with("/batch") => MAX_BATCH_OCTETS,
        _ => MAX_BODY_OCTETS,
    }
}

/// Takes what a refused sender still sends, for a while: closing on unread octets resets the connection, and the refusal with
/// its reason would be lost on the way.
pub(super) async fn drain(mut body: axum::body::Body) {
    let all = async { while body.frame().await.is_some_and(|frame| frame.is_ok()) {} };
    // Whoever sends on for longer is cut off.
    let _ = tokio::time::timeout(DRAIN_WITHIN, all).await;
}

/// The whole body, at most as large as the path allows.
pub(super) async fn octets(path: &str, body: axum::body::Body) -> Result<Bytes, Problem> {
    let most = max_octets(path);
    let too_large = || Problem::new(413, "body_too_large", format!("the body is larger than {most} octets; send less"));
    let announced = body.size_hint().lower();
    if usize::try_from(announced).map_or(true, |a| a > most) {
        if announced <= MAX_DROPPED_OCTETS {
            let mut body = body;
            let all = async { while body.frame().await.is_some_and(|frame| frame.is_ok()) {} };
            // Whoever sends on for longer is cut off.
            let _ = tokio::time::timeout(DROPPED_WITHIN, all).await;
        }
        return Err(too_large());
    }
    match tokio::time::timeout(BODY_WITHIN, Limited::new(body, most).collect()).await {
        Err(_) => Err(Problem::new(408, "body_too_slow", "the body did not arrive in time; send it again")),
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(e)) if e.is::<http_body_util::LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err(Problem::new(400, "body_cut", "the body ended too early; send it again")),
    }
}

/// The media type of a request's body, without its parameters.
pub(super) fn media_type(headers: &axum::http::HeaderMap) -> Option<String> {
    let kind = headers.get(CONTENT_TYPE).map(|v| String::from_utf8_lossy(v.as_bytes()).to_ascii_lowercase())?;
    Some(kind.split(';').next().unwrap_or_default().trim().to_owned())
}

/// A JSON body. An empty one stands for `{}`.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let kind = media_type(request.headers());
        let path = request.uri().path().to_owned();
        let octets = octets(&path, request.into_body()).await?;
        if octets.iter().all(u8::is_ascii_whitespace) {
            return json(b"{}").map(Self);
        }
        match kind.as_deref() {
            Some("application/json") => json(&octets).map(Self),
            _ => Err(Problem::new(415, "not_json", "the body must be JSON, with the header 'Content-Type: application/json'")),
        }
    }
}

/// Reads JSON; nothing may follow it.
pub(super) fn json<T: DeserializeOwned>(octets: &[u8]) -> Result<T, Problem> {
    // serde takes a list for an object's fields in their order: nobody means that.
    if octets.iter().find(|o| !o.is_ascii_whitespace()) == Some(&b'[') {
        return Err(Problem::new(422, "body_invalid", "the body is a list; send an object"));
    }
    let mut reader = serde_json::Deserializer::from_slice(octets);
    let wrong = |e: &serde_json::Error, field: String| {
        let (status, code) = if e.is_data() { (422, "body_invalid") } else { (400, "body_not_json") };
        let problem = Problem::new(status, code, format!("{e}; correct the body"));
        if e.is_data() && field != "." { problem.at(field) } else { problem }
    };
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|e| wrong(e.inner(), e.path().to_string()))?;
    reader.end().map_err(|e| wrong(&e, ".".into()))?;
    Ok(value)
}

/// For `deserialize_with`: names and values of which none may occur twice, where serde would keep the last one.
pub(super) fn unique_map<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    struct Unique;
    impl<'de> Visitor<'de> for Unique {
        type Value = BTreeMap<String, String>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object of texts")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let mut map = BTreeMap::new();
            while let Some((key, value)) = entries.next_entry::<String, String>()? {
                if map.contains_key(&key) {
                    return Err(A::Error::custom(format_args!("the key {key:?} is there twice")));
                }
                map.insert(key, value);
            }
            Ok(map)
        }
    }
    deserializer.deserialize_map(Unique)
}

/// For `deserialize_with`, together with `default`: a field that may be `null`, which is not the same as left out.
pub(super) fn given<'de, T: serde::Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// The segments of the path, read by name into checked names.
pub(super) struct Segments(RawPathParams);

impl<S: Send + Sync> FromRequestParts<S> for Segments {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = RawPathParams::from_request_parts(parts, state).await;
        params.map(Self).map_err(|_| Problem::new(400, "path_invalid", "the path is not UTF-8; correct it"))
    }
}

impl Segments {
    pub(super) fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| value)
    }

    pub(super) fn read<T: FromStr<Err = InvalidName>>(&self, name: &str) -> Result<T, Problem> {
        Ok(self.text(name).parse()?)
    }
}

/// The query string, read into a struct; a key may repeat where the struct has a list. Unknown keys are refused where it refuses
/// them.
pub(super) struct Query<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let query = parts.uri.query().unwrap_or_default();
        // An empty value would be read as none at all.
        if let Some(pair) = query.split('&').find(|p| !p.is_empty() && p.split_once('=').is_none_or(|(_, value)| value.is_empty())) {
            let key = pair.split('=').next().unwrap_or_default();
            return Err(Problem::new(400, "query_invalid", "a key of the query string has no value; give it one, or leave it out").at(key));
        }
        let reader = serde_html_form::Deserializer::from_bytes(query.as_bytes());
        let wrong = |e: serde_path_to_error::Error<_>| {
            let problem = Problem::new(400, "query_invalid", format!("{}; correct the query string", e.inner()));
            if e.path().iter().next().is_some() { problem.at(e.path().to_string()) } else { problem }
        };
        serde_path_to_error::deserialize(reader).map(Self).map_err(wrong)
    }
}
