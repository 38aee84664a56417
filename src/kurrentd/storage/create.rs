//! Creating disks: placed, made as a file on the chosen node, then recorded.

use super::claims::Claim;
use super::jobs::{CANCELLED, Kind, Made, Running};
use super::node::{Draft, Hold, StorageNode};
use super::{Storage, StorageError, blocking, not_found};
use crate::ledger::SubmitError;
use crate::ledger::expect::Expectation;
use kurrent_core::id::{AgentName, OsName, OsTag, OsVersion, WorkerId, disk_file_name, disk_nqn};
use kurrent_core::ledger::{Change, Disk, DiskSource, Ledger};
use kurrent_core::placement::{Content, Placement, Wanted, plan, still_takes};
use kurrent_sys::{clock, entropy};
use serde::Serialize;
use std::sync::Arc;

/// The longest text that goes into a Worker's record, in characters.
const ERROR_CHARS: usize = 1000;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct NewDisk {
    /// Whose, what, where.
    pub wanted: Wanted,
    /// What people wrote down.
    pub remark: String,
    /// What must be so when it is recorded.
    pub expected: Vec<Expectation>,
}

impl NewDisk {
    /// Wherever there is room, without a remark.
    #[must_use]
    pub fn anywhere(worker: WorkerId, os: OsName, os_version: OsVersion, content: Content) -> Self {
        Self { wanted: Wanted { worker, os, os_version, content, pin: None }, remark: String::new(), expected: Vec::new() }
    }
}

/// What became of it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(clippy::large_enum_variant)] // One per request, moved once.
pub enum Created {
    /// The disk is there.
    Disk(Disk),
    /// It is being copied; see `GET /v1/jobs/{id}`.
    Job(String),
}

/// Whom a disk is made for: that very Worker, never another one that got its name meanwhile (K41).
#[derive(Clone, Debug)]
pub(super) struct Owner {
    id: WorkerId,
    since: Expectation,
}

impl Owner {
    pub(super) fn of(ledger: &Ledger, id: &WorkerId) -> Result<Self, StorageError> {
        let none = || not_found("worker_not_found", format!("no Worker {id} is in the ledger; create it first"));
        let worker = ledger.workers.get(id).ok_or_else(none)?;
        Ok(Self { id: id.clone(), since: Expectation::WorkerSince(id.clone(), worker.created_at) })
    }
}

/// A disk whose file is being made.
pub(super) struct Making {
    disk: Disk,
    owner: Owner,
    node: Arc<dyn StorageNode>,
    draft: Box<dyn Draft>,
    expected: Vec<Expectation>,
    /// Nobody else makes this system for this Worker meanwhile.
    _wanted: Claim,
}

impl Storage {
    /// Creates a disk. A clone by reference is done on return; a copy goes on as a job. The record follows the durable file. The
    /// work does not end when the caller goes away.
    ///
    /// # Errors
    /// What [`plan`] refuses, `busy`, `disk_full`, what [`super::image::check_master`] says, what the ledger says. Nothing is left
    /// behind.
    pub async fn create_disk(&self, request: NewDisk, actor: &str) -> Result<Created, StorageError> {
        let (storage, actor) = (self.clone(), actor.to_owned());
        let work = tokio::spawn(async move { storage.create(request, actor).await });
        work.await.unwrap_or_else(|_| Err(StorageError::new("internal", 500, "the work was ended; see the log".into())))
    }

    async fn create(self, request: NewDisk, actor: String) -> Result<Created, StorageError> {
        self.holds(&request.expected)?;
        let ledger = self.0.ledger.snapshot();
        let nodes = self.probe_all(&ledger).await;
        let owner = Owner::of(&ledger, &request.wanted.worker)?;
        let placed = plan(&ledger, &nodes, std::slice::from_ref(&request.wanted)).pop();
        let placed = placed.ok_or_else(|| StorageError::new("internal", 500, "nothing was planned".into()))??;
        let what = words(&request.wanted);
        let making = self.begin(request, &owner, placed).await?;
        if !making.draft.must_copy() {
            let disk = self.record(making, &actor).await?;
            self.tell_worker(&owner, None).await;
            return Ok(Created::Disk(disk));
        }
        let job = Arc::new(self.0.jobs.start(Kind::Clone, what, Some(&owner.id), making.draft.size_bytes())?);
        let id = job.id().to_owned();
        tokio::spawn(async move {
            let made = async {
                let _turn = job.turn(&self.0.copies).await?;
                self.carry_out(making, &job, &actor).await
            };
            let made = made.await;
            self.end(&job, &owner, made).await;
        });
        Ok(Created::Job(id))
    }

    /// Makes one disk of a batch where the plan says, as a job.
    pub(super) async fn create_planned(self, request: NewDisk, owner: Owner, placed: Placement, job: Running, actor: String) {
        let job = Arc::new(job);
        let made = async {
            let _turn = job.turn(&self.0.copies).await?;
            let making = self.begin(request, &owner, placed).await?;
            self.carry_out(making, &job, &actor).await
        };
        let made = made.await;
        self.end(&job, &owner, made).await;
    }

