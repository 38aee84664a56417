//! Creating disks: clones of masters and empty ones.

use super::copy::{Reflinked, reflink, sparse_copy};
use super::jobs::Progress;
use super::{Claim, Storage, StorageError, blocking, free_bytes, image, not_found};
use crate::ledger::SubmitError;
use kurrent_core::id::{AgentName, FileName, OsName, OsTag, OsVersion, WorkerId, disk_file_name, disk_nqn};
use kurrent_core::ledger::{Change, Disk, DiskSource};
use kurrent_sys::{clock, entropy, store};
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// `st_blocks` counts these, whatever the file system's block is.
const STAT_BLOCK_BYTES: u64 = 512;

/// What a new disk holds.
#[derive(Clone, Debug)]
pub enum Content {
    /// A clone of this master.
    Master(FileName),
    /// Nothing; this many bytes.
    Empty(u64),
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct NewDisk {
    /// Whose.
    pub worker: WorkerId,
    /// Display and grouping.
    pub os: OsName,
    /// Display and grouping.
    pub os_version: OsVersion,
    /// What it holds.
    pub content: Content,
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

/// A file under its unfinished name; removed when dropped unfinished.
pub(super) struct Part {
    path: PathBuf,
    finished: bool,
    _claim: Claim,
}

impl Part {
    pub(super) fn create(path: PathBuf, claim: Claim) -> io::Result<(Self, File)> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        Ok((Self { path, finished: false, _claim: claim }, file))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the synced file its final name, which must be free.
    pub(super) fn finish(mut self, last: &Path) -> io::Result<()> {
        // A link fails where a rename would replace.
        std::fs::hard_link(&self.path, last)?;
        std::fs::remove_file(&self.path)?;
        self.finished = true;
        store::sync_folder(last.parent().unwrap_or(Path::new("/")))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.finished
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "an unfinished file could not be removed; the next start does it");
        }
    }
}

/// A disk whose file is being written.
struct Draft {
    disk: Disk,
    part: Part,
    file: File,
}

impl Storage {
    /// Creates a disk. A clone by reference is done on return; a copy goes on as a job. The record follows the durable file. The
    /// work does not end when the caller goes away.
    ///
    /// # Errors
    /// `worker_not_found`, `disk_exists`, `master_not_found`, `disk_full`, `size`, what [`image::check_master`] says, what the
    /// ledger says. Nothing is left behind.
    pub async fn create_disk(&self, request: NewDisk, actor: &str) -> Result<Created, StorageError> {
        let (storage, actor) = (self.clone(), actor.to_owned());
        let work = tokio::spawn(async move { storage.create(request, actor).await });
        work.await.unwrap_or_else(|_| Err(StorageError::new("internal", 500, "the work was ended; see the log".into())))
    }

    async fn create(self, request: NewDisk, actor: String) -> Result<Created, StorageError> {
        self.precheck(&request)?;
        let (storage, wanted) = (self.clone(), request.clone());
        let (draft, source) = blocking(move || storage.draft(&wanted)).await?;
        let Some((source, progress, needed)) = source else {
            return Ok(Created::Disk(self.record(draft, &request.worker, &actor).await?));
        };
        let what = format!("copying a master to {}", draft.disk.filename);
        let warning = "this file system can not clone by reference (btrfs and xfs can): every octet is copied".to_owned();
        let id = self.0.jobs.start(what, warning, progress.clone());
        let job = id.clone();
        tokio::spawn(async move {
            let storage = self.clone();
            let copied = blocking(move || {
                sparse_copy(&source, &draft.file, &progress).map_err(|e| storage.write_error(needed, &e))?;
                Ok(draft)
            })
            .await;
            let result = match copied {
                Ok(draft) => self.record(draft, &request.worker, &actor).await,
                Err(error) => Err(error),
            };
            if let Err(error) = &result {
                tracing::warn!(job = %id, %error, "storage: a copy failed");
            }
            self.0.jobs.finish(&id, result);
        });
        Ok(Created::Job(job))
    }

    /// What the ledger would refuse later, said before any work; the ledger still decides.
    fn precheck(&self, request: &NewDisk) -> Result<(), StorageError> {
        let ledger = self.0.ledger.snapshot();
        let no_worker = || not_found("worker_not_found", format!("there is no worker {}; create it first", request.worker));
        let worker = ledger.workers.get(&request.worker).ok_or_else(no_worker)?;
        if worker.disks.iter().any(|d| d.os == request.os && d.os_version == request.os_version) {
            let what =
                format!("worker {} has a disk of {} {} already; use another version", request.worker, request.os, request.os_version);
            return Err(StorageError::new("disk_exists", 409, what));
        }
        Ok(())
    }

