//! The boot plane's HTTP server: sockets, limits, streaming. What it answers is decided in `boot_plane`.
//!
//! Firmware HTTP clients are old and literal: every answer has a `Content-Length` (GRUB compares the header's letters
//! exactly, so headers are written in title case), nothing is chunked, nothing redirects. Strangers are bounded: header
//! and body size, time for each, connections in all and for each address, time without progress, life of a connection.

pub(crate) mod body;

use crate::artifacts;
use crate::boot_plane::{self, Answer, BootPlane, Peer};
use crate::listen::limits::{self, Limits, Places};
use crate::shared::SharedRef;
use body::Body;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT_RANGES, ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderValue, IF_RANGE, RANGE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use kurrent_core::http::{Form, Span, span};
use kurrent_core::timeline::Step;
use kurrent_sys::clock;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// hyper's smallest buffer; a request head of ours is under 1 KiB.
const MAX_HEAD_BYTES: usize = 8192;
const MAX_HEADERS: usize = 48;
/// A report is about 600 octets.
const MAX_FORM_BYTES: usize = 16 * 1024;
/// Unsent octets of a connection in the kernel, which doubles it for its own needs. Without it the kernel grows the buffer of
/// a peer that takes nothing to 4 MiB (`tcp_wmem`). A gigabit network of one millisecond needs 125 KiB.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Octets that nobody has read yet, doubled likewise: a whole form fits.
const RECEIVE_BUFFER_BYTES: usize = MAX_FORM_BYTES;
const EXPIRE_EVERY: Duration = Duration::from_secs(30);
/// After a failed accept (no file descriptors left), let others finish.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Each connection holds at most about 250 KiB: a piece of a file being sent and the one being read, hyper's buffers, and what
/// the kernel keeps of it ([`SEND_BUFFER_BYTES`]); all of them half of an appliance of 256 MiB. iPXE uses one or two
/// connections, a person's browser six.
pub const LIMITS: Limits = Limits {
    connections: 512,
    per_address: 32,
    read: Duration::from_secs(15),
    stall: Duration::from_secs(60),
    lifetime: Duration::from_secs(1800),
};

/// Serves the boot plane on the boot network address until the process ends.
///
/// # Errors
/// When the address can not be bound.
pub async fn serve(shared: SharedRef) -> anyhow::Result<()> {
    let config = &shared.config;
    let address = SocketAddrV4::new(config.boot_network.address, config.boot_port);
    let listener = TcpListener::bind(address).await.map_err(|e| anyhow::Error::new(e).context(format!("boot plane: bind {address}")))?;
    tracing::info!(%address, "boot plane is served");
    let plane = BootPlane::new(shared, Arc::new(boot_plane::issue_when_exported), clock::now());
    serve_on(Arc::new(plane), listener, LIMITS).await
}

/// Serves the boot plane on a socket that is bound already.
///
/// # Errors
/// Never: a failed accept is logged and tried again.
pub async fn serve_on(plane: Arc<BootPlane>, listener: TcpListener, limits: Limits) -> anyhow::Result<()> {
    let places = Places::new(limits.connections, limits.per_address);
    let mut expire = tokio::time::interval(EXPIRE_EVERY);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = expire.tick() => {
                plane.expire(clock::now());
                continue;
            }
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "boot plane: accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Too many: closed at once. A machine asks again; the ones being served are not disturbed.
        let Some(place) = places.take(peer.ip()) else { continue };
        let plane = Arc::clone(&plane);
        tokio::spawn(async move {
            connection(plane, stream, peer, limits).await;
            drop(place);
        });
    }
}

async fn connection(plane: Arc<BootPlane>, stream: TcpStream, peer: SocketAddr, limits: Limits) {
    let IpAddr::V4(address) = peer.ip() else { return };
    if bound(&stream, limits.stall).is_err() {
        return;
    }
    let service = service_fn(move |request| {
        let plane = Arc::clone(&plane);
        async move { Ok::<_, Infallible>(respond(&plane, address, request, limits).await) }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.read)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .title_case_headers(true)
        // Simple clients end their side after the request and still want the answer.
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(limits.lifetime, serving).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%peer, %error, "boot plane: connection ended"),
        Err(_) => tracing::debug!(%peer, "boot plane: connection lived too long"),
    }
}

/// Bounds what the kernel holds for a peer, and for how long.
fn bound(stream: &TcpStream, stall: Duration) -> std::io::Result<()> {
    limits::set_up(stream, stall)?;
    let socket = socket2::SockRef::from(stream);
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)
}

async fn respond(plane: &BootPlane, address: Ipv4Addr, request: Request<Incoming>, limits: Limits) -> Response<Body> {
    let peer = plane.peer(address);
    let path = request.uri().path().to_owned();
    let response =
        if plane.is_silenced(peer, "http") { empty(StatusCode::NOT_FOUND) } else { route(plane, peer, &path, request, limits).await };
    tracing::debug!(%address, path, status = response.status().as_u16(), "boot plane");
    response
}

