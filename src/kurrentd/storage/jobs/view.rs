//! What is shown of a job.

use kurrent_core::ledger::Disk;
use kurrent_core::time::Wall;
use serde::Serialize;

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Makes a disk from a master.
    Clone,
    /// Makes an empty disk.
    Create,
    /// Receives a master.
    Import,
    /// Moves a Worker to another device.
    Migrate,
}

impl Kind {
    /// What takes its result back.
    pub(super) fn undone_by(self) -> &'static str {
        match self {
            Self::Clone | Self::Create | Self::Import => "delete what it made",
            Self::Migrate => "migrate the Worker back",
        }
    }
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// For others to end.
    Waiting,
    /// At work.
    Running,
    /// Asked to stop; it clears away what it made.
    Cancelling,
    /// Its result is there.
    Done,
    /// It made nothing.
    Failed,
    /// It was stopped and left nothing.
    Cancelled,
}

impl JobState {
    /// Whether nothing more comes.
    #[must_use]
    pub fn is_final(self) -> bool {
        match self {
            Self::Waiting | Self::Running | Self::Cancelling => false,
            Self::Done | Self::Failed | Self::Cancelled => true,
        }
    }
}

/// What `GET /v1/jobs/{id}` shows.
#[derive(Clone, Debug, Serialize)]
pub struct JobView {
    /// Its name.
    pub id: String,
    /// What kind of work it is.
    pub kind: Kind,
    /// What it does, in words.
    pub what: String,
    /// Where it stands.
    pub state: JobState,
    /// Bytes handled so far.
    pub done_bytes: u64,
    /// Bytes to handle; 0 when that is not known.
    pub total_bytes: u64,
    /// Bytes a second, on average.
    pub bytes_per_second: u64,
    /// When it was asked for.
    pub started_at: Wall,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Wall>,
    /// Why it takes so long, if there is something to know.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub warning: String,
    /// Where it is, in words, when bytes do not say it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub doing: String,
    /// Path of what it made, when done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// The disk, when done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
    /// Stable code of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// The failure in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}
