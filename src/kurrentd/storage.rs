//! The local storage node: masters and disks as files in one folder.
//!
//! A file gets its final name only when all of it is on the disk: it is written as `.NAME.part`, synced, renamed, and the folder
//! is synced. A disk's record follows its file, never the other way round; when the record is refused the file goes again, and
//! when nobody knows whether the record was written it stays. What a crash leaves behind is found at the start: `.part` files are
//! removed, files nobody knows are listed and left alone.

pub mod copy;
pub mod image;
pub mod jobs;
mod make;
mod masters;

use crate::ledger::{LedgerHandle, SubmitError};
use crate::reconcile::TargetHandle;
pub use jobs::JobView;
use jobs::Jobs;
use kurrent_core::config::Agent;
use kurrent_core::id::{FileName, OsTag, WorkerId};
use kurrent_core::ledger::{Change, Disk, Ledger};
use kurrent_sys::store;
pub use make::{Content, Created, NewDisk};
pub use masters::{Master, MasterPartition};
use serde::Serialize;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Ends the names of unfinished files.
const PART_SUFFIX: &str = ".part";
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

/// The storage node. Cheap to clone.
#[derive(Clone)]
pub struct Storage(Arc<Inner>);

struct Inner {
    disk_dir: PathBuf,
    nqn_base: kurrent_core::id::Nqn,
    ledger: LedgerHandle,
    jobs: Jobs,
    /// Final names being written now: two requests never write one file.
    busy: Mutex<BTreeSet<String>>,
    /// What the start found and removed.
    swept: Vec<Leftover>,
}

impl Storage {
    /// Makes the folder if need be and removes what a crash left unfinished.
    ///
    /// # Errors
    /// `disk_dir`: the folder can not be made, read or written.
    pub fn open(agent: &Agent, ledger: LedgerHandle) -> Result<Self, StorageError> {
        let disk_dir = agent.disk_dir.clone();
        let unusable = |e: io::Error| StorageError::new("disk_dir", 500, format!("{}: {e}", disk_dir.display()));
        std::fs::create_dir_all(&disk_dir).map_err(unusable)?;
        let swept = sweep(&disk_dir).map_err(unusable)?;
        for leftover in &swept {
            tracing::warn!(name = %leftover.name, size = leftover.size_bytes, "storage: removed a file that was cut off while it was written");
        }
        let inner = Inner { disk_dir, nqn_base: agent.nqn_base.clone(), ledger, jobs: Jobs::default(), busy: Mutex::default(), swept };
        Ok(Self(Arc::new(inner)))
    }

    /// A job of this run.
    #[must_use]
    pub fn job(&self, id: &str) -> Option<JobView> {
        self.0.jobs.view(id)
    }

    /// All jobs of this run.
    #[must_use]
    pub fn jobs(&self) -> Vec<JobView> {
        self.0.jobs.views()
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
        let known: BTreeSet<String> = ledger.workers.values().flat_map(|w| w.disks.iter().map(|d| d.filename.to_string())).collect();
        let busy = self.0.busy.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let files = list(&self.0.disk_dir).map_err(|e| self.folder_error(&e))?;
        let is_known = |n: &String| known.contains(n) || busy.contains(n) || n.parse::<FileName>().is_ok_and(|f| f.is_master());
        let strange = files.into_iter().filter(|(name, _)| !is_known(name) && !name.starts_with('.'));
        Ok(strange.map(|(name, size_bytes)| Leftover { name, size_bytes, kind: LeftoverKind::Unrecorded }).collect())
    }

    /// Removes a disk's record; once the kernel no longer exports it, also its file if asked for. The file is kept when the export
    /// could not be withdrawn: an open file would go on using the space unseen.
    ///
    /// # Errors
    /// As [`Change::RemoveDisk`]; `still_exported`, `file_not_removed` (then the record is gone and the file is left over).
    pub async fn delete_disk(
        &self,
        worker: &WorkerId,
        os_tag: &OsTag,
        delete_file: bool,
        actor: &str,
        target: &TargetHandle,
    ) -> Result<(), StorageError> {
        let disk = self.disk(worker, os_tag)?;
        let change = Change::RemoveDisk { worker: worker.clone(), os_tag: os_tag.clone() };
        let (_, ledger) = self.0.ledger.submit(change, actor).await?;
        if delete_file {
            self.remove_files(std::slice::from_ref(&disk), ledger.generation, target).await?;
        }
        Ok(())
    }

