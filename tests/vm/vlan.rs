//! DHCP on a VLAN: the daemon on `eth0.5` in a machine with the product's kernel, because a build machine's kernel may have no VLANs.
//! The machine is no appliance: kernel, busybox and `kurrentd`, up in some 10 s. We are at the other end of its wire, where tags are.

use anyhow::{Context, Result, ensure};
use kurrent_core::id::MacAddr;
use kurrent_harness::appliance::ADDRESS;
use kurrent_harness::evidence::Run;
use kurrent_harness::frame::{self, Dhcp};
use kurrent_harness::machine::Cpu;
use kurrent_harness::process::{Lifetime, Process};
use kurrent_harness::tools::{run, target_dir};
use kurrent_harness::wire::{Wire, free_group};
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Power-on to serving; about 12 s on an idle machine, the rest is for loaded ones.
const SERVES_WITHIN: Duration = Duration::from_secs(300);
const ANSWERS_WITHIN: Duration = Duration::from_secs(90);
/// Silence is believed after this.
const SILENCE: Duration = Duration::from_secs(2);
const VLAN: u16 = 5;
/// The machine's NIC.
const SERVER_MAC: [u8; 6] = [0x52, 0x54, 0, 0x4b, 5, 1];
const CLIENT: MacAddr = MacAddr([0x52, 0x54, 0, 0, 5, 1]);
const DHCP_OFFER: u8 = 2;
/// IEEE 802.1Q's EtherType; the tag is this and 2 octets more, behind the MACs.
const ETHERTYPE_VLAN: [u8; 2] = [0x81, 0x00];
/// In the order in which they need each other.
const MODULES: [&str; 8] = [
    "net/core/failover",
    "drivers/net/net_failover",
    "drivers/net/virtio_net",
    "net/llc/llc",
    "net/802/stp",
    "net/802/garp",
    "net/802/mrp",
    "net/8021q/8021q",
];

const CONFIGURATION: &str = "apiVersion: kurrent.io/v1
kind: ApplianceConfiguration
metadata:
  name: vlan
spec:
  networking:
    boot:
      interface: eth0.5
      address: 10.77.0.1/24
  stateDir: /run/state
  filesDir: /run/files
  agent:
    diskDir: /run/disks
";

/// PID 1 of the machine. Written out: the modules' names, in order, are put in.
const INIT: &str = "#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc && $b mount -t sysfs sysfs /sys && $b mount -t devtmpfs dev /dev || exit 1
for module in MODULES; do $b insmod /modules/$module.ko || exit 1; done
$b ip link set lo up && $b ip link set eth0 up && $b ip link add link eth0 name eth0.5 type vlan id 5 || exit 1
$b ip address add 10.77.0.1/24 dev eth0.5 && $b ip link set eth0.5 up && $b mkdir /run/state /run/disks /run/files || exit 1
exec /bin/kurrentd run --config /kurrent.yaml --status /run/status
";

/// The product's kernel, and the folder of its modules.
pub fn kernel() -> Result<(PathBuf, PathBuf)> {
    let package = target_dir().join("deps/linux-image-amd64");
    let only = |folder: PathBuf, prefix: &str| -> Result<PathBuf> {
        let entries = fs::read_dir(&folder).with_context(|| format!("{}: `make deps` gets the kernel", folder.display()))?;
        let mut found = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
        found.next().map(|entry| entry.path()).with_context(|| format!("nothing named {prefix}* in {}", folder.display()))
    };
    Ok((only(package.join("boot"), "vmlinuz-")?, only(package.join("usr/lib/modules"), "6.")?.join("kernel")))
}

/// A program and the libraries that it is linked with, at the same places in a tree.
fn install(program: &Path, tree: &Path) -> Result<()> {
    let to = tree.join("bin").join(program.file_name().context("a program's name")?);
    run(Command::new("strip").arg("-o").arg(&to).arg(program))?;
    for library in run(Command::new("ldd").arg(program))?.split_whitespace().filter(|word| word.starts_with('/')) {
        let to = tree.join(library.trim_start_matches('/'));
        fs::create_dir_all(to.parent().context("a library's folder")?)?;
        fs::copy(library, &to).with_context(|| format!("copy {library}"))?;
    }
    Ok(())
}

/// The machine's initramfs.
fn initramfs(lab: &Run, modules: &Path) -> Result<PathBuf> {
    let tree = lab.scratch().join("tree");
    for folder in ["bin", "proc", "sys", "dev", "run", "modules"] {
        fs::create_dir_all(tree.join(folder))?;
    }
    install(Path::new(env!("CARGO_BIN_EXE_kurrentd")), &tree)?;
    fs::copy("/bin/busybox", tree.join("bin/busybox")).context("package `busybox-static`, installed by `make deps`")?;
    let mut names = Vec::new();
    for module in MODULES {
        let name = module.rsplit('/').next().unwrap_or(module);
        let output = File::create(tree.join(format!("modules/{name}.ko")))?;
        let mut unpack = Command::new("xz");
        let status = unpack.arg("-dc").arg(modules.join(format!("{module}.ko.xz"))).stdout(output).status().context("start xz")?;
        ensure!(status.success(), "unpack {module}");
        names.push(name);
    }
    fs::write(tree.join("init"), INIT.replace("MODULES", &names.join(" ")))?;
    run(Command::new("chmod").arg("755").arg(tree.join("init")))?;
    fs::write(tree.join("kurrent.yaml"), CONFIGURATION)?;
    let image = lab.scratch().join("initramfs");
    let mut pack = Command::new("sh");
    run(pack.current_dir(&tree).args(["-c", "find . | cpio -o -H newc --quiet > ../initramfs"]))?;
    Ok(image)
}

