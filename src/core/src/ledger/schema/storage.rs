//! Storage nodes and the tags of master images in their on-disk form.

use crate::id::{AgentName, FileName, OsName, OsVersion};
use crate::time::Wall;
use serde::{Deserialize, Serialize};

/// `state/agents.yml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentsFile {
    /// Format version, [`super::LEDGER_VERSION`].
    pub version: u32,
    /// Grows by one with every durable change of any ledger.
    pub generation: u64,
    /// Storage nodes that differ from the default, ordered by name; a name occurs once. This appliance is always one of them,
    /// also without a record.
    #[serde(default)]
    pub agents: Vec<Agent>,
    /// Orders by which further nodes may join.
    #[serde(default)]
    pub join_tokens: Vec<JoinToken>,
}

/// What a storage node is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It holds system disks and exports them (K32).
    Disk,
}

/// One storage node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Agent {
    /// Its name in disk records.
    pub name: AgentName,
    /// Where its API is (`https://10.0.0.2:8443`); empty for this appliance itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub base_url: String,
    /// What it is for.
    #[serde(default = "disk_role")]
    pub roles: Vec<Role>,
    /// Takes no new disks (K32); those it has stay in service.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drained: bool,
    /// What people wrote down.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// When it was added; absent for this appliance itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added_at: Option<Wall>,
}

fn disk_role() -> Vec<Role> {
    vec![Role::Disk]
}

impl Agent {
    /// This appliance as its own storage node, as it is when nothing else is recorded.
    #[must_use]
    pub fn local() -> Self {
        Self { name: AgentName::local(), base_url: String::new(), roles: disk_role(), drained: false, note: String::new(), added_at: None }
    }
}

/// Lets one further node join, once. The token itself is shown once and not kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinToken {
    /// What people name it by; no secret.
    pub id: String,
    /// SHA-256 of the token, hex.
    pub token_hash: String,
    /// When it was made.
    pub created_at: Wall,
    /// It opens nothing from then on.
    pub expires_at: Wall,
    /// What people wrote down.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// `state/masters.yml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MastersFile {
    /// Format version, [`super::LEDGER_VERSION`].
    pub version: u32,
    /// Grows by one with every durable change of any ledger.
    pub generation: u64,
    /// Tags of master images, ordered by name; a name occurs once. The images themselves are the files in the disk folder.
    #[serde(default)]
    pub masters: Vec<MasterTags>,
}

/// What people say a master image holds: for display and selection only (K25).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MasterTags {
    /// File in the disk folder.
    pub name: FileName,
    /// Operating system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<OsName>,
    /// Its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_version: Option<OsVersion>,
    /// What people wrote down.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub remark: String,
}
