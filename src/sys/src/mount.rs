//! Mounts.

use kurrent_core::init::mounts::Mount;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use sys_mount::{MountFlags, UnmountFlags};

/// A fault of a mount.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {path}")]
pub struct MountError {
    /// What was tried.
    pub operation: &'static str,
    /// Where.
    pub path: PathBuf,
    /// Why it failed.
    pub source: io::Error,
}

fn fault(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> MountError {
    let path = path.to_owned();
    move |source| MountError { operation, path, source }
}

/// Makes the folder if need be and mounts.
pub fn mount(mount: &Mount) -> Result<(), MountError> {
    let target = Path::new(mount.target);
    // The kernel makes configfs' and efivarfs' folders itself, and only when it has them.
    if !target.is_dir() {
        fs::create_dir_all(target).map_err(fault("making folder", target))?;
    }
    let mut flags = MountFlags::NOSUID | MountFlags::NOATIME;
    flags.set(MountFlags::RDONLY, mount.read_only);
    flags.set(MountFlags::NOEXEC, mount.no_exec);
    flags.set(MountFlags::NODEV, mount.kind != "devtmpfs");
    sys_mount::Mount::builder()
        .fstype(mount.kind)
        .flags(flags)
        .data(mount.data)
        .mount(&mount.source, target)
        .map(|_| ())
        .map_err(fault("mounting", target))
}

/// Unmounts; with `lazily` also what is still in use, which then ends with its last user.
pub fn unmount(target: &Path, lazily: bool) -> Result<(), MountError> {
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    sys_mount::unmount(target, flags).map_err(fault("unmounting", target))
}

/// Whether something is mounted there.
#[must_use]
pub fn is_mounted(target: &str) -> bool {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    table.lines().any(|line| line.split(' ').nth(1) == Some(target))
}
