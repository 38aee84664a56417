//! Cold migration: a Worker goes from one device to another, with its disk (K31). What must be so before, and what comes next.
//!
//! ```text
//!   leaving --the former device is gone--> rebind --> proving --proven--> booting --root--> done
//!      |                                                 |
//!      +--still there: nothing is done                   +--no proof in time, or cancelled--> roll back
//! ```
//!
//! Between `rebind` and `proven` the note in the Worker's record ([`Migration`]) is the state: whoever starts again goes on from it.
//! It goes in the same moment as the new device is granted its boot, so that no device that boots can lose the Worker afterwards.
//! Who binds, unbinds or revokes meanwhile has decided otherwise, and nothing is moved any more.

use crate::boot::SIGNS_BOOT_KEY;
use crate::id::{MacAddr, WorkerId};
use crate::ledger::{DeviceState, Ledger, Migration, Rejected};
use crate::placement::{DataPlane, NodeStatus};
use crate::time::{Mono, Wall};
use crate::timeline::{Boot, Step};
use jiff::SignedDuration;
use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

/// Longest wait for the former device to go, and for the new one to prove itself, in minutes: somebody may have to walk there.
pub const MAX_MINUTES: u32 = 24 * 60;
/// The wait for the former device when none is asked for.
pub const WAIT_MINUTES: u32 = 10;
/// The wait for the new device when none is asked for: a large server's firmware takes minutes.
pub const ATTEST_MINUTES: u32 = 15;
/// After its proof the new device is only watched. A boot that takes longer goes on without being watched.
const BOOTS_WITHIN: Duration = Duration::from_secs(5 * 60);

fn refused(status: u16, code: &'static str, detail: String) -> Rejected {
    Rejected { code, status, detail, field: None }
}

/// The time that a note gives the new device is one that can be asked for.
pub(crate) fn check_time(since: Wall, until: Wall) -> Result<(), Rejected> {
    let longest = SignedDuration::from_mins(i64::from(MAX_MINUTES));
    let time = until.duration_since(since);
    if time > SignedDuration::ZERO && time <= longest {
        return Ok(());
    }
    let detail = format!("the new device has 1 to {MAX_MINUTES} minutes to prove itself; choose a time in that range");
    Err(Rejected { field: Some("attest_minutes"), ..refused(422, "minutes_out_of_range", detail) })
}

/// What of the ledgers stands in the way of `worker` going to `to`. `enforcement` is what the configuration says.
#[must_use]
pub fn obstacles(ledger: &Ledger, worker: &WorkerId, to: MacAddr, enforcement: bool) -> Vec<Rejected> {
    let mut all = Vec::new();
    match ledger.known_worker(worker) {
        Err(unknown) => all.push(unknown),
        Ok(record) => {
            if let Some(note) = &record.migration {
                let detail = format!("Worker {worker} is on its way to device {} already; let that end, or cancel its job", note.to);
                all.push(refused(409, "migration_under_way", detail));
            }
            if ledger.boot_disk(record).is_none() {
                let detail = format!("Worker {worker} has no system disk that boots; create one or choose its default disk first");
                all.push(refused(409, "no_disk", detail));
            }
        }
    }
    match ledger.known_device(to) {
        Err(unknown) => all.push(Rejected { field: Some("to"), ..unknown }),
        Ok(device) => {
            let mut say = |code, detail| all.push(Rejected { field: Some("to"), ..refused(409, code, detail) });
            match (device.state, &device.bound_worker_id) {
                (DeviceState::Pooled, _) => {}
                (DeviceState::Revoked, _) => {
                    say("device_revoked", format!("device {to} is revoked; purge it and register it again, or choose another device"));
                }
                (DeviceState::Bound, Some(is)) if is == worker => {
                    say("already_there", format!("Worker {worker} is on device {to} already; there is nothing to do"));
                }
                (DeviceState::Bound, _) => {
                    say("device_bound", format!("device {to} has another Worker; unbind it first, or choose a pooled device"));
                }
            }
            match &device.public_key {
                Some(key) if !key.starts_with(SIGNS_BOOT_KEY) => {
                    let what = format!("device {to} has a P-256 key of the existing firmware, which can not receive the disk's secrets");
                    say("no_channel", format!("{what}; let it boot kurrent-attest.efi, and order a rekey with --replaced"));
                }
                None if ledger.enforcement(enforcement) && !device.keyless_allowed => {
                    let what = format!("no key is stored for device {to}, so it can not prove itself");
                    say("no_key", format!("{what}; start it while the registration window is open, or allow it keyless"));
                }
                Some(_) | None => {}
            }
            let back = |id: &&WorkerId| ledger.workers.get(*id).and_then(|w| w.migration.as_ref()).is_some_and(|m| m.from == Some(to));
            if let Some(other) = ledger.migrating.iter().filter(|id| *id != worker).find(back) {
                let detail = format!("device {to} gets Worker {other} back if its migration fails; let that end, or choose another device");
                say("device_reserved", detail);
            }
        }
    }
    all
}

