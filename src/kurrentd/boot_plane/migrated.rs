//! A device that proves itself as the new one of a migrated Worker (K31).

use super::BootPlane;
use crate::ledger::SubmitError;
use kurrent_core::boot::Refusal;
use kurrent_core::id::{MacAddr, WorkerId};
use kurrent_core::ledger::{Change, Ledger};

impl BootPlane {
    /// Before a boot is granted: when its Worker is on its way to this device it has arrived now, and that is durable before the
    /// device hears of it. So a device that boots never loses the Worker again because somebody waited for its proof, and one that
    /// came too late is granted nothing.
    pub(super) async fn settle_migration(&self, ledger: &Ledger, id: &WorkerId, mac: MacAddr) -> Result<(), Refusal> {
        let worker = ledger.workers.get(id).filter(|_| ledger.migrating.contains(id));
        let Some(note) = worker.and_then(|w| w.migration.clone()) else { return Ok(()) };
        let change = Change::EndMigration { worker: id.clone(), note };
        match self.shared.ledger.submit(change, &format!("device {mac}")).await {
            Ok(_) => Ok(()),
            // Another request of this device was quicker; whoever else ended it gave the Worker away.
            Err(SubmitError::Rejected(_)) if self.shared.ledger.snapshot().bound.get(id) == Some(&mac) => Ok(()),
            Err(SubmitError::Rejected(_)) => Err(Refusal::NotBound),
            Err(error) => {
                tracing::warn!(%mac, worker = %id, %error, "the end of a migration could not be written");
                Err(Refusal::Unavailable)
            }
        }
    }
}
