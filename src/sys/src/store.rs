//! Files that survive a power cut: replaced whole or not at all, durable before the caller goes on.
//!
//! [`replace`] writes a temporary file beside the target, fsyncs it, renames it over the target and fsyncs the folder.
//! Wherever it is cut, the target holds the old octets or the new ones; a temporary file may be left behind, which
//! [`sweep`] removes at the next start.

use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Ends the names of temporary files, so that [`sweep`] and people recognise them.
pub const TEMPORARY_SUFFIX: &str = ".kurrent-tmp";

/// More than `read_to_end` wants to be free: 32 in Rust 1.95.
const SPARE_OCTETS: usize = 256;

/// The steps of a replacement, in order. Tests cut after each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The temporary file exists, empty.
    Created,
    /// Half of the octets are written.
    HalfWritten,
    /// All octets are written, none need be on the disk.
    Written,
    /// The temporary file's octets are on the disk.
    Synced,
    /// The name points at the new file; the folder need not be on the disk.
    Renamed,
    /// Durable.
    FolderSynced,
}

/// All steps, in order.
pub const STEPS: [Step; 6] = [Step::Created, Step::HalfWritten, Step::Written, Step::Synced, Step::Renamed, Step::FolderSynced];

/// How a replacement failed.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    /// The old content stands; nothing changed.
    #[error("writing {path}: {cause}", path = .path.display())]
    Unchanged {
        /// The target.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// The new content has the name, but it is not known to be on the disk: a power cut may bring the old one back.
    #[error("making {path} durable: {cause}", path = .path.display())]
    InDoubt {
        /// The target.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
}

/// Replaces `path` by `octets`, durably. The file gets `mode` (for secrets 0o600).
///
/// # Errors
/// [`ReplaceError`] says whether the old content stands.
pub fn replace(path: &Path, octets: &[u8], mode: u32) -> Result<(), ReplaceError> {
    replace_stepwise(path, octets, mode, &mut |_| Ok(()))
}

/// [`replace`], calling `after` behind every step; an error from it acts like a failure of the step. For tests.
///
/// # Errors
/// As [`replace`].
pub fn replace_stepwise(path: &Path, octets: &[u8], mode: u32, after: &mut dyn FnMut(Step) -> io::Result<()>) -> Result<(), ReplaceError> {
    let unchanged = |cause| ReplaceError::Unchanged { path: path.to_owned(), cause };
    let (folder, temporary) = beside(path).map_err(unchanged)?;
    let written = write_new(&temporary, octets, mode, after).and_then(|()| std::fs::rename(&temporary, path));
    if let Err(cause) = written {
        // Best effort: what is left is swept at the next start.
        let _ = std::fs::remove_file(&temporary);
        return Err(unchanged(cause));
    }
    let in_doubt = |cause| ReplaceError::InDoubt { path: path.to_owned(), cause };
    after(Step::Renamed).map_err(in_doubt)?;
    sync_folder(&folder).map_err(in_doubt)?;
    after(Step::FolderSynced).map_err(in_doubt)
}

/// Where [`replace`] writes before it renames: what has this name at [`Step::Synced`] is what `path` names next.
///
/// # Errors
/// The path has no file name.
pub fn temporary(path: &Path) -> io::Result<PathBuf> {
    beside(path).map(|(_, temporary)| temporary)
}

fn beside(path: &Path) -> io::Result<(PathBuf, PathBuf)> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "the path has no file name");
    let name = path.file_name().ok_or_else(wrong)?.to_str().ok_or_else(wrong)?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned();
    let temporary = folder.join(format!(".{name}{TEMPORARY_SUFFIX}"));
    Ok((folder, temporary))
}

fn write_new(path: &Path, octets: &[u8], mode: u32, after: &mut dyn FnMut(Step) -> io::Result<()>) -> io::Result<()> {
    // A leftover of an earlier crash is in the way of O_EXCL, which keeps us from following a planted link.
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::from_raw_mode(mode))?);
    after(Step::Created)?;
    let (first, second) = octets.split_at(octets.len() / 2);
    file.write_all(first)?;
    after(Step::HalfWritten)?;
    file.write_all(second)?;
    after(Step::Written)?;
    file.sync_all()?;
    after(Step::Synced)
}

