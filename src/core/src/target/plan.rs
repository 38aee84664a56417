//! From what the kernel exports to what it should: ordered, idempotent steps.
//!
//! Laws, held by the tests below over random trees: after running the plan the next plan is empty; at no point in between is a
//! subsystem linked while a host may reach it that should not; what is right already is not touched, so that running workers
//! notice nothing when the daemon starts again.
//!
//! Closing starts with the port link because that is the step that cuts live controllers (removing an allowed host does not), and
//! because a crash after it leaves the subsystem unreachable rather than half closed. Disabling the namespace then waits for the
//! I/O in flight. Whatever is not linked is closed to the end, namespace and hosts, before it opens: opening begins with the
//! proof that the cut connections are gone, because a controller that the kernel is still tearing down would find the namespace
//! enabled again. It ends with the link, because a worker that reconnects while it is not yet allowed gives up for good.

use super::tree::{
    Desired, Keys, NAMESPACE_ID, Observed, ObservedHost, ObservedNamespace, ObservedPort, ObservedSubsystem, Port, Subsystem,
};
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use uuid::Uuid;

/// One change to the tree. Running it twice does no harm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Removes the port's link: cuts live controllers and keeps everybody out.
    Unlink(String),
    /// Disables a namespace: returns when no I/O is in flight.
    DisableNamespace(String, u32),
    /// Takes a host from `allowed_hosts`.
    Disallow(String, String),
    /// Removes a host and its keys.
    RemoveHost(String),
    /// Removes a namespace.
    RemoveNamespace(String, u32),
    /// Removes a subsystem.
    RemoveSubsystem(String),
    /// Removes the port.
    RemovePort,
    /// Makes the port.
    CreatePort(Port),
    /// Makes a host without keys; it may reach nothing.
    CreateHost(String),
    /// Sets both secrets, hash and group.
    SetKeys(String, Keys),
    /// Makes a subsystem.
    CreateSubsystem(String),
    /// Sets `attr_allow_any_host` to 0.
    ForbidAnyHost(String),
    /// Sets the serial number.
    SetSerial(String, String),
    /// Makes a namespace.
    CreateNamespace(String, u32),
    /// Sets path and identifiers of a disabled namespace, buffered I/O off.
    DescribeNamespace(String, PathBuf, Uuid),
    /// Refuses an image whose partition table no client could read.
    CheckImage(String, PathBuf),
    /// Enables the namespace.
    EnableNamespace(String, u32),
    /// Puts a host into `allowed_hosts`.
    Allow(String, String),
    /// Fails unless the connections that were there when the subsystem was unlinked are gone. Nothing opens before it.
    ConfirmCut(String),
    /// Links the subsystem to the port.
    Link(String),
}

/// What a step is about: when one fails, later steps about the same thing are not run ([`Step::needs`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject<'a> {
    /// The port.
    Port,
    /// A host.
    Host(&'a str),
    /// A subsystem.
    Subsystem(&'a str),
}

impl Step {
    /// See [`Subject`].
    #[must_use]
    pub fn subject(&self) -> Subject<'_> {
        match self {
            Self::RemovePort | Self::CreatePort(_) => Subject::Port,
            Self::RemoveHost(host) | Self::CreateHost(host) | Self::SetKeys(host, _) => Subject::Host(host),
            Self::Unlink(s)
            | Self::DisableNamespace(s, _)
            | Self::Disallow(s, _)
            | Self::RemoveNamespace(s, _)
            | Self::RemoveSubsystem(s)
            | Self::CreateSubsystem(s)
            | Self::ForbidAnyHost(s)
            | Self::SetSerial(s, _)
            | Self::CreateNamespace(s, _)
            | Self::DescribeNamespace(s, _, _)
            | Self::CheckImage(s, _)
            | Self::EnableNamespace(s, _)
            | Self::Allow(s, _)
            | Self::ConfirmCut(s)
            | Self::Link(s) => Subject::Subsystem(s),
        }
    }
}

