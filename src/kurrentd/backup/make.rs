//! Making an archive: from the running daemon's snapshot, or from a state folder that nobody uses.

use super::archive::{self, MAX_SEALED_BYTES, append};
use super::seal::{self, Passphrase};
use super::{BackupError, CONFIG, FORMAT, LEASES, MANIFEST, Manifest, Member, SEALED, SECRETS};
use crate::people::{self, LOGINS, USERS};
use kurrent_core::ledger::Ledger;
use kurrent_core::time::Wall;
use kurrent_sys::store;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use tar::Builder;
use zeroize::Zeroizing;

/// What is backed up.
#[derive(Clone)]
pub struct Source<'a> {
    /// Its secrets, leases and audit are read from here.
    pub state_dir: &'a Path,
    /// One snapshot, so that the ledgers fit each other.
    pub ledger: &'a Ledger,
    /// Users and what proves them, of one moment.
    pub people: people::Octets,
    /// The appliance's name.
    pub name: String,
    /// The configuration, for people: a copy goes along when it can be read.
    pub config: Option<PathBuf>,
    /// The time now.
    pub now: Wall,
}

/// Writes the archive.
///
/// # Errors
/// [`BackupError`]; what was written then is of no use.
pub fn write(source: &Source<'_>, passphrase: &Passphrase, to: &mut dyn Write, path: &Path) -> Result<Manifest, BackupError> {
    let texts = crate::ledger::load::texts(source.ledger).map_err(|e| BackupError::refused("ledger_not_encoded", e))?;
    write_texts(source, texts, passphrase, to, path)
}

/// [`write`] with the ledgers as texts.
pub(super) fn write_texts(
    source: &Source<'_>,
    texts: Vec<(&'static str, String)>,
    passphrase: &Passphrase,
    to: &mut dyn Write,
    path: &Path,
) -> Result<Manifest, BackupError> {
    let failed = BackupError::io(path);
    let mut tar = Builder::new(to);
    let mut members = Vec::new();
    for (name, text) in texts {
        members.push(append(&mut tar, name, text.as_bytes()).map_err(&failed)?);
    }
    if let Some(octets) = read(LEASES, &source.state_dir.join(LEASES))? {
        members.push(append(&mut tar, LEASES, &octets).map_err(&failed)?);
    }
    if let Some(octets) = &source.people.users {
        members.push(append(&mut tar, USERS, octets).map_err(&failed)?);
    }
    // All are open before the first is read: the audit goes on, and may rotate.
    for (name, file) in crate::audit::open_all(source.state_dir).map_err(|(path, cause)| BackupError::Io { path, cause })? {
        let octets = whole_lines(file, archive::most_octets(&name).unwrap_or(0)).map_err(BackupError::io(&source.state_dir.join(&name)))?;
        members.push(append(&mut tar, &name, &octets).map_err(&failed)?);
    }
    // The configuration may lie on a partition that is gone: the backup is whole without it.
    if let Some(octets) = source.config.clone().and_then(|from| read(CONFIG, &from).ok().flatten()) {
        members.push(append(&mut tar, CONFIG, &octets).map_err(&failed)?);
    }
    let mut manifest = Manifest {
        format: FORMAT,
        kurrentd: env!("CARGO_PKG_VERSION").to_owned(),
        made_at: source.now,
        generation: source.ledger.generation,
        name: source.name.clone(),
        members,
    };
    let sealed = seal::seal(passphrase, &secrets(source, &manifest)?)?;
    manifest.members.push(append(&mut tar, SEALED, &sealed).map_err(&failed)?);
    let json = encode(&manifest)?;
    append(&mut tar, MANIFEST, &json).map_err(&failed)?;
    tar.into_inner().and_then(|to| to.flush()).map_err(&failed)?;
    Ok(manifest)
}

fn encode(manifest: &Manifest) -> Result<Vec<u8>, BackupError> {
    serde_json::to_vec_pretty(manifest).map_err(|e| BackupError::refused("manifest_not_encoded", e.to_string()))
}

fn read(name: &str, from: &Path) -> Result<Option<Vec<u8>>, BackupError> {
    store::read(from, archive::most_octets(name).unwrap_or(0)).map_err(BackupError::io(from))
}

/// A file that somebody may be appending to, without the line that is being written.
fn whole_lines(file: File, most: u64) -> std::io::Result<Vec<u8>> {
    let mut octets = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut octets)?;
    if u64::try_from(octets.len()).unwrap_or(u64::MAX) > most {
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, format!("larger than {most} octets")));
    }
    octets.truncate(octets.iter().rposition(|o| *o == b'\n').map_or(0, |end| end.saturating_add(1)));
    Ok(octets)
}

/// The tar inside the seal: the manifest of what is outside, and every file of the secrets' folder; what proves people as it was with
/// `users.yml`.
fn secrets(source: &Source<'_>, manifest: &Manifest) -> Result<Zeroizing<Vec<u8>>, BackupError> {
    let folder = source.state_dir.join(SECRETS);
    let failed = BackupError::io(&folder);
    let mut files: Vec<(String, Zeroizing<Vec<u8>>)> = Vec::new();
    files.extend(source.people.logins.as_deref().map(|octets| (LOGINS.to_owned(), octets.clone())));
    for entry in std::fs::read_dir(&folder).map_err(&failed)? {
        let entry = entry.map_err(&failed)?;
        let name = format!("{SECRETS}/{}", entry.file_name().to_string_lossy());
        // Not a half-written file of a crash, and nothing that is no secret of ours.
        let is_ours = entry.file_type().map_err(&failed)?.is_file() && archive::most_octets_sealed(&name).is_some();
        if !is_ours || name == LOGINS {
            continue;
        }
        if let Some(octets) = store::read(&entry.path(), MAX_SEALED_BYTES).map_err(&failed)? {
            files.push((name, Zeroizing::new(octets)));
        }
    }
    files.sort_by(|a, b| a.0.cmp(&b.0));
    let json = encode(manifest)?;
    // As large as it becomes: a buffer that grows leaves copies of secrets behind.
    let room = files.iter().map(|(_, octets)| octets.len() + 2048).sum::<usize>() + json.len() + 8192;
    let mut tar = Builder::new(Buffer(Zeroizing::new(Vec::with_capacity(room))));
    let mut add = |name: &str, octets: &[u8]| -> Result<Member, BackupError> { append(&mut tar, name, octets).map_err(&failed) };
    add(MANIFEST, &json)?;
    for (name, octets) in &files {
        add(name, octets)?;
    }
    Ok(tar.into_inner().map_err(&failed)?.0)
}

/// A buffer that is wiped.
struct Buffer(Zeroizing<Vec<u8>>);

impl Write for Buffer {
    fn write(&mut self, octets: &[u8]) -> std::io::Result<usize> {
        self.0.extend_from_slice(octets);
        Ok(octets.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
