//! Builds the lab's operating-system master: a real Debian 12 with systemd, 4K-native GPT, one ext4 root.
//!
//! Packages come from the machine's own apt sources; nothing is mounted and no privilege is needed (`mmdebstrap` makes the
//! tree, `fakeroot` keeps its owners, `mkfs.ext4 -d` makes the file system). The result is kept until this recipe changes.
//! Lab only: `root` logs in without a password, so that tests can drive a worker through its serial console.

use crate::tools::{self, run};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Its file name, here and on the appliance: `_tpl_` makes it a master there.
pub const MASTER_NAME: &str = "debian_tpl_12.img";

const SUITE: &str = "bookworm";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// 384 MiB: 200 are used, and the lab sends all of it to the appliance, through TLS under emulation.
const DISK_BYTES: u64 = 384 << 20;
/// First usable byte: 1 MiB, the alignment that every partitioning tool uses.
pub const ROOT_OFFSET: u64 = 1 << 20;
/// Left free at the end for the backup GPT.
pub const TAIL_BYTES: u64 = 1 << 20;
/// Beyond minbase: an init, devices, addresses, modules and `ps`.
const PACKAGES: &str = "systemd-sysv,udev,iproute2,kmod,procps";
/// What nobody reads on a worker in the lab; a third of the size.
const LEFT_OUT: [&str; 4] = ["/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*"];

/// Units that only cost seconds under emulation: timers, kernel file systems no test reads, first-boot chores.
const MASKED: &[&str] = &[
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dev-hugepages.mount",
    "dev-mqueue.mount",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty-static.service",
    "getty@tty1.service",
    "kmod-static-nodes.service",
    "modprobe@.service",
    "proc-sys-fs-binfmt_misc.automount",
    "sys-fs-fuse-connections.mount",
    "sys-kernel-config.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "systemd-ask-password-console.path",
    "systemd-ask-password-wall.path",
    "systemd-binfmt.service",
    "systemd-firstboot.service",
    "systemd-hwdb-update.service",
    "systemd-initctl.socket",
    "systemd-journal-catalog-update.service",
    "systemd-journal-flush.service",
    "systemd-machine-id-commit.service",
    "systemd-modules-load.service",
    "systemd-pstore.service",
    "systemd-sysusers.service",
    "systemd-tmpfiles-clean.timer",
    "systemd-update-utmp-runlevel.service",
    "systemd-update-utmp.service",
];

/// Files written into the tree, path and content.
const FILES: &[(&str, &str)] = &[
    // Empty, not absent: systemd then makes an identity for this boot without the first-boot chores.
    ("etc/machine-id", ""),
    // A worker's hostname comes from its Worker; this one showing up means that stage-1 did not set it.
    ("etc/hostname", "debian-tpl\n"),
    ("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"),
    ("etc/fstab", "LABEL=root / ext4 defaults,errors=remount-ro 0 1\n"),
    ("etc/systemd/journald.conf.d/lab.conf", "[Journal]\nStorage=volatile\n"),
    // udev looks at what tests look at: all the devices of a PC cost ten seconds of each boot under emulation.
    (
        "etc/systemd/system/systemd-udev-trigger.service.d/lab.conf",
        "[Service]\nExecStart=\nExecStart=udevadm trigger --action=add --subsystem-match=block --subsystem-match=net\n\
         ExecStart=udevadm trigger --action=add --sysname-match=ttyS0\n",
    ),
];

/// `target/lab/debian_tpl_12.img`, built when it is missing or its recipe has changed.
pub fn ensure_built(say: &mut dyn FnMut(&str)) -> Result<PathBuf> {
    let dir = tools::target_dir().join("lab");
    fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    let _only_one = tools::lock(&dir.join("master.lock"))?;
    let image = dir.join(MASTER_NAME);
    let stamp = dir.join("master.recipe");
    let recipe = recipe();
    if image.exists() && fs::read_to_string(&stamp).is_ok_and(|old| old == recipe) {
        return Ok(image);
    }
    say("building the Debian 12 master (about a minute, only when its recipe changes)");
    let _ = fs::remove_file(&stamp);
    build(&dir, &image).context("build the Debian master")?;
    fs::write(&stamp, recipe).with_context(|| format!("write {}", stamp.display()))?;
    Ok(image)
}

/// Everything that decides the content, as text: a change here is a rebuild.
fn recipe() -> String {
    let mut text = format!("3 {SUITE} {PACKAGES} {DISK_BYTES} {ROOT_OFFSET} {TAIL_BYTES}\n{}\n", LEFT_OUT.join("\n"));
    for unit in MASKED {
        let _ = writeln!(text, "mask {unit}");
    }
    for (path, content) in FILES {
        let _ = writeln!(text, "file {path} {content:?}");
    }
    text
}

