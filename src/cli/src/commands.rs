//! What each command asks of the API, and how people see the answer.

use crate::arguments::{Arguments, Audit, Command, CreateDisk, Device, Disk, Form, Job, Lease, Master, Window, Worker};
use crate::client::Client;
use crate::failure::{Failure, Problem};
use crate::output::{Column, at, fields, show, table, text};
use crate::upload::{Progress, Upload};
use hyper::Method;
use kurrent_core::id::FileName;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

const ASK_AGAIN: Duration = Duration::from_millis(300);

const DEVICES: &[Column] = &[
    ("MAC", "mac"),
    ("STATE", "state"),
    ("WORKER", "bound_worker_id"),
    ("ADDRESS", "address"),
    ("LAST SEEN", "last_seen"),
    ("BOOT", "last_boot"),
    ("PRODUCT", "fingerprint.product"),
    ("NOTE", "note"),
];
const KNOCKING: &[Column] = &[
    ("MAC", "mac"),
    ("LAST SEEN", "last_seen"),
    ("REPORTS", "reports"),
    ("KEY HASH", "public_key_hash"),
    ("KEY CHANGED", "key_changed"),
    ("PRODUCT", "fingerprint.product"),
    ("SERIAL", "fingerprint.serial"),
];
const WORKERS: &[Column] = &[
    ("WORKER", "worker_id"),
    ("STATE", "state"),
    ("READINESS", "readiness"),
    ("DEVICE", "bound_device"),
    ("DEFAULT DISK", "default_disk"),
    ("ERROR", "error"),
];
const DISKS: &[Column] =
    &[("TAG", "os_tag"), ("OS", "os"), ("VERSION", "os_version"), ("BYTES", "size_bytes"), ("FILE", "filename"), ("CREATED", "created_at")];
const MASTERS: &[Column] = &[("NAME", "name"), ("BYTES", "size_bytes"), ("FAULT", "fault")];
const JOBS: &[Column] =
    &[("ID", "id"), ("STATE", "state"), ("DONE", "done_bytes"), ("OF", "total_bytes"), ("WHAT", "what"), ("DETAIL", "detail")];
const LEASES: &[Column] = &[("ADDRESS", "address"), ("MAC", "mac")];
const OPERATIONS: &[Column] = &[
    ("AT", "at"),
    ("ACTOR", "actor"),
    ("VERB", "verb"),
    ("DEVICE", "device"),
    ("OBJECT", "object"),
    ("RESULT", "result"),
    ("REPEATED", "repeated"),
];
const EXPORTS: &[Column] = &[("SUBSYSTEM", "subsystem"), ("HOST", "host"), ("FILE", "path")];
const SESSIONS: &[Column] = &[("ADDRESS", "address"), ("CONNECTIONS", "connections")];
const MARKS: &[Column] = &[("STEP", "step"), ("AT", "at"), ("MS", "since_start_ms")];

/// Carries out a command.
pub async fn run(arguments: Arguments) -> Result<(), Failure> {
    let client = Client::new(&arguments.url, arguments.token_file.as_deref())?;
    let form = arguments.output;
    match arguments.command {
        Command::Status => show(form, &client.get("/v1/status").await?, fields),
        Command::Target => show(form, &client.get("/v1/target").await?, target),
        Command::Lease(Lease::List) => list(&client, form, "/v1/leases", "leases", LEASES, "no leases").await,
        Command::Audit(filter) => audit(&client, form, &filter).await,
        Command::Window(command) => window(&client, form, command).await,
        Command::Device(command) => device(&client, form, command).await,
        Command::Worker(command) => worker(&client, form, command).await,
        Command::Disk(command) => disk(&client, form, command).await,
        Command::Master(Master::List) => list(&client, form, "/v1/masters", "masters", MASTERS, "no masters; import one").await,
        Command::Master(Master::Import { file, name }) => import(&client, form, &file, name).await,
        Command::Job(Job::List) => list(&client, form, "/v1/jobs", "jobs", JOBS, "no jobs").await,
        Command::Job(Job::Get { id }) => show(form, &client.get(&format!("/v1/jobs/{}", encoded(&id))).await?, fields),
        Command::Job(Job::Wait { id }) => show(form, &wait(&client, &id).await?, fields),
    }
}

