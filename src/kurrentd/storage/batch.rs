//! Several disks at once: shown as a plan, carried out as exactly that plan or refused (K36).

use super::create::{Owner, kind, words};
use super::{NewDisk, Storage, StorageError};
use kurrent_core::id::{AgentName, FileName, OsName, OsVersion, WorkerId};
use kurrent_core::ledger::Ledger;
use kurrent_core::placement::{Content, Placement, Refusal, Wanted, plan};
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::PoisonError;

/// Disks of one batch.
const MOST: usize = 256;
/// Previews that are remembered.
const PREVIEWS: usize = 32;

type Planned = Vec<Result<Placement, Refusal>>;

/// What was shown, at which generation; the latest last.
#[derive(Default)]
pub(super) struct Previews(VecDeque<(u64, Vec<Wanted>, Planned)>);

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Batch {
    /// In the order in which they are placed.
    pub wanted: Vec<Wanted>,
    /// Only show the plan.
    pub dry_run: bool,
    /// Generation of the plan that was shown and is to be carried out.
    pub generation: Option<u64>,
}

/// One disk of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedDisk {
    /// Whose.
    pub worker_id: WorkerId,
    /// Display and grouping.
    pub os: OsName,
    /// Display and grouping.
    pub os_version: OsVersion,
    /// Master that is cloned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master: Option<FileName>,
    /// The disk's size, when it has a place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Storage node that it goes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentName>,
    /// Stable code of why it goes nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// Why it goes nowhere, each node with its reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// A plan, and what was begun of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedBatch {
    /// One entry for each item, in order.
    pub plan: Vec<PlannedDisk>,
    /// Generation of the ledger that it was made for.
    pub generation: u64,
    /// Ids of the jobs that carry it out, in order; absent when nothing was begun: it was only to be shown, or an item goes nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jobs: Option<Vec<String>>,
}

fn show(wanted: &Wanted, planned: &Result<Placement, Refusal>) -> PlannedDisk {
    let (placed, refused) = (planned.as_ref().ok(), planned.as_ref().err());
    PlannedDisk {
        worker_id: wanted.worker.clone(),
        os: wanted.os.clone(),
        os_version: wanted.os_version.clone(),
        master: match &wanted.content {
            Content::Master(name) => Some(name.clone()),
            Content::Empty(_) => None,
        },
        size_bytes: placed.map(|p| p.size_bytes),
        agent: placed.map(|p| p.agent.clone()),
        code: refused.map(|r| r.code),
        detail: refused.map(|r| r.detail.clone()),
    }
}

impl Previews {
    fn remember(&mut self, generation: u64, wanted: &[Wanted], planned: &Planned) {
        self.0.retain(|(g, w, _)| (*g, w.as_slice()) != (generation, wanted));
        if self.0.len() >= PREVIEWS {
            self.0.pop_front();
        }
        self.0.push_back((generation, wanted.to_vec(), planned.clone()));
    }

    fn of(&self, generation: u64, wanted: &[Wanted]) -> Option<&Planned> {
        self.0.iter().find(|(g, w, _)| (*g, w.as_slice()) == (generation, wanted)).map(|(_, _, planned)| planned)
    }
}

impl Storage {
    /// Plans a batch, and begins it unless it is only to be shown or an item goes nowhere. Each disk is a job of its own.
    ///
    /// # Errors
    /// `batch_empty`, `batch_too_large`, `plan_stale`, `too_many_jobs`.
    pub async fn create_batch(&self, batch: Batch, actor: &str) -> Result<PlannedBatch, StorageError> {
        let Batch { wanted, dry_run, generation } = batch;
        if wanted.is_empty() || wanted.len() > MOST {
            let code = if wanted.is_empty() { "batch_empty" } else { "batch_too_large" };
            return Err(StorageError::new(code, 422, format!("a batch has 1 to {MOST} items; send that many")));
        }
        let ledger = self.0.ledger.snapshot();
        let nodes = self.probe_all(&ledger).await;
        let planned = plan(&ledger, &nodes, &wanted);
        if let Some(shown) = generation {
            // Not the generation of the snapshot: to ask the nodes takes time.
            self.is_as_shown(shown, self.0.ledger.snapshot().generation, &wanted, &planned)?;
        }
        let entries: Vec<PlannedDisk> = wanted.iter().zip(&planned).map(|(w, p)| show(w, p)).collect();
        let mut answer = PlannedBatch { plan: entries, generation: ledger.generation, jobs: None };
        let placements: Result<Vec<Placement>, Refusal> = planned.iter().cloned().collect();
        match placements {
            Ok(placements) if !dry_run => answer.jobs = Some(self.begin_batch(&ledger, wanted, placements, actor)?),
            Ok(_) | Err(_) => {
                let mut previews = self.0.previews.lock().unwrap_or_else(PoisonError::into_inner);
                previews.remember(ledger.generation, &wanted, &planned);
            }
        }
        Ok(answer)
    }

    fn is_as_shown(&self, shown: u64, now: u64, wanted: &[Wanted], planned: &Planned) -> Result<(), StorageError> {
        let stale = |why: String| StorageError::new("plan_stale", 409, format!("{why}; ask for the plan again and look at it"));
        if shown != now {
            return Err(stale(format!("the plan is of generation {shown}, the ledger is at {now}")));
        }
        let previews = self.0.previews.lock().unwrap_or_else(PoisonError::into_inner);
        match previews.of(shown, wanted) {
            Some(before) if before != planned => Err(stale("the storage nodes are not what they were when the plan was made".into())),
            // A plan that was forgotten: the ledger is the same.
            Some(_) | None => Ok(()),
        }
    }

    fn begin_batch(
        &self,
        ledger: &Ledger,
        wanted: Vec<Wanted>,
        placements: Vec<Placement>,
        actor: &str,
    ) -> Result<Vec<String>, StorageError> {
        let mut begun = Vec::with_capacity(wanted.len());
        for (wanted, placed) in wanted.into_iter().zip(placements) {
            let owner = Owner::of(ledger, &wanted.worker)?;
            let job = self.0.jobs.start(kind(&wanted.content), words(&wanted), Some(&wanted.worker), placed.size_bytes)?;
            begun.push((wanted, owner, placed, job));
        }
        let ids = begun.iter().map(|(_, _, _, job)| job.id().to_owned()).collect();
        for (wanted, owner, placed, job) in begun {
            let request = NewDisk { wanted, remark: String::new(), expected: Vec::new() };
            tokio::spawn(self.clone().create_planned(request, owner, placed, job, actor.to_owned()));
        }
        Ok(ids)
    }
}
