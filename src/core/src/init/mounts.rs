//! The appliance's mounts as a table, in the order in which they are made; they are undone in reverse.

/// Where the ESP is mounted.
pub const BOOT: &str = "/boot";
/// Where the data partition is mounted.
pub const DATA: &str = "/data";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Device, or a name for what has none.
    pub source: String,
    /// Folder; made when it is not there.
    pub target: &'static str,
    /// File system.
    pub kind: &'static str,
    /// For the file system.
    pub data: &'static str,
    /// Nothing can be written.
    pub read_only: bool,
    /// Nothing on it can be run.
    pub no_exec: bool,
    /// Whether the appliance can go on without it: efivarfs is missing on BIOS machines.
    pub optional: bool,
}

fn kernel(kind: &'static str, target: &'static str, data: &'static str, optional: bool) -> Mount {
    Mount { source: kind.to_owned(), target, kind, data, read_only: false, no_exec: true, optional }
}

/// What PID 1 mounts before anything else.
#[must_use]
pub fn early() -> Vec<Mount> {
    vec![
        kernel("devtmpfs", "/dev", "mode=0755", false),
        // A service sees itself, and nothing of PID 1 and the others.
        kernel("proc", "/proc", "hidepid=invisible", false),
        kernel("sysfs", "/sys", "", false),
        // Small, so that a runaway file there cannot eat the memory of the whole machine.
        kernel("tmpfs", "/run", "mode=0755,size=16m", false),
        kernel("tmpfs", "/tmp", "mode=1777,size=16m", false),
    ]
}

/// What needs kernel modules first.
#[must_use]
pub fn with_modules() -> Vec<Mount> {
    vec![kernel("configfs", "/sys/kernel/config", "", true), kernel("efivarfs", "/sys/firmware/efi/efivars", "", true)]
}

/// The image's two partitions.
#[must_use]
pub fn partitions(esp: &str, data: &str) -> Vec<Mount> {
    let esp = Mount {
        source: esp.to_owned(),
        target: BOOT,
        kind: "vfat",
        // Only root may read it; a fault of the file system must not panic.
        data: "umask=0077,errors=remount-ro",
        read_only: true,
        no_exec: true,
        optional: false,
    };
    let data = Mount { source: data.to_owned(), target: DATA, kind: "btrfs", data: "", read_only: false, no_exec: true, optional: false };
    vec![esp, data]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_folder_is_mounted_after_the_one_it_lies_in() {
        let all: Vec<Mount> = [early(), with_modules(), partitions("/dev/sda1", "/dev/sda2")].concat();
        for (at, mount) in all.iter().enumerate() {
            let later = all.iter().skip(at + 1);
            assert!(later.clone().all(|other| !mount.target.starts_with(&format!("{}/", other.target))), "{}", mount.target);
            assert!(later.clone().all(|other| other.target != mount.target), "{}", mount.target);
        }
    }
}
