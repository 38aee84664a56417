//! The EFI system partition as a file: mkfs.vfat and mtools, no mount.

use crate::disk::create_sparse;
use crate::steps::tool;
use anyhow::{Context as _, Result};
use kurrent_core::init::disk::{ESP_SECTORS, SECTOR_BYTES};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Makes the file system and copies `files` (path inside, path here) into it.
pub fn build(files: &[(&str, &Path)], epoch: u64, output: &Path) -> Result<()> {
    let partial = output.with_extension("partial");
    create_sparse(&partial, ESP_SECTORS * SECTOR_BYTES)?;
    let environment = [("SOURCE_DATE_EPOCH", epoch.to_string()), ("TZ", "UTC".to_owned())];
    let mtool = |name: &str| {
        let mut command = Command::new(name);
        command.envs(environment.iter().map(|(key, value)| (key, value))).arg("-i").arg(&partial);
        command
    };
    // Two KiB clusters: as few as FAT32 may have, to be read quickly by firmware. `--invariant`: no date, no random identity.
    let mkfs = ["-F", "32", "-s", "4", "-n", "KURRENT", "--invariant"];
    tool(Command::new("mkfs.vfat").args(mkfs).arg(&partial).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"))?;
    let mut folders = BTreeSet::new();
    for (inside, _) in files {
        folders.extend(inside.match_indices('/').filter_map(|(at, _)| inside.get(..at)));
    }
    for folder in folders {
        tool(mtool("mmd").arg(format!("::/{folder}")))?;
    }
    for (inside, here) in files {
        tool(mtool("mcopy").arg(here).arg(format!("::/{inside}"))).with_context(|| format!("copying {} into the ESP", here.display()))?;
    }
    fs::rename(&partial, output).with_context(|| format!("writing {}", output.display()))
}
