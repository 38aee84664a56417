//! The task that makes the kernel's target follow the ledger: observe, plan, run, observe again.
//!
//! It follows every ledger snapshot, looks at everything again by itself every [`SWEEP`] to repair drift, and tries again with
//! back-off after a failure. In between a pass looks only at what the change is about, so that it costs the same in a large ledger. When the daemon ends, the exports stay: workers must not notice; the next start adopts what is right already.
//! A kernel without target is a fault that is shown, not an end: the rest of the appliance serves.

mod fence;
mod pass;
mod whose;

use crate::shared::SharedRef;
use anyhow::Context;
use kurrent_core::id::Nqn;
use kurrent_core::ledger::Ledger;
use kurrent_core::stage1;
use kurrent_core::target::tree::{Keys, NAMESPACE_ID, Observed};
use kurrent_sys::configfs::Nvmet;
use pass::Follower;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How often the tree is looked at although nothing changed.
const SWEEP: Duration = Duration::from_secs(10);
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LONGEST_RETRY: Duration = Duration::from_secs(5);

/// One exported disk as read back from the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Export {
    /// Disk NQN.
    pub subsystem: String,
    /// The one host that may connect.
    pub host: String,
    /// Backing file.
    pub path: String,
}

/// Who is connected: TCP connections to the port, by address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Session {
    /// The worker's address.
    pub address: Ipv4Addr,
    /// One admin queue and its I/O queues.
    pub connections: usize,
}

/// What the kernel was seen to do, after the latest pass.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Observation {
    /// The ledger generation that was followed; with no faults it is reached.
    pub generation: u64,
    /// Whether a pass was made at all since the start.
    pub looked: bool,
    /// Prefix of the names that are ours.
    #[serde(skip)]
    pub base: String,
    /// Who is connected.
    pub sessions: Vec<Session>,
    /// Why this kernel can export nothing at all, when it has no target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_target: Option<String>,
    /// What stands in the way, in words.
    pub faults: Vec<String>,
    /// For faults about one disk: the generation that first had them.
    #[serde(skip)]
    pub fault_since: BTreeMap<String, u64>,
    /// The tree itself.
    #[serde(skip)]
    pub tree: Observed,
}

impl Observation {
    /// Disks that are exported, read back.
    #[must_use]
    pub fn exports(&self) -> Vec<Export> {
        let links = self.tree.port.iter().flat_map(|p| &p.links);
        links.filter_map(|name| self.export(name)).collect()
    }

    /// How this disk is exported, if it is.
    #[must_use]
    pub fn export(&self, subsystem: &str) -> Option<Export> {
        let linked = self.tree.port.as_ref().is_some_and(|p| p.links.contains(subsystem));
        let is = self.tree.subsystems.get(subsystem).filter(|_| linked && subsystem.starts_with(&self.base))?;
        let namespace = is.namespaces.get(&NAMESPACE_ID).filter(|n| n.enabled)?;
        let host = is.allowed.first().cloned().unwrap_or_default();
        Some(Export { subsystem: subsystem.to_owned(), host, path: namespace.path.clone() })
    }

    /// The faults that a change at `generation` may have to do with: not those of disks that were broken before it.
    fn blocking(&self, generation: u64) -> impl Iterator<Item = &str> {
        self.faults.iter().filter(move |f| self.fault_since.get(*f).is_none_or(|since| *since >= generation)).map(String::as_str)
    }
}

/// How the rest of the daemon asks about the target; [`serve`] publishes through it.
#[derive(Clone)]
pub struct TargetHandle(Arc<watch::Sender<Arc<Observation>>>);

impl Default for TargetHandle {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Arc::default())))
    }
}

impl TargetHandle {
    /// The latest observation.
    #[must_use]
    pub fn observation(&self) -> Arc<Observation> {
        self.0.borrow().clone()
    }

    /// Waits until the kernel has followed the ledger up to `generation`: access that it takes away is cut and read back.
    ///
    /// # Errors
    /// In words, why not yet; the reconciler goes on trying.
    pub async fn settled(&self, generation: u64, deadline: Duration) -> Result<(), String> {
        let mut observations = self.0.subscribe();
        let reached = observations.wait_for(|o| o.looked && o.generation >= generation && o.blocking(generation).next().is_none());
        match tokio::time::timeout(deadline, reached).await {
            Ok(Ok(_)) => Ok(()),
            // The sender lives in `self`, so the wait itself does not fail.
            Ok(Err(_)) | Err(_) => {
                let seen = self.observation();
                let why: Vec<&str> = seen.blocking(generation).collect();
                if !why.is_empty() {
                    return Err(why.join("; "));
                }
                Err(format!("the target has followed generation {} of {generation} so far", seen.generation))
            }
        }
    }

