//! Batches as plans: what would become of each item, in order, over one ledger. A preview and its execution are the same plan;
//! the caller makes the execution depend on the ledger's generation, so that it stays the same (K36).

use super::apply::{MAX_WORKERS, apply, rejected, too_many_workers};
use super::change::{Change, Rejected};
use super::schema::DeviceState;
use super::view::Ledger;
use crate::id::{MacAddr, WorkerId};
use crate::time::Now;
use std::collections::BTreeSet;

/// Most items of one batch.
pub const MAX_ITEMS: usize = 1000;
/// Longest number in a made name, in digits.
pub const MAX_WIDTH: usize = 9;

/// One binding of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedBind {
    /// Which device.
    pub mac: MacAddr,
    /// Which Worker.
    pub worker: WorkerId,
    /// The device that loses this Worker.
    pub displaces: Option<MacAddr>,
    /// The Worker that this device leaves.
    pub leaves: Option<WorkerId>,
    /// Why it can not be done; then nothing of the batch is.
    pub refused: Option<Rejected>,
}

/// What [`Change::BindAll`] of these pairs would do, item by item.
#[must_use]
pub fn bind(ledger: &Ledger, pairs: &[(MacAddr, WorkerId)], force: bool, now: Now) -> Vec<PlannedBind> {
    let (mut macs, mut workers) = (BTreeSet::new(), BTreeSet::new());
    let mut next = ledger.clone();
    let mut plan = Vec::with_capacity(pairs.len());
    for (mac, worker) in pairs {
        let twice = !macs.insert(mac) | !workers.insert(worker);
        let displaces = next.bound.get(worker).copied().filter(|holder| holder != mac);
        let leaves = next.device(*mac).and_then(|d| d.bound_worker_id.clone()).filter(|w| w != worker);
        let result = if twice {
            let detail = format!("device {mac} or Worker {worker} occurs twice; name each once");
            Err(rejected(422, "twice_in_batch", detail))
        } else {
            apply(&next, Change::Bind { mac: *mac, worker: worker.clone(), force }, now)
        };
        let refused = match result {
            Ok((ledger, _)) => {
                next = ledger;
                None
            }
            Err(refused) => Some(refused),
        };
        plan.push(PlannedBind { mac: *mac, worker: worker.clone(), displaces, leaves, refused });
    }
    plan
}

/// One Worker of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedWorker {
    /// Its name.
    pub worker: WorkerId,
    /// Why it can not be made; then nothing of the batch is.
    pub refused: Option<Rejected>,
}

/// What [`Change::CreateWorkers`] of these would do, item by item.
#[must_use]
pub fn create(ledger: &Ledger, workers: &[WorkerId]) -> Vec<PlannedWorker> {
    let mut seen = BTreeSet::new();
    let planned = |worker: &WorkerId| {
        let refused = if !seen.insert(worker.clone()) {
            Some(rejected(422, "twice_in_batch", format!("Worker {worker} occurs twice; name each once")))
        } else if ledger.workers.contains_key(worker) {
            Some(rejected(409, "worker_exists", format!("Worker {worker} exists already; choose another name")))
        } else if ledger.workers.len().saturating_add(seen.len()) > MAX_WORKERS {
            Some(too_many_workers())
        } else {
            None
        };
        PlannedWorker { worker: worker.clone(), refused }
    };
    workers.iter().map(planned).collect()
}

/// What becomes of one device of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Import {
    /// It is registered.
    New(MacAddr),
    /// It is in the ledger already, and left as it is.
    Known(Rejected),
    /// It can not be registered; the others can all the same.
    Refused(Rejected),
}

/// What these [`Change::Register`] would do, each by itself, in order; anything else is left out.
#[must_use]
pub fn register(ledger: &Ledger, changes: &[Change], now: Now) -> Vec<Import> {
    let (mut seen, mut next) = (BTreeSet::new(), ledger.clone());
    let mut plan = Vec::with_capacity(changes.len());
    for change in changes {
        let Change::Register { mac, .. } = change else { continue };
        plan.push(if !seen.insert(*mac) {
            Import::Refused(rejected(422, "twice_in_batch", format!("device {mac} is in this file twice; remove one of the lines")))
        } else if let Some(known) = next.device(*mac) {
            let next_step = if known.state == DeviceState::Revoked { "it is revoked: purge it first" } else { "it is left as it is" };
            Import::Known(rejected(409, "device_exists", format!("device {mac} is in the ledger already; {next_step}")))
        } else {
            match apply(&next, change.clone(), now) {
                Err(refused) => Import::Refused(refused),
                Ok((ledger, _)) => {
                    next = ledger;
                    Import::New(*mac)
                }
            }
        });
    }
    plan
}

