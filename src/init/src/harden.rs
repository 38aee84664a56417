//! What the appliance closes before its first driver: kernel settings, which NICs inherit, and the root file system.
//!
//! Modules stay loadable (`kernel.modules_disabled` would be for good): a NIC or a disk on USB may come any day. Only PID 1 has the
//! right to load them; `kurrentd` has given it up.

use rustix::mount::{MountFlags, mount_remount};
use std::fs;
use std::path::Path;

/// Setting, value, why. What this kernel does not have is passed over.
const SETTINGS: [(&str, &str, &str); 24] = [
    ("kernel/kptr_restrict", "2", "addresses of the kernel help only who attacks it"),
    ("kernel/dmesg_restrict", "1", "PID 1 reads the log and keeps it"),
    ("kernel/core_pattern", "|/bin/false", "a core holds secrets; there is no such program"),
    ("fs/suid_dumpable", "0", "the same"),
    ("kernel/sysrq", "0", "keys at the console would kill and reset without a word to the disks"),
    ("kernel/kexec_load_disabled", "1", "no other kernel without the firmware; for good"),
    ("kernel/unprivileged_bpf_disabled", "1", "nobody here loads programs into the kernel; for good"),
    ("net/core/bpf_jit_harden", "2", "the filters that are loaded, seccomp's, hold no code of an attacker's"),
    ("kernel/perf_event_paranoid", "3", "nobody measures"),
    ("kernel/io_uring_disabled", "2", "nobody uses it, and it goes around seccomp"),
    ("kernel/yama/ptrace_scope", "3", "nobody debugs; for good"),
    ("kernel/randomize_va_space", "2", "the kernel's default, said"),
    ("user/max_user_namespaces", "0", "nobody makes them; much of the kernel is reached only through them"),
    ("vm/unprivileged_userfaultfd", "0", "nobody uses it"),
    ("vm/mmap_min_addr", "65536", "a null pointer of the kernel is nobody's memory"),
    ("dev/tty/ldisc_autoload", "0", "no terminal needs another line discipline"),
    ("dev/tty/legacy_tiocsti", "0", "nobody types for others"),
    ("net/ipv4/conf/all/accept_redirects", "0", "a host of the boot network does not change our routes"),
    ("net/ipv4/conf/default/accept_redirects", "0", "the same: one of both is enough for the kernel"),
    ("net/ipv4/conf/all/accept_source_route", "0", "a packet does not choose its way"),
    ("net/ipv6/conf/all/accept_redirects", "0", "as for IPv4"),
    ("net/ipv6/conf/default/accept_redirects", "0", "as for IPv4"),
    ("net/ipv6/conf/default/accept_ra", "0", "only the uplink's routers give addresses and routes: `network` opens that one NIC"),
    ("net/ipv4/tcp_syncookies", "1", "the boot plane answers behind a flood of SYNs"),
];
/// Mount points that are needed later, when nothing can be made any more.
const FOLDERS: [&str; 2] = ["/boot", "/data"];

/// Closes both; in words what holds, and what does not.
pub fn close() -> (String, Vec<String>) {
    let (held, mut faults) = set(Path::new("/proc/sys"));
    let mut said = format!("{held} kernel settings hold");
    match root_read_only() {
        Ok(()) => said.push_str(", the root file system is read-only"),
        Err(fault) => faults.push(format!("The root file system stays writable: {fault}")),
    }
    (said, faults)
}

/// How many settings hold afterwards, read back, and what is wrong with others.
fn set(below: &Path) -> (usize, Vec<String>) {
    let (mut held, mut faults) = (0, Vec::new());
    for (name, value, _) in SETTINGS {
        let path = below.join(name);
        if !path.exists() {
            continue;
        }
        let written = fs::write(&path, value);
        match fs::read_to_string(&path) {
            Ok(is) if is.trim() == value => held += 1,
            Ok(is) => faults.push(format!("Kernel setting {name} is {} and not {value} ({written:?})", is.trim())),
            Err(fault) => faults.push(format!("Kernel setting {name}: {fault}")),
        }
    }
    (held, faults)
}

/// It is the initramfs: nothing of it is on a disk. Read-only, what runs can not be changed under those who run it.
fn root_read_only() -> std::io::Result<()> {
    for folder in FOLDERS {
        fs::create_dir_all(folder)?;
    }
    mount_remount("/", MountFlags::RDONLY | MountFlags::NOATIME, c"")?;
    // By trying: a flag is a word, this is a fact.
    match fs::write("/etc/kurrent-probe", "") {
        Err(fault) if fault.kind() == std::io::ErrorKind::ReadOnlyFilesystem => Ok(()),
        Err(fault) => Err(fault),
        Ok(()) => Err(std::io::Error::other("a file could be made on it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_does_not_hold_is_told_and_one_that_is_not_there_is_passed_over() {
        let folder = std::env::temp_dir().join(format!("kurrent-settings-{}", std::process::id()));
        fs::create_dir_all(folder.join("kernel")).unwrap();
        fs::write(folder.join("kernel/sysrq"), "438\n").unwrap();
        // As a setting that the kernel does not let go of: reads as it was, whatever is written.
        std::os::unix::fs::symlink("/dev/null", folder.join("kernel/kptr_restrict")).unwrap();
        let (held, faults) = set(&folder);
        assert_eq!(fs::read_to_string(folder.join("kernel/sysrq")).unwrap(), "0");
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(held, 1);
        assert!(faults.len() == 1 && faults[0].contains("kptr_restrict is  and not 2"), "{faults:?}");
    }
}
