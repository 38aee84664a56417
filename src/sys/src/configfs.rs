//! The kernel's NVMe target tree (`/sys/kernel/config/nvmet`): reading it as data, and running one step of a plan on it.
//!
//! The only place that writes to configfs. The root is an argument; [`Kernel`] is what the kernel does by itself when a folder
//! there is made or removed, so that the same contract tests run on a copy in a temporary folder ([`fake::FakeKernel`]) and on a
//! real kernel in a virtual machine.

#[cfg(any(test, feature = "fake"))]
pub mod contract;
#[cfg(any(test, feature = "fake"))]
pub mod fake;

use kurrent_core::target::plan::Step;
use kurrent_core::target::tree::{
    DHCHAP_GROUP, DHCHAP_HASH, Keys, Observed, ObservedHost, ObservedNamespace, ObservedPort, ObservedSubsystem, Port,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// Where the kernel has it.
pub const NVMET_ROOT: &str = "/sys/kernel/config/nvmet";
/// Our port's number.
const PORT: &str = "1";
/// A configfs attribute is at most one page.
const ATTRIBUTE_MAX: u64 = 4096;

/// Folders and links, the way configfs treats them.
pub trait Kernel: Send + Sync {
    /// Makes an item; its attributes appear with it.
    ///
    /// # Errors
    /// As `mkdir(2)`.
    fn make(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    /// Removes an item with its attributes.
    ///
    /// # Errors
    /// As `rmdir(2)`; `EBUSY` while something links to it.
    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    /// Writes an attribute in one `write(2)`.
    ///
    /// # Errors
    /// As `write(2)`: the kernel's own opinion of the value.
    fn write(&self, path: &Path, value: &str) -> io::Result<()> {
        let mut file = fs::OpenOptions::new().write(true).open(path)?;
        let written = file.write(value.as_bytes())?;
        if written == value.len() { Ok(()) } else { Err(io::Error::new(ErrorKind::WriteZero, "the kernel took only a part of the value")) }
    }

    /// Links `link` to `target`, both absolute: configfs resolves relative ones from the working folder.
    ///
    /// # Errors
    /// As `symlink(2)`.
    fn link(&self, target: &Path, link: &Path) -> io::Result<()> {
        std::os::unix::fs::symlink(target, link)
    }

    /// Removes a link.
    ///
    /// # Errors
    /// As `unlink(2)`.
    fn unlink(&self, link: &Path) -> io::Result<()> {
        fs::remove_file(link)
    }
}

/// The running kernel.
pub struct RealKernel;

impl Kernel for RealKernel {}

/// The target tree could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The modules are not there.
    #[error("the NVMe target is not available on this kernel ({0} is missing); load the modules nvmet and nvmet-tcp")]
    NotAvailable(PathBuf),
    /// One operation failed.
    #[error("{operation} {path}: {cause}", path = .path.display())]
    Io {
        /// `make`, `write`, …
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TargetError {
    let path = path.to_owned();
    move |cause| TargetError::Io { operation, path, cause }
}

/// The target tree at a root.
pub struct Nvmet {
    root: PathBuf,
    kernel: Box<dyn Kernel>,
}

impl Nvmet {
    /// The running kernel's tree.
    #[must_use]
    pub fn real() -> Self {
        Self::new(NVMET_ROOT.into(), Box::new(RealKernel))
    }

    /// A tree elsewhere. `root` is absolute.
    #[must_use]
    pub fn new(root: PathBuf, kernel: Box<dyn Kernel>) -> Self {
        Self { root, kernel }
    }

    fn host(&self, host: &str) -> PathBuf {
        self.root.join("hosts").join(host)
    }

    fn subsystem(&self, subsystem: &str) -> PathBuf {
        self.root.join("subsystems").join(subsystem)
    }

    fn namespace(&self, subsystem: &str, nsid: u32) -> PathBuf {
        self.subsystem(subsystem).join("namespaces").join(nsid.to_string())
    }

    fn port(&self) -> PathBuf {
        self.root.join("ports").join(PORT)
    }

    /// The tree as data.
    ///
    /// # Errors
    /// [`TargetError::NotAvailable`] when there is no tree; [`TargetError::Io`] when it can not be read.
    pub fn observe(&self) -> Result<Observed, TargetError> {
        let subsystems = self.root.join("subsystems");
        if !subsystems.is_dir() {
            return Err(TargetError::NotAvailable(self.root.clone()));
        }
        let port = self.port();
        Ok(Observed {
            port: if port.is_dir() { Some(observe_port(&port)?) } else { None },
            hosts: names(&self.root.join("hosts"))?
                .into_iter()
                .map(|h| Ok((h.clone(), observe_host(&self.host(&h))?)))
                .collect::<Result<_, _>>()?,
            subsystems: names(&subsystems)?
                .into_iter()
                .map(|s| Ok((s.clone(), observe_subsystem(&self.subsystem(&s))?)))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Reads again what the tree has of these names, and the port itself, into an earlier observation.
    ///
    /// # Errors
    /// As [`Nvmet::observe`]; `tree` is then worth nothing.
    pub fn observe_again(&self, names: &BTreeSet<String>, tree: &mut Observed) -> Result<(), TargetError> {
        if !self.root.join("subsystems").is_dir() {
            return Err(TargetError::NotAvailable(self.root.clone()));
        }
        let port = self.port();
        let mut links = tree.port.take().map(|p| p.links).unwrap_or_default();
        for name in names {
            tree.hosts.remove(name);
            tree.subsystems.remove(name);
            links.remove(name);
            if self.host(name).is_dir() {
                tree.hosts.insert(name.clone(), observe_host(&self.host(name))?);
            }
            if self.subsystem(name).is_dir() {
                tree.subsystems.insert(name.clone(), observe_subsystem(&self.subsystem(name))?);
            }
            if fs::symlink_metadata(port.join("subsystems").join(name)).is_ok() {
                links.insert(name.clone());
            }
        }
        if port.is_dir() {
            tree.port = Some(ObservedPort { address: port_address(&port)?, links });
        }
        Ok(())
    }

    /// One host, read back; without keys when it is not there.
    ///
    /// # Errors
    /// [`TargetError::Io`].
    pub fn host_now(&self, host: &str) -> Result<ObservedHost, TargetError> {
        observe_host(&self.host(host))
    }

    /// Runs one step; running it again does no harm. [`Step::CheckImage`] and [`Step::ConfirmCut`] are the caller's.
    ///
    /// # Errors
    /// [`TargetError::Io`].
    pub fn run(&self, step: &Step) -> Result<(), TargetError> {
        match step {
            Step::Unlink(s) => self.unlink(&self.port().join("subsystems").join(s)),
            Step::DisableNamespace(s, n) => self.write(&self.namespace(s, *n).join("enable"), "0"),
            Step::Disallow(s, h) => self.unlink(&self.subsystem(s).join("allowed_hosts").join(h)),
            Step::RemoveHost(h) => self.remove(&self.host(h)),
            Step::RemoveNamespace(s, n) => self.remove(&self.namespace(s, *n)),
            Step::RemoveSubsystem(s) => self.remove(&self.subsystem(s)),
            Step::RemovePort => self.remove(&self.port()),
            Step::CreatePort(port) => self.create_port(port),
            Step::CreateHost(h) => self.make(&self.host(h)),
            Step::SetKeys(h, keys) => self.set_keys(&self.host(h), keys),
            Step::CreateSubsystem(s) => self.make(&self.subsystem(s)),
            Step::ForbidAnyHost(s) => self.write(&self.subsystem(s).join("attr_allow_any_host"), "0"),
            Step::SetSerial(s, serial) => self.write(&self.subsystem(s).join("attr_serial"), serial),
            Step::CreateNamespace(s, n) => self.make(&self.namespace(s, *n)),
            Step::DescribeNamespace(s, path, uuid) => {
                self.describe(&self.namespace(s, kurrent_core::target::tree::NAMESPACE_ID), path, uuid)
            }
            Step::EnableNamespace(s, n) => self.write(&self.namespace(s, *n).join("enable"), "1"),
            Step::Allow(s, h) => self.link(&self.host(h), &self.subsystem(s).join("allowed_hosts").join(h)),
            Step::Link(s) => self.link(&self.subsystem(s), &self.port().join("subsystems").join(s)),
            Step::CheckImage(..) | Step::ConfirmCut(_) => Ok(()),
        }
    }

    /// Has the kernel look at the size of an enabled namespace's file again, and tell whoever is connected when it has changed.
    /// `false`: it is not enabled (then enabling it looks), or this kernel can not (before Linux 5.9: a reconnect looks).
    ///
    /// # Errors
    /// [`TargetError::Io`].
    pub fn revalidate(&self, subsystem: &str, nsid: u32) -> Result<bool, TargetError> {
        let namespace = self.namespace(subsystem, nsid);
        let attribute = namespace.join("revalidate_size");
        if read(&namespace.join("enable"))? != "1" || !attribute.exists() {
            return Ok(false);
        }
        self.write(&attribute, "1").map(|()| true)
    }

    fn create_port(&self, port: &Port) -> Result<(), TargetError> {
        let path = self.port();
        self.make(&path)?;
        for (name, value) in PORT_ATTRIBUTES.iter().zip(port.attributes()) {
            self.write(&path.join(name), &value)?;
        }
        Ok(())
    }

    fn set_keys(&self, host: &Path, keys: &Keys) -> Result<(), TargetError> {
        self.write(&host.join("dhchap_hash"), DHCHAP_HASH)?;
        self.write(&host.join("dhchap_dhgroup"), DHCHAP_GROUP)?;
        self.write(&host.join("dhchap_key"), keys.host.reveal())?;
        self.write(&host.join("dhchap_ctrl_key"), keys.controller.reveal())
    }

    fn describe(&self, namespace: &Path, path: &Path, uuid: &Uuid) -> Result<(), TargetError> {
        let not_text = || failed("use", path)(io::Error::new(ErrorKind::InvalidInput, "the path is not UTF-8"));
        self.write(&namespace.join("device_path"), path.to_str().ok_or_else(not_text)?)?;
        self.write(&namespace.join("buffered_io"), "0")?;
        self.write(&namespace.join("device_uuid"), &uuid.to_string())?;
        self.write(&namespace.join("device_nguid"), &uuid.to_string())
    }

    fn make(&self, path: &Path) -> Result<(), TargetError> {
        accept(self.kernel.make(path), ErrorKind::AlreadyExists).map_err(failed("make", path))
    }

    fn remove(&self, path: &Path) -> Result<(), TargetError> {
        accept(self.kernel.remove(path), ErrorKind::NotFound).map_err(failed("remove", path))
    }

    fn write(&self, path: &Path, value: &str) -> Result<(), TargetError> {
        self.kernel.write(path, value).map_err(failed("write", path))
    }

    fn link(&self, target: &Path, link: &Path) -> Result<(), TargetError> {
        accept(self.kernel.link(target, link), ErrorKind::AlreadyExists).map_err(failed("link", link))
    }

    fn unlink(&self, link: &Path) -> Result<(), TargetError> {
        accept(self.kernel.unlink(link), ErrorKind::NotFound).map_err(failed("unlink", link))
    }
}

/// In the order of [`Port::attributes`].
const PORT_ATTRIBUTES: [&str; 4] = ["addr_trtype", "addr_adrfam", "addr_traddr", "addr_trsvcid"];

fn accept(result: io::Result<()>, fine: ErrorKind) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == fine => Ok(()),
        other => other,
    }
}

fn names(folder: &Path) -> Result<BTreeSet<String>, TargetError> {
    let entries = match fs::read_dir(folder) {
        // An item may go while we look.
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
        other => other.map_err(failed("list", folder))?,
    };
    let mut names = BTreeSet::new();
    for entry in entries {
        let entry = entry.map_err(failed("list", folder))?;
        names.extend(entry.file_name().into_string().ok());
    }
    Ok(names)
}

/// An attribute without its newline and padding (serial numbers are shown padded to 20); empty when this kernel has none.
fn read(path: &Path) -> Result<String, TargetError> {
    let file = match fs::File::open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(String::new()),
        other => other.map_err(failed("read", path))?,
    };
    let mut text = String::new();
    file.take(ATTRIBUTE_MAX).read_to_string(&mut text).map_err(failed("read", path))?;
    text.truncate(text.trim_end().len());
    Ok(text)
}

fn observe_port(port: &Path) -> Result<ObservedPort, TargetError> {
    Ok(ObservedPort { links: names(&port.join("subsystems"))?.into_iter().collect(), address: port_address(port)? })
}

fn port_address(port: &Path) -> Result<[String; 4], TargetError> {
    let mut address = <[String; 4]>::default();
    for (slot, name) in address.iter_mut().zip(PORT_ATTRIBUTES) {
        *slot = read(&port.join(name))?;
    }
    Ok(address)
}

fn observe_host(host: &Path) -> Result<ObservedHost, TargetError> {
    let secret = |name: &str| Ok::<_, TargetError>(zeroize::Zeroizing::new(read(&host.join(name))?).parse().ok());
    let keys = match (secret("dhchap_key")?, secret("dhchap_ctrl_key")?) {
        (Some(host), Some(controller)) => Some(Keys { host, controller }),
        _ => None,
    };
    Ok(ObservedHost { keys, method: [read(&host.join("dhchap_hash"))?, read(&host.join("dhchap_dhgroup"))?] })
}

fn observe_subsystem(subsystem: &Path) -> Result<ObservedSubsystem, TargetError> {
    let mut namespaces = BTreeMap::new();
    for name in names(&subsystem.join("namespaces"))? {
        if let Ok(nsid) = name.parse() {
            namespaces.insert(nsid, observe_namespace(&subsystem.join("namespaces").join(&name))?);
        }
    }
    Ok(ObservedSubsystem {
        allow_any: read(&subsystem.join("attr_allow_any_host"))? != "0",
        serial: read(&subsystem.join("attr_serial"))?,
        allowed: names(&subsystem.join("allowed_hosts"))?,
        namespaces,
    })
}

fn observe_namespace(namespace: &Path) -> Result<ObservedNamespace, TargetError> {
    let id = |name: &str| Ok::<_, TargetError>(read(&namespace.join(name))?.parse().unwrap_or_default());
    Ok(ObservedNamespace {
        enabled: read(&namespace.join("enable"))? == "1",
        path: read(&namespace.join("device_path"))?,
        uuid: id("device_uuid")?,
        nguid: id("device_nguid")?,
        buffered: read(&namespace.join("buffered_io"))? == "1",
    })
}
