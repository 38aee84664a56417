//! In front of every handler: who asks, and whether `core::access` lets them. The same is asked again when the whole body is there,
//! however slowly it came, and while events are told ([`Asked`]).
//!
//! A secret in a URL is refused before anybody looks at it. A token comes in the header `Authorization`, or, for the console, in a
//! cookie; then what changes something has to come from our own pages.

use super::problem::Problem;
use super::serve::From;
use super::{Api, etag, openapi};
use crate::audit::{AT_THE_DOOR, Event};
use crate::people::{By, PREFIX, PeopleError, asker};
use crate::shared::SharedRef;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{AUTHORIZATION, COOKIE, HOST, ORIGIN};
use axum::http::{HeaderMap, Method, Uri};
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use kurrent_core::access::people::Standing;
use kurrent_core::access::{Asker, Refusal, Role, may};
use kurrent_core::origin::Side;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

/// What is served although the ledgers do not read: it says what is wrong, or does not need them.
const WITHOUT_LEDGER: [&str; 10] = [
    "/v1/ca",
    "/v1/status",
    "/v1/state",
    "/v1/operations",
    "/v1/masters",
    "/v1/target",
    "/v1/jobs",
    "/v1/openapi.json",
    // A ledger that does not read is why one restores.
    "/v1/restore/archive",
    "/v1/restore",
];
/// The same for all that is below: people are kept elsewhere.
const PEOPLE: [&str; 5] = ["/v1/login", "/v1/logout", "/v1/whoami", "/v1/users", "/v1/tokens"];
/// Keys of a query string that a secret could be the value of.
const SECRET_KEYS: [&str; 9] = ["token", "access_token", "bearer", "authorization", "auth", "password", "passphrase", "secret", "api_key"];
/// The cookie of a session. `__Host-`: a browser takes it from us alone, over TLS.
pub(super) const COOKIE_NAME: &str = "__Host-kurrent";
const NOBODY: &str = "api client";

tokio::task_local! {
    /// Who asked for what this task does.
    static ACTING: String;
}

/// As the audit has them: `user NAME` or `token NAME/ID`. In the request's extensions.
#[derive(Clone)]
pub(super) struct Actor(pub(super) String);

/// Who asked for what is being done, for the audit.
pub(super) fn actor() -> String {
    ACTING.try_with(Clone::clone).unwrap_or_else(|_| NOBODY.into())
}

/// What a request proves. In its extensions.
#[derive(Clone)]
pub(super) enum Who {
    Nobody,
    FirstRun,
    Person(Standing),
}

impl Who {
    fn asker(&self) -> Asker<'_> {
        match self {
            Self::Nobody => Asker::Nobody,
            Self::FirstRun => Asker::FirstRun,
            Self::Person(standing) => asker(standing),
        }
    }

    fn actor(&self) -> Option<String> {
        match self {
            Self::Nobody => None,
            Self::FirstRun => Some("first-run token".into()),
            Self::Person(standing) if standing.session => Some(format!("user {}", standing.user)),
            Self::Person(standing) => Some(format!("token {}/{}", standing.user, standing.id)),
        }
    }

    /// Who asks for a change of people that takes this role; judged again when it is made.
    pub(super) fn by(&self, needs: Role) -> Result<By, Problem> {
        Ok(By { standing: self.person()?.clone(), needs })
    }

    /// The person; the table lets nobody else to a handler that asks.
    pub(super) fn person(&self) -> Result<&Standing, Problem> {
        match self {
            Self::Person(standing) => Ok(standing),
            Self::Nobody | Self::FirstRun => {
                Err(Problem::new(403, "role_missing", "this is for somebody who has logged in; do that first"))
            }
        }
    }
}

/// Who asked for what, for asking the table again: what takes its time must not outlive a token. In the request's extensions.
#[derive(Clone)]
pub(super) struct Asked {
    shared: SharedRef,
    who: Who,
    method: Method,
    /// As the router has it.
    path: String,
}

impl Asked {
    pub(super) fn new(shared: &SharedRef, who: Who, method: Method, path: &str) -> Self {
        Self { shared: shared.clone(), who, method, path: path.to_owned() }
    }