/// `count` names: the prefix and a number from `start` on, with zeros in front up to `width` digits.
///
/// # Errors
/// Too many, too wide, or a name that is none.
pub fn names(prefix: &str, start: u32, count: usize, width: usize) -> Result<Vec<WorkerId>, Rejected> {
    if !(1..=MAX_ITEMS).contains(&count) || width > MAX_WIDTH {
        let detail = format!("count is 1 to {MAX_ITEMS} and width at most {MAX_WIDTH}; correct that");
        return Err(rejected(422, "batch_invalid", detail));
    }
    let last = u32::try_from(count).ok().and_then(|count| start.checked_add(count));
    let last = last.ok_or_else(|| rejected(422, "batch_invalid", "the numbers become too large; begin with a smaller start".into()))?;
    let name = |number: u32| {
        let name = format!("{prefix}{number:0width$}");
        name.parse().map_err(|e| rejected(422, "name_invalid", format!("{e}; choose another prefix")))
    };
    (start..last).map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Wall;

    const NOW: Now = Now { mono: crate::time::Mono(std::time::Duration::ZERO), wall: Wall::UNIX_EPOCH };

    fn mac(n: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, n])
    }

    fn worker(n: u8) -> WorkerId {
        format!("w{n}").parse().unwrap()
    }

    /// Devices 1 to 4, Workers 1 to 4; 1 is bound to 1, 2 to 2.
    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        let mut changes = vec![];
        for n in 1..=4 {
            changes.push(Change::Register {
                mac: mac(n),
                public_key: None,
                keyless_allowed: false,
                note: String::new(),
                labels: Default::default(),
                address: None,
            });
            changes.push(Change::CreateWorker { worker: worker(n) });
        }
        changes.extend((1..=2).map(|n| Change::Bind { mac: mac(n), worker: worker(n), force: false }));
        for change in changes {
            ledger = apply(&ledger, change, NOW).unwrap().0;
        }
        ledger
    }

    #[test]
    fn k36_the_preview_of_a_bind_batch_is_what_its_execution_does() {
        for (pairs, force, codes) in [
            (vec![(3, 3), (4, 4)], false, vec!["", ""]),
            (vec![(3, 1)], false, vec!["worker_bound"]),
            (vec![(1, 2), (2, 1)], true, vec!["", ""]),
            (vec![(1, 2), (2, 1)], false, vec!["device_bound", "device_bound"]),
            (vec![(3, 3), (3, 4), (4, 3)], true, vec!["", "twice_in_batch", "twice_in_batch"]),
            (vec![(9, 3), (3, 9)], true, vec!["device_not_found", "worker_not_found"]),
            (vec![(1, 1)], false, vec![""]),
        ] {
            let ledger = ledger();
            let pairs: Vec<(MacAddr, WorkerId)> = pairs.into_iter().map(|(m, w)| (mac(m), worker(w))).collect();
            let plan = bind(&ledger, &pairs, force, NOW);
            let found: Vec<&str> = plan.iter().map(|p| p.refused.as_ref().map_or("", |r| r.code)).collect();
            assert_eq!(found, codes, "{pairs:?}");
            let run = apply(&ledger, Change::BindAll { pairs: pairs.clone(), force }, NOW);
            assert_eq!(run.is_ok(), codes.iter().all(|c| c.is_empty()), "{pairs:?}");
            if let Ok((after, _)) = run {
                assert!(pairs.iter().all(|(m, w)| after.bound.get(w) == Some(m)), "{pairs:?}");
                let displaced = plan.iter().filter_map(|p| p.displaces).filter(|m| !pairs.iter().any(|(p, _)| p == m));
                assert!(displaced.into_iter().all(|m| after.device(m).unwrap().bound_worker_id.is_none()), "{pairs:?}");
            }
        }
        let plan = bind(&ledger(), &[(mac(1), worker(2))], true, NOW);
        assert_eq!((plan[0].displaces, plan[0].leaves.clone()), (Some(mac(2)), Some(worker(1))));
    }

    #[test]
    fn names_are_made_with_zeros_in_front_and_never_half() {
        let made = |prefix, start, count, width| {
            names(prefix, start, count, width).map(|n| n.iter().map(ToString::to_string).collect::<Vec<_>>()).map_err(|r| r.code)
        };
        assert_eq!(made("rack7-", 9, 3, 3), Ok(vec!["rack7-009".into(), "rack7-010".into(), "rack7-011".into()]));
        assert_eq!(made("n", 0, 1, 0), Ok(vec!["n0".into()]));
        for (prefix, start, count, width) in [("n", 0, 0, 0), ("n", 0, MAX_ITEMS + 1, 0), ("n", u32::MAX, 2, 0), ("n", 0, 1, 10)] {
            assert_eq!(made(prefix, start, count, width), Err("batch_invalid"));
        }
        for prefix in ["-n", "N", "n_", "ä", "n\0", &"n".repeat(63)] {
            assert_eq!(made(prefix, 1, 2, 0), Err("name_invalid"), "{prefix}");
        }
        let plan = create(&ledger(), &[worker(1), worker(8), worker(8)]);
        let codes: Vec<&str> = plan.iter().map(|p| p.refused.as_ref().map_or("", |r| r.code)).collect();
        assert_eq!(codes, ["worker_exists", "", "twice_in_batch"]);
    }

    #[test]
    fn an_import_registers_what_is_new_and_tells_the_rest_apart() {
        let register = |n: u8, note: &str| Change::Register {
            mac: mac(n),
            public_key: None,
            keyless_allowed: false,
            note: note.into(),
            labels: Default::default(),
            address: None,
        };
        let known = apply(&Ledger::default(), register(1, ""), NOW).unwrap().0;
        let asked = [register(1, ""), register(2, ""), register(2, "again"), register(3, "\u{1b}"), register(4, "")];
        let word = |import: Import| match import {
            Import::New(mac) => format!("new {mac}"),
            Import::Known(r) => format!("known {}", r.code),
            Import::Refused(r) => format!("refused {}", r.code),
        };
        let plan: Vec<String> = super::register(&known, &asked, NOW).into_iter().map(word).collect();
        let new = |n: u8| format!("new {}", mac(n));
        let wanted = ["known device_exists".into(), new(2), "refused twice_in_batch".into(), "refused note_invalid".into(), new(4)];
        assert_eq!(plan, wanted);
    }
}
