//! One pass of the reconciler: from a ledger snapshot to what the kernel exports. Blocking.

use super::fence::Fence;
use super::whose::{Addresses, Cuts};
use super::{Kernel, Observation, SWEEP, Session};
use crate::credentials::{CredentialStore, Record};
use crate::shared::LeaseSnapshot;
use crate::storage::image;
use kurrent_core::config::Config;
use kurrent_core::id::{MacAddr, WorkerId, host_nqn};
use kurrent_core::ledger::Ledger;
use kurrent_core::target::plan::{Subject, plan};
use kurrent_core::target::tree::{Desired, Keys, NAMESPACE_ID, Observed, ObservedHost, Port};
use kurrent_core::target::{Step, changed};
use kurrent_sys::configfs::{Nvmet, TargetError};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

/// Carries what must be remembered from pass to pass.
pub struct Follower {
    nvmet: Nvmet,
    credentials: CredentialStore,
    fence: Fence,
    /// With an unusable credentials file: the bindings found at the start, whose keys only the kernel still knows.
    adopted: Option<BTreeSet<Binding>>,
    /// Faults of this pass that are about one host's access: the host and the fault.
    host_faults: Vec<(String, String)>,
    /// The size that the kernel was last told to look at, by subsystem.
    sizes: BTreeMap<String, u64>,
    /// The generation at which a fault (text, host) was first seen.
    faults_since: BTreeMap<(String, String), u64>,
    /// What the next pass may go on from.
    followed: Option<Followed>,
    /// When everything was looked at.
    swept: Instant,
}

/// A pass after which the tree was as the ledger wants it, but for single Workers.
struct Followed {
    ledger: Ledger,
    seen: Observation,
    /// Those Workers.
    broken: BTreeSet<WorkerId>,
}

