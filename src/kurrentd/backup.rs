//! Backups: the whole state of an appliance in one archive, and its way back. Format and reasons: `docs/decisions/0005-backup.md`.
//!
//! ```text
//! archive.tar = ledgers (YAML) leases users.yml operations.jsonl* kurrent.yaml  secrets.enc  manifest.json
//! secrets.enc = header (Argon2id, salt, nonce) + XChaCha20-Poly1305(tar of secrets/ and of the manifest so far)
//! ```
//!
//! The manifest lists every member with size and SHA-256, and stands last: a cut archive has none. A second one lies inside the
//! seal, so that whoever can write the archive, but does not know the passphrase, changes nothing unnoticed.
//!
//! A restore is [`stage`]d beside the state folder and swapped in by [`swap::carry_out`] before anything is opened.

mod archive;
mod make;
pub mod offline;
mod seal;
mod stage;
pub mod swap;

pub use make::{Source, write};
pub use seal::Passphrase;
pub use stage::{Restored, Target, stage};

use kurrent_core::time::Wall;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The version of the format that this program writes, and the latest one that it reads.
pub const FORMAT: u32 = 2;
/// A whole archive, and so what an upload may have. 20,000 devices and a full audit are about 70 MiB.
pub const MAX_ARCHIVE_BYTES: u64 = 1 << 30;
/// The folder of a state folder that holds nothing but secrets.
const SECRETS: &str = "secrets";
const MANIFEST: &str = "manifest.json";
const SEALED: &str = "secrets.enc";
/// The configuration's name in the archive, and in the state folder after a restore: it is not put into force.
const CONFIG: &str = "kurrent.yaml";
const CONFIG_RESTORED: &str = "kurrent.yaml.from-backup";
const LEASES: &str = "leases";
const FILE_MODE: u32 = 0o600;

/// What a backup holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// Which program wrote it.
    pub kurrentd: String,
    /// When.
    pub made_at: Wall,
    /// The ledgers' generation.
    pub generation: u64,
    /// The appliance's name; empty when an offline backup had no configuration.
    pub name: String,
    /// Every other member of the archive.
    pub members: Vec<Member>,
}

/// One member of an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Octets.
    pub size: u64,
    /// Hex.
    pub sha256: String,
}

/// Why a backup or a restore was not done. Nothing of the state changed.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The archive, or what was asked, is not right; `code` is stable, the text says what to do.
    #[error("{detail}")]
    Refused {
        /// `archive_damaged`, `archive_invalid`, `archive_newer`, `passphrase_wrong`, `passphrase_too_short`, …
        code: &'static str,
        /// One sentence.
        detail: String,
    },
    /// The disk says no.
    #[error("{path}: {cause}; make room, or check the disk and its permissions", path = .path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
}

impl BackupError {
    fn refused(code: &'static str, detail: impl Into<String>) -> Self {
        Self::Refused { code, detail: detail.into() }
    }

    fn io(path: &Path) -> impl Fn(std::io::Error) -> Self + '_ {
        move |cause| Self::Io { path: path.to_owned(), cause }
    }

    /// The stable word for it.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Refused { code, .. } => code,
            Self::Io { .. } => "not_durable",
        }
    }
}

/// A path beside `state_dir`, on the same file system so that it can be swapped with it by renaming.
fn beside(state_dir: &Path, suffix: &str) -> Result<PathBuf, BackupError> {
    let name = state_dir.file_name().ok_or_else(|| {
        BackupError::refused("state_dir_invalid", format!("{} can not be replaced; name a folder of its own", state_dir.display()))
    })?;
    let mut name = name.to_owned();
    name.push(suffix);
    Ok(state_dir.with_file_name(name))
}

/// Where an uploaded archive waits to be restored.
///
/// # Errors
/// The state folder has no name of its own.
pub fn upload_path(state_dir: &Path) -> Result<PathBuf, BackupError> {
    beside(state_dir, ".restore-archive")
}

/// An upload that is still coming in.
#[must_use]
pub fn part_of(upload: &Path) -> PathBuf {
    let mut name = upload.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

#[cfg(test)]
mod tests;
