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
/// A tap device without a machine.
const SINK: &str = "sink";
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

    /// Drops what comes from the machine at `tap` in TCP segments that begin with the first 16 octets of `text`, until
    /// [`Self::pass`] with the same number.
    pub fn drop_segments(&self, tap: &str, number: u32, text: &str) -> Result<()> {
        let words: Vec<u32> =
            text.as_bytes().chunks_exact(4).take(4).filter_map(|word| Some(u32::from_be_bytes(word.try_into().ok()?))).collect();
        // To where nobody is: not every kernel that redirects has the action that drops.
        if self.ip(&["link", "show", SINK]).is_err() {
            self.ip(&["tuntap", "add", SINK, "mode", "tap"])?;
        }
        // Behind an IPv4 head of 20 octets and a TCP head with the options that machines use: none, or time stamps.
        for head in [40, 52] {
            let (number, protocol) = (number.to_string(), ["match", "ip", "protocol", "6", "0xff"]);
            let mut rule: Vec<String> =
                ["filter", "add", "dev", tap, "ingress", "pref", &number, "protocol", "ip", "u32"].map(Into::into).to_vec();
            rule.extend(protocol.map(Into::into));
            for (word, at) in words.iter().zip((head..).step_by(4)) {
                rule.extend(["match".into(), "u32".into(), format!("{word:#010x}"), "0xffffffff".into(), "at".into(), at.to_string()]);
            }
            rule.extend(["action", "mirred", "egress", "redirect", "dev", SINK].map(Into::into));
            self.tc(tap, &rule)?;
        }
        Ok(())
    }

    /// Gives what the appliance at `from` sends to its TCP port `port`'s peers to the machine at `to` alone, whoever the bridge thinks
    /// they are, until [`Self::pass`] at `from` with the same number.
    pub fn divert(&self, from: &str, number: u32, port: u16, to: &str) -> Result<()> {
        let (number, port) = (number.to_string(), port.to_string());
        let rule =
            ["filter", "add", "dev", from, "ingress", "pref", &number, "protocol", "ip", "u32", "match", "ip", "sport", &port, "0xffff"];
        let rule = rule.into_iter().chain(["action", "mirred", "egress", "redirect", "dev", to]);
        self.tc(from, &rule.map(Into::into).collect::<Vec<_>>())
    }

    /// The bridge does not look for anybody behind `tap` any more, whoever sends from there.
    pub fn forget(&self, tap: &str) -> Result<()> {
        self.ip(&["link", "set", "dev", tap, "type", "bridge_slave", "learning", "off"]).map(drop)
    }

    /// Ends the rules with this number at `tap`.
    pub fn pass(&self, tap: &str, number: u32) -> Result<()> {
        let number = number.to_string();
        run(Command::new("tc").args(["-n", &self.netns, "filter", "del", "dev", tap, "ingress", "pref", &number])).map(drop)
    }

    /// `tc` inside, at a tap that may have had no rules before.
    fn tc(&self, tap: &str, rule: &[String]) -> Result<()> {
        let _ = Command::new("tc").args(["-n", &self.netns, "qdisc", "add", "dev", tap, "clsact"]).output();
        run(Command::new("tc").args(["-n", &self.netns]).args(rule)).map(drop)
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
