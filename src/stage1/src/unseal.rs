//! The session's two variables and the sealed credentials: read once, removed at once, wiped after use.
//!
//! The session itself is volatile, and firmware lets nobody delete a volatile variable at run time: it stays until the machine is
//! reset, worthless without its mask, which is not volatile and must go.

use crate::{Fault, one_line};
use kurrent_core::stage1::Credentials;
use kurrent_handshake::{Session, VARIABLE_GUID, VARIABLE_SESSION, VARIABLE_SESSION_MASK};
use rustix::fs::IFlags;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use zeroize::Zeroizing;

/// Where efivarfs is.
const VARIABLES: &str = "/sys/firmware/efi/efivars";
/// iPXE puts it there as an initrd of its own.
const SEALED: &str = "/kurrent/sealed";
/// An efivarfs file starts with the variable's attributes.
const ATTRIBUTES: usize = 4;
/// Larger is not ours.
const SEALED_MAX: u64 = 64 << 10;

/// This boot's credentials.
pub fn credentials() -> Result<Credentials, Fault> {
    let variable = |name| Path::new(VARIABLES).join(format!("{name}-{VARIABLE_GUID}"));
    from_files(&variable(VARIABLE_SESSION), &variable(VARIABLE_SESSION_MASK), Path::new(SEALED))
}

fn from_files(session: &Path, mask: &Path, sealed: &Path) -> Result<Credentials, Fault> {
    // Whatever fails below, nothing is left for the system.
    let (mask, session, blob) = (take(mask), read(session), take(sealed));
    let missing = "the firmware has no session key of this boot (KurrentSession); the machine must start again through the network";
    let (mask, session) = (mask?.ok_or(missing)?, session?.ok_or(missing)?);
    let blob = blob?.ok_or("there are no sealed credentials in the initramfs; the appliance's boot plane did not send them")?;
    let value = |variable: &Zeroizing<Vec<u8>>| variable.get(ATTRIBUTES..).map(|v| Zeroizing::new(v.to_vec())).unwrap_or_default();
    let session = Session::from_handed(&value(&session), &value(&mask)).ok_or("the session key in the firmware has a wrong length")?;
    let plain =
        session.open(&blob).map_err(|_| "the sealed credentials are not for this boot of this machine, or were changed on the way")?;
    Credentials::parse(&plain).map_err(|e| one_line(&e))
}

/// Reads and removes a file; `None` when there is none.
fn take(path: &Path) -> Result<Option<Zeroizing<Vec<u8>>>, Fault> {
    let octets = read(path);
    if let Ok(file) = File::open(path) {
        // efivarfs marks files immutable; other file systems do not know the flag.
        let _ = rustix::fs::ioctl_setflags(&file, IFlags::empty());
        fs::remove_file(path).map_err(|e| format!("{} can not be removed: {e}", path.display()))?;
    }
    octets
}

fn read(path: &Path) -> Result<Option<Zeroizing<Vec<u8>>>, Fault> {
    let failed = |e: std::io::Error| format!("{}: {e}", path.display());
    let file = match File::open(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(failed)?,
    };
    // Room for all from the start: growing would leave copies behind.
    let length = file.metadata().map(|m| m.len().min(SEALED_MAX)).unwrap_or(0);
    let mut octets = Zeroizing::new(Vec::with_capacity(usize::try_from(length).unwrap_or(0).saturating_add(1)));
    file.take(SEALED_MAX).read_to_end(&mut octets).map_err(failed)?;
    Ok(Some(octets))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kurrent_core::target::Secret;
    use kurrent_handshake::{Answer, Challenge, Side, boot_public_key};

    fn session(side: Side) -> Session {
        let challenge =
            Challenge { nonce: [3; 32], mac: [2, 0, 0, 0, 0, 1], server_boot_key: boot_public_key(&[4; 32]), flags: 0, expected: [8; 16] };
        let answer = Answer { challenge, uuid: [0; 16], server_key: [0; 32], device_boot_key: boot_public_key(&[6; 32]) };
        match side {
            Side::Appliance => answer.session(&[4; 32], side).unwrap(),
            Side::Device => answer.session(&[6; 32], side).unwrap(),
        }
    }

    fn plaintext() -> Zeroizing<String> {
        let secret = Secret::from_random(&Zeroizing::new([1; 32]));
        let credentials = Credentials {
            worker: "w1".parse().unwrap(),
            mac: "02:00:00:00:00:01".parse().unwrap(),
            address: [10, 0, 0, 100].into(),
            prefix: 24,
            gateway: None,
            dns: vec![],
            server: "10.0.0.1:80".parse().unwrap(),
            boot_id: "0011223344556677".into(),
            report_key: Zeroizing::new([9; 32]),
            target: "10.0.0.1:4420".parse().unwrap(),
            subsystem: "nqn.2026-11.test:w1.d.0".parse().unwrap(),
            host: "nqn.2026-11.test:host.w1.e1".parse().unwrap(),
            host_id: uuid::Uuid::from_u128(1),
            host_secret: secret.clone(),
            controller_secret: secret,
            namespace: uuid::Uuid::from_u128(2),
        };
        credentials.encode()
    }

    fn check(change: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>, &mut Vec<u8>), expected: Option<&str>) {
        let folder = tempfile::tempdir().unwrap();
        let [variable, mask, sealed] = ["session", "mask", "sealed"].map(|name| folder.path().join(name));
        let mut key = vec![6, 0, 0, 0];
        key.extend_from_slice(session(Side::Device).to_handed(&[5; 32]).as_slice());
        let mut masking = vec![7, 0, 0, 0];
        masking.extend_from_slice(&[5; 32]);
        let mut blob = session(Side::Appliance).seal(plaintext().as_bytes());
        change(&mut key, &mut masking, &mut blob);
        for (path, octets) in [(&variable, key), (&mask, masking), (&sealed, blob)] {
            if !octets.is_empty() {
                fs::write(path, octets).unwrap();
            }
        }
        let fault = from_files(&variable, &mask, &sealed).err();
        assert_eq!(fault.is_some(), expected.is_some(), "{fault:?}");
        assert!(fault.unwrap_or_default().contains(expected.unwrap_or_default()));
        assert!(!mask.exists() && !sealed.exists(), "nothing of worth is left for the system");
    }

    #[test]
    fn credentials_are_opened_and_what_opens_them_removed() {
        check(|_, _, _| {}, None);
    }

    #[test]
    fn whatever_is_missing_cut_or_changed_is_named_and_still_removed() {
        check(|key, _, _| key.clear(), Some("no session key"));
        check(|_, mask, _| mask.clear(), Some("no session key"));
        check(|_, _, blob| blob.clear(), Some("no sealed credentials"));
        check(|key, _, _| key.truncate(20), Some("wrong length"));
        check(|_, mask, _| mask.truncate(3), Some("wrong length"));
        check(|key, _, _| key[10] ^= 1, Some("not for this boot"));
        check(|_, mask, _| mask[10] ^= 1, Some("not for this boot"));
        check(|_, _, blob| blob.truncate(blob.len() - 1), Some("changed on the way"));
        check(|_, _, blob| blob[40] ^= 1, Some("changed on the way"));
    }
}
