//! The kernel's NVMe host over TCP: connect through `/dev/nvme-fabrics`, find the namespace, disconnect.

use kurrent_core::id::Nqn;
use kurrent_core::target::Secret;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Write};
use std::net::SocketAddrV4;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use uuid::Uuid;
use zeroize::Zeroizing;

/// Where the kernel takes connections.
pub const FABRICS_DEVICE: &str = "/dev/nvme-fabrics";
/// Controllers in sysfs.
pub const CONTROLLERS: &str = "/sys/class/nvme";
/// Block devices in sysfs.
pub const BLOCK_DEVICES: &str = "/sys/class/block";
/// Seconds between two tries of the kernel after the target went away: short, because root waits meanwhile.
const RECONNECT_DELAY_SECS: u32 = 2;
/// Seconds without an answer after which the target is taken for gone.
const KEEP_ALIVE_SECS: u32 = 5;

/// One connection, authenticated in both directions.
pub struct Connect<'a> {
    /// The target.
    pub target: SocketAddrV4,
    /// Subsystem.
    pub subsystem: &'a Nqn,
    /// Our name.
    pub host: &'a Nqn,
    /// Our identifier.
    pub host_id: Uuid,
    /// Proves us.
    pub host_secret: &'a Secret,
    /// Proves the target.
    pub controller_secret: &'a Secret,
}

/// No controller was made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The module is not there.
    #[error("{FABRICS_DEVICE} can not be opened: {0}; is nvme-fabrics loaded?")]
    NoDevice(io::Error),
    /// The kernel did not connect.
    #[error("connecting to {target} failed: {cause}{}", hint(.cause))]
    Refused {
        /// The target.
        target: SocketAddrV4,
        /// Why.
        cause: io::Error,
    },
    /// The kernel connected but said something unexpected.
    #[error("the kernel's answer {0:?} is not understood")]
    Answer(String),
}

fn hint(cause: &io::Error) -> &'static str {
    // As seen from 6.12: a host that is not listed is EIO ("Connect ... is not allowed"), a wrong secret EKEYREJECTED.
    match cause.raw_os_error() {
        Some(libc::EKEYREJECTED) => " (the secrets do not match: the appliance may have given the disk to another epoch)",
        Some(libc::EIO) => " (not allowed: the appliance may have given the disk to another epoch)",
        Some(libc::ECONNREFUSED) => " (nothing is exported there yet)",
        Some(libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH) => " (no answer: is the appliance up and the cable in?)",
        _ => "",
    }
}

/// Connects; returns the controller's number (`nvme<N>`) when it is live.
///
/// # Errors
/// [`ConnectError`].
pub fn connect(device: &Path, to: &Connect<'_>) -> Result<u32, ConnectError> {
    let mut fabrics = fs::OpenOptions::new().read(true).write(true).open(device).map_err(ConnectError::NoDevice)?;
    let options = options(to);
    // One write(2): the kernel takes the whole line at once.
    fabrics.write(options.as_bytes()).map_err(|cause| ConnectError::Refused { target: to.target, cause })?;
    let mut answer = [0; 256];
    let length = fabrics.read(&mut answer).map_err(|cause| ConnectError::Refused { target: to.target, cause })?;
    let answer = String::from_utf8_lossy(answer.get(..length).unwrap_or_default());
    instance(&answer).ok_or_else(|| ConnectError::Answer(answer.trim().chars().take(100).collect()))
}

fn options(to: &Connect<'_>) -> Zeroizing<String> {
    // Room for all from the start: growing would leave copies of the secrets behind.
    let mut text = Zeroizing::new(String::with_capacity(2048));
    let (address, port) = (to.target.ip(), to.target.port());
    // Writing to a String does not fail.
    let _ = write!(
        text,
        "transport=tcp,traddr={address},trsvcid={port},nqn={},hostnqn={},hostid={},\
         ctrl_loss_tmo=-1,reconnect_delay={RECONNECT_DELAY_SECS},keep_alive_tmo={KEEP_ALIVE_SECS},\
         dhchap_secret={},dhchap_ctrl_secret={}",
        to.subsystem,
        to.host,
        to.host_id,
        to.host_secret.reveal(),
        to.controller_secret.reveal()
    );
    text
}

fn instance(answer: &str) -> Option<u32> {
    answer.trim().split(',').find_map(|f| f.strip_prefix("instance=")).and_then(|n| n.parse().ok())
}

