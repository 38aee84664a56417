//! Processes: starting services with their output in pipes, reaping everything, short runs with a deadline.

use kurrent_core::init::supervise::Service;
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

/// Starts a service; its process id and its two outputs.
pub fn spawn(service: &Service) -> io::Result<(u32, [Output; 2])> {
    let (program, arguments) = service.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("PATH", "/usr/bin:/sbin").current_dir("/");
    // A group of its own: a signal for it does not reach PID 1's other children.
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn()?;
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
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("PATH", "/usr/bin:/sbin").current_dir("/");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
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
