//! Labs left running with `LAB_KEEP=1`: a note of their processes, so that `kurrent-lab stop` can end exactly those.

use crate::tools;
use anyhow::{Context, Result};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::fs;
use std::path::{Path, PathBuf};

/// The note in the run's folder: one process group per line.
pub const FILE_NAME: &str = "kept";

/// Notes the process groups of a lab that is left running.
pub fn note(scratch: &Path, groups: &[u32]) -> Result<()> {
    let text: String = groups.iter().map(|group| format!("{group}\n")).collect();
    fs::write(scratch.join(FILE_NAME), text).with_context(|| format!("note the lab in {}", scratch.display()))
}

/// Folders of labs left running.
pub fn list() -> Vec<PathBuf> {
    let runs = tools::target_dir().join("lab/run");
    let entries = fs::read_dir(runs).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.join(FILE_NAME).exists()).collect()
}

/// Where the consoles and captures of a lab are.
pub fn evidence_of(scratch: &Path) -> Result<PathBuf> {
    let name = scratch.file_name().context("a run's folder has a name")?;
    Ok(tools::target_dir().join("evidence").join(name))
}

/// Ends the machines of one lab and removes its disks. A process id that now belongs to something else is left alone.
pub fn stop(scratch: &Path) -> Result<usize> {
    let note = scratch.join(FILE_NAME);
    let text = fs::read_to_string(&note).with_context(|| format!("read {}", note.display()))?;
    let mut ended = 0;
    for pid in text.lines().filter_map(|line| line.parse::<i32>().ok()) {
        // Its working folder tells that it is this lab's QEMU.
        if fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == scratch) && killpg(Pid::from_raw(pid), Signal::SIGKILL).is_ok()
        {
            ended += 1;
        }
    }
    for dir in [scratch.to_path_buf(), evidence_of(scratch)?] {
        fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
    }
    Ok(ended)
}