    /// The unfinished file; with what is still to be copied into it.
    #[allow(clippy::type_complexity)] // Told once, used once.
    fn draft(&self, request: &NewDisk) -> Result<(Draft, Option<(File, Arc<Progress>, u64)>), StorageError> {
        let (source, size_bytes) = match &request.content {
            Content::Empty(size_bytes) => {
                image::check_size(*size_bytes)?;
                (None, *size_bytes)
            }
            Content::Master(name) => {
                let file = self.open_master(name)?;
                let size_bytes = image::check_master(&self.path(name))?.size_bytes;
                (Some(file), size_bytes)
            }
        };
        let disk = self.new_disk(request, size_bytes);
        let claim = self.claim(&disk.filename)?;
        let (part, file) = Part::create(self.part_path(&disk.filename), claim).map_err(|e| self.write_error(size_bytes, &e))?;
        let draft = Draft { disk, part, file };
        let Some(source) = source else {
            draft.file.set_len(size_bytes).map_err(|e| self.write_error(size_bytes, &e))?;
            return Ok((draft, None));
        };
        let needed = source.metadata().map_err(|e| self.folder_error(&e))?.blocks().saturating_mul(STAT_BLOCK_BYTES);
        match reflink(&source, &draft.file).map_err(|e| self.write_error(needed, &e))? {
            Reflinked::Yes => Ok((draft, None)),
            Reflinked::NotHere => {
                if free_bytes(&self.0.disk_dir).map_err(|e| self.folder_error(&e))? < needed {
                    return Err(self.full(needed));
                }
                let progress = Arc::new(Progress::default());
                progress.expect(size_bytes);
                Ok((draft, Some((source, progress, needed))))
            }
        }
    }

    fn open_master(&self, name: &FileName) -> Result<File, StorageError> {
        if !name.is_master() {
            return Err(StorageError::new("not_a_master", 422, format!("{name} is not a master: its name has no _tpl_")));
        }
        let missing = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => not_found("master_not_found", format!("there is no master {name}; import it first")),
            _ => self.folder_error(&e),
        };
        File::open(self.path(name)).map_err(missing)
    }

    fn new_disk(&self, request: &NewDisk, size_bytes: u64) -> Disk {
        let os_tag = OsTag::from_random(entropy::random());
        let source = match &request.content {
            Content::Master(name) => DiskSource::Master { name: name.clone(), digest: None },
            Content::Empty(_) => DiskSource::Empty,
        };
        Disk {
            nqn: disk_nqn(&self.0.nqn_base, &request.worker, &request.os, &os_tag),
            filename: disk_file_name(&request.worker, &request.os, &os_tag),
            os_tag,
            os: request.os.clone(),
            os_version: request.os_version.clone(),
            agent: AgentName::local(),
            size_bytes,
            uuid: uuid::Builder::from_random_bytes(entropy::random()).into_uuid(),
            source,
            remark: String::new(),
            created_at: clock::now().wall,
        }
    }

    /// Makes the file durable under its name, then the record; without a record the file goes again. When nobody knows whether
    /// there is a record, the file stays: a restart finds its record, or lists it as left over.
    async fn record(&self, draft: Draft, worker: &WorkerId, actor: &str) -> Result<Disk, StorageError> {
        let Draft { disk, part, file } = draft;
        let path = self.path(&disk.filename);
        let (storage, last, size_bytes) = (self.clone(), path.clone(), disk.size_bytes);
        blocking(move || file.sync_all().and_then(|()| part.finish(&last)).map_err(|e| storage.write_error(size_bytes, &e))).await?;
        let submitted = self.0.ledger.submit(Change::AddDisk { worker: worker.clone(), disk: disk.clone() }, actor).await;
        if let Err(in_doubt @ SubmitError::InDoubt(_)) = submitted {
            tracing::error!(file = %disk.filename, "storage: whether this disk has a record is unknown until a restart; its file is kept");
            return Err(in_doubt.into());
        }
        if let Err(refused) = submitted {
            let removed =
                blocking(move || store::remove(&path).map_err(|e| StorageError::new("file_not_removed", 500, e.to_string()))).await;
            if let Err(error) = removed {
                tracing::warn!(file = %disk.filename, %error, "storage: a disk without record is left over");
            }
            return Err(refused.into());
        }
        Ok(disk)
    }
}
