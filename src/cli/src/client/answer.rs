//! What comes back, whoever sent it.

use crate::failure::{Failure, Problem};
use http_body_util::{BodyExt, Limited};
use hyper::Response;
use hyper::body::Incoming;
use hyper::header::ETAG;
use serde_json::Value;

/// A ledger of 20,000 devices is about this large.
const MAX_ANSWER_OCTETS: usize = 128 * 1024 * 1024;
/// Longer is no problem document of ours.
const MAX_PROBLEM_OCTETS: usize = 1024 * 1024;

/// An answer that says yes.
#[derive(Debug)]
pub struct Answer {
    /// Of what the answer shows.
    pub etag: Option<String>,
    /// Null when there is none.
    pub body: Value,
}

/// Reads the whole answer.
pub async fn read(response: Response<Incoming>, url: &str) -> Result<Answer, Failure> {
    let response = streamed(response, url).await?;
    let etag = response.headers().get(ETAG).and_then(|v| v.to_str().ok()).map(str::to_owned);
    let octets = Limited::new(response.into_body(), MAX_ANSWER_OCTETS).collect().await;
    let octets = octets.map_err(|e| Failure::Unreachable(format!("{url}: the answer was cut: {e}; ask again")))?.to_bytes();
    if octets.is_empty() {
        return Ok(Answer { etag, body: Value::Null });
    }
    let other = |_| Failure::Unreachable(format!("{url}: what answers there is not a Kurrent appliance's API; check address and port"));
    serde_json::from_slice(&octets).map(|body| Answer { etag, body }).map_err(other)
}

/// Reads the whole answer as text.
pub async fn text(response: Response<Incoming>, url: &str) -> Result<String, Failure> {
    let octets = Limited::new(streamed(response, url).await?.into_body(), MAX_PROBLEM_OCTETS).collect().await;
    let octets = octets.map_err(|e| Failure::Unreachable(format!("{url}: the answer was cut: {e}; ask again")))?.to_bytes();
    Ok(String::from_utf8_lossy(&octets).into_owned())
}

/// An answer whose body the caller reads; a refusal is read here.
pub async fn streamed(response: Response<Incoming>, url: &str) -> Result<Response<Incoming>, Failure> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let octets = Limited::new(response.into_body(), MAX_PROBLEM_OCTETS).collect().await.map(|b| b.to_bytes()).unwrap_or_default();
    let other = |_| Problem::new(status.as_u16(), "http", format!("{url} answers {status}; check that this is the API's address"));
    let mut problem = serde_json::from_slice(&octets).unwrap_or_else(other);
    // The exit code follows what HTTP says, whatever the body claims.
    problem.status = status.as_u16();
    Err(Failure::Refused(problem))
}
