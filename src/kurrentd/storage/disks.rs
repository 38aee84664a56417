//! What is done to disks that are there: adopted, enlarged, described, deleted; and files without a record.

use super::create::here;
use super::local::Folder;
use super::node::Hold;
use super::{Storage, StorageError, WITHDRAW_DEADLINE, blocking, image, not_found};
use crate::audit::Event;
use crate::ledger::SubmitError;
use crate::ledger::expect::Expectation;
use crate::reconcile::TargetHandle;
use kurrent_core::gpt::Contents;
use kurrent_core::id::{AgentName, FileName, OsName, OsTag, OsVersion, WorkerId};
use kurrent_core::ledger::{Change, Disk, DiskSource, Ledger};
use kurrent_core::placement::{Content, Wanted};
use kurrent_sys::store;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// A retained file that becomes a disk again (K42).
#[derive(Clone, Debug)]
pub struct Adoption {
    /// Whose.
    pub worker: WorkerId,
    /// The file as it is called now.
    pub file: FileName,
    /// Display and grouping.
    pub os: OsName,
    /// Display and grouping.
    pub os_version: OsVersion,
    /// What people wrote down.
    pub remark: String,
    /// What must be so when it is recorded.
    pub expected: Vec<Expectation>,
}

/// A file that was to go with its record, and is still there: a leftover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its name.
    pub filename: FileName,
    /// Stable code: `still_exported`, `file_not_removed`, `busy`, …
    pub code: &'static str,
    /// Why, with the next step.
    pub detail: String,
}

impl Kept {
    fn new(disk: &Disk, error: StorageError) -> Self {
        let filename = disk.filename.clone();
        let detail =
            format!("{}; its record is gone: remove it with DELETE /v1/leftovers/{filename} (kurrent leftover delete) later", error.detail);
        Self { filename, code: error.code, detail }
    }
}

impl Storage {
    /// Makes a file without record a disk: with a new tag, NQN and UUID, under the name that belongs to them. The file is renamed
    /// first; a crash before the record is written leaves it as a file without record, to be adopted again.
    ///
    /// # Errors
    /// `file_not_found`, `not_a_file`, `file_is_recorded`, `file_is_master`, `file_is_linked`, `still_exported`, `sector_size`,
    /// `damaged`, `size`, `busy`, what [`Change::AddDisk`] says; the file has its old name then.
    pub async fn adopt_disk(&self, adoption: Adoption, actor: &str) -> Result<Disk, StorageError> {
        let (storage, actor) = (self.clone(), actor.to_owned());
        let work = tokio::spawn(async move { storage.adopt(adoption, &actor).await });
        work.await.unwrap_or_else(|_| Err(StorageError::new("internal", 500, "the work was ended; see the log".into())))
    }

    async fn adopt(&self, adoption: Adoption, actor: &str) -> Result<Disk, StorageError> {
        let Adoption { worker, file, os, os_version, remark, expected } = adoption;
        self.holds(&expected)?;
        let ledger = self.0.ledger.snapshot();
        if !ledger.workers.contains_key(&worker) {
            return Err(not_found("worker_not_found", format!("there is no worker {worker}; create it first")));
        }
        self.is_free(&file).await?;
        let local = self.0.local.clone();
        let held = local.claims.write(file.as_str())?;
        // Somebody may have been quicker between the look and the claim.
        self.is_unrecorded(&file)?;
        let checked = file.clone();
        let size_bytes = blocking(move || adoptable(&local, &checked)).await?;
        let wanted = Wanted { worker: worker.clone(), os, os_version, content: Content::Empty(size_bytes), pin: None };
        let disk = Disk { source: DiskSource::Adopted, ..self.new_disk(&wanted, here(size_bytes), remark) };
        let (local, from, to) = (self.0.local.clone(), file.clone(), disk.filename.clone());
        let held_last = local.claims.write(to.as_str())?;
        blocking(move || rename(&local, &from, &to)).await?;
        let submitted = self.0.ledger.submit_if(Change::AddDisk { worker, disk: disk.clone() }, actor, expected).await;
        match submitted {
            Ok(_) => {}
            Err(in_doubt @ SubmitError::InDoubt(_)) => return Err(in_doubt.into()),
            Err(refused) => {
                let (local, from, to) = (self.0.local.clone(), disk.filename.clone(), file.clone());
                if let Err(error) = blocking(move || rename(&local, &from, &to)).await {
                    tracing::warn!(file = %disk.filename, old = %file, %error, "storage: a file that was not adopted has not its old name");
                }
                return Err(refused.into());
            }
        }
        drop((held, held_last));
        Ok(disk)
    }

