//! What changes do to a Worker on its way to another device (K31). The note in its record never says otherwise than the binding:
//! whoever binds, unbinds or revokes in the meantime has decided, and the note is gone with what it was about.

use super::{Next, rejected};
use crate::id::WorkerId;
use crate::ledger::change::{Outcome, Rejected};
use crate::ledger::schema::{DeviceState, Migration};
use crate::migrate;

impl Next {
    pub(super) fn migrate(&mut self, worker: &WorkerId, note: Migration, enforcement: bool) -> Result<Outcome, Rejected> {
        if self.worker(worker)?.migration.as_ref() == Some(&note) {
            return Ok(Outcome::Done);
        }
        if let Some(refused) = migrate::obstacles(&self.ledger, worker, note.to, enforcement).into_iter().next() {
            return Err(refused);
        }
        if self.ledger.bound.get(worker).copied() != note.from {
            let detail = format!("Worker {worker} was given to another device meanwhile; look at it and ask again");
            return Err(rejected(409, "worker_bound", detail));
        }
        migrate::check_time(note.since, note.until)?;
        self.bind(note.to, worker, true)?;
        let mut record = self.worker(worker)?;
        record.migration = Some(note);
        self.put_worker(record);
        Ok(Outcome::Done)
    }

    fn noted(&self, id: &WorkerId, note: &Migration) -> Result<(), Rejected> {
        if self.worker(id)?.migration.as_ref() == Some(note) {
            return Ok(());
        }
        let detail = format!("Worker {id} is not on its way to device {} any more; look at it before anything else", note.to);
        Err(rejected(409, "not_migrating", detail))
    }

    pub(super) fn end_migration(&mut self, worker: &WorkerId, note: &Migration) -> Result<Outcome, Rejected> {
        self.noted(worker, note)?;
        self.forget_migration(worker);
        Ok(Outcome::Done)
    }

    pub(super) fn roll_back_migration(&mut self, worker: &WorkerId, note: &Migration) -> Result<Outcome, Rejected> {
        self.noted(worker, note)?;
        let free = |mac| self.ledger.device(mac).is_some_and(|d| d.state == DeviceState::Pooled);
        match note.from.filter(|mac| free(*mac)) {
            // The new binding is written before the old one is cleared, as in every move.
            Some(former) => self.bind(former, worker, true),
            None => self.unbind(note.to),
        }
    }

    /// Takes the note away, when there is one.
    pub(super) fn forget_migration(&mut self, worker: &WorkerId) {
        if let Ok(mut record) = self.worker(worker)
            && record.migration.take().is_some()
        {
            self.put_worker(record);
        }
    }
}
