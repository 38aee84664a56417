//! This appliance as a storage node: files in one folder, exported by its own kernel.

use super::catalog::Catalog;
use super::claims::{Claim, Claims};
use super::copy::{Moved, Reflinked, reflink, sparse_copy};
use super::jobs::Running;
use super::node::{Draft, Hold, StorageNode};
use super::room::{Promised, Room};
use super::{PART_SUFFIX, StorageError, image, not_found};
use crate::reconcile::TargetHandle;
use kurrent_core::id::FileName;
use kurrent_core::placement::{Content, DataPlane, MasterFile, NodeStatus};
use kurrent_sys::store;
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// `st_blocks` counts these, whatever the file system's block is.
const STAT_BLOCK_BYTES: u64 = 512;

/// The folder. Cheap to clone.
#[derive(Clone)]
pub(super) struct LocalNode(Arc<Folder>);

pub(super) struct Folder {
    pub(super) disk_dir: PathBuf,
    pub(super) claims: Claims,
    pub(super) catalog: Catalog,
    target: TargetHandle,
    room: Room,
    /// Whether its file system clones by reference.
    clones: bool,
}

impl std::ops::Deref for LocalNode {
    type Target = Folder;

    fn deref(&self) -> &Folder {
        &self.0
    }
}

/// A file under its unfinished name; removed when dropped unfinished.
pub(super) struct Part {
    path: PathBuf,
    finished: bool,
    claim: Option<Claim>,
}

impl Part {
    pub(super) fn create(path: PathBuf, claim: Claim) -> io::Result<(Self, File)> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        Ok((Self { path, finished: false, claim: Some(claim) }, file))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the synced file its final name, which must be free. Returns the claim on it.
    pub(super) fn finish(mut self, last: &Path) -> io::Result<Option<Claim>> {
        // A link fails where a rename would replace.
        std::fs::hard_link(&self.path, last)?;
        std::fs::remove_file(&self.path)?;
        self.finished = true;
        store::sync_folder(last.parent().unwrap_or(Path::new("/")))?;
        Ok(self.claim.take())
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

impl LocalNode {
    pub(super) fn open(disk_dir: PathBuf, target: TargetHandle) -> Self {
        let clones = clones_by_reference(&disk_dir).unwrap_or_else(|error| {
            tracing::warn!(%error, "storage: whether files can be cloned by reference is not known; space for copies is asked for");
            false
        });
        let (catalog, room) = (Catalog::open(disk_dir.clone()), Room::of(disk_dir.clone()));
        Self(Arc::new(Folder { disk_dir, claims: Claims::default(), catalog, target, room, clones }))
    }
}

impl Folder {
    pub(super) fn path(&self, name: &FileName) -> PathBuf {
        self.disk_dir.join(name.as_str())
    }

    pub(super) fn part_path(&self, name: &FileName) -> PathBuf {
        self.disk_dir.join(format!(".{name}{PART_SUFFIX}"))
    }

    pub(super) fn folder_error(&self, error: &io::Error) -> StorageError {
        StorageError::new("disk_dir", 500, format!("{}: {error}", self.disk_dir.display()))
    }

    /// What a failed write means; a full disk names the space.
    pub(super) fn write_error(&self, needed_bytes: u64, error: &io::Error) -> StorageError {
        let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        if full { self.full(needed_bytes) } else { self.folder_error(error) }
    }

    fn full(&self, needed_bytes: u64) -> StorageError {
        let free = self.room.space().map_or_else(|e| format!("unknown ({e})"), |(free, _)| free.to_string());
        let what =
            format!("the disk is full: up to {needed_bytes} bytes are needed, {free} are free; delete disks or masters, or add space");
        StorageError::new("disk_full", 507, what)
    }

    /// Keeps room for what is about to be written.
    pub(super) fn promise(&self, needed_bytes: u64) -> Result<Promised, StorageError> {
        self.room.promise(needed_bytes).map_err(|e| self.folder_error(&e))?.ok_or_else(|| self.full(needed_bytes))
    }

    fn masters(&self) -> io::Result<BTreeMap<FileName, MasterFile>> {
        let mut masters = BTreeMap::new();
        for (name, metadata) in super::list(&self.disk_dir)? {
            let Some(name) = name.parse::<FileName>().ok().filter(FileName::is_master) else { continue };
            let clone_bytes = if self.clones { 0 } else { metadata.blocks().saturating_mul(STAT_BLOCK_BYTES) };
            masters.insert(name, MasterFile { size_bytes: metadata.len(), clone_bytes });
        }
        Ok(masters)
    }

    fn data_plane(&self) -> DataPlane {
        let seen = self.target.observation();
        match &seen.no_target {
            _ if !seen.looked => DataPlane::Absent("the kernel's target has not been looked at yet".into()),
            Some(why) => DataPlane::Absent(why.clone()),
            None if seen.tree.port.is_some() => DataPlane::Ready,
            None if seen.faults.is_empty() => DataPlane::NotReady("the port is not there yet".into()),
            None => DataPlane::NotReady(seen.faults.join("; ")),
        }
    }

    /// A disk's or master's file itself, never through a link.
    pub(super) fn open_file(&self, name: &FileName, write: bool) -> Result<File, StorageError> {
        let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK).bits()).unwrap_or_default();
        let file = OpenOptions::new().read(true).write(write).custom_flags(flags).open(self.path(name));
        let file = file.map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => not_found("file_not_found", format!("there is no file {name} in the disk folder")),
            // What O_NOFOLLOW says of a link.
            _ if e.raw_os_error() == Some(libc::ELOOP) => not_a_file(name),
            _ => self.folder_error(&e),
        })?;
        let metadata = file.metadata().map_err(|e| self.folder_error(&e))?;
        if metadata.is_file() { Ok(file) } else { Err(not_a_file(name)) }
    }

    fn open_master(&self, name: &FileName) -> Result<(File, u64), StorageError> {
        if !name.is_master() {
            return Err(StorageError::new("not_a_master", 422, format!("{name} is not a master: its name has no _tpl_")));
        }
        let file = self.open_file(name, false).map_err(|e| match e.code {
            "file_not_found" => not_found("master_not_found", format!("there is no master {name}; import it first")),
            _ => e,
        })?;
        let size_bytes = image::check_master(&self.path(name))?.size_bytes;
        Ok((file, size_bytes))
    }
}