    /// The unfinished file on its node. What the plan rests on is looked at again: the last disk of a batch begins long after it
    /// was planned.
    async fn begin(&self, request: NewDisk, owner: &Owner, placed: Placement) -> Result<Making, StorageError> {
        let NewDisk { wanted, remark, mut expected } = request;
        expected.push(owner.since.clone());
        self.holds(&expected)?;
        still_takes(&self.0.ledger.snapshot(), &placed.agent)?;
        let claim = self.0.wanted.write(format!("the disk for {} {} of {}", wanted.os, wanted.os_version, wanted.worker))?;
        let node = self.node(&placed.agent);
        let mut disk = self.new_disk(&wanted, placed, remark);
        let (drafting, file, content) = (Arc::clone(&node), disk.filename.clone(), wanted.content);
        let draft = blocking(move || drafting.draft(&file, &content)).await?;
        disk.size_bytes = draft.size_bytes();
        if let DiskSource::Master { digest, .. } = &mut disk.source {
            *digest = draft.digest();
        }
        Ok(Making { disk, owner: owner.clone(), node, draft, expected, _wanted: claim })
    }

    async fn carry_out(&self, mut making: Making, job: &Arc<Running>, actor: &str) -> Result<Made, StorageError> {
        let (worker, copying) = (making.owner.id.clone(), Arc::clone(job));
        let making = blocking(move || making.draft.copy(&copying).map(|()| making)).await?;
        job.commit()?;
        let disk = self.record(making, actor).await?;
        Ok(Made::Disk(worker, Box::new(disk)))
    }

    /// Tells the job's end to whoever watches it, and a failure to whoever looks at the Worker.
    async fn end(&self, job: &Running, owner: &Owner, made: Result<Made, StorageError>) {
        match &made {
            Ok(_) => self.tell_worker(owner, None).await,
            Err(error) if error.code == CANCELLED => tracing::info!(job = job.id(), "storage: a job was cancelled"),
            Err(error) => {
                tracing::warn!(job = job.id(), %error, "storage: a job failed");
                self.tell_worker(owner, Some(error)).await;
            }
        }
        job.finish(made);
    }

    /// Keeps what failed last in the Worker's record; a success clears it.
    async fn tell_worker(&self, owner: &Owner, failed: Option<&StorageError>) {
        let Owner { id: worker, since } = owner;
        let error: String = failed.map(|e| e.detail.chars().filter(|c| !c.is_control()).take(ERROR_CHARS).collect()).unwrap_or_default();
        let known = self.0.ledger.snapshot().workers.get(worker).map(|w| w.error.clone());
        if known.is_none_or(|known| known == error) || self.holds(std::slice::from_ref(since)).is_err() {
            return;
        }
        let change = Change::SetWorkerError { worker: worker.clone(), error };
        if let Err(refused) = self.0.ledger.submit_if(change, "system", vec![since.clone()]).await {
            tracing::warn!(%worker, error = %refused, "storage: what became of a disk is not in the Worker's record");
        }
    }

    pub(super) fn new_disk(&self, wanted: &Wanted, placed: Placement, remark: String) -> Disk {
        let source = match &wanted.content {
            Content::Master(name) => DiskSource::Master { name: name.clone(), digest: None },
            Content::Empty(_) => DiskSource::Empty,
        };
        let os_tag = OsTag::from_random(entropy::random());
        Disk {
            nqn: disk_nqn(&self.0.nqn_base, &wanted.worker, &wanted.os, &os_tag),
            filename: disk_file_name(&wanted.worker, &wanted.os, &os_tag),
            os_tag,
            os: wanted.os.clone(),
            os_version: wanted.os_version.clone(),
            agent: placed.agent,
            size_bytes: placed.size_bytes,
            uuid: uuid::Builder::from_random_bytes(entropy::random()).into_uuid(),
            source,
            remark,
            created_at: clock::now().wall,
        }
    }

    /// Makes the file durable under its name, then the record; without a record the file goes again. When nobody knows whether
    /// there is a record, the file stays: a restart finds its record, or lists it as left over.
    async fn record(&self, making: Making, actor: &str) -> Result<Disk, StorageError> {
        let Making { disk, owner, node, draft, expected, _wanted } = making;
        let hold: Hold = blocking(move || draft.finish()).await?;
        let submitted = self.0.ledger.submit_if(Change::AddDisk { worker: owner.id, disk: disk.clone() }, actor, expected).await;
        if let Err(in_doubt @ SubmitError::InDoubt(_)) = submitted {
            tracing::error!(file = %disk.filename, "storage: whether this disk has a record is unknown until a restart; its file is kept");
            return Err(in_doubt.into());
        }
        drop(hold);
        if let Err(refused) = submitted {
            let file = disk.filename.clone();
            if let Err(error) = blocking(move || node.remove(&file)).await {
                tracing::warn!(file = %disk.filename, %error, "storage: a disk without record is left over");
            }
            return Err(refused.into());
        }
        Ok(disk)
    }
}

/// What a job does, for people.
pub(super) fn words(wanted: &Wanted) -> String {
    let Wanted { worker, os, os_version, content, .. } = wanted;
    let (space, version) = if os_version.as_str().is_empty() { ("", "") } else { (" ", os_version.as_str()) };
    match content {
        Content::Master(master) => format!("cloning {master} for {worker} ({os}{space}{version})"),
        Content::Empty(size_bytes) => format!("making an empty disk of {size_bytes} bytes for {worker} ({os}{space}{version})"),
    }
}

/// The kind of job that makes it.
pub(super) fn kind(content: &Content) -> Kind {
    match content {
        Content::Master(_) => Kind::Clone,
        Content::Empty(_) => Kind::Create,
    }
}

/// For a file that is here already.
pub(super) fn here(size_bytes: u64) -> Placement {
    Placement { agent: AgentName::local(), size_bytes }
}
