//! `kurrent disk`, `master`, `leftover`.

use super::batch::{self, Batch};
use super::job::wait;
use super::worker::{KEPT, in_part};
use crate::arguments::Sure;
use crate::arguments::disk::{Disk, Leftover, Master, One, Wanted};
use crate::confirm;
use crate::failure::Failure;
use crate::output::{Column, at, fields, table, text};
use crate::session::{Session, View, body, encoded, query};
use crate::upload::Upload;
use hyper::Method;
use kurrent_core::id::{FileName, WorkerId};
use serde_json::{Value, json};
use std::path::Path;

const OF_WORKER: View = View {
    key: "disks",
    columns: &[
        ("TAG", "os_tag"),
        ("OS", "os"),
        ("VERSION", "os_version"),
        ("SIZE", "size_bytes"),
        ("AGENT", "agent"),
        ("FILE", "filename"),
        ("CREATED", "created_at"),
        ("REMARK", "remark"),
    ],
    none: "no disks; create one",
};
const ALL: View = View {
    key: "disks",
    columns: &[
        ("WORKER", "worker_id"),
        ("TAG", "os_tag"),
        ("OS", "os"),
        ("VERSION", "os_version"),
        ("SIZE", "size_bytes"),
        ("AGENT", "agent"),
        ("CREATED", "created_at"),
        ("REMARK", "remark"),
    ],
    none: "no disks; create one",
};
const MASTERS: View = View {
    key: "masters",
    columns: &[("NAME", "name"), ("SIZE", "size_bytes"), ("OS", "os"), ("VERSION", "os_version"), ("REMARK", "remark"), ("FAULT", "fault")],
    none: "no masters; import one",
};
const LEFTOVERS: View =
    View { key: "leftovers", columns: &[("NAME", "name"), ("SIZE", "size_bytes"), ("KIND", "kind")], none: "no leftovers" };
const PLAN: &[Column] = &[
    ("WORKER", "worker_id"),
    ("OS", "os"),
    ("VERSION", "os_version"),
    ("MASTER", "master"),
    ("SIZE", "size_bytes"),
    ("AGENT", "agent"),
    ("CODE", "code"),
    ("DETAIL", "detail"),
];
const BATCH: Batch = Batch { path: "/v1/disks/batch", columns: PLAN, question: "Create these?" };

fn path(disk: &One) -> String {
    format!("/v1/workers/{}/disks/{}", disk.worker, disk.os_tag)
}

/// Carries it out.
pub async fn run(session: &Session, command: Disk) -> Result<(), Failure> {
    match command {
        Disk::List { worker, agent, os, listing } => {
            let filters = [("agent", agent.map(|a| a.to_string())), ("os", os.map(|o| o.to_string()))];
            match worker {
                // Its own list has no filters.
                Some(worker) if filters.iter().all(|(_, value)| value.is_none()) => {
                    session.list(format!("/v1/workers/{worker}/disks"), OF_WORKER, listing).await
                }
                worker => {
                    let path = query(&query("/v1/disks", &[("worker", worker.map(|w| w.to_string()))]), &filters);
                    session.list(path, ALL, listing).await
                }
            }
        }
        Disk::Get { disk, look } => session.one(path(&disk), look, fields).await,
        Disk::Create { worker, wanted, remark, no_wait } => create(session, &worker, wanted, remark, no_wait).await,
        Disk::CreateBatch { workers, wanted, dry_run, no_wait } => create_batch(session, &workers, &wanted, dry_run, no_wait).await,
        Disk::Adopt { worker, filename, os, os_version, remark } => {
            let order = body([
                ("filename", Some(filename.as_str().into())),
                ("os", Some(os.as_str().into())),
                ("os_version", Some(os_version.as_str().into())),
                ("remark", remark.map(Value::from)),
            ]);
            let answer = session.client.post(&format!("/v1/workers/{worker}/disks/adopt"), order).await?;
            session.show(&answer, |disk| there(disk, &worker))
        }
        Disk::Resize { disk, size } => {
            let answer = session.client.post(&format!("{}/resize", path(&disk)), json!({ "size_bytes": size })).await?;
            session.show(&answer, |_| format!("disk {} of {} has {} now", disk.os_tag, disk.worker, crate::output::size(size)))
        }
        Disk::Edit { disk, remark } => {
            session.show(&session.client.change(Method::PATCH, &path(&disk), Some(json!({ "remark": remark })), None).await?, fields)
        }
        Disk::Delete { disk, delete_file, sure } => delete(session, &disk, delete_file, sure).await,
        Disk::Default(disk) => {
            let order = json!({ "os_tag": disk.os_tag.as_str() });
            let path = format!("/v1/workers/{}/default-disk", disk.worker);
            let answer = session.client.change(Method::PUT, &path, Some(order), None).await?;
            session.show(&answer, |_| format!("{} boots disk {}", disk.worker, disk.os_tag))
        }
    }
}