/// What stands behind the MACs: the VLAN's tag and the rest of the frame, as without a tag.
fn untag(frame: &[u8]) -> (Option<u16>, Vec<u8>) {
    match frame {
        [macs @ .., _, _, _, _] if frame.get(12..14) == Some(&ETHERTYPE_VLAN) && macs.len() >= 12 => {
            let tag = u16::from_be_bytes([frame[14], frame[15]]) & 0xfff;
            (Some(tag), [&frame[..12], &frame[16..]].concat())
        }
        untagged => (None, untagged.to_vec()),
    }
}

/// A DISCOVER in a VLAN; without the broadcast flag, the answer has to find a machine that knows no address yet.
fn discover(xid: u32, vlan: Option<u16>, broadcast: bool) -> Vec<u8> {
    let mut frame = frame::discover(CLIENT, xid);
    if !broadcast {
        // `flags`, behind Ethernet, IP and UDP; UDP has no checksum here.
        frame[14 + 20 + 8 + 10] = 0;
    }
    let tag = vlan.map(|vlan| [ETHERTYPE_VLAN, vlan.to_be_bytes()].concat()).unwrap_or_default();
    [&frame[..12], &tag, &frame[12..]].concat()
}

/// A frame with the server's answer in it.
struct Answer {
    vlan: Option<u16>,
    /// Without its tag.
    frame: Vec<u8>,
    dhcp: Dhcp,
}

/// The server's answer to a transaction, if there is one.
fn answer(wire: &mut Wire, xid: u32, within: Duration) -> Result<Option<Answer>> {
    let found = wire.receive(within, |octets| frame::parse(&untag(octets).1).is_some_and(|dhcp| dhcp.op == 2 && dhcp.xid == xid))?;
    Ok(found.and_then(|octets| {
        let (vlan, frame) = untag(&octets);
        frame::parse(&frame).map(|dhcp| Answer { vlan, frame, dhcp })
    }))
}

#[test]
fn a_discover_in_a_vlan_is_answered_in_it_and_other_vlans_are_not() -> Result<()> {
    let lab = Run::new("vlan")?;
    let (kernel, modules) = kernel()?;
    let image = initramfs(&lab, &modules)?;
    let group = free_group()?;
    let mut wire = Wire::on_multicast(group)?;
    let console = lab.evidence().join("vlan.console");
    let mut command = Command::new("qemu-system-x86_64");
    // As the lab's machines (harness::machine), but for firmware and disk.
    command.args([
        "-nodefaults",
        "-accel",
        "tcg",
        "-cpu",
        Cpu::Usual.flags(),
        "-machine",
        "q35",
        "-m",
        "256",
        "-display",
        "none",
        "-no-reboot",
    ]);
    command.arg("-kernel").arg(kernel).arg("-initrd").arg(image).args(["-append", "console=ttyS0 quiet panic=-1"]);
    command.args(["-netdev", &format!("socket,id=net0,mcast={group},localaddr={}", Ipv4Addr::LOCALHOST)]);
    command.args(["-device", &format!("virtio-net-pci,netdev=net0,romfile=,mac={}", MacAddr(SERVER_MAC)), "-device", "virtio-rng-pci"]);
    command.arg("-serial").arg(format!("file:{}", console.display()));
    let mut machine = Process::start("vlan", command, Lifetime::Ours)?;
    let said = || fs::read(&console).map(|octets| String::from_utf8_lossy(&octets).into_owned()).unwrap_or_default();
    let deadline = Instant::now() + SERVES_WITHIN;
    while !said().contains("DHCP: serving") {
        ensure!(machine.ended().is_none() && Instant::now() < deadline, "the machine does not serve: {}", said());
        std::thread::sleep(Duration::from_millis(50));
    }

    for (xid, broadcast) in [(1, true), (2, false)] {
        wire.send(&discover(xid, Some(VLAN), broadcast))?;
        let Answer { vlan, frame, dhcp } = answer(&mut wire, xid, ANSWERS_WITHIN)?.with_context(|| format!("no answer: {}", said()))?;
        ensure!(vlan == Some(VLAN) && dhcp.message_type == DHCP_OFFER, "{vlan:?}: {dhcp:?}");
        let (mac, ip) = if broadcast { ([0xff; 6], Ipv4Addr::BROADCAST) } else { (CLIENT.0, dhcp.offered) };
        ensure!(frame[..6] == mac && frame[6..12] == SERVER_MAC, "between the wrong MACs: {:x?}", &frame[..12]);
        ensure!(frame[26..30] == ADDRESS.octets() && frame[30..34] == ip.octets(), "between the wrong addresses: {:?}", &frame[26..34]);
    }
    for (xid, vlan) in [(3, None), (4, Some(VLAN + 1))] {
        wire.send(&discover(xid, vlan, true))?;
        ensure!(answer(&mut wire, xid, SILENCE)?.is_none(), "{vlan:?} is not its network");
    }
    // It was not silent because it had stopped.
    wire.send(&discover(5, Some(VLAN), true))?;
    ensure!(answer(&mut wire, 5, ANSWERS_WITHIN)?.is_some(), "no answer any more: {}", said());
    lab.passed();
    Ok(())
}