    fn is_unrecorded(&self, file: &FileName) -> Result<(), StorageError> {
        if self.0.ledger.unreadable() {
            // The snapshot is empty, and nothing may be concluded from that: every disk's file would look unrecorded.
            return Err(SubmitError::Stopped(self.0.ledger.fault().unwrap_or_default()).into());
        }
        match self.0.ledger.snapshot().disk_names.get(file.as_str()) {
            None => Ok(()),
            Some(worker) => Err(StorageError::new(
                "file_is_recorded",
                409,
                format!("{file} is a disk of worker {worker} already; delete that record first"),
            )),
        }
    }

    /// Neither a master, nor recorded, nor exported.
    async fn is_free(&self, file: &FileName) -> Result<(), StorageError> {
        if file.is_master() {
            let detail = format!("{file} is a master's name: masters are only cloned; create a disk from it");
            return Err(StorageError::new("file_is_master", 422, detail));
        }
        self.is_unrecorded(file)?;
        let generation = self.0.ledger.snapshot().generation;
        let why = withdrawn(&self.0.target, generation).await;
        self.is_closed(file, &why, &self.0.target)
    }

    /// Whether the kernel has let go of a file; `why` it may not have yet.
    fn is_closed(&self, file: &FileName, why: &str, target: &TargetHandle) -> Result<(), StorageError> {
        let path = self.0.local.path(file);
        // A kernel without target exports nothing, so what was seen decides.
        let seen = target.observation();
        let in_tree = seen.tree.subsystems.values().flat_map(|s| s.namespaces.values()).any(|n| n.enabled && Path::new(&n.path) == path);
        if in_tree {
            let detail = format!("{file} is still exported and was kept ({why})");
            return Err(StorageError::new("still_exported", 409, detail));
        }
        Ok(())
    }

    /// Makes a disk larger: first its file, durably, then its record; the reconciler then tells the kernel. Cut off in between, the
    /// file is larger than the record says, which harms nobody and is shown; asking again completes it.
    ///
    /// # Errors
    /// `disk_not_found`, `disk_shrinks`, `size`, `disk_full`, `busy`.
    pub async fn resize_disk(
        &self,
        worker: &WorkerId,
        os_tag: &OsTag,
        size_bytes: u64,
        actor: &str,
        expected: Vec<Expectation>,
    ) -> Result<(Disk, Arc<Ledger>), StorageError> {
        self.holds(&expected)?;
        let disk = self.disk(worker, os_tag)?;
        if size_bytes < disk.size_bytes {
            let detail = format!("disk {os_tag} has {} bytes already; a disk can only grow, choose that or more", disk.size_bytes);
            return Err(StorageError::new("disk_shrinks", 422, detail));
        }
        let (storage, actor) = (self.clone(), actor.to_owned());
        let (worker, os_tag) = (worker.clone(), os_tag.clone());
        // Goes on when the caller goes away: a file larger than its record is to be seen as little as can be.
        let work = tokio::spawn(async move {
            let node = storage.node(&disk.agent);
            let file = disk.filename.clone();
            let _hold: Hold = blocking(move || node.grow(&file, size_bytes)).await?;
            let change = Change::ResizeDisk { worker: worker.clone(), os_tag: os_tag.clone(), size_bytes };
            let (_, ledger) = storage.0.ledger.submit_if(change, &actor, expected).await?;
            Ok((Disk { size_bytes, ..disk }, ledger))
        });
        work.await.unwrap_or_else(|_| Err(StorageError::new("internal", 500, "the work was ended; see the log".into())))
    }

    /// Removes a disk's record; once the kernel no longer exports it, also its file if asked for. What is returned could not be
    /// removed, and is left over.
    ///
    /// # Errors
    /// As [`Change::RemoveDisk`].
    pub async fn delete_disk(
        &self,
        worker: &WorkerId,
        os_tag: &OsTag,
        delete_file: bool,
        actor: &str,
        expected: Vec<Expectation>,
    ) -> Result<(Vec<Kept>, Arc<Ledger>), StorageError> {
        let disk = self.disk(worker, os_tag)?;
        let change = Change::RemoveDisk { worker: worker.clone(), os_tag: os_tag.clone() };
        let (_, ledger) = self.0.ledger.submit_if(change, actor, expected).await?;
        let kept = if delete_file { self.remove_files(vec![disk], ledger.generation, actor).await } else { Vec::new() };
        Ok((kept, ledger))
    }

