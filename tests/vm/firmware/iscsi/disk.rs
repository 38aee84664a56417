//! The disk behind the target: a boot loader, a kernel, and a system that tells what it sees of the login and ends.

use crate::vlan::kernel;
use anyhow::{Context, Result, ensure};
use kurrent_harness::evidence::Run;
use kurrent_harness::tools::{run, target_dir};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

const DISK_BYTES: u64 = 64 << 20;
/// systemd-boot's entry. Everything it starts is on the disk.
const ENTRY: &str = "title lab\nlinux /vmlinuz\ninitrd /initrd\noptions console=ttyS0 quiet panic=-1\n";

/// PID 1. What is looked for comes reversed: the disk goes over the wire, which must not have it.
const INIT: &str = "#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc && $b mount -t sysfs sysfs /sys && $b mount -t devtmpfs dev /dev || exit 1
$b insmod /efivarfs.ko && $b mount -t efivarfs efivarfs /sys/firmware/efi/efivars || exit 1
cd /sys/firmware/efi/efivars
$b rev /hidden >/looked-for
count() { $b cat \"$@\" | $b grep -a -F -c -f /looked-for; }
echo lab-system variables-of-the-boot-manager $($b ls | $b grep -c ^Boot)
echo lab-system variables-of-ours $($b ls | $b grep -c -i kurrent)
echo lab-system secrets-in-variables $(count *)
$b dmesg >/log
echo lab-system secrets-in-the-log $(count /log /proc/cmdline)
echo lab-system secrets-in-ibft $($b tr '\\0' '\\n' </sys/firmware/acpi/tables/iBFT | $b grep -a -F -c -f /looked-for)
echo lab-system-ends
$b poweroff -f
";

/// Secrets that are looked for, not written anywhere as they are.
pub struct Hidden(String);

impl Hidden {
    /// One a line, reversed.
    pub fn new(secrets: &[&str]) -> Self {
        Self(secrets.iter().map(|secret| secret.chars().rev().collect::<String>() + "\n").collect())
    }
}

/// A disk with one FAT file system, made without mounting it.
pub fn bootable(lab: &Run, hidden: &Hidden) -> Result<PathBuf> {
    let (kernel, modules) = kernel()?;
    let tree = lab.scratch().join("system");
    for folder in ["bin", "proc", "sys", "dev"] {
        fs::create_dir_all(tree.join(folder)).with_context(|| format!("make {folder}"))?;
    }
    fs::copy("/bin/busybox", tree.join("bin/busybox")).context("package `busybox-static`, installed by `make deps`")?;
    let module = File::create(tree.join("efivarfs.ko")).context("create the module")?;
    let status =
        Command::new("xz").arg("-dc").arg(modules.join("fs/efivarfs/efivarfs.ko.xz")).stdout(module).status().context("start xz")?;
    ensure!(status.success(), "unpack efivarfs");
    fs::write(tree.join("hidden"), &hidden.0).context("write what is looked for")?;
    fs::write(tree.join("init"), INIT).context("write init")?;
    run(Command::new("chmod").arg("755").arg(tree.join("init")))?;
    run(Command::new("sh").current_dir(&tree).args(["-c", "find . | cpio -o -H newc --quiet > ../initrd"]))?;

    let write = |name: &str, text: &str| {
        let path = lab.scratch().join(name);
        fs::write(&path, text).with_context(|| format!("write {name}")).map(|()| path)
    };
    let (loader, entry) = (write("loader.conf", "timeout 0\n")?, write("lab.conf", ENTRY)?);
    let disk = lab.scratch().join("iscsi.img");
    File::create(&disk).and_then(|file| file.set_len(DISK_BYTES)).context("make the disk")?;
    let with = |program: &str| {
        let mut command = Command::new(program);
        command.arg("-i").arg(&disk);
        command
    };
    run(Command::new("/usr/sbin/mkfs.vfat").arg(&disk))?;
    run(with("mmd").args(["::EFI", "::EFI/BOOT", "::loader", "::loader/entries"]))?;
    let boot = target_dir().join("deps/systemd-boot-efi/usr/lib/systemd/boot/efi/systemd-bootx64.efi");
    for (from, to) in [
        (boot, "EFI/BOOT/BOOTX64.EFI"),
        (loader, "loader/loader.conf"),
        (entry, "loader/entries/lab.conf"),
        (kernel, "vmlinuz"),
        (lab.scratch().join("initrd"), "initrd"),
    ] {
        run(with("mcopy").arg(&from).arg(format!("::{to}")))?;
    }
    Ok(disk)
}

/// What the system said: no variable of ours and no secret, but in the table by which it logs in itself.
pub fn check_system(console: &str) -> Result<()> {
    let told = |what: &str| {
        let (_, rest) = console.split_once(&format!("lab-system {what} "))?;
        rest.split_whitespace().next()?.parse::<usize>().ok()
    };
    ensure!(told("variables-of-the-boot-manager").is_some_and(|count| count > 0), "the system sees no variables at all");
    for nothing in ["variables-of-ours", "secrets-in-variables", "secrets-in-the-log"] {
        ensure!(told(nothing) == Some(0), "{nothing}: {:?}", told(nothing));
    }
    // What looks finds what is there: the operating system's own login needs both, and iPXE hands them on in the iBFT.
    ensure!(told("secrets-in-ibft") == Some(2), "secrets in the iBFT: {:?}", told("secrets-in-ibft"));
    Ok(())
}
