//! What changes do to Workers and their disks.

use super::{MAX_WORKERS, Next, rejected};
use crate::id::{OsTag, WorkerId};
use crate::ledger::change::{Outcome, Rejected};
use crate::ledger::rules::{check_boot, check_disk, checked_remark, checked_text};
use crate::ledger::schema::{BootSettings, DeviceState, Disk, Worker};
use crate::time::Now;

/// Disks of one Worker; each is another system.
pub const MAX_DISKS: usize = 64;

pub(in crate::ledger) fn too_many_workers() -> Rejected {
    rejected(409, "too_many_workers", format!("there are {MAX_WORKERS} Workers already; delete some that are not needed"))
}

impl Next {
    pub(super) fn create_worker(&mut self, id: WorkerId, now: Now) -> Result<Outcome, Rejected> {
        if self.ledger.workers.contains_key(&id) {
            return Err(rejected(409, "worker_exists", format!("Worker {id} exists already; choose another name")));
        }
        if self.ledger.workers.len() >= MAX_WORKERS {
            return Err(too_many_workers());
        }
        self.put_worker(Worker {
            worker_id: id,
            created_at: now.wall,
            default_disk: None,
            boot: BootSettings::default(),
            error: String::new(),
            migration: None,
            disks: Vec::new(),
        });
        Ok(Outcome::Done)
    }

    pub(super) fn create_workers(&mut self, ids: Vec<WorkerId>, now: Now) -> Result<Outcome, Rejected> {
        for id in ids {
            self.create_worker(id, now)?;
        }
        Ok(Outcome::Done)
    }

    pub(super) fn set_worker_error(&mut self, id: &WorkerId, error: String) -> Result<Outcome, Rejected> {
        let mut worker = self.worker(id)?;
        let error = checked_text(error, "note_invalid", "error")?;
        if worker.error != error {
            worker.error = error;
            self.put_worker(worker);
        }
        Ok(Outcome::Done)
    }

    pub(super) fn delete_worker(&mut self, id: &WorkerId) -> Result<Outcome, Rejected> {
        let worker = self.worker(id)?;
        if let Some(device) = self.ledger.device_of(id).cloned() {
            self.detach(device, DeviceState::Pooled);
        }
        for disk in &worker.disks {
            self.ledger.forget_disk_names(disk);
        }
        self.ledger.forget_worker(id);
        self.changed = true;
        Ok(Outcome::Done)
    }

    pub(super) fn add_disk(&mut self, id: &WorkerId, mut disk: Disk) -> Result<Outcome, Rejected> {
        let mut worker = self.worker(id)?;
        disk.remark = checked_remark(disk.remark)?;
        if worker.disks.iter().any(|d| d.os == disk.os && d.os_version == disk.os_version) {
            let detail = format!("Worker {id} has a disk for {} {} already; delete that first", disk.os, disk.os_version);
            return Err(rejected(409, "disk_exists", detail));
        }
        if worker.disks.len() >= MAX_DISKS {
            return Err(rejected(409, "too_many_disks", format!("Worker {id} has {MAX_DISKS} disks already; delete one")));
        }
        check_disk(&disk).map_err(|what| rejected(422, "disk_invalid", what))?;
        if self.ledger.agent(&disk.agent).is_none() {
            let detail = format!("no storage node {} is in the ledger; see the agent list", disk.agent);
            return Err(rejected(404, "agent_not_found", detail));
        }
        if self.ledger.disk_names_taken(&disk).is_some() {
            let detail = format!("a disk with the tag, NQN, file or UUID of {} is in the ledger already", disk.nqn);
            return Err(rejected(409, "disk_not_unique", detail));
        }
        // K19: the first disk becomes the default, later ones do not rewrite it.
        if worker.disks.is_empty() {
            worker.default_disk = Some(disk.os_tag.clone());
        }
        self.ledger.note_disk_names(&disk, id);
        worker.disks.push(disk);
        self.put_worker(worker);
        Ok(Outcome::Done)
    }

    fn disk_of(&self, id: &WorkerId, tag: &OsTag) -> Result<(Worker, usize), Rejected> {
        let worker = self.worker(id)?;
        match worker.disks.iter().position(|d| d.os_tag == *tag) {
            Some(at) => Ok((worker, at)),
            None => Err(rejected(404, "disk_not_found", format!("Worker {id} has no disk {tag}; see its disk list"))),
        }
    }

    pub(super) fn remove_disk(&mut self, id: &WorkerId, tag: &OsTag) -> Result<Outcome, Rejected> {
        let (mut worker, at) = self.disk_of(id, tag)?;
        let removed = worker.disks.remove(at);
        self.ledger.forget_disk_names(&removed);
        if worker.default_disk.as_ref() == Some(tag) {
            // K20: the newest remaining one, or none.
            worker.default_disk = worker.disks.iter().max_by_key(|d| d.created_at).map(|d| d.os_tag.clone());
        }
        // The choice goes with what was chosen.
        if worker.boot.menu_default.as_deref() == Some(tag.as_str()) {
            worker.boot.menu_default = None;
        }
        self.put_worker(worker);
        Ok(Outcome::Done)
    }

    pub(super) fn resize_disk(&mut self, id: &WorkerId, tag: &OsTag, size_bytes: u64) -> Result<Outcome, Rejected> {
        self.edit_disk(id, tag, |disk| {
            if size_bytes < disk.size_bytes {
                let detail = format!("disk {tag} has {} bytes already; a disk can only grow", disk.size_bytes);
                return Err(rejected(422, "disk_shrinks", detail));
            }
            disk.size_bytes = size_bytes;
            check_disk(disk).map_err(|what| rejected(422, "disk_invalid", what))
        })
    }

    pub(super) fn remark_disk(&mut self, id: &WorkerId, tag: &OsTag, remark: String) -> Result<Outcome, Rejected> {
        let remark = checked_remark(remark)?;
        self.edit_disk(id, tag, |disk| {
            disk.remark = remark;
            Ok(())
        })
    }

    /// Not for what names a disk.
    fn edit_disk(&mut self, id: &WorkerId, tag: &OsTag, edit: impl FnOnce(&mut Disk) -> Result<(), Rejected>) -> Result<Outcome, Rejected> {
        let (mut worker, at) = self.disk_of(id, tag)?;
        if let Some(disk) = worker.disks.get_mut(at) {
            let before = disk.clone();
            edit(disk)?;
            if *disk != before {
                self.put_worker(worker);
            }
        }
        Ok(Outcome::Done)
    }

    pub(super) fn set_default_disk(&mut self, id: &WorkerId, tag: &OsTag) -> Result<Outcome, Rejected> {
        let (mut worker, _) = self.disk_of(id, tag)?;
        if worker.default_disk.as_ref() != Some(tag) {
            worker.default_disk = Some(tag.clone());
            self.put_worker(worker);
        }
        Ok(Outcome::Done)
    }

    pub(super) fn set_boot(&mut self, id: &WorkerId, boot: BootSettings) -> Result<Outcome, Rejected> {
        let mut worker = self.worker(id)?;
        check_boot(&boot, &worker.disks)?;
        if worker.boot != boot {
            worker.boot = boot;
            self.put_worker(worker);
        }
        Ok(Outcome::Done)
    }
}
