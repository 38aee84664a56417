//! What is taken from where: kernel, stub, loaders, build date.

use crate::steps::sorted_entries;
use anyhow::{Context as _, Result, bail};
use kurrent_core::dhcp::pxe::LOADERS;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::UNIX_EPOCH;

/// systemd's stub, below the dependencies' folder.
pub const STUB: &str = "systemd-boot-efi/usr/lib/systemd/boot/efi/linuxx64.efi.stub";

/// The unpacked kernel package, below the dependencies' folder.
const KERNEL: &str = "linux-image-amd64";

/// The kernel's release and its file.
pub fn kernel(deps: &Path) -> Result<(String, PathBuf)> {
    let boot = deps.join(KERNEL).join("boot");
    for path in sorted_entries(&boot).context("the kernel is missing: run `make deps`")? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Some(release) = name.strip_prefix("vmlinuz-") {
            return Ok((release.to_owned(), path.clone()));
        }
    }
    bail!("no kernel in {}: run `make deps`", boot.display())
}

/// The kernel's modules.
pub fn module_tree(deps: &Path, release: &str) -> PathBuf {
    deps.join(KERNEL).join("usr/lib/modules").join(release)
}

/// The loaders: Debian's iPXE binaries as they are, by the names under which they are served.
pub fn loaders(deps: &Path) -> Result<Vec<(&'static str, PathBuf)>> {
    let folder = deps.join("ipxe/usr/lib/ipxe");
    let find = |name: &'static str| {
        let path = folder.join(name);
        path.exists().then_some((name, path)).with_context(|| format!("{name} is missing in {}: run `make deps`", folder.display()))
    };
    LOADERS.into_iter().map(find).collect()
}

/// Seconds since 1970 of the sources: `SOURCE_DATE_EPOCH`, else the last commit, else the newest source file (a tree without
/// its repository). All times in the image are this one, and PID 1 takes no earlier date for real: there must be one.
pub fn source_date_epoch() -> Result<u64> {
    if let Ok(given) = std::env::var("SOURCE_DATE_EPOCH") {
        return given.trim().parse().with_context(|| format!("SOURCE_DATE_EPOCH is not a number of seconds: {given:?}"));
    }
    match last_commit(Path::new(".")) {
        Some(seconds) => Ok(seconds),
        None => newest(Path::new(".")).context("the date of the sources: no commit of git, and no file with a date"),
    }
}

/// The date of a tree's last commit.
fn last_commit(tree: &Path) -> Option<u64> {
    // A tree of another user (a mounted one, `sudo make`) is as good: only its date is read.
    let arguments = ["-c", "safe.directory=*", "log", "-1", "--format=%ct"];
    let output = Command::new("git").current_dir(tree).args(arguments).output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

/// When the newest of the files that make an image was changed.
fn newest(tree: &Path) -> Result<u64> {
    let mut newest = 0;
    let mut open: Vec<PathBuf> = ["Cargo.toml", "Cargo.lock", "src", "appliance", "rootfs", "ipxe"].map(|name| tree.join(name)).to_vec();
    while let Some(path) = open.pop() {
        let data = fs::metadata(&path).with_context(|| format!("reading {}", path.display()))?;
        if data.is_dir() {
            open.extend(sorted_entries(&path)?);
        } else {
            let changed = data.modified().context("reading the time of a file")?;
            newest = newest.max(changed.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs());
        }
    }
    if newest == 0 {
        bail!("all source files are of 1970: set SOURCE_DATE_EPOCH")
    }
    Ok(newest)
}

/// What whoever gets an image must get with it: the notice, the exact packages, and their licences; path on the ESP and file.
pub fn notices(deps: &Path) -> Result<Vec<(String, PathBuf)>> {
    let lock = deps.join("lock");
    let packages = fs::read_to_string(&lock).with_context(|| format!("reading {}: run `make deps`", lock.display()))?;
    let mut notices = vec![("NOTICE".to_owned(), PathBuf::from("NOTICE")), ("PACKAGES".to_owned(), lock)];
    for line in packages.lines() {
        let mut words = line.split(' ');
        let (Some(wanted), Some(package)) = (words.next(), words.nth(1)) else { continue };
        let copyright = deps.join(wanted.trim_end_matches('*')).join("usr/share/doc").join(package).join("copyright");
        if !copyright.is_file() {
            bail!("{} is missing: the image may not be passed on without it", copyright.display());
        }
        notices.push((format!("{}.copyright", wanted.trim_end_matches('*')), copyright));
    }
    Ok(notices.into_iter().map(|(name, path)| (format!("kurrent/licences/{name}"), path)).collect())
}

/// os-release(5) of the appliance; the stub shows its name.
pub fn os_release() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!("ID=kurrent\nNAME=Kurrent\nPRETTY_NAME=\"Kurrent {version}\"\nVERSION_ID={version}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    #[test]
    fn sources_without_a_repository_have_the_date_of_their_newest_file() -> Result<()> {
        let changed = fs::metadata(tree().join("appliance/src/recipe.rs"))?.modified()?.duration_since(UNIX_EPOCH)?.as_secs();
        assert!(newest(&tree())? >= changed);
        assert_eq!(last_commit(Path::new("/")), None);
        Ok(())
    }

    #[test]
    fn the_licence_of_every_package_is_asked_for_by_its_place() -> Result<()> {
        let deps = std::env::temp_dir().join(format!("kurrent-notices-{}", std::process::id()));
        let doc = deps.join("linux-image-amd64/usr/share/doc/linux-image-6.12");
        fs::create_dir_all(&doc)?;
        fs::write(deps.join("lock"), "linux-image-amd64* trixie linux-image-6.12 6.12-1 00ff\n")?;
        let without = notices(&deps);
        fs::write(doc.join("copyright"), "GPL-2.0")?;
        let with = notices(&deps);
        fs::remove_dir_all(&deps)?;
        assert!(without.is_err_and(|error| error.to_string().contains("linux-image-6.12/copyright")));
        let names: Vec<String> = with?.into_iter().map(|(name, _)| name).collect();
        let expected = ["NOTICE", "PACKAGES", "linux-image-amd64.copyright"].map(|name| format!("kurrent/licences/{name}"));
        assert_eq!(names, expected);
        Ok(())
    }
}
