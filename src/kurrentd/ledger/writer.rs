//! The task behind [`super::LedgerHandle`]: takes what waits, applies it, commits it, publishes it, answers.

use super::files::{CommitError, Files};
use super::knocking::Knocking;
use super::{ChangeNote, Order, Submission, SubmitError, Submitted};
use crate::audit::{Audit, Event};
use kurrent_core::ledger::apply::apply;
use kurrent_core::ledger::{Change, Ledger, Outcome, Rejected};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

/// Changes committed together at most.
const GROUP: usize = 256;
/// How long a refresh may stay in memory only.
const FLUSH_AFTER: Duration = Duration::from_secs(60);
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
    /// `ledger` holds refreshes that no file has.
    dirty_since: Option<tokio::time::Instant>,
    /// Set when a commit is in doubt: no further change until a restart reads what the disk holds.
    stopped: Option<String>,
    tell: Tell,
}

/// Where the writer says what it did.
pub(super) struct Tell {
    pub(super) snapshots: watch::Sender<Arc<Ledger>>,
    pub(super) faults: watch::Sender<Option<String>>,
    pub(super) notes: broadcast::Sender<ChangeNote>,
    pub(super) audit: Audit,
    pub(super) knocking: Arc<Knocking>,
}

/// A change that was applied in memory and waits for the commit.
struct Applied {
    submission_done: oneshot::Sender<Result<Submitted, SubmitError>>,
    /// One for each of the change's subjects, and one for each device that lost its Worker by the way.
    events: Vec<Event>,
    /// It makes a generation.
    is_news: bool,
    result: Result<Outcome, Rejected>,
    snapshot: Arc<Ledger>,
}

impl Writer {
    pub(super) fn new(files: Files, tell: Tell) -> Self {
        let ledger = tell.snapshots.borrow().clone();
        Self { files: Some(files), ledger, dirty_since: None, stopped: None, tell }
    }