    /// Whether it may still be done: the token has not ended, and its user has not lost what it takes.
    pub(super) fn still(&self) -> Result<(), Problem> {
        let now = match &self.who {
            Who::Person(standing) => self.shared.people.standing_now(standing).map(Who::Person),
            Who::FirstRun => self.shared.people.first_run().map(|_| Who::FirstRun),
            Who::Nobody => Some(Who::Nobody),
        };
        let ended = || Problem::new(401, "token_wrong", "this token has ended meanwhile; log in with 'kurrent login'");
        permitted(now.ok_or_else(ended)?.asker(), &self.method, &self.path)
    }
}

/// A body that comes to its end only while who sends it still may.
struct Checked {
    body: Body,
    asked: Asked,
    /// Why not.
    refused: Arc<Mutex<Option<Problem>>>,
}

impl HttpBody for Checked {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(match frame {
            Some(frame) => Some(frame),
            None => self.asked.still().err().map(|problem| {
                *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
                Err(axum::Error::new("its sender may not do this any more"))
            }),
        })
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Handlers run with the name of who asked.
pub(super) async fn act(request: Request, next: Next) -> Response {
    let actor = request.extensions().get::<Actor>().map_or_else(|| NOBODY.to_owned(), |Actor(name)| name.clone());
    ACTING.scope(actor, next.run(request)).await
}

/// Nobody gets past here whom the table does not let; with unreadable ledgers only what does not need them.
pub(super) async fn guard(State(api): State<Api>, mut request: Request, next: Next) -> Result<Response, Problem> {
    if has_secret(request.uri()) {
        let what =
            "a URL is no place for a token or a password: it is kept in histories and logs; send the header 'Authorization: Bearer TOKEN'";
        return Err(refused(&api, None, Problem::new(400, "token_in_url", what)));
    }
    let matched = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str).to_owned();
    let who = who(&api, &request, &matched).map_err(|problem| refused(&api, None, problem))?;
    permitted(who.asker(), request.method(), &matched).map_err(|problem| refused(&api, who.actor(), problem))?;
    let path = request.uri().path();
    let of_people = PEOPLE.iter().any(|p| path.strip_prefix(p).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')));
    if api.shared.ledger.unreadable() && !of_people && !WITHOUT_LEDGER.contains(&path) {
        return Err(Problem::new(503, "ledger_unreadable", api.shared.ledger.fault().unwrap_or_default()));
    }
    etag::check(request.headers())?;
    etag::heeded(&request)?;
    let actor = who.actor();
    if let Some(actor) = actor.clone() {
        request.extensions_mut().insert(Actor(actor));
    }
    let asked = Asked::new(&api.shared, who.clone(), request.method().clone(), &matched);
    request.extensions_mut().insert(asked.clone());
    request.extensions_mut().insert(who);
    let ended = Arc::new(Mutex::new(None));
    let request = request.map(|body| Body::new(Checked { body, asked, refused: Arc::clone(&ended) }));
    let response = next.run(request).await;
    // Whoever read the body met its failure only, and did nothing.
    let ended = ended.lock().unwrap_or_else(PoisonError::into_inner).take();
    match ended {
        Some(problem) => Err(refused(&api, actor, problem)),
        None => Ok(response),
    }
}

/// Tells the audit of a refusal; how many there can be is bounded there.
fn refused(api: &Api, actor: Option<String>, problem: Problem) -> Problem {
    // Who sends nothing at all is not worth a line.
    if problem.code() != "token_missing" {
        let actor = actor.unwrap_or_else(|| NOBODY.into());
        let result = problem.code().to_owned();
        api.shared.audit.record(Event { actor, verb: AT_THE_DOOR, device: None, object: String::new(), result, detail: String::new() });
    }
    problem
}

/// Whether a URL holds what could be a secret, by the names of its query's keys, by its form, or before its host.
fn has_secret(uri: &Uri) -> bool {
    let decoded = |text: &str| String::from_utf8_lossy(&percent_decoded(text)).to_ascii_lowercase();
    let query = uri.query().unwrap_or_default();
    let keys = query.split('&').map(|pair| decoded(pair.split('=').next().unwrap_or_default()).replace('-', "_"));
    uri.authority().is_some_and(|a| a.as_str().contains('@'))
        || keys.into_iter().any(|key| SECRET_KEYS.contains(&key.as_str()))
        || decoded(query).contains(PREFIX)
        || decoded(uri.path()).contains(PREFIX)
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let mut octets = text.bytes().peekable();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(octet) = octets.next() {
        let mut rest = octets.clone();
        let digits = [rest.next().unwrap_or_default(), rest.next().unwrap_or_default()];
        let mut one = [0];
        if octet == b'%' && hex::decode_to_slice(digits, &mut one).is_ok() {
            decoded.push(one[0]);
            octets = rest;
        } else {
            decoded.push(octet);
        }
    }
    decoded
}

/// Who asks, by the token in the header or the cookie. A browser sends a cookie that has ended until somebody logs in again: where
/// nobody has to be logged in, it counts for nothing.
fn who(api: &Api, request: &Request, path: &str) -> Result<Who, Problem> {
    let headers = request.headers();
    let bearer = headers.get(AUTHORIZATION).and_then(|v| v.as_bytes().split_at_checked(7));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer ")).map(|(_, token)| token);
    let by_cookie = bearer.is_none();
    let Some(token) = bearer.or_else(|| cookie(headers)) else { return Ok(Who::Nobody) };
    if !by_cookie && api.shared.people.first_run().is_some_and(|first| first.matches(token)) {
        return Ok(Who::FirstRun);
    }
    let standing = std::str::from_utf8(token).ok().map_or(Ok(None), |token| api.shared.people.standing(token))?;
    if by_cookie && standing.is_none() && may(Asker::Nobody, request.method().as_str(), path).is_ok() {
        return Ok(Who::Nobody);
    }
    let what = "this token is not valid here: it has ended, or never was; log in with 'kurrent login'";
    let standing = standing.ok_or_else(|| Problem::new(401, "token_wrong", what))?;
    let by_tls = request.extensions().get::<From>().is_none_or(|from| from.tls);
    if by_cookie && !matches!(*request.method(), Method::GET | Method::HEAD) && !from_our_pages(headers, by_tls) {
        let what =
            "a request with the cookie has to come from the console's own pages; programs send the header 'Authorization: Bearer TOKEN'";
        return Err(Problem::new(403, "cross_site", what));
    }
    Ok(Who::Person(standing))
}

fn cookie(headers: &HeaderMap) -> Option<&[u8]> {
    let pairs = headers.get_all(COOKIE).iter().flat_map(|v| v.as_bytes().split(|o| *o == b';'));
    pairs.map(<[u8]>::trim_ascii).find_map(|pair| pair.strip_prefix(COOKIE_NAME.as_bytes())?.strip_prefix(b"="))
}

/// What a browser says of the page that asks; it lets no page change these headers. Over TLS our pages are https; a plain connection is
/// one of loopback, and a reverse proxy there may have done the TLS.
fn from_our_pages(headers: &HeaderMap, by_tls: bool) -> bool {
    let text = |name| headers.get(name).and_then(|v: &axum::http::HeaderValue| v.to_str().ok());
    match text("sec-fetch-site") {
        Some(site) => site == "same-origin",
        None => {
            let origin = headers.get(ORIGIN).and_then(|v| v.to_str().ok());
            let origin = origin.and_then(|o| o.strip_prefix("https://").or_else(|| o.strip_prefix("http://").filter(|_| !by_tls)));
            origin.is_some_and(|o| headers.get(HOST).and_then(|h| h.to_str().ok()) == Some(o))
        }
    }
}

/// Asks the table. What is no route at all is the router's to answer, but not to nobody.
fn permitted(asker: Asker, method: &Method, path: &str) -> Result<(), Problem> {
    match may(asker, method.as_str(), path) {
        Ok(()) => Ok(()),
        Err(Refusal::NotListed) if asker != Asker::Nobody && !openapi::is_described(method, path) => Ok(()),
        Err(Refusal::NotListed | Refusal::TokenMissing) if asker == Asker::Nobody => {
            let what = "a token is needed: log in with 'kurrent login', or send the header 'Authorization: Bearer TOKEN'";
            Err(Problem::new(401, "token_missing", what))
        }
        Err(refusal) => Err(Problem::new(403, code(&refusal), refusal.to_string())),
    }
}

/// The stable word for a refusal.
fn code(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::NotListed | Refusal::RoleMissing { .. } => "role_missing",
        Refusal::TokenMissing => "token_missing",
        Refusal::FirstRunOnly => "first_run_only",
        Refusal::TagMissing { .. } => "tag_missing",
    }
}

