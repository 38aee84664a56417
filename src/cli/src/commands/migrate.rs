//! `kurrent worker migrate`.

use super::job::wait;
use crate::arguments::Sure;
use crate::confirm;
use crate::failure::{Failure, Problem};
use crate::output::{at, clean, text};
use crate::session::Session;
use kurrent_core::id::{MacAddr, WorkerId};
use serde_json::{Value, json};

/// What was typed; times in minutes.
pub struct Order<'a> {
    pub worker: &'a WorkerId,
    pub to: MacAddr,
    pub wait: u32,
    pub attest: u32,
    pub dry_run: bool,
    pub no_follow: bool,
}

impl Order<'_> {
    fn body(&self, dry_run: bool) -> Value {
        json!({ "to": self.to.to_string(), "wait_minutes": self.wait, "attest_minutes": self.attest, "dry_run": dry_run })
    }
}

/// Carries it out.
pub async fn run(session: &Session, order: Order<'_>, sure: Sure) -> Result<(), Failure> {
    let path = format!("/v1/workers/{}/migrate", order.worker);
    let asks = confirm::needed(sure);
    if order.dry_run || asks {
        let plan = session.client.post(&path, order.body(true)).await?;
        if order.dry_run {
            session.show(&plan, |plan| describe(plan, &order))?;
        }
        // What is in the way is told before anything is asked.
        if let Some(refused) = at(&plan, "refused").as_array().and_then(|all| all.first()) {
            return Err(Failure::Refused(Problem::new(409, text(at(refused, "code")), text(at(refused, "detail")))));
        }
        if order.dry_run {
            return Ok(());
        }
        confirm::ask(&format!("{}\nMigrate?", describe(&plan, &order)))?;
    }
    let answer = session.client.post(&path, order.body(false)).await?;
    let job = at(&answer, "job").as_str().unwrap_or_default().to_owned();
    if order.no_follow || job.is_empty() {
        return session.show(&answer, |_| format!("job {0} moves {1}; kurrent job wait {0}", clean(&job), order.worker));
    }
    let ended = wait(session, &job).await?;
    session.show(&ended, |_| format!("{} is on device {} now", order.worker, order.to))
}

/// What it would be, for people.
fn describe(plan: &Value, order: &Order<'_>) -> String {
    let mut lines = Vec::new();
    let connected = at(plan, "connected").as_array().cloned().unwrap_or_default();
    match at(plan, "from") {
        Value::Null => lines.push(format!("{} is on no device", order.worker)),
        from if connected.is_empty() => lines.push(format!("{} is on {}, which is not connected", order.worker, text(from))),
        from => {
            let places: Vec<String> = connected.iter().map(|c| text(at(c, "address"))).collect();
            lines.push(format!("{} is on {}, which is connected from {}", order.worker, text(from), places.join(", ")));
            lines.push(match order.wait {
                0 => "it is cut off at once: what it has not written is lost".to_owned(),
                wait => format!("it has {wait} min to go; switch it off"),
            });
        }
    }
    lines.push(format!("then {} is bound, and must prove itself within {} min", order.to, order.attest));
    lines.extend(at(plan, "warnings").as_array().into_iter().flatten().map(text));
    for refused in at(plan, "refused").as_array().into_iter().flatten() {
        lines.push(format!("refused ({}): {}", text(at(refused, "code")), text(at(refused, "detail"))));
    }
    lines.join("\n")
}
