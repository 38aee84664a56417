//! The programs inside the images: static ones for Linux, and the UEFI program.

use crate::steps::tool;
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Static programs need no libraries in the images.
const LINUX_TARGET: &str = "x86_64-unknown-linux-gnu";
const UEFI_TARGET: &str = "x86_64-unknown-uefi";

/// Where the built programs are.
pub struct Programs {
    /// PID 1 of the appliance, also its `/sbin/modprobe`.
    pub init: PathBuf,
    /// The daemon.
    pub daemon: PathBuf,
    /// The command line client.
    pub cli: PathBuf,
    /// PID 1 of a worker's initramfs.
    pub stage1: PathBuf,
    /// The firmware program.
    pub attest: PathBuf,
}

impl Programs {
    /// All of them, as inputs of a step.
    pub fn all(&self) -> Vec<PathBuf> {
        [&self.init, &self.daemon, &self.cli, &self.stage1, &self.attest].map(Clone::clone).to_vec()
    }
}

/// Builds what changed.
pub fn build(target: &Path) -> Result<Programs> {
    println!("image: programs");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let build = |triple: &str, packages: &[&str], flags: Option<&str>| {
        let mut command = Command::new(&cargo);
        command.args(["build", "--release", "--locked", "--quiet", "--target", triple, "--target-dir"]).arg(target);
        for package in packages {
            command.args(["-p", package]);
        }
        // Flags by target, so that the host's own tools (build scripts, macros) are built as usual. The firmware target has
        // its own in `.cargo/config.toml`.
        if let Some(flags) = flags {
            command.env(format!("CARGO_TARGET_{}_RUSTFLAGS", triple.to_uppercase().replace('-', "_")), flags);
        }
        // What cargo set for this builder's own package must not reach the programs' build.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("CARGO_PKG_") || name.to_string_lossy().starts_with("CARGO_MANIFEST_") {
                command.env_remove(name);
            }
        }
        tool(&mut command).context("building the programs")
    };
    build(LINUX_TARGET, &["kurrent-init", "kurrentd", "kurrent-cli", "kurrent-stage1"], Some("-C target-feature=+crt-static"))?;
    build(UEFI_TARGET, &["kurrent-attest"], None)?;
    let linux = target.join(LINUX_TARGET).join("release");
    Ok(Programs {
        init: linux.join("kurrent-init"),
        daemon: linux.join("kurrentd"),
        cli: linux.join("kurrent"),
        stage1: linux.join("kurrent-stage1"),
        attest: target.join(UEFI_TARGET).join("release/kurrent-attest.efi"),
    })
}
