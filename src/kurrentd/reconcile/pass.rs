//! One pass of the reconciler: from a ledger snapshot to what the kernel exports. Blocking.

use super::fence::{Fence, Whose};
use super::{Export, Kernel, Observation, Session};
use crate::credentials::{CredentialStore, Record};
use crate::shared::LeaseSnapshot;
use crate::storage::image;
use kurrent_core::config::Config;
use kurrent_core::id::{MacAddr, WorkerId, host_nqn};
use kurrent_core::ledger::Ledger;
use kurrent_core::target::Step;
use kurrent_core::target::plan::{Subject, plan};
use kurrent_core::target::tree::{Desired, Keys, NAMESPACE_ID, Observed, ObservedHost};
use kurrent_sys::configfs::{Nvmet, TargetError};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};

/// Carries what must be remembered from pass to pass.
pub struct Follower {
    nvmet: Nvmet,
    credentials: CredentialStore,
    fence: Fence,
    /// With an unusable credentials file: the bindings found at the start, whose keys only the kernel still knows.
    adopted: Option<BTreeSet<Binding>>,
    /// Faults of this pass that are about one host's access: the host and the fault.
    host_faults: Vec<(String, String)>,
    /// The host that each subsystem should have.
    hosts_wanted: BTreeMap<String, String>,
    /// The size that the kernel was last told to look at, by subsystem.
    sizes: BTreeMap<String, u64>,
    /// The generation at which a fault (text, host) was first seen.
    faults_since: BTreeMap<(String, String), u64>,
}

type Binding = (WorkerId, u64, MacAddr);

impl Follower {
    pub(super) fn new(kernel: Kernel, credentials: CredentialStore, local: SocketAddrV4) -> Self {
        Self {
            nvmet: kernel.nvmet,
            credentials,
            fence: Fence::new(kernel.tcp, local),
            adopted: None,
            host_faults: Vec::new(),
            hosts_wanted: BTreeMap::new(),
            sizes: BTreeMap::new(),
            faults_since: BTreeMap::new(),
        }
    }

    pub(super) fn pass(&mut self, config: &Config, ledger: &Ledger, leases: &LeaseSnapshot) -> Observation {
        let mut seen = Observation { generation: ledger.generation, looked: true, ..Observation::default() };
        let wanted = wanted_keys(ledger);
        if let Err(fault) = self.credentials.ensure(&wanted) {
            // What is exported stays, what is revoked goes; nothing new is opened without secrets.
            seen.faults.push(fault.to_string());
        }
        self.host_faults.clear();
        let mut looked = false;
        match self.nvmet.observe() {
            Ok(before) => {
                looked = true;
                let desired = self.desired(config, ledger, &wanted, &before);
                let known = self.addresses(config, &wanted, leases);
                self.follow(&desired, &before, &known, &mut seen);
                self.tell_sizes(ledger, &desired, &mut seen);
                self.read_back(&desired, &mut seen);
            }
            Err(fault) => {
                if matches!(fault, TargetError::NotAvailable(_)) {
                    // Nothing is exported and nobody is let in: there is nothing to wait for before secrets go.
                    looked = true;
                    seen.no_target = Some(fault.to_string());
                }
                seen.faults.push(fault.to_string());
            }
        }
        match self.fence.connections() {
            Ok(connections) => seen.sessions = sessions(connections),
            Err(fault) => seen.faults.push(fault),
        }
        // Until the old epoch is fenced its record tells whose connections must go.
        if looked && self.fence.pending().is_empty() {
            let wanted: BTreeSet<&Binding> = wanted.iter().collect();
            let hosted = |r: &Record| seen.tree.hosts.contains_key(host_nqn(&config.agent.nqn_base, &r.worker_id, r.epoch).as_str());
            let kept = |r: &Record| hosted(r) || wanted.contains(&(r.worker_id.clone(), r.epoch, r.device));
            if let Err(fault) = self.credentials.retain(kept) {
                seen.faults.push(fault.to_string());
            }
        }
        self.date_faults(&mut seen);
        seen
    }

    /// Has the kernel look again at disks that were enlarged. After a start at all of them: a crash may have come between the
    /// record and this. One whose size is the same is not touched by it.
    fn tell_sizes(&mut self, ledger: &Ledger, desired: &Desired, seen: &mut Observation) {
        let disks = ledger.workers.values().flat_map(|w| &w.disks);
        let sizes: BTreeMap<&str, u64> = disks.map(|d| (d.nqn.as_str(), d.size_bytes)).collect();
        self.sizes.retain(|subsystem, _| desired.subsystems.contains_key(subsystem));
        for (subsystem, wanted) in &desired.subsystems {
            let Some(size) = sizes.get(subsystem.as_str()).filter(|size| self.sizes.get(subsystem) != Some(*size)) else { continue };
            match self.nvmet.revalidate(subsystem, NAMESPACE_ID) {
                Ok(_) => _ = self.sizes.insert(subsystem.clone(), *size),
                Err(fault) => {
                    let text = format!("look at the size of {subsystem} again: {fault}");
                    self.host_faults.push((wanted.host.clone(), text.clone()));
                    seen.faults.push(text);
                }
            }
        }
    }

