//! `kurrent worker`.

use super::batch::{self, Batch};
use super::migrate;
use crate::arguments::Sure;
use crate::arguments::worker::{CreateBatch, Overrides, Worker};
use crate::failure::Failure;
use crate::output::{Column, at, fields, table, text};
use crate::session::{Session, View, body, query};
use hyper::Method;
use kurrent_core::id::WorkerId;
use serde_json::{Value, json};

const WORKERS: View = View {
    key: "workers",
    columns: &[
        ("WORKER", "worker_id"),
        ("STATE", "state"),
        ("READINESS", "readiness"),
        ("DEVICE", "bound_device"),
        ("DEFAULT DISK", "default_disk"),
        ("ERROR", "error"),
    ],
    none: "no Workers; create one",
};
const CREATE: Batch = Batch {
    path: "/v1/workers/batch",
    columns: &[("WORKER", "worker_id"), ("CODE", "code"), ("DETAIL", "detail")],
    question: "Create these?",
};
/// Files that were to go.
pub const KEPT: &[Column] = &[("FILE", "filename"), ("CODE", "code"), ("DETAIL", "detail")];
const FAILED: &[Column] = &[("WORKER", "worker_id"), ("CODE", "code"), ("DETAIL", "detail")];

fn path(worker: &WorkerId) -> String {
    format!("/v1/workers/{worker}")
}

/// Carries it out.
pub async fn run(session: &Session, command: Worker) -> Result<(), Failure> {
    match command {
        Worker::List { readiness, listing } => session.list(query("/v1/workers", &[("readiness", readiness)]), WORKERS, listing).await,
        Worker::Get { worker, look } => session.one(path(&worker.worker), look, fields).await,
        Worker::Status { worker, look } => session.one(format!("{}/status", path(&worker.worker)), look, fields).await,
        Worker::Migrate { worker, to, wait, attest, dry_run, no_follow, sure } => {
            migrate::run(session, migrate::Order { worker: &worker.worker, to, wait, attest, dry_run, no_follow }, sure).await
        }
        Worker::BootVars { worker, look } => session.one(format!("{}/boot-vars", path(&worker.worker)), look, fields).await,
        Worker::Create { worker } => {
            let answer = session.client.post("/v1/workers", json!({ "worker_id": worker.as_str() })).await?;
            session.show(&answer, |_| format!("Worker {worker} is created"))
        }
        Worker::CreateBatch(wanted) => create_batch(session, wanted).await,
        Worker::Delete { worker, delete_files, sure } => delete(session, &worker.worker, delete_files, sure).await,
        Worker::DeleteBatch { workers, delete_files, sure } => delete_batch(session, &workers, delete_files, sure).await,
        Worker::Boot { worker, boot } => {
            let path = format!("{}/boot", path(&worker.worker));
            session.show(&session.client.change(Method::PUT, &path, Some(overrides(boot)), None).await?, fields)
        }
    }
}

/// Boot settings that are given.
pub fn overrides(boot: Overrides) -> Value {
    body([
        ("method", boot.method.map(Value::from)),
        ("kernel", boot.kernel.map(Value::from)),
        ("menu_default", boot.menu_default.map(Value::from)),
        ("menu_timeout_ms", boot.menu_timeout_ms.map(Value::from)),
    ])
}

async fn create_batch(session: &Session, wanted: CreateBatch) -> Result<(), Failure> {
    let order = match wanted.prefix {
        None => json!({ "names": wanted.workers.iter().map(WorkerId::as_str).collect::<Vec<_>>() }),
        Some(prefix) => body([
            ("prefix", Some(prefix.into())),
            ("count", wanted.count.map(Value::from)),
            ("start", wanted.start.map(Value::from)),
            ("width", wanted.width.map(Value::from)),
        ]),
    };
    // Names harm nobody: nothing is asked.
    match batch::run(session, CREATE, order, wanted.dry_run, Sure { yes: true }).await? {
        None => Ok(()),
        Some(answer) => session.show(&answer, |answer| {
            let count = at(answer, "plan").as_array().map_or(0, Vec::len);
            format!("{count} Workers are created")
        }),
    }
}

