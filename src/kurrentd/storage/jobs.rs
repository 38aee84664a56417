//! Work that takes longer than a request: named, with progress, remembered in bounded memory.

use super::StorageError;
use kurrent_core::ledger::Disk;
use kurrent_sys::entropy;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The oldest finished job is forgotten beyond this many.
const KEPT: usize = 256;

/// How far a copy is.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    pub(super) fn expect(&self, total: u64) {
        self.total.store(total, Ordering::Relaxed);
    }

    pub(super) fn add(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[derive(Debug)]
enum State {
    Running,
    Done(Box<Disk>),
    Failed(StorageError),
}

struct Job {
    id: String,
    what: String,
    warning: String,
    progress: Arc<Progress>,
    state: State,
}

/// What `GET /v1/jobs/{id}` shows.
#[derive(Clone, Debug, Serialize)]
pub struct JobView {
    /// Its name.
    pub id: String,
    /// What it does.
    pub what: String,
    /// `running`, `done` or `failed`.
    pub state: &'static str,
    /// Bytes handled so far.
    pub done_bytes: u64,
    /// Bytes to handle.
    pub total_bytes: u64,
    /// Why it takes so long, if there is something to know.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub warning: String,
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

/// All jobs of this run of the daemon.
#[derive(Default)]
pub struct Jobs(Mutex<VecDeque<Job>>);

impl Jobs {
    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Job>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn start(&self, what: String, warning: String, progress: Arc<Progress>) -> String {
        let id = hex::encode(entropy::random::<8>());
        let mut jobs = self.lock();
        while jobs.len() >= KEPT {
            let finished = jobs.iter().position(|j| !matches!(j.state, State::Running));
            if jobs.remove(finished.unwrap_or(0)).is_none() {
                break;
            }
        }
        jobs.push_back(Job { id: id.clone(), what, warning, progress, state: State::Running });
        id
    }

    pub(super) fn finish(&self, id: &str, result: Result<Disk, StorageError>) {
        if let Some(job) = self.lock().iter_mut().find(|j| j.id == id) {
            job.state = match result {
                Ok(disk) => State::Done(Box::new(disk)),
                Err(e) => State::Failed(e),
            };
        }
    }

    pub(super) fn view(&self, id: &str) -> Option<JobView> {
        self.lock().iter().find(|j| j.id == id).map(Job::view)
    }

    pub(super) fn views(&self) -> Vec<JobView> {
        self.lock().iter().map(Job::view).collect()
    }
}

impl Job {
    fn view(&self) -> JobView {
        let (state, disk, error) = match &self.state {
            State::Running => ("running", None, None),
            State::Done(disk) => ("done", Some(Disk::clone(disk)), None),
            State::Failed(e) => ("failed", None, Some(e)),
        };
        JobView {
            id: self.id.clone(),
            what: self.what.clone(),
            state,
            done_bytes: self.progress.done.load(Ordering::Relaxed),
            total_bytes: self.progress.total.load(Ordering::Relaxed),
            warning: self.warning.clone(),
            disk,
            code: error.map(|e| e.code),
            detail: error.map(|e| e.detail.clone()),
        }
    }
}
