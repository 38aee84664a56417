//! Paths of the boot plane: what each answers, in the words of `boot_plane` and `core::http::answer`.

use super::Server;
use super::files::Artifact;
use crate::artifacts;
use crate::boot_plane::{self, BootPlane, Peer};
use hyper::body::Bytes;
use kurrent_core::http::Form;
use kurrent_core::http::answer::{Answer, Extra, Status, kind_of};
use kurrent_core::http::head::{Head, Method};
use kurrent_core::timeline::Step;
use kurrent_sys::clock;
use std::sync::Arc;

/// An answer and what follows its head.
pub struct Reply {
    /// The head.
    pub answer: Answer,
    /// The body.
    pub body: Body,
}

/// Octets behind the head of an answer.
pub enum Body {
    /// None.
    None,
    /// These.
    Octets(Bytes),
    /// Of a file: from which octet on, and how many.
    File(Arc<Artifact>, u64, u64),
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Self { answer, body: Body::None }
    }
}

/// Whether the request is a form that has to be read first.
pub fn takes_form(head: &Head<'_>) -> bool {
    head.method == Method::Post && is_form(head.path)
}

fn is_form(path: &str) -> bool {
    matches!(path, "/devices/report" | "/devices/challenge" | "/boot-vars" | "/stage1/report")
}

/// Scripts for the existing firmware have only `chain` and `imgfetch`: their parameters come in the URL. Nothing among them is a
/// secret (nonce, signature, public keys), and no URL's query is ever logged. HEAD would do the work and show nothing of it.
fn asks_by_query(head: &Head<'_>) -> bool {
    head.method == Method::Get && is_form(head.path) && head.path != "/stage1/report"
}

/// Answers a form.
pub async fn form(plane: &BootPlane, peer: Peer, path: &str, form: &Form) -> Reply {
    // A body may have taken its time: nonces are judged by when it was there.
    let now = clock::now();
    if let Some(later) = plane.over_budget(peer, path, now) {
        return reply(later);
    }
    reply(match path {
        "/devices/report" => plane.report(peer, form, now).await,
        "/devices/challenge" => plane.challenge(peer, form, now),
        "/boot-vars" => plane.boot_vars(peer, form, now).await,
        _ => plane.stage1_report(form, now),
    })
}

/// Answers anything else.
pub async fn route(server: &Server, peer: Peer, head: &Head<'_>) -> Reply {
    let plane = &*server.plane;
    let is_get = matches!(head.method, Method::Get | Method::Head);
    match head.path {
        "/boot.ipxe" | "/files/autoexec.ipxe" if is_get => {
            plane.mark(peer, Step::Script, clock::now());
            whole(if head.path == "/boot.ipxe" { plane.boot_script() } else { plane.autoexec() }, head)
        }
        path if asks_by_query(head) => match Form::parse(head.query.as_bytes()) {
            Ok(query) => form(plane, peer, path, &query).await,
            Err(_) => Answer::empty(Status::BadRequest).into(),
        },
        "/boot.ipxe" | "/files/autoexec.ipxe" => not_allowed("GET, HEAD"),
        "/stage1/report" => not_allowed("POST"),
        path if is_form(path) => not_allowed("GET, POST"),
        path => {
            if let Some(name) = path.strip_prefix("/files/").and_then(artifacts::known) {
                return if is_get { file(server, peer, name, head).await } else { not_allowed("GET, HEAD") };
            }
            match path.strip_prefix("/stage1/").and_then(|rest| rest.strip_suffix("/sealed")) {
                Some(boot_id) if is_get => whole(plane.sealed(boot_id, clock::now()), head),
                Some(_) => not_allowed("GET, HEAD"),
                None => Answer::empty(Status::NotFound).into(),
            }
        }
    }
}

fn not_allowed(methods: &'static str) -> Reply {
    Answer { extra: Extra::Allow(methods), ..Answer::empty(Status::MethodNotAllowed) }.into()
}

fn reply(answer: boot_plane::Answer) -> Reply {
    use boot_plane::Answer as Said;
    let (kind, octets) = match answer {
        Said::Script(text) => ("text/plain", Bytes::from(text)),
        Said::Json(text) => ("application/json", Bytes::from(text)),
        Said::Blob(octets) => ("application/octet-stream", octets),
        Said::Done => return Answer::empty(Status::NoContent).into(),
        Said::Malformed => return Answer::empty(Status::BadRequest).into(),
        Said::TooMany => return Answer::empty(Status::TooManyRequests).into(),
        Said::Forbidden => return Answer::empty(Status::Forbidden).into(),
        Said::Nothing => return Answer::empty(Status::NotFound).into(),
    };
    let length = u64::try_from(octets.len()).unwrap_or(u64::MAX);
    Reply { answer: Answer { status: Status::Ok, length, kind: Some(kind), extra: Extra::NoStore }, body: Body::Octets(octets) }
}

fn whole(answer: boot_plane::Answer, head: &Head<'_>) -> Reply {
    let reply = reply(answer);
    if head.method == Method::Head { reply.answer.into() } else { reply }
}

async fn file(server: &Server, peer: Peer, name: &'static str, head: &Head<'_>) -> Reply {
    let artifact = match server.files.get(name).await {
        Ok(artifact) => artifact,
        Err(error) => {
            server.warn("file", &format!("{name} of the appliance can not be read: {error}"));
            return Answer::empty(Status::NotFound).into();
        }
    };
    let is_head = head.method == Method::Head;
    if name == artifacts::KERNEL && !is_head {
        server.plane.mark(peer, Step::Kernel, clock::now());
    } else if kurrent_core::dhcp::pxe::is_loader(name) {
        server.plane.mark(peer, Step::Loader, clock::now());
    }
    let (answer, first, length) = Answer::file(head, kind_of(name), artifact.size());
    if is_head || length == 0 {
        return answer.into();
    }
    let from_memory = artifact.content().and_then(|content| {
        let first = usize::try_from(first).ok()?;
        let end = first.checked_add(usize::try_from(length).ok()?)?;
        (end <= content.len()).then(|| content.slice(first..end))
    });
    let body = from_memory.map_or_else(|| Body::File(artifact, first, length), Body::Octets);
    Reply { answer, body }
}