async fn route(plane: &BootPlane, peer: Peer, path: &str, request: Request<Incoming>, limits: Limits) -> Response<Body> {
    let now = clock::now();
    let is_get = matches!(*request.method(), Method::GET | Method::HEAD);
    let is_post = request.method() == Method::POST;
    match path {
        "/boot.ipxe" | "/files/autoexec.ipxe" if is_get => {
            plane.mark(peer, Step::Script, now);
            whole(if path == "/boot.ipxe" { plane.boot_script() } else { plane.autoexec() }, &request)
        }
        "/devices/report" | "/devices/challenge" | "/boot-vars" | "/stage1/report" if is_post || asks_by_query(path, request.method()) => {
            let form = if is_post {
                read_form(request, limits).await
            } else {
                Form::parse(request.uri().query().unwrap_or_default().as_bytes()).map_err(|_| StatusCode::BAD_REQUEST)
            };
            let form = match form {
                Ok(form) => form,
                Err(status) => return empty(status),
            };
            // The body may have taken its time: nonces are judged by when it was there.
            let now = clock::now();
            let answer = match path {
                "/devices/report" => plane.report(peer, &form, now).await,
                "/devices/challenge" => plane.challenge(peer, &form, now),
                "/boot-vars" => plane.boot_vars(peer, &form, now),
                _ => plane.stage1_report(&form, now),
            };
            response(answer)
        }
        "/boot.ipxe" | "/files/autoexec.ipxe" => not_allowed("GET, HEAD"),
        "/devices/report" | "/devices/challenge" | "/boot-vars" => not_allowed("GET, POST"),
        "/stage1/report" => not_allowed("POST"),
        _ => {
            if let Some(name) = path.strip_prefix("/files/").and_then(artifacts::known) {
                return if is_get { file(plane, peer, name, &request).await } else { not_allowed("GET, HEAD") };
            }
            match path.strip_prefix("/stage1/").and_then(|rest| rest.strip_suffix("/sealed")) {
                Some(boot_id) if is_get => whole(plane.sealed(boot_id, now), &request),
                Some(_) => not_allowed("GET, HEAD"),
                None => empty(StatusCode::NOT_FOUND),
            }
        }
    }
}

/// Scripts for the existing firmware have only `chain` and `imgfetch`: their parameters come in the URL. Nothing among them is a
/// secret (nonce, signature, public keys), and no URL's query is ever logged. HEAD would do the work and show nothing of it.
fn asks_by_query(path: &str, method: &Method) -> bool {
    path != "/stage1/report" && *method == Method::GET
}

async fn read_form(request: Request<Incoming>, limits: Limits) -> Result<Form, StatusCode> {
    let body = Limited::new(request.into_body(), MAX_FORM_BYTES);
    match tokio::time::timeout(limits.read, body.collect()).await {
        Ok(Ok(body)) => Form::parse(&body.to_bytes()).map_err(|_| StatusCode::BAD_REQUEST),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(StatusCode::PAYLOAD_TOO_LARGE),
        Ok(Err(_)) => Err(StatusCode::BAD_REQUEST),
        Err(_) => Err(StatusCode::REQUEST_TIMEOUT),
    }
}

fn response(answer: Answer) -> Response<Body> {
    let (kind, octets) = match answer {
        Answer::Script(text) => ("text/plain", Bytes::from(text)),
        Answer::Json(text) => ("application/json", Bytes::from(text)),
        Answer::Blob(octets) => ("application/octet-stream", octets),
        Answer::Done => return empty(StatusCode::NO_CONTENT),
        Answer::Malformed => return empty(StatusCode::BAD_REQUEST),
        Answer::Forbidden => return empty(StatusCode::FORBIDDEN),
        Answer::Nothing => return empty(StatusCode::NOT_FOUND),
    };
    let mut response = Response::new(Body::whole(octets.clone()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, HeaderValue::from(octets.len()));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    // Answers differ for each machine and moment; a cache in between must not know them.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn whole(answer: Answer, request: &Request<Incoming>) -> Response<Body> {
    let mut response = response(answer);
    if request.method() == Method::HEAD {
        *response.body_mut() = Body::empty();
    }
    response
}

fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    if status != StatusCode::NO_CONTENT {
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    response
}

fn not_allowed(methods: &'static str) -> Response<Body> {
    let mut response = empty(StatusCode::METHOD_NOT_ALLOWED);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    response
}

async fn file(plane: &BootPlane, peer: Peer, name: &'static str, request: &Request<Incoming>) -> Response<Body> {
    let folder = plane.shared().config.files_dir.clone();
    let opened = tokio::task::spawn_blocking(move || artifacts::open(&folder, name)).await;
    let (file, size) = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) => {
            tracing::warn!(name, %error, "boot plane: a file of the appliance can not be read");
            return empty(StatusCode::NOT_FOUND);
        }
        Err(_) => return empty(StatusCode::INTERNAL_SERVER_ERROR),
    };
    let head = request.method() == Method::HEAD;
    if name == artifacts::KERNEL && !head {
        plane.mark(peer, Step::Kernel, clock::now());
    } else if artifacts::LOADERS.contains(&name) {
        plane.mark(peer, Step::Loader, clock::now());
    }
    // There are no validators to compare with: any If-Range means "all of it" (RFC 9110 section 13.1.5).
    let range = request.headers().get(RANGE).filter(|_| !request.headers().contains_key(IF_RANGE)).and_then(|v| v.to_str().ok());
    let (status, first, length) = match span(range, size) {
        Span::Whole => (StatusCode::OK, 0, size),
        Span::Part { first, length } => (StatusCode::PARTIAL_CONTENT, first, length),
        Span::Unsatisfiable => {
            let mut response = empty(StatusCode::RANGE_NOT_SATISFIABLE);
            insert(&mut response, CONTENT_RANGE, &format!("bytes */{size}"));
            return response;
        }
    };
    let mut response = Response::new(if head { Body::empty() } else { Body::file(file, first, length) });
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    response.headers_mut().insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if status == StatusCode::PARTIAL_CONTENT {
        insert(&mut response, CONTENT_RANGE, &format!("bytes {first}-{}/{size}", first + length - 1));
    }
    response
}

fn insert(response: &mut Response<Body>, name: hyper::header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

#[cfg(test)]
mod tests;
