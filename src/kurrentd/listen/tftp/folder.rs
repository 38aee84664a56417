//! The folder of further files (`spec.tftp.folder`): names are looked up beneath it, never through a symbolic link, never out of it.
//!
//! Machines ask by names of their own: a Raspberry Pi's ROM for `<serial>/start4.elf` (or a folder named after its MAC) and, when
//! that is not there, for `start4.elf`; Windows' loader with backslashes and in any case. What is not there is said so at once.

use rustix::fs::{Mode, OFlags, RawDir, ResolveFlags, openat2};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// A name of more parts or octets is no file of ours.
const MAX_PARTS: usize = 16;
const MAX_OCTETS: usize = 255;
/// Entries of one folder that are compared when the name's case is not the file's.
const MAX_ENTRIES: usize = 4096;

/// The parts of a name as a client wrote it, separated by `/`: leading slashes, doubled ones, `./` and backslashes mean nothing.
/// `None`: no name of a file, or one that tries to climb.
pub fn normal(name: &str) -> Option<String> {
    let name = name.replace('\\', "/");
    let parts: Vec<&str> = name.trim().split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let climbs = parts.contains(&"..") || name.chars().any(char::is_control);
    let fits = (1..=MAX_PARTS).contains(&parts.len()) && name.len() <= MAX_OCTETS;
    (fits && !climbs).then(|| parts.join("/"))
}

/// Opens the regular file that a [`normal`] name means; `Ok(None)`: there is none.
///
/// # Errors
/// The folder or the file can not be read.
pub fn open(folder: &Path, name: &str) -> io::Result<Option<(File, u64)>> {
    let top = rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    if let Some(file) = regular(&top, name)? {
        return Ok(Some(file));
    }
    match in_any_case(&top, name)? {
        Some(real) if real != name => regular(&top, &real),
        Some(_) | None => Ok(None),
    }
}

fn regular(top: &OwnedFd, name: &str) -> io::Result<Option<(File, u64)>> {
    // Not blocking: a FIFO waits for a writer.
    let Some(file) = beneath(top, name, OFlags::RDONLY | OFlags::NONBLOCK)? else { return Ok(None) };
    let file = File::from(file);
    let about = file.metadata()?;
    Ok(about.is_file().then_some((file, about.len())))
}

fn beneath(top: &impl AsFd, name: &str, flags: OFlags) -> io::Result<Option<OwnedFd>> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match openat2(top, name, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
        Ok(file) => Ok(Some(file)),
        // Not there, a link, a way out, or a socket or device that nothing stands behind.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::NAMETOOLONG | Errno::NXIO | Errno::NODEV) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The real name of what was asked for in another case; of several the first in order of octets.
fn in_any_case(top: &OwnedFd, name: &str) -> io::Result<Option<String>> {
    let mut real = String::new();
    for part in name.split('/') {
        let place = if real.is_empty() { "." } else { real.as_str() };
        let Some(folder) = beneath(top, place, OFlags::RDONLY | OFlags::DIRECTORY)? else { return Ok(None) };
        let Some(found) = entry(&folder, part)? else { return Ok(None) };
        if !real.is_empty() {
            real.push('/');
        }
        real.push_str(&found);
    }
    Ok(Some(real))
}

fn entry(folder: &OwnedFd, part: &str) -> io::Result<Option<String>> {
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut entries = RawDir::new(folder, &mut buffer);
    let mut best: Option<String> = None;
    for _ in 0..MAX_ENTRIES {
        let Some(entry) = entries.next() else { break };
        let Ok(name) = entry?.file_name().to_str().map(str::to_owned) else { continue };
        if name == part {
            return Ok(Some(name));
        }
        if name.eq_ignore_ascii_case(part) && best.as_ref().is_none_or(|best| name < *best) {
            best = Some(name);
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    fn read(folder: &Path, name: &str) -> Option<String> {
        let (mut file, size) = open(folder, &normal(name)?).unwrap_or_else(|e| panic!("{name}: {e}"))?;
        let mut text = String::new();
        file.read_to_string(&mut text).expect("text");
        assert_eq!(u64::try_from(text.len()), Ok(size));
        Some(text)
    }

    #[test]
    fn files_are_found_as_real_clients_write_their_names() {
        let top = tempfile::tempdir().expect("a folder");
        for (name, text) in [
            ("start4.elf", "common"),
            ("1a2b3c4d/start4.elf", "of one Pi"),
            ("dc-a6-32-00-00-01/config.txt", "by MAC"),
            ("Boot/x64/wdsnbp.com", "windows"),
            ("pxelinux.cfg/default", "syslinux"),
        ] {
            fs::create_dir_all(top.path().join(name).parent().expect("a parent")).expect("folders");
            fs::write(top.path().join(name), text).expect("a file");
        }
        for (name, expected) in [
            ("start4.elf", Some("common")),
            ("/start4.elf", Some("common")),
            ("1a2b3c4d/start4.elf", Some("of one Pi")),
            ("1A2B3C4D/START4.ELF", Some("of one Pi")),
            ("dc-a6-32-00-00-01/config.txt", Some("by MAC")),
            ("\\Boot\\x64\\wdsnbp.com", Some("windows")),
            ("boot\\X64\\WDSNBP.COM", Some("windows")),
            ("//pxelinux.cfg//default", Some("syslinux")),
            ("./pxelinux.cfg/./default", Some("syslinux")),
            // A Pi asks for its own folder first, and goes on only when it is told that there is none.
            ("ffffffff/start4.elf", None),
            ("1a2b3c4d/start.elf", None),
            ("start4.elf/x", None),
            ("pxelinux.cfg", None),
        ] {
            assert_eq!(read(top.path(), name).as_deref(), expected, "{name:?}");
        }
    }

    #[test]
    fn the_exact_name_wins_over_other_cases() {
        let top = tempfile::tempdir().expect("a folder");
        for name in ["FILE", "File", "file"] {
            fs::write(top.path().join(name), name).expect("a file");
        }
        assert_eq!(read(top.path(), "File").as_deref(), Some("File"));
        assert_eq!(read(top.path(), "fILE").as_deref(), Some("FILE"));
    }

    #[test]
    fn nothing_leads_out_of_the_folder() {
        let outer = tempfile::tempdir().expect("a folder");
        let top = outer.path().join("tftp");
        fs::create_dir_all(top.join("sub")).expect("folders");
        fs::write(outer.path().join("secret"), "secret").expect("a file");
        symlink("../secret", top.join("up")).expect("a link");
        symlink(outer.path().join("secret"), top.join("absolute")).expect("a link");
        symlink(outer.path(), top.join("folder")).expect("a link");
        symlink("/proc/self", top.join("magic")).expect("a link");
        rustix::fs::mknodat(rustix::fs::CWD, top.join("fifo"), rustix::fs::FileType::Fifo, Mode::RWXU, 0).expect("a fifo");
        for name in [
            "up",
            "absolute",
            "folder/secret",
            "magic/environ",
            "UP",
            "FOLDER/secret",
            "../secret",
            "sub/../../secret",
            "sub/..",
            "..",
            "",
            "/",
            ".",
            "fifo",
            "sub",
            "sub/",
            "/etc/passwd",
            "secret\n",
            "a\0b",
        ] {
            assert_eq!(read(&top, name), None, "{name:?}");
        }
        assert_eq!(normal(&"x/".repeat(17)), None);
        assert_eq!(normal(&"x".repeat(256)), None);
        assert!(open(&outer.path().join("not there"), "x").is_err(), "the operator's fault is told");
    }
}
