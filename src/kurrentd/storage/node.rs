//! The seam between the control plane and a storage node: the control plane decides where a disk goes and keeps its record, the
//! node has the file. This appliance is one node ([`super::local`]); calls to others come with a later version, until then a
//! recorded node is *not reachable* and never chosen. Tests put simulated nodes behind the same seam.

use super::StorageError;
use super::jobs::Running;
use kurrent_core::id::FileName;
use kurrent_core::placement::{Content, NodeStatus};

/// Keeps a file from everybody else until it is dropped.
pub type Hold = Box<dyn Send>;

/// What holds system disks. All calls block.
pub trait StorageNode: Send + Sync {
    /// What the node says of itself now.
    fn probe(&self) -> NodeStatus;

    /// Begins a disk's file under an unfinished name. What is dropped unfinished leaves nothing.
    ///
    /// # Errors
    /// In the node's own words; nothing is left.
    fn draft(&self, file: &FileName, content: &Content) -> Result<Box<dyn Draft>, StorageError>;

    /// Makes a file larger, durably; one that is as large already is fine. Never smaller.
    ///
    /// # Errors
    /// `file_not_found`, `disk_shrinks`, `disk_full`, `busy`. The hold is for recording the size.
    fn grow(&self, file: &FileName, size_bytes: u64) -> Result<Hold, StorageError>;

    /// Removes a file, durably; one that is not there is fine.
    ///
    /// # Errors
    /// `file_not_removed`, `busy`.
    fn remove(&self, file: &FileName) -> Result<(), StorageError>;
}

/// A disk's file before it has its name.
pub trait Draft: Send {
    /// Length of the whole.
    fn size_bytes(&self) -> u64;

    /// SHA-256 of the master, when it is known.
    fn digest(&self) -> Option<String>;

    /// Whether octets must be copied, which takes long.
    fn must_copy(&self) -> bool;

    /// Copies them.
    ///
    /// # Errors
    /// `disk_full`, `cancelled`.
    fn copy(&mut self, job: &Running) -> Result<(), StorageError>;

    /// Makes all of it durable under its own name. The hold is for recording it.
    ///
    /// # Errors
    /// `disk_full`; nothing is left.
    fn finish(self: Box<Self>) -> Result<Hold, StorageError>;
}

/// A node that is recorded, but not driven by this version.
pub(super) struct RemoteNode {
    pub(super) base_url: String,
}

impl RemoteNode {
    fn refuse(&self) -> StorageError {
        StorageError::new("agent_unreachable", 503, self.why())
    }

    fn why(&self) -> String {
        format!("this version drives only the appliance's own storage; {} is recorded and not asked, use the node local", self.base_url)
    }
}

impl StorageNode for RemoteNode {
    fn probe(&self) -> NodeStatus {
        NodeStatus::unreachable(self.why())
    }

    fn draft(&self, _: &FileName, _: &Content) -> Result<Box<dyn Draft>, StorageError> {
        Err(self.refuse())
    }

    fn grow(&self, _: &FileName, _: u64) -> Result<Hold, StorageError> {
        Err(self.refuse())
    }

    fn remove(&self, _: &FileName) -> Result<(), StorageError> {
        Err(self.refuse())
    }
}
