//! The API as any HTTP client sees it, without the product's own client: for conditions that tests wait for.

use crate::{netns, tls};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

const CONNECT_WITHIN: Duration = Duration::from_secs(15);
const ANSWER_WITHIN: Duration = Duration::from_secs(120);
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// No answer of the API is longer.
const MAX_ANSWER_OCTETS: u64 = 16 << 20;

/// The lab's admin.
const ADMIN: &str = "lab";
/// The admin's password.
pub const PASSWORD: &str = "correct horse battery";

/// Where the API is and who asks.
#[derive(Clone, Debug)]
pub struct Api {
    /// Address and port.
    pub address: SocketAddrV4,
    /// Bearer token.
    pub token: String,
    /// Namespace to connect from; none: this one.
    pub netns: Option<String>,
    /// SHA-256 of its CA certificate in hex, for TLS; none: plain HTTP, which only loopback may speak.
    pub ca: Option<String>,
}

/// An HTTP answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Body.
    pub body: Vec<u8>,
}

impl Answer {
    /// The body as JSON; `Null` when it is empty.
    pub fn json(&self) -> Result<Value> {
        if self.body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&self.body).with_context(|| format!("answer {} is not JSON: {}", self.status, self.text()))
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Api {
    /// Base URL.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.ca.is_some() { "https" } else { "http" }, self.address)
    }

    /// `GET path` that must succeed.
    pub fn get(&self, path: &str) -> Result<Value> {
        self.ask("GET", path, None)
    }

    /// A request with an optional JSON body that must succeed.
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let answer = self.request(method, path, body)?;
        if !(200..300).contains(&answer.status) {
            bail!("{method} {path}: {} {}", answer.status, answer.text());
        }
        answer.json()
    }

    /// A request, whatever the answer.
    pub fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Answer> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let head = format!("Authorization: Bearer {}\r\nContent-Type: application/json\r\n", self.token);
        self.exchange(method, path, &head, body.as_bytes())
    }

    /// One HTTP/1.1 exchange on a connection of its own; `head` holds further header lines.
    pub fn exchange(&self, method: &str, path: &str, head: &str, body: &[u8]) -> Result<Answer> {
        let Self { address, netns, ca, .. } = self;
        let length = body.len();
        let request = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n{head}\r\n");
        let stream = connect(netns.as_deref(), *address)?;
        let request = [request.as_bytes(), body].concat();
        let octets = match ca {
            Some(ca) => send_and_read(tls::secure(stream, (*address.ip()).into(), ca)?, &request, |_| Ok(())),
            None => send_and_read(stream, &request, |_| Ok(())),
        };
        parse(&octets?).with_context(|| format!("{method} {path}"))
    }

    /// The same API by a session of the lab's admin, who is made with the first-run token when there is one.
    pub fn logged_in(self, first_run: Option<&str>) -> Result<Self> {
        const JSON: &str = "Content-Type: application/json\r\n";
        let ask = |path: &str, head: &str, body: Value| self.exchange("POST", path, &format!("{JSON}{head}"), body.to_string().as_bytes());
        if let Some(token) = first_run {
            let admin = serde_json::json!({ "name": ADMIN, "role": "admin", "password": PASSWORD });
            let made = ask("/v1/users", &format!("Authorization: Bearer {token}\r\n"), admin)?;
            // When somebody else was first, logging in tells whether it was this admin.
            if ![201, 401, 409].contains(&made.status) {
                bail!("the first admin can not be made: {} {}", made.status, made.text());
            }
        }
        let answer = ask("/v1/login", "", serde_json::json!({ "name": ADMIN, "password": PASSWORD }))?;
        let session = answer.json()?;
        let token = session.get("token").and_then(Value::as_str).with_context(|| format!("logging in: {}", answer.text()))?;
        Ok(Self { token: token.to_owned(), ..self })
    }

    /// [`Api::logged_in`] with the first-run token of a state folder on this host. The session is kept in `kept` and used as long as
    /// that state has its admin.
    pub fn logged_in_at(self, state: &Path, kept: &Path) -> Result<Self> {
        let first_run = std::fs::read_to_string(state.join("secrets/first-run-token")).ok();
        if let (None, Ok(token)) = (&first_run, std::fs::read_to_string(kept)) {
            return Ok(Self { token, ..self });
        }
        let api = self.logged_in(first_run.as_deref().map(str::trim))?;
        std::fs::write(kept, &api.token).context("keep the session")?;
        Ok(api)
    }

    /// Asks until `find` finds what it looks for.
    pub fn wait_for<T>(&self, what: &str, path: &str, within: Duration, mut find: impl FnMut(&Value) -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + within;
        loop {
            let answer = self.get(path);
            if let Ok(value) = &answer
                && let Some(found) = find(value)
            {
                return Ok(found);
            }
            if Instant::now() > deadline {
                bail!("no {what} at {path} within {} s; last answer: {answer:?}", within.as_secs());
            }
            std::thread::sleep(ASK_AGAIN);
        }
    }
}

