//! Where a new system disk goes (K32 to K36).
//!
//! A storage node is a candidate when it has the disk role, is not drained, is reachable, has its data-plane port ready, has the
//! master when a clone is asked for, and has room. The candidate with the fewest system disks wins, then the one with more free
//! space, then the first by name. A pin chooses the node, which must still be a candidate. A batch is planned in order, each
//! placement counting for the next; one disk is a batch of one, so the preview and what is carried out are one function.

use crate::id::{AgentName, FileName, OsName, OsTag, OsVersion, WorkerId, disk_file_name};
use crate::ledger::{Agent, Ledger, Role};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

const BLOCK_BYTES: u64 = crate::gpt::BLOCK_BYTES;

/// Whether a node can export disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataPlane {
    /// Its port is there.
    Ready,
    /// Its kernel has no target at all. Files can be made there, and are exported once a kernel with a target runs; a node that
    /// is ready is always preferred.
    Absent(String),
    /// It has a target whose port is not there; in words, why.
    NotReady(String),
}

/// A master image as a node has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MasterFile {
    /// Its length; a clone's size.
    pub size_bytes: u64,
    /// What a clone of it takes up at once: nothing where the file system clones by reference.
    pub clone_bytes: u64,
}

/// What a node says of itself when it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Whether it answered; in words, why not.
    pub reachable: Result<(), String>,
    /// Whether it can export.
    pub data_plane: DataPlane,
    /// Room for files.
    pub free_bytes: u64,
    /// Size of the file system they are on.
    pub total_bytes: u64,
    /// Master images that are there.
    pub masters: BTreeMap<FileName, MasterFile>,
}

impl NodeStatus {
    /// A node that can not be asked.
    #[must_use]
    pub fn unreachable(why: String) -> Self {
        let data_plane = DataPlane::NotReady(why.clone());
        Self { reachable: Err(why), data_plane, free_bytes: 0, total_bytes: 0, masters: BTreeMap::new() }
    }
}

/// What the disk holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A clone of this master.
    Master(FileName),
    /// Nothing; this many bytes. All of them must be free, although the file takes them up only as they are written.
    Empty(u64),
}

/// One disk that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Whose.
    pub worker: WorkerId,
    /// Display and grouping.
    pub os: OsName,
    /// Display and grouping; with `os` at most once per Worker (K17).
    pub os_version: OsVersion,
    /// What it holds.
    pub content: Content,
    /// The node it must go to (K35).
    pub pin: Option<AgentName>,
}

/// Where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The node.
    pub agent: AgentName,
    /// The disk's size.
    pub size_bytes: u64,
}

/// Why it goes nowhere. `code` is stable; the text names each node and what is in its way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Refusal {
    /// Stable machine-readable code.
    pub code: &'static str,
    /// HTTP status that fits.
    pub status: u16,
    /// One sentence with the next step.
    pub detail: String,
}

/// Why a node is no candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Obstacle {
    NoDiskRole,
    Drained,
    Unreachable(String),
    NoDataPlane(String),
    NoMaster,
    NoRoom { needed_bytes: u64, free_bytes: u64 },
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDiskRole => f.write_str("it has not the disk role"),
            Self::Drained => f.write_str("it is drained"),
            Self::Unreachable(why) => write!(f, "it is not reachable: {why}"),
            Self::NoDataPlane(why) => write!(f, "its data-plane port is not ready: {why}"),
            Self::NoMaster => f.write_str("it has not the master"),
            Self::NoRoom { needed_bytes, free_bytes } => write!(f, "{needed_bytes} bytes are needed, {free_bytes} are free"),
        }
    }
}

/// A node in the course of planning.
struct Node {
    agent: Agent,
    status: NodeStatus,
    disks: usize,
}

impl Node {
    /// What a disk takes up here, and its size; `None` without the master.
    fn measure(&self, content: &Content) -> Option<(u64, u64)> {
        match content {
            Content::Empty(size_bytes) => Some((*size_bytes, *size_bytes)),
            Content::Master(name) => self.status.masters.get(name).map(|m| (m.clone_bytes, m.size_bytes)),
        }
    }

