//! The root file system on the connected disk: found by its partition table, told by its magic, mounted read-write.

use crate::{Fault, one_line, within};
use kurrent_core::gpt::{self, Contents, HEAD_BYTES};
use kurrent_sys::kmod::ModuleTree;
use nix::mount::{MntFlags, MsFlags};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Our mounts, in the order in which they were made.
const MOUNTS: &str = "/proc/self/mountinfo";
/// How long the kernel may take to show the partitions.
const PARTITION_WITHIN: Duration = Duration::from_secs(10);
/// btrfs has its superblock farthest in.
const SUPER_BYTES: usize = BTRFS_SUPER + 4096;
const EXT_SUPER: usize = 1024;
const BTRFS_SUPER: usize = 64 << 10;

/// File systems that a root may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// ext2, ext3, ext4: one driver.
    Ext4,
    /// btrfs.
    Btrfs,
    /// XFS.
    Xfs,
}

impl Kind {
    /// The kernel's name of it, also the module's.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Btrfs => "btrfs",
            Self::Xfs => "xfs",
        }
    }
}

/// A mounted root.
pub struct Mounted {
    /// `/dev/nvme0n1p2`.
    pub device: String,
    /// Its file system.
    pub kind: Kind,
}

/// Finds and mounts it at `place`.
pub fn mount(disk: &str, modules: &ModuleTree, place: &Path) -> Result<Mounted, Fault> {
    let path = format!("/dev/{disk}");
    let contents = gpt::inspect(&read_start(&path, HEAD_BYTES)?).map_err(|e| format!("{path}: {e}"))?;
    let number = root_number(&contents).map_err(|what| format!("{path}: {what}"))?;
    let device = format!("{path}p{number}");
    if within(PARTITION_WITHIN, || Path::new(&device).exists().then_some(())).is_none() {
        return Err(format!("{device} did not appear; the kernel does not accept the disk's partition table"));
    }
    let start = read_start(&device, SUPER_BYTES)?;
    let kind = recognise(&start).ok_or_else(|| format!("{device} has no ext4, btrfs or xfs file system"))?;
    if let Some(warning) = state_warning(kind, &start) {
        crate::say(&format!("{device}: {warning}"));
    }
    modules.load(kind.name()).map_err(|e| one_line(&e))?;
    std::fs::create_dir_all(place).map_err(|e| format!("{}: {e}", place.display()))?;
    let none: Option<&str> = None;
    nix::mount::mount(Some(device.as_str()), place, Some(kind.name()), MsFlags::empty(), none)
        .map_err(|e| format!("mounting {device} ({}) failed: {e}; the file system may need a check from another machine", kind.name()))?;
    Ok(Mounted { device, kind })
}

/// Undoes [`mount`] for another try, with everything that was mounted in there. When it is not mounted all is well.
///
/// Never lazily: a file system that is only out of sight still writes, and its disk is about to be taken from under it.
pub fn unmount(place: &Path) -> Result<(), Fault> {
    let table = std::fs::read_to_string(MOUNTS).map_err(|e| format!("{MOUNTS}: {e}"))?;
    for point in mounts_below(&table, place) {
        nix::mount::umount2(&point, MntFlags::UMOUNT_NOFOLLOW)
            .map_err(|e| format!("{} can not be unmounted for another try: {e}", point.display()))?;
    }
    Ok(())
}

