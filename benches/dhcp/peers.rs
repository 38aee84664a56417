//! The servers that are compared: each started in the server's namespace with a configuration that gives the same addresses.

use anyhow::{Context, Result, bail};
use kurrent_harness::process::{Lifetime, Process};
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Our address, in the network of the storm.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// The relay's address in the network behind it.
pub const RELAY: Ipv4Addr = Ipv4Addr::new(10, 80, 0, 1);

/// Who serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// `kurrentd`, as it is.
    Kurrent,
    /// dnsmasq, as it is.
    Dnsmasq,
    /// dnsmasq that does not ping before it offers.
    DnsmasqNoPing,
    /// Kea, as it is: one thread, the lease file written but not synced.
    Kea,
    /// Kea with a thread for each processor.
    KeaThreads,
}

/// All, ours first.
pub const ALL: [Peer; 5] = [Peer::Kurrent, Peer::Dnsmasq, Peer::DnsmasqNoPing, Peer::Kea, Peer::KeaThreads];

impl Peer {
    /// For the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kurrent => "kurrentd",
            Self::Dnsmasq => "dnsmasq",
            Self::DnsmasqNoPing => "dnsmasq --no-ping",
            Self::Kea => "kea",
            Self::KeaThreads => "kea, threads",
        }
    }

    /// Starts it with new, empty leases kept in `folder` (on the disk).
    pub fn start(self, netns: &str, folder: &Path) -> Result<Process> {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder)?;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", netns]);
        match self {
            Self::Kurrent => kurrent(&mut command, folder)?,
            Self::Dnsmasq | Self::DnsmasqNoPing => dnsmasq(&mut command, folder, self == Self::DnsmasqNoPing)?,
            Self::Kea | Self::KeaThreads => kea(&mut command, folder, self == Self::KeaThreads)?,
        }
        let log = fs::File::create(folder.join("log"))?;
        command.stderr(log.try_clone()?).stdout(log);
        Process::start(self.name(), command, Lifetime::Ours)
    }
}

fn kurrent(command: &mut Command, folder: &Path) -> Result<()> {
    for name in ["state", "disks", "files"] {
        fs::create_dir_all(folder.join(name))?;
    }
    let dir = folder.display();
    let text = format!(
        "apiVersion: kurrent.io/v1\nkind: ApplianceConfiguration\nmetadata:\n  name: bench\nspec:\n  stateDir: {dir}/state\n  filesDir: {dir}/files\n  \
         agent:\n    diskDir: {dir}/disks\n  networking:\n    boot:\n      address: {SERVER}/16\n  dhcp:\n    range:\n      start: 10.77.16.0\n      \
         end: 10.77.47.255\n    newcomersPerMinute: 65536\n    subnets:\n      - network: 10.80.0.0/16\n        router: {RELAY}\n        range:\n          \
         start: 10.80.16.0\n          end: 10.80.239.255\n"
    );
    let file = folder.join("kurrent.yaml");
    fs::write(&file, text)?;
    command.arg(env!("CARGO_BIN_EXE_kurrentd")).arg("run").arg("--config").arg(file).arg("--status").arg(folder.join("status"));
    Ok(())
}

fn dnsmasq(command: &mut Command, folder: &Path, no_ping: bool) -> Result<()> {
    command.arg(unpacked("usr/sbin/dnsmasq")?);
    command.args([
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--port=0",
        "--user=root",
        "--dhcp-authoritative",
        "--dhcp-lease-max=65000",
    ]);
    command.args(["--log-facility=-", "--quiet-dhcp"]);
    command.arg(format!("--pid-file={}", folder.join("pid").display()));
    command.arg(format!("--dhcp-leasefile={}", folder.join("leases").display()));
    command.arg("--dhcp-range=10.77.16.0,10.77.47.255,255.255.0.0,1h");
    command.arg("--dhcp-range=10.80.16.0,10.80.239.255,255.255.0.0,1h");
    command.arg("--dhcp-boot=snponly.efi");
    if no_ping {
        command.arg("--no-ping");
    }
    Ok(())
}

fn kea(command: &mut Command, folder: &Path, threads: bool) -> Result<()> {
    let threads = if threads { r#"{"enable-multi-threading": true}"# } else { r#"{"enable-multi-threading": false}"# };
    let text = format!(
        r#"{{"Dhcp4": {{
  "interfaces-config": {{"interfaces": ["s0"]}},
  "multi-threading": {threads},
  "lease-database": {{"type": "memfile", "persist": true, "name": "{leases}"}},
  "valid-lifetime": 3600, "boot-file-name": "snponly.efi", "next-server": "{SERVER}",
  "subnet4": [
    {{"id": 1, "subnet": "10.77.0.0/16", "interface": "s0", "pools": [{{"pool": "10.77.16.0 - 10.77.47.255"}}]}},
    {{"id": 2, "subnet": "10.80.0.0/16", "relay": {{"ip-addresses": ["{RELAY}"]}}, "pools": [{{"pool": "10.80.16.0 - 10.80.239.255"}}]}}
  ],
  "loggers": [{{"name": "kea-dhcp4", "severity": "ERROR", "output_options": [{{"output": "stderr"}}]}}]
}}}}"#,
        leases = folder.join("leases.csv").display()
    );
    let file = folder.join("kea.json");
    fs::write(&file, text)?;
    command.arg("env");
    command.arg(format!("LD_LIBRARY_PATH={}", unpacked("usr/lib/x86_64-linux-gnu")?.display()));
    command.arg(format!("KEA_LOCKFILE_DIR={}", folder.display())).arg(format!("KEA_PIDFILE_DIR={}", folder.display()));
    command.arg(format!("KEA_LFC_EXECUTABLE={}", unpacked("usr/sbin/kea-lfc")?.display()));
    command.arg(unpacked("usr/sbin/kea-dhcp4")?).arg("-c").arg(file);
    Ok(())
}

fn unpacked(path: &str) -> Result<PathBuf> {
    let place = kurrent_harness::tools::target_dir().join("deps/bench").join(path);
    if !place.exists() {
        bail!("{} is missing; `make bench-deps` unpacks it", place.display());
    }
    place.canonicalize().context("the unpacked programs")
}