    /// Removes the files of disks whose records went at `generation`, once the kernel has followed.
    ///
    /// # Errors
    /// `still_exported`, `file_not_removed`.
    pub async fn remove_files(&self, disks: &[Disk], generation: u64, target: &TargetHandle) -> Result<(), StorageError> {
        let settled = target.settled(generation, WITHDRAW_DEADLINE).await;
        for disk in disks {
            let path = self.path(&disk.filename);
            // A kernel without target exports nothing, so the file itself decides.
            let exported = target.observation().exports.iter().any(|e| Path::new(&e.path) == path);
            if exported {
                let why = settled.clone().err().unwrap_or_default();
                let what = format!("{} is still exported and was kept ({why}); delete the file when the fault is gone", disk.filename);
                return Err(StorageError::new("still_exported", 409, what));
            }
            let removed =
                blocking(move || store::remove(&path).map_err(|e| StorageError::new("file_not_removed", 500, e.to_string()))).await;
            removed.map_err(|e| StorageError::new("file_not_removed", 500, format!("{} could not be removed: {e}", disk.filename)))?;
        }
        Ok(())
    }

    fn disk(&self, worker: &WorkerId, os_tag: &OsTag) -> Result<Disk, StorageError> {
        let ledger = self.0.ledger.snapshot();
        let record = ledger.workers.get(worker).ok_or_else(|| not_found("worker_not_found", format!("there is no worker {worker}")))?;
        let disk = record.disks.iter().find(|d| d.os_tag == *os_tag);
        disk.cloned().ok_or_else(|| not_found("disk_not_found", format!("worker {worker} has no disk {os_tag}")))
    }

    fn path(&self, name: &FileName) -> PathBuf {
        self.0.disk_dir.join(name.as_str())
    }

    fn part_path(&self, name: &FileName) -> PathBuf {
        self.0.disk_dir.join(format!(".{name}{PART_SUFFIX}"))
    }

    fn folder_error(&self, error: &io::Error) -> StorageError {
        StorageError::new("disk_dir", 500, format!("{}: {error}", self.0.disk_dir.display()))
    }

    /// What a failed write means; a full disk names the space.
    fn write_error(&self, needed_bytes: u64, error: &io::Error) -> StorageError {
        let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        if full { self.full(needed_bytes) } else { self.folder_error(error) }
    }

    fn full(&self, needed_bytes: u64) -> StorageError {
        let free = free_bytes(&self.0.disk_dir).map_or_else(|e| format!("unknown ({e})"), |f| f.to_string());
        let what =
            format!("the disk is full: up to {needed_bytes} bytes are needed, {free} are free; delete disks or masters, or add space");
        StorageError::new("disk_full", 507, what)
    }

    /// Claims a final name for the time of writing.
    fn claim(&self, name: &FileName) -> Result<Claim, StorageError> {
        let mut busy = self.0.busy.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !busy.insert(name.to_string()) {
            return Err(StorageError::new("busy", 409, format!("{name} is being written already; wait for that to end")));
        }
        Ok(Claim { storage: self.clone(), name: name.to_string() })
    }
}

/// Released when dropped.
struct Claim {
    storage: Storage,
    name: String,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.storage.0.busy.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(&self.name);
    }
}

fn not_found(code: &'static str, detail: String) -> StorageError {
    StorageError::new(code, 404, detail)
}

fn free_bytes(folder: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(folder)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn list(folder: &Path) -> io::Result<Vec<(String, u64)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = match entry.metadata() {
            // Removed while we looked.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        if let (true, Ok(name)) = (metadata.is_file(), entry.file_name().into_string()) {
            files.push((name, metadata.len()));
        }
    }
    files.sort();
    Ok(files)
}

fn sweep(folder: &Path) -> io::Result<Vec<Leftover>> {
    let mut swept = Vec::new();
    for (name, size_bytes) in list(folder)?.into_iter().filter(|(n, _)| n.starts_with('.') && n.ends_with(PART_SUFFIX)) {
        store::remove(&folder.join(&name))?;
        swept.push(Leftover { name, size_bytes, kind: LeftoverKind::Unfinished });
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
