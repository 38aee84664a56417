//! Looking at image files: their partition table, their size.

use super::StorageError;
use kurrent_core::gpt::{self, BLOCK_BYTES, Contents};
use rustix::fs::IFlags;
use rustix::io::Errno;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// What an image file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Length in bytes.
    pub size_bytes: u64,
    /// What its start says.
    pub contents: Contents,
}

/// Reads the start of an image.
///
/// # Errors
/// `image_unreadable`, `sector_size` (a table for 512-byte sectors).
pub fn inspect(path: &Path) -> Result<Image, StorageError> {
    let unreadable = |e: std::io::Error| StorageError::new("image_unreadable", 500, format!("{} can not be read: {e}", path.display()));
    let file = File::open(path).map_err(unreadable)?;
    let size_bytes = file.metadata().map_err(unreadable)?.len();
    let mut head = Vec::with_capacity(gpt::HEAD_BYTES);
    let most = u64::try_from(gpt::HEAD_BYTES).unwrap_or(u64::MAX);
    file.take(most).read_to_end(&mut head).map_err(unreadable)?;
    let contents = gpt::inspect(&head).map_err(|e| StorageError::new("sector_size", 422, format!("{}: {e}", path.display())))?;
    Ok(Image { size_bytes, contents })
}

/// What is asked of an image just before its namespace is enabled: a size in whole blocks and no table that nobody could read.
/// Blank is fine (an empty disk), and so is a damaged table: its own worker may be repairing it.
///
/// # Errors
/// As [`inspect`], or `size`.
pub fn check_export(path: &Path) -> Result<(), StorageError> {
    let image = inspect(path)?;
    check_size(image.size_bytes)
}

/// Makes every write to a disk's file durable before the kernel acknowledges it (`FS_SYNC_FL`, `chattr +S`).
///
/// A worker lives on when the appliance dies under it. What the target had acknowledged and not yet made durable would be
/// gone, while the worker believes it written: seen as files that vanished after a power cut (btrfs puts direct writes
/// into its tree only at a commit, up to 30 s later). Set on the inode, so it holds for the kernel's own writes.
///
/// # Errors
/// `not_durable`: the flag could not be set, for another reason than a file system that has none. That one is only logged.
pub fn write_through(path: &Path) -> Result<(), StorageError> {
    let failed = |e: std::io::Error| {
        StorageError::new(
            "not_durable",
            500,
            format!("{}: writes can not be made durable before they are acknowledged: {e}", path.display()),
        )
    };
    let file = File::open(path).map_err(failed)?;
    match rustix::fs::ioctl_getflags(&file) {
        Ok(flags) if flags.contains(IFlags::SYNC) => Ok(()),
        Ok(flags) => rustix::fs::ioctl_setflags(&file, flags | IFlags::SYNC).map_err(|e| failed(e.into())),
        Err(Errno::NOTTY | Errno::OPNOTSUPP) => {
            let path = path.display();
            tracing::warn!(%path, "storage: this file system has no +S: a power cut here may lose what a running worker has written");
            Ok(())
        }
        Err(error) => Err(failed(error.into())),
    }
}

/// What is asked of a master: a whole 4K-native table, and room for all it speaks of.
///
/// # Errors
/// As [`inspect`], or `not_partitioned`, `damaged`, `truncated`, `size`.
pub fn check_master(path: &Path) -> Result<Image, StorageError> {
    let image = inspect(path)?;
    check_size(image.size_bytes)?;
    let Contents::Table(table) = &image.contents else {
        let what = "the image has no GPT at byte 4096; make it with 4096-byte sectors (sfdisk --sector-size 4096)";
        return Err(StorageError::new("not_partitioned", 422, what.into()));
    };
    if let Some(damage) = table.damage {
        return Err(StorageError::new(
            "damaged",
            422,
            format!("the partition table is damaged: {damage}; was the image cut or changed on the way?"),
        ));
    }
    if !gpt::is_whole(table, image.size_bytes) {
        let needed = table.last_usable_block.saturating_add(1).saturating_mul(BLOCK_BYTES);
        let what = format!("the image is cut short: its table needs at least {needed} bytes, it has {}", image.size_bytes);
        return Err(StorageError::new("truncated", 422, what));
    }
    Ok(image)
}

/// Whether a disk of this size can be served.
///
/// # Errors
/// `size`.
pub fn check_size(size_bytes: u64) -> Result<(), StorageError> {
    if size_bytes == 0 || !size_bytes.is_multiple_of(BLOCK_BYTES) {
        return Err(StorageError::new("size", 422, format!("{size_bytes} bytes is not a multiple of {BLOCK_BYTES} above zero")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exported_disk_acknowledges_nothing_before_it_is_durable() {
        // Below the build folder: a temporary folder may lie in memory, whose file system has no such flag.
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("disk.img");
        std::fs::write(&path, [0; 4096]).unwrap();
        for _ in 0..2 {
            write_through(&path).unwrap();
            let flags = rustix::fs::ioctl_getflags(File::open(&path).unwrap()).unwrap();
            assert!(flags.contains(IFlags::SYNC));
        }
        assert_eq!(write_through(&folder.path().join("none")).map_err(|e| e.code), Err("not_durable"));
    }
}
