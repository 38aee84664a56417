//! One pass of the reconciler: from a ledger snapshot to what the kernel exports. Blocking.

use super::{Export, Kernel, Observation, Session};
use crate::credentials::{CredentialStore, Record};
use crate::shared::LeaseSnapshot;
use crate::storage::image;
use kurrent_core::config::Config;
use kurrent_core::id::{MacAddr, WorkerId, host_nqn};
use kurrent_core::ledger::Ledger;
use kurrent_core::target::Step;
use kurrent_core::target::plan::{Subject, plan};
use kurrent_core::target::tree::{Desired, NAMESPACE_ID, Observed};
use kurrent_sys::sockets;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

/// How long the connections of a cut controller may take to go. The kernel does it in milliseconds.
const CUT_DEADLINE: Duration = Duration::from_secs(3);
const CUT_POLL: Duration = Duration::from_millis(20);

/// Carries what must be remembered from pass to pass.
pub struct Follower {
    kernel: Kernel,
    credentials: CredentialStore,
    local: SocketAddrV4,
    /// Connections that a subsystem's cut must have ended, by subsystem. Kept until they are seen gone.
    fences: BTreeMap<String, BTreeSet<SocketAddrV4>>,
    /// With an unusable credentials file: the bindings found at the start, whose keys only the kernel still knows.
    adopted: Option<BTreeSet<Binding>>,
    /// Faults of this pass that are about one subsystem.
    disk_faults: Vec<(String, String)>,
    /// The host that each subsystem should have.
    hosts_wanted: BTreeMap<String, String>,
    /// The generation at which a fault (text, host) was first seen.
    faults_since: BTreeMap<(String, String), u64>,
}

type Binding = (WorkerId, u64, MacAddr);