async fn delete(session: &Session, worker: &WorkerId, delete_files: bool, sure: Sure) -> Result<(), Failure> {
    let tag = session.ask(sure, &path(worker), |now| question(now, delete_files)).await?;
    let path = query(&path(worker), &[("delete_files", Some(delete_files.to_string()))]);
    let answer = session.client.change(Method::DELETE, &path, None, tag).await?;
    let failed = at(&answer, "failed").as_array().map_or(0, Vec::len);
    session.show(&answer, |answer| {
        let kept = at(answer, "retained").as_array().filter(|k| !k.is_empty());
        let kept = kept.map(|k| format!("; kept: {}", text(&Value::Array(k.clone())))).unwrap_or_default();
        let said = format!("Worker {worker} is deleted{kept}");
        if failed == 0 { said } else { format!("{said}\n{}", table(answer, "failed", KEPT, "")) }
    })?;
    in_part(failed)
}

/// The Worker or disk is gone, but not all of its files.
pub fn in_part(files: usize) -> Result<(), Failure> {
    if files == 0 { Ok(()) } else { Err(Failure::InPart(format!("{files} files are still there; see kurrent leftover list"))) }
}

fn question(worker: &Value, delete_files: bool) -> String {
    let device = match at(worker, "bound_device") {
        Value::Null => String::new(),
        device => format!(" Its device {} is cut off.", text(device)),
    };
    let disks = at(worker, "disks").as_array().map_or(0, Vec::len);
    let files = match (disks, delete_files) {
        (0, _) => String::new(),
        (_, false) => format!(" The files of its {disks} disks are kept."),
        (_, true) => format!(" The files of its {disks} disks are lost for ever."),
    };
    format!("Delete Worker {}?{device}{files}", text(at(worker, "worker_id")))
}

async fn delete_batch(session: &Session, workers: &[WorkerId], delete_files: bool, sure: Sure) -> Result<(), Failure> {
    if crate::confirm::needed(sure) {
        let files = if delete_files { "their disks' files are lost for ever" } else { "their disks' files are kept" };
        let count = workers.len();
        crate::confirm::ask(&format!("Delete {count} Workers? Their machines are cut off; {files}."))?;
    }
    let names: Vec<&str> = workers.iter().map(WorkerId::as_str).collect();
    let answer = session.client.post("/v1/workers/batch-delete", json!({ "workers": names, "delete_files": delete_files })).await?;
    let count = |key: &str| at(&answer, key).as_array().map_or(0, Vec::len);
    let failed = count("failed");
    let deleted = at(&answer, "deleted").as_array().into_iter().flatten();
    let files: Vec<Value> = deleted.flat_map(|d| at(d, "failed").as_array().into_iter().flatten()).cloned().collect();
    session.show(&answer, |answer| {
        let kept = at(answer, "deleted").as_array().into_iter().flatten().flat_map(|d| at(d, "retained").as_array().into_iter().flatten());
        let kept: Vec<String> = kept.map(text).collect();
        let kept = if kept.is_empty() { String::new() } else { format!("; kept: {}", kept.join(", ")) };
        let sum = format!("{} deleted, {failed} failed{kept}", count("deleted"));
        let sum = if failed == 0 { sum } else { format!("{sum}\n{}", table(answer, "failed", FAILED, "")) };
        if files.is_empty() { sum } else { format!("{sum}\n{}", table(&json!({ "failed": files }), "failed", KEPT, "")) }
    })?;
    in_part(files.len())?;
    if failed == 0 { Ok(()) } else { Err(Failure::InPart(format!("{failed} Workers are not deleted; the answer says why"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_says_what_is_lost() {
        let worker = json!({ "worker_id": "w1", "bound_device": "52:54:00:00:00:01", "disks": [{}, {}] });
        assert_eq!(
            question(&worker, true),
            "Delete Worker w1? Its device 52:54:00:00:00:01 is cut off. The files of its 2 disks are lost for ever."
        );
        assert_eq!(question(&json!({ "worker_id": "w1" }), true), "Delete Worker w1?");
        assert!(question(&worker, false).ends_with("are kept."));
    }
}