/// The block device of a namespace (`nvme0n1`), if it is there now. Hidden paths of a multipath device are passed over.
///
/// # Errors
/// sysfs can not be read.
pub fn namespace(block_devices: &Path, uuid: Uuid) -> io::Result<Option<String>> {
    for entry in fs::read_dir(block_devices)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let attribute = |a: &str| fs::read_to_string(entry.path().join(a)).unwrap_or_default();
        if name.starts_with("nvme") && attribute("uuid").trim().parse() == Ok(uuid) && attribute("hidden").trim() != "1" {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// The numbers of all controllers connected to a subsystem.
///
/// # Errors
/// sysfs can not be read.
pub fn controllers_of(controllers: &Path, subsystem: &Nqn) -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(controllers) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(found),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        let nqn = fs::read_to_string(entry.path().join("subsysnqn")).unwrap_or_default();
        let number = entry.file_name().to_str().and_then(|n| n.strip_prefix("nvme")).and_then(|n| n.parse().ok());
        if nqn.trim() == subsystem.as_str() {
            found.extend::<Option<u32>>(number);
        }
    }
    Ok(found)
}

/// What the kernel says of a controller: `live`, `connecting`, `deleting`, …; empty when it is gone.
#[must_use]
pub fn state(controllers: &Path, number: u32) -> String {
    let text = fs::read_to_string(controllers.join(format!("nvme{number}/state"))).unwrap_or_default();
    text.trim().to_owned()
}

/// The kernel shows a controller's secrets in sysfs, to be read by everybody: from now on by root only.
///
/// # Errors
/// An attribute is there and its mode can not be changed.
pub fn hide_secrets(controllers: &Path, number: u32) -> io::Result<()> {
    for name in ["dhchap_secret", "dhchap_ctrl_secret"] {
        let attribute = controllers.join(format!("nvme{number}")).join(name);
        match fs::set_permissions(&attribute, fs::Permissions::from_mode(0o400)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(())
}

/// Deletes a controller.
///
/// # Errors
/// It is there and can not be deleted.
pub fn disconnect(controllers: &Path, number: u32) -> io::Result<()> {
    match fs::write(controllers.join(format!("nvme{number}/delete_controller")), "1") {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_told_everything_on_one_line() {
        let (subsystem, host) = ("nqn.2026-11.test:w1.d.0".parse().unwrap(), "nqn.2026-11.test:host.w1.e1".parse().unwrap());
        let secret = Secret::from_random(&Zeroizing::new([1; 32]));
        let to = Connect {
            target: "10.0.0.1:4420".parse().unwrap(),
            subsystem: &subsystem,
            host: &host,
            host_id: Uuid::from_u128(5),
            host_secret: &secret,
            controller_secret: &secret,
        };
        let line = options(&to);
        assert!(
            line.starts_with("transport=tcp,traddr=10.0.0.1,trsvcid=4420,nqn=nqn.2026-11.test:w1.d.0,hostnqn=nqn.2026-11.test:host.w1.e1,")
        );
        assert!(line.contains("ctrl_loss_tmo=-1") && !line.contains(' ') && line.len() < 2048);
    }

    #[test]
    fn the_kernels_answer_names_the_controller() {
        for (answer, expected) in [("instance=3,cntlid=7\n", Some(3)), ("cntlid=7", None), ("", None), ("instance=x", None)] {
            assert_eq!(instance(answer), expected);
        }
    }

    #[test]
    fn a_namespace_is_found_by_its_uuid_and_never_through_a_hidden_path() {
        let folder = tempfile::tempdir().unwrap();
        let uuid = Uuid::from_u128(7);
        for (name, id, hidden) in
            [("nvme0c0n1", uuid, "1"), ("nvme1n1", Uuid::from_u128(8), "0"), ("nvme0n1", uuid, "0"), ("sda", uuid, "0")]
        {
            let device = folder.path().join(name);
            fs::create_dir(&device).unwrap();
            fs::write(device.join("uuid"), format!("{id}\n")).unwrap();
            fs::write(device.join("hidden"), format!("{hidden}\n")).unwrap();
        }
        assert_eq!(namespace(folder.path(), uuid).unwrap().as_deref(), Some("nvme0n1"));
        assert_eq!(namespace(folder.path(), Uuid::from_u128(9)).unwrap(), None);
    }
}