impl Follower {
    pub(super) fn new(kernel: Kernel, credentials: CredentialStore, local: SocketAddrV4) -> Self {
        Self {
            kernel,
            credentials,
            local,
            fences: BTreeMap::new(),
            adopted: None,
            disk_faults: Vec::new(),
            hosts_wanted: BTreeMap::new(),
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
        self.disk_faults.clear();
        let mut looked = false;
        match self.kernel.nvmet.observe() {
            Ok(before) => {
                looked = true;
                let desired = self.desired(config, ledger, &wanted, &before);
                self.follow(config, &desired, &before, leases, &mut seen);
                self.read_back(&desired, &mut seen);
            }
            Err(fault) => seen.faults.push(fault.to_string()),
        }
        seen.sessions = self.sessions();
        // Until the old epoch is fenced its record tells whose connections must go.
        if looked && self.fences.is_empty() {
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

    /// Since when each fault about one disk has been there, for [`super::TargetHandle::settled`]: one broken disk must not make
    /// every later change of another Worker look unfinished. The host is part of it: a new epoch's fault is a new fault.
    fn date_faults(&mut self, seen: &mut Observation) {
        let mut since = BTreeMap::new();
        for (subsystem, text) in &self.disk_faults {
            let host = self.hosts_wanted.get(subsystem).cloned().unwrap_or_default();
            let key = (text.clone(), host);
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

    fn follow(&mut self, config: &Config, desired: &Desired, before: &Observed, leases: &LeaseSnapshot, seen: &mut Observation) {
        let steps = plan(desired, before);
        let promised = self.credentials.all();
        self.hosts_wanted = desired.subsystems.iter().map(|(name, s)| (name.clone(), s.host.clone())).collect();
        let mut failed: BTreeSet<(u8, String)> = BTreeSet::new();
        for step in &steps {
            if failed.contains(&subject(step)) {
                continue;
            }
            if let Step::Unlink(subsystem) = step {
                self.remember_connections(config, desired, before, subsystem, &promised, leases);
            }
            match self.run(step) {
                Ok(()) => tracing::info!("target: {step}"),
                Err(fault) => {
                    let text = format!("{step}: {fault}");
                    if let Subject::Subsystem(subsystem) = step.subject() {
                        self.disk_faults.push((subsystem.to_owned(), text.clone()));
                    }
                    seen.faults.push(text);
                    failed.insert(subject(step));
                }
            }
        }
        // A withdrawal has no link that would wait for its cut.
        let pending: Vec<String> = self.fences.keys().cloned().collect();
        for subsystem in pending {
            if let Err(fault) = self.confirm_cut(&subsystem) {
                seen.faults.push(format!("{subsystem}: {fault}"));
            }
        }
    }

    fn run(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::CheckImage(_, path) => image::check_export(path).and_then(|()| image::write_through(path)).map_err(|e| e.to_string()),
            Step::ConfirmCut(subsystem) => self.confirm_cut(subsystem),
            other => self.kernel.nvmet.run(other).map_err(|e| e.to_string()),
        }
    }

    /// Notes the live connections of hosts that lose this subsystem, so that their end can be confirmed.
    fn remember_connections(
        &mut self,
        config: &Config,
        desired: &Desired,
        before: &Observed,
        subsystem: &str,
        promised: &[Record],
        leases: &LeaseSnapshot,
    ) {
        let Some(is) = before.subsystems.get(subsystem) else { return };
        let stays = |h: &str| desired.hosts.get(h).is_some_and(|k| before.hosts.get(h).is_some_and(|o| o.keys.as_ref() == Some(k)));
        let name = |r: &Record| host_nqn(&config.agent.nqn_base, &r.worker_id, r.epoch);
        let losing = |r: &&Record| {
            let host = name(r);
            is.allowed.contains(host.as_str())
                && !stays(host.as_str())
                && before.hosts.get(host.as_str()).is_some_and(|o| o.keys == Some(r.keys()))
        };
        let devices: BTreeSet<MacAddr> = promised.iter().filter(losing).map(|r| r.device).collect();
        let addresses: BTreeSet<Ipv4Addr> = leases.iter().filter(|(_, mac)| devices.contains(mac)).map(|(ip, _)| *ip).collect();
        let open = self.connections().into_iter().filter(|c| addresses.contains(c.ip()));
        self.fences.entry(subsystem.to_owned()).or_default().extend(open);
    }

    fn confirm_cut(&mut self, subsystem: &str) -> Result<(), String> {
        let Some(cut) = self.fences.get(subsystem) else { return Ok(()) };
        let started = Instant::now();
        loop {
            let open = self.connections();
            let left = cut.iter().filter(|c| open.contains(c)).count();
            if left == 0 {
                self.fences.remove(subsystem);
                return Ok(());
            }
            if started.elapsed() >= CUT_DEADLINE {
                return Err(format!("{left} connections of the old epoch are still open"));
            }
            std::thread::sleep(CUT_POLL);
        }
    }

    fn connections(&self) -> Vec<SocketAddrV4> {
        sockets::established(&self.kernel.tcp, self.local).unwrap_or_default()
    }

    fn sessions(&self) -> Vec<Session> {
        let mut by_address: BTreeMap<Ipv4Addr, usize> = BTreeMap::new();
        for connection in self.connections() {
            *by_address.entry(*connection.ip()).or_default() += 1;
        }
        by_address.into_iter().map(|(address, connections)| Session { address, connections }).collect()
    }

    /// "Exported" means read back from the kernel, not that a step was run.
    fn read_back(&self, desired: &Desired, seen: &mut Observation) {
        let after = match self.kernel.nvmet.observe() {
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

fn subject(step: &Step) -> (u8, String) {
    match step.subject() {
        Subject::Port => (0, String::new()),
        Subject::Host(h) => (1, h.to_owned()),
        Subject::Subsystem(s) => (2, s.to_owned()),
    }
}

/// The secrets that every bound Worker must have.
fn wanted_keys(ledger: &Ledger) -> Vec<Binding> {
    let bound = ledger.bound.iter().filter(|(worker, _)| ledger.workers.contains_key(*worker));
    bound.filter_map(|(worker, mac)| Some((worker.clone(), ledger.device(*mac)?.epoch, *mac))).collect()
}
