//! Batches: a plan is made of one ledger, and carried out only on that ledger.

use super::problem::Problem;
use super::{ACTOR, Api};
use crate::ledger::SubmitError;
use crate::ledger::expect::Expectation;
use kurrent_core::ledger::plan::MAX_ITEMS;
use kurrent_core::ledger::{Change, Ledger, Rejected};

/// How often a plan is made anew when the ledger moved meanwhile and the caller named no generation: beside 16 clients that change
/// something without a pause, 8 were too few.
const TRIES: usize = 64;

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
        if order.dry_run {
            stale(order.generation, ledger.generation)?;
            return Ok(Applied { plan: planned, generation: ledger.generation, applied: false });
        }
        let generation = order.generation.unwrap_or(ledger.generation);
        stale(order.generation, ledger.generation)?;
        if let Some((at, why)) = planned.iter().enumerate().find_map(|(at, item)| Some((at, refused(item)?))) {
            let detail = format!("{}; nothing of the batch was done", why.detail);
            return Err(Problem::new(why.status, why.code, detail).at(format!("{}[{at}]", order.field)));
        }
        match api.shared.ledger.submit_if(change(&planned), ACTOR, vec![Expectation::Generation(generation)]).await {
            Ok((_, ledger)) => return Ok(Applied { plan: planned, generation: ledger.generation, applied: true }),
            Err(SubmitError::Rejected(r)) if r.code == "plan_stale" && order.generation.is_none() && tries > 0 => {
                tries = tries.saturating_sub(1);
            }
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
