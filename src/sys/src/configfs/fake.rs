//! A target tree in a folder that behaves as configfs was seen to behave: attributes appear with an item and go with it, what is
//! linked to or enabled can not be changed or removed, and only items can be linked.

use super::Kernel;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Makes the empty tree below `root` and plays the kernel for it.
pub struct FakeKernel {
    root: PathBuf,
}

const DEFAULT_UUID: &str = "00000000-0000-0000-0000-000000000000";

impl FakeKernel {
    /// Lays out `hosts`, `subsystems` and `ports`.
    ///
    /// # Errors
    /// The folders can not be made.
    pub fn new(root: &Path) -> io::Result<Self> {
        for kind in ["hosts", "subsystems", "ports"] {
            fs::create_dir_all(root.join(kind))?;
        }
        Ok(Self { root: root.to_owned() })
    }

    /// The path below the root as words.
    fn place<'a>(&self, path: &'a Path) -> Vec<&'a str> {
        path.strip_prefix(&self.root).map(|p| p.iter().filter_map(|w| w.to_str()).collect()).unwrap_or_default()
    }

    fn is_linked(&self, item: &Path) -> io::Result<bool> {
        let mut folders = vec![];
        for port in fs::read_dir(self.root.join("ports"))? {
            folders.push(port?.path().join("subsystems"));
        }
        for subsystem in fs::read_dir(self.root.join("subsystems"))? {
            folders.push(subsystem?.path().join("allowed_hosts"));
        }
        for folder in folders {
            for link in fs::read_dir(folder)? {
                if fs::read_link(link?.path())? == item {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// The kernel's own attribute can not be read; here it shows the size that was seen last. Nothing happens when it is the same.
fn see_size(attribute: &Path, device_path: &str) -> io::Result<()> {
    let size = format!("{}\n", fs::metadata(device_path.trim_end())?.len());
    if fs::read_to_string(attribute)? == size { Ok(()) } else { fs::write(attribute, size) }
}

fn busy() -> io::Error {
    io::Error::from(ErrorKind::ResourceBusy)
}

fn invalid() -> io::Error {
    io::Error::from(ErrorKind::InvalidInput)
}

impl Kernel for FakeKernel {
    fn make(&self, path: &Path) -> io::Result<()> {
        let (folders, attributes): (&[&str], &[(&str, &str)]) = match self.place(path).as_slice() {
            ["hosts", _] => {
                (&[], &[("dhchap_key", ""), ("dhchap_ctrl_key", ""), ("dhchap_hash", "hmac(sha256)"), ("dhchap_dhgroup", "null")])
            }
            ["subsystems", _] => (&["namespaces", "allowed_hosts"], &[("attr_allow_any_host", "0"), ("attr_serial", "5ca1ab1e")]),
            ["subsystems", _, "namespaces", _] => (
                &[],
                &[
                    ("enable", "0"),
                    ("device_path", "(null)"),
                    ("device_uuid", DEFAULT_UUID),
                    ("device_nguid", DEFAULT_UUID),
                    ("buffered_io", "0"),
                    ("revalidate_size", ""),
                ],
            ),
            ["ports", _] => (&["subsystems"], &[("addr_trtype", ""), ("addr_adrfam", ""), ("addr_traddr", ""), ("addr_trsvcid", "")]),
            _ => return Err(ErrorKind::PermissionDenied.into()),
        };
        fs::create_dir(path)?;
        for folder in folders {
            fs::create_dir(path.join(folder))?;
        }
        for (name, value) in attributes {
            fs::write(path.join(name), format!("{value}\n"))?;
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        if self.is_linked(path)? {
            return Err(busy());
        }
        for folder in ["namespaces", "allowed_hosts", "subsystems"] {
            if fs::read_dir(path.join(folder)).is_ok_and(|mut d| d.next().is_some()) {
                return Err(ErrorKind::DirectoryNotEmpty.into());
            }
        }
        if !path.is_dir() {
            return Err(ErrorKind::NotFound.into());
        }
        fs::remove_dir_all(path)
    }

    fn write(&self, path: &Path, value: &str) -> io::Result<()> {
        let place = self.place(path);
        let sibling = |name| fs::read_to_string(path.with_file_name(name)).unwrap_or_default();
        match place.as_slice() {
            ["subsystems", _, "namespaces", _, "enable"] if value == "1" => {
                // As the kernel opens it now, it is now that it must be there.
                fs::File::open(sibling("device_path").trim_end())?;
                see_size(&path.with_file_name("revalidate_size"), &sibling("device_path"))?;
            }
            ["subsystems", _, "namespaces", _, "enable"] => {}
            ["subsystems", _, "namespaces", _, "revalidate_size"] if sibling("enable").trim_end() == "1" => {
                return see_size(path, &sibling("device_path"));
            }
            ["subsystems", _, "namespaces", _, "revalidate_size"] => return Err(invalid()),
            ["subsystems", _, "namespaces", ..] if sibling("enable").trim_end() == "1" => return Err(busy()),
            ["subsystems", _, "attr_serial"] if value.len() > 20 => return Err(invalid()),
            ["hosts", _, "dhchap_key" | "dhchap_ctrl_key"] if !value.starts_with("DHHC-1:") => return Err(invalid()),
            ["ports", _, _] if fs::read_dir(path.with_file_name("subsystems"))?.next().is_some() => return Err(busy()),
            _ => {}
        }
        if !path.is_file() {
            return Err(ErrorKind::NotFound.into());
        }
        let padding = if place.last() == Some(&"attr_serial") { 20 } else { 0 };
        fs::write(path, format!("{value:padding$}\n"))
    }

    fn link(&self, target: &Path, link: &Path) -> io::Result<()> {
        let fits = matches!(
            (self.place(target).as_slice(), self.place(link).as_slice()),
            (["hosts", a], ["subsystems", _, "allowed_hosts", b]) | (["subsystems", a], ["ports", _, "subsystems", b]) if a == b
        );
        if !fits || !target.is_dir() {
            return Err(invalid());
        }
        std::os::unix::fs::symlink(target, link)
    }
}
