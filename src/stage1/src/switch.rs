//! Mounting the kernel's file systems, and the way out: into the disk's system, or back to the firmware.

use crate::Fault;
use nix::mount::{MntFlags, MsFlags};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Mounted for us and moved into the system's root.
const MOVED: [&str; 4] = ["/dev", "/proc", "/sys", "/run"];
const EFI_VARIABLES: &str = "/sys/firmware/efi/efivars";
/// Where a system's init is looked for, as the kernel does, and systemd where it has no such link.
const INITS: [&str; 6] = ["/sbin/init", "/usr/sbin/init", "/usr/lib/systemd/systemd", "/lib/systemd/systemd", "/etc/init", "/bin/init"];
/// Stays in the initramfs: bound into the system's root.
const KEPT: &str = "/lib/modules";

/// `/dev`, `/proc`, `/sys`, `/run`, and the firmware's variables where there are any.
pub fn mount_kernel_file_systems() -> Result<(), Fault> {
    let safe = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let mounts = [
        ("devtmpfs", "/dev", MsFlags::MS_NOSUID, "mode=0755"),
        ("proc", "/proc", safe, ""),
        ("sysfs", "/sys", safe, ""),
        ("tmpfs", "/run", MsFlags::MS_NOSUID | MsFlags::MS_NODEV, "mode=0755"),
    ];
    for (kind, place, flags, data) in mounts {
        mount(kind, place, flags, data)?;
    }
    if Path::new(EFI_VARIABLES).is_dir() {
        kurrent_sys::kmod::ModuleTree::running().and_then(|m| m.load("efivarfs")).map_err(|e| crate::one_line(&e))?;
        mount("efivarfs", EFI_VARIABLES, safe, "")?;
    }
    Ok(())
}

fn mount(kind: &str, place: &str, flags: MsFlags, data: &str) -> Result<(), Fault> {
    fs::create_dir_all(place).map_err(|e| format!("making {place}: {e}"))?;
    match nix::mount::mount(Some(kind), place, Some(kind), flags, Some(data)) {
        // There already, from an earlier try or from the kernel itself.
        Ok(()) | Err(nix::errno::Errno::EBUSY) => Ok(()),
        Err(e) => Err(format!("mounting {kind} on {place}: {e}")),
    }
}

/// The init of a root, as the path it will have there.
pub fn find_init(root: &Path) -> Result<String, Fault> {
    // A link's target belongs to that root, so a link is taken for granted.
    let found = INITS.iter().find(|init| fs::symlink_metadata(root.join(init.trim_start_matches('/'))).is_ok_and(|m| !m.is_dir()));
    found.map(|i| (*i).to_owned()).ok_or_else(|| format!("the root has no init ({})", INITS.join(", ")))
}

/// Moves everything into `root` and makes it the root. After a failure nothing is as it was.
pub fn enter(root: &Path) -> Result<(), Fault> {
    let none: Option<&str> = None;
    // The system mounts it itself if it wants to.
    let _ = nix::mount::umount2(EFI_VARIABLES, MntFlags::MNT_DETACH);
    for place in MOVED {
        let there = root.join(place.trim_start_matches('/'));
        if !there.is_dir() {
            fs::create_dir(&there).map_err(|e| format!("the root has no {place} and it can not be made: {e}"))?;
        }
        nix::mount::mount(Some(place), &there, none, MsFlags::MS_MOVE, none).map_err(|e| format!("moving {place}: {e}"))?;
    }
    free_initramfs();
    std::env::set_current_dir(root).map_err(|e| format!("entering the root: {e}"))?;
    nix::mount::mount(Some("."), "/", none, MsFlags::MS_MOVE, none).map_err(|e| format!("moving the root: {e}"))?;
    nix::unistd::chroot(".").map_err(|e| format!("changing the root: {e}"))?;
    std::env::set_current_dir("/").map_err(|e| format!("entering the root: {e}"))?;
    Ok(())
}

/// The initramfs is memory: everything goes but the modules, which the system uses.
fn free_initramfs() {
    let Ok(device) = fs::metadata("/").map(|m| m.dev()) else { return };
    // /lib may be a link to /usr/lib, as Debian's kernels bring it along.
    let kept = fs::canonicalize(KEPT).unwrap_or_else(|_| KEPT.into());
    remove_below(Path::new("/"), device, &kept);
}

fn remove_below(folder: &Path, device: u64, kept: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        // Another device is a mounted file system: the disk, never to be touched.
        if metadata.dev() != device || path == kept {
            continue;
        }
        // What can not be removed (a mount point) only keeps its memory.
        if metadata.is_dir() {
            remove_below(&path, device, kept);
            let _ = fs::remove_dir(&path);
        } else {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Becomes the system's init. Comes back only with the reason why not.
pub fn exec(init: &str) -> Fault {
    crate::console::open();
    let error = Command::new(init)
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("TERM", "linux")
        .exec();
    format!("{init} can not be started: {error}")
}

/// Starts the machine again; never comes back.
pub fn reboot() -> ! {
    rustix::fs::sync();
    loop {
        let _ = nix::sys::reboot::reboot(nix::sys::reboot::RebootMode::RB_AUTOBOOT);
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn init_is_found_also_behind_a_link_of_the_other_root() {
        let root = tempfile::tempdir().unwrap();
        assert!(find_init(root.path()).is_err());
        fs::create_dir_all(root.path().join("usr/lib/systemd")).unwrap();
        fs::write(root.path().join("usr/lib/systemd/systemd"), "").unwrap();
        assert_eq!(find_init(root.path()).unwrap(), "/usr/lib/systemd/systemd");
        fs::create_dir(root.path().join("sbin")).unwrap();
        std::os::unix::fs::symlink("/lib/systemd/systemd", root.path().join("sbin/init")).unwrap();
        assert_eq!(find_init(root.path()).unwrap(), "/sbin/init");
    }

    #[test]
    fn only_the_initramfs_own_files_are_removed_and_not_its_modules() {
        let folder = tempfile::tempdir().unwrap();
        let kept = folder.path().join("usr/lib/modules");
        for path in [folder.path().join("a/b"), kept.join("6.12")] {
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("c"), "").unwrap();
        }
        let device = fs::metadata(folder.path()).unwrap().dev();
        remove_below(folder.path(), device + 1, &kept);
        assert!(folder.path().join("a/b/c").exists(), "another device is a mounted file system");
        remove_below(folder.path(), device, &kept);
        assert!(!folder.path().join("a").exists() && kept.join("6.12/c").exists());
    }
}