/// Sends these octets in plain and reads to the end; for what no well-behaved client sends.
pub fn raw_exchange(netns: Option<&str>, address: SocketAddrV4, request: &[u8]) -> Result<Vec<u8>> {
    // A client that asked to keep the connection would otherwise wait for the server to tire of it.
    send_and_read(connect(netns, address)?, request, |stream| stream.shutdown(std::net::Shutdown::Write))
}

fn connect(netns: Option<&str>, address: SocketAddrV4) -> Result<TcpStream> {
    let connect = move || TcpStream::connect_timeout(&address.into(), CONNECT_WITHIN);
    // A socket belongs to the namespace it was made in, whoever uses it afterwards.
    let stream =
        netns.map_or_else(|| Ok(connect()), |name| netns::enter(name, connect))?.with_context(|| format!("connect to {address}"))?;
    stream.set_read_timeout(Some(ANSWER_WITHIN)).context("set a deadline")?;
    Ok(stream)
}

fn send_and_read<S: Read + Write>(mut stream: S, request: &[u8], sent: impl FnOnce(&S) -> std::io::Result<()>) -> Result<Vec<u8>> {
    stream.write_all(request).context("send the request")?;
    sent(&stream).context("say that this was all")?;
    let mut octets = Vec::new();
    stream.take(MAX_ANSWER_OCTETS).read_to_end(&mut octets).context("read the answer")?;
    Ok(octets)
}

fn parse(octets: &[u8]) -> Result<Answer> {
    let end = octets.windows(4).position(|four| four == b"\r\n\r\n").context("an HTTP head")?;
    let head = String::from_utf8_lossy(octets.get(..end).unwrap_or_default()).to_ascii_lowercase();
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).context("an HTTP status")?;
    let body = octets.get(end + 4..).unwrap_or_default();
    let body = if head.contains("transfer-encoding: chunked") { unchunk(body)? } else { body.to_vec() };
    Ok(Answer { status, body })
}

fn unchunk(mut rest: &[u8]) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = rest.windows(2).position(|two| two == b"\r\n").context("a chunk size")?;
        let size = std::str::from_utf8(rest.get(..line).unwrap_or_default()).context("a chunk size")?;
        let size = usize::from_str_radix(size.trim(), 16).context("a chunk size")?;
        if size == 0 {
            return Ok(body);
        }
        let start = line + 2;
        body.extend(rest.get(start..start + size).context("a whole chunk")?);
        rest = rest.get(start + size + 2..).context("a chunk's end")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_and_chunked_answers_are_read() -> Result<()> {
        let plain = parse(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}")?;
        assert_eq!((plain.status, plain.text().as_str()), (404, "{}"));
        let chunked = parse(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n")?;
        assert_eq!(chunked.text(), "abcd");
        assert!(parse(b"HTTP/1.1 200 OK\r\n").is_err());
        Ok(())
    }
}
