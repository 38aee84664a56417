//! HTTP/1.1 to the API: one connection per request, deadlines, and errors that say what to check.

use crate::failure::{Failure, Problem};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;
use tokio::net::TcpStream;

const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// A change answers when the data plane has followed.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// A ledger of 20,000 devices is about this large.
const MAX_ANSWER_OCTETS: usize = 128 * 1024 * 1024;
const MAX_TOKEN_OCTETS: u64 = 4096;

/// Where the API is, and who asks.
pub struct Client {
    host: String,
    port: u16,
    url: String,
    authorization: HeaderValue,
}

impl Client {
    /// Reads the URL and the token.
    pub fn new(url: &str, token_file: Option<&Path>) -> Result<Self, Failure> {
        let wrong = |what: &str| Failure::local(format!("{url:?} is no address of an appliance: {what}; write http://ADDRESS:8080"));
        let uri: Uri = url.parse().map_err(|_| wrong("it does not read as a URL"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(wrong("the appliance does not speak TLS yet")),
            _ => return Err(wrong("it does not start with http://")),
        }
        if !uri.path().trim_end_matches('/').is_empty() || uri.query().is_some() {
            return Err(wrong("it has a path"));
        }
        let host = uri.host().ok_or_else(|| wrong("it has no host"))?.trim_matches(['[', ']']).to_owned();
        let mut authorization = HeaderValue::from_str(&format!("Bearer {}", token(token_file)?))
            .map_err(|_| Failure::local("the token holds characters that no token has"))?;
        authorization.set_sensitive(true);
        Ok(Self { host, port: uri.port_u16().unwrap_or(80), url: url.trim_end_matches('/').to_owned(), authorization })
    }

    /// `GET`.
    pub async fn get(&self, path: &str) -> Result<Value, Failure> {
        self.ask(Method::GET, path, None).await
    }

    /// A request with an optional JSON body.
    pub async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value, Failure> {
        let octets = body.map(|b| Bytes::from(b.to_string()));
        let answer = self.send(method, path, Full::new(octets.unwrap_or_default()));
        tokio::time::timeout(ANSWER_WITHIN, answer)
            .await
            .unwrap_or_else(|_| Err(self.unreachable(&format!("no answer within {} s; ask again", ANSWER_WITHIN.as_secs()))))
    }

    /// A request with any body; no deadline but that of the connection.
    pub async fn send<B>(&self, method: Method, path: &str, body: B) -> Result<Value, Failure>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync,
    {
        let connected = tokio::time::timeout(CONNECT_WITHIN, TcpStream::connect((self.host.as_str(), self.port))).await;
        let stream = match connected {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(self.unreachable(&format!("{error}; {}", advice(&error)))),
            Err(_) => return Err(self.unreachable("no answer; check the address, the cable and firewalls between")),
        };
        let broken = |e: hyper::Error| self.unreachable(&format!("{e}; check that this is the API's port, not the boot plane's"));
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, format!("{}:{}", self.host, self.port))
            .header(AUTHORIZATION, self.authorization.clone())
            .header(CONTENT_TYPE, "application/json")
            .body(body)
            .map_err(|e| Failure::local(format!("the request can not be made: {e}")))?;
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status();
        let octets = Limited::new(response.into_body(), MAX_ANSWER_OCTETS).collect().await;
        let octets = octets.map_err(|e| self.unreachable(&format!("the answer was cut: {e}")))?.to_bytes();
        if status.is_success() {
            if octets.is_empty() {
                return Ok(Value::Null);
            }
            return serde_json::from_slice(&octets).map_err(|_| self.unreachable("what answers there is not a Kurrent appliance's API"));
        }
        Err(Failure::Refused(serde_json::from_slice(&octets).unwrap_or_else(|_| Problem {
            status: status.as_u16(),
            code: "http".into(),
            detail: format!("{} answers {status}; check that this is the API's address", self.url),
        })))
    }

    fn unreachable(&self, what: &str) -> Failure {
        Failure::Unreachable(format!("{}: {what}", self.url))
    }
}

fn advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "is kurrentd running there, and is this its spec.http.apiPort? Set --url or KURRENT_URL",
        std::io::ErrorKind::NetworkUnreachable | std::io::ErrorKind::HostUnreachable => "this host has no way there; check its network",
        _ => "check the address in --url or KURRENT_URL",
    }
}

fn token(file: Option<&Path>) -> Result<String, Failure> {
    if let Some(path) = file {
        use std::io::Read;
        let failed = |e: std::io::Error| Failure::local(format!("the token file {} can not be read: {e}", path.display()));
        let mut text = String::new();
        std::fs::File::open(path).map_err(failed)?.take(MAX_TOKEN_OCTETS).read_to_string(&mut text).map_err(failed)?;
        return Ok(text.trim().to_owned());
    }
    match std::env::var("KURRENT_TOKEN") {
        Ok(token) if !token.trim().is_empty() => Ok(token.trim().to_owned()),
        _ => Err(Failure::Refused(Problem {
            status: 401,
            code: "token_missing".into(),
            detail: "no token: give --token-file FILE, or set KURRENT_TOKEN_FILE or KURRENT_TOKEN; the appliance's console shows it".into(),
        })),
    }
}