impl Step {
    /// Everything that must have gone well before this step: when one of these failed, the step may not be run and counts as
    /// failed itself. The kernel asks nothing of an allowed host that has no key, so no host is let in whose own steps failed.
    pub fn needs(&self) -> impl Iterator<Item = Subject<'_>> {
        let other = match self {
            Self::Allow(_, host) => Some(Subject::Host(host)),
            Self::Link(_) => Some(Subject::Port),
            _ => None,
        };
        std::iter::once(self.subject()).chain(other)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlink(s) => write!(f, "unlink {s} from the port"),
            Self::DisableNamespace(s, n) => write!(f, "disable namespace {n} of {s}"),
            Self::Disallow(s, h) => write!(f, "disallow {h} on {s}"),
            Self::RemoveHost(h) => write!(f, "remove host {h}"),
            Self::RemoveNamespace(s, n) => write!(f, "remove namespace {n} of {s}"),
            Self::RemoveSubsystem(s) => write!(f, "remove subsystem {s}"),
            Self::RemovePort => f.write_str("remove the port"),
            Self::CreatePort(p) => write!(f, "make the port on {}:{}", p.address, p.service),
            Self::CreateHost(h) => write!(f, "make host {h}"),
            Self::SetKeys(h, _) => write!(f, "set the keys of {h}"),
            Self::CreateSubsystem(s) => write!(f, "make subsystem {s}"),
            Self::ForbidAnyHost(s) => write!(f, "forbid unlisted hosts on {s}"),
            Self::SetSerial(s, _) => write!(f, "set the serial number of {s}"),
            Self::CreateNamespace(s, n) => write!(f, "make namespace {n} of {s}"),
            Self::DescribeNamespace(s, p, _) => write!(f, "back the namespace of {s} by {}", p.display()),
            Self::CheckImage(_, p) => write!(f, "check {}", p.display()),
            Self::EnableNamespace(s, n) => write!(f, "enable namespace {n} of {s}"),
            Self::Allow(s, h) => write!(f, "allow {h} on {s}"),
            Self::ConfirmCut(s) => write!(f, "confirm that the old connections of {s} are gone"),
            Self::Link(s) => write!(f, "link {s} to the port"),
        }
    }
}

/// The steps from `observed` to `desired`.
#[must_use]
pub fn plan(desired: &Desired, observed: &Observed) -> Vec<Step> {
    let mut planner = Planner { desired, state: observed.clone(), steps: Vec::new() };
    planner.close();
    planner.open();
    planner.steps
}

struct Planner<'a> {
    desired: &'a Desired,
    /// What the tree looks like after `steps`.
    state: Observed,
    steps: Vec<Step>,
}

impl Planner<'_> {
    fn push(&mut self, step: Step) {
        self.state.apply(&step);
        self.steps.push(step);
    }

    fn host_is_right(&self, host: &str) -> bool {
        self.desired.hosts.get(host).zip(self.state.hosts.get(host)).is_some_and(|(wanted, is)| *is == ObservedHost::with(wanted))
    }

    /// Whether anything must be taken away from this subsystem, or changed that can not be changed while it is in use. `linked`:
    /// it is reached through the right port, and stays so.
    fn must_close(&self, name: &str, is: &ObservedSubsystem, linked: bool) -> bool {
        let Some(wanted) = self.desired.subsystems.get(name) else { return true };
        // Taking a host off the list cuts nobody: who was on it before may still be connected.
        let unproven =
            if linked { !is.allowed.contains(&wanted.host) } else { !is.allowed.is_empty() || is.namespaces.values().any(|n| n.enabled) };
        let stale_host = is.allowed.iter().any(|h| *h != wanted.host || !self.host_is_right(h));
        let wrong_namespace = is.namespaces.iter().any(|(nsid, n)| *nsid != NAMESPACE_ID || (n.enabled && !n.fits(wanted)));
        unproven || is.allow_any || is.serial != wanted.serial || stale_host || wrong_namespace
    }

    fn close(&mut self) {
        let ours: Vec<(String, ObservedSubsystem)> =
            self.state.subsystems.iter().filter(|(n, _)| self.desired.owns(n)).map(|(n, s)| (n.clone(), s.clone())).collect();
        let port_is_right = self.state.port.as_ref().map(|p| &p.address) == self.desired.port.as_ref().map(Port::attributes).as_ref();
        let links = self.state.port.as_ref().map(|p| p.links.clone()).unwrap_or_default();
        let linked = |name: &String| port_is_right && links.contains(name);
        let closing: BTreeSet<String> = ours.iter().filter(|(n, s)| self.must_close(n, s, linked(n))).map(|(n, _)| n.clone()).collect();
        for name in links.iter().filter(|n| self.desired.owns(n)) {
            if closing.contains(name) || !port_is_right {
                self.push(Step::Unlink(name.clone()));
            }
        }
        if !port_is_right && self.state.port.is_some() {
            self.push(Step::RemovePort);
        }
        for (name, is) in ours.iter().filter(|(n, _)| closing.contains(n)) {
            for (nsid, _) in is.namespaces.iter().filter(|(_, n)| n.enabled) {
                self.push(Step::DisableNamespace(name.clone(), *nsid));
            }
            // A subsystem that still allows somebody can not be removed, and none opens again before its cut is confirmed.
            for host in &is.allowed {
                self.push(Step::Disallow(name.clone(), host.clone()));
            }
            let remake = self.desired.subsystems.get(name).is_none_or(|w| w.serial != is.serial);
            for nsid in is.namespaces.keys().filter(|n| remake || **n != NAMESPACE_ID) {
                self.push(Step::RemoveNamespace(name.clone(), *nsid));
            }
            if remake {
                self.push(Step::RemoveSubsystem(name.clone()));
            }
        }
        let hosts: Vec<String> = self.state.hosts.keys().filter(|h| self.desired.owns(h) && !self.host_is_right(h)).cloned().collect();
        for host in hosts {
            self.push(Step::RemoveHost(host));
        }
    }

    fn open(&mut self) {
        let desired = self.desired;
        let Some(port) = &desired.port else { return };
        if self.state.port.is_none() {
            self.push(Step::CreatePort(port.clone()));
        }
        for (host, keys) in &desired.hosts {
            if !self.state.hosts.contains_key(host) {
                self.push(Step::CreateHost(host.clone()));
                self.push(Step::SetKeys(host.clone(), keys.clone()));
            }
        }
        for (name, wanted) in &desired.subsystems {
            self.open_subsystem(name, wanted);
        }
    }

    fn open_subsystem(&mut self, name: &String, wanted: &Subsystem) {
        let linked = self.state.port.as_ref().is_some_and(|p| p.links.contains(name));
        if !linked {
            self.push(Step::ConfirmCut(name.clone()));
        }
        if !self.state.subsystems.contains_key(name) {
            self.push(Step::CreateSubsystem(name.clone()));
        }
        let is = self.state.subsystems.get(name).cloned().unwrap_or_default();
        if is.allow_any {
            self.push(Step::ForbidAnyHost(name.clone()));
        }
        if is.serial != wanted.serial {
            self.push(Step::SetSerial(name.clone(), wanted.serial.clone()));
        }
        if !is.namespaces.contains_key(&NAMESPACE_ID) {
            self.push(Step::CreateNamespace(name.clone(), NAMESPACE_ID));
        }
        let namespace = is.namespaces.get(&NAMESPACE_ID).cloned().unwrap_or_default();
        if !namespace.fits(wanted) {
            self.push(Step::DescribeNamespace(name.clone(), wanted.path.clone(), wanted.uuid));
        }
        if !namespace.enabled {
            self.push(Step::CheckImage(name.clone(), wanted.path.clone()));
            self.push(Step::EnableNamespace(name.clone(), NAMESPACE_ID));
        }
        if !is.allowed.contains(&wanted.host) {
            self.push(Step::Allow(name.clone(), wanted.host.clone()));
        }
        if !linked {
            self.push(Step::Link(name.clone()));
        }
    }
}

