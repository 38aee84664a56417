//! Workers and their system disks in their on-disk form.

use crate::id::{AgentName, FileName, MacAddr, Nqn, OsName, OsTag, OsVersion, WorkerId};
use crate::time::Wall;
use serde::{Deserialize, Serialize};

/// `state/workers.yml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkersFile {
    /// Format version, [`super::LEDGER_VERSION`].
    pub version: u32,
    /// Grows by one with every durable change of any ledger.
    pub generation: u64,
    /// All worker records, ordered by `worker_id`; an id occurs once.
    pub workers: Vec<Worker>,
}

/// One compute identity. The bound device is a projection and never stored here (K14).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Worker {
    /// Identity and hostname.
    pub worker_id: WorkerId,
    /// When it was created.
    pub created_at: Wall,
    /// `os_tag` of the disk that boots; absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_disk: Option<OsTag>,
    /// Boot overrides.
    #[serde(default, skip_serializing_if = "BootSettings::is_default")]
    pub boot: BootSettings,
    /// Why the last thing asked for this Worker failed; empty when nothing did.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// A cold migration that is not over: the device that it came from gets it back when the new one does not prove itself in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration: Option<Migration>,
    /// Its system disks.
    #[serde(default)]
    pub disks: Vec<Disk>,
}

/// A Worker on its way to another device (K31).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Migration {
    /// The device that it was bound to before; absent when there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<MacAddr>,
    /// The device that it is bound to now.
    pub to: MacAddr,
    /// When it was rebound.
    pub since: Wall,
    /// Until then `to` must have answered a challenge; otherwise the binding goes back.
    pub until: Wall,
}

/// The menu entry of nothing to boot (K21).
pub const MENU_REBOOT: &str = "reboot";

/// Optional boot overrides of a Worker, as the form has them; `rules::check_boot` says what this version does of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BootSettings {
    /// Menu entry chosen when the time is up: an `os_tag` of the Worker, or [`MENU_REBOOT`]; absent: the default disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub menu_default: Option<String>,
    /// Menu time in milliseconds, for boot scripts of people's own: ours has no menu.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub menu_timeout_ms: Option<u32>,
    /// `nvme` or `iscsi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// `appliance` or `disk`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
}

impl BootSettings {
    pub(in crate::ledger) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Where a disk's content came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub enum DiskSource {
    /// Cloned from a master image.
    Master {
        /// Its file in the disk folder.
        name: FileName,
        /// SHA-256 of its content when it was cloned, `sha256:` and 64 hex digits; absent when that was not known yet.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<String>,
    },
    /// Created without content.
    Empty,
    /// A retained file mounted again.
    Adopted,
}

/// One system disk of a Worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Identifies the disk for ever.
    pub os_tag: OsTag,
    /// Display and grouping.
    pub os: OsName,
    /// Display and grouping; with `os` at most once per Worker (K17).
    pub os_version: OsVersion,
    /// Authoritative identifier on the data plane.
    pub nqn: Nqn,
    /// File in the disk folder.
    pub filename: FileName,
    /// Storage node that holds it.
    pub agent: AgentName,
    /// Size in bytes, a multiple of 4096.
    pub size_bytes: u64,
    /// Namespace UUID: never changes, or a running worker's disk is dead after a restart of the appliance.
    pub uuid: uuid::Uuid,
    /// Where its content came from.
    pub source: DiskSource,
    /// What people wrote down.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub remark: String,
    /// When it was created.
    pub created_at: Wall,
}
