//! Kernel modules: loads what [`kurrent_core::modules`] names, and lists what the hardware asks for.
//!
//! Modules are handed to the kernel as they are (`.ko.xz`, signed): the kernel unpacks them itself.

use kurrent_core::modules::{ModuleIndex, Resolved, Sources, kernel_request};
use nix::sys::socket::{self, AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// `MODULE_INIT_COMPRESSED_FILE` of `linux/module.h`.
const COMPRESSED_FILE: i32 = 4;

/// Folders deeper than this under `/sys/devices` hold no device of ours; also ends any loop.
const SYSFS_DEPTH: usize = 24;

/// A fault while loading a module.
#[derive(Debug, thiserror::Error)]
pub enum KmodError {
    /// depmod's files or a module file could not be read.
    #[error("reading {path}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel refused the module.
    #[error("loading kernel module {path}")]
    Load {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: Errno,
    },
    /// No module has this name or alias.
    #[error("no kernel module for {name:?} in this image")]
    Unknown {
        /// What was asked for.
        name: String,
    },
}

/// One kernel's module tree.
#[derive(Debug)]
pub struct ModuleTree {
    root: PathBuf,
    index: ModuleIndex,
}

impl ModuleTree {
    /// Opens `/lib/modules/<release>` (or a tree like it) and reads depmod's files there.
    pub fn open(root: &Path) -> Result<Self, KmodError> {
        let read = |name: &str| {
            let path = root.join(name);
            match fs::read_to_string(&path) {
                Ok(text) => Ok(text),
                Err(fault) if fault.kind() == io::ErrorKind::NotFound && name != "modules.dep" => Ok(String::new()),
                Err(source) => Err(KmodError::Read { path, source }),
            }
        };
        let (dep, alias) = (read("modules.dep")?, read("modules.alias")?);
        let (softdep, builtin) = (read("modules.softdep")?, read("modules.builtin")?);
        let index = ModuleIndex::parse(Sources { dep: &dep, alias: &alias, softdep: &softdep, builtin: &builtin });
        Ok(Self { root: root.to_owned(), index })
    }

    /// The tree of the running kernel.
    pub fn running() -> Result<Self, KmodError> {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        Self::open(&Path::new("/lib/modules").join(release))
    }

    /// Loads what a module name or alias stands for, with everything it needs. What is there already is fine, and so is a soft
    /// dependency that the kernel refuses.
    pub fn load(&self, name: &str) -> Result<(), KmodError> {
        self.load_with(name, "")
    }

    /// The same with module parameters (`queue_depth=64`) for the last needed file: the module itself.
    pub fn load_with(&self, name: &str, parameters: &str) -> Result<(), KmodError> {
        let files = match self.index.resolve(name) {
            Resolved::Builtin => return Ok(()),
            Resolved::Unknown => return Err(KmodError::Unknown { name: name.to_owned() }),
            Resolved::Files(files) => files,
        };
        // An alias may name several drivers of which one refuses (no such hardware): the others still get their turn.
        let itself = files.iter().rposition(|file| file.needed);
        let mut first_fault = None;
        for (position, file) in files.iter().enumerate() {
            let own = if Some(position) == itself { parameters } else { "" };
            match load_file(&self.root.join(&file.path), own) {
                Err(fault) if file.needed => _ = first_fault.get_or_insert(fault),
                Ok(()) | Err(_) => {}
            }
        }
        first_fault.map_or(Ok(()), Err)
    }

    /// Loads drivers for every device that is there now; gives back the faults that are not simply "no driver here".
    pub fn coldplug(&self, sysfs: &Path) -> Vec<KmodError> {
        self.load_drivers(modaliases(sysfs))
    }

    /// The same for these devices.
    pub fn load_drivers(&self, aliases: impl IntoIterator<Item = String>) -> Vec<KmodError> {
        let mut faults = Vec::new();
        for alias in aliases {
            match self.load(&alias) {
                // The image carries drivers for what it needs, not for every device; ENODEV is a driver's own "not mine".
                Ok(()) | Err(KmodError::Unknown { .. } | KmodError::Load { source: Errno::NODEV, .. }) => {}
                Err(fault) => faults.push(fault),
            }
        }
        faults
    }
}

/// Hands one module file to the kernel. A module that is there already is success.
fn load_file(path: &Path, parameters: &str) -> Result<(), KmodError> {
    let file = File::open(path).map_err(|source| KmodError::Read { path: path.to_owned(), source })?;
    let compressed = path.extension().is_some_and(|extension| extension != "ko");
    let flags = if compressed { COMPRESSED_FILE } else { 0 };
    // Parameters come from our own code and hold no NUL octet.
    let parameters = CString::new(parameters).unwrap_or_default();
    match rustix::system::finit_module(&file, &parameters, flags) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(source) => Err(KmodError::Load { path: path.to_owned(), source }),
    }
}

