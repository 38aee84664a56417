//! Batches: the appliance makes a plan, it is shown, and the plan that was shown is the one that runs.

use crate::arguments::Sure;
use crate::confirm;
use crate::failure::{Failure, Problem};
use crate::output::{Column, table};
use crate::session::Session;
use serde_json::Value;

/// What kind of batch.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// Where it is asked for.
    pub path: &'static str,
    /// The plan as a table.
    pub columns: &'static [Column],
    /// What the person is asked.
    pub question: &'static str,
}

/// Asks for the plan; with `dry_run` shows it, else carries out exactly that. `None` after a dry run.
pub async fn run(session: &Session, batch: Batch, order: Value, dry_run: bool, sure: Sure) -> Result<Option<Value>, Failure> {
    let with = |key: &str, value: Value| {
        let mut order = order.clone();
        if let Some(map) = order.as_object_mut() {
            map.insert(key.to_owned(), value);
        }
        order
    };
    let plan = session.client.post(batch.path, with("dry_run", true.into())).await?;
    let shown = |plan: &Value| table(plan, "plan", batch.columns, "the plan is empty");
    let faults = faults(&plan);
    if dry_run || faults > 0 {
        session.show(&plan, shown)?;
        return if faults == 0 { Ok(None) } else { Err(refused(faults)) };
    }
    if confirm::needed(sure) {
        eprintln!("{}", shown(&plan));
        confirm::ask(batch.question)?;
    }
    let generation = plan.get("generation").cloned().unwrap_or(Value::Null);
    session.client.post(batch.path, with("generation", generation)).await.map(Some)
}

/// Items of the plan that can not be done.
fn faults(plan: &Value) -> usize {
    let items = plan.get("plan").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    items.iter().filter(|item| item.get("code").is_some_and(|code| !code.is_null())).count()
}

fn refused(faults: usize) -> Failure {
    let what = format!("{faults} of the plan can not be done, so nothing is; the plan says why: correct that, and ask again");
    Failure::Refused(Problem::new(409, "plan_refused", what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_item_with_a_code_keeps_the_plan_from_running() {
        let plan = json!({"plan": [{"mac": "a"}, {"mac": "b", "code": "device_not_found"}, {"mac": "c", "code": null}], "generation": 7});
        assert_eq!(faults(&plan), 1);
        assert_eq!(faults(&json!({})), 0);
        assert_eq!(refused(1).exit_code(), 6);
    }
}
