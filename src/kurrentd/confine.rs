//! What this process gives up before it hears of anybody: core dumps, new privileges, capabilities, files, system calls.
//!
//! Applied once, while there is one thread: all later threads inherit every part, so there is none without. A restart in place
//! ([`crate::daemon::Ending::Restart`]) inherits them too and applies them again; that works because everything kept here is what
//! a start needs. What the kernel does not have is a notice, not a failure: the others hold without it.

mod capabilities;
mod files;
mod system_calls;
#[cfg(test)]
mod tests;

pub use files::Files;

use serde::Serialize;
use std::path::Path;
use std::sync::OnceLock;
use utoipa::ToSchema;

/// Only the appliance has it: there the kernel is ours, and a part that does not hold is a fault.
const APPLIANCE: &str = "/etc/kurrent-build-epoch";

/// What the operator is told everywhere when it is switched off.
pub const OFF_WARNING: &str = "confinement is off: kurrentd runs with all rights that it was started with";

/// How a part of the confinement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ConfinementState)]
pub enum State {
    /// It holds, for all threads.
    On,
    /// It holds as far as this kernel, or whoever started kurrentd, lets it.
    Partly,
    /// It does not hold.
    Missing,
    /// `spec.security.confinement: off`.
    Off,
}

/// One part of the confinement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ConfinementPart)]
pub struct Part {
    /// `core_dumps`, `privileges`, `capabilities`, `files` (Landlock) or `system_calls` (seccomp).
    #[schema(value_type = String)]
    pub name: &'static str,
    /// Whether it holds.
    pub state: State,
    /// What is kept, or why it does not hold.
    pub detail: String,
}

const PARTS: [&str; 5] = ["core_dumps", "privileges", "capabilities", "files", "system_calls"];

/// The process is confined or not: there is one answer in it.
static HELD: OnceLock<Vec<Part>> = OnceLock::new();

/// Which of the programs in this file confines itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `kurrentd run`.
    Daemon,
    /// `kurrentd uplink`.
    Uplink,
}

/// What [`apply`] or [`leave_off`] has done; nothing before.
#[must_use]
pub fn held() -> &'static [Part] {
    HELD.get().map_or(&[], Vec::as_slice)
}

/// Confines this process. Call it while there is one thread.
pub fn apply(program: Program, files: &Files) {
    let keep = match program {
        Program::Daemon => &capabilities::DAEMON[..],
        Program::Uplink => &capabilities::UPLINK[..],
    };
    let parts = vec![core_dumps(), privileges(), capabilities::give_up(keep), files.confine(), system_calls::confine()];
    for Part { name, state, detail } in &parts {
        match state {
            State::On => tracing::info!("confinement: {name}: {detail}"),
            State::Partly | State::Missing | State::Off => tracing::warn!("confinement: {name}: {detail}"),
        }
    }
    // A second call changes nothing of what the first one has said.
    let _ = HELD.set(parts);
}

/// The operator does not want it.
pub fn leave_off() {
    tracing::warn!("{OFF_WARNING}; see spec.security.confinement");
    let part = |name| Part { name, state: State::Off, detail: "spec.security.confinement is off".into() };
    let _ = HELD.set(PARTS.map(part).to_vec());
}

/// What does not hold and should, in one sentence. On another host than the appliance, with its own kernel and rights, it is a
/// line of the log and of `GET /v1/status`.
#[must_use]
pub fn fault() -> Option<String> {
    fault_of(held(), Path::new(APPLIANCE).exists())
}

fn fault_of(parts: &[Part], on_appliance: bool) -> Option<String> {
    let lacking = |p: &&Part| matches!(p.state, State::Partly | State::Missing);
    let lacking: Vec<String> = parts.iter().filter(lacking).map(|p| format!("{} ({})", p.name, p.detail)).collect();
    let is_fault = on_appliance && !lacking.is_empty();
    is_fault.then(|| format!("kurrentd runs with more rights than it needs: {}; please report it with the log", lacking.join(", ")))
}

/// `on` when nothing failed; otherwise the words.
fn part<E: std::fmt::Display>(name: &'static str, on: &str, result: Result<(), E>) -> Part {
    match result {
        Ok(()) => Part { name, state: State::On, detail: on.into() },
        Err(error) => Part { name, state: State::Missing, detail: error.to_string() },
    }
}

/// A core has every secret of the process. Not dumpable besides: a helper that the kernel pipes cores to (`core_pattern` with `|`)
/// is started whatever the limit says; and no other process of the same user may look into the memory.
fn core_dumps() -> Part {
    use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let done = setrlimit(Resource::Core, none).and_then(|()| set_dumpable_behavior(DumpableBehavior::NotDumpable));
    part("core_dumps", "none are written", done)
}

/// No program that this process becomes has more rights than it, whatever its file says. Landlock and seccomp want it too.
fn privileges() -> Part {
    part("privileges", "no new ones can be had", rustix::thread::set_no_new_privs(true))
}
