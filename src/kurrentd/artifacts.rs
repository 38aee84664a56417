//! The files of the boot plane: a fixed table of names, so that no request can name anything else.

use kurrent_core::dhcp::pxe::LOADERS;
use std::fs::File;
use std::io;
use std::path::Path;

/// What `/files/` holds besides [`LOADERS`]: name there and path under `files_dir` are the same.
const NAMES: &[&str] = &["kurrent-attest.efi", "kurrent-attest-arm64.efi", KERNEL, "worker/stage1.img"];
/// The kernel: its download is a step of the timeline.
pub const KERNEL: &str = "worker/vmlinuz";

/// The table's own entry for a requested name.
#[must_use]
pub fn known(name: &str) -> Option<&'static str> {
    NAMES.iter().chain(&LOADERS).find(|known| **known == name).copied()
}

/// Opens a file of the table, with its size. Blocks on the disk.
///
/// # Errors
/// What the disk says; [`io::ErrorKind::NotFound`] also for what is not a regular file.
pub fn open(files_dir: &Path, name: &'static str) -> io::Result<(File, u64)> {
    let file = File::open(files_dir.join(name))?;
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok((file, metadata.len())) } else { Err(io::ErrorKind::NotFound.into()) }
}