fn there(disk: &Value, worker: &WorkerId) -> String {
    format!("disk {} of {worker} is there: {}", text(at(disk, "os_tag")), text(at(disk, "filename")))
}

fn order(wanted: &Wanted) -> Vec<(&'static str, Option<Value>)> {
    vec![
        ("os", Some(wanted.os.as_str().into())),
        ("os_version", Some(wanted.os_version.as_str().into())),
        ("master", wanted.master.as_ref().map(|m| m.as_str().into())),
        ("size_bytes", wanted.size.map(Value::from)),
        ("agent", wanted.agent.as_ref().map(|a| a.as_str().into())),
    ]
}

async fn create(session: &Session, worker: &WorkerId, wanted: Wanted, remark: Option<String>, no_wait: bool) -> Result<(), Failure> {
    let order = body(order(&wanted).into_iter().chain([("remark", remark.map(Value::from))]));
    let mut answer = session.client.post(&format!("/v1/workers/{worker}/disks"), order).await?;
    if let Some(job) = at(&answer, "job").as_str().map(str::to_owned) {
        if no_wait {
            return session.show(&answer, |_| format!("job {}", crate::output::clean(&job)));
        }
        answer = at(&wait(session, &job).await?, "disk").clone();
    }
    session.show(&answer, |disk| there(disk, worker))
}

async fn create_batch(session: &Session, workers: &[WorkerId], wanted: &Wanted, dry_run: bool, no_wait: bool) -> Result<(), Failure> {
    let item = |worker: &WorkerId| body(order(wanted).into_iter().chain([("worker_id", Some(worker.as_str().into()))]));
    let items: Vec<Value> = workers.iter().map(item).collect();
    // Disks that are made harm nobody: nothing is asked.
    let Some(answer) = batch::run(session, BATCH, json!({ "items": items }), dry_run, Sure { yes: true }).await? else {
        return Ok(());
    };
    let jobs: Vec<String> = at(&answer, "jobs").as_array().into_iter().flatten().map(job_id).collect();
    if no_wait || jobs.is_empty() {
        return session.show(&answer, |_| format!("{} disks are ordered; jobs: {}", workers.len(), jobs.join(", ")));
    }
    let mut failed = 0;
    for job in &jobs {
        match wait(session, job).await {
            Ok(_) => {}
            Err(Failure::Refused(problem)) => {
                failed += 1;
                eprintln!("kurrent: job {}: {}", crate::output::clean(job), Failure::Refused(problem));
            }
            Err(failure) => return Err(failure),
        }
    }
    session.show(&answer, |_| format!("{} disks are there, {failed} failed", workers.len() - failed.min(workers.len())))?;
    if failed == 0 { Ok(()) } else { Err(Failure::InPart(format!("{failed} disks are not there; see kurrent job list"))) }
}

