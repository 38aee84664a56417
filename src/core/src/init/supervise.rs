//! The services of the appliance as a state machine: what happened goes in, what to do comes out.
//!
//! ```text
//!  Waiting --time--> (Spawn) Starting --spawned--> Running --exits--> Waiting (longer each time)
//!     ^                         |                     |
//!     +------could not start----+                   Stop: Terminate
//!                                                     v
//!                                                  Stopping --STOP_WAIT: Kill--> Killed
//!                                                     | exits                      | exits, or STOP_WAIT again
//!                                                     v                            v
//!                                                  Stopped <------------------- Stopped   (all stopped: Finished)
//! ```

use crate::time::Mono;
use std::time::Duration;

/// Wait before the first restart; doubled for each further one.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait between restarts.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// A service that ran this long was healthy: its next failure counts as the first.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);
/// Time between SIGTERM and SIGKILL, and from there until nobody waits any more: a process that hangs in the kernel (a disk
/// that does not answer) does not even end then, and must not keep the machine from its end.
pub const STOP_WAIT: Duration = Duration::from_secs(10);

/// A program to keep running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// For people and the log.
    pub name: &'static str,
    /// Program and arguments.
    pub command: Vec<String>,
}

/// Something happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A spawned service has this process.
    Spawned {
        /// Which service.
        name: &'static str,
        /// Its process.
        pid: u32,
    },
    /// A service could not be started at all.
    SpawnFailed {
        /// Which service.
        name: &'static str,
    },
    /// A process ended. Processes that are no service's are orphans: reaped and forgotten.
    Exited {
        /// Which process.
        pid: u32,
    },
    /// A deadline passed.
    Time,
    /// Everything is to stop, for good.
    Stop,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start the service.
    Spawn(Service),
    /// Ask the process to end.
    Terminate(u32),
    /// End the process.
    Kill(u32),
    /// To be told: the process did not end even so, and nobody waits for it any more.
    GaveUp {
        /// Which service.
        name: &'static str,
        /// Its process.
        pid: u32,
    },
    /// After [`Event::Stop`]: nothing runs any more.
    Finished,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Waiting { until: Mono },
    Starting,
    Running { pid: u32, since: Mono },
    Stopping { pid: u32, kill_at: Mono },
    Killed { pid: u32, give_up_at: Mono },
    Stopped,
}

#[derive(Clone, Debug)]
struct Child {
    service: Service,
    failures: u32,
    state: State,
}

/// All services.
#[derive(Clone, Debug, Default)]
pub struct Supervisor {
    children: Vec<Child>,
    stopping: bool,
    finished: bool,
}

impl Supervisor {
    /// Adds a service, to be started at once. One of the same name and command is left alone; with another command the
    /// old one is stopped and starts again as the new one.
    pub fn keep(&mut self, service: Service, now: Mono) -> Vec<Action> {
        if self.stopping {
            return Vec::new();
        }
        let Some(child) = self.children.iter_mut().find(|child| child.service.name == service.name) else {
            self.children.push(Child { service, failures: 0, state: State::Waiting { until: now } });
            return self.on(&Event::Time, now);
        };
        if child.service.command == service.command {
            return Vec::new();
        }
        child.service = service;
        match child.state {
            // Its end is seen as an exit, and it comes back with the new command.
            State::Running { pid, .. } => vec![Action::Terminate(pid)],
            State::Waiting { .. } | State::Starting | State::Stopping { .. } | State::Killed { .. } | State::Stopped => Vec::new(),
        }
    }

    /// Names of services that are not running, with how often they failed in a row.
    pub fn failing(&self) -> impl Iterator<Item = (&'static str, u32)> {
        self.children
            .iter()
            .filter(|child| matches!(child.state, State::Waiting { .. }) && child.failures > 0)
            .map(|child| (child.service.name, child.failures))
    }

