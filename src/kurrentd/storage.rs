//! System disks and masters: where a disk goes ([`kurrent_core::placement`]), its record, and its file on a storage node ([`node`]).
//!
//! A file gets its final name only when all of it is on the disk: it is written as `.NAME.part`, synced, renamed, and the folder
//! is synced. A disk's record follows its file, never the other way round; when the record is refused the file goes again, and
//! when nobody knows whether the record was written it stays. What a crash leaves behind is found at the start: `.part` files are
//! removed, files nobody knows are listed and left alone.

mod batch;
mod catalog;
mod claims;
pub mod copy;
mod create;
mod disks;
pub mod image;
pub mod jobs;
mod local;
mod masters;
pub mod node;
mod room;
mod scan;

use crate::audit::Audit;
use crate::ledger::expect::Expectation;
use crate::ledger::{LedgerHandle, SubmitError};
use crate::reconcile::TargetHandle;
pub use batch::{Batch, PlannedBatch, PlannedDisk};
pub use catalog::{Master, MasterPartition};
use claims::Claims;
pub use create::{Created, NewDisk};
pub use disks::{Adoption, Kept};
use jobs::Jobs;
pub use jobs::{JobState, JobView};
use kurrent_core::config::Agent;
use kurrent_core::id::{AgentName, FileName, Nqn, OsTag, WorkerId};
use kurrent_core::ledger::{Disk, Ledger};
use kurrent_core::placement::Refusal;
pub use kurrent_core::placement::{Content, DataPlane, NodeStatus};
use kurrent_sys::store;
use local::LocalNode;
use node::{RemoteNode, StorageNode};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Ends the names of unfinished files.
const PART_SUFFIX: &str = ".part";
/// Copies that run at once: more only make each other's disk heads wait.
const COPIES: usize = 2;
/// How long a deletion waits for the export to be gone.
const WITHDRAW_DEADLINE: Duration = Duration::from_secs(10);

/// Why the storage did not do it. `code` is stable; the text tells what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct StorageError {
    /// Stable machine-readable code (`disk_full`, `master_not_found`, `sector_size`, …).
    pub code: &'static str,
    /// HTTP status that fits.
    pub status: u16,
    /// One sentence with the next step.
    pub detail: String,
}

impl StorageError {
    pub(crate) fn new(code: &'static str, status: u16, detail: String) -> Self {
        Self { code, status, detail }
    }
}

impl From<SubmitError> for StorageError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Rejected(r) => Self { code: r.code, status: r.status, detail: r.detail },
            SubmitError::NotDurable(detail) => Self::new("not_durable", 507, detail),
            SubmitError::InDoubt(_) => Self::new("in_doubt", 500, error.to_string()),
            SubmitError::Stopped(detail) => Self::new("not_served", 503, detail),
        }
    }
}

impl From<Refusal> for StorageError {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.code, refusal.status, refusal.detail)
    }
}

/// A file in the folder that no record and no rule explains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Leftover {
    /// Its name.
    pub name: String,
    /// Its length.
    pub size_bytes: u64,
    /// What it is.
    pub kind: LeftoverKind,
}

/// What a leftover is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LeftoverKind {
    /// Cut off while it was written; removed at the start.
    Unfinished,
    /// A disk file without a record: retained on purpose, or its record was never written. Left alone.
    Unrecorded,
}

/// All of it. Cheap to clone.
#[derive(Clone)]
pub struct Storage(Arc<Inner>);

struct Inner {
    local: LocalNode,
    nqn_base: Nqn,
    ledger: LedgerHandle,
    audit: Audit,
    target: TargetHandle,
    jobs: Jobs,
    /// Systems of Workers (`worker os version`) whose disk is being made.
    wanted: Claims,
    /// Permits to copy.
    copies: Semaphore,
    /// Batches that were shown and not yet carried out.
    previews: Mutex<batch::Previews>,
    /// Nodes that are driven, beside the local one: none but in tests.
    driven: Mutex<BTreeMap<AgentName, Arc<dyn StorageNode>>>,
    /// What the start found and removed.
    swept: Vec<Leftover>,
}

impl Storage {
    /// Makes the folder if need be and removes what a crash left unfinished.
    ///
    /// # Errors
    /// `disk_dir`: the folder can not be made, read or written.
    pub fn open(agent: &Agent, ledger: LedgerHandle, audit: Audit, target: TargetHandle) -> Result<Self, StorageError> {
        let disk_dir = agent.disk_dir.clone();
        let unusable = |e: io::Error| StorageError::new("disk_dir", 500, format!("{}: {e}", disk_dir.display()));
        std::fs::create_dir_all(&disk_dir).map_err(unusable)?;
        let swept = sweep(&disk_dir).map_err(unusable)?;
        for leftover in &swept {
            tracing::warn!(name = %leftover.name, size = leftover.size_bytes, "storage: removed a file that was cut off while it was written");
        }
        Ok(Self(Arc::new(Inner {
            local: LocalNode::open(disk_dir, target.clone()),
            nqn_base: agent.nqn_base.clone(),
            ledger,
            audit,
            target,
            jobs: Jobs::default(),
            wanted: Claims::default(),
            copies: Semaphore::new(COPIES),
            previews: Mutex::default(),
            driven: Mutex::default(),
            swept,
        })))
    }