    /// Since when each fault about one disk has been there, for [`super::TargetHandle::settled`]: one broken disk must not make
    /// every later change of another Worker look unfinished. The host is part of it: a new epoch's fault is a new fault.
    fn date_faults(&mut self, seen: &mut Observation) {
        let mut since = BTreeMap::new();
        for (host, text) in &self.host_faults {
            let key = (text.clone(), host.clone());
            let first = self.faults_since.get(&key).copied().unwrap_or(seen.generation);
            seen.fault_since.insert(text.clone(), first);
            since.insert(key, first);
        }
        self.faults_since = since;
    }

    fn desired(&mut self, config: &Config, ledger: &Ledger, wanted: &[Binding], before: &Observed) -> Desired {
        let unusable = self.credentials.fault().is_some();
        let adopted = self.adopted.get_or_insert_with(|| wanted.iter().cloned().collect());
        Desired::from_ledger(config, ledger, |worker, epoch| {
            let binding = (worker.clone(), epoch, *ledger.bound.get(worker)?);
            if unusable && adopted.contains(&binding) {
                // A damaged file must not cut a running worker; the kernel knows the keys it was given.
                return before.hosts.get(host_nqn(&config.agent.nqn_base, worker, epoch).as_str())?.keys.clone();
            }
            self.credentials.of(&binding.0, epoch, binding.2).map(|r| r.keys())
        })
    }

    fn follow(&mut self, desired: &Desired, before: &Observed, known: &Addresses, seen: &mut Observation) {
        let steps = plan(desired, before);
        self.hosts_wanted = desired.subsystems.iter().map(|(name, s)| (name.clone(), s.host.clone())).collect();
        self.fence.retain(|s| before.subsystems.contains_key(s));
        let mut failed: BTreeSet<Subject<'_>> = BTreeSet::new();
        let mut asked: BTreeSet<&str> = BTreeSet::new();
        for step in &steps {
            if step.needs().any(|n| failed.contains(&n)) {
                // What follows about the same thing is built on it: no link when the host could not be allowed.
                failed.insert(step.subject());
                continue;
            }
            match step {
                Step::Unlink(s) => self.fence.cut(s, whose(desired, before, s, known, false)),
                // Cut by somebody else, before this daemon started or by hand: who was connected nobody has noted.
                Step::ConfirmCut(s) if before.subsystems.contains_key(s) && !self.fence.knows(s) => {
                    self.fence.cut(s, whose(desired, before, s, known, true));
                }
                _ => {}
            }
            if let Step::ConfirmCut(s) = step {
                asked.insert(s);
            }
            match self.run(step, desired) {
                Ok(()) => tracing::info!("target: {step}"),
                Err(fault) => {
                    let text = format!("{step}: {fault}");
                    let host = match step.subject() {
                        Subject::Subsystem(s) => Some(self.hosts_wanted.get(s).cloned().unwrap_or_default()),
                        Subject::Host(h) => Some(h.to_owned()),
                        Subject::Port => None,
                    };
                    self.host_faults.extend(host.map(|h| (h, text.clone())));
                    seen.faults.push(text);
                    failed.insert(step.subject());
                }
            }
        }
        // A withdrawal has no link that would wait for its cut.
        for subsystem in self.fence.pending().iter().filter(|s| !asked.contains(s.as_str())) {
            if let Err(fault) = self.fence.confirm(subsystem) {
                seen.faults.push(format!("{subsystem}: {fault}"));
            }
        }
    }

    fn run(&mut self, step: &Step, desired: &Desired) -> Result<(), String> {
        let kernel = |result: Result<(), TargetError>| result.map_err(|e| e.to_string());
        match step {
            Step::CheckImage(_, path) => image::check_export(path).and_then(|()| image::write_through(path)).map_err(|e| e.to_string()),
            Step::ConfirmCut(subsystem) => self.fence.confirm(subsystem),
            Step::Allow(_, host) => {
                self.has_its_keys(host, desired.hosts.get(host))?;
                kernel(self.nvmet.run(step))
            }
            Step::Link(subsystem) => {
                kernel(self.nvmet.run(step))?;
                self.fence.linked(subsystem);
                Ok(())
            }
            other => kernel(self.nvmet.run(other)),
        }
    }