/// What is known beside the ledgers.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Whether the kernel's target was looked at since the start.
    pub looked: bool,
    /// Of the storage node that has the disk.
    pub node: NodeStatus,
    /// Why the target does not export the disk, in words.
    pub faults: Vec<String>,
    /// What the configuration says about devices without a key.
    pub enforcement: bool,
}

/// What a migration would be.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The device that loses the Worker.
    pub from: Option<MacAddr>,
    /// Why it can not be; all of it.
    pub refused: Vec<Rejected>,
    /// What a person should know.
    pub warnings: Vec<String>,
}

/// Looks at everything that K31 asks for.
#[must_use]
pub fn plan(ledger: &Ledger, worker: &WorkerId, to: MacAddr, facts: &Facts) -> Plan {
    let mut refusals = obstacles(ledger, worker, to, facts.enforcement);
    let mut say = |code, detail: String| refusals.push(refused(409, code, detail));
    match (&facts.node.reachable, &facts.node.data_plane) {
        _ if !facts.looked => {
            say("target_not_looked", "the kernel's target was not looked at yet since the start; wait a few seconds".into())
        }
        (Err(why), _) => say("agent_unreachable", format!("the storage node of the disk is not reachable: {why}; repair that first")),
        (Ok(()), DataPlane::Absent(why)) => {
            say("no_target", format!("disks are not exported here: {why}; the device could not boot, and nothing was changed"));
        }
        (Ok(()), DataPlane::NotReady(why)) => {
            say("target_not_ready", format!("the data-plane port is not there: {why}; repair that first"))
        }
        (Ok(()), DataPlane::Ready) if !facts.faults.is_empty() => {
            say("target_fault", format!("the disk is not exported: {}; repair that first", facts.faults.join("; ")));
        }
        (Ok(()), DataPlane::Ready) => {}
    }
    let mut warnings = Vec::new();
    if ledger.device(to).is_some_and(|d| d.public_key.is_none()) {
        warnings.push(format!("device {to} has no key: whoever boots under its MAC address is taken for it"));
    }
    Plan { from: ledger.bound.get(worker).copied(), refused: refusals, warnings }
}

/// Where a Worker with a migration stands in the ledgers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Bound to the new device, which has not proven itself.
    Noted,
    /// Bound to the new device, and the note is gone: it has proven itself.
    Proven,
    /// Somebody bound, unbound, revoked or deleted meanwhile.
    Overtaken,
}

impl Standing {
    /// Of this note in this ledger.
    #[must_use]
    pub fn of(ledger: &Ledger, worker: &WorkerId, note: &Migration) -> Self {
        let is = ledger.workers.get(worker).and_then(|w| w.migration.as_ref());
        match is {
            Some(is) if is == note => Self::Noted,
            None if ledger.bound.get(worker) == Some(&note.to) => Self::Proven,
            Some(_) | None => Self::Overtaken,
        }
    }
}

/// Where a migration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nothing is changed yet. Until then the former device may still be connected; `None`: it is cut off at once.
    Leaving(Option<Mono>),
    /// The Worker is bound to the new device, which must prove itself by then.
    Proving(Mono),
    /// It has proven itself. What it does until then is shown.
    Booting(Mono),
}

/// What is seen now.
#[derive(Clone, Debug)]
pub struct Seen<'a> {
    /// The connections of the former device to the disks, by address; `None`: they can not be told.
    pub connections: Option<&'a [(Ipv4Addr, usize)]>,
    /// Of the note, when there is one.
    pub standing: Standing,
    /// Whether the target has followed the new binding; in words, why not yet.
    pub followed: Result<(), String>,
    /// The new device's boot.
    pub boot: Option<&'a Boot>,
    /// Somebody wants it stopped.
    pub cancelled: bool,
}

/// Why a Worker goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The new device did not prove itself in time.
    NoProof,
    /// Somebody cancelled.
    Cancelled,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Look again.
    Wait,
    /// Bind the new device and note it.
    Rebind,
    /// It has proven itself: from now on it is watched until then.
    Proven(Mono),
    /// Bind the former one again.
    RollBack(Why),
    /// It is over.
    End(End),
}