/// What a pass looks at when it does not look at everything.
struct Part {
    workers: BTreeSet<WorkerId>,
    /// All names that they have or had in the target.
    names: BTreeSet<String>,
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
            followed: None,
            swept: Instant::now(),
            sizes: BTreeMap::new(),
            faults_since: BTreeMap::new(),
        }
    }

    /// After a pass without faults, or with faults of single Workers, only what the ledger says otherwise since then is looked at,
    /// and those Workers: one change costs the same in a small and in a large ledger. Everything is looked at when nothing changed
    /// (drift, another try), when that is due, and whenever the part does not tell enough.
    pub(super) fn pass(&mut self, config: &Config, ledger: &Ledger, leases: &LeaseSnapshot) -> Observation {
        self.host_faults.clear();
        let part = self.part(config, ledger).and_then(|(part, seen)| self.look(config, ledger, leases, Some(&part), seen));
        let mut seen = part.unwrap_or_else(|| {
            self.host_faults.clear();
            self.swept = Instant::now();
            let seen = Observation { base: format!("{}:", config.agent.nqn_base), ..Observation::default() };
            self.look(config, ledger, leases, None, seen).unwrap_or_default()
        });
        self.date_faults(&mut seen);
        let broken = self.broken(config, ledger, &seen);
        self.followed = broken.map(|broken| Followed { ledger: ledger.clone(), seen: seen.clone(), broken });
        seen
    }

    /// When everything is to be looked at again.
    pub(super) fn sweep_in(&self) -> Duration {
        SWEEP.saturating_sub(self.swept.elapsed())
    }

    /// What this pass must look at, and the observation that it goes on from.
    fn part(&self, config: &Config, ledger: &Ledger) -> Option<(Part, Observation)> {
        let last = self.followed.as_ref().filter(|f| f.ledger.generation != ledger.generation && !self.sweep_in().is_zero())?;
        let mut workers = changed::workers(&last.ledger, ledger);
        workers.extend(last.broken.iter().cloned());
        let mut names = changed::names(config, &last.ledger, &workers);
        names.extend(changed::names(config, ledger, &workers));
        Some((Part { workers, names }, Observation { faults: Vec::new(), fault_since: BTreeMap::new(), ..last.seen.clone() }))
    }

    /// The Workers that this pass's faults are of; `None` when they are not only of single Workers.
    fn broken(&self, config: &Config, ledger: &Ledger, seen: &Observation) -> Option<BTreeSet<WorkerId>> {
        if seen.faults.len() != self.host_faults.len() || !self.fence.pending().is_empty() || seen.tree.port.is_none() {
            return None;
        }
        if seen.faults.is_empty() {
            return Some(BTreeSet::new());
        }
        let bound = wanted_keys(ledger, ledger.bound.keys());
        let by_host: BTreeMap<String, WorkerId> =
            bound.into_iter().map(|(worker, epoch, _)| (host_nqn(&config.agent.nqn_base, &worker, epoch).to_string(), worker)).collect();
        self.host_faults.iter().map(|(host, _)| by_host.get(host).cloned()).collect()
    }

    /// One look: at everything, into an empty observation, or at a part of what `seen` has. `None`: the part does not tell enough.
    fn look(
        &mut self,
        config: &Config,
        ledger: &Ledger,
        leases: &LeaseSnapshot,
        part: Option<&Part>,
        mut seen: Observation,
    ) -> Option<Observation> {
        (seen.generation, seen.looked) = (ledger.generation, true);
        let workers = part.map(|p| &p.workers);
        let wanted = workers.map_or_else(|| wanted_keys(ledger, ledger.bound.keys()), |w| wanted_keys(ledger, w));
        if let Err(fault) = self.credentials.ensure(&wanted) {
            // What is exported stays, what is revoked goes; nothing new is opened without secrets.
            seen.faults.push(fault.to_string());
        }
        let (mut looked, mut cuts) = (false, false);
        let names = part.map(|p| &p.names);
        let observed = match names {
            None => self.nvmet.observe().map(|tree| seen.tree = tree),
            Some(names) => self.nvmet.observe_again(names, &mut seen.tree),
        };
        match observed {
            Ok(()) => {
                looked = true;
                let desired = self.desired(config, ledger, &wanted, &seen.tree, workers);
                let before = names.map_or_else(|| seen.tree.clone(), |n| seen.tree.part(n));
                let steps = plan(&desired, &before);
                if part.is_some() && (!seen.faults.is_empty() || port_is_wrong(&desired, &before)) {
                    return None;
                }
                cuts = steps.iter().any(|s| self.is_cut(s, &before).is_some());
                let known = if cuts { self.addresses(config, &wanted, leases, workers) } else { Addresses::default() };
                let mut whose = Cuts::new(&desired, &before, known);
                // Of whom a stranger can be told apart, only a look at everything says.
                if part.is_some()
                    && steps.iter().any(|s| self.is_cut(s, &before).is_some_and(|(s, unseen)| whose.whose(s, unseen).strangers))
                {
                    return None;
                }
                let all = seen.tree.clone();
                self.fence.retain(|s| all.subsystems.contains_key(s));
                self.follow(&desired, &steps, &before, &mut whose, &mut seen);
                self.tell_sizes(ledger, &desired, part, &mut seen);
                if !steps.is_empty()
                    && let Err(fault) = self.read_back(&desired, names, &mut seen)
                {
                    // What it exports now nobody knows.
                    seen.tree = Observed::default();
                    seen.faults.push(fault.to_string());
                }
            }
            Err(_) if part.is_some() => return None,
            Err(fault) => {
                if matches!(fault, TargetError::NotAvailable(_)) {
                    // Nothing is exported and nobody is let in: there is nothing to wait for before secrets go.
                    looked = true;
                    seen.no_target = Some(fault.to_string());
                }
                seen.faults.push(fault.to_string());
            }
        }
        // The list is as long as there are connections: a change that cuts nobody does not need it.
        if cuts || part.is_none() {
            match self.fence.connections() {
                Ok(connections) => seen.sessions = sessions(connections),
                Err(fault) => seen.faults.push(fault),
            }
        }
        // Until the old epoch is fenced its record tells whose connections must go.
        if looked && self.fence.pending().is_empty() {
            let wanted: BTreeSet<&Binding> = wanted.iter().collect();
            let hosted = |r: &Record| seen.tree.hosts.contains_key(host_nqn(&config.agent.nqn_base, &r.worker_id, r.epoch).as_str());
            let kept = |r: &Record| wanted.contains(&(r.worker_id.clone(), r.epoch, r.device)) || hosted(r);
            let retained = workers.map_or_else(|| self.credentials.retain(kept), |w| self.credentials.retain_of(w, kept));
            if let Err(fault) = retained {
                seen.faults.push(fault.to_string());
            }
        }
        Some(seen)
    }

    /// The subsystem of a step before which must be noted who is connected, and whether it was cut without us.
    fn is_cut<'s>(&self, step: &'s Step, before: &Observed) -> Option<(&'s str, bool)> {
        match step {
            Step::Unlink(s) => Some((s, false)),
            // Cut by somebody else, before this daemon started or by hand: who was connected nobody has noted.
            Step::ConfirmCut(s) if before.subsystems.contains_key(s) && !self.fence.knows(s) => Some((s, true)),
            _ => None,
        }
    }

    /// Has the kernel look again at disks that were enlarged. After a start at all of them: a crash may have come between the
    /// record and this. One whose size is the same is not touched by it.
    fn tell_sizes(&mut self, ledger: &Ledger, desired: &Desired, part: Option<&Part>, seen: &mut Observation) {
        let workers: Vec<_> =
            part.map_or_else(|| ledger.workers.values().collect(), |p| p.workers.iter().filter_map(|w| ledger.workers.get(w)).collect());
        let disks = workers.iter().flat_map(|w| &w.disks);
        let sizes: BTreeMap<&str, u64> = disks.map(|d| (d.nqn.as_str(), d.size_bytes)).collect();
        let is_there = |subsystem: &String| desired.subsystems.contains_key(subsystem);
        match part {
            None => self.sizes.retain(|subsystem, _| is_there(subsystem)),
            Some(part) => part.names.iter().filter(|n| !is_there(n)).for_each(|n| _ = self.sizes.remove(n)),
        }
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

    fn desired(
        &mut self,
        config: &Config,
        ledger: &Ledger,
        wanted: &[Binding],
        before: &Observed,
        workers: Option<&BTreeSet<WorkerId>>,
    ) -> Desired {
        let unusable = self.credentials.fault().is_some();
        let adopted = self.adopted.get_or_insert_with(|| wanted.iter().cloned().collect());
        let keys = |worker: &WorkerId, epoch: u64| {
            let binding = (worker.clone(), epoch, *ledger.bound.get(worker)?);
            if unusable && adopted.contains(&binding) {
                // A damaged file must not cut a running worker; the kernel knows the keys it was given.
                return before.hosts.get(host_nqn(&config.agent.nqn_base, worker, epoch).as_str())?.keys.clone();
            }
            self.credentials.of(&binding.0, epoch, binding.2).map(|r| r.keys())
        };
        match workers {
            None => Desired::from_ledger(config, ledger, keys),
            Some(workers) => Desired::of_workers(config, ledger, workers, keys),
        }
    }

    fn follow(&mut self, desired: &Desired, steps: &[Step], before: &Observed, whose: &mut Cuts<'_>, seen: &mut Observation) {
        let mut failed: BTreeSet<Subject<'_>> = BTreeSet::new();
        let mut asked: BTreeSet<&str> = BTreeSet::new();
        for step in steps {
            if step.needs().any(|n| failed.contains(&n)) {
                // What follows about the same thing is built on it: no link when the host could not be allowed.
                failed.insert(step.subject());
                continue;
            }
            if let Some((s, unseen)) = self.is_cut(step, before) {
                self.fence.cut(s, whose.whose(s, unseen));
            }
            if let Step::ConfirmCut(s) = step {
                asked.insert(s);
            }
            match self.run(step, desired) {
                Ok(()) => tracing::info!("target: {step}"),
                Err(fault) => {
                    let text = format!("{step}: {fault}");
                    let host = match step.subject() {
                        Subject::Subsystem(s) => Some(desired.subsystems.get(s).map(|s| s.host.clone()).unwrap_or_default()),
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

    /// Where every device that may be connected is known to be; of `workers`, or of all.
    fn addresses(&self, config: &Config, wanted: &[Binding], leases: &LeaseSnapshot, workers: Option<&BTreeSet<WorkerId>>) -> Addresses {
        let records = workers.map_or_else(|| self.credentials.all(), |w| self.credentials.of_workers(w));
        // With an unusable credentials file only the ledger tells who is who.
        let unrecorded = wanted
            .iter()
            .filter(|_| self.credentials.fault().is_some())
            .map(|(worker, epoch, device)| (host_nqn(&config.agent.nqn_base, worker, *epoch).to_string(), *device));
        Addresses::new(&config.agent.nqn_base, &records, unrecorded.collect(), leases)
    }

    /// "Exported" means read back from the kernel, not that a step was run. What was seen before is that when none was.
    fn read_back(&self, desired: &Desired, part: Option<&BTreeSet<String>>, seen: &mut Observation) -> Result<(), TargetError> {
        let still = match part {
            None => {
                seen.tree = self.nvmet.observe()?;
                plan(desired, &seen.tree)
            }
            Some(names) => {
                self.nvmet.observe_again(names, &mut seen.tree)?;
                plan(desired, &seen.tree.part(names))
            }
        };
        if seen.faults.is_empty()
            && let Some(step) = still.first()
        {
            seen.faults.push(format!("the kernel did not keep what it was told: still to do: {step}"));
        }
        Ok(())
    }
}

/// Connections by address.
fn sessions(connections: Vec<SocketAddrV4>) -> Vec<Session> {
    let mut by_address: BTreeMap<Ipv4Addr, usize> = BTreeMap::new();
    for connection in connections {
        *by_address.entry(*connection.ip()).or_default() += 1;
    }
    by_address.into_iter().map(|(address, connections)| Session { address, connections }).collect()
}

/// The secrets that these Workers must have, those that are bound.
fn wanted_keys<'a>(ledger: &Ledger, workers: impl IntoIterator<Item = &'a WorkerId>) -> Vec<Binding> {
    let bound = workers.into_iter().filter(|w| ledger.workers.contains_key(*w)).filter_map(|w| Some((w, *ledger.bound.get(w)?)));
    bound.filter_map(|(worker, mac)| Some((worker.clone(), ledger.device(mac)?.epoch, mac))).collect()
}

/// Whether there is more to do than with a part of what is linked to it.
fn port_is_wrong(desired: &Desired, is: &Observed) -> bool {
    is.port.as_ref().map(|p| &p.address) != desired.port.as_ref().map(Port::attributes).as_ref()
}
