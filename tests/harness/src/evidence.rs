//! One folder per run: consoles, packet captures, QEMU's own words, audit. Kept and named on failure, gone on success.

use crate::rescue::rescue;
use crate::tools;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, Once, PoisonError};

static FAILED: AtomicBool = AtomicBool::new(false);
static COUNTER: AtomicU32 = AtomicU32::new(0);
/// Folders of this program that go when it ends well.
static OPEN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// The evidence of one run; `scratch` beside it holds disks and sockets and always goes.
#[derive(Debug)]
pub struct Run {
    name: String,
    evidence: PathBuf,
    scratch: PathBuf,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Nobody has said yet: an error on the way out counts as a failure.
    Open,
    Passed,
    Left,
}

impl Run {
    /// Makes `target/evidence/<name>-<pid>-<n>` and `target/lab/run/<name>-<pid>-<n>`.
    pub fn new(name: &str) -> Result<Self> {
        watch_for_failures();
        let unique = format!("{name}-{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
        let evidence = tools::target_dir().join("evidence").join(&unique);
        let scratch = tools::target_dir().join("lab/run").join(&unique);
        remove_abandoned(scratch.parent().unwrap_or(&scratch));
        for dir in [&evidence, &scratch] {
            fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        }
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.extend([evidence.clone(), scratch.clone()]);
        Ok(Self { name: unique, evidence, scratch, fate: Fate::Open })
    }

    /// Unique among all runs on this machine.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where consoles and captures go.
    pub fn evidence(&self) -> &Path {
        &self.evidence
    }

    /// Where disks and sockets go.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// All went well: nothing is kept.
    pub fn passed(mut self) {
        self.fate = Fate::Passed;
    }

    /// Something failed in a run that goes on (shared machines): its evidence stays when the program ends.
    pub fn failed(&self) {
        FAILED.store(true, Ordering::Relaxed);
    }

    /// The machines go on without us (`LAB_KEEP=1`): nothing is removed.
    pub fn leave(mut self) {
        self.fate = Fate::Left;
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        forget(&self.evidence);
        forget(&self.scratch);
        match self.fate {
            Fate::Left => return,
            Fate::Passed => drop(fs::remove_dir_all(&self.evidence)),
            Fate::Open => {
                rescue(&self.scratch, &self.evidence);
                eprintln!("evidence kept in {}", self.evidence.display());
            }
        }
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

fn forget(dir: &Path) {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).retain(|open| open != dir);
}

/// A run whose program was killed leaves its disks; its process id is in the name.
fn remove_abandoned(runs: &Path) {
    for entry in fs::read_dir(runs).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.rsplit('-').nth(1).and_then(|pid| pid.parse::<u32>().ok());
        let alive = pid.is_none_or(|pid| Path::new(&format!("/proc/{pid}")).exists());
        // `kurrent-lab stop` removes what LAB_KEEP=1 left on purpose.
        if !alive && !path.join(crate::kept::FILE_NAME).exists() {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Tests share machines through statics, which are never dropped: [`Run::failed`] or a panic marks the program as failed, and
/// the end of the program removes the folders or names them.
fn watch_for_failures() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            FAILED.store(true, Ordering::Relaxed);
            before(panic);
        }));
        // SAFETY: the handler is a plain function that unwinds nowhere; atexit only records it.
        unsafe {
            libc::atexit(at_exit);
        }
    });
}

extern "C" fn at_exit() {
    let failed = FAILED.load(Ordering::Relaxed);
    let open = OPEN.lock().map(|open| open.clone()).unwrap_or_default();
    // Of each run: first its evidence, then its scratch.
    for dirs in open.chunks(2).filter(|_| failed) {
        if let [evidence, scratch] = dirs {
            rescue(scratch, evidence);
        }
    }
    for dir in open {
        let is_scratch = dir.parent().is_some_and(|parent| parent.ends_with("lab/run"));
        if is_scratch || !failed {
            let _ = fs::remove_dir_all(&dir);
        } else {
            eprintln!("evidence kept in {}", dir.display());
        }
    }
}
