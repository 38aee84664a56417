//! What is shown of a Worker and its disks, and the form of its boot settings.

use super::super::names::{DiskFile, DiskTag, MacAddress, NodeName, QualifiedName, SystemName, SystemVersion, Time, WorkerName};
use super::NoteView;
use kurrent_core::id::{AgentName, FileName, MacAddr, Nqn, OsName, OsTag, OsVersion, WorkerId};
use kurrent_core::ledger::schema::{BootSettings, DiskSource};
use kurrent_core::ledger::view::Readiness;
use kurrent_core::ledger::{Disk, Ledger, Worker};
use kurrent_core::time::Wall;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whether a Worker can boot a system.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = Readiness)]
#[expect(dead_code, reason = "describes kurrent_core's Readiness")]
pub(super) enum ReadinessWord {
    /// A device and a disk.
    Ready,
    /// One of them.
    Partial,
    /// Neither.
    Idle,
}

/// What a Worker boots with; what is absent is the appliance's.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BootSettings)]
pub(in crate::api) struct BootForm {
    /// The disk that boots, by its tag, or `reboot` for none; the default disk when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 64)]
    menu_default: Option<String>,
    /// Told to the machine's scripts as the variable `menu-timeout`; at most an hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    menu_timeout_ms: Option<u32>,
    /// `nvme`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 32)]
    method: Option<String>,
    /// `appliance`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 32)]
    kernel: Option<String>,
}

impl From<BootSettings> for BootForm {
    fn from(boot: BootSettings) -> Self {
        let BootSettings { menu_default, menu_timeout_ms, method, kernel } = boot;
        Self { menu_default, menu_timeout_ms, method, kernel }
    }
}

impl From<BootForm> for BootSettings {
    fn from(boot: BootForm) -> Self {
        let BootForm { menu_default, menu_timeout_ms, method, kernel } = boot;
        Self { menu_default, menu_timeout_ms, method, kernel }
    }
}

/// Where a disk's content came from.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = DiskSource)]
enum SourceView {
    /// Cloned from a master image.
    Master {
        #[schema(value_type = DiskFile)]
        name: FileName,
        /// SHA-256 of what was cloned, when it is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        digest: Option<String>,
    },
    /// Created without content.
    Empty,
    /// A retained file mounted again.
    Adopted,
}

impl From<DiskSource> for SourceView {
    fn from(source: DiskSource) -> Self {
        match source {
            DiskSource::Master { name, digest } => Self::Master { name, digest },
            DiskSource::Empty => Self::Empty,
            DiskSource::Adopted => Self::Adopted,
        }
    }
}

/// A system disk.
#[derive(Serialize, ToSchema)]
#[schema(as = Disk)]
pub(in crate::api) struct DiskView {
    #[schema(value_type = DiskTag)]
    os_tag: OsTag,
    #[schema(value_type = SystemName)]
    os: OsName,
    #[schema(value_type = SystemVersion)]
    os_version: OsVersion,
    /// Its identifier on the data plane.
    #[schema(value_type = QualifiedName)]
    nqn: Nqn,
    #[schema(value_type = DiskFile)]
    filename: FileName,
    /// The storage node that holds it.
    #[schema(value_type = NodeName)]
    agent: AgentName,
    size_bytes: u64,
    uuid: uuid::Uuid,
    #[schema(value_type = SourceView)]
    source: SourceView,
    remark: String,
    #[schema(value_type = Time)]
    created_at: Wall,
}

impl From<Disk> for DiskView {
    fn from(disk: Disk) -> Self {
        let Disk { os_tag, os, os_version, nqn, filename, agent, size_bytes, uuid, source, remark, created_at } = disk;
        Self { os_tag, os, os_version, nqn, filename, agent, size_bytes, uuid, source: source.into(), remark, created_at }
    }
}

/// `registered` (identity only) or `ready` (has a system disk).
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = WorkerState)]
#[expect(dead_code, reason = "describes Worker::state")]
enum StateWord {
    Registered,
    Ready,
}

/// A Worker with what is derived of it.
#[derive(Serialize, ToSchema)]
#[schema(as = Worker)]
pub(super) struct WorkerView {
    #[schema(value_type = WorkerName)]
    worker_id: WorkerId,
    #[schema(value_type = Time)]
    created_at: Wall,
    /// The disk that boots.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<DiskTag>, nullable = false)]
    default_disk: Option<OsTag>,
    boot: BootForm,
    /// Why the last thing asked for it failed; empty when nothing did.
    error: String,
    disks: Vec<DiskView>,
    #[schema(value_type = StateWord)]
    state: &'static str,
    #[schema(value_type = ReadinessWord)]
    readiness: Readiness,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<MacAddress>, nullable = false)]
    bound_device: Option<MacAddr>,
    /// When it is on its way to another device.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    migration: Option<NoteView>,
}

impl WorkerView {
    pub(super) fn new(ledger: &Ledger, worker: &Worker) -> Self {
        let w = worker.clone();
        Self {
            state: worker.state(),
            readiness: ledger.readiness(worker),
            bound_device: ledger.bound.get(&worker.worker_id).copied(),
            migration: w.migration.map(|note| NoteView::new(worker.worker_id.clone(), note)),
            worker_id: w.worker_id,
            created_at: w.created_at,
            default_disk: w.default_disk,
            boot: w.boot.into(),
            error: w.error,
            disks: w.disks.into_iter().map(Into::into).collect(),
        }
    }
}