/// What is mounted at or below `place`, the latest first: the order in which it can go.
fn mounts_below(table: &str, place: &Path) -> Vec<PathBuf> {
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(unescaped);
    let mut found: Vec<PathBuf> = points.filter(|p| p.starts_with(place)).collect();
    found.reverse();
    found
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescaped(text: &str) -> PathBuf {
    let (mut octets, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|_| *first == b'\\').and_then(|d| std::str::from_utf8(d).ok());
        match digits.and_then(|d| u8::from_str_radix(d, 8).ok()) {
            Some(octet) => {
                octets.push(octet);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                octets.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(octets))
}

fn root_number(contents: &Contents) -> Result<u32, String> {
    let table = match contents {
        Contents::Blank => return Err("the disk is blank: there is no system on it".into()),
        Contents::Table(table) => table,
    };
    if let Some(damage) = table.damage {
        return Err(format!("the partition table is damaged: {damage}"));
    }
    let partitions: Vec<String> = table.partitions.iter().map(|p| format!("{} {:?}", p.number, p.label)).collect();
    let root = gpt::find_root(&table.partitions);
    root.map(|p| p.number).ok_or_else(|| {
        format!("no partition is the root (type {}, or label \"root\"); there are: {}", gpt::TYPE_ROOT_X86_64, partitions.join(", "))
    })
}

fn read_start(device: &str, length: usize) -> Result<Vec<u8>, Fault> {
    let mut octets = Vec::with_capacity(length);
    let limit = u64::try_from(length).unwrap_or(u64::MAX);
    let file = File::open(device).map_err(|e| format!("{device}: {e}"))?;
    // A first read also makes a target that does not answer fail here and not in the mount.
    file.read_at(&mut [0; 512], 0).map_err(|e| format!("reading {device}: {e}"))?;
    file.take(limit).read_to_end(&mut octets).map_err(|e| format!("reading {device}: {e}"))?;
    Ok(octets)
}

fn recognise(start: &[u8]) -> Option<Kind> {
    let at = |offset: usize, magic: &[u8]| start.get(offset..).is_some_and(|s| s.starts_with(magic));
    if at(0, b"XFSB") {
        Some(Kind::Xfs)
    } else if at(BTRFS_SUPER + 64, b"_BHRfS_M") {
        Some(Kind::Btrfs)
    } else if at(EXT_SUPER + 56, &[0x53, 0xef]) {
        Some(Kind::Ext4)
    } else {
        None
    }
}

/// `EXT4_ERROR_FS` in `s_state`: the kernel saw inconsistencies and nobody has checked since. A journal to replay is no reason to
/// worry; btrfs and xfs look after themselves in the mount.
fn state_warning(kind: Kind, start: &[u8]) -> Option<&'static str> {
    const STATE: usize = EXT_SUPER + 58;
    const ERRORS: u8 = 2;
    let flagged = kind == Kind::Ext4 && start.get(STATE).is_some_and(|state| state & ERRORS != 0);
    flagged.then_some("the file system is marked as having errors; check it (fsck) when you can")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(offset: usize, magic: &[u8]) -> Vec<u8> {
        let mut start = vec![0; SUPER_BYTES];
        start[offset..offset + magic.len()].copy_from_slice(magic);
        start
    }

    #[test]
    fn file_systems_are_told_by_their_magic() {
        assert_eq!(recognise(&start(1080, &[0x53, 0xef])), Some(Kind::Ext4));
        assert_eq!(recognise(&start(65600, b"_BHRfS_M")), Some(Kind::Btrfs));
        assert_eq!(recognise(&start(0, b"XFSB")), Some(Kind::Xfs));
        assert_eq!(recognise(&start(0, b"LUKS")), None);
        assert_eq!(recognise(&[]), None);
    }

    #[test]
    fn errors_marked_in_the_file_system_are_told() {
        assert!(state_warning(Kind::Ext4, &start(1082, &[1])).is_none());
        assert!(state_warning(Kind::Ext4, &start(1082, &[3])).is_some());
    }

    #[test]
    fn what_is_mounted_in_the_root_goes_before_it_and_nothing_else_goes() {
        let table = "1 1 0:2 / / rw - rootfs rootfs rw\n\
            20 1 0:5 / /dev rw - devtmpfs devtmpfs rw\n\
            30 1 259:2 / /sysroot rw - ext4 /dev/nvme0n1p1 rw\n\
            31 30 0:2 /run/kurrent/hostname /sysroot/etc/hostname rw - tmpfs tmpfs rw\n\
            32 1 0:2 / /sysroot2 rw - tmpfs tmpfs rw\n\
            33 30 0:2 /a /sysroot/usr/lib/modules/a\\040b\\134 rw - rootfs rootfs rw\n";
        let found = mounts_below(table, Path::new("/sysroot"));
        assert_eq!(found, ["/sysroot/usr/lib/modules/a b\\", "/sysroot/etc/hostname", "/sysroot"].map(PathBuf::from));
        assert_eq!(mounts_below(table, Path::new("/elsewhere")), Vec::<PathBuf>::new());
        assert_eq!(unescaped("a\\04"), PathBuf::from("a\\04"));
    }

    #[test]
    fn what_is_not_mounted_is_unmounted_already() {
        unmount(tempfile::tempdir().unwrap().path()).unwrap();
    }

    #[test]
    fn a_disk_without_a_root_says_what_it_has() {
        assert!(root_number(&Contents::Blank).unwrap_err().contains("blank"));
    }
}
