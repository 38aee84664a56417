//! Batches: a plan is made of one ledger, and carried out only on that ledger.

use super::Api;
use super::problem::Problem;
use crate::api::guard::actor;
use crate::ledger::SubmitError;
use crate::ledger::expect::Expectation;
use kurrent_core::ledger::plan::MAX_ITEMS;
use kurrent_core::ledger::{Change, Ledger, Rejected};

/// How often a batch is looked at anew when the ledger refused what the plan had allowed: somebody changed it in between.
const TRIES: usize = 8;

/// What was asked for.
pub(super) struct Order {
    pub(super) dry_run: bool,
    /// The generation of the plan that the caller saw.
    pub(super) generation: Option<u64>,
    /// The list's name in the body.
    pub(super) field: &'static str,
}

/// A plan, and whether it was carried out.
pub(super) struct Applied<T> {
    pub(super) plan: Vec<T>,
    pub(super) generation: u64,
    pub(super) applied: bool,
}

/// Makes the plan and, unless it is a dry run, carries exactly it out.
///
/// # Errors
/// 409 `plan_stale`; the reason of the first item that can not be done.
pub(super) async fn run<T>(
    api: &Api,
    order: Order,
    plan: impl Fn(&Ledger) -> Vec<T>,
    refused: impl Fn(&T) -> Option<&Rejected>,
    change: impl Fn(&[T]) -> Change,
) -> Result<Applied<T>, Problem> {
    let mut tries = TRIES;
    loop {
        let ledger = api.shared.ledger.snapshot();
        let planned = plan(&ledger);
        stale(order.generation, ledger.generation)?;
        if order.dry_run {
            return Ok(Applied { plan: planned, generation: ledger.generation, applied: false });
        }
        if let Some((at, why)) = planned.iter().enumerate().find_map(|(at, item)| Some((at, refused(item)?))) {
            let detail = format!("{}; nothing of the batch was done", why.detail);
            return Err(Problem::new(why.status, why.code, detail).at(format!("{}[{at}]", order.field)));
        }
        // A plan that somebody saw runs on its own ledger or not at all. Otherwise what is told is the plan of the ledger that
        // the writer applied it to, whatever others did in between.
        let expected = order.generation.map(Expectation::Generation).into_iter().collect();
        match api.shared.ledger.make(change(&planned), &actor(), expected).await {
            Ok(made) => return Ok(Applied { plan: plan(&made.before), generation: made.after.generation, applied: true }),
            Err(SubmitError::Rejected(_)) if order.generation.is_none() && tries > 0 => tries = tries.saturating_sub(1),
            Err(error) => return Err(error.into()),
        }
    }
}

fn stale(planned: Option<u64>, now: u64) -> Result<(), Problem> {
    match planned {
        Some(planned) if planned != now => {
            let detail = format!("the plan was made at generation {planned}, the ledger is at {now}; look at a new plan and run that");
            Err(Problem::new(409, "plan_stale", detail).at("generation"))
        }
        _ => Ok(()),
    }
}

/// 1 to [`MAX_ITEMS`] items.
pub(super) fn bounded(count: usize, field: &str) -> Result<(), Problem> {
    if (1..=MAX_ITEMS).contains(&count) {
        return Ok(());
    }
    Err(Problem::new(422, "batch_invalid", format!("give 1 to {MAX_ITEMS} items")).at(field))
}
