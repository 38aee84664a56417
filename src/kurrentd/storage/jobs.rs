//! Work that takes longer than a request: named, with progress, to be watched and cancelled, remembered in bounded memory.
//!
//! ```text
//!   waiting --> running --> ending --> done | failed
//!      |           |
//!      +-----------+--cancel--> cancelling --> cancelled
//! ```
//!
//! From `ending` on the result is being recorded: what is recorded is not taken back by a cancel, but by a call of its own.

mod view;

use super::StorageError;
use kurrent_core::id::{FileName, WorkerId};
use kurrent_core::ledger::Disk;
use kurrent_core::time::Wall;
use kurrent_sys::{clock, entropy};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore, SemaphorePermit, broadcast};
pub use view::{JobState, JobView, Kind};

/// The oldest finished job is forgotten beyond this many.
const KEPT: usize = 256;
/// Jobs that wait or run at once; further ones are refused.
const MOST_UNFINISHED: usize = 512;
/// News that a slow listener may lag behind; it then looks at the job itself.
const NEWS: usize = 256;
/// How often progress is told.
const TELL_EVERY: Duration = Duration::from_millis(250);

/// What a job made.
#[derive(Clone, Debug)]
pub(crate) enum Made {
    Disk(WorkerId, Box<Disk>),
    Master(FileName),
    /// It is on another device now.
    Moved(WorkerId),
}

#[derive(Clone, Debug)]
enum State {
    Waiting,
    Running,
    /// As running, but too late to cancel.
    Ending,
    Cancelling,
    Done(Made),
    Failed(StorageError),
    Cancelled,
}

struct Job {
    id: String,
    kind: Kind,
    what: String,
    /// Whose disk it makes, or whom it moves.
    worker: Option<WorkerId>,
    started_at: Wall,
    progress: Progress,
    changing: Mutex<Changing>,
    /// Wakes a job that waits, when it is cancelled.
    cancel: Notify,
}

struct Changing {
    state: State,
    warning: String,
    doing: String,
    /// When the work began, after all waiting.
    begun: Option<Instant>,
    finished: Option<(Wall, Instant)>,
    told: Instant,
}

/// How far a job is.
#[derive(Debug, Default)]
struct Progress {
    done: AtomicU64,
    total: AtomicU64,
}

/// All jobs of this run of the daemon. Cheap to clone.
#[derive(Clone)]
pub struct Jobs(Arc<Inner>);

struct Inner {
    list: Mutex<VecDeque<Arc<Job>>>,
    news: broadcast::Sender<JobView>,
}

