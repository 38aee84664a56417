//! Errors as `application/problem+json` (RFC 9457). `code` is for programs and stable, `detail` says what to do.

use crate::ledger::SubmitError;
use crate::storage::StorageError;
use axum::Json;
use axum::http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use kurrent_core::id::InvalidName;
use serde::Serialize;
use serde_json::json;
use std::num::NonZeroU32;
use utoipa::ToSchema;

/// Begins `type`: a name for people and programs to compare, nothing to fetch.
const TYPE_PREFIX: &str = "urn:kurrent:problem:";

/// Why a request was not carried out (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Problem {
    /// `urn:kurrent:problem:` and the code.
    #[serde(rename = "type")]
    #[schema(pattern = "^urn:kurrent:problem:[a-z0-9_]+$")]
    kind: String,
    /// The code in words.
    title: String,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// Stable, for programs.
    #[schema(value_type = String, pattern = "^[a-z0-9_]+$")]
    code: &'static str,
    /// What is wrong and what to do.
    detail: String,
    /// The field, path segment, query key or header at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    field: Option<String>,
    /// Seconds, as a header. So short because every refusal carries it.
    #[serde(skip)]
    retry_after: Option<NonZeroU32>,
}

impl Problem {
    pub(super) fn new(status: u16, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("{TYPE_PREFIX}{code}"),
            title: title(code),
            status,
            code,
            detail: detail.into(),
            field: None,
            retry_after: None,
        }
    }

    /// The stable word for it.
    pub(super) fn code(&self) -> &'static str {
        self.code
    }

    /// The field, path segment or query key at fault.
    pub(super) fn at(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// When it is worth trying again.
    pub(super) fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = NonZeroU32::new(u32::try_from(seconds).unwrap_or(u32::MAX));
        self
    }

    pub(super) fn detail(&self) -> &str {
        &self.detail
    }
}

/// `device_not_found` as "Device not found".
fn title(code: &str) -> String {
    let mut words = code.replace('_', " ");
    if let Some(first) = words.get_mut(0..1) {
        first.make_ascii_uppercase();
    }
    words
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if status.is_server_error() {
            tracing::error!("API: {} {}", self.code, self.detail);
        }
        let wait = self.retry_after;
        let mut response = (status, Json(self)).into_response();
        if let Some(seconds) = wait {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds.get()));
        }
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            // Who has no token keeps no connection.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl From<SubmitError> for Problem {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Rejected(r) => Self { field: r.field.map(str::to_owned), ..Self::new(r.status, r.code, r.detail) },
            SubmitError::NotDurable(_) => Self::new(507, "not_durable", error.to_string()),
            SubmitError::InDoubt(_) => Self::new(500, "in_doubt", error.to_string()),
            SubmitError::Stopped(_) => Self::new(503, "ledger_stopped", error.to_string()),
        }
    }
}

impl From<StorageError> for Problem {
    fn from(error: StorageError) -> Self {
        Self::new(error.status, error.code, error.detail)
    }
}

impl From<InvalidName> for Problem {
    fn from(error: InvalidName) -> Self {
        Self::new(400, "name_invalid", error.to_string()).at(error.what)
    }
}

/// A handler that panicked is our fault, told as such; the connection and everybody else go on.
pub(super) fn of_panic() -> Problem {
    Problem::new(500, "internal", "the request failed inside kurrentd; see its log, and report it")
}

/// Only for documentation: an error answer as OpenAPI has it.
pub(super) fn response(description: &str) -> serde_json::Value {
    json!({
        "description": description,
        "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_the_code_in_words() {
        for (code, words) in [("device_not_found", "Device not found"), ("x", "X"), ("", "")] {
            assert_eq!(title(code), words);
        }
    }
}
