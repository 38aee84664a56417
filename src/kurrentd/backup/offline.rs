//! Backup and restore of a state folder that no daemon uses: `kurrentd backup`, `kurrentd restore`.

use super::{BackupError, FILE_MODE, Manifest, Passphrase, Restored, Source, Target, stage, swap, write};
use kurrent_core::time::Now;
use kurrent_sys::store;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

const MAX_PASSPHRASE_BYTES: u64 = 64 * 1024;

/// The passphrase in a file's first line.
///
/// # Errors
/// The file is not there, or holds none.
pub fn passphrase(file: &Path) -> Result<Zeroizing<String>, BackupError> {
    let octets = store::read(file, MAX_PASSPHRASE_BYTES).map_err(BackupError::io(file))?.map(Zeroizing::new);
    let none = || BackupError::refused("passphrase_missing", format!("{} has no passphrase in its first line; write one", file.display()));
    let line = Passphrase::line(&octets.ok_or_else(none)?);
    if line.is_empty() { Err(none()) } else { Ok(line) }
}

/// Writes a backup of `state_dir` to the new file `out`.
///
/// # Errors
/// [`BackupError`]; no file is left.
pub fn backup(
    state_dir: &Path,
    out: &Path,
    passphrase: Zeroizing<String>,
    config: Option<PathBuf>,
    now: Now,
) -> Result<Manifest, BackupError> {
    let passphrase = Passphrase::new(passphrase)?;
    let nothing = || {
        BackupError::refused("nothing_there", format!("{} holds no ledgers; name the state folder of an appliance", state_dir.display()))
    };
    let _lock = swap::lock(state_dir)?.ok_or_else(nothing)?;
    let ledger = crate::ledger::load::check(state_dir).map_err(|e| BackupError::refused("ledger_invalid", e.to_string()))?;
    let ledger = ledger.ok_or_else(nothing)?;
    let name = config.as_deref().and_then(|file| crate::config_file::load(file).ok()).map(|c| c.name).unwrap_or_default();
    let mut file = File::options().write(true).create_new(true).mode(FILE_MODE).open(out).map_err(BackupError::io(out))?;
    let people = crate::people::Octets::read(state_dir).map_err(|(path, cause)| BackupError::Io { path, cause })?;
    let source = Source { state_dir, ledger: &ledger, people, name, config, now: now.wall };
    let written = write(&source, &passphrase, &mut file, out).and_then(|m| file.sync_all().map(|()| m).map_err(BackupError::io(out)));
    if written.is_err() {
        // What is left of it is no backup; the failure itself is told.
        let _ = std::fs::remove_file(out);
    }
    written
}

/// Puts a backup in the place of `state_dir`. A state that is there is kept aside, and only replaced with `force`.
///
/// # Errors
/// [`BackupError`]; nothing changed, or the next start finishes what began.
pub fn restore(
    state_dir: &Path,
    archive: &Path,
    passphrase: Zeroizing<String>,
    disk_dir: Option<&Path>,
    force: bool,
    now: Now,
) -> Result<Restored, BackupError> {
    // Held until the folder is renamed.
    let lock = swap::lock(state_dir)?;
    let present = match crate::ledger::load::check(state_dir) {
        Ok(Some(ledger)) => Some(ledger.generation),
        Ok(None) => None,
        // Damaged ledgers are ledgers: they are why one restores, and a person says so.
        Err(_) => Some(crate::ledger::load::highest_readable(state_dir)),
    };
    if present.is_some() && !force {
        let what = format!("{} holds ledgers already; with --force they are kept aside and replaced", state_dir.display());
        return Err(BackupError::refused("state_exists", what));
    }
    let target = Target { state_dir, present: present.unwrap_or(0), disk_dir, now: now.wall };
    let restored = stage(archive, &Passphrase::given(passphrase), target, false)?;
    drop(lock);
    swap::carry_out(state_dir)?;
    Ok(restored)
}
