//! Disks: what there is, sectors, telling the kernel about new partitions, growing btrfs.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// `size` under sysfs counts these, whatever the disk's own sectors are.
const SYSFS_SECTOR: u64 = 512;

/// `BLKRRPART` of `linux/fs.h`.
const BLKRRPART: libc::Ioctl = 0x125f;
/// `BTRFS_IOC_RESIZE` of `linux/btrfs.h`: `_IOW(0x94, 3, struct btrfs_ioctl_vol_args)`.
const BTRFS_IOC_RESIZE: libc::Ioctl = 0x5000_9403;

/// A fault of a disk.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {path}")]
pub struct BlockError {
    /// What was tried.
    pub operation: &'static str,
    /// On what.
    pub path: PathBuf,
    /// Why it failed.
    pub source: io::Error,
}

fn fault(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BlockError {
    let path = path.to_owned();
    move |source| BlockError { operation, path, source }
}

/// A whole disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Kernel name (`sda`).
    pub name: String,
    /// Size in 512-octet sectors.
    pub sectors: u64,
    /// Octets of its own sectors.
    pub sector_bytes: u64,
}

/// Disks with something in them, sorted by name. Loop devices, RAM disks and the like are none.
pub fn disks(sysfs: &Path) -> Result<Vec<Disk>, BlockError> {
    let folder = sysfs.join("class/block");
    let mut found = Vec::new();
    for entry in fs::read_dir(&folder).map_err(fault("listing", &folder))?.flatten() {
        let path = entry.path();
        // Real disks hang on a bus; what the kernel makes up has no device behind it. Partitions are not disks.
        if !path.join("device").exists() || path.join("partition").exists() {
            continue;
        }
        let number = |name: &str| fs::read_to_string(path.join(name)).ok().and_then(|text| text.trim().parse::<u64>().ok());
        let disk = Disk {
            name: entry.file_name().to_string_lossy().into_owned(),
            sectors: number("size").unwrap_or(0),
            sector_bytes: number("queue/logical_block_size").unwrap_or(SYSFS_SECTOR),
        };
        if disk.sectors > 0 {
            found.push(disk);
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// The device node's name of a partition, once the kernel knows it, and its size in 512-octet sectors.
#[must_use]
pub fn partition(sysfs: &Path, disk: &str, number: u32) -> Option<(String, u64)> {
    let read = |path: PathBuf| fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let entries = fs::read_dir(sysfs.join("class/block").join(disk)).ok()?.flatten();
    let found = entries.into_iter().find(|entry| read(entry.path().join("partition")) == Some(u64::from(number)))?;
    Some((found.file_name().to_string_lossy().into_owned(), read(found.path().join("size"))?))
}

/// An open disk.
pub struct OpenDisk {
    file: File,
    path: PathBuf,
}

impl OpenDisk {
    /// Opens a device node (or a file, in tests).
    pub fn open(path: &Path, writable: bool) -> Result<Self, BlockError> {
        let file = OpenOptions::new().read(true).write(writable).open(path).map_err(fault("opening", path))?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Whole 512-octet sectors; nothing when they are not all there or cannot be read.
    #[must_use]
    pub fn read(&self, lba: u64, count: u64) -> Option<Vec<u8>> {
        let mut octets = vec![0; usize::try_from(count.checked_mul(SYSFS_SECTOR)?).ok()?];
        self.file.read_exact_at(&mut octets, lba.checked_mul(SYSFS_SECTOR)?).ok()?;
        Some(octets)
    }

    /// Writes and waits until it is on the disk.
    pub fn write(&self, lba: u64, octets: &[u8]) -> Result<(), BlockError> {
        self.file.write_all_at(octets, lba.saturating_mul(SYSFS_SECTOR)).map_err(fault("writing", &self.path))?;
        self.file.sync_data().map_err(fault("writing", &self.path))
    }

    /// Lets the kernel read the partition table again. Fails with `EBUSY` while a partition is in use.
    pub fn reread_partitions(&self) -> Result<(), BlockError> {
        // SAFETY: BLKRRPART takes no argument; the descriptor is open for the length of the call.
        let result = unsafe { libc::ioctl(self.file.as_raw_fd(), BLKRRPART) };
        if result == 0 { Ok(()) } else { Err(fault("reading the partitions of", &self.path)(io::Error::last_os_error())) }
    }
}

/// `struct btrfs_ioctl_vol_args`.
#[repr(C)]
struct VolumeArguments {
    fd: i64,
    name: [u8; 4088],
}

/// Grows a mounted btrfs to its device's size. One that fills it already is fine.
pub fn grow_btrfs(mounted_at: &Path) -> Result<(), BlockError> {
    let folder = File::open(mounted_at).map_err(fault("opening", mounted_at))?;
    let mut arguments = VolumeArguments { fd: 0, name: [0; 4088] };
    if let Some(place) = arguments.name.get_mut(..3) {
        place.copy_from_slice(b"max");
    }
    // SAFETY: the kernel reads one btrfs_ioctl_vol_args, which `arguments` is, and the descriptor is open.
    let result = unsafe { libc::ioctl(folder.as_raw_fd(), BTRFS_IOC_RESIZE, &raw const arguments) };
    if result == 0 { Ok(()) } else { Err(fault("growing the file system at", mounted_at)(io::Error::last_os_error())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_beyond_the_end_are_not_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let disk = OpenDisk::open(file.path(), true).unwrap();
        disk.write(0, &[7; 1024]).unwrap();
        assert_eq!(disk.read(1, 1), Some(vec![7; 512]));
        assert_eq!(disk.read(1, 2), None);
        assert_eq!(disk.read(u64::MAX, 1), None);
        assert_eq!(disk.read(0, u64::MAX), None);
    }

    #[test]
    fn partitions_and_made_up_devices_are_no_disks() {
        let sysfs = tempfile::tempdir().unwrap();
        let make = |name: &str, size: &str, has_device: bool| {
            let folder = sysfs.path().join("class/block").join(name);
            fs::create_dir_all(folder.join("queue")).unwrap();
            fs::write(folder.join("size"), size).unwrap();
            fs::write(folder.join("queue/logical_block_size"), "4096\n").unwrap();
            if has_device {
                fs::create_dir_all(folder.join("device")).unwrap();
            }
            folder
        };
        make("vda", "2048\n", true);
        make("loop0", "2048\n", false);
        make("sr0", "0\n", true);
        let part = make("vda/vda2", "1024\n", true);
        fs::write(part.join("partition"), "2\n").unwrap();
        let found = disks(sysfs.path()).unwrap();
        assert_eq!(found, [Disk { name: "vda".to_owned(), sectors: 2048, sector_bytes: 4096 }]);
        assert_eq!(partition(sysfs.path(), "vda", 2), Some(("vda2".to_owned(), 1024)));
        assert_eq!(partition(sysfs.path(), "vda", 1), None);
    }
}
