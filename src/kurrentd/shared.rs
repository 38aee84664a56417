//! What every task of the daemon is handed: snapshots to read, and the few ways to make something happen.

use crate::audit::Audit;
use crate::credentials::CredentialStore;
use crate::ledger::LedgerHandle;
use crate::reconcile::TargetHandle;
use crate::storage::Storage;
use crate::timelines::Timelines;
use arc_swap::ArcSwap;
use kurrent_core::config::Config;
use kurrent_core::id::MacAddr;
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

/// Which MAC holds which address now, published by the lease owner after every change.
pub type LeaseSnapshot = HashMap<Ipv4Addr, MacAddr>;

/// Handed to every task; cheap to clone through `Arc`.
pub struct Shared {
    /// The checked `kurrent.yaml`.
    pub config: Config,
    /// Snapshots of, and changes to, the ledgers.
    pub ledger: LedgerHandle,
    /// Address to MAC, for TFTP and HTTP, whose clients have only an address.
    pub leases: ArcSwap<LeaseSnapshot>,
    /// Boot timelines.
    pub timelines: Timelines,
    /// The audit.
    pub audit: Audit,
    /// Data plane secrets.
    pub credentials: CredentialStore,
    /// Masters and disks.
    pub storage: Storage,
    /// What the kernel exports.
    pub target: TargetHandle,
    /// The appliance's Ed25519 identity (`state/secrets/server.key`).
    pub server_key: ed25519_dalek::SigningKey,
}

impl Shared {
    /// Whether whoever has this address is to be answered by silence.
    #[must_use]
    pub fn is_revoked_address(&self, address: Ipv4Addr) -> bool {
        self.leases.load().get(&address).is_some_and(|mac| self.ledger.snapshot().is_revoked(*mac))
    }
}

/// An `Arc` of [`Shared`].
pub type SharedRef = Arc<Shared>;
