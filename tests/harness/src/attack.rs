//! What `make attack` shows: one line for each attack that was refused, with how, and where the operator finds it.

use crate::tools;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::Write;

/// Notes an attack that was refused, in `target/attacks.txt`: name, how it was refused, where that is found. A test calls this last.
pub fn note(name: &str, how: &str, found: &str) -> Result<()> {
    let path = tools::target_dir().join("attacks.txt");
    let mut file = File::options().create(true).append(true).open(&path).with_context(|| format!("open {}", path.display()))?;
    // One write: tests run beside each other.
    file.write_all(format!("refused\t{name}\t{how}\t{found}\n").as_bytes()).context("note an attack")
}
