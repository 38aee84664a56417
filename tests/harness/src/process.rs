//! Child processes that never outlive the lab: each in its own process group, killed on drop and by the kernel when we die.

use anyhow::{Context, Result, anyhow};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
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

/// Process groups to end when this program is told to stop.
static RUNNING: Mutex<Vec<u32>> = Mutex::new(Vec::new());

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
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).push(child.id());
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
            forget(child.id());
        }
    }

    /// Lets it go on without us.
    pub fn leave_running(mut self) {
        if let Some(child) = self.child.take() {
            forget(child.id());
        }
    }

    /// Its name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }
}

fn forget(pid: u32) {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner).retain(|running| *running != pid);
}

/// From now on `SIGINT` and `SIGTERM` end what was started here (also [`Lifetime::MayStay`]), then this program. Call it first
/// in `main`: threads inherit the mask.
pub fn end_all_on_signal() -> Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block().context("hold back signals")?;
    thread::spawn(move || {
        let _ = signals.wait();
        for group in RUNNING.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = killpg(Pid::from_raw(i32::try_from(*group).unwrap_or(i32::MAX)), Signal::SIGKILL);
        }
        eprintln!("interrupted; the machines are ended");
        std::process::exit(130);
    });
    Ok(())
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    use std::time::{Duration, Instant};

    const CHILD: &str = "KURRENT_HARNESS_TEST_CHILD";

    fn sleeper(lifetime: Lifetime) -> Result<Process> {
        let mut command = Command::new("sleep");
        command.arg("1000");
        Process::start("sleeper", command, lifetime)
    }

    fn is_gone_soon(pid: u32) -> bool {
        let deadline = Instant::now() + Duration::from_secs(10);
        // A zombie has no command line: whoever must reap it, it runs no more.
        while std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty()) {
            if Instant::now() > deadline {
                return false;
            }
            thread::sleep(Duration::from_millis(10));
        }
        true
    }

    #[test]
    fn a_child_is_gone_when_its_owner_drops_it() -> Result<()> {
        let process = sleeper(Lifetime::Ours)?;
        let pid = process.pid().context("it runs")?;
        drop(process);
        assert!(is_gone_soon(pid));
        Ok(())
    }

    /// Plays the killed program in the next test; on its own it does nothing.
    #[test]
    fn the_program_that_is_killed() -> Result<()> {
        if std::env::var_os(CHILD).is_some() {
            // From a thread that ends at once: that must not end the child.
            let process = thread::spawn(|| sleeper(Lifetime::Ours)).join().map_err(|_| anyhow!("thread"))??;
            eprintln!("child {}", process.pid().context("it runs")?);
            thread::sleep(Duration::from_secs(60));
        }
        Ok(())
    }

    #[test]
    fn a_child_does_not_outlive_a_program_that_is_killed() -> Result<()> {
        let mut program = Command::new(std::env::current_exe()?)
            .args(["--exact", "process::tests::the_program_that_is_killed", "--nocapture"])
            .env(CHILD, "1")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let lines = BufReader::new(program.stderr.take().context("stderr")?).lines();
        let pid = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("child ")?.parse::<u32>().ok()).context("a child")?;
        program.kill()?;
        program.wait()?;
        assert!(is_gone_soon(pid), "process {pid} outlived its program");
        Ok(())
    }
}