impl ObservedNamespace {
    fn fits(&self, wanted: &Subsystem) -> bool {
        wanted.path.to_str() == Some(self.path.as_str()) && self.uuid == wanted.uuid && self.nguid == wanted.nguid && !self.buffered
    }
}

impl Observed {
    /// What the tree is after `step` went well.
    fn apply(&mut self, step: &Step) {
        match step {
            Step::Unlink(s) => {
                if let Some(port) = &mut self.port {
                    port.links.remove(s);
                }
            }
            Step::DisableNamespace(s, n) => self.namespace(s, *n, |n| n.enabled = false),
            Step::Disallow(s, h) => self.subsystem(s, |s| _ = s.allowed.remove(h)),
            Step::RemoveHost(h) => _ = self.hosts.remove(h),
            Step::RemoveNamespace(s, n) => self.subsystem(s, |s| _ = s.namespaces.remove(n)),
            Step::RemoveSubsystem(s) => _ = self.subsystems.remove(s),
            Step::RemovePort => self.port = None,
            Step::CreatePort(p) => self.port = Some(ObservedPort { address: p.attributes(), ..ObservedPort::default() }),
            Step::CreateHost(h) => _ = self.hosts.insert(h.clone(), ObservedHost::default()),
            Step::SetKeys(h, keys) => _ = self.hosts.insert(h.clone(), ObservedHost::with(keys)),
            Step::CreateSubsystem(s) => _ = self.subsystems.insert(s.clone(), ObservedSubsystem::default()),
            Step::ForbidAnyHost(s) => self.subsystem(s, |s| s.allow_any = false),
            Step::SetSerial(s, serial) => self.subsystem(s, |s| s.serial.clone_from(serial)),
            Step::CreateNamespace(s, n) => self.subsystem(s, |s| _ = s.namespaces.insert(*n, ObservedNamespace::default())),
            Step::DescribeNamespace(s, path, uuid) => self.namespace(s, NAMESPACE_ID, |n| {
                *n = ObservedNamespace { path: path.display().to_string(), uuid: *uuid, nguid: *uuid, buffered: false, enabled: n.enabled };
            }),
            Step::EnableNamespace(s, n) => self.namespace(s, *n, |n| n.enabled = true),
            Step::Allow(s, h) => self.subsystem(s, |s| _ = s.allowed.insert(h.clone())),
            Step::Link(s) => {
                if let Some(port) = &mut self.port {
                    port.links.insert(s.clone());
                }
            }
            Step::CheckImage(..) | Step::ConfirmCut(_) => {}
        }
    }

    fn subsystem(&mut self, name: &str, change: impl FnOnce(&mut ObservedSubsystem)) {
        if let Some(subsystem) = self.subsystems.get_mut(name) {
            change(subsystem);
        }
    }

    fn namespace(&mut self, name: &str, nsid: u32, change: impl FnOnce(&mut ObservedNamespace)) {
        self.subsystem(name, |s| {
            if let Some(namespace) = s.namespaces.get_mut(&nsid) {
                change(namespace);
            }
        });
    }
}

#[cfg(test)]
mod tests;
