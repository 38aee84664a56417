//! The task behind [`super::LedgerHandle`]: takes what waits, applies it, commits it, publishes it, answers.

use super::checkpoint::Done;
use super::files::{CommitError, Edit, Files, Look};
use super::knocking::Knocking;
use super::{ChangeNote, Made, Order, Submission, SubmitError};
use crate::audit::{Audit, BY_HAND, Event};
use kurrent_core::ledger::apply::apply;
use kurrent_core::ledger::by_hand;
use kurrent_core::ledger::change::Subject;
use kurrent_core::ledger::{Change, Ledger, Outcome, Rejected};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinHandle};

/// Changes committed together at most.
const GROUP: usize = 256;
/// How often files are looked at for edits by hand.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How the audit names an edit by hand that was taken up.
const RELOAD: &str = "ledger-reload";
/// How the audit names what happened to a displaced device.
const UNBIND: &str = "unbind";

pub(super) struct Writer {
    /// Away only while a commit runs.
    files: Option<Files>,
    /// As published.
    ledger: Arc<Ledger>,
    /// Brings the files up to date.
    job: Option<JoinHandle<Done>>,
    /// Whoever waits for the next job, and for the one that runs.
    flushes: [Vec<oneshot::Sender<()>>; 2],
    /// Set when a commit is in doubt: no further change until a restart reads what the disk holds.
    stopped: Option<String>,
    wrong: Wrong,
    tell: Tell,
}

/// What is wrong with the disk.
#[derive(Default)]
struct Wrong {
    /// The last commit failed.
    commit: Option<String>,
    /// An edit by hand can not be taken (yet).
    edit: Option<String>,
    /// The files can not be written.
    files: Option<String>,
    /// Side ledgers were not read.
    side: Option<String>,
}

/// Where the writer says what it did.
pub(super) struct Tell {
    pub(super) snapshots: watch::Sender<Arc<Ledger>>,
    pub(super) faults: watch::Sender<Option<String>>,
    pub(super) notes: broadcast::Sender<ChangeNote>,
    pub(super) audit: Audit,
    pub(super) knocking: Arc<Knocking>,
}

type Answer = oneshot::Sender<Result<Made, SubmitError>>;

/// A change that was applied in memory and waits for the commit.
struct Applied {
    submission_done: Answer,
    /// One for each of the change's subjects, and one for each device that lost its Worker by the way.
    events: Vec<Event>,
    /// It makes a generation.
    is_news: bool,
    result: Result<Outcome, Rejected>,
    before: Arc<Ledger>,
    after: Arc<Ledger>,
}

impl Writer {
    pub(super) fn new(files: Files, tell: Tell) -> Self {
        let ledger = tell.snapshots.borrow().clone();
        let whys = ledger.unread.whys().collect::<Vec<_>>().join("; ");
        let side = (!whys.is_empty()).then(|| format!("{whys}; what it governs is refused until it is repaired and kurrentd restarted"));
        let wrong = Wrong { side, ..Wrong::default() };
        Self { files: Some(files), ledger, job: None, flushes: Default::default(), stopped: None, wrong, tell }
    }

