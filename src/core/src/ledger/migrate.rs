//! Ledger files of earlier versions, in the form of this one.
//!
//! Version 1 had no `agents.yml` and `masters.yml`, no settings but the registration window, and named a disk's master without
//! its digest. All the rest reads as it is.

use super::schema::{BootSettings, Disk, DiskSource, LEDGER_VERSION, Worker, WorkersFile};
use crate::id::{AgentName, FileName, Nqn, OsName, OsTag, OsVersion, WorkerId};
use crate::time::Wall;
use serde::Deserialize;

/// `workers.yml` of version 1.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkersFileV1 {
    /// Always 1.
    #[serde(rename = "version")]
    _version: u32,
    generation: u64,
    workers: Vec<WorkerV1>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkerV1 {
    worker_id: WorkerId,
    created_at: Wall,
    #[serde(default)]
    default_disk: Option<OsTag>,
    #[serde(default)]
    boot: BootSettings,
    #[serde(default)]
    error: String,
    #[serde(default)]
    disks: Vec<DiskV1>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DiskV1 {
    os_tag: OsTag,
    os: OsName,
    os_version: OsVersion,
    nqn: Nqn,
    filename: FileName,
    agent: AgentName,
    size_bytes: u64,
    uuid: uuid::Uuid,
    source: DiskSourceV1,
    #[serde(default)]
    remark: String,
    created_at: Wall,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
enum DiskSourceV1 {
    Master(FileName),
    Empty,
    Adopted,
}

impl From<WorkersFileV1> for WorkersFile {
    fn from(v1: WorkersFileV1) -> Self {
        Self { version: LEDGER_VERSION, generation: v1.generation, workers: v1.workers.into_iter().map(Worker::from).collect() }
    }
}

impl From<WorkerV1> for Worker {
    fn from(v1: WorkerV1) -> Self {
        let WorkerV1 { worker_id, created_at, default_disk, boot, error, disks } = v1;
        Self { worker_id, created_at, default_disk, boot, error, migration: None, disks: disks.into_iter().map(Disk::from).collect() }
    }
}

impl From<DiskV1> for Disk {
    fn from(v1: DiskV1) -> Self {
        let DiskV1 { os_tag, os, os_version, nqn, filename, agent, size_bytes, uuid, source, remark, created_at } = v1;
        let source = match source {
            DiskSourceV1::Master(name) => DiskSource::Master { name, digest: None },
            DiskSourceV1::Empty => DiskSource::Empty,
            DiskSourceV1::Adopted => DiskSource::Adopted,
        };
        Self { os_tag, os, os_version, nqn, filename, agent, size_bytes, uuid, source, remark, created_at }
    }
}