/// The `modalias` of every device below `<sysfs>/devices`, each once, sorted.
#[must_use]
pub fn modaliases(sysfs: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![(sysfs.join("devices"), 0)];
    while let Some((folder, depth)) = folders.pop() {
        // Devices come and go while we look: a folder that went away is no fault.
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && depth < SYSFS_DEPTH {
                folders.push((entry.path(), depth + 1));
            } else if kind.is_file() && entry.file_name() == "modalias" {
                let alias = fs::read_to_string(entry.path()).unwrap_or_default();
                if !alias.trim().is_empty() {
                    found.insert(alias.trim().to_owned());
                }
            }
        }
    }
    found
}

/// Room for a machine that finds hundreds of devices while PID 1 loads a driver; the default holds about two hundred.
const RECEIVE_OCTETS: usize = 4 << 20;
/// Events that are taken at once, so that a device that comes and goes without end does not keep the caller.
const EVENTS_AT_ONCE: usize = 1024;

/// What the kernel announced.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NewDevices {
    /// Modaliases of devices that have appeared.
    pub modaliases: Vec<String>,
    /// Some announcements were lost: only looking at every device ([`modaliases`]) finds what they were about.
    pub lost: bool,
}

/// The kernel's announcements of new devices.
#[derive(Debug)]
pub struct Uevents {
    socket: OwnedFd,
}

impl Uevents {
    /// Starts listening; devices that are there already are [`ModuleTree::coldplug`]'s.
    pub fn listen() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let protocol = SockProtocol::NetlinkKObjectUEvent;
        let socket = socket::socket(AddressFamily::Netlink, SockType::Datagram, flags, protocol)?;
        // Refused (no CAP_NET_ADMIN), the buffer is smaller and more is lost, which is made good.
        let _ = socket::setsockopt(&socket, socket::sockopt::RcvBufForce, &RECEIVE_OCTETS);
        // Group 1: the kernel's own events.
        socket::bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 1))?;
        Ok(Self { socket })
    }

    /// Reads what has come; never blocks.
    pub fn new_devices(&self) -> NewDevices {
        drain(|event| socket::recv(self.socket.as_raw_fd(), event, socket::MsgFlags::empty()))
    }
}

fn drain(mut receive: impl FnMut(&mut [u8]) -> nix::Result<usize>) -> NewDevices {
    let mut new = NewDevices::default();
    let mut event = [0; 8192];
    for _ in 0..EVENTS_AT_ONCE {
        match receive(&mut event) {
            Ok(length) => new.modaliases.extend(new_modalias(event.get(..length).unwrap_or_default())),
            // The kernel says this once for any number of events that the buffer had no room for.
            Err(nix::errno::Errno::ENOBUFS) => new.lost = true,
            Err(nix::errno::Errno::EINTR) => {}
            Err(_) => break,
        }
    }
    new
}

impl AsFd for Uevents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// An event is `add@/devices/…`, then `KEY=value`, each with a NUL octet behind it.
fn new_modalias(event: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(event);
    let mut fields = text.split('\0');
    fields.next()?.starts_with("add@").then_some(())?;
    fields.find_map(|field| field.strip_prefix("MODALIAS=").map(str::to_owned))
}