/// Where a request comes from.
pub(super) fn side(api: &Api, request: Option<&From>) -> (IpAddr, Side) {
    let address = request.map_or(IpAddr::from([0, 0, 0, 0]), |from| from.peer.ip());
    (address, Side::of(&api.shared.config, address))
}

impl std::convert::From<PeopleError> for Problem {
    fn from(error: PeopleError) -> Self {
        match error {
            PeopleError::Refused(refused) => Self::new(refused.status, refused.code, refused.detail),
            PeopleError::LockedOut(wait) => {
                let seconds = wait.as_secs().saturating_add(1);
                let what = format!("there were wrong passwords before; try again in {seconds} s");
                Self::new(429, "locked_out", what).retry_after(seconds)
            }
            PeopleError::Busy => Self::new(503, "busy", "too many log in at this moment; try again"),
            PeopleError::Unreadable => {
                Self::new(503, "users_unreadable", "the users do not read: the appliance's screen and log say which line is wrong")
            }
            PeopleError::Edited(path) => {
                let what = format!("{} was edited while kurrentd runs; restart kurrentd, so that it reads the file", path.display());
                Self::new(409, "users_edited", what)
            }
            PeopleError::NotDurable(why) => Self::new(507, "not_durable", format!("{why}; make room, or check the disk")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_in_a_url_is_found_however_it_is_written() {
        for url in [
            "/v1/status?token=x",
            "/v1/status?limit=1&Access_Token=x",
            "/v1/status?access-token=x",
            "/v1/status?%74oken=x",
            "/v1/status?AUTHORIZATION",
            "/v1/devices?label=krt_0123456789ab_x",
            "/v1/devices/%6brt_0123456789ab_x",
            "http://ada:secret@host/v1/status",
        ] {
            assert!(has_secret(&url.parse().unwrap()), "{url}");
        }
        for url in [
            "/v1/status",
            "/v1/devices?label=a%3Db&limit=2",
            "/v1/join-tokens/x?cursor=dG9rZW4",
            "http://host/v1/status",
            "/v1/x?%",
            "/?%4",
        ] {
            assert!(!has_secret(&url.parse().unwrap()), "{url}");
        }
    }

    #[test]
    fn a_cookie_is_found_among_others_and_only_under_its_whole_name() {
        let headers = |text: &str| [(COOKIE, text.parse().unwrap())].into_iter().collect::<HeaderMap>();
        assert_eq!(cookie(&headers("a=b; __Host-kurrent=krt_x; c=d")), Some(b"krt_x".as_slice()));
        for none in ["a=b", "__Host-kurrentx=1", "x__Host-kurrent=1", ""] {
            assert_eq!(cookie(&headers(none)), None, "{none}");
        }
    }

    #[test]
    fn only_our_own_pages_change_something_with_a_cookie() {
        let headers =
            |pairs: &[(&'static str, &str)]| pairs.iter().map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap())).collect::<HeaderMap>();
        let host = ("host", "10.0.0.1:8443");
        for (pairs, expected) in [
            (vec![host, ("sec-fetch-site", "same-origin")], true),
            (vec![host, ("origin", "https://10.0.0.1:8443")], true),
            (vec![host, ("origin", "ftp://10.0.0.1:8443")], false),
            (vec![host, ("origin", "10.0.0.1:8443")], false),
            (vec![host, ("sec-fetch-site", "cross-site"), ("origin", "https://10.0.0.1:8443")], false),
            (vec![host, ("sec-fetch-site", "same-site")], false),
            (vec![host, ("sec-fetch-site", "none")], false),
            (vec![host, ("origin", "https://10.0.0.1")], false),
            (vec![host, ("origin", "https://evil.example")], false),
            (vec![host, ("origin", "null")], false),
            (vec![host], false),
        ] {
            for by_tls in [false, true] {
                assert_eq!(from_our_pages(&headers(&pairs), by_tls), expected, "{pairs:?}");
            }
        }
        // Whoever is between can make a page of http, and no page of https.
        let plain = headers(&[host, ("origin", "http://10.0.0.1:8443")]);
        assert!(from_our_pages(&plain, false) && !from_our_pages(&plain, true));
    }
}
