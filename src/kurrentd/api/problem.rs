//! Errors as `application/problem+json` (RFC 9457).

use crate::ledger::SubmitError;
use crate::storage::StorageError;
use axum::Json;
use axum::http::header::{CONNECTION, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use kurrent_core::id::InvalidName;
use serde::Serialize;

/// One error answer.
#[derive(Debug, Serialize)]
pub(super) struct Problem {
    status: u16,
    code: &'static str,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
}

impl Problem {
    pub(super) fn new(status: u16, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), field: None }
    }

    /// The field, path segment or query key at fault.
    pub(super) fn at(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if status.is_server_error() {
            tracing::error!("API: {} {}", self.code, self.detail);
        }
        let mut response = (status, Json(self)).into_response();
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
            SubmitError::Rejected(r) => Self::new(r.status, r.code, r.detail),
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