async fn list(client: &Client, form: Form, path: &str, key: &str, columns: &[Column], none: &str) -> Result<(), Failure> {
    show(form, &client.get(path).await?, |answer| table(answer, key, columns, none))
}

/// A path segment or query value.
fn encoded(text: &str) -> String {
    let keep = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes().map(|b| if keep(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

fn query(path: &str, pairs: &[(&str, Option<String>)]) -> String {
    let given: Vec<String> = pairs.iter().filter_map(|(k, v)| Some(format!("{k}={}", encoded(v.as_ref()?)))).collect();
    if given.is_empty() { path.to_owned() } else { format!("{path}?{}", given.join("&")) }
}

fn target(answer: &Value) -> String {
    let faults = answer.get("faults").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let faults: Vec<String> = faults.iter().map(|f| format!("fault: {}", text(f))).collect();
    let exports = table(answer, "exports", EXPORTS, "nothing is exported");
    let sessions = table(answer, "sessions", SESSIONS, "nobody is connected");
    [exports, sessions].into_iter().chain(faults).collect::<Vec<_>>().join("\n\n")
}

fn timeline(boot: &Value) -> String {
    let marks = table(boot, "marks", MARKS, "no step seen");
    match at(boot, "fault") {
        Value::Null => marks,
        fault => format!("{marks}\nstopped: {}", text(fault)),
    }
}

async fn audit(client: &Client, form: Form, filter: &Audit) -> Result<(), Failure> {
    let pairs = [
        ("device", filter.device.map(|d| d.to_string())),
        ("verb", filter.verb.clone()),
        ("result", filter.result.clone()),
        ("since", filter.since.clone()),
        ("limit", Some(filter.limit.to_string())),
    ];
    list(client, form, &query("/v1/operations", &pairs), "operations", OPERATIONS, "nothing recorded").await
}

async fn window(client: &Client, form: Form, command: Window) -> Result<(), Failure> {
    const PATH: &str = "/v1/settings/registration-window";
    let answer = match command {
        Window::Open { minutes: None } => client.ask(Method::PUT, PATH, Some(json!({}))).await?,
        Window::Open { minutes } => client.ask(Method::PUT, PATH, Some(json!({ "minutes": minutes }))).await?,
        Window::Close => client.ask(Method::DELETE, PATH, None).await?,
        Window::Show => client.get(PATH).await?,
    };
    show(form, &answer, |answer| match at(answer, "open") {
        Value::Bool(true) => format!("open until {}: machines with a key register themselves", text(at(answer, "until"))),
        _ => "closed: unknown machines are only listed as knocking".into(),
    })
}

async fn device(client: &Client, form: Form, command: Device) -> Result<(), Failure> {
    let path = |mac| format!("/v1/devices/{mac}");
    let order = async |mac, verb: &str, body| client.ask(Method::POST, &format!("/v1/devices/{mac}/{verb}"), Some(body)).await;
    let answer = match command {
        Device::List { state, worker } => {
            let path = query("/v1/devices", &[("state", state), ("worker", worker.map(|w| w.to_string()))]);
            let none = "no devices; open the window and start a machine, or register one";
            return list(client, form, &path, "devices", DEVICES, none).await;
        }
        Device::Knocking => return list(client, form, "/v1/knocking", "knocking", KNOCKING, "nobody is knocking").await,
        Device::Get { mac } => return show(form, &client.get(&path(mac)).await?, fields),
        Device::Timeline { mac } => {
            let boot = client.get(&format!("{}/timeline", path(mac))).await?;
            return show(form, &boot, timeline);
        }
        Device::Purge { mac } => {
            client.ask(Method::DELETE, &path(mac), None).await?;
            return show(form, &json!({ "purged": mac.to_string() }), |_| format!("{mac} is forgotten"));
        }
        Device::Register { mac, public_key, admit, public_key_hash, keyless_allowed, note } => {
            let mut body = json!({ "admit": admit, "keyless_allowed": keyless_allowed, "note": note });
            if let Some(map) = body.as_object_mut() {
                map.extend(public_key.map(|key| ("public_key".to_owned(), key.into())));
                map.extend(public_key_hash.map(|hash| ("public_key_hash".to_owned(), hash.into())));
            }
            client.ask(Method::POST, &path(mac), Some(body)).await?
        }
        Device::Bind { mac, worker, force } => order(mac, "bind", json!({ "worker_id": worker.as_str(), "force": force })).await?,
        Device::Unbind { mac } => order(mac, "unbind", json!({})).await?,
        Device::Revoke { mac } => order(mac, "revoke", json!({})).await?,
        Device::Rekey { mac, minutes } => order(mac, "rekey", json!({ "minutes": minutes })).await?,
        Device::Label { mac, labels } => {
            let labels: serde_json::Map<String, Value> = labels.into_iter().map(|(k, v)| (k, v.into())).collect();
            client.ask(Method::PUT, &format!("{}/labels", path(mac)), Some(json!({ "labels": labels }))).await?
        }
    };
    if let Some(why) = at(&answer, "data_plane").as_str().and_then(|d| d.strip_prefix("not yet: ")) {
        eprintln!("kurrent: the change is made, but the data plane has not followed yet: {why}");
    }
    if let Some(warning) = at(&answer, "warning").as_str() {
        eprintln!("kurrent: {warning}");
    }
    show(form, &answer, |d| {
        let bound = at(d, "bound_worker_id").as_str().map(|w| format!(" to {w}")).unwrap_or_default();
        format!("{} is {}{bound}", text(at(d, "mac")), text(at(d, "state")))
    })
}

async fn worker(client: &Client, form: Form, command: Worker) -> Result<(), Failure> {
    let path = |worker| format!("/v1/workers/{worker}");
    match command {
        Worker::List => list(client, form, "/v1/workers", "workers", WORKERS, "no Workers; create one").await,
        Worker::Get { worker } => show(form, &client.get(&path(worker)).await?, fields),
        Worker::Create { worker } => {
            let answer = client.ask(Method::POST, "/v1/workers", Some(json!({ "worker_id": worker.as_str() }))).await?;
            show(form, &answer, |_| format!("Worker {worker} is created"))
        }
        Worker::Delete { worker, delete_files } => {
            let path = query(&path(worker.clone()), &[("delete_files", Some(delete_files.to_string()))]);
            let answer = client.ask(Method::DELETE, &path, None).await?;
            show(form, &answer, |answer| {
                let kept = at(answer, "retained").as_array().filter(|k| !k.is_empty());
                let kept = kept.map(|k| format!("; kept: {}", text(&Value::Array(k.clone())))).unwrap_or_default();
                format!("Worker {worker} is deleted{kept}")
            })
        }
        Worker::Boot { worker, method, kernel } => {
            let body = json!({ "method": method, "kernel": kernel });
            show(form, &client.ask(Method::PUT, &format!("{}/boot", path(worker)), Some(body)).await?, fields)
        }
    }
}

async fn disk(client: &Client, form: Form, command: Disk) -> Result<(), Failure> {
    match command {
        Disk::List { worker } => list(client, form, &format!("/v1/workers/{worker}/disks"), "disks", DISKS, "no disks; create one").await,
        Disk::Create(wanted) => create_disk(client, form, wanted).await,
        Disk::Delete { worker, os_tag, delete_file } => {
            let path = query(&format!("/v1/workers/{worker}/disks/{os_tag}"), &[("delete_file", Some(delete_file.to_string()))]);
            client.ask(Method::DELETE, &path, None).await?;
            let kept = if delete_file { "with its file" } else { "its file is kept" };
            show(form, &json!({ "deleted": os_tag.as_str() }), |_| format!("disk {os_tag} of {worker} is deleted, {kept}"))
        }
        Disk::Default { worker, os_tag } => {
            let body = json!({ "os_tag": os_tag.as_str() });
            let answer = client.ask(Method::PUT, &format!("/v1/workers/{worker}/default-disk"), Some(body)).await?;
            show(form, &answer, |_| format!("{worker} boots disk {os_tag}"))
        }
    }
}

async fn create_disk(client: &Client, form: Form, wanted: CreateDisk) -> Result<(), Failure> {
    let mut body = json!({ "os": wanted.os.as_str(), "os_version": wanted.os_version.as_str() });
    if let Some(map) = body.as_object_mut() {
        map.extend(wanted.master.map(|m| ("master".to_owned(), m.as_str().into())));
        map.extend(wanted.size.map(|s| ("size_bytes".to_owned(), s.into())));
    }
    let mut answer = client.ask(Method::POST, &format!("/v1/workers/{}/disks", wanted.worker), Some(body)).await?;
    if let Some(job) = at(&answer, "job").as_str().map(str::to_owned) {
        if wanted.no_wait {
            return show(form, &answer, |_| format!("job {job}"));
        }
        answer = at(&wait(client, &job).await?, "disk").clone();
    }
    show(form, &answer, |disk| format!("disk {} of {} is there: {}", text(at(disk, "os_tag")), wanted.worker, text(at(disk, "filename"))))
}

/// Waits for a job; a failed one is a failure of the command.
async fn wait(client: &Client, id: &str) -> Result<Value, Failure> {
    let path = format!("/v1/jobs/{}", encoded(id));
    let mut progress = None;
    loop {
        let job = client.get(&path).await?;
        let number = |key: &str| at(&job, key).as_u64().unwrap_or(0);
        match at(&job, "state").as_str() {
            Some("done") => return Ok(job),
            Some("failed") => {
                let detail = text(at(&job, "detail"));
                return Err(Failure::Refused(Problem { status: 500, code: text(at(&job, "code")), detail }));
            }
            _ => {}
        }
        if progress.is_none()
            && let Some(warning) = at(&job, "warning").as_str()
        {
            eprintln!("kurrent: {warning}");
        }
        progress.get_or_insert_with(|| Progress::new("copying".into(), number("total_bytes"))).show(number("done_bytes"));
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

async fn import(client: &Client, form: Form, path: &Path, name: Option<FileName>) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::local(format!("{}: {e}", path.display()));
    let name = match name {
        Some(name) => name,
        None => {
            let own = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            own.parse().map_err(|e| Failure::local(format!("{e}; give another with --name")))?
        }
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() {
        return Err(Failure::local(format!("{} is not a file", path.display())));
    }
    // A wrong token or address is told now, not in the middle of the upload.
    client.get("/v1/masters").await?;
    let upload = Upload::new(file, meta.len(), format!("sending {name}"));
    let answer = client.send(Method::PUT, &format!("/v1/masters/{name}"), upload).await?;
    show(form, &answer, |_| format!("master {name} is there"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_is_a_table_of_steps_and_says_where_it_stopped() {
        let mark = |step, at, ms| json!({ "step": step, "at": at, "since_start_ms": ms });
        let marks = [mark("dhcp", "2026-11-30T10:00:00.123456Z", 0), mark("script", "2026-11-30T10:00:07.5Z", 7377)];
        let table = "STEP    AT                    MS\n\
                     dhcp    2026-11-30T10:00:00Z  0\n\
                     script  2026-11-30T10:00:07Z  7377";
        assert_eq!(timeline(&json!({ "marks": marks, "fault": null })), table);
        assert_eq!(timeline(&json!({ "marks": marks, "fault": "no\u{1b} key" })), format!("{table}\nstopped: no? key"));
        assert_eq!(timeline(&json!({ "marks": [], "fault": "no key" })), "no step seen\nstopped: no key");
    }
}