    fn obstacles(&self, content: &Content) -> Vec<Obstacle> {
        let mut found = standing(&self.agent);
        if let Err(why) = &self.status.reachable {
            // What else it has is not known.
            found.push(Obstacle::Unreachable(why.clone()));
            return found;
        }
        if let DataPlane::NotReady(why) = &self.status.data_plane {
            found.push(Obstacle::NoDataPlane(why.clone()));
        }
        let free_bytes = self.status.free_bytes;
        match self.measure(content) {
            None => found.push(Obstacle::NoMaster),
            Some((needed_bytes, _)) if needed_bytes > free_bytes => found.push(Obstacle::NoRoom { needed_bytes, free_bytes }),
            Some(_) => {}
        }
        found
    }

    fn can_export(&self) -> bool {
        self.status.data_plane == DataPlane::Ready
    }
}

/// Where each of `wanted` goes, in order. `nodes` are all storage nodes of `ledger` with what they said of themselves; one that
/// is not in the ledger is left out.
#[must_use]
pub fn plan(ledger: &Ledger, nodes: &[(AgentName, NodeStatus)], wanted: &[Wanted]) -> Vec<Result<Placement, Refusal>> {
    let mut disks: BTreeMap<&AgentName, usize> = BTreeMap::new();
    for disk in ledger.workers.values().flat_map(|w| &w.disks) {
        *disks.entry(&disk.agent).or_default() += 1;
    }
    let node = |(name, status): &(AgentName, NodeStatus)| {
        let agent = ledger.agent(name)?;
        Some(Node { agent, status: status.clone(), disks: disks.get(name).copied().unwrap_or_default() })
    };
    let mut nodes: Vec<Node> = nodes.iter().filter_map(node).collect();
    nodes.sort_by(|a, b| a.agent.name.cmp(&b.agent.name));
    let mut taken = BTreeSet::new();
    wanted.iter().map(|one| place(ledger, &mut nodes, &mut taken, one)).collect()
}

type Taken<'a> = BTreeSet<(&'a WorkerId, &'a OsName, &'a OsVersion)>;

fn place<'a>(ledger: &Ledger, nodes: &mut [Node], taken: &mut Taken<'a>, wanted: &'a Wanted) -> Result<Placement, Refusal> {
    if let Some(why) = &ledger.unread.agents {
        // Which nodes take disks is not known.
        return Err(refusal(503, "ledger_damaged", format!("{why}; repair it and restart kurrentd")));
    }
    let Wanted { worker, os, os_version, content, pin } = wanted;
    let no_worker = || refusal(404, "worker_not_found", format!("no Worker {worker} is in the ledger; create it first"));
    let record = ledger.workers.get(worker).ok_or_else(no_worker)?;
    let has_one = record.disks.iter().any(|d| d.os == *os && d.os_version == *os_version);
    if has_one || taken.contains(&(worker, os, os_version)) {
        let detail = format!("Worker {worker} has a disk for {os} {os_version} already; delete that first, or use another version");
        return Err(refusal(409, "disk_exists", detail));
    }
    check_content(content)?;
    check_system(worker, os)?;
    if let Some(name) = pin.as_ref().filter(|name| ledger.agent(name).is_none()) {
        return Err(refusal(404, "agent_not_found", format!("no storage node {name} is in the ledger; see the agent list")));
    }
    let asked = |n: &Node| pin.as_ref().is_none_or(|name| *name == n.agent.name);
    let found: Vec<(&AgentName, Vec<Obstacle>)> =
        nodes.iter().filter(|n| asked(n)).map(|n| (&n.agent.name, n.obstacles(content))).collect();
    let key = |n: &Node| (!n.can_export(), n.disks, std::cmp::Reverse(n.status.free_bytes), n.agent.name.clone());
    let best = nodes.iter().filter(|n| asked(n) && n.obstacles(content).is_empty()).min_by_key(|n| key(n)).map(|n| n.agent.name.clone());
    let Some(agent) = best else { return Err(nowhere(&found, content)) };
    let chosen = nodes.iter_mut().find(|n| n.agent.name == agent);
    let (needed_bytes, size_bytes) = chosen.as_ref().and_then(|n| n.measure(content)).unwrap_or_default();
    if let Some(node) = chosen {
        node.disks = node.disks.saturating_add(1);
        node.status.free_bytes = node.status.free_bytes.saturating_sub(needed_bytes);
    }
    taken.insert((worker, os, os_version));
    Ok(Placement { agent, size_bytes })
}

