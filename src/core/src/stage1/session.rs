//! The order of a worker's boot after the kernel, and what a failure leads to.
//!
//! ```text
//! Unseal -> Drivers -> Link -> Connect -> Namespace -> Root -> Handover -> SwitchRoot (never returns)
//!    |         |        ^         |           |          |        |
//!    |         |        +---------+-----------+----------+--------+   failed: wait (1 s doubling to 30 s), again from Link
//!    +---------+--> failed: only a new boot can help: wait, Reboot   <-- hopeless, from anywhere
//! ```
//! The appliance may have given the disk to another epoch while we tried: after [`GIVE_UP`] the machine reboots and asks anew.

use crate::time::{Mono, Now};
use std::time::Duration;

/// How long link, connection and root are tried before the machine asks the appliance anew.
pub const GIVE_UP: Duration = Duration::from_secs(300);
/// How long a failure stays on the console before a reboot.
pub const BEFORE_REBOOT: Duration = Duration::from_secs(15);
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// One step of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Read the session variable and its mask, delete the mask, open the sealed credentials.
    Unseal,
    /// Load the modules of the NIC, of the transport and of the file systems.
    Drivers,
    /// Bring up the NIC with its address and wait for the carrier.
    Link,
    /// Connect to the subsystem, authenticated both ways.
    Connect,
    /// Wait for the namespace.
    Namespace,
    /// Find and mount the root file system.
    Root,
    /// Prepare what the system will find under `/run`.
    Handover,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The program started.
    Started,
    /// The phase that was run is done.
    Done,
    /// The phase that was run failed, in words for console and report; never a secret.
    Failed(String),
    /// Failed in a way that no other try can mend, in words as [`Event::Failed`].
    Hopeless(String),
}

/// What to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Run this phase and come back with [`Event::Done`] or [`Event::Failed`].
    Run(Phase),
    /// Tell the appliance; that it does not hear is no failure.
    Report(&'static str, String),
    /// Wait.
    Wait(Duration),
    /// Start the machine again.
    Reboot,
    /// Wipe the secrets, switch to the root and execute its init. Comes back only as [`Event::Failed`] while
    /// nothing is changed yet, else as [`Event::Hopeless`].
    SwitchRoot,
}

/// Where the boot stands.
#[derive(Debug)]
pub struct Session {
    phase: Phase,
    wait: Duration,
    trying_since: Option<Mono>,
}

impl Default for Session {
    fn default() -> Self {
        Self { phase: Phase::Unseal, wait: FIRST_WAIT, trying_since: None }
    }
}

impl Session {
    /// The phase under way.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// What `event` leads to.
    pub fn on(&mut self, event: Event, now: Now) -> Vec<Action> {
        match event {
            Event::Started => vec![Action::Run(self.phase)],
            Event::Done => self.done(),
            Event::Failed(detail) => self.failed(detail, now),
            Event::Hopeless(detail) => vec![Action::Report("failed", detail), Action::Wait(BEFORE_REBOOT), Action::Reboot],
        }
    }

    fn done(&mut self) -> Vec<Action> {
        let report = |step| Action::Report(step, String::new());
        let (next, mut actions) = match self.phase {
            Phase::Unseal => (Phase::Drivers, vec![]),
            Phase::Drivers => (Phase::Link, vec![]),
            Phase::Link => (Phase::Connect, vec![report("booted")]),
            Phase::Connect => (Phase::Namespace, vec![report("connect")]),
            Phase::Namespace => (Phase::Root, vec![]),
            Phase::Root => (Phase::Handover, vec![]),
            Phase::Handover => return vec![report("root"), Action::SwitchRoot],
        };
        self.phase = next;
        actions.push(Action::Run(next));
        actions
    }

    fn failed(&mut self, detail: String, now: Now) -> Vec<Action> {
        let since = *self.trying_since.get_or_insert(now.mono);
        if matches!(self.phase, Phase::Unseal | Phase::Drivers) || now.mono.since(since) >= GIVE_UP {
            return self.on(Event::Hopeless(detail), now);
        }
        let actions = vec![Action::Report("failed", detail), Action::Wait(self.wait), Action::Run(Phase::Link)];
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
        self.phase = Phase::Link;
        actions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Wall;

    fn at(secs: u64) -> Now {
        Now { mono: Mono(Duration::from_secs(secs)), wall: Wall::UNIX_EPOCH }
    }

    const ALL: [Phase; 7] = [Phase::Unseal, Phase::Drivers, Phase::Link, Phase::Connect, Phase::Namespace, Phase::Root, Phase::Handover];

    #[test]
    fn a_boot_without_failure_runs_every_phase_once_in_order_and_reports_its_steps() {
        let mut session = Session::default();
        let (mut ran, mut reported, mut actions) = (vec![], vec![], session.on(Event::Started, at(0)));
        while !actions.contains(&Action::SwitchRoot) {
            for action in std::mem::take(&mut actions) {
                match action {
                    Action::Run(phase) => {
                        ran.push(phase);
                        actions = session.on(Event::Done, at(0));
                    }
                    Action::Report(step, _) => reported.push(step),
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(ran, ALL);
        assert_eq!(reported, ["booted", "connect"]);
        assert_eq!(actions.first(), Some(&Action::Report("root", String::new())));
    }

    #[test]
    fn every_failure_is_reported_and_leads_to_another_try_or_a_reboot() {
        for phase in ALL {
            let mut session = Session { phase, ..Session::default() };
            let actions = session.on(Event::Failed("x".into()), at(0));
            assert_eq!(actions.first(), Some(&Action::Report("failed", "x".into())));
            let again = matches!(actions.last(), Some(Action::Run(Phase::Link)));
            let reboot = matches!(actions.last(), Some(Action::Reboot));
            assert_eq!((again, reboot), (phase > Phase::Drivers, phase <= Phase::Drivers), "{phase:?}");
            assert!(matches!(actions.get(1), Some(Action::Wait(w)) if *w > Duration::ZERO));
        }
    }

    #[test]
    fn what_no_other_try_can_mend_is_reported_and_leads_to_a_reboot_from_anywhere() {
        for phase in ALL {
            let mut session = Session { phase, ..Session::default() };
            let expected = [Action::Report("failed", "x".into()), Action::Wait(BEFORE_REBOOT), Action::Reboot];
            assert_eq!(session.on(Event::Hopeless("x".into()), at(0)), expected, "{phase:?}");
        }
    }

    #[test]
    fn waits_grow_to_half_a_minute_and_after_five_minutes_the_machine_asks_anew() {
        let mut session = Session { phase: Phase::Connect, ..Session::default() };
        let mut waits = vec![];
        for second in 0..7 {
            waits.extend(session.on(Event::Failed(String::new()), at(second)).into_iter().filter_map(|a| match a {
                Action::Wait(w) => Some(w.as_secs()),
                _ => None,
            }));
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(session.on(Event::Failed(String::new()), at(300)).last(), Some(&Action::Reboot));
    }
}
