//! Whose connections must be gone before a disk that was cut is given to anybody else.
//!
//! ```text
//! linked --Unlink--> pending (what was connected is noted) --all of it gone--> confirmed --Link--> linked
//! not linked, by whom nobody knows (a crash, a hand) ---^
//! ```
//! Connections are told by their address; the kernel names no host. What can not be told apart counts against opening.

use kurrent_sys::sockets;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the connections of a cut controller may take to go. The kernel does it in milliseconds.
const CUT_DEADLINE: Duration = Duration::from_secs(3);
const CUT_POLL: Duration = Duration::from_millis(20);

/// Whose connections those of a cut are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Whose {
    /// Everything from these addresses.
    pub(super) addresses: BTreeSet<Ipv4Addr>,
    /// Somebody lost the disk whose address is not known: whatever does not come from an address of `staying` may be theirs.
    pub(super) strangers: bool,
    /// Addresses of hosts that keep their access; asked only of strangers.
    pub(super) staying: Arc<BTreeSet<Ipv4Addr>>,
}

impl Whose {
    fn has(&self, address: Ipv4Addr) -> bool {
        self.addresses.contains(&address) || (self.strangers && !self.staying.contains(&address))
    }
}

/// One subsystem's cut that is not confirmed yet.
#[derive(Debug, Default)]
struct Pending {
    /// What was connected when it was cut and is not known to be gone.
    open: BTreeSet<SocketAddrV4>,
    /// The list could not be read at the time of the cut: everything that these have when it can be read.
    unread: Vec<Whose>,
}

/// The cuts of all subsystems, remembered from pass to pass.
pub(super) struct Fence {
    tcp: PathBuf,
    local: SocketAddrV4,
    pending: BTreeMap<String, Pending>,
    /// Subsystems that are cut and confirmed, and were not linked since.
    confirmed: BTreeSet<String>,
}

impl Fence {
    pub(super) fn new(tcp: PathBuf, local: SocketAddrV4) -> Self {
        Self { tcp, local, pending: BTreeMap::new(), confirmed: BTreeSet::new() }
    }

    /// What is connected now, also while the kernel is still tearing it down.
    pub(super) fn connections(&self) -> Result<Vec<SocketAddrV4>, String> {
        self.read().map_err(|e| format!("{} can not be read, so nobody knows who is connected: {e}", self.tcp.display()))
    }

    fn read(&self) -> io::Result<Vec<SocketAddrV4>> {
        sockets::held(&self.tcp, self.local)
    }

    /// To be called before a subsystem is unlinked, or when it is found unlinked. Does not fail, because a cut must not wait for a
    /// list: what can not be read now is asked for when the cut is confirmed.
    pub(super) fn cut(&mut self, subsystem: &str, whose: Whose) {
        let open = self.read();
        self.confirmed.remove(subsystem);
        let pending = self.pending.entry(subsystem.to_owned()).or_default();
        match open {
            Ok(open) => pending.open.extend(open.into_iter().filter(|c| whose.has(*c.ip()))),
            Err(_) if pending.unread.contains(&whose) => {}
            Err(_) => pending.unread.push(whose),
        }
    }

    /// Whether it is known since the last link who was connected and that they are gone, or being waited for.
    pub(super) fn knows(&self, subsystem: &str) -> bool {
        self.pending.contains_key(subsystem) || self.confirmed.contains(subsystem)
    }

    /// The subsystem is reachable again.
    pub(super) fn linked(&mut self, subsystem: &str) {
        self.confirmed.remove(subsystem);
    }

    /// Forgets subsystems that are neither there nor waited for.
    pub(super) fn retain(&mut self, there: impl Fn(&str) -> bool) {
        self.confirmed.retain(|s| there(s));
    }

    /// Subsystems whose cut is not confirmed.
    pub(super) fn pending(&self) -> Vec<String> {
        self.pending.keys().cloned().collect()
    }

    /// Waits for the connections of a cut to go.
    ///
    /// # Errors
    /// In words: they did not, or nobody can tell.
    pub(super) fn confirm(&mut self, subsystem: &str) -> Result<(), String> {
        let started = Instant::now();
        while self.pending.contains_key(subsystem) {
            let now: BTreeSet<SocketAddrV4> = self.connections()?.into_iter().collect();
            let Some(pending) = self.pending.get_mut(subsystem) else { break };
            let late = std::mem::take(&mut pending.unread);
            pending.open.extend(now.iter().filter(|c| late.iter().any(|w| w.has(*c.ip()))));
            pending.open.retain(|c| now.contains(c));
            match pending.open.len() {
                0 => _ = self.pending.remove(subsystem),
                left if started.elapsed() >= CUT_DEADLINE => return Err(format!("{left} connections of the old epoch are still open")),
                _ => std::thread::sleep(CUT_POLL),
            }
        }
        self.confirmed.insert(subsystem.to_owned());
        Ok(())
    }
}
