//! The ledger writer: the one task that changes ledgers, durable before it answers. Everybody else holds snapshots.

use kurrent_core::ledger::{Change, Ledger, Outcome, Rejected};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};

/// Why a change did not happen.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The ledger says no; nothing changed.
    #[error(transparent)]
    Rejected(#[from] Rejected),
    /// The disk refused (full, read-only, failing): nothing changed, nothing was promised.
    #[error("the change could not be written: {0}")]
    NotDurable(String),
    /// The writer has stopped.
    #[error("the ledger is not served: {0}")]
    Stopped(String),
}

/// What a change did, and the generation that holds it.
pub type Submitted = (Outcome, Arc<Ledger>);

pub(crate) struct Submission {
    pub(crate) change: Change,
    pub(crate) actor: String,
    pub(crate) done: oneshot::Sender<Result<Submitted, SubmitError>>,
}

/// What everybody holds: the latest snapshot, and the way to ask for a change.
#[derive(Clone)]
pub struct LedgerHandle {
    pub(crate) changes: mpsc::Sender<Submission>,
    pub(crate) snapshots: watch::Receiver<Arc<Ledger>>,
}

impl LedgerHandle {
    /// The latest durable snapshot.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Ledger> {
        self.snapshots.borrow().clone()
    }

    /// A receiver that wakes on every new snapshot.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<Ledger>> {
        self.snapshots.clone()
    }

    /// Asks for a change; returns when it is durable and published. `actor` goes into the audit.
    ///
    /// # Errors
    /// See [`SubmitError`]; in every case nothing changed.
    pub async fn submit(&self, change: Change, actor: &str) -> Result<Submitted, SubmitError> {
        let (done, answer) = oneshot::channel();
        let stopped = || SubmitError::Stopped("the writer has ended; see the log".into());
        self.changes.send(Submission { change, actor: actor.to_owned(), done }).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }
}
