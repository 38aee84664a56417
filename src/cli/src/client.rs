//! HTTP/1.1 to the API: one connection per request, deadlines, and errors that say what to check.
//!
//! Every POST has an `Idempotency-Key`. When the connection is lost before the answer, a GET and a POST are sent once more, the
//! POST with the same key: the appliance gives the first answer again, and nothing is done twice.

mod answer;

use crate::connection::{Connection, TrustSource};
use crate::failure::Failure;
use crate::trust::{self, Trust};
pub use answer::Answer;
use http_body_util::Full;
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, IF_MATCH};
use hyper::{Method, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::net::IpAddr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// A change answers when the data plane has followed.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Between questions whether the first try is done.
const ASK_AGAIN: Duration = Duration::from_millis(500);
const JSON: &str = "application/json";

/// Where the API is, and who asks.
pub struct Client {
    place: Place,
    /// For https.
    trust: Option<Trust>,
    url: String,
    authorization: Option<HeaderValue>,
}

/// What is asked, beside the path.
#[derive(Clone, Debug, Default)]
struct Order {
    content_type: Option<&'static str>,
    accept: Option<&'static str>,
    if_match: Option<String>,
    idempotency_key: Option<String>,
}

/// Why there is no answer.
enum NoAnswer {
    /// Nobody was reached: nothing is done.
    NotConnected(Failure),
    /// The connection was lost after that.
    Lost(String),
    /// What was asked is at fault.
    Wrong(Failure),
}

impl Client {
    /// Checks the URL and reads the token.
    pub fn new(connection: &Connection) -> Result<Self, Failure> {
        Self::with(connection, Some(connection.token()?))
    }

    /// Checks the URL; asks with this token, or without any.
    pub fn with(connection: &Connection, token: Option<String>) -> Result<Self, Failure> {
        let place = Place::parse(&connection.url, &connection.url_from)?;
        place.may_be_told_a_token(&connection.url)?;
        let trust = connection.trust.as_ref().filter(|_| place.tls).map(TrustSource::read).transpose()?;
        if place.tls && trust.is_none() {
            let what =
                "no CA is known for it; kurrent context add NAME --url URL asks for it once, or give --ca FILE or --ca-fingerprint SHA256";
            return Err(Failure::local(format!("{}: {what}", connection.url)));
        }
        let bearer = |token: String| {
            let value = HeaderValue::from_str(&format!("Bearer {token}"));
            let mut value = value.map_err(|_| Failure::local("the token holds characters that no token has"))?;
            value.set_sensitive(true);
            Ok(value)
        };
        let authorization = token.map(bearer).transpose()?;
        Ok(Self { place, trust, url: connection.url.trim_end_matches('/').to_owned(), authorization })
    }

    /// `GET`.
    pub async fn get(&self, path: &str) -> Result<Value, Failure> {
        Ok(self.get_tagged(path).await?.body)
    }

    /// `GET` of what is not JSON.
    pub async fn get_text(&self, path: &str) -> Result<String, Failure> {
        let asked = async {
            let response = self.send(&Method::GET, path, full(Bytes::new()), &Order::default()).await.map_err(|e| self.failed(e, false))?;
            answer::text(response, &self.url).await
        };
        tokio::time::timeout(ANSWER_WITHIN, asked).await.unwrap_or_else(|_| Err(self.late()))
    }

    /// `GET`, with the ETag.
    pub async fn get_tagged(&self, path: &str) -> Result<Answer, Failure> {
        self.ask(Method::GET, path, None, Order::default()).await
    }

    /// `POST` of JSON.
    pub async fn post(&self, path: &str, body: Value) -> Result<Value, Failure> {
        self.post_if(path, body, None).await
    }

    /// `POST` of JSON, if what it concerns still has this ETag.
    pub async fn post_if(&self, path: &str, body: Value, if_match: Option<String>) -> Result<Value, Failure> {
        let order = Order { idempotency_key: Some(idempotency_key()?), if_match, ..Order::default() };
        Ok(self.ask(Method::POST, path, Some((JSON, Bytes::from(body.to_string()))), order).await?.body)
    }

    /// `POST` of a document in another form than JSON.
    pub async fn post_document(&self, path: &str, content_type: &'static str, octets: Vec<u8>) -> Result<Value, Failure> {
        let order = Order { idempotency_key: Some(idempotency_key()?), ..Order::default() };
        Ok(self.ask(Method::POST, path, Some((content_type, Bytes::from(octets))), order).await?.body)
    }

    /// `PUT`, `PATCH` or `DELETE`; the same twice is not always the same, so a lost connection is told and not tried again.
    pub async fn change(&self, method: Method, path: &str, body: Option<Value>, if_match: Option<String>) -> Result<Value, Failure> {
        let body = body.map(|b| (JSON, Bytes::from(b.to_string())));
        Ok(self.ask(method, path, body, Order { if_match, ..Order::default() }).await?.body)
    }

    /// `PUT` of a stream; no deadline but that of the connection.
    pub async fn upload<B>(&self, path: &str, content_type: &'static str, body: B) -> Result<Value, Failure>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync,
    {
        let order = Order { content_type: Some(content_type), ..Order::default() };
        let response = self.send(&Method::PUT, path, body, &order).await.map_err(|e| self.failed(e, true))?;
        Ok(answer::read(response, &self.url).await?.body)
    }

    /// `POST` of JSON whose answer is a stream.
    pub async fn download(&self, path: &str, body: Value) -> Result<Response<Incoming>, Failure> {
        let order = Order { content_type: Some(JSON), idempotency_key: Some(idempotency_key()?), ..Order::default() };
        let response = self.send(&Method::POST, path, full(Bytes::from(body.to_string())), &order).await;
        // It changes nothing there.
        answer::streamed(response.map_err(|e| self.failed(e, false))?, &self.url).await
    }

    /// `GET` of server-sent events.
    pub async fn events(&self, path: &str) -> Result<Response<Incoming>, Failure> {
        let order = Order { accept: Some("text/event-stream"), ..Order::default() };
        let response = tokio::time::timeout(ANSWER_WITHIN, self.send(&Method::GET, path, full(Bytes::new()), &order)).await;
        let response = response.map_err(|_| self.late())?.map_err(|e| self.failed(e, false))?;
        answer::streamed(response, &self.url).await
    }

    async fn ask(&self, method: Method, path: &str, body: Option<(&'static str, Bytes)>, mut order: Order) -> Result<Answer, Failure> {
        order.content_type = body.as_ref().map(|(kind, _)| *kind);
        let octets = body.map(|(_, octets)| octets).unwrap_or_default();
        let once = async || {
            let response = self.send(&method, path, full(octets.clone()), &order).await?;
            Ok::<_, NoAnswer>(answer::read(response, &self.url).await)
        };
        let may_change = method != Method::GET;
        let repeatable = !may_change || order.idempotency_key.is_some();
        let asked = async {
            match once().await {
                Ok(answer) => return answer,
                Err(NoAnswer::Lost(_)) if repeatable => {}
                Err(other) => return Err(self.failed(other, may_change)),
            }
            loop {
                match once().await {
                    // The first try was heard and is still being carried out: its answer is the one to have.
                    Ok(Err(Failure::Refused(problem))) if problem.code == "in_progress" => tokio::time::sleep(ASK_AGAIN).await,
                    Ok(answer) => return answer,
                    // The first try may have been heard.
                    Err(NoAnswer::NotConnected(Failure::Unreachable(why))) if may_change => {
                        return Err(Failure::Unreachable(doubtful(&why)));
                    }
                    Err(other) => return Err(self.failed(other, may_change)),
                }
            }
        };
        tokio::time::timeout(ANSWER_WITHIN, asked).await.unwrap_or_else(|_| Err(self.late()))
    }

    /// Sends a request; the head of the answer.
    async fn send<B>(&self, method: &Method, path: &str, body: B, order: &Order) -> Result<Response<Incoming>, NoAnswer>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync,
    {
        let stream = self.place.connect().await.map_err(|what| NoAnswer::NotConnected(self.unreachable(&what)))?;
        let stream: Box<dyn Stream> = match &self.trust {
            Some(trust) => {
                let secured = trust::secure(&self.place, stream, trust).await;
                Box::new(secured.map_err(|e| NoAnswer::NotConnected(e.failure(&self.url)))?)
            }
            None => {
                // A name is what somebody's resolver says it is.
                let peer = stream.peer_addr().map_err(|e| NoAnswer::Lost(e.to_string()))?;
                self.place.is_this_host(peer.ip(), &self.url).map_err(NoAnswer::Wrong)?;
                Box::new(stream)
            }
        };
        let lost = |e: hyper::Error| NoAnswer::Lost(e.to_string());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.place.authority())
            .header(CONTENT_TYPE, order.content_type.unwrap_or(JSON))
            .header(ACCEPT, order.accept.unwrap_or(JSON));
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        if let Some(tag) = &order.if_match {
            request = request.header(IF_MATCH, tag);
        }
        if let Some(key) = &order.idempotency_key {
            request = request.header("idempotency-key", key);
        }
        let request = request.body(body);
        let request = request.map_err(|e| NoAnswer::Wrong(Failure::local(format!("the request can not be made: {e}"))))?;
        sender.send_request(request).await.map_err(|e| if e.is_user() { NoAnswer::Wrong(Failure::local(chain(&e))) } else { lost(e) })
    }

    fn failed(&self, error: NoAnswer, may_change: bool) -> Failure {
        match error {
            NoAnswer::NotConnected(failure) | NoAnswer::Wrong(failure) => failure,
            NoAnswer::Lost(why) => {
                let what = self.at(&format!("the connection was lost: {why}; check that this is the API's port, not the boot plane's"));
                Failure::Unreachable(if may_change { doubtful(&what) } else { what })
            }
        }
    }

    fn late(&self) -> Failure {
        self.unreachable(&format!("no answer within {} s; look whether it is done, then ask again", ANSWER_WITHIN.as_secs()))
    }

    fn unreachable(&self, what: &str) -> Failure {
        Failure::Unreachable(self.at(what))
    }

    fn at(&self, what: &str) -> String {
        format!("{}: {what}", self.url)
    }
}

/// A connection, secured or not.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Where an appliance's API is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name or address, an IPv6 one without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// https.
    pub tls: bool,
}

impl Place {
    /// Reads a URL; `from` is what named it.
    pub fn parse(url: &str, from: &str) -> Result<Self, Failure> {
        address(url, from)
    }

    /// Connects; why not, and what to check.
    pub async fn connect(&self) -> Result<TcpStream, String> {
        let connecting = tokio::time::timeout(CONNECT_WITHIN, TcpStream::connect((self.host.as_str(), self.port)));
        let connected = connecting.await.map_err(|_| "no answer; check the address, the cable and firewalls between".to_owned())?;
        connected.map_err(|error| format!("{error}; {}", advice(&error)))
    }

    /// Only loopback gets a token in clear.
    pub fn may_be_told_a_token(&self, url: &str) -> Result<(), Failure> {
        match self.host.parse::<IpAddr>() {
            _ if self.tls || self.host == "localhost" => Ok(()),
            Ok(address) => self.is_this_host(address, url),
            Err(_) => Err(self.too_plain(url)),
        }
    }

    /// Whether an address that is spoken to in clear is loopback.
    fn is_this_host(&self, address: IpAddr, url: &str) -> Result<(), Failure> {
        if address.to_canonical().is_loopback() { Ok(()) } else { Err(self.too_plain(url)) }
    }

    fn too_plain(&self, url: &str) -> Failure {
        let authority = self.authority();
        Failure::local(format!(
            "{url}: tokens and passwords go over plain http to this host only, everybody between could read them; use https://{authority}"
        ))
    }

    /// `host:port`.
    fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

fn address(url: &str, from: &str) -> Result<Place, Failure> {
    let wrong =
        |what: &str| Failure::local(format!("{url:?} (from {from}) is no address of an appliance: {what}; write https://ADDRESS:8443"));
    let uri: Uri = url.parse().map_err(|_| wrong("it does not read as a URL"))?;
    let tls = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(wrong("it does not start with https://")),
    };
    if !uri.path().trim_end_matches('/').is_empty() || uri.query().is_some() {
        return Err(wrong("it has a path"));
    }
    let host = uri.host().ok_or_else(|| wrong("it has no host"))?.trim_matches(['[', ']']).to_owned();
    Ok(Place { host, port: uri.port_u16().unwrap_or(if tls { 443 } else { 80 }), tls })
}

fn full(octets: Bytes) -> Full<Bytes> {
    Full::new(octets)
}

fn doubtful(why: &str) -> String {
    format!("{why}; whether it was done is not known: look before you ask again")
}

/// 128 random bits: nobody else's key.
fn idempotency_key() -> Result<String, Failure> {
    let mut octets = [0; 16];
    getrandom::fill(&mut octets).map_err(|e| Failure::local(format!("the kernel gives no random numbers: {e}")))?;
    Ok(octets.iter().map(|o| format!("{o:02x}")).collect())
}

/// hyper keeps what really happened in its cause.
fn chain(error: &hyper::Error) -> String {
    let cause = std::error::Error::source(error);
    cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

fn advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "is kurrentd running there, and is this its spec.http.apiPort? Set --url or KURRENT_URL",
        std::io::ErrorKind::NetworkUnreachable | std::io::ErrorKind::HostUnreachable => "this host has no way there; check its network",
        _ => "check the address in --url, KURRENT_URL or the context",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_believed_to_be_this_host_only_when_it_leads_there() {
        let place = Place::parse("http://localhost:8443", "--url").unwrap();
        assert!(place.may_be_told_a_token("x").is_ok());
        for (address, expected) in
            [("127.0.0.1", true), ("::1", true), ("::ffff:127.0.0.1", true), ("192.0.2.1", false), ("fe80::1", false)]
        {
            assert_eq!(place.is_this_host(address.parse().unwrap(), "x").is_ok(), expected, "{address}");
        }
    }
}
