//! From an archive to a whole new state folder beside the present one: everything is checked on the way, nothing of the present
//! state is touched. What makes it count is the marker, written last; a folder without one is a leftover and goes.

use super::archive::{self, each, most_octets, most_octets_sealed};
use super::seal::{self, Passphrase};
use super::swap::{self, Marker};
use super::{BackupError, CONFIG, CONFIG_RESTORED, FILE_MODE, FORMAT, MANIFEST, MAX_ARCHIVE_BYTES, Manifest, SEALED};
use crate::people;
use kurrent_core::id::AgentName;
use kurrent_core::ledger::{DeviceState, Ledger};
use kurrent_core::time::Wall;
use kurrent_sys::store;
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use zeroize::Zeroizing;

/// What a backup holds, and what a restore makes of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// The appliance that it is of.
    pub name: String,
    /// Which program wrote it.
    pub kurrentd: String,
    /// When.
    pub made_at: Wall,
    /// The generation of the backup.
    pub generation: u64,
    /// The generation that the ledgers go on from: no epoch is given out twice. Chance has part in it, so a dry run tells another one.
    pub restored_generation: u64,
    /// Devices in all.
    pub devices: usize,
    /// Devices that are bound: each gets a new epoch and must boot again.
    pub bound: usize,
    /// Workers.
    pub workers: usize,
    /// System disks.
    pub disks: usize,
    /// What becomes of sessions and tokens.
    pub tokens: people::Tokens,
    /// Recorded disks of this appliance whose file is not in the disk folder: a backup holds no disks.
    pub missing_disks: Vec<String>,
    /// Where the present state goes, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_aside: Option<String>,
    /// Where the backup's audit was changed before it was backed up, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit_broken: Option<String>,
}

/// What the restored state goes into.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The state folder.
    pub state_dir: &'a Path,
    /// The highest generation that is known of the ledgers that are there now; see `ledger::load::highest_readable`.
    pub present: u64,
    /// Where disk files are, when that is known.
    pub disk_dir: Option<&'a Path>,
    /// The time now.
    pub now: Wall,
}

/// Checks an archive and makes a whole new state folder of it. With `dry_run` that is removed again; else it is swapped in by
/// [`swap::carry_out`].
///
/// # Errors
/// [`BackupError`]; nothing changed.
pub fn stage(archive: &Path, passphrase: &Passphrase, target: Target<'_>, dry_run: bool) -> Result<Restored, BackupError> {
    let folder = swap::staged(target.state_dir)?;
    swap::discard(&folder).map_err(BackupError::io(&folder))?;
    let staged = fill(archive, passphrase, target, &folder, dry_run);
    if dry_run || staged.is_err() {
        // What can not be removed now is at the next start: it has no marker.
        let _ = swap::discard(&folder);
    }
    staged
}

fn fill(archive: &Path, passphrase: &Passphrase, target: Target<'_>, folder: &Path, dry_run: bool) -> Result<Restored, BackupError> {
    let failed = BackupError::io(folder);
    store::private_folder(&folder.join(super::SECRETS)).map_err(&failed)?;
    let manifest = unpack(archive, folder)?;
    let sealed_at = folder.join(SEALED);
    let sealed = store::read(&sealed_at, archive::MAX_SEALED_BYTES).map_err(&failed)?.unwrap_or_default();
    let plain = seal::open(passphrase, &sealed)?;
    let inside = unseal(&plain, folder)?;
    let outside = Manifest { members: manifest.members.iter().filter(|m| m.name != SEALED).cloned().collect(), ..manifest.clone() };
    if inside != outside {
        let what = "what stands inside the seal is not what the archive holds: it was put together or changed by somebody; do not use it";
        return Err(BackupError::refused("archive_forged", what));
    }
    let unread = |fault| BackupError::refused("users_invalid", format!("the users of the backup do not read: {fault}; take another copy"));
    let tokens = people::after_restore(folder, target.state_dir, target.now).map_err(unread)?;
    let ledger = match crate::ledger::load::check(folder) {
        Ok(Some(ledger)) => ledger,
        Ok(None) => return Err(BackupError::refused("archive_invalid", "the archive holds no ledgers; it is no whole backup")),
        Err(error) => return Err(BackupError::refused("ledger_invalid", format!("the ledgers of the backup can not be served: {error}"))),
    };
    let exhausted = || BackupError::refused("ledger_invalid", "the generation of the ledgers is at its end; restore an earlier backup");
    let random = u64::from_le_bytes(kurrent_sys::entropy::random());
    let restored = ledger.after_restore(target.present, target.now, random).ok_or_else(exhausted)?;
    let texts = crate::ledger::load::texts(&restored).map_err(|e| BackupError::refused("ledger_invalid", e))?;
    for (name, text) in texts {
        let path = folder.join(name);
        store::replace(&path, text.as_bytes(), FILE_MODE).map_err(|e| BackupError::Io { path, cause: std::io::Error::other(e) })?;
    }
    for gone in [SEALED, MANIFEST] {
        store::remove(&folder.join(gone)).map_err(&failed)?;
    }
    let aside = swap::aside(target.state_dir, target.now)?;
    let mut told = tell(&manifest, &restored, tokens, &target);
    told.kept_aside = target.state_dir.exists().then(|| aside.display().to_string());
    told.audit_broken = crate::audit::verify(folder).err().map(|broken| broken.to_string());
    if !dry_run {
        swap::mark(folder, &Marker { aside }).map_err(&failed)?;
    }
    Ok(told)
}