/// A list of jobs holds ids, or the jobs themselves.
fn job_id(job: &Value) -> String {
    job.as_str().or_else(|| at(job, "id").as_str()).unwrap_or_default().to_owned()
}

async fn delete(session: &Session, disk: &One, delete_file: bool, sure: Sure) -> Result<(), Failure> {
    let question = |now: &Value| {
        let file = if delete_file { "is lost for ever" } else { "is kept" };
        let (os, version) = (text(at(now, "os")), text(at(now, "os_version")));
        format!("Delete disk {} ({os} {version}) of {}? Its file {} {file}.", disk.os_tag, disk.worker, text(at(now, "filename")))
    };
    let tag = session.ask(sure, &path(disk), question).await?;
    let path = query(&path(disk), &[("delete_file", Some(delete_file.to_string()))]);
    let answer = session.client.change(Method::DELETE, &path, None, tag).await?;
    let failed = at(&answer, "failed").as_array().cloned().unwrap_or_default();
    let files = failed.len();
    let kept = if delete_file && files == 0 { "with its file" } else { "its file is kept" };
    let deleted = body([
        ("deleted", Some(disk.os_tag.as_str().into())),
        ("failed", (files > 0).then_some(Value::Array(failed))),
        ("data_plane", answer.get("data_plane").cloned()),
    ]);
    session.show(&deleted, |deleted| {
        let said = format!("disk {} of {} is deleted, {kept}", disk.os_tag, disk.worker);
        if files == 0 { said } else { format!("{said}\n{}", table(deleted, "failed", KEPT, "")) }
    })?;
    in_part(files)
}

/// `kurrent master`.
pub async fn master(session: &Session, command: Master) -> Result<(), Failure> {
    let path = |name: &FileName| format!("/v1/masters/{name}");
    match command {
        Master::List(listing) => session.list("/v1/masters".into(), MASTERS, listing).await,
        Master::Get { name, look } => session.one(path(&name), look, fields).await,
        Master::Import { file, name } => import(session, &file, name).await,
        Master::Tag { name, os, os_version, remark } => {
            let tags = body([
                ("os", os.map(|o| o.as_str().into())),
                ("os_version", os_version.map(|v| v.as_str().into())),
                ("remark", remark.map(Value::from)),
            ]);
            session.show(&session.client.change(Method::PUT, &format!("{}/tags", path(&name)), Some(tags), None).await?, fields)
        }
        Master::Delete { name, sure } => {
            let question = |now: &Value| {
                format!(
                    "Delete the master {name} ({})? It is lost for ever.",
                    at(now, "size_bytes").as_u64().map_or_else(String::new, crate::output::size)
                )
            };
            let tag = session.ask(sure, &path(&name), question).await?;
            session.client.change(Method::DELETE, &path(&name), None, tag).await?;
            session.show(&json!({ "deleted": name.as_str() }), |_| format!("master {name} is deleted"))
        }
    }
}

async fn import(session: &Session, path: &Path, name: Option<FileName>) -> Result<(), Failure> {
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
    session.client.get("/v1/masters").await?;
    let upload = Upload::new(file, meta.len(), &format!("sending {name}"));
    let answer = session.client.upload(&format!("/v1/masters/{name}"), "application/octet-stream", upload).await?;
    session.show(&answer, |_| format!("master {name} is there"))
}

/// `kurrent leftover`.
pub async fn leftover(session: &Session, command: Leftover) -> Result<(), Failure> {
    match command {
        Leftover::List(listing) => session.list("/v1/leftovers".into(), LEFTOVERS, listing).await,
        Leftover::Delete { name, sure } => {
            if confirm::needed(sure) {
                confirm::ask(&format!("Delete the file {}? It is lost for ever.", crate::output::clean(&name)))?;
            }
            session.client.change(Method::DELETE, &format!("/v1/leftovers/{}", encoded(&name)), None, None).await?;
            session.show(&json!({ "deleted": name }), |_| format!("{} is deleted", crate::output::clean(&name)))
        }
    }
}