    /// Removes the files of disks whose records went at `generation` or before, once the kernel has followed; each by itself, also
    /// when the caller goes away. A file is kept while it is exported: open, it would go on using the space unseen. Returned are
    /// those that are still there.
    pub async fn remove_files(&self, disks: Vec<Disk>, generation: u64, actor: &str) -> Vec<Kept> {
        let (storage, actor, all) = (self.clone(), actor.to_owned(), disks.clone());
        let work = tokio::spawn(async move {
            let why = withdrawn(&storage.0.target, generation).await;
            let mut kept = Vec::new();
            for disk in disks {
                let removed = storage.remove_file(&disk, &why).await;
                let result = removed.as_ref().map_or_else(|e| e.code, |()| "ok").to_owned();
                let object = disk.filename.to_string();
                storage.0.audit.record(Event {
                    actor: actor.clone(),
                    verb: "file-delete",
                    device: None,
                    object,
                    result,
                    detail: String::new(),
                });
                kept.extend(removed.err().map(|e| Kept::new(&disk, e)));
            }
            kept
        });
        let ended = || StorageError::new("internal", 500, "the work was ended; see the log".into());
        work.await.unwrap_or_else(|_| all.iter().map(|disk| Kept::new(disk, ended())).collect())
    }

    async fn remove_file(&self, disk: &Disk, why: &str) -> Result<(), StorageError> {
        self.is_closed(&disk.filename, why, &self.0.target)?;
        let (node, file) = (self.node(&disk.agent), disk.filename.clone());
        blocking(move || node.remove(&file)).await
    }

    /// Ends what is being made for a Worker that was deleted.
    pub fn forget_worker(&self, worker: &WorkerId) {
        self.0.jobs.cancel_of(worker);
    }

    /// Removes a file without record.
    ///
    /// # Errors
    /// `file_not_found`, `file_is_recorded`, `file_is_master`, `still_exported`, `busy`, `file_not_removed`.
    pub async fn delete_leftover(&self, file: &FileName) -> Result<(), StorageError> {
        self.is_free(file).await?;
        let local = self.0.local.clone();
        let held = local.claims.write(file.as_str())?;
        self.is_unrecorded(file)?;
        let file = file.clone();
        blocking(move || {
            let _held = held;
            local.open_file(&file, false)?;
            let failed = |e: std::io::Error| StorageError::new("file_not_removed", 500, format!("{file} could not be removed: {e}"));
            store::remove(&local.path(&file)).map_err(failed)
        })
        .await
    }

    /// What is to be said about the file of a disk on this node, if anything: it is not there, or not as large as recorded.
    ///
    /// # Errors
    /// `disk_dir`.
    pub async fn file_faults(&self, disks: Vec<Disk>) -> Result<Vec<Option<String>>, StorageError> {
        let local = self.0.local.clone();
        blocking(move || Ok(disks.iter().map(|d| file_fault(&local, d)).collect())).await
    }
}

/// Waits until the kernel has followed the ledger; otherwise why not yet.
async fn withdrawn(target: &TargetHandle, generation: u64) -> String {
    if target.observation().no_target.is_some() {
        return String::new();
    }
    target.settled(generation, WITHDRAW_DEADLINE).await.err().unwrap_or_default()
}

fn file_fault(local: &Folder, disk: &Disk) -> Option<String> {
    if disk.agent != AgentName::local() {
        return None;
    }
    let (file, recorded) = (&disk.filename, disk.size_bytes);
    match std::fs::symlink_metadata(local.path(file)) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Some(format!("its file {file} is gone; restore it, or delete the disk")),
        Err(e) => Some(format!("its file {file} can not be looked at: {e}")),
        Ok(m) if m.len() > recorded => {
            let now = m.len();
            Some(format!("its file has {now} bytes, its record says {recorded}: a resize was cut off; resize it to {now} to complete it"))
        }
        Ok(m) if m.len() < recorded => Some(format!("its file has only {} of {recorded} bytes; restore it, or delete the disk", m.len())),
        Ok(_) => None,
    }
}

/// The size of a file that may become a disk.
fn adoptable(local: &Folder, file: &FileName) -> Result<u64, StorageError> {
    let opened = local.open_file(file, false)?;
    let metadata = opened.metadata().map_err(|e| local.folder_error(&e))?;
    if metadata.nlink() != 1 {
        let detail = format!("{file} has {} names: another disk may be the same file; copy it first", metadata.nlink());
        return Err(StorageError::new("file_is_linked", 409, detail));
    }
    let image = image::inspect(&local.path(file))?;
    image::check_size(image.size_bytes)?;
    match &image.contents {
        Contents::Table(table) if table.damage.is_some() => {
            let damage = table.damage.unwrap_or_default();
            Err(StorageError::new("damaged", 422, format!("the partition table of {file} is damaged: {damage}; repair it first")))
        }
        Contents::Table(_) | Contents::Blank => Ok(image.size_bytes),
    }
}

/// Never onto another file, and durable on return.
fn rename(local: &Folder, from: &FileName, to: &FileName) -> Result<(), StorageError> {
    let folder = rustix::fs::CWD;
    let flags = rustix::fs::RenameFlags::NOREPLACE;
    rustix::fs::renameat_with(folder, local.path(from), folder, local.path(to), flags).map_err(|e| local.folder_error(&e.into()))?;
    store::sync_folder(&local.disk_dir).map_err(|e| local.folder_error(&e))
}