/// Every member into its file, as the manifest says it is.
fn unpack(path: &Path, folder: &Path) -> Result<Manifest, BackupError> {
    let failed = BackupError::io(path);
    let archive = File::open(path).map_err(&failed)?;
    if archive.metadata().map_err(&failed)?.len() > MAX_ARCHIVE_BYTES {
        return Err(BackupError::refused("archive_too_large", format!("the archive is larger than {MAX_ARCHIVE_BYTES} octets")));
    }
    let mut found = each(std::io::BufReader::new(archive), folder, most_octets, |name| {
        let to = folder.join(if name == CONFIG { CONFIG_RESTORED } else { name });
        create(&to)
    })?;
    let no_manifest =
        || BackupError::refused("archive_damaged", "the archive has no manifest at its end: it is cut, or no backup; take another copy");
    if found.pop().is_none_or(|last| last.name != MANIFEST) {
        return Err(no_manifest());
    }
    let octets = store::read(&folder.join(MANIFEST), most_octets(MANIFEST).unwrap_or(0)).map_err(&failed)?.unwrap_or_default();
    let head: Head = serde_json::from_slice(&octets).map_err(|_| no_manifest())?;
    if head.format > FORMAT {
        let what =
            format!("the backup has format {}, this program knows up to {FORMAT}; restore it with the kurrentd that made it", head.format);
        return Err(BackupError::refused("archive_newer", what));
    }
    let manifest: Manifest = serde_json::from_slice(&octets).map_err(|_| no_manifest())?;
    if manifest.members != found {
        let listed = |m: &&super::Member| !manifest.members.contains(m);
        let name = found.iter().find(listed).or(manifest.members.last()).map_or("", |m| m.name.as_str());
        let what = format!("'{name}' is not what the manifest says it is: the archive is damaged; take another copy");
        return Err(BackupError::refused("archive_damaged", what));
    }
    Ok(manifest)
}

/// What every format has.
#[derive(serde::Deserialize)]
struct Head {
    format: u32,
}

fn create(path: &Path) -> Result<Synced, BackupError> {
    let file = File::options().write(true).create_new(true).mode(FILE_MODE).open(path).map_err(BackupError::io(path))?;
    Ok(Synced(file))
}

/// A file that is durable when it is flushed.
struct Synced(File);

impl Write for Synced {
    fn write(&mut self, octets: &[u8]) -> std::io::Result<usize> {
        self.0.write(octets)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.sync_all()
    }
}

/// The files of the seal, and the manifest in it.
fn unseal(plain: &Zeroizing<Vec<u8>>, folder: &Path) -> Result<Manifest, BackupError> {
    // Its manifest has a name of its own: the other one is beside it.
    let inner = folder.join("sealed-manifest.json");
    each(plain.as_slice(), folder, most_octets_sealed, |name| create(&if name == MANIFEST { inner.clone() } else { folder.join(name) }))?;
    let octets = store::read(&inner, archive::MAX_SEALED_BYTES).map_err(BackupError::io(&inner))?.unwrap_or_default();
    store::remove(&inner).map_err(BackupError::io(&inner))?;
    serde_json::from_slice(&octets)
        .map_err(|_| BackupError::refused("archive_invalid", "the seal holds no manifest; this is no whole backup"))
}

fn tell(manifest: &Manifest, ledger: &Ledger, tokens: people::Tokens, target: &Target<'_>) -> Restored {
    let disks = || ledger.workers.values().flat_map(|w| &w.disks);
    let here = |d: &&kurrent_core::ledger::Disk| d.agent == AgentName::local();
    let missing = |dir: &Path| disks().filter(here).map(|d| d.filename.to_string()).filter(|f| !dir.join(f).is_file()).collect();
    Restored {
        name: manifest.name.clone(),
        kurrentd: manifest.kurrentd.clone(),
        made_at: manifest.made_at,
        generation: manifest.generation,
        restored_generation: ledger.generation,
        devices: ledger.devices.len(),
        bound: ledger.devices.values().filter(|d| d.state == DeviceState::Bound).count(),
        workers: ledger.workers.len(),
        disks: disks().count(),
        tokens,
        missing_disks: target.disk_dir.map(missing).unwrap_or_default(),
        kept_aside: None,
        audit_broken: None,
    }
}
