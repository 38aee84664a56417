//! A worker: a machine without a disk that boots from the network, and what its console says on the way.

use crate::appliance::{Appliance, Network};
use crate::evidence::Run;
use crate::machine::{Cpu, Firmware, Machine, Nic, OptionRom, Spec};
use crate::process::Lifetime;
use anyhow::{Context, Result, ensure};
use kurrent_core::id::MacAddr;
use serde_json::Value;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Enough for Debian by switch_root; 512 MiB also works, closer to the edge.
pub const MEMORY_MIB: u32 = 768;
/// Power-on to the first report; about 10 s on an idle machine.
pub const REPORTS_WITHIN: Duration = Duration::from_secs(300);
/// Power-on to a login prompt; about 30 s on an idle machine, and three minutes beside four others.
pub const LOGIN_WITHIN: Duration = Duration::from_secs(480);
/// A shell command on a console under emulation.
pub const SHELL_WITHIN: Duration = Duration::from_secs(120);

/// A read of one block over the network, under emulation, when the disk is there.
const DISK_ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// The MAC of worker `index` (0 to 255).
pub fn mac_of(index: u8) -> MacAddr {
    MacAddr([0x52, 0x54, 0x00, 0x77, 0x00, index])
}

/// The machine specification of worker `index`: MAC, UUID and firmware store are its own. Every second one is an old PC.
pub fn spec(lab: &Run, network: &Network, index: u8, lifetime: Lifetime) -> Result<Spec> {
    let mac = mac_of(index);
    Ok(Spec {
        name: format!("worker{index}"),
        memory_mib: MEMORY_MIB,
        cpu: if index.is_multiple_of(2) { Cpu::Old } else { Cpu::Usual },
        disk: None,
        firmware: Firmware::Uefi(lab.scratch().join(format!("worker{index}.vars"))),
        firmware_settings: Vec::new(),
        nics: vec![Nic { mac, attachment: network.attach()?, rom: OptionRom::None }],
        uuid: format!("77000000-0000-4000-8000-0000000000{index:02x}"),
        lifetime,
    })
}

/// The MAC of worker machine `spec`.
pub fn mac(spec: &Spec) -> MacAddr {
    spec.nics.first().map_or(MacAddr([0; 6]), |nic| nic.mac)
}

/// Waits for a login prompt with this hostname; when it came.
pub fn wait_for_login(machine: &mut Machine, hostname: &str, within: Duration) -> Result<Instant> {
    Ok(machine.console.wait_for(&format!("{hostname} login:"), within)?.at)
}

/// Logs in as root (the lab's master asks for no password) and waits for a working shell.
pub fn log_in(machine: &mut Machine) -> Result<()> {
    machine.console.send_line("root")?;
    // The prompt's own form is the shell's business; an answer is what counts.
    machine.console.wait_for("# ", SHELL_WITHIN)?;
    machine.console.shell("stty -echo cols 200", SHELL_WITHIN).map(drop)
}

/// The root file system's device must be the NVMe namespace.
pub fn check_root_device(machine: &mut Machine) -> Result<String> {
    let source = machine.console.shell("findmnt -n -o SOURCE /", SHELL_WITHIN)?.trim().to_owned();
    ensure!(source.starts_with("/dev/nvme0n1p"), "root is on {source}, not on /dev/nvme0n1p*");
    Ok(source)
}

/// A read of the disk itself (no cache) must succeed.
pub fn check_reads_disk(machine: &mut Machine) -> Result<()> {
    let answer = read_disk(machine)?;
    machine.console.wait_for(&answer, SHELL_WITHIN).context("the worker can not read its disk").map(drop)
}

/// A read of the disk itself (no cache) must not succeed. One that hangs does not.
pub fn check_reads_no_disk(machine: &mut Machine) -> Result<()> {
    let answer = read_disk(machine)?;
    ensure!(machine.console.wait_for(&answer, DISK_ANSWERS_WITHIN).is_err(), "the worker reads its disk");
    // The machine itself must still be there; only then was it the disk that did not answer.
    machine.console.shell("true", SHELL_WITHIN).map(drop)
}

/// Begins a read; what the console shows when the disk has answered. Each read has a number: an answer may come late.
fn read_disk(machine: &mut Machine) -> Result<String> {
    static READS: AtomicU32 = AtomicU32::new(0);
    let number = READS.fetch_add(1, Ordering::Relaxed);
    // In the background: a read of a dead disk can not even be killed, and the shell must stay usable.
    let read = "dd if=/dev/nvme0n1 of=/dev/null bs=4096 count=1 iflag=direct 2>/dev/null";
    machine.console.send_line(&format!("( {read} && echo disk-''answered-{number}. ) &"))?;
    Ok(format!("disk-answered-{number}."))
}

/// Waits until the appliance has this device in `state`.
pub fn wait_for_state(appliance: &Appliance, mac: MacAddr, state: &str, within: Duration) -> Result<Value> {
    let path = format!("/v1/devices/{mac}");
    appliance.api.wait_for(&format!("device {mac} in state {state}"), &path, within, |device| {
        (device.get("state").and_then(Value::as_str) == Some(state)).then(|| device.clone())
    })
}