fn build(dir: &Path, image: &Path) -> Result<()> {
    let sources = dir.join("sources.list");
    fs::write(&sources, machine_sources()?).with_context(|| format!("write {}", sources.display()))?;
    let tar = dir.join("master.tar");
    let mut debootstrap = Command::new("mmdebstrap");
    debootstrap.args(["--quiet", "--variant=minbase", "--aptopt=Acquire::Languages \"none\""]);
    debootstrap.arg(format!("--include={PACKAGES}"));
    debootstrap.args(LEFT_OUT.iter().map(|path| format!("--dpkgopt=path-exclude={path}")));
    // An empty password field, not a deleted account: `login` then asks nothing on the console.
    debootstrap.arg("--customize-hook=chroot \"$1\" passwd -d root >/dev/null");
    debootstrap.args([SUITE.as_ref(), tar.as_os_str(), sources.as_os_str()]);
    run(&mut debootstrap)?;

    let tree = dir.join("master.tree");
    let script = dir.join("master.sh");
    fs::write(&script, tree_script(&tree, &tar, image)).with_context(|| format!("write {}", script.display()))?;
    write_gpt(image, DISK_BYTES)?;
    // Without root, fakeroot remembers the owners of the unpacked tree for as long as the script runs.
    let mut shell = Command::new(if nix::unistd::geteuid().is_root() { "sh" } else { "fakeroot" });
    if !nix::unistd::geteuid().is_root() {
        shell.arg("sh");
    }
    run(shell.args(["-eu"]).arg(&script))?;
    for left in [&tar, &script] {
        fs::remove_file(left).with_context(|| format!("remove {}", left.display()))?;
    }
    Ok(())
}

/// Unpacks the tree, writes the lab's files and makes the file system inside the partition.
fn tree_script(tree: &Path, tar: &Path, image: &Path) -> String {
    let tree = tools::quoted(tree);
    let mut text = format!("rm -rf {tree}; mkdir {tree}; tar -C {tree} -xf {}\ncd {tree}\n", tools::quoted(tar));
    text.push_str("mkdir -p etc/systemd/system/systemd-udev-trigger.service.d etc/systemd/journald.conf.d\n");
    for unit in MASKED {
        let _ = writeln!(text, "ln -sf /dev/null etc/systemd/system/{unit}");
    }
    text.push_str("ln -sf /lib/systemd/system/multi-user.target etc/systemd/system/default.target\n");
    for (path, content) in FILES {
        let _ = writeln!(text, "rm -f {path}; printf %s {} >{path}", tools::quoted(Path::new(content)));
    }
    let kib = (DISK_BYTES - ROOT_OFFSET - TAIL_BYTES) / 1024;
    let _ = writeln!(
        text,
        "mkfs.ext4 -q -F -b 4096 -L root -E offset={ROOT_OFFSET},nodiscard -d {tree} {} {kib}k\ncd /; rm -rf {tree}",
        tools::quoted(image)
    );
    text
}

/// One GPT for 4096-byte blocks with one partition of the x86-64 root type, from [`ROOT_OFFSET`] to [`TAIL_BYTES`] before the end.
pub fn write_gpt(image: &Path, bytes: u64) -> Result<()> {
    let _ = fs::remove_file(image);
    let file = fs::File::create_new(image).with_context(|| format!("create {}", image.display()))?;
    file.set_len(bytes).with_context(|| format!("size {}", image.display()))?;
    let block = gpt::disk::LogicalBlockSize::Lb4096;
    let device: gpt::DiskDeviceObject =
        Box::new(fs::OpenOptions::new().read(true).write(true).open(image).with_context(|| format!("open {}", image.display()))?);
    let mut disk = gpt::GptConfig::new()
        .writable(true)
        .logical_block_size(block)
        .create_from_device(device, None)
        .context("begin a partition table")?;
    disk.update_partitions(BTreeMap::new()).context("empty partition table")?;
    let first = ROOT_OFFSET / 4096;
    let blocks = (bytes - ROOT_OFFSET - TAIL_BYTES) / 4096;
    disk.add_partition_at("root", 1, first, blocks, gpt::partition_types::LINUX_ROOT_X64, 0).context("root partition")?;
    disk.write().context("write the partition table")?;
    let mut protective = fs::OpenOptions::new().write(true).open(image).with_context(|| format!("open {}", image.display()))?;
    let last = u32::try_from(bytes / 4096 - 1).unwrap_or(u32::MAX);
    gpt::mbr::ProtectiveMBR::with_lb_size(last).overwrite_lba0(&mut protective).context("protective MBR")?;
    Ok(())
}

/// The machine's own Debian sources of this suite, whichever file and format they are written in.
fn machine_sources() -> Result<String> {
    let format = "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)";
    let listed = run(Command::new("apt-get").args(["indextargets", "--format", format, "Created-By: Packages"]))?;
    let mut lines: Vec<String> = Vec::new();
    for line in listed.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [uri, release, "main", "Debian"] = words.as_slice() else { continue };
        if release.starts_with(SUITE) {
            lines.push(format!("deb [signed-by={KEYRING}] {uri} {release} main"));
        }
    }
    lines.sort();
    lines.dedup();
    ensure!(
        lines.iter().any(|line| line.contains(&format!(" {SUITE} "))),
        "apt on this machine has no Debian 12 ({SUITE}) main source with a fetched index; run `apt-get update`, or use a Debian 12 machine"
    );
    Ok(lines.join("\n") + "\n")
}
