//! What comes in: JSON bodies, path segments and query strings, each with one strict way to be read.

use super::problem::Problem;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequest, FromRequestParts, Query, RawPathParams, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use http_body_util::{BodyExt, Limited};
use kurrent_core::id::InvalidName;
use serde::de::DeserializeOwned;
use std::str::FromStr;
use std::time::Duration;

/// Larger than any order; a label set of the largest size fits.
const MAX_BODY_OCTETS: usize = 64 * 1024;
/// A body that trickles in holds a connection that others want.
const BODY_WITHIN: Duration = Duration::from_secs(15);

/// A JSON body. An empty one stands for `{}`.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let kind = request.headers().get(CONTENT_TYPE).map(|v| String::from_utf8_lossy(v.as_bytes()).to_ascii_lowercase());
        let collected = tokio::time::timeout(BODY_WITHIN, Limited::new(request.into_body(), MAX_BODY_OCTETS).collect()).await;
        let Ok(collected) = collected else {
            return Err(Problem::new(408, "body_too_slow", "the body did not arrive in time; send it again"));
        };
        let octets = match collected {
            Ok(body) => body.to_bytes(),
            Err(e) if e.is::<http_body_util::LengthLimitError>() => {
                return Err(Problem::new(413, "body_too_large", format!("the body is larger than {MAX_BODY_OCTETS} octets; send less")));
            }
            Err(_) => return Err(Problem::new(400, "body_cut", "the body ended too early; send it again")),
        };
        if octets.iter().all(u8::is_ascii_whitespace) {
            return read(b"{}").map(Self);
        }
        match kind.as_deref().map(|k| k.split(';').next().unwrap_or_default().trim()) {
            Some("application/json") => read(&octets).map(Self),
            _ => Err(Problem::new(415, "not_json", "the body must be JSON, with the header 'Content-Type: application/json'")),
        }
    }
}

fn read<T: DeserializeOwned>(octets: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(octets).map_err(|e| {
        let code = if e.is_data() { "body_invalid" } else { "body_not_json" };
        Problem::new(if e.is_data() { 422 } else { 400 }, code, format!("{e}; correct the body"))
    })
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

/// The query string; unknown keys are refused where `T` refuses them.
pub(super) fn query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Problem> {
    query.map(|Query(q)| q).map_err(|e| Problem::new(400, "query_invalid", e.body_text()))
}
