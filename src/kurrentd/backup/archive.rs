//! Archives, read strictly: regular files with the names that a backup has, each once, none larger than it can be. Whatever else a
//! tar can hold (links, folders, devices, sparse files, absolute paths, `..`) is refused, not passed over.

use super::{BackupError, CONFIG, LEASES, MANIFEST, Member, SEALED};
use crate::people::USERS;
use sha2::{Digest, Sha256};
use std::io::{Read, Write};
use std::path::Path;
use tar::{Builder, EntryType, Header};

/// Largest member. A ledger that is read is smaller as well.
const MAX_MEMBER_BYTES: u64 = 128 << 20;
/// The seal and what it holds are in memory as a whole.
pub(super) const MAX_SEALED_BYTES: u64 = 48 << 20;
const MAX_MANIFEST_BYTES: u64 = 64 << 10;
const BLOCK: usize = 64 * 1024;

/// Whether a backup has a member of this name, and how large it may be.
pub(super) fn most_octets(name: &str) -> Option<u64> {
    match name {
        MANIFEST => Some(MAX_MANIFEST_BYTES),
        SEALED => Some(MAX_SEALED_BYTES),
        LEASES => Some(64 << 20),
        CONFIG => Some(1 << 20),
        USERS => Some(crate::people::MAX_BYTES),
        // Rotated at 4 MiB; a line more may be there.
        _ if crate::audit::names().iter().any(|n| n == name) => Some(8 << 20),
        _ if crate::ledger::load::names().contains(&name) => Some(MAX_MEMBER_BYTES),
        _ => None,
    }
}

/// Names inside the seal: those of files in `secrets`, and of the manifest.
pub(super) fn most_octets_sealed(name: &str) -> Option<u64> {
    let file = name.strip_prefix("secrets/");
    let fine = |f: &str| {
        (1..=100).contains(&f.len())
            && !f.starts_with('.')
            && f.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
    };
    (name == MANIFEST || file.is_some_and(fine)).then_some(MAX_SEALED_BYTES)
}

/// Appends a member; says what goes into the manifest.
pub(super) fn append(tar: &mut Builder<impl Write>, name: &str, octets: &[u8]) -> std::io::Result<Member> {
    let size = u64::try_from(octets.len()).unwrap_or(u64::MAX);
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(super::FILE_MODE);
    header.set_size(size);
    tar.append_data(&mut header, name, octets)?;
    Ok(Member { name: name.to_owned(), size, sha256: hex::encode(Sha256::digest(octets)) })
}

/// Goes through an archive: `take` gets each member's name and returns where its octets go.
pub(super) fn each<W: Write>(
    archive: impl Read,
    path: &Path,
    most: fn(&str) -> Option<u64>,
    mut take: impl FnMut(&str) -> Result<W, BackupError>,
) -> Result<Vec<Member>, BackupError> {
    let damaged = |e: std::io::Error| {
        BackupError::refused("archive_damaged", format!("the archive does not read ({e}): it is cut or damaged; take another copy"))
    };
    let invalid = |what: String| BackupError::refused("archive_invalid", format!("{what}; this is no backup that kurrentd made"));
    let mut archive = tar::Archive::new(archive);
    let mut members: Vec<Member> = Vec::new();
    // Raw: extensions that rename or resize other members show as what they are, and are refused.
    for entry in archive.entries().map_err(damaged)?.raw(true) {
        let mut entry = entry.map_err(damaged)?;
        let shown: String = String::from_utf8_lossy(&entry.path_bytes()).chars().filter(|c| !c.is_control()).take(100).collect();
        if entry.header().entry_type() != EntryType::Regular {
            return Err(invalid(format!("the archive holds '{shown}', which is not a plain file")));
        }
        let name = shown;
        let Some(most) = most(&name).filter(|_| *entry.path_bytes() == *name.as_bytes()) else {
            return Err(invalid(format!("the archive holds '{name}'")));
        };
        if members.iter().any(|m| m.name == name) {
            return Err(invalid(format!("the archive holds '{name}' twice")));
        }
        let size = entry.size();
        if size > most {
            return Err(invalid(format!("'{name}' has {size} octets, more than it can have")));
        }
        let mut to = take(&name)?;
        let (mut hash, mut copied, mut buffer) = (Sha256::new(), 0u64, vec![0; BLOCK]);
        loop {
            let n = entry.read(&mut buffer).map_err(damaged)?;
            let piece = buffer.get(..n).unwrap_or_default();
            if piece.is_empty() {
                break;
            }
            hash.update(piece);
            copied = copied.saturating_add(u64::try_from(n).unwrap_or(u64::MAX));
            to.write_all(piece).map_err(BackupError::io(path))?;
        }
        if copied != size {
            return Err(damaged(std::io::ErrorKind::UnexpectedEof.into()));
        }
        to.flush().map_err(BackupError::io(path))?;
        members.push(Member { name, size, sha256: hex::encode(hash.finalize()) });
    }
    Ok(members)
}
