//! What is taken from where: kernel, stub, loaders, build date.

use crate::steps::sorted_entries;
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// systemd's stub, below the dependencies' folder.
pub const STUB: &str = "systemd-boot-efi/usr/lib/systemd/boot/efi/linuxx64.efi.stub";

/// The unpacked kernel package, below the dependencies' folder.
const KERNEL: &str = "linux-image-amd64";

/// Debian's iPXE binaries that Kurrent serves, as they are and under their own names.
const LOADERS: [&str; 4] = ["snponly.efi", "ipxe-amd64.efi", "ipxe-arm64.efi", "undionly.kpxe"];

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

/// The loaders by the names under which they are served.
pub fn loaders(deps: &Path) -> Result<Vec<(&'static str, PathBuf)>> {
    let folder = deps.join("ipxe/usr/lib/ipxe");
    let find = |name: &'static str| {
        let path = folder.join(name);
        path.exists().then_some((name, path)).with_context(|| format!("{name} is missing in {}: run `make deps`", folder.display()))
    };
    LOADERS.into_iter().map(find).collect()
}

/// Seconds since 1970 of the sources: `SOURCE_DATE_EPOCH`, else the last commit. All times in the image are this one.
pub fn source_date_epoch() -> u64 {
    let given = std::env::var("SOURCE_DATE_EPOCH").ok();
    let committed = || {
        let output = Command::new("git").args(["log", "-1", "--format=%ct"]).output().ok()?;
        String::from_utf8(output.stdout).ok()
    };
    given.or_else(committed).and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// os-release(5) of the appliance; the stub shows its name.
pub fn os_release() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!("ID=kurrent\nNAME=Kurrent\nPRETTY_NAME=\"Kurrent {version}\"\nVERSION_ID={version}\n")
}
