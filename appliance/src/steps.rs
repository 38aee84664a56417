//! Steps of the build: run when an input or the builder itself changed, passed over otherwise.

use anyhow::{Context as _, Result, bail};
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Keeps stamps and intermediate files under `target/image`.
pub struct Steps {
    work: PathBuf,
}

impl Steps {
    /// Makes the work folder.
    pub fn new(target: &Path) -> Result<Self> {
        let work = target.join("image");
        fs::create_dir_all(work.join("stamps")).with_context(|| format!("making {}", work.display()))?;
        Ok(Self { work })
    }

    /// The place of an intermediate file.
    pub fn work(&self, name: &str) -> PathBuf {
        self.work.join(name)
    }

    /// A file that changes only when `text` does: a value as an input of a step.
    pub fn text(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.work.join(format!("{name}.value"));
        if fs::read_to_string(&path).ok().as_deref() != Some(text) {
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(path)
    }

    /// Runs `action` unless `output` is there and was made from the same inputs by the same builder.
    pub fn run(&mut self, name: &str, inputs: &[PathBuf], output: &Path, action: impl FnOnce() -> Result<()>) -> Result<()> {
        let stamp = self.work.join("stamps").join(name.replace(' ', "-"));
        let digest = fingerprint(inputs)?;
        if output.exists() && fs::read_to_string(&stamp).ok().as_deref() == Some(&digest) {
            return Ok(());
        }
        // A stamp of an earlier run must not bless what this run leaves half done.
        let _ = fs::remove_file(&stamp);
        let started = Instant::now();
        action().with_context(|| format!("building: {name}"))?;
        println!("image: {name} ({}.{} s)", started.elapsed().as_secs(), started.elapsed().subsec_millis() / 100);
        fs::write(&stamp, digest).with_context(|| format!("writing {}", stamp.display()))
    }
}

/// Paths, sizes and times of change of the inputs (folders: of everything in them), and of the builder.
fn fingerprint(inputs: &[PathBuf]) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    // Not its path, where another build may have put a newer one meanwhile: the program that runs.
    let builder = PathBuf::from("/proc/self/exe");
    for input in inputs.iter().chain([&builder]) {
        hash_path(input, &mut hasher)?;
    }
    Ok(format!("{:016x}", hasher.finish()))
}

fn hash_path(path: &Path, hasher: &mut DefaultHasher) -> Result<()> {
    let data = fs::metadata(path).with_context(|| format!("reading {}", path.display()))?;
    path.hash(hasher);
    if data.is_dir() {
        for entry in sorted_entries(path)? {
            hash_path(&entry, hasher)?;
        }
    } else {
        (data.len(), data.modified().context("reading the time of a file")?).hash(hasher);
    }
    Ok(())
}

/// What is in a folder, in order of name.
pub fn sorted_entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = || fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>();
    let mut entries = read().with_context(|| format!("listing {}", folder.display()))?;
    entries.sort();
    Ok(entries)
}

/// Runs a tool; its output is shown only when it fails.
pub fn tool(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("running {name}: is it installed? `make deps` does it"))?;
    if !output.status.success() {
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        bail!("{name} failed ({}):\n{out}{err}", output.status);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_step_runs_when_an_input_changed_or_the_run_before_failed() {
        let target = std::env::temp_dir().join(format!("kurrent-appliance-steps-{}", std::process::id()));
        let mut steps = Steps::new(&target).unwrap();
        let (input, output) = (target.join("input"), target.join("output"));
        let runs = Cell::new(0);
        let mut step = |fails: bool| {
            let inputs = [input.clone()];
            let action = || {
                runs.set(runs.get() + 1);
                fs::write(&output, "x")?;
                if fails { bail!("on purpose") } else { Ok(()) }
            };
            steps.run("a step", &inputs, &output, action).is_ok()
        };
        fs::write(&input, "1").unwrap();
        assert!(step(false) && step(false) && runs.get() == 1);
        fs::write(&input, "22").unwrap();
        assert!(!step(true) && runs.get() == 2);
        assert!(step(false) && step(false) && runs.get() == 3);
        fs::remove_file(&output).unwrap();
        assert!(step(false) && runs.get() == 4);
        fs::remove_dir_all(&target).unwrap();
    }
}