fn not_a_file(name: &FileName) -> StorageError {
    StorageError::new("not_a_file", 422, format!("{name} is not a plain file; links and folders are not served"))
}

impl StorageNode for LocalNode {
    fn probe(&self) -> NodeStatus {
        match (self.masters(), self.room.space()) {
            (Ok(masters), Ok((free_bytes, total_bytes))) => {
                NodeStatus { reachable: Ok(()), data_plane: self.data_plane(), free_bytes, total_bytes, masters }
            }
            (Err(e), _) | (_, Err(e)) => NodeStatus::unreachable(self.folder_error(&e).detail),
        }
    }

    fn draft(&self, name: &FileName, content: &Content) -> Result<Box<dyn Draft>, StorageError> {
        let claim = self.claims.write(name.as_str())?;
        let (size_bytes, source) = match content {
            Content::Empty(size_bytes) => {
                image::check_size(*size_bytes)?;
                (*size_bytes, None)
            }
            Content::Master(master) => {
                let reading = self.claims.read(master.as_str())?;
                let (file, size_bytes) = self.open_master(master)?;
                (size_bytes, Some((master, file, reading)))
            }
        };
        let (part, file) = Part::create(self.part_path(name), claim).map_err(|e| self.write_error(size_bytes, &e))?;
        let mut draft = LocalDraft { node: self.clone(), name: name.clone(), part, file, size_bytes, digest: None, source: None };
        match source {
            None => draft.file.set_len(size_bytes).map_err(|e| self.write_error(size_bytes, &e))?,
            Some((master, file, reading)) => {
                draft.digest = self.catalog.digest(master, &file).map(|hex| format!("sha256:{hex}"));
                let needed_bytes = file.metadata().map_err(|e| self.folder_error(&e))?.blocks().saturating_mul(STAT_BLOCK_BYTES);
                match reflink(&file, &draft.file).map_err(|e| self.write_error(needed_bytes, &e))? {
                    Reflinked::Yes => {}
                    Reflinked::NotHere => {
                        let room = self.promise(needed_bytes)?;
                        draft.source = Some(Source { file, needed_bytes, room, _reading: reading });
                    }
                }
            }
        }
        Ok(Box::new(draft))
    }