/// How it ended, when nothing has to be done any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The new device runs the Worker's system.
    Done,
    /// The new device has proven itself, but did not come as far as its system while it was watched.
    Slow,
    /// The former device was still connected.
    StillConnected,
    /// Nothing was changed.
    Cancelled,
    /// See [`Standing::Overtaken`].
    Overtaken,
}

/// What to do in a stage with what is seen.
#[must_use]
pub fn next(stage: Stage, seen: &Seen<'_>, now: Mono) -> Next {
    match stage {
        Stage::Leaving(_) if seen.cancelled => Next::End(End::Cancelled),
        Stage::Leaving(None) => Next::Rebind,
        Stage::Leaving(Some(until)) => match seen.connections {
            Some([]) => Next::Rebind,
            _ if now >= until => Next::End(End::StillConnected),
            Some(_) | None => Next::Wait,
        },
        Stage::Proving(until) => match seen.standing {
            Standing::Proven => Next::Proven(now.after(BOOTS_WITHIN)),
            Standing::Overtaken => Next::End(End::Overtaken),
            Standing::Noted if seen.cancelled => Next::RollBack(Why::Cancelled),
            Standing::Noted if now >= until => Next::RollBack(Why::NoProof),
            Standing::Noted => Next::Wait,
        },
        Stage::Booting(until) => match seen.boot {
            Some(boot) if reached(boot, Step::Root) => Next::End(End::Done),
            _ if now >= until => Next::End(End::Slow),
            Some(_) | None => Next::Wait,
        },
    }
}

/// Whether this boot, which was granted already, has come to `step`.
fn reached(boot: &Boot, step: Step) -> bool {
    boot.fault.is_none() && boot.marks.iter().any(|m| m.step == step)
}

/// What is left of a note's time. When the clock was set back it is never more than there was.
#[must_use]
pub fn time_left(note: &Migration, now: Wall) -> Duration {
    let whole = note.until.duration_since(note.since).min(SignedDuration::from_mins(i64::from(MAX_MINUTES)));
    let left = note.until.duration_since(now).min(whole);
    Duration::try_from(left).unwrap_or(Duration::ZERO)
}

/// Where it is, for people.
#[must_use]
pub fn words(stage: Stage, from: Option<MacAddr>, to: MacAddr, seen: &Seen<'_>, now: Mono) -> String {
    match stage {
        Stage::Leaving(until) => {
            let Some(from) = from else { return "nobody has the Worker; binding the new device".into() };
            let left = until.map(|until| format!(", {} left", Left(until.since(now)))).unwrap_or_default();
            match seen.connections {
                None => format!("the kernel does not tell who is connected; looking again{left}"),
                Some([]) => format!("{from} is gone; fencing it"),
                Some(all) => {
                    let count: usize = all.iter().map(|(_, connections)| connections).sum();
                    let places: Vec<String> = all.iter().map(|(address, _)| address.to_string()).collect();
                    let s = if count == 1 { "" } else { "s" };
                    format!("waiting for {from} to go: {count} connection{s} from {}{left}", places.join(", "))
                }
            }
        }
        Stage::Proving(until) => {
            let left = Left(until.since(now));
            let step = seen.boot.and_then(|b| b.marks.last()).map(|m| format!(" (seen: {})", word(m.step))).unwrap_or_default();
            let fault = seen.boot.and_then(|b| b.fault.as_deref()).map(|f| format!("; it was told: {f}")).unwrap_or_default();
            match (&seen.followed, from) {
                (Err(why), _) => format!("fencing: {why}; then {to} must prove itself, {left} left"),
                (Ok(()), Some(from)) => format!("{from} is fenced; waiting for {to} to prove itself{step}, {left} left{fault}"),
                (Ok(()), None) => format!("waiting for {to} to prove itself{step}, {left} left{fault}"),
            }
        }
        Stage::Booting(_) => match seen.boot.and_then(|b| b.marks.iter().map(|m| m.step).max()) {
            Some(step @ (Step::Connect | Step::Root)) => format!("{to} is proven; {}", word(step)),
            Some(_) | None => format!("{to} is proven; connecting"),
        },
    }
}

fn word(step: Step) -> String {
    format!("{step:?}").to_lowercase()
}

/// Minutes while there are several, then seconds.
struct Left(Duration);

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs().saturating_add(u64::from(self.0.subsec_nanos() > 0)) {
            secs @ 0..=119 => write!(f, "{secs} s"),
            secs => write!(f, "{} min", secs.div_ceil(60)),
        }
    }
}

#[cfg(test)]
#[path = "migrate_tests.rs"]
mod tests;
