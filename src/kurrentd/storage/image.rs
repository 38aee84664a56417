//! Looking at image files: their partition table, their size.

use super::StorageError;
use kurrent_core::gpt::{self, BLOCK_BYTES, Contents};
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
