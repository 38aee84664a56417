//! What the disk's system finds under `/run`: configuration that keeps it from taking the boot NIC down, its hostname, the
//! kernel's modules, resolvers. Nothing on the disk is changed but an empty folder as a mount point.

use crate::Fault;
use kurrent_core::stage1::Credentials;
use kurrent_sys::link::Link;
use nix::mount::MsFlags;
use std::fs;
use std::path::{Path, PathBuf};

/// Our own files.
const OURS: &str = "run/kurrent";

/// Writes it all and mounts what belongs over the disk's own files. `root` is the mounted root; `/run` moves there later.
pub fn prepare(root: &Path, credentials: &Credentials, nic: &Link) -> Result<(), Fault> {
    for (name, text) in run_files(credentials, nic) {
        write(Path::new("/"), &name, &text)?;
    }
    set_hostname(root, credentials)?;
    modules(root)
}

fn write(root: &Path, name: &str, text: &str) -> Result<(), Fault> {
    let path = root.join(name);
    let failed = |e: std::io::Error| format!("writing {}: {e}", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    fs::write(&path, text).map_err(failed)
}

/// Files under `/run`, by name without the leading slash. Values are checked names and addresses, so they can be put in as text.
fn run_files(credentials: &Credentials, nic: &Link) -> Vec<(String, String)> {
    let (mac, name) = (credentials.mac, &nic.name);
    let resolvers: String = credentials.dns.iter().map(|d| format!("nameserver {d}\n")).collect();
    let servers: Vec<String> = credentials.dns.iter().map(ToString::to_string).collect();
    let mut files: Vec<(&str, String)> = vec![
        // The first file by name that matches counts, wherever it lies.
        ("run/systemd/network/00-kurrent-boot.network", format!("[Match]\nMACAddress={mac}\n\n[Link]\nUnmanaged=yes\n")),
        // The root hangs on this NIC: it keeps the name under which it is configured, and its address.
        (
            "run/systemd/network/00-kurrent-boot.link",
            format!("[Match]\nMACAddress={mac}\n\n[Link]\nNamePolicy=keep\nMACAddressPolicy=none\n"),
        ),
        (
            "run/NetworkManager/conf.d/00-kurrent-boot.conf",
            format!("[keyfile]\nunmanaged-devices=mac:{mac}\n\n[device-kurrent-boot]\nmatch-device=mac:{mac}\nmanaged=0\n"),
        ),
        // ifupdown takes the NIC for configured already, and does not take it down when the system stops.
        ("run/network/ifstate", format!("{name}={name}\n")),
        ("run/systemd/system/networking.service.d/kurrent-boot.conf", "[Service]\nExecStop=\n".to_owned()),
        ("run/kurrent/hostname", format!("{}\n", credentials.worker)),
        ("run/kurrent/resolv.conf", resolvers),
        ("run/kurrent/boot", format!("worker={}\nmac={mac}\ninterface={name}\nserver={}\n", credentials.worker, credentials.server)),
    ];
    if !servers.is_empty() {
        files.push(("run/systemd/resolved.conf.d/kurrent-boot.conf", format!("[Resolve]\nDNS={}\n", servers.join(" "))));
    }
    let mut files: Vec<(String, String)> = files.into_iter().map(|(name, text)| (name.to_owned(), text)).collect();
    files.push((format!("run/network/ifstate.{name}"), format!("{name}\n")));
    files.push((format!("run/systemd/system/ifup@{name}.service.d/kurrent-boot.conf"), "[Service]\nExecStop=\n".to_owned()));
    files
}

/// The Worker is the hostname. Systems set it from `/etc/hostname`, so ours lies over that file for as long as this boot lasts.
fn set_hostname(root: &Path, credentials: &Credentials) -> Result<(), Fault> {
    rustix::system::sethostname(credentials.worker.as_str().as_bytes()).map_err(|e| format!("setting the hostname: {e}"))?;
    let theirs = root.join("etc/hostname");
    // Through a link we would write where it points to, outside this root.
    if fs::symlink_metadata(&theirs).is_ok_and(|m| m.is_file()) {
        bind(&Path::new("/").join(OURS).join("hostname"), &theirs)?;
    }
    Ok(())
}

/// The running kernel's modules, where the system looks for them. Its own modules, for its own kernels, stay as they are.
fn modules(root: &Path) -> Result<(), Fault> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let ours = Path::new("/lib/modules").join(&release);
    let (folder, complete) = place_of_modules(root, &release);
    if complete || !ours.is_dir() {
        return Ok(());
    }
    let kept = Path::new("/").join(OURS).join("modules").join(&release);
    for path in [&kept, &folder] {
        if let Err(e) = fs::create_dir_all(path) {
            // A root that can not be written still runs; it only gets no further drivers.
            crate::say(&format!("the kernel's modules can not be offered at {}: {e}", path.display()));
            return Ok(());
        }
    }
    bind(&ours, &kept)?;
    bind(&kept, &folder)
}

/// Where the root wants this kernel's modules, and whether it has them itself.
fn place_of_modules(root: &Path, release: &str) -> (PathBuf, bool) {
    // /lib may be a link to usr/lib, and an absolute one would lead out of this root.
    let merged = fs::symlink_metadata(root.join("lib")).is_ok_and(|m| m.is_symlink());
    let folder = root.join(if merged { "usr/lib/modules" } else { "lib/modules" }).join(release);
    let complete = folder.join("modules.dep").exists();
    (folder, complete)
}

fn bind(from: &Path, to: &Path) -> Result<(), Fault> {
    let none: Option<&str> = None;
    nix::mount::mount(Some(from), to, none, MsFlags::MS_BIND, none)
        .map_err(|e| format!("laying {} over {}: {e}", from.display(), to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_go_where_the_root_looks_and_never_over_its_own() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("usr/lib")).unwrap();
        std::os::unix::fs::symlink("usr/lib", root.path().join("lib")).unwrap();
        assert_eq!(place_of_modules(root.path(), "6.12"), (root.path().join("usr/lib/modules/6.12"), false));
        write(root.path(), "usr/lib/modules/6.12/modules.dep", "").unwrap();
        assert!(place_of_modules(root.path(), "6.12").1);
        let old = tempfile::tempdir().unwrap();
        fs::create_dir(old.path().join("lib")).unwrap();
        assert_eq!(place_of_modules(old.path(), "6.12").0, old.path().join("lib/modules/6.12"));
    }
}