impl Default for Jobs {
    fn default() -> Self {
        Self(Arc::new(Inner { list: Mutex::default(), news: broadcast::Sender::new(NEWS) }))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Jobs {
    /// Every job as it starts, gets on and ends. Who lags behind misses some and is told so by the receiver.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<JobView> {
        self.0.news.subscribe()
    }

    /// One job.
    #[must_use]
    pub fn view(&self, id: &str) -> Option<JobView> {
        self.find(id).map(|j| j.view())
    }

    /// All, the oldest first.
    #[must_use]
    pub fn views(&self) -> Vec<JobView> {
        lock(&self.0.list).iter().map(|j| j.view()).collect()
    }

    fn find(&self, id: &str) -> Option<Arc<Job>> {
        lock(&self.0.list).iter().find(|j| j.id == id).cloned()
    }

    /// A new job that waits.
    ///
    /// # Errors
    /// `too_many_jobs`.
    pub(crate) fn start(&self, kind: Kind, what: String, worker: Option<&WorkerId>, total_bytes: u64) -> Result<Running, StorageError> {
        let now = Instant::now();
        let job = Arc::new(Job {
            id: hex::encode(entropy::random::<8>()),
            kind,
            what,
            worker: worker.cloned(),
            started_at: clock::now().wall,
            progress: Progress { done: AtomicU64::new(0), total: AtomicU64::new(total_bytes) },
            changing: Mutex::new(Changing {
                state: State::Waiting,
                warning: String::new(),
                doing: String::new(),
                begun: None,
                finished: None,
                told: now,
            }),
            cancel: Notify::new(),
        });
        let mut list = lock(&self.0.list);
        let finished = list.iter().filter(|j| j.view().state.is_final()).count();
        if list.len().saturating_sub(finished) >= MOST_UNFINISHED {
            let detail = format!("{MOST_UNFINISHED} jobs wait or run already; ask again when some have ended");
            return Err(StorageError::new("too_many_jobs", 503, detail));
        }
        if finished >= KEPT
            && let Some(oldest) = list.iter().position(|j| j.view().state.is_final())
        {
            list.remove(oldest);
        }
        list.push_back(Arc::clone(&job));
        drop(list);
        let running = Running { job, jobs: self.clone() };
        running.tell();
        Ok(running)
    }

    /// Stops a job and waits until it has cleared away what it made.
    ///
    /// # Errors
    /// `job_not_found`, `job_finished`, `job_ending`.
    pub async fn cancel(&self, id: &str) -> Result<JobView, StorageError> {
        let mut news = self.subscribe();
        let none = || StorageError::new("job_not_found", 404, "there is no such job of this run of the daemon; see the job list".into());
        let job = self.find(id).ok_or_else(none)?;
        job.cancel()?;
        self.tell(&job);
        loop {
            let view = job.view();
            if view.state.is_final() {
                return Ok(view);
            }
            // A listener that lags behind looks at the job again.
            let _ = tokio::time::timeout(TELL_EVERY, news.recv()).await;
        }
    }

    /// Stops what is being made for a Worker that is deleted; does not wait. What is being recorded already is refused by the
    /// ledger, as the Worker is gone.
    pub(super) fn cancel_of(&self, worker: &WorkerId) {
        let theirs: Vec<Arc<Job>> = lock(&self.0.list).iter().filter(|j| j.worker.as_ref() == Some(worker)).cloned().collect();
        for job in theirs.iter().filter(|j| !j.view().state.is_final() && j.cancel().is_ok()) {
            self.tell(job);
        }
    }

    fn tell(&self, job: &Job) {
        // Nobody need listen.
        let _ = self.0.news.send(job.view());
    }
}

impl Job {
    fn cancel(&self) -> Result<(), StorageError> {
        let mut changing = lock(&self.changing);
        match &changing.state {
            State::Waiting | State::Running => {
                changing.state = State::Cancelling;
                self.cancel.notify_one();
            }
            State::Cancelling | State::Cancelled => {}
            State::Ending => {
                let detail = format!("job {} is recording its result; {} instead", self.id, self.kind.undone_by());
                return Err(StorageError::new("job_ending", 409, detail));
            }
            State::Done(_) | State::Failed(_) => {
                let detail = format!("job {} has ended already; {} instead", self.id, self.kind.undone_by());
                return Err(StorageError::new("job_finished", 409, detail));
            }
        }
        Ok(())
    }

    fn view(&self) -> JobView {
        let changing = lock(&self.changing);
        let (state, made, error) = match &changing.state {
            State::Waiting => (JobState::Waiting, None, None),
            State::Running | State::Ending => (JobState::Running, None, None),
            State::Cancelling => (JobState::Cancelling, None, None),
            State::Done(made) => (JobState::Done, Some(made.clone()), None),
            State::Failed(error) => (JobState::Failed, None, Some(error.clone())),
            State::Cancelled => (JobState::Cancelled, None, None),
        };
        let done_bytes = self.progress.done.load(Ordering::Relaxed);
        let until = changing.finished.map_or_else(Instant::now, |(_, at)| at);
        let took = until.saturating_duration_since(changing.begun.unwrap_or(until));
        let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX).max(1);
        let (result, disk) = match made {
            None => (None, None),
            Some(Made::Disk(worker, disk)) => (Some(format!("/v1/workers/{worker}/disks/{}", disk.os_tag)), Some(*disk)),
            Some(Made::Moved(worker)) => (Some(format!("/v1/workers/{worker}")), None),
            Some(Made::Master(name)) => (Some(format!("/v1/masters/{name}")), None),
        };
        JobView {
            id: self.id.clone(),
            kind: self.kind,
            what: self.what.clone(),
            state,
            done_bytes,
            total_bytes: self.progress.total.load(Ordering::Relaxed),
            bytes_per_second: done_bytes.saturating_mul(1000).checked_div(millis).unwrap_or_default(),
            started_at: self.started_at,
            finished_at: changing.finished.map(|(at, _)| at),
            warning: changing.warning.clone(),
            doing: changing.doing.clone(),
            result,
            disk,
            code: error.as_ref().map(|e| e.code),
            detail: error.map(|e| e.detail),
        }
    }
}