    /// Waits until a pass has followed the ledger up to `generation`, whatever came of it: [`TargetHandle::ready`] tells of one disk.
    ///
    /// # Errors
    /// In words: it has not been made yet.
    pub async fn followed(&self, generation: u64, deadline: Duration) -> Result<(), String> {
        let mut observations = self.0.subscribe();
        let reached = observations.wait_for(|o| o.looked && o.generation >= generation);
        // The sender lives in `self`, so the wait itself does not fail.
        let made = tokio::time::timeout(deadline, reached).await.is_ok_and(|seen| seen.is_ok());
        made.then_some(()).ok_or_else(|| "the target has not followed yet".to_owned())
    }

    /// Whether the kernel exports what these boot credentials open, to exactly this host with exactly these secrets.
    ///
    /// # Errors
    /// In words, for the worker's console.
    pub fn ready(&self, credentials: &stage1::Credentials) -> Result<(), String> {
        let keys = Keys { host: credentials.host_secret.clone(), controller: credentials.controller_secret.clone() };
        if self.is_exported(&credentials.subsystem, &credentials.host, &keys) {
            return Ok(());
        }
        let about = |f: &&String| f.contains(credentials.subsystem.as_str()) || f.contains(credentials.host.as_str());
        let seen = self.observation();
        Err(seen.faults.iter().find(about).or(seen.faults.first()).cloned().unwrap_or_else(|| "the disk is not exported yet".into()))
    }

    pub(crate) fn publish(&self, seen: Observation) {
        self.0.send_replace(Arc::new(seen));
    }

    /// As [`TargetHandle::ready`], by names.
    #[must_use]
    pub fn is_exported(&self, subsystem: &Nqn, host: &Nqn, keys: &Keys) -> bool {
        self.observation().tree.is_exported(subsystem, host, keys)
    }
}

/// What [`serve`] works on; all paths are arguments so that tests can point them elsewhere.
pub struct Kernel {
    /// The target tree.
    pub nvmet: Nvmet,
    /// The kernel's list of TCP connections.
    pub tcp: PathBuf,
}

impl Kernel {
    /// The running kernel's.
    #[must_use]
    pub fn real() -> Self {
        Self { nvmet: Nvmet::real(), tcp: kurrent_sys::sockets::PROC_NET_TCP.into() }
    }
}

/// Follows the ledger until the daemon ends.
///
/// # Errors
/// A pass ended by a panic; to be started again.
pub async fn serve(shared: SharedRef, kernel: Kernel) -> anyhow::Result<()> {
    if shared.ledger.unreadable() {
        // Its snapshot is empty, and emptiness would withdraw everything: what the kernel exports goes on as it is.
        return Ok(());
    }
    let mut ledgers = shared.ledger.watch();
    let local = SocketAddrV4::new(shared.config.boot_network.address, shared.config.agent.target_port);
    let mut follower = Follower::new(kernel, shared.credentials.clone(), local);
    let mut retry = FIRST_RETRY;
    loop {
        let ledger: Arc<Ledger> = ledgers.borrow_and_update().clone();
        let handed = shared.clone();
        // configfs writes wait for I/O in flight: never on an async thread.
        let pass = tokio::task::spawn_blocking(move || {
            let seen = follower.pass(&handed.config, &ledger, &handed.leases.load_full());
            (follower, seen)
        });
        let (back, seen) = pass.await.context("following the ledger")?;
        follower = back;
        let faulty = !seen.faults.is_empty();
        match seen.faults.as_slice() {
            [] => shared.faults.clear("target"),
            faults => shared.faults.set("target", faults.join("; ")),
        }
        shared.target.publish(seen);
        let wait = if faulty { retry } else { follower.sweep_in() };
        retry = if faulty { (retry * 2).min(LONGEST_RETRY) } else { FIRST_RETRY };
        tokio::select! {
            changed = ledgers.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
            }
            () = tokio::time::sleep(wait) => {}
        }
    }
}

#[cfg(test)]
mod tests;
