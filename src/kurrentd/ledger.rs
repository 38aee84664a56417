//! The ledger writer: the one task that changes ledgers, durable before it answers. Everybody else holds snapshots.
//!
//! Changes that wait together are committed together (one line, one sync). A change that only refreshes what a device says of
//! itself is published at once and written with the files, after a while ([`writer`]).
//! How journal and files hold every change all or nothing is described in [`files`].

mod checkpoint;
pub mod expect;
pub mod files;
mod folder;
mod journal;
pub mod knocking;
pub mod load;
mod replay;
mod writer;

use expect::Expectation;
use knocking::Knocking;
use kurrent_core::id::MacAddr;
use kurrent_core::ledger::{Change, Ledger, Outcome, Rejected};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

/// Changes that may wait for the writer; senders beyond wait.
const QUEUE: usize = 1024;
/// Notes that a slow listener may be behind; further behind it is told that it missed some.
const NOTES: usize = 4096;

/// Why a change is not known to have happened.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SubmitError {
    /// The ledger says no; nothing changed.
    #[error(transparent)]
    Rejected(#[from] Rejected),
    /// The disk refused (full, read-only, failing): nothing changed, nothing was promised.
    #[error("the change could not be written: {0}")]
    NotDurable(String),
    /// The disk failed in the middle, or the writer did: what the change's files hold is known when they are read again. Whoever
    /// asked must act as if it may have happened.
    #[error("whether the change was made is unknown until kurrentd is restarted; look then, before asking again: {0}")]
    InDoubt(String),
    /// The writer has stopped before it took the change, or the ledger can not be served at all.
    #[error("the ledger is not served: {0}")]
    Stopped(String),
}

/// What a change did, and a snapshot that holds it.
pub type Submitted = (Outcome, Arc<Ledger>);

/// What a change did, with the very ledgers around it.
#[derive(Clone, Debug)]
pub struct Made {
    /// What it did.
    pub outcome: Outcome,
    /// The ledger it was applied to.
    pub before: Arc<Ledger>,
    /// The ledger that holds it.
    pub after: Arc<Ledger>,
}

/// Tells listeners of one subject of a durable change; a batch has one for each of its items.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChangeNote {
    /// The ledger that holds it.
    pub generation: u64,
    /// As the audit names it; `unbind` also for devices that were displaced by another change.
    pub verb: &'static str,
    /// The device it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<MacAddr>,
    /// The Worker, disk, master or node it is about.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub object: String,
}

pub(crate) struct Submission {
    pub(crate) change: Change,
    pub(crate) actor: String,
    pub(crate) expectations: Vec<Expectation>,
    pub(crate) done: oneshot::Sender<Result<Made, SubmitError>>,
}

pub(crate) enum Order {
    Submit(Box<Submission>),
    /// Bring the files up to date, with what is only in memory, too; answers when that is durable, or can not be done now.
    Flush(oneshot::Sender<()>),
}

/// What everybody holds: the latest snapshot, and the way to ask for a change.
#[derive(Clone)]
pub struct LedgerHandle {
    orders: mpsc::Sender<Order>,
    snapshots: watch::Receiver<Arc<Ledger>>,
    notes: broadcast::Sender<ChangeNote>,
    knocking: Arc<Knocking>,
    fault: watch::Receiver<Option<String>>,
    unreadable: bool,
}

impl LedgerHandle {
    /// Loads the ledgers of a state folder and starts the writer; call inside a tokio runtime. `audit` gets every change.
    ///
    /// When they can not be served ([`load::LoadError`]), the handle still answers: an empty snapshot, [`LedgerHandle::unreadable`]
    /// true, every change refused. Nothing is written then, and nothing may be concluded from the emptiness.
    #[must_use]
    pub fn open(folder: &Path, audit: crate::audit::Audit) -> Self {
        match files::Files::open(folder) {
            Ok((files, ledger)) => Self::start(files, ledger, audit),
            Err(error) => {
                let (orders, _) = mpsc::channel(QUEUE);
                tracing::error!("{error}");
                // The receivers' ends are dropped: every order is answered "not served", every snapshot is the empty one.
                let (_, snapshots) = watch::channel(Arc::new(Ledger::default()));
                let (_, fault) = watch::channel(Some(error.to_string()));
                let (notes, _) = broadcast::channel(1);
                Self { orders, snapshots, notes, knocking: Arc::default(), fault, unreadable: true }
            }
        }
    }