/// Makes names in a folder durable.
///
/// # Errors
/// The folder can not be opened or synced.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Removes a file durably; one that is not there is fine.
///
/// # Errors
/// It is there and can not be removed.
pub fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    }
    sync_folder(path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))
}

/// The octets of a file, at most `max`; `None` when there is none.
///
/// # Errors
/// It can not be read, or is larger.
pub fn read(path: &Path, max: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    // Room for all from the start: growing would leave copies behind, and files of secrets are read by this, too. More than their
    // octets: the library looks for the end through a buffer of its own where less is free.
    let length = file.metadata()?.len().min(max);
    let mut octets = Vec::with_capacity(usize::try_from(length).unwrap_or(0).saturating_add(SPARE_OCTETS));
    file.take(max.saturating_add(1)).read_to_end(&mut octets)?;
    if u64::try_from(octets.len()).unwrap_or(u64::MAX) > max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {max} octets")));
    }
    Ok(Some(octets))
}

/// Removes temporary files that a crash left in `folder`; returns how many.
///
/// # Errors
/// The folder can not be read, or a leftover not be removed.
pub fn sweep(folder: &Path) -> io::Result<usize> {
    let mut removed = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().is_some_and(|n| n.starts_with('.') && n.ends_with(TEMPORARY_SUFFIX)) {
            std::fs::remove_file(entry.path())?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Makes a folder (and its parents) that only its owner may enter, when it is not there.
///
/// # Errors
/// It can not be made.
pub fn private_folder(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn wherever_it_is_cut_the_old_or_the_new_octets_stand_whole() {
        for cut in STEPS {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("ledger.yml");
            replace(&path, b"old octets", 0o600).unwrap();
            let result = replace_stepwise(&path, b"the new octets", 0o600, &mut |step| {
                if step == cut { Err(io::Error::other("cut")) } else { Ok(()) }
            });
            let found = std::fs::read(&path).unwrap();
            match result.unwrap_err() {
                ReplaceError::Unchanged { .. } => assert_eq!(found, b"old octets", "cut after {cut:?}"),
                ReplaceError::InDoubt { .. } => assert_eq!(found, b"the new octets", "cut after {cut:?}"),
            }
            replace(&path, b"after", 0o600).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"after");
        }
    }

    #[test]
    fn what_is_read_is_read_into_one_place_and_no_more_of_it_than_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        assert!(read(&path, 10).unwrap().is_none());
        for length in [0, 1, 31, 32, 33, 4095, 4096, 100_000] {
            std::fs::write(&path, vec![7; length]).unwrap();
            let octets = read(&path, 100_000).unwrap().unwrap();
            assert_eq!((octets.len(), octets.capacity()), (length, length + SPARE_OCTETS), "it grew");
            assert!(length == 0 || read(&path, length as u64 - 1).is_err(), "{length}");
        }
    }

    #[test]
    fn a_leftover_of_a_crash_is_swept_and_never_in_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(folder.path().join(format!(".a{TEMPORARY_SUFFIX}")), b"half").unwrap();
        replace(&path, b"new", 0o600).unwrap();
        std::fs::write(folder.path().join(format!(".b{TEMPORARY_SUFFIX}")), b"half").unwrap();
        assert_eq!(sweep(folder.path()).unwrap(), 1);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_secret_is_never_readable_by_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        replace_stepwise(&path, b"x", 0o600, &mut |step| {
            let file = if step == Step::Created { folder.path().join(format!(".secret{TEMPORARY_SUFFIX}")) } else { return Ok(()) };
            assert_eq!(file.metadata()?.permissions().mode() & 0o077, 0);
            Ok(())
        })
        .unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn missing_is_not_an_error_and_too_large_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        assert!(read(&path, 10).unwrap().is_none());
        std::fs::write(&path, b"0123456789a").unwrap();
        assert!(read(&path, 10).is_err());
        assert_eq!(read(&path, 11).unwrap().unwrap(), b"0123456789a");
    }
}