    /// The kernel lets an allowed host in without asking it anything when it has no key: looked at, not believed.
    fn has_its_keys(&self, host: &str, wanted: Option<&Keys>) -> Result<(), String> {
        let is = self.nvmet.host_now(host).map_err(|e| e.to_string())?;
        if wanted.is_some_and(|keys| is == ObservedHost::with(keys)) {
            Ok(())
        } else {
            Err(format!("the kernel does not have the keys of {host}; it would let anybody in under that name"))
        }
    }

    /// Where every device that may be connected is known to be: by what its boots were granted, and by its lease.
    fn addresses(&self, config: &Config, wanted: &[Binding], leases: &LeaseSnapshot) -> Addresses {
        let records = self.credentials.all();
        let leased = |device: MacAddr| leases.iter().filter(move |(_, mac)| **mac == device).map(|(ip, _)| *ip);
        let of_record = |r: &Record| {
            let host = host_nqn(&config.agent.nqn_base, &r.worker_id, r.epoch).to_string();
            (host, Some(r.keys()), r.addresses.iter().copied().chain(leased(r.device)).collect())
        };
        // With an unusable credentials file only the ledger tells who is who.
        let unrecorded = wanted
            .iter()
            .filter(|_| self.credentials.fault().is_some())
            .map(|(worker, epoch, device)| (host_nqn(&config.agent.nqn_base, worker, *epoch).to_string(), None, leased(*device).collect()));
        Addresses(records.iter().map(of_record).chain(unrecorded).collect())
    }

    /// "Exported" means read back from the kernel, not that a step was run.
    fn read_back(&self, desired: &Desired, seen: &mut Observation) {
        let after = match self.nvmet.observe() {
            Ok(after) => after,
            Err(fault) => return seen.faults.push(fault.to_string()),
        };
        if seen.faults.is_empty()
            && let Some(step) = plan(desired, &after).first()
        {
            seen.faults.push(format!("the kernel did not keep what it was told: still to do: {step}"));
        }
        let linked = after.port.as_ref().map(|p| p.links.clone()).unwrap_or_default();
        for (name, subsystem) in after.subsystems.iter().filter(|(n, _)| desired.owns(n) && linked.contains(*n)) {
            let Some(namespace) = subsystem.namespaces.get(&NAMESPACE_ID).filter(|n| n.enabled) else { continue };
            let host = subsystem.allowed.first().cloned().unwrap_or_default();
            seen.exports.push(Export { subsystem: name.clone(), host, path: namespace.path.clone() });
        }
        seen.tree = after;
    }
}

/// Host, its keys where they are known, and its addresses.
struct Addresses(Vec<(String, Option<Keys>, BTreeSet<Ipv4Addr>)>);

impl Addresses {
    /// Those of the host that the kernel knows by this name and these keys: two devices may have had one name in turn.
    fn of(&self, host: &str, keys: Option<&Keys>) -> BTreeSet<Ipv4Addr> {
        let same = |name: &str, known: &Option<Keys>| name == host && known.as_ref().is_none_or(|k| Some(k) == keys);
        self.0.iter().filter(|(name, known, _)| same(name, known)).flat_map(|(_, _, addresses)| addresses).copied().collect()
    }
}

/// Whose connections a cut of `subsystem` must have ended: those of the hosts that lose it. `unseen`: it was cut without us, so
/// that others than those still on its list may have had it.
fn whose(desired: &Desired, before: &Observed, subsystem: &str, known: &Addresses, unseen: bool) -> Whose {
    let keys = |host: &str| before.hosts.get(host).and_then(|h| h.keys.as_ref());
    let stays = |host: &str| desired.hosts.get(host).is_some_and(|wanted| keys(host) == Some(wanted));
    let mut whose = Whose { strangers: unseen, ..Whose::default() };
    whose.staying = before.hosts.keys().filter(|h| stays(h)).flat_map(|h| known.of(h, keys(h))).collect();
    let Some(is) = before.subsystems.get(subsystem) else { return whose };
    whose.strangers |= is.allow_any || is.allowed.is_empty();
    for host in is.allowed.iter().filter(|h| !stays(h)) {
        let addresses = known.of(host, keys(host));
        whose.strangers |= addresses.is_empty();
        whose.addresses.extend(addresses);
    }
    whose
}

/// Connections by address.
fn sessions(connections: Vec<SocketAddrV4>) -> Vec<Session> {
    let mut by_address: BTreeMap<Ipv4Addr, usize> = BTreeMap::new();
    for connection in connections {
        *by_address.entry(*connection.ip()).or_default() += 1;
    }
    by_address.into_iter().map(|(address, connections)| Session { address, connections }).collect()
}

/// The secrets that every bound Worker must have.
fn wanted_keys(ledger: &Ledger) -> Vec<Binding> {
    let bound = ledger.bound.iter().filter(|(worker, _)| ledger.workers.contains_key(*worker));
    bound.filter_map(|(worker, mac)| Some((worker.clone(), ledger.device(*mac)?.epoch, *mac))).collect()
}