    /// Whether everything has stopped, after [`Event::Stop`].
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Which service a process is.
    #[must_use]
    pub fn name_of(&self, pid: u32) -> Option<&'static str> {
        let is = |state: &State| match state {
            State::Running { pid: own, .. } | State::Stopping { pid: own, .. } | State::Killed { pid: own, .. } => *own == pid,
            State::Waiting { .. } | State::Starting | State::Stopped => false,
        };
        self.children.iter().find(|child| is(&child.state)).map(|child| child.service.name)
    }

    /// When [`Event::Time`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Mono> {
        let deadline = |child: &Child| match child.state {
            State::Waiting { until } if !self.stopping => Some(until),
            State::Stopping { kill_at, .. } => Some(kill_at),
            State::Killed { give_up_at, .. } => Some(give_up_at),
            State::Waiting { .. } | State::Starting | State::Running { .. } | State::Stopped => None,
        };
        self.children.iter().filter_map(deadline).min()
    }

    /// One step.
    pub fn on(&mut self, event: &Event, now: Mono) -> Vec<Action> {
        let mut actions = Vec::new();
        if *event == Event::Stop {
            self.stopping = true;
        }
        let stopping = self.stopping;
        for child in &mut self.children {
            child.step(event, now, stopping, &mut actions);
        }
        let all_stopped = self.children.iter().all(|child| child.state == State::Stopped);
        if stopping && all_stopped && !self.finished {
            self.finished = true;
            actions.push(Action::Finished);
        }
        actions
    }
}

impl Child {
    fn step(&mut self, event: &Event, now: Mono, stopping: bool, actions: &mut Vec<Action>) {
        let mine = match event {
            Event::Spawned { name, .. } | Event::SpawnFailed { name } => *name == self.service.name,
            Event::Exited { .. } | Event::Time | Event::Stop => true,
        };
        if !mine {
            return;
        }
        match (&self.state, event) {
            (State::Waiting { .. }, _) if stopping => self.state = State::Stopped,
            (State::Waiting { until }, Event::Time) if *until <= now => {
                self.state = State::Starting;
                actions.push(Action::Spawn(self.service.clone()));
            }
            (State::Starting, Event::Spawned { pid, .. }) => {
                self.state = State::Running { pid: *pid, since: now };
                if stopping {
                    self.terminate(*pid, now, actions);
                }
            }
            (State::Starting, Event::SpawnFailed { .. }) => self.fail(now, stopping),
            (State::Running { pid, since }, Event::Exited { pid: gone }) if pid == gone => {
                if now.since(*since) >= HEALTHY_AFTER {
                    self.failures = 0;
                }
                self.fail(now, stopping);
            }
            (State::Running { pid, .. }, Event::Stop) => self.terminate(*pid, now, actions),
            (State::Stopping { pid, .. } | State::Killed { pid, .. }, Event::Exited { pid: gone }) if pid == gone => {
                self.state = State::Stopped;
            }
            (State::Stopping { pid, kill_at }, Event::Time) if *kill_at <= now => {
                actions.push(Action::Kill(*pid));
                self.state = State::Killed { pid: *pid, give_up_at: now.after(STOP_WAIT) };
            }
            (State::Killed { pid, give_up_at }, Event::Time) if *give_up_at <= now => {
                actions.push(Action::GaveUp { name: self.service.name, pid: *pid });
                self.state = State::Stopped;
            }
            (
                State::Waiting { .. }
                | State::Starting
                | State::Running { .. }
                | State::Stopping { .. }
                | State::Killed { .. }
                | State::Stopped,
                _,
            ) => {}
        }
    }

    fn terminate(&mut self, pid: u32, now: Mono, actions: &mut Vec<Action>) {
        actions.push(Action::Terminate(pid));
        self.state = State::Stopping { pid, kill_at: now.after(STOP_WAIT) };
    }

    fn fail(&mut self, now: Mono, stopping: bool) {
        let wait = FIRST_WAIT.saturating_mul(1u32.checked_shl(self.failures).unwrap_or(u32::MAX)).min(LONGEST_WAIT);
        self.failures = self.failures.saturating_add(1);
        self.state = if stopping { State::Stopped } else { State::Waiting { until: now.after(wait) } };
    }
}

#[cfg(test)]
#[path = "supervise_tests.rs"]
mod tests;
