//! The programs inside the images: static ones for Linux, and the UEFI program.

use crate::steps::tool;
use anyhow::{Context as _, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The profile of the UEFI program in `Cargo.toml`.
const UEFI_PROFILE: &str = "firmware";
/// What is promised of the UEFI program, octets: each machine loads it at each boot, and stores hold little.
const MAX_ATTEST_BYTES: u64 = 100_000;
/// Static programs need no libraries in the images.
const LINUX_TARGET: &str = "x86_64-unknown-linux-gnu";
const UEFI_TARGET: &str = "x86_64-unknown-uefi";
const UEFI_ARM64_TARGET: &str = "aarch64-unknown-uefi";

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
    /// The same for arm64.
    pub attest_arm64: PathBuf,
}

impl Programs {
    /// All of them, as inputs of a step.
    pub fn all(&self) -> Vec<PathBuf> {
        [&self.init, &self.daemon, &self.cli, &self.stage1, &self.attest, &self.attest_arm64].map(Clone::clone).to_vec()
    }
}

/// Builds what changed.
pub fn build(target: &Path) -> Result<Programs> {
    println!("image: programs");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let build = |triple: &str, profile: &str, packages: &[&str], flags: Option<&str>| {
        let mut command = Command::new(&cargo);
        command.args(["build", "--profile", profile, "--locked", "--quiet", "--target", triple, "--target-dir"]).arg(target);
        for package in packages {
            command.args(["-p", package]);
        }
        // Flags by target, so that the host's own tools (build scripts, macros) are built as usual. The firmware targets have
        // their own in `.cargo/config.toml`.
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
    let linux_programs = ["kurrent-init", "kurrentd", "kurrent-cli", "kurrent-stage1"];
    build(LINUX_TARGET, "release", &linux_programs, Some("-C target-feature=+crt-static"))?;
    let attest = |triple: &str| -> Result<PathBuf> {
        build(triple, UEFI_PROFILE, &["kurrent-attest"], None)?;
        let program = target.join(triple).join(UEFI_PROFILE).join("kurrent-attest.efi");
        let length = program.metadata().with_context(|| format!("size of {}", program.display()))?.len();
        ensure!(length < MAX_ATTEST_BYTES, "{} has {length} octets; firmware is to load less than {MAX_ATTEST_BYTES}", program.display());
        Ok(program)
    };
    let (attest, attest_arm64) = (attest(UEFI_TARGET)?, attest(UEFI_ARM64_TARGET)?);
    let linux = target.join(LINUX_TARGET).join("release");
    Ok(Programs {
        init: linux.join("kurrent-init"),
        daemon: linux.join("kurrentd"),
        cli: linux.join("kurrent"),
        stage1: linux.join("kurrent-stage1"),
        attest,
        attest_arm64,
    })
}
