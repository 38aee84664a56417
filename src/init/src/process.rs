//! Processes: starting services with their output in pipes, reaping everything, short runs with a deadline.

use kurrent_core::init::supervise::Service;
use nix::sys::signal::SigSet;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{ChildStderr, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// A line that never ends is cut here.
const LINE_OCTETS: usize = 8 << 10;
/// Between looks at a short run.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Output of a service, read line by line.
pub struct Output {
    /// Whose it is.
    pub service: &'static str,
    pipe: Pipe,
    partial: Vec<u8>,
}

enum Pipe {
    Out(ChildStdout),
    Err(ChildStderr),
}

impl AsFd for Output {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.pipe {
            Pipe::Out(pipe) => pipe.as_fd(),
            Pipe::Err(pipe) => pipe.as_fd(),
        }
    }
}

impl Output {
    /// Reads once (after poll said that there is something): whole lines, and whether the pipe is at its end.
    pub fn read(&mut self) -> (Vec<String>, bool) {
        let mut octets = [0; 4096];
        let length = match &mut self.pipe {
            Pipe::Out(pipe) => pipe.read(&mut octets),
            Pipe::Err(pipe) => pipe.read(&mut octets),
        };
        let ended = match &length {
            Ok(length) => *length == 0,
            Err(fault) => fault.kind() != io::ErrorKind::Interrupted && fault.kind() != io::ErrorKind::WouldBlock,
        };
        self.partial.extend(octets.get(..length.unwrap_or(0)).unwrap_or_default());
        let mut lines = Vec::new();
        while let Some(end) = self.partial.iter().position(|octet| *octet == b'\n') {
            let rest = self.partial.split_off(end + 1);
            lines.push(std::mem::replace(&mut self.partial, rest));
        }
        if ended || self.partial.len() > LINE_OCTETS {
            lines.push(std::mem::take(&mut self.partial));
        }
        let text = |line: Vec<u8>| String::from_utf8_lossy(&line).trim_end().to_owned();
        (lines.into_iter().map(text).filter(|line| !line.is_empty()).collect(), ended)
    }
}

/// A command with nothing of PID 1 in it but a path to search.
fn clean(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/bin:/sbin").current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: sigprocmask(2) may be called between fork and exec.
    unsafe {
        // PID 1 blocks the signals that it reads from a descriptor, and a child inherits that: SIGTERM would never reach it.
        command.pre_exec(|| Ok(SigSet::empty().thread_set_mask()?));
    }
    command
}

/// Starts a service; its process id and its two outputs.
pub fn spawn(service: &Service) -> io::Result<(u32, [Output; 2])> {
    let (program, arguments) = service.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    // A group of its own: a signal for it does not reach PID 1's other children.
    let mut child = clean(program).args(arguments).process_group(0).spawn()?;
    let missing = || io::Error::from(io::ErrorKind::BrokenPipe);
    let out = Pipe::Out(child.stdout.take().ok_or_else(missing)?);
    let err = Pipe::Err(child.stderr.take().ok_or_else(missing)?);
    let output = |pipe| Output { service: service.name, pipe, partial: Vec::new() };
    Ok((child.id(), [output(out), output(err)]))
}

/// Every process that has ended since the last look: services, and orphans that PID 1 inherited.
pub fn reap() -> Vec<(u32, String)> {
    let mut ended = Vec::new();
    loop {
        let (pid, how) = match waitpid(None::<Pid>, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) => (pid, format!("exit status {code}")),
            Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, format!("signal {signal}")),
            Ok(WaitStatus::StillAlive) | Err(_) => return ended,
            Ok(_) => continue,
        };
        if let Ok(pid) = u32::try_from(pid.as_raw()) {
            ended.push((pid, how));
        }
    }
}

/// Runs a short program to its end: exit code, output, error output.
pub fn run(program: &str, arguments: &[&str], deadline: Duration) -> io::Result<(Option<i32>, String, String)> {
    let mut child = clean(program).args(arguments).spawn()?;
    // Readers of their own: a full pipe must not stop the program before its deadline.
    let collect = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            if let Some(pipe) = pipe {
                let _ = pipe.take(1 << 20).read_to_end(&mut text);
            }
            String::from_utf8_lossy(&text).into_owned()
        })
    };
    let out = collect(child.stdout.take().map(|pipe| Box::new(pipe) as _));
    let err = collect(child.stderr.take().map(|pipe| Box::new(pipe) as _));
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if started.elapsed() > deadline {
            child.kill()?;
            child.wait()?;
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(LOOK_AGAIN);
    };
    Ok((status.code(), out.join().unwrap_or_default(), err.join().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_can_be_stopped_although_pid_1_blocks_the_signals() {
        SigSet::all().thread_block().unwrap();
        let (_, blocked, _) = run("/bin/sh", &["-c", "grep SigBlk /proc/self/status"], Duration::from_secs(10)).unwrap();
        SigSet::all().thread_unblock().unwrap();
        assert_eq!(blocked.trim(), "SigBlk:\t0000000000000000");
    }

    #[test]
    fn a_short_run_has_a_deadline_and_gives_both_outputs() {
        let (code, out, err) = run("/bin/sh", &["-c", "echo a; echo b >&2; exit 3"], Duration::from_secs(10)).unwrap();
        assert_eq!((code, out.as_str(), err.as_str()), (Some(3), "a\n", "b\n"));
        let fault = run("/bin/sleep", &["60"], Duration::from_millis(50)).unwrap_err();
        assert_eq!(fault.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn output_comes_in_whole_lines() {
        let service = Service { name: "test", command: ["/bin/sh", "-c", "printf 'a\nb'"].map(str::to_owned).to_vec() };
        let (_, [mut out, _]) = spawn(&service).unwrap();
        let mut lines = Vec::new();
        loop {
            let (more, ended) = out.read();
            lines.extend(more);
            if ended {
                break;
            }
        }
        assert_eq!(lines, ["a", "b"]);
    }
}
