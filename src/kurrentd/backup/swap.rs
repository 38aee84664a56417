//! The swap of a staged state folder with the present one, at the start of a program that holds nothing open yet. Cut anywhere,
//! the next start goes on where it was:
//!
//! ```text
//! state.restore without marker        -> removed: the old state stands
//! state.restore with marker = COMMIT  -> 1. state renamed to state.before-restore-TIME (if it is there)
//!                                        2. state.restore renamed to state
//!                                        3. marker removed: the new state
//! state with marker                   -> 3.
//! ```

use super::{BackupError, FILE_MODE, beside};
use kurrent_core::time::Wall;
use kurrent_sys::store;
use serde::{Deserialize, Serialize};
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

const MARKER: &str = "restore-complete.json";
/// As the ledger's files have it.
const LOCK: &str = "lock";

/// What stands in the marker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Marker {
    /// Where the state that was there goes.
    pub(super) aside: PathBuf,
}

/// What a start found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swapped {
    /// No restore was waiting.
    Nothing,
    /// The state is the restored one now; the former one is kept there, if there was one.
    Restored(Option<PathBuf>),
}

/// Where a restore is staged.
pub(super) fn staged(state_dir: &Path) -> Result<PathBuf, BackupError> {
    beside(state_dir, ".restore")
}

/// Where the present state is kept.
pub(super) fn aside(state_dir: &Path, now: Wall) -> Result<PathBuf, BackupError> {
    let mut path = beside(state_dir, &format!(".before-restore-{}", stamp(now)))?;
    // Two restores within a second.
    for n in 2..100 {
        if !path.exists() {
            break;
        }
        path = beside(state_dir, &format!(".before-restore-{}-{n}", stamp(now)))?;
    }
    Ok(path)
}

/// A time in a file name.
pub(super) fn stamp(now: Wall) -> String {
    now.strftime("%Y%m%dT%H%M%SZ").to_string()
}

/// Makes a staged folder count. Everything in it is durable.
pub(super) fn mark(folder: &Path, marker: &Marker) -> io::Result<()> {
    store::sync_folder(&folder.join(super::SECRETS))?;
    store::sync_folder(folder)?;
    let json = serde_json::to_vec(marker)?;
    store::replace(&folder.join(MARKER), &json, FILE_MODE).map_err(io::Error::other)?;
    sync_parent(folder)
}

/// Removes a staged folder; the marker first, so that half of it never counts.
pub(super) fn discard(folder: &Path) -> io::Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    store::remove(&folder.join(MARKER))?;
    std::fs::remove_dir_all(folder)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    store::sync_folder(path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))
}

/// Whether a daemon is at work on this folder. The lock, for as long as it is held, keeps one from starting.
///
/// # Errors
/// One is, or the folder can not be used.
pub fn lock(state_dir: &Path) -> Result<Option<File>, BackupError> {
    if !state_dir.exists() {
        return Ok(None);
    }
    let path = state_dir.join(LOCK);
    let file = File::options().write(true).create(true).truncate(false).open(&path).map_err(BackupError::io(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => {
            let what = format!(
                "{} is used by a running kurrentd; use its API (`kurrent backup`, `kurrent restore`), or stop it",
                state_dir.display()
            );
            Err(BackupError::refused("in_use", what))
        }
        Err(TryLockError::Error(cause)) => Err(BackupError::Io { path, cause }),
    }
}

/// Finishes what a restore has staged. Called before anything in the state folder is opened.
///
/// # Errors
/// A folder can not be renamed: the old state stands, or nothing does; starting again tries again.
pub fn carry_out(state_dir: &Path) -> Result<Swapped, BackupError> {
    carry_out_stepwise(state_dir, &mut |_| Ok(()))
}

/// [`carry_out`], calling `before` with every step's name. Tests cut there.
pub(super) fn carry_out_stepwise(state_dir: &Path, before: &mut dyn FnMut(&str) -> io::Result<()>) -> Result<Swapped, BackupError> {
    let staged = staged(state_dir)?;
    let failed = BackupError::io(&staged);
    match read_marker(&staged)? {
        Some(marker) => {
            // Held over the renames, by the inode that moves with the old folder.
            let _lock = lock(state_dir)?;
            if state_dir.exists() {
                before("state aside").and_then(|()| std::fs::rename(state_dir, &marker.aside)).map_err(&failed)?;
                before("sync").and_then(|()| sync_parent(state_dir)).map_err(&failed)?;
            }
            before("staged in").and_then(|()| std::fs::rename(&staged, state_dir)).map_err(&failed)?;
            before("sync").and_then(|()| sync_parent(state_dir)).map_err(&failed)?;
        }
        None => {
            if staged.exists() {
                tracing::warn!("{}: a restore that was not finished is removed", staged.display());
                discard(&staged).map_err(&failed)?;
            }
        }
    }
    let upload = super::upload_path(state_dir)?;
    let part = super::part_of(&upload);
    store::remove(&part).map_err(BackupError::io(&part))?;
    let Some(marker) = read_marker(state_dir)? else { return Ok(Swapped::Nothing) };
    before("upload away").and_then(|()| store::remove(&upload)).map_err(BackupError::io(&upload))?;
    before("marker away").and_then(|()| store::remove(&state_dir.join(MARKER))).map_err(BackupError::io(state_dir))?;
    Ok(Swapped::Restored(Some(marker.aside).filter(|aside| aside.exists())))
}

fn read_marker(folder: &Path) -> Result<Option<Marker>, BackupError> {
    let path = folder.join(MARKER);
    let octets = store::read(&path, 8192).map_err(BackupError::io(&path))?;
    octets.map(|o| serde_json::from_slice(&o)).transpose().map_err(|e| BackupError::Io { path, cause: io::Error::other(e) })
}