    pub(super) async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        self.complain();
        let mut waiting = Vec::new();
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let due = self.job_due();
            tokio::select! {
                biased;
                done = ended(&mut self.job), if self.job.is_some() => self.end_job(done).await,
                _ = look.tick() => self.look().await,
                count = orders.recv_many(&mut waiting, GROUP) => if count == 0 { break },
                () = tokio::time::sleep_until(due.unwrap_or_else(tokio::time::Instant::now)), if due.is_some() => self.begin_job(),
            }
            let mut group = Vec::new();
            for order in waiting.drain(..) {
                match order {
                    Order::Submit(submission) => group.push(*submission),
                    Order::Flush(done) => self.flush(done),
                }
            }
            self.group(group).await;
            if self.job.is_none() && due.is_some_and(|due| due <= tokio::time::Instant::now()) {
                // Orders that never cease must not keep the files behind.
                self.begin_job();
            }
        }
        self.end().await;
    }

    /// The last handle is gone.
    async fn end(mut self) {
        if self.job.is_some() {
            let done = ended(&mut self.job).await;
            self.end_job(done).await;
        }
        if self.stopped.is_none() {
            let ledger = Arc::clone(&self.ledger);
            if let Ok(Err(error)) = self.with_files(move |files| files.settle(&ledger)).await {
                tracing::warn!("the ledger files are behind, the next start reads the journal: {error:?}");
            }
        }
    }

    fn job_due(&mut self) -> Option<tokio::time::Instant> {
        let files = self.files.as_mut().filter(|_| self.job.is_none() && self.stopped.is_none())?;
        files.due(&self.ledger).map(Into::into)
    }

    /// Starts to bring the files up to date, beside the commits to come.
    fn begin_job(&mut self) {
        let Some(files) = self.files.as_mut().filter(|_| self.job.is_none() && self.stopped.is_none()) else { return };
        self.job = files.job(&self.ledger).map(|job| tokio::task::spawn_blocking(move || job.run()));
        if self.job.is_some() {
            let [next, running] = &mut self.flushes;
            running.append(next);
        }
    }

    async fn end_job(&mut self, done: Result<Done, JoinError>) {
        self.job = None;
        let [next, running] = &mut self.flushes;
        let (waiters, another) = (std::mem::take(running), !next.is_empty());
        if self.stopped.is_none() {
            let finished = match done {
                Ok(done) => self.with_files(move |files| files.finish(done)).await,
                Err(panic) => Err(panic.to_string()),
            };
            match finished {
                Ok(Ok(())) => self.wrong.files = None,
                Ok(Err(CommitError::NotDone(what))) => {
                    let what = format!("the ledger files can not be written: {what}; make room on the data partition or check the disk");
                    self.wrong.files = Some(format!("{what} (changes are safe in the journal meanwhile)"));
                }
                Ok(Err(CommitError::InDoubt(what))) => drop(self.stop(what)),
                Err(panic) => drop(self.stop(format!("writing the ledger files failed: {panic}"))),
            }
            self.complain();
        }
        for waiter in waiters {
            // Whoever asked may have gone.
            let _ = waiter.send(());
        }
        if another {
            self.flush_next();
        }
    }

    fn flush(&mut self, done: oneshot::Sender<()>) {
        let [next, _] = &mut self.flushes;
        next.push(done);
        if self.job.is_none() {
            self.flush_next();
        }
    }

    /// Starts a job for whoever waits, or answers when none can be started.
    fn flush_next(&mut self) {
        if self.files.as_ref().is_some_and(|files| files.is_behind(&self.ledger)) {
            self.begin_job();
        }
        if self.job.is_none() {
            let [next, _] = &mut self.flushes;
            for done in next.drain(..) {
                // Whoever asked may have gone.
                let _ = done.send(());
            }
        }
    }

    /// Picks up, or refuses, what somebody wrote into the files.
    async fn look(&mut self) {
        if self.stopped.is_some() {
            return;
        }
        let ledger = Arc::clone(&self.ledger);
        let look = match self.with_files(move |files| files.look(&ledger)).await {
            Ok(look) => look,
            Err(panic) => return drop(self.stop(format!("reading an edited ledger failed: {panic}"))),
        };
        self.wrong.edit = match look {
            Look::Same => None,
            Look::BeingEdited => Some("a ledger file is being edited by hand; it is read when the edit rests".into()),
            Look::Refused(why) => Some(format!("a hand edit is refused, and the ledger files are left alone until it is repaired: {why}")),
            Look::Edited(edit) => {
                let next = Arc::new(edit.ledger.clone());
                if self.commit(Arc::clone(&next), Some(*edit)).await.is_ok() {
                    let generation = next.generation;
                    tracing::info!(generation, "a ledger was edited by hand and is read again");
                    self.tell_edit(&next);
                    self.publish(next);
                }
                None
            }
        };
        self.complain();
    }

    /// What an edit did, under every device and object that it did it to.
    fn tell_edit(&self, next: &Ledger) {
        let reload = event("system", RELOAD, (None, String::new()), String::new());
        let done = by_hand::done(&self.ledger, next).into_iter().map(|done| event(BY_HAND, done.verb, done.subject, done.detail));
        for Event { actor, verb, device, object, detail, .. } in [reload].into_iter().chain(done) {
            // Nobody may listen.
            let _ = self.tell.notes.send(ChangeNote { generation: next.generation, verb, device, object: object.clone() });
            self.tell.audit.record(Event { actor, verb, device, object, result: "ok".into(), detail });
        }
    }

    /// Publishes what is wrong; logged when it is news.
    fn complain(&self) {
        let Wrong { commit, edit, files, side } = &self.wrong;
        let what = self.stopped.as_ref().or(commit.as_ref()).or(edit.as_ref()).or(files.as_ref()).or(side.as_ref());
        self.tell.faults.send_if_modified(|told| {
            let news = told.as_ref() != what;
            if news {
                match what {
                    Some(what) => tracing::error!("{what}"),
                    None => tracing::info!("the ledgers are written and read again"),
                }
                *told = what.cloned();
            }
            news
        });
    }

    async fn group(&mut self, group: Vec<Submission>) {
        if group.is_empty() {
            return;
        }
        if let Some(why) = &self.stopped {
            for submission in group {
                // Reports are no promise to anybody: refused like the rest.
                let _ = submission.done.send(Err(SubmitError::Stopped(why.clone())));
            }
            return;
        }
        let mut next = Arc::clone(&self.ledger);
        let mut applied = Vec::with_capacity(group.len());
        for submission in group {
            applied.push(self.apply(submission, &mut next));
        }
        let committed = if next.generation == self.ledger.generation { Ok(()) } else { self.commit(Arc::clone(&next), None).await };
        if committed.is_ok() {
            self.publish(next);
        }
        let answers: Vec<_> = applied.into_iter().map(|one| self.told(one, committed.as_ref().err())).collect();
        // Who was answered finds it in the audit, also when this process is killed at once.
        self.tell.audit.written().await;
        for (done, answer) in answers {
            // Whoever asked may have gone; the change stands all the same.
            let _ = done.send(answer);
        }
    }

    /// Makes `next` its own successor, if the change may be.
    fn apply(&self, submission: Submission, next: &mut Arc<Ledger>) -> Applied {
        let Submission { change, actor, expectations, done } = submission;
        let now = kurrent_sys::clock::now();
        let detail = change.detail();
        let mut events: Vec<Event> =
            change.subjects().into_iter().map(|subject| event(&actor, change.verb(), subject, detail.clone())).collect();
        let before = Arc::clone(next);
        let expected = expectations.iter().try_for_each(|expectation| expectation.check(&before));
        let result = expected.and_then(|()| apply(&before, change.clone(), now)).map(|(ledger, outcome)| {
            let displaced = change.displaced(&before, &ledger).into_iter();
            events.extend(displaced.map(|(mac, worker)| event(&actor, UNBIND, (Some(mac), worker.to_string()), String::new())));
            *next = Arc::new(ledger);
            outcome
        });
        if let (Change::Report { mac, uuid, public_key, fingerprint }, Ok(Outcome::Knocking)) = (&change, &result) {
            self.tell.knocking.heard(*mac, uuid, public_key.as_deref(), fingerprint, now);
        }
        Applied { submission_done: done, events, is_news: next.generation != before.generation, result, before, after: Arc::clone(next) }
    }

    /// Works on the files where blocking is allowed. An error is a panic in there; the files are gone with it.
    async fn with_files<T: Send + 'static>(&mut self, work: impl FnOnce(&mut Files) -> T + Send + 'static) -> Result<T, String> {
        let Some(mut files) = self.files.take() else { return Err("the files are in use".into()) };
        let job = tokio::task::spawn_blocking(move || {
            let result = work(&mut files);
            (files, result)
        });
        let (files, result) = job.await.map_err(|panic| panic.to_string())?;
        self.files = Some(files);
        Ok(result)
    }

    /// No further change: only a restart tells what the disk holds. Returns what is told.
    fn stop(&mut self, what: String) -> String {
        let what = format!("{what}; the ledger takes no changes until kurrentd is restarted");
        self.stopped = Some(what.clone());
        self.complain();
        what
    }

    /// Makes the ledger durable. On error nothing is published.
    async fn commit(&mut self, to: Arc<Ledger>, edit: Option<Edit>) -> Result<(), CommitError> {
        let from = Arc::clone(&self.ledger);
        let result = self.with_files(move |files| files.commit(&from, &to, edit)).await;
        let result = result.unwrap_or_else(|panic| Err(CommitError::InDoubt(format!("the ledger commit failed: {panic}"))));
        self.wrong.commit = match &result {
            Ok(()) => None,
            Err(CommitError::NotDone(what)) => {
                Some(format!("the ledger can not be written: {what}; make room on the data partition or check the disk"))
            }
            Err(CommitError::InDoubt(what)) => return Err(CommitError::InDoubt(self.stop(what.clone()))),
        };
        self.complain();
        result
    }

    fn publish(&mut self, next: Arc<Ledger>) {
        let durable_news = next.generation != self.ledger.generation;
        self.ledger = Arc::clone(&next);
        // A refresh is there for whoever looks, but wakes nobody.
        self.tell.snapshots.send_if_modified(|snapshot| {
            *snapshot = next;
            durable_news
        });
    }

    /// Tells audit and listeners of a change; gives the answer to it.
    fn told(&self, one: Applied, failed: Option<&CommitError>) -> (Answer, Result<Made, SubmitError>) {
        let Applied { submission_done, events, is_news, result, before, after } = one;
        let (word, answer) = match (failed, result) {
            // Refusals too: they may rest on what was not committed.
            (Some(CommitError::NotDone(what)), _) => ("not_durable", Err(SubmitError::NotDurable(what.clone()))),
            (Some(CommitError::InDoubt(what)), _) => ("in_doubt", Err(SubmitError::InDoubt(what.clone()))),
            (None, Ok(outcome)) => {
                for Event { verb, device, object, .. } in &events {
                    if let (Some(mac), Outcome::Done | Outcome::Admitted) = (device, &outcome) {
                        self.tell.knocking.forget(*mac);
                    }
                    if is_news {
                        // Nobody may listen.
                        let _ = self.tell.notes.send(ChangeNote {
                            generation: after.generation,
                            verb,
                            device: *device,
                            object: object.clone(),
                        });
                    }
                }
                (outcome.word(), Ok(Made { outcome, before, after }))
            }
            (None, Err(rejected)) => (rejected.code, Err(SubmitError::Rejected(rejected))),
        };
        if !matches!(answer, Ok(Made { outcome: Outcome::Refreshed, .. })) {
            for event in events {
                self.tell.audit.record(Event { result: word.into(), ..event });
            }
        }
        (submission_done, answer)
    }
}

/// What became of the job; never, while there is none.
async fn ended(job: &mut Option<JoinHandle<Done>>) -> Result<Done, JoinError> {
    match job {
        Some(job) => job.await,
        None => std::future::pending().await,
    }
}

/// Its result comes later.
fn event(actor: &str, verb: &'static str, (device, object): Subject, detail: String) -> Event {
    Event { actor: actor.to_owned(), verb, device, object, result: String::new(), detail }
}