/// Answers the kernel's `request_module` when a program is run as `/sbin/modprobe`; the exit status of that program.
///
/// `arguments` without the program's own name.
#[must_use]
pub fn answer_kernel(arguments: &[&str]) -> u8 {
    let Some(name) = kernel_request(arguments) else { return 2 };
    match ModuleTree::running().and_then(|tree| tree.load(name)) {
        Ok(()) => 0,
        Err(_) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_without_modules_dep_is_a_fault_that_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let fault = ModuleTree::open(folder.path()).unwrap_err().to_string();
        assert!(fault.contains("modules.dep"), "{fault}");
    }

    /// A PC without SSE 4.2 did not come up: `crc32c-intel` is not for it, and so `modprobe fs-btrfs` failed with btrfs loaded.
    #[test]
    fn a_refused_soft_dependency_is_no_fault_of_the_module() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("modules.dep"), "btrfs.ko: xor.ko\ncrc32c-intel.ko:\nxor.ko:\n").unwrap();
        fs::write(folder.path().join("modules.softdep"), "softdep btrfs pre: crc32c-intel\n").unwrap();
        let fault = ModuleTree::open(folder.path()).unwrap().load("btrfs").unwrap_err().to_string();
        assert!(fault.contains("xor.ko"), "neither file is there, and only the needed one is told: {fault}");
    }

    #[test]
    fn every_modalias_is_found_once() {
        let folder = tempfile::tempdir().unwrap();
        for (place, text) in [("a/b", "pci:1\n"), ("a/c/d", "pci:1\n"), ("a/e", "\n"), ("f", "virtio:2\n")] {
            let place = folder.path().join("devices").join(place);
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join("modalias"), text).unwrap();
        }
        assert_eq!(modaliases(folder.path()).into_iter().collect::<Vec<_>>(), ["pci:1", "virtio:2"]);
    }

    #[test]
    fn a_device_behind_a_bus_gets_its_driver_in_a_later_pass_and_no_other_is_loaded_again() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("modules.dep"), "kernel/xhci.ko:\nkernel/asix.ko:\n").unwrap();
        fs::write(folder.path().join("modules.alias"), "alias pci:1 xhci\nalias usb:2 asix\n").unwrap();
        let tree = ModuleTree::open(folder.path()).unwrap();
        let appear = |place: &str, alias: &str| {
            let place = folder.path().join("devices").join(place);
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join("modalias"), alias).unwrap();
        };
        let mut asked = kurrent_core::modules::Asked::default();
        // The module files are not there: that each is asked for shows in its fault.
        let mut pass = || tree.load_drivers(asked.fresh(modaliases(folder.path()))).iter().map(ToString::to_string).collect::<Vec<_>>();
        appear("pci", "pci:1");
        appear("other", "acpi:none-in-this-image");
        let first = pass();
        assert!(first.len() == 1 && first[0].contains("xhci.ko"), "{first:?}");
        assert_eq!(pass(), Vec::<String>::new());
        appear("pci/usb1/1-1", "usb:2");
        let second = pass();
        assert!(second.len() == 1 && second[0].contains("asix.ko"), "{second:?}");
    }

    #[test]
    fn only_new_devices_with_a_modalias_ask_for_a_module() {
        let event = |text: &str| new_modalias(text.replace(' ', "\0").as_bytes());
        assert_eq!(event("add@/devices/x ACTION=add MODALIAS=usb:v1 SEQNUM=1 "), Some("usb:v1".to_owned()));
        assert_eq!(event("remove@/devices/x MODALIAS=usb:v1 "), None);
        assert_eq!(event("add@/devices/x ACTION=add "), None);
        assert_eq!(event(""), None);
    }

    #[test]
    fn lost_announcements_are_told_and_the_ones_behind_them_read() {
        use nix::errno::Errno;
        let add = "add@/devices/x\0MODALIAS=pci:1\0";
        let script = [Ok(add), Err(Errno::ENOBUFS), Err(Errno::EINTR), Ok(add), Err(Errno::EAGAIN), Ok(add)];
        let mut script = script.into_iter();
        let receive = |event: &mut [u8]| {
            let text = script.next().unwrap_or(Err(Errno::EAGAIN))?;
            event[..text.len()].copy_from_slice(text.as_bytes());
            Ok(text.len())
        };
        assert_eq!(drain(receive), NewDevices { modaliases: vec!["pci:1".to_owned(); 2], lost: true });
        assert_eq!(drain(|_| Err(Errno::EAGAIN)), NewDevices::default());
        // A flood does not keep the caller.
        assert_eq!(drain(|_| Ok(0)), NewDevices::default());
        assert!(drain(|_| Err(Errno::ENOBUFS)).lost);
    }

    #[test]
    fn a_module_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("modules.dep"), "kernel/a.ko.xz:\n").unwrap();
        let tree = ModuleTree::open(folder.path()).unwrap();
        assert!(matches!(tree.load("nothing"), Err(KmodError::Unknown { .. })));
        assert!(tree.load("a").unwrap_err().to_string().contains("kernel/a.ko.xz"));
    }
}
