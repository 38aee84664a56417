//! `ETag`, `If-Match` and `If-None-Match` (RFC 9110 section 13).
//!
//! A single record's tag is a digest of what the ledger keeps of it (`kurrentd::ledger::expect`): what is derived (an address, how
//! far a boot is) or merely reported does not change it. A list's tag is the ledger's generation. 304 is answered only where the tag
//! covers all of the body: nowhere that an address, a clock, a file or another record has a part in it.

use super::problem::Problem;
use crate::ledger::expect::Expectation;
use axum::extract::{FromRequestParts, MatchedPath, Request};
use axum::http::header::{ETAG, IF_MATCH, IF_NONE_MATCH};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use utoipa::IntoParams;
use utoipa::openapi::Required;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ObjectBuilder, Type};

/// Longest value of one of the headers.
const MAX_OCTETS: usize = 1024;

/// What a request says about the version that it means. Both are `*` or a list of quoted tags.
#[derive(Clone, Debug, Default)]
pub(super) struct Conditions {
    if_match: Option<String>,
    if_none_match: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for Conditions {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Ok(Self { if_match: tags(&parts.headers, &IF_MATCH)?, if_none_match: tags(&parts.headers, &IF_NONE_MATCH)? })
    }
}

/// Whether the headers can be read, whoever looks at them.
pub(super) fn check(headers: &HeaderMap) -> Result<(), Problem> {
    tags(headers, &IF_MATCH).and_then(|_| tags(headers, &IF_NONE_MATCH)).map(drop)
}

/// For the description of a handler that heeds `If-Match`; elsewhere it is refused.
pub(super) struct IfMatch;
/// For the description of a handler that heeds `If-None-Match`.
pub(super) struct IfNoneMatch;

impl IntoParams for IfMatch {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![described(IF_MATCH_NAME, "Only when the record still has one of these tags.")]
    }
}

impl IntoParams for IfNoneMatch {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![described(IF_NONE_MATCH_NAME, "304 when the version is one of these.")]
    }
}

pub(super) const IF_MATCH_NAME: &str = "If-Match";
pub(super) const IF_NONE_MATCH_NAME: &str = "If-None-Match";

fn described(name: &str, what: &str) -> Parameter {
    let tags = ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some(r##"^(\*|"[!#-~]*"(, "[!#-~]*")*)$"##))
        .max_length(Some(MAX_OCTETS))
        .build();
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(what))
        .schema(Some(tags))
        .build()
}

/// Conditions that nobody would look at are refused: whoever sends one relies on it.
pub(super) fn heeded(request: &Request) -> Result<(), Problem> {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(());
    }
    let Some(path) = request.extensions().get::<MatchedPath>() else { return Ok(()) };
    let given = |name| request.headers().contains_key(name);
    if given(&IF_NONE_MATCH) || (given(&IF_MATCH) && !super::openapi::heeds_if_match(request.method(), path.as_str())) {
        let what = "this call does not look at conditions; leave the header out, or read first and decide by what is so now";
        let name = if given(&IF_NONE_MATCH) { IF_NONE_MATCH } else { IF_MATCH };
        return Err(Problem::new(400, "condition_not_supported", what).at(name.as_str()));
    }
    Ok(())
}

fn tags(headers: &HeaderMap, name: &HeaderName) -> Result<Option<String>, Problem> {
    let wrong = || {
        let what = format!("the header {name} is * or a list of tags in double quotes, as the header ETag has them; correct it");
        Problem::new(400, "header_invalid", what).at(name.as_str())
    };
    let mut all = Vec::new();
    for value in headers.get_all(name) {
        all.push(value.to_str().map_err(|_| wrong())?.trim());
    }
    if all.is_empty() {
        return Ok(None);
    }
    let all = all.join(", ");
    let quoted = |tag: &str| {
        let inner = tag.strip_prefix("W/").unwrap_or(tag).strip_prefix('"').and_then(|t| t.strip_suffix('"'));
        inner.is_some_and(|t| !t.contains('"'))
    };
    let fine = all.len() <= MAX_OCTETS && (all == "*" || all.split(',').map(str::trim).all(quoted));
    if fine { Ok(Some(all)) } else { Err(wrong()) }
}

impl Conditions {
    /// What the writer has to check, for the record that `If-Match` is about.
    pub(super) fn expect(&self, of: impl Fn(String) -> Expectation) -> Vec<Expectation> {
        self.if_match.iter().cloned().map(of).collect()
    }

    /// The answer to a `GET` of what has this tag (in quotes): 304 when the client has it.
    pub(super) fn answer(&self, tag: &str, body: impl IntoResponse) -> Response {
        let weakly = |given: &str| given == "*" || given.strip_prefix("W/").unwrap_or(given) == tag;
        let same = self.if_none_match.as_ref().is_some_and(|t| t.split(',').map(str::trim).any(weakly));
        let response = if same { StatusCode::NOT_MODIFIED.into_response() } else { body.into_response() };
        tagged(tag, response)
    }
}

/// Puts the `ETag` (in quotes) on an answer.
pub(super) fn tagged(tag: &str, body: impl IntoResponse) -> Response {
    let mut response = body.into_response();
    if let Ok(value) = HeaderValue::from_str(tag) {
        response.headers_mut().insert(ETAG, value);
    }
    response
}

/// The tag of a list at a generation of the ledger.
pub(super) fn of_generation(generation: u64) -> String {
    format!("\"g{generation}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_read_strictly() {
        for (text, expected) in [
            ("*", Some("*")),
            ("\"a\"", Some("\"a\"")),
            ("\"a\", \"b\"", Some("\"a\", \"b\"")),
            ("W/\"a\"", Some("W/\"a\"")),
            ("a", None),
            ("\"a", None),
            ("\"", None),
            ("", None),
            ("\"a\"b\"", None),
            (&format!("\"{}\"", "a".repeat(MAX_OCTETS)), None),
        ] {
            let headers = HeaderMap::from_iter([(IF_MATCH, HeaderValue::from_str(text).unwrap())]);
            assert_eq!(tags(&headers, &IF_MATCH).ok().flatten().as_deref(), expected, "{text}");
        }
        assert!(matches!(tags(&HeaderMap::new(), &IF_MATCH), Ok(None)));
    }
}