    /// The jobs of this run.
    #[must_use]
    pub fn jobs(&self) -> &Jobs {
        &self.0.jobs
    }

    /// What the writer will refuse, said before any work.
    fn holds(&self, expected: &[Expectation]) -> Result<(), StorageError> {
        let ledger = self.0.ledger.snapshot();
        expected.iter().try_for_each(|e| e.check(&ledger)).map_err(|r| SubmitError::from(r).into())
    }

    fn node(&self, name: &AgentName) -> Arc<dyn StorageNode> {
        if *name == AgentName::local() {
            return Arc::new(self.0.local.clone());
        }
        let driven = self.0.driven.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        driven.unwrap_or_else(|| {
            let base_url = self.0.ledger.snapshot().agent(name).map(|a| a.base_url).unwrap_or_default();
            Arc::new(RemoteNode { base_url })
        })
    }

    /// Puts a node behind the seam, in place of one that is only recorded.
    #[cfg(test)]
    fn drive(&self, name: AgentName, node: Arc<dyn StorageNode>) {
        self.0.driven.lock().unwrap_or_else(PoisonError::into_inner).insert(name, node);
    }

    /// What a node says of itself now.
    pub async fn probe(&self, name: &AgentName) -> NodeStatus {
        let node = self.node(name);
        let probed = blocking(move || Ok(node.probe())).await;
        probed.unwrap_or_else(|e| NodeStatus::unreachable(e.detail))
    }

    /// What all nodes of a ledger say of themselves now, asked at the same time.
    pub async fn probe_all(&self, ledger: &Ledger) -> Vec<(AgentName, NodeStatus)> {
        let names = ledger.all_agents().into_iter().map(|a| a.name);
        futures_util::future::join_all(names.map(|name| async move {
            let status = self.probe(&name).await;
            (name, status)
        }))
        .await
    }

    /// What lies in the folder without a reason, and what the start removed.
    ///
    /// # Errors
    /// `disk_dir`: the folder can not be read.
    pub async fn leftovers(&self) -> Result<Vec<Leftover>, StorageError> {
        let storage = self.clone();
        blocking(move || {
            let mut all = storage.0.swept.clone();
            all.extend(storage.unrecorded(&storage.0.ledger.snapshot())?);
            Ok(all)
        })
        .await
    }

    fn unrecorded(&self, ledger: &Ledger) -> Result<Vec<Leftover>, StorageError> {
        let local = &self.0.local;
        let files = list(&local.disk_dir).map_err(|e| local.folder_error(&e))?;
        let is_known = |n: &String| {
            ledger.disk_names.contains_key(n) || local.claims.is_written(n) || n.parse::<FileName>().is_ok_and(|f| f.is_master())
        };
        let strange = files.into_iter().filter(|(name, _)| !is_known(name) && !name.starts_with('.'));
        Ok(strange.map(|(name, m)| Leftover { name, size_bytes: m.len(), kind: LeftoverKind::Unrecorded }).collect())
    }

    /// A recorded disk.
    ///
    /// # Errors
    /// `worker_not_found`, `disk_not_found`.
    pub fn disk(&self, worker: &WorkerId, os_tag: &OsTag) -> Result<Disk, StorageError> {
        let ledger = self.0.ledger.snapshot();
        let record = ledger.workers.get(worker).ok_or_else(|| not_found("worker_not_found", format!("there is no worker {worker}")))?;
        let disk = record.disks.iter().find(|d| d.os_tag == *os_tag);
        disk.cloned().ok_or_else(|| not_found("disk_not_found", format!("worker {worker} has no disk {os_tag}; see its disk list")))
    }
}

fn not_found(code: &'static str, detail: String) -> StorageError {
    StorageError::new(code, 404, detail)
}

/// Plain files by name.
fn list(folder: &Path) -> io::Result<Vec<(String, Metadata)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = match entry.metadata() {
            // Removed while we looked.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        if let (true, Ok(name)) = (metadata.is_file(), entry.file_name().into_string()) {
            files.push((name, metadata));
        }
    }
    files.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(files)
}

fn sweep(folder: &Path) -> io::Result<Vec<Leftover>> {
    store::sweep(folder)?;
    let mut swept = Vec::new();
    for (name, metadata) in list(folder)?.into_iter().filter(|(n, _)| n.starts_with('.') && n.ends_with(PART_SUFFIX)) {
        store::remove(&folder.join(&name))?;
        swept.push(Leftover { name, size_bytes: metadata.len(), kind: LeftoverKind::Unfinished });
    }
    Ok(swept)
}

/// Files block: never on an async thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, StorageError> + Send + 'static) -> Result<T, StorageError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(_) => Err(StorageError::new("internal", 500, "the work was ended; see the log".into())),
    }
}

#[cfg(test)]
mod tests;
