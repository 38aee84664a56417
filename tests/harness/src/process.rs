//! Child processes that never outlive the lab: each in its own process group, killed on drop and by the kernel when we die.

use anyhow::{Context, Result, anyhow};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// What happens to a child when this program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// It dies with us, however we die.
    Ours,
    /// It may be left running with [`Process::leave_running`] (`LAB_KEEP=1`).
    MayStay,
}

/// A running child and its process group.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Option<Child>,
}

type Request = (Command, Sender<std::io::Result<Child>>);

/// The kernel's death signal follows the *thread* that started the child, and test threads end early: one thread that lives as
/// long as the program starts everything.
fn spawner() -> &'static Sender<Request> {
    static SPAWNER: OnceLock<Sender<Request>> = OnceLock::new();
    SPAWNER.get_or_init(|| {
        let (sender, requests) = channel::<Request>();
        thread::spawn(move || {
            for (mut command, reply) in requests {
                let _ = reply.send(command.spawn());
            }
        });
        sender
    })
}

impl Process {
    /// Starts `command` in its own process group.
    pub fn start(name: &str, mut command: Command, lifetime: Lifetime) -> Result<Self> {
        command.process_group(0);
        if lifetime == Lifetime::Ours {
            // SAFETY: prctl is async-signal-safe and touches only the new process.
            unsafe {
                command.pre_exec(|| nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(Into::into));
            }
        }
        let program = command.get_program().to_string_lossy().into_owned();
        let (reply, answer) = channel();
        spawner().send((command, reply)).map_err(|_| anyhow!("the starting thread is gone"))?;
        let child = answer
            .recv()
            .context("the starting thread is gone")?
            .with_context(|| format!("start {program} for {name} (`make deps` installs what the lab needs)"))?;
        Ok(Self { name: name.to_owned(), child: Some(child) })
    }

    /// Process id; also the id of its group.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Whether it has ended, and how.
    pub fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.as_mut().and_then(|child| child.try_wait().ok().flatten())
    }

    /// `SIGKILL` to the group, and the end awaited: what a power cut is to a machine.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            if let Ok(pid) = i32::try_from(child.id()) {
                let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
            }
            let _ = child.wait();
        }
    }

    /// Lets it go on without us.
    pub fn leave_running(mut self) {
        self.child = None;
    }

    /// Its name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