    /// Starts the writer on files that were read.
    pub(crate) fn start(files: files::Files, ledger: Ledger, audit: crate::audit::Audit) -> Self {
        let (orders, orders_in) = mpsc::channel(QUEUE);
        let knocking = Arc::new(Knocking::default());
        let (snapshot, snapshots) = watch::channel(Arc::new(ledger));
        let (faults, fault) = watch::channel(None);
        let (notes, _) = broadcast::channel(NOTES);
        let tell = writer::Tell { snapshots: snapshot, faults, notes: notes.clone(), audit, knocking: Arc::clone(&knocking) };
        tokio::spawn(writer::Writer::new(files, tell).run(orders_in));
        Self { orders, snapshots, notes, knocking, fault, unreadable: false }
    }

    /// The latest snapshot.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Ledger> {
        self.snapshots.borrow().clone()
    }

    /// A receiver that wakes on every new generation.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<Ledger>> {
        self.snapshots.clone()
    }

    /// Tells of every durable change from now on. A receiver that falls too far behind is told that it missed some
    /// (`RecvError::Lagged`): then it must look at the ledger itself. Refreshes are not told.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<ChangeNote> {
        self.notes.subscribe()
    }

    /// What is wrong with the ledgers now (unreadable, not writable, a refused hand edit), with what to do.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        self.fault.borrow().clone()
    }

    /// Whether the ledgers could not be read at all: then nothing that they govern may be served.
    #[must_use]
    pub fn unreadable(&self) -> bool {
        self.unreadable
    }

    /// Unknown devices that reported themselves while they could not be admitted.
    #[must_use]
    pub fn knocking(&self) -> &Knocking {
        &self.knocking
    }

    /// Asks for a change; returns when it is durable and published. `actor` goes into the audit.
    ///
    /// # Errors
    /// See [`SubmitError`]; nothing changed, except that nobody knows with [`SubmitError::InDoubt`].
    pub async fn submit(&self, change: Change, actor: &str) -> Result<Submitted, SubmitError> {
        self.submit_if(change, actor, Vec::new()).await
    }

    /// [`LedgerHandle::submit`], if all expectations hold for the very ledger that the change is applied to.
    ///
    /// # Errors
    /// As [`LedgerHandle::submit`]; rejected with `plan_stale` (409) or `precondition_failed` (412) when one does not hold.
    pub async fn submit_if(&self, change: Change, actor: &str, expectations: Vec<Expectation>) -> Result<Submitted, SubmitError> {
        self.make(change, actor, expectations).await.map(|made| (made.outcome, made.after))
    }

    /// [`LedgerHandle::submit_if`], for who tells afterwards what was changed: also gives the ledger before.
    ///
    /// # Errors
    /// As [`LedgerHandle::submit_if`].
    pub async fn make(&self, change: Change, actor: &str, expectations: Vec<Expectation>) -> Result<Made, SubmitError> {
        let (done, answer) = oneshot::channel();
        let ended = || self.fault().unwrap_or_else(|| "the writer has ended; see the log".into());
        let order = Order::Submit(Box::new(Submission { change, actor: actor.to_owned(), expectations, done }));
        self.orders.send(order).await.map_err(|_| SubmitError::Stopped(ended()))?;
        // The writer had the change already when it ended: nobody knows how far it came.
        answer.await.map_err(|_| SubmitError::InDoubt(ended()))?
    }

    /// Brings the ledger files up to date, with what is only in memory, too; changes go on meanwhile. For an orderly end.
    pub async fn flush(&self) {
        let (done, answer) = oneshot::channel();
        if self.orders.send(Order::Flush(done)).await.is_ok() {
            // The writer may have ended: then there is nothing to wait for.
            let _ = answer.await;
        }
    }
}

#[cfg(test)]
#[path = "ledger/cut_tests.rs"]
mod cut_tests;
#[cfg(test)]
#[path = "ledger/edit_tests.rs"]
mod edit_tests;
#[cfg(test)]
#[path = "ledger/tests.rs"]
mod tests;
