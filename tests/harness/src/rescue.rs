//! What an appliance wrote to its disk before a test failed: the log of kernel and daemon, and the state.

use crate::appliance::partition;
use crate::tools::run;
use anyhow::{Context, Result};
use kurrent_core::init::disk::DATA_NAME;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What of the data partition goes into the evidence.
const WANTED: &str = "^/(|log(|/.*)|state(|/.*))$";
/// Below it: keys and tokens stay out of a folder that people pass on.
const SECRETS: &str = "state/secrets";
const MIB: u64 = 1 << 20;

/// Copies log and state of every appliance disk in `scratch` into `evidence`. Nothing is mounted, and a disk that is still in
/// use is read as a power cut would leave it.
pub fn rescue(scratch: &Path, evidence: &Path) {
    for disk in disks(scratch) {
        let stem = disk.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if let Err(error) = restore(&disk, scratch, &evidence.join(format!("{stem}.data"))) {
            eprintln!("no log from {}: {error:#}", disk.display());
        }
    }
}

/// Disks with a data partition.
fn disks(scratch: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(scratch).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|e| e == "img") && partition(path, DATA_NAME).is_ok()).collect()
}

fn restore(disk: &Path, scratch: &Path, to: &Path) -> Result<()> {
    let files = read(disk, scratch)?;
    let _ = fs::remove_dir_all(files.join(SECRETS));
    let _ = fs::remove_dir_all(to);
    fs::rename(&files, to).with_context(|| format!("move {} to {}", files.display(), to.display()))
}

/// Log and state of one appliance disk, secrets and all, in a folder in `scratch` that the next call takes away.
pub fn read(disk: &Path, scratch: &Path) -> Result<PathBuf> {
    let (start, length) = partition(disk, DATA_NAME)?;
    let data = scratch.join("rescue.btrfs");
    let files = scratch.join("rescue");
    let _ = fs::remove_dir_all(&files);
    fs::create_dir_all(&files).with_context(|| format!("make {}", files.display()))?;
    let mut copy = Command::new("dd");
    copy.arg(format!("if={}", disk.display())).arg(format!("of={}", data.display()));
    run(copy.args(["bs=1M", "conv=sparse", &format!("skip={}", start / MIB), &format!("count={}", length / MIB)]))?;
    // What it cannot read it leaves out, and says so with its status: anything is better than nothing.
    let said = run(Command::new("btrfs").args(["restore", "-i", "--path-regex", WANTED]).arg(&data).arg(&files));
    let _ = fs::remove_file(&data);
    if !files.join("log").exists() {
        said?;
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// An appliance's disk: a GPT with a data partition that holds `files`.
    fn disk(dir: &Path, files: &[(&str, &str)]) -> Result<()> {
        let tree = dir.join("tree");
        for (path, text) in files {
            let path = tree.join(path);
            fs::create_dir_all(path.parent().context("a folder")?)?;
            fs::write(path, text)?;
        }
        let data = dir.join("data.btrfs");
        fs::File::create(&data)?.set_len(128 * MIB)?;
        run(Command::new("/usr/sbin/mkfs.btrfs").args(["-q", "--rootdir"]).arg(&tree).arg(&data))?;
        let image = dir.join("appliance.img");
        fs::File::create(&image)?.set_len(130 * MIB)?;
        let file = fs::OpenOptions::new().read(true).write(true).open(&image)?;
        let device: gpt::DiskDeviceObject = Box::new(file);
        let mut table = gpt::GptConfig::new().writable(true).create_from_device(device, None)?;
        table.update_partitions(BTreeMap::new())?;
        table.add_partition_at(DATA_NAME, 1, MIB / 512, 128 * MIB / 512, gpt::partition_types::LINUX_FS, 0)?;
        table.write()?;
        run(Command::new("dd").arg(format!("if={}", data.display())).arg(format!("of={}", image.display())).args([
            "bs=1M",
            "seek=1",
            "conv=notrunc,sparse",
        ]))?;
        Ok(())
    }

    #[test]
    fn log_and_state_are_evidence_and_secrets_and_disks_are_not() -> Result<()> {
        let dir = crate::tools::target_dir().join("lab").join(format!("rescue-test-{}", std::process::id()));
        let evidence = dir.join("evidence");
        fs::create_dir_all(&evidence)?;
        let files = [("log/kurrent.log", "init: up"), ("state/devices.yml", "devices"), ("state/secrets/token", "x"), ("disks/a.img", "y")];
        let found = disk(&dir, &files).map(|()| {
            rescue(&dir, &evidence);
            files.map(|(path, text)| fs::read_to_string(evidence.join("appliance.data").join(path)).is_ok_and(|read| read == text))
        });
        fs::remove_dir_all(&dir)?;
        assert_eq!(found?, [true, true, false, false]);
        Ok(())
    }
}
