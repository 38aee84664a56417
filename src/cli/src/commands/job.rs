//! `kurrent job`, and waiting for one.

use crate::arguments::disk::Job;
use crate::confirm;
use crate::failure::{Failure, Problem};
use crate::output::{at, clean, fields, text};
use crate::progress::Progress;
use crate::session::{Session, View, encoded};
use crate::watch::interruptible;
use hyper::Method;
use serde_json::{Value, json};
use std::time::Duration;

const ASK_AGAIN: Duration = Duration::from_millis(300);
/// Failures to reach the appliance in a row before waiting is given up.
const PATIENCE: u32 = 30;

const JOBS: View = View {
    key: "jobs",
    columns: &[
        ("ID", "id"),
        ("STATE", "state"),
        ("DONE", "done_bytes"),
        ("OF", "total_bytes"),
        ("STARTED", "started_at"),
        ("WHAT", "what"),
        ("DOING", "doing"),
        ("DETAIL", "detail"),
    ],
    none: "no jobs",
};

fn path(id: &str) -> String {
    format!("/v1/jobs/{}", encoded(id))
}

/// Carries it out.
pub async fn run(session: &Session, command: Job) -> Result<(), Failure> {
    match command {
        Job::List(listing) => session.list("/v1/jobs".into(), JOBS, listing).await,
        Job::Get { id, look } => session.one(path(&id), look, fields).await,
        Job::Wait { id } => session.show(&wait(session, &id).await?, fields),
        Job::Cancel { id, sure } => {
            if confirm::needed(sure) {
                confirm::ask(&format!("Stop job {}? What it made so far is removed; a Worker under way goes back.", clean(&id)))?;
            }
            let answer = session.client.change(Method::DELETE, &path(&id), None, None).await?;
            let answer = if answer.is_null() { json!({ "cancelled": id }) } else { answer };
            session.show(&answer, |_| format!("job {} is cancelled", clean(&id)))
        }
    }
}

/// Waits for a job; a failed one is a failure of the command. Ctrl-C ends the waiting, not the job.
pub async fn wait(session: &Session, id: &str) -> Result<Value, Failure> {
    let waited = interruptible(look(session, id)).await;
    if matches!(waited, Err(Failure::Interrupted)) {
        eprintln!("\nkurrent: the job goes on; kurrent job wait {0}, or kurrent job cancel {0}", clean(id));
    }
    waited
}

async fn look(session: &Session, id: &str) -> Result<Value, Failure> {
    let mut progress: Option<Progress> = None;
    let mut patience = PATIENCE;
    loop {
        let job = match session.client.get(&path(id)).await {
            Ok(job) => job,
            // The network may be away for a moment; the job is not.
            Err(Failure::Unreachable(_)) if progress.is_some() && patience > 0 => {
                patience -= 1;
                tokio::time::sleep(ASK_AGAIN * 3).await;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        patience = PATIENCE;
        let number = |key: &str| at(&job, key).as_u64().unwrap_or(0);
        match at(&job, "state").as_str() {
            Some("done") => return Ok(job),
            Some("failed" | "cancelled") => {
                let detail = match at(&job, "detail") {
                    Value::Null => match at(&job, "warning").as_str().filter(|w| !w.is_empty()) {
                        Some(warning) => format!("the job is {}: {warning}", text(at(&job, "state"))),
                        None => format!("the job is {}", text(at(&job, "state"))),
                    },
                    detail => text(detail),
                };
                let code = at(&job, "code").as_str().unwrap_or("job_failed");
                return Err(Failure::Refused(Problem::new(500, code, detail)));
            }
            _ => {}
        }
        if progress.is_none()
            && let Some(warning) = at(&job, "warning").as_str().filter(|w| !w.is_empty())
        {
            eprintln!("kurrent: {}", clean(warning));
        }
        let what = at(&job, "doing").as_str().filter(|d| !d.is_empty()).map_or_else(|| text(at(&job, "what")), str::to_owned);
        let progress = progress.get_or_insert_with(|| Progress::new(&what, 0));
        progress.say(&what);
        progress.set_total(number("total_bytes"));
        progress.show(number("done_bytes"));
        tokio::time::sleep(ASK_AGAIN).await;
    }
}
