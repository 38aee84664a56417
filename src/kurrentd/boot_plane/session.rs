//! Each granted boot is a session of its own: a new epoch, so another host NQN and other secrets than every boot before it.
//!
//! ```text
//! the disk is exported to the present epoch --> new epoch, durable --> the reconciler cuts who is connected, sees it gone, allows
//! the new host --> the credentials are sealed
//! ```
//! The kernel accepts two controllers of one host NQN. A copy of a machine (both firmware stores, the same MAC address) proves the
//! same key; it must not come to write beside the first one. Nobody can tell a copy from the machine itself after a power cut, so
//! the latest boot wins, and the earlier one is cut before the later one is told anything.

use crate::credentials::{self, BootFacts};
use crate::shared::SharedRef;
use kurrent_core::ledger::{Change, Ledger};
use kurrent_core::stage1::Credentials;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// Makes the credentials of a granted boot; says in words why not yet.
pub type Issue = Arc<dyn Fn(SharedRef, Arc<Ledger>, BootFacts) -> Issuing + Send + Sync>;
/// The credentials, once everybody else is out.
pub type Issuing = Pin<Box<dyn Future<Output = Result<Credentials, String>> + Send>>;

/// A cut takes milliseconds; the reconciler itself gives connections three seconds to go. Firmware waits longer for an answer.
const CUT_WITHIN: Duration = Duration::from_secs(5);

/// [`begin`], as the boot plane takes it.
#[must_use]
pub fn issue() -> Issue {
    Arc::new(|shared, ledger, facts| Box::pin(begin(shared, ledger, facts)))
}

/// Begins a session: returns when the kernel exports the disk to exactly it, and what an earlier boot had is seen to be gone.
///
/// # Errors
/// In words, for the worker's console. Nobody is cut while the disk could not be given to the new session anyway.
pub async fn begin(shared: SharedRef, ledger: Arc<Ledger>, facts: BootFacts) -> Result<Credentials, String> {
    let present = credentials::for_boot(&shared.credentials, &shared.config, &ledger, &facts).map_err(|e| e.to_string())?;
    shared.target.ready(&present)?;
    let epoch = ledger.device(facts.mac).map_or(0, |device| device.epoch);
    let change = Change::Boot { mac: facts.mac, worker: present.worker, epoch };
    let (_, ledger) = shared.ledger.submit(change, &format!("device {}", facts.mac)).await.map_err(|e| e.to_string())?;
    shared.target.followed(ledger.generation, CUT_WITHIN).await?;
    let session = credentials::for_boot(&shared.credentials, &shared.config, &ledger, &facts).map_err(|e| e.to_string())?;
    shared.target.ready(&session)?;
    Ok(session)
}