    fn grow(&self, name: &FileName, size_bytes: u64) -> Result<Hold, StorageError> {
        image::check_size(size_bytes)?;
        let claim = self.claims.write(name.as_str())?;
        let file = self.open_file(name, true)?;
        let now = file.metadata().map_err(|e| self.folder_error(&e))?.len();
        if now > size_bytes {
            let detail = format!("{name} has {now} bytes already; a disk can only grow, choose that or more");
            return Err(StorageError::new("disk_shrinks", 422, detail));
        }
        let more = size_bytes.saturating_sub(now);
        let _room = self.promise(more)?;
        file.set_len(size_bytes).and_then(|()| file.sync_all()).map_err(|e| self.write_error(more, &e))?;
        Ok(Box::new(claim))
    }

    fn remove(&self, name: &FileName) -> Result<(), StorageError> {
        let _claim = self.claims.write(name.as_str())?;
        let failed = |e: io::Error| StorageError::new("file_not_removed", 500, format!("{name} could not be removed: {e}"));
        store::remove(&self.path(name)).map_err(failed)
    }
}

struct LocalDraft {
    node: LocalNode,
    name: FileName,
    part: Part,
    file: File,
    size_bytes: u64,
    digest: Option<String>,
    /// What is still to be copied.
    source: Option<Source>,
}

struct Source {
    file: File,
    needed_bytes: u64,
    room: Promised,
    _reading: Claim,
}

impl Draft for LocalDraft {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn digest(&self) -> Option<String> {
        self.digest.clone()
    }

    fn must_copy(&self) -> bool {
        self.source.is_some()
    }

    fn copy(&mut self, job: &Running) -> Result<(), StorageError> {
        let Some(mut source) = self.source.take() else { return Ok(()) };
        job.expect(self.size_bytes);
        job.warn("this file system can not clone by reference (btrfs and xfs can): every octet is copied");
        let mut progress = |moved| match moved {
            Moved::Hole(bytes) => job.add(bytes),
            Moved::Data(bytes) => {
                source.room.taken(bytes);
                job.add(bytes)
            }
        };
        let copied = sparse_copy(&source.file, &self.file, &mut progress);
        copied.map_err(|e| job.explain(self.node.write_error(source.needed_bytes, &e)))
    }

    fn finish(self: Box<Self>) -> Result<Hold, StorageError> {
        let Self { node, name, part, file, size_bytes, .. } = *self;
        let held = file.sync_all().and_then(|()| part.finish(&node.path(&name))).map_err(|e| node.write_error(size_bytes, &e))?;
        Ok(Box::new(held))
    }
}

/// Tries it: the file system's name alone does not tell (xfs can be made without).
fn clones_by_reference(folder: &Path) -> io::Result<bool> {
    let path = |which: &str| folder.join(format!(".clone-{which}{PART_SUFFIX}"));
    let open = |path: &Path| OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path);
    let (from, to) = (path("from"), path("to"));
    let tried = (|| {
        let source = open(&from)?;
        std::os::unix::fs::FileExt::write_all_at(&source, &[1; 4096], 0)?;
        reflink(&source, &open(&to)?)
    })();
    for path in [from, to] {
        store::remove(&path)?;
    }
    Ok(tried? == Reflinked::Yes)
}