/// Whether a node that was chosen still takes new disks: between a plan and its last copy somebody may have drained it (K32).
///
/// # Errors
/// `agent_not_found`, `no_storage_node`.
pub fn still_takes(ledger: &Ledger, name: &AgentName) -> Result<(), Refusal> {
    let gone = || refusal(404, "agent_not_found", format!("the storage node {name} is not in the ledger any more; see the agent list"));
    let agent = ledger.agent(name).ok_or_else(gone)?;
    let found = standing(&agent);
    if found.is_empty() {
        return Ok(());
    }
    Err(nowhere(&[(name, found)], &Content::Empty(BLOCK_BYTES)))
}

/// What people decided about a node that keeps new disks away.
fn standing(agent: &Agent) -> Vec<Obstacle> {
    let no_role = (!agent.roles.contains(&Role::Disk)).then_some(Obstacle::NoDiskRole);
    no_role.into_iter().chain(agent.drained.then_some(Obstacle::Drained)).collect()
}

fn check_content(content: &Content) -> Result<(), Refusal> {
    match content {
        Content::Empty(size) if *size == 0 || !size.is_multiple_of(BLOCK_BYTES) => {
            Err(refusal(422, "size", format!("{size} bytes is not a multiple of {BLOCK_BYTES} above zero")))
        }
        Content::Master(name) if !name.is_master() => {
            Err(refusal(422, "not_a_master", format!("{name} is not a master: its name has no _tpl_")))
        }
        Content::Empty(_) | Content::Master(_) => Ok(()),
    }
}

/// The system's name is a part of the file's: with a master's mark in it the ledger would refuse the disk when all is copied.
fn check_system(worker: &WorkerId, os: &OsName) -> Result<(), Refusal> {
    if disk_file_name(worker, os, &OsTag::from_random([0; 6])).is_master() {
        let detail = format!("{os} contains _tpl_, which marks the files of masters; name the system otherwise");
        return Err(refusal(422, "file_is_master", detail));
    }
    Ok(())
}

fn nowhere(found: &[(&AgentName, Vec<Obstacle>)], content: &Content) -> Refusal {
    let reasons: Vec<String> = found
        .iter()
        .map(|(name, obstacles)| format!("{name}: {}", obstacles.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")))
        .collect();
    let reasons = reasons.join("; ");
    let only_room = |o: &[Obstacle]| matches!(o, [Obstacle::NoRoom { .. }]);
    if found.iter().any(|(_, o)| only_room(o)) {
        let detail = format!("no storage node has room ({reasons}); delete disks or masters, or add space");
        return refusal(507, "disk_full", detail);
    }
    let lacks_it = |o: &[Obstacle]| o.contains(&Obstacle::NoMaster);
    let silent = |o: &[Obstacle]| o.iter().any(|o| matches!(o, Obstacle::Unreachable(_)));
    if let Content::Master(master) = content
        && found.iter().any(|(_, o)| lacks_it(o))
        && found.iter().all(|(_, o)| lacks_it(o) || silent(o))
    {
        return refusal(
            404,
            "master_not_found",
            format!("there is no master {master} where the disk could go ({reasons}); import it first"),
        );
    }
    let detail = format!("no storage node can take the disk ({reasons}); see the agent list");
    refusal(409, "no_storage_node", detail)
}

fn refusal(status: u16, code: &'static str, detail: String) -> Refusal {
    Refusal { code, status, detail }
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;
