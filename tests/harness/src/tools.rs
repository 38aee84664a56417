//! Small things every part of the lab needs: the tree's folders, running a tool with a clear error, one lock per folder.

use anyhow::{Context, Result, bail};
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Root of the source tree.
pub fn source_dir() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// Cargo's target folder: the image, the lab's files and the evidence are kept there.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| source_dir().join("target"), PathBuf::from)
}

/// Runs a tool to its end; its output, or an error with what it said.
pub fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("start {name} (`make deps` installs what the lab needs)"))?;
    if !output.status.success() {
        let said = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
        // Not its environment, where the lab's token is.
        let arguments: Vec<_> = command.get_args().collect();
        bail!("{name} {arguments:?} failed ({}): {}", output.status, String::from_utf8_lossy(&said).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Holds `path` locked until dropped; waits for another run that has it.
pub fn lock(path: &Path) -> Result<Flock<File>> {
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno).with_context(|| format!("lock {}", path.display()))
}

/// A path as one word for `sh`.
pub fn quoted(path: &Path) -> String {
    format!("'{}'", path.to_string_lossy().replace('\'', "'\\''"))
}