    pub(super) async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        let mut waiting = Vec::new();
        loop {
            match tokio::time::timeout(LOOK_EVERY, orders.recv_many(&mut waiting, GROUP)).await {
                Ok(0) => break,
                Ok(_) => {}
                Err(_) => self.look().await,
            }
            let mut flushes = Vec::new();
            let mut group = Vec::new();
            for order in waiting.drain(..) {
                match order {
                    Order::Submit(submission) => group.push(*submission),
                    Order::Flush(done) => flushes.push(done),
                }
            }
            self.group(group).await;
            let overdue = self.dirty_since.is_some_and(|since| since.elapsed() >= FLUSH_AFTER);
            if overdue || !flushes.is_empty() {
                self.flush().await;
            }
            for done in flushes {
                // Whoever asked may have gone.
                let _ = done.send(());
            }
        }
        self.flush().await;
    }

    /// Picks up, or refuses, what somebody wrote into the files.
    async fn look(&mut self) {
        let Some(files) = self.files.as_mut() else { return };
        if self.stopped.is_some() || !files.changed_by_hand() {
            return;
        }
        if !files.edit_is_complete() {
            return self.complain("a ledger is being edited by hand; changes wait until the edit rests".into());
        }
        let reloaded = match self.with_files(Files::reload).await {
            Ok(reloaded) => reloaded,
            Err(panic) => {
                self.stop(format!("reading an edited ledger failed: {panic}"));
                return;
            }
        };
        match reloaded {
            Ok(edited) => {
                let ledger = Arc::new(edited.after_edit(&self.ledger));
                if self.commit(Arc::clone(&ledger)).await.is_err() {
                    if let Some(files) = self.files.as_mut() {
                        files.edit_was_not_taken();
                    }
                    return;
                }
                tracing::info!(generation = ledger.generation, "a ledger was edited by hand and is read again");
                self.tell.audit.record(event("system", RELOAD, None, String::new(), "ok"));
                // Nobody may listen.
                let _ =
                    self.tell.notes.send(ChangeNote { generation: ledger.generation, verb: RELOAD, device: None, object: String::new() });
                self.publish(ledger);
            }
            Err(error) => self.complain(format!("a hand edit is refused, and changes wait until it is repaired: {error}")),
        }
    }

    /// Sets the fault; logged when it is news.
    fn complain(&self, what: String) {
        if self.tell.faults.borrow().as_deref() != Some(&what) {
            tracing::warn!("{what}");
            self.tell.faults.send_replace(Some(what));
        }
    }

    async fn group(&mut self, group: Vec<Submission>) {
        if group.is_empty() {
            return;
        }
        self.look().await;
        let refused = self.stopped.clone().map(SubmitError::Stopped).or_else(|| {
            let edited = self.files.as_ref().is_some_and(Files::changed_by_hand);
            edited.then(|| SubmitError::NotDurable(self.tell.faults.borrow().clone().unwrap_or_default()))
        });
        if let Some(why) = refused {
            for submission in group {
                // Reports are no promise to anybody: refused like the rest.
                let _ = submission.done.send(Err(why.clone()));
            }
            return;
        }
        let mut next = Arc::clone(&self.ledger);
        let mut applied = Vec::with_capacity(group.len());
        for submission in group {
            applied.push(self.apply(submission, &mut next));
        }
        let committed = if next.generation == self.ledger.generation { Ok(()) } else { self.commit(Arc::clone(&next)).await };
        if committed.is_ok() {
            self.publish(next);
        }
        for one in applied {
            self.answer(one, committed.as_ref().err());
        }
    }

    /// Makes `next` its own successor, if the change may be.
    fn apply(&self, submission: Submission, next: &mut Arc<Ledger>) -> Applied {
        let Submission { change, actor, expectations, done } = submission;
        let now = kurrent_sys::clock::now();
        let mut events: Vec<Event> =
            change.subjects().into_iter().map(|(device, object)| event(&actor, change.verb(), device, object, "")).collect();
        let before = Arc::clone(next);
        let expected = expectations.iter().try_for_each(|expectation| expectation.check(&before));
        let result = expected.and_then(|()| apply(&before, change.clone(), now)).map(|(ledger, outcome)| {
            let displaced = change.displaced(&before, &ledger).into_iter();
            events.extend(displaced.map(|(mac, worker)| event(&actor, UNBIND, Some(mac), worker.to_string(), "")));
            *next = Arc::new(ledger);
            outcome
        });
        if let (Change::Report { mac, uuid, public_key, fingerprint }, Ok(Outcome::Knocking)) = (&change, &result) {
            self.tell.knocking.heard(*mac, uuid, public_key.as_deref(), fingerprint, now);
        }
        Applied { submission_done: done, events, is_news: next.generation != before.generation, result, snapshot: Arc::clone(next) }
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
        tracing::error!("{what}");
        self.stopped = Some(what.clone());
        self.tell.faults.send_replace(Some(what.clone()));
        what
    }

    /// Makes the ledger durable. On error nothing is published.
    async fn commit(&mut self, ledger: Arc<Ledger>) -> Result<(), CommitError> {
        let result = self.with_files(move |files| files.commit(&ledger)).await;
        match result.unwrap_or_else(|panic| Err(CommitError::InDoubt(format!("the ledger commit failed: {panic}")))) {
            Ok(()) => {
                self.dirty_since = None;
                self.tell.faults.send_if_modified(|f| f.take().is_some());
                Ok(())
            }
            Err(CommitError::NotDone(what)) => {
                tracing::error!("{what}");
                self.tell.faults.send_replace(Some(format!(
                    "the ledger can not be written: {what}; make room on the data partition or check the disk"
                )));
                Err(CommitError::NotDone(what))
            }
            Err(CommitError::InDoubt(what)) => Err(CommitError::InDoubt(self.stop(what))),
        }
    }

    fn publish(&mut self, next: Arc<Ledger>) {
        let durable_news = next.generation != self.ledger.generation;
        if !durable_news && !Arc::ptr_eq(&next, &self.ledger) && !next.devices.ptr_eq(&self.ledger.devices) {
            self.dirty_since.get_or_insert_with(tokio::time::Instant::now);
        }
        self.ledger = Arc::clone(&next);
        // A refresh is there for whoever looks, but wakes nobody.
        self.tell.snapshots.send_if_modified(|snapshot| {
            *snapshot = next;
            durable_news
        });
    }

    fn answer(&self, one: Applied, failed: Option<&CommitError>) {
        let Applied { submission_done, events, is_news, result, snapshot } = one;
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
                            generation: snapshot.generation,
                            verb,
                            device: *device,
                            object: object.clone(),
                        });
                    }
                }
                (outcome.word(), Ok((outcome, snapshot)))
            }
            (None, Err(rejected)) => (rejected.code, Err(SubmitError::Rejected(rejected))),
        };
        if !matches!(answer, Ok((Outcome::Refreshed, _))) {
            for event in events {
                self.tell.audit.record(Event { result: word.into(), ..event });
            }
        }
        // Whoever asked may have gone; the change stands all the same.
        let _ = submission_done.send(answer);
    }

    async fn flush(&mut self) {
        if self.dirty_since.is_some() && self.stopped.is_none() && !self.files.as_ref().is_some_and(Files::changed_by_hand) {
            // A failure is in the faults already; the refreshes stay in memory.
            let _ = self.commit(Arc::clone(&self.ledger)).await;
        }
    }
}

fn event(actor: &str, verb: &'static str, device: Option<kurrent_core::id::MacAddr>, object: String, result: &str) -> Event {
    Event { actor: actor.to_owned(), verb, device, object, result: result.to_owned() }
}
