//! A network namespace with a bridge: the boot network of the machine tests. Needs root; `ip` does the work.

use crate::tools::run;
use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, setns};
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;

/// First part of every namespace name; the second is the process that made it.
const PREFIX: &str = "kurrent-lab-";
/// Name of the bridge inside.
pub const BRIDGE: &str = "boot";

/// Namespaces of this program. Tests share a network through a static, which is never dropped.
static OPEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// One boot network. Gone on drop, or when the program ends.
#[derive(Debug)]
pub struct BootNetwork {
    netns: String,
    taps: AtomicU32,
}

impl BootNetwork {
    /// Makes the namespace and a bridge in it; our own address on the bridge is `address` (`a.b.c.d/n`).
    pub fn new(address: &str) -> Result<Self> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        remove_abandoned();
        let netns = format!("{PREFIX}{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
        run(Command::new("ip").args(["netns", "add", &netns])).context("make a network namespace (machine tests need root)")?;
        delete_at_exit(&netns);
        let network = Self { netns, taps: AtomicU32::new(0) };
        network.ip(&["link", "set", "lo", "up"])?;
        network.ip(&["link", "add", BRIDGE, "type", "bridge", "stp_state", "0", "forward_delay", "0"])?;
        network.ip(&["addr", "add", address, "dev", BRIDGE])?;
        network.ip(&["link", "set", BRIDGE, "up"])?;
        Ok(network)
    }

    /// Name for `ip netns exec`.
    pub fn name(&self) -> &str {
        &self.netns
    }

    /// A new tap device on the bridge.
    pub fn tap(&self) -> Result<String> {
        let tap = format!("tap{}", self.taps.fetch_add(1, Ordering::Relaxed));
        self.ip(&["tuntap", "add", &tap, "mode", "tap"])?;
        self.ip(&["link", "set", &tap, "master", BRIDGE])?;
        self.ip(&["link", "set", &tap, "up"])?;
        Ok(tap)
    }

    /// `program` to be run inside.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.netns]).arg(program);
        command
    }

    /// A cable to the namespace of `other`: its end here is a port of the bridge, its end there is the interface `name`.
    pub fn cable(&self, other: &Self, name: &str) -> Result<()> {
        self.ip(&["link", "add", name, "type", "veth", "peer", "name", name, "netns", &other.netns])?;
        self.ip(&["link", "set", name, "master", BRIDGE])?;
        self.ip(&["link", "set", name, "up"])?;
        other.ip(&["link", "set", name, "up"]).map(drop)
    }

    /// `ip` inside.
    pub fn ip(&self, arguments: &[&str]) -> Result<String> {
        run(Command::new("ip").args(["-n", &self.netns]).args(arguments))
    }
}

impl Drop for BootNetwork {
    fn drop(&mut self) {
        OPEN.lock().unwrap_or_else(PoisonError::into_inner).retain(|open| *open != self.netns);
        let _ = run(Command::new("ip").args(["netns", "delete", &self.netns]));
    }
}

/// Runs `work` in a thread inside the namespace; sockets made there stay there.
pub fn enter<T: Send + 'static>(netns: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let handle = File::open(Path::new("/run/netns").join(netns)).with_context(|| format!("open namespace {netns}"))?;
    let inside = thread::spawn(move || setns(&handle, CloneFlags::CLONE_NEWNET).map(|()| work()));
    inside.join().map_err(|_| anyhow!("work in namespace {netns} panicked"))?.with_context(|| format!("enter namespace {netns}"))
}

fn delete_at_exit(netns: &str) {
    static ONCE: Once = Once::new();
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).push(netns.to_owned());
    // SAFETY: the handler is a plain function that unwinds nowhere; atexit only records it.
    ONCE.call_once(|| unsafe {
        libc::atexit(at_exit);
    });
}

/// Machines that still run inside keep the namespace itself until the kernel ends them with us; its name goes now.
extern "C" fn at_exit() {
    let open = OPEN.lock().map(|open| open.clone()).unwrap_or_default();
    for netns in open {
        let _ = run(Command::new("ip").args(["netns", "delete", &netns]));
    }
}

/// A run that was killed leaves its namespace; the name tells which process made it.
fn remove_abandoned() {
    for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()).and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = run(Command::new("ip").args(["netns", "delete", &name]));
        }
    }
}