/// A job in the hands of whoever does the work. Dropped without an end, it has failed.
pub struct Running {
    job: Arc<Job>,
    jobs: Jobs,
}

impl Running {
    pub(crate) fn id(&self) -> &str {
        &self.job.id
    }

    fn tell(&self) {
        self.jobs.tell(&self.job);
    }

    fn step(&self, from: fn(&State) -> bool, to: State) -> Result<(), StorageError> {
        {
            let mut changing = lock(&self.job.changing);
            if !from(&changing.state) {
                return Err(cancelled());
            }
            changing.state = to;
            changing.begun.get_or_insert_with(Instant::now);
        }
        self.tell();
        Ok(())
    }

    /// The work begins.
    ///
    /// # Errors
    /// `cancelled`.
    pub(crate) fn begin(&self) -> Result<(), StorageError> {
        self.step(|s| matches!(s, State::Waiting), State::Running)
    }

    /// Waits for a permit, then begins.
    ///
    /// # Errors
    /// `cancelled`.
    pub(super) async fn turn<'s>(&self, permits: &'s Semaphore) -> Result<SemaphorePermit<'s>, StorageError> {
        tokio::select! {
            permit = permits.acquire() => {
                let permit = permit.map_err(|_| cancelled())?;
                self.begin()?;
                Ok(permit)
            }
            () = self.job.cancel.notified() => Err(cancelled()),
        }
    }

    /// Returns when the job is cancelled.
    pub(crate) async fn cancelled(&self) {
        self.job.cancel.notified().await;
    }

    /// The result is about to be recorded: from now on it is too late to cancel.
    ///
    /// # Errors
    /// `cancelled`.
    pub(crate) fn commit(&self) -> Result<(), StorageError> {
        self.step(|s| matches!(s, State::Waiting | State::Running), State::Ending)
    }

    pub(super) fn expect(&self, total_bytes: u64) {
        self.job.progress.total.store(total_bytes, Ordering::Relaxed);
    }

    /// Whether somebody wants it stopped.
    pub(crate) fn is_cancelling(&self) -> bool {
        matches!(lock(&self.job.changing).state, State::Cancelling)
    }

    /// Where it is, in words; told when it is news.
    pub(crate) fn doing(&self, doing: String) {
        let news = {
            let mut changing = lock(&self.job.changing);
            let news = changing.doing != doing;
            changing.doing = doing;
            news
        };
        if news {
            self.tell();
        }
    }

    pub(crate) fn warn(&self, warning: &str) {
        warning.clone_into(&mut lock(&self.job.changing).warning);
    }

    /// So many more bytes are handled.
    ///
    /// # Errors
    /// The job was cancelled: the work is to stop. See [`Running::explain`].
    pub(super) fn add(&self, bytes: u64) -> io::Result<()> {
        self.job.progress.done.fetch_add(bytes, Ordering::Relaxed);
        let news = {
            let mut changing = lock(&self.job.changing);
            if matches!(changing.state, State::Cancelling) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let now = Instant::now();
            let due = now.saturating_duration_since(changing.told) >= TELL_EVERY;
            if due {
                changing.told = now;
            }
            due
        };
        if news {
            self.tell();
        }
        Ok(())
    }

    /// What a failure in the middle of the work means: when the job was cancelled, just that.
    pub(super) fn explain(&self, error: StorageError) -> StorageError {
        if matches!(lock(&self.job.changing).state, State::Cancelling) { cancelled() } else { error }
    }

    /// The end.
    pub(crate) fn finish(&self, result: Result<Made, StorageError>) {
        {
            let mut changing = lock(&self.job.changing);
            changing.finished = Some((clock::now().wall, Instant::now()));
            changing.state = match result {
                Ok(made) => State::Done(made),
                Err(e) if e.code == CANCELLED => State::Cancelled,
                Err(e) => State::Failed(e),
            };
        }
        self.tell();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.job.view().state.is_final() {
            self.finish(Err(StorageError::new("internal", 500, "the work was ended; see the log".into())));
        }
    }
}

/// Code of what was stopped because somebody asked for it.
pub(crate) const CANCELLED: &str = "cancelled";

pub(crate) fn cancelled() -> StorageError {
    StorageError::new(CANCELLED, 409, "the job was cancelled".into())
}

#[cfg(test)]
mod tests;
