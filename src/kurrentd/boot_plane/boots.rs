//! Authorised boots: the sealed blob that waits for iPXE, and the key of the reports that stage-1 will send.
//!
//! Only a machine that was granted a boot makes an entry, two for each machine at most. A sealed blob is given out for
//! a few minutes; it is useless to everybody but the machine that it was sealed to.

use hyper::body::Bytes;
use kurrent_core::boot::BootId;
use kurrent_core::id::MacAddr;
use kurrent_core::time::{Mono, Now};
use kurrent_handshake::report_is_genuine;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zeroize::Zeroizing;

/// From the answer of `/boot-vars` until iPXE fetches the blob lies the download of kernel and initramfs.
const SEALED_VALID: Duration = Duration::from_secs(600);
/// An earlier boot may still be reporting while the machine is started again.
const MAX_PER_MAC: usize = 2;
const MAX_BOOTS: usize = 16_384;

struct Authorised {
    mac: MacAddr,
    at: Mono,
    sealed: Option<Bytes>,
    report_key: Zeroizing<[u8; 32]>,
}

/// The one owner of authorised boots.
#[derive(Default)]
pub struct Boots(Mutex<HashMap<BootId, Authorised>>);

impl Boots {
    fn lock(&self) -> MutexGuard<'_, HashMap<BootId, Authorised>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a boot; the machine's oldest one goes when there are too many.
    pub fn insert(&self, id: BootId, mac: MacAddr, sealed: Bytes, report_key: Zeroizing<[u8; 32]>, now: Now) {
        let mut boots = self.lock();
        let of_mac = boots.values().filter(|b| b.mac == mac).count();
        let crowded = |b: &Authorised| if of_mac >= MAX_PER_MAC { b.mac == mac } else { true };
        if of_mac >= MAX_PER_MAC || boots.len() >= MAX_BOOTS {
            let oldest = boots.iter().filter(|(_, b)| crowded(b)).min_by_key(|(_, b)| b.at).map(|(id, _)| *id);
            oldest.and_then(|oldest| boots.remove(&oldest));
        }
        boots.insert(id, Authorised { mac, at: now.mono, sealed: Some(sealed), report_key });
    }

    /// The sealed blob and whose it is, while it is given out.
    #[must_use]
    pub fn sealed(&self, id: BootId, now: Now) -> Option<(MacAddr, Bytes)> {
        let boots = self.lock();
        let boot = boots.get(&id).filter(|b| now.mono.since(b.at) <= SEALED_VALID)?;
        Some((boot.mac, boot.sealed.clone()?))
    }

    /// Whose boot this is, if the report is genuine.
    #[must_use]
    pub fn reporter(&self, id: BootId, step: &str, detail: &str, proof: &[u8; 32]) -> Option<MacAddr> {
        let boots = self.lock();
        let boot = boots.get(&id)?;
        report_is_genuine(&boot.report_key, &id.to_string(), step, detail, proof).then_some(boot.mac)
    }

    /// Drops the blobs that are not given out any more.
    pub fn expire(&self, now: Now) {
        self.lock().values_mut().filter(|b| now.mono.since(b.at) > SEALED_VALID).for_each(|b| b.sealed = None);
    }
}

/// The sealed blob as an initramfs of its own: a newc cpio with `kurrent/sealed` (contract 0001).
///
/// # Errors
/// Never in practice: it is written to memory, and the blob is about a kilobyte.
pub fn as_initrd(sealed: &[u8]) -> std::io::Result<Vec<u8>> {
    use cpio::newc::{Builder, ModeFileType, trailer};
    use std::io::Write;
    const FOLDER_MODE: u32 = 0o700;
    const FILE_MODE: u32 = 0o400;
    let length = u32::try_from(sealed.len()).map_err(std::io::Error::other)?;
    let folder = Builder::new("kurrent").ino(1).nlink(2).mode(FOLDER_MODE).set_mode_file_type(ModeFileType::Directory);
    let archive = folder.write(Vec::new(), 0).finish()?;
    let file = Builder::new("kurrent/sealed").ino(2).nlink(1).mode(FILE_MODE).set_mode_file_type(ModeFileType::Regular);
    let mut file = file.write(archive, length);
    file.write_all(sealed)?;
    trailer(file.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kurrent_handshake::report_proof;

    const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn at(secs: u64) -> Now {
        Now { mono: Mono(Duration::from_secs(secs)), wall: kurrent_core::time::Wall::UNIX_EPOCH }
    }

    fn id(n: u8) -> BootId {
        BootId::from_random([n; 8])
    }

    fn insert(boots: &Boots, n: u8, mac: MacAddr, secs: u64) {
        boots.insert(id(n), mac, Bytes::from_static(b"blob"), Zeroizing::new([n; 32]), at(secs));
    }

    #[test]
    fn a_machine_has_two_boots_at_most_and_never_displaces_anothers() {
        let boots = Boots::default();
        insert(&boots, 9, B, 0);
        (1..=5).for_each(|n| insert(&boots, n, A, u64::from(n)));
        let alive: Vec<u8> = (1..=9).filter(|n| boots.sealed(id(*n), at(6)).is_some()).collect();
        assert_eq!(alive, [4, 5, 9]);
    }

    #[test]
    fn a_blob_is_given_out_for_a_while_and_reports_are_believed_longer() {
        let boots = Boots::default();
        insert(&boots, 1, A, 0);
        assert_eq!(boots.sealed(id(1), at(600)).map(|(mac, _)| mac), Some(A));
        assert!(boots.sealed(id(1), at(601)).is_none());
        boots.expire(at(601));
        let proof = report_proof(&[1; 32], &id(1).to_string(), "connect", "");
        assert_eq!(boots.reporter(id(1), "connect", "", &proof), Some(A));
        assert_eq!(boots.reporter(id(1), "root", "", &proof), None, "a proof is for one step");
        assert_eq!(boots.reporter(id(2), "connect", "", &proof), None);
    }

    #[test]
    fn the_initrd_is_a_cpio_that_the_kernel_unpacks() {
        let archive = as_initrd(b"sealed octets").unwrap();
        assert!(archive.starts_with(b"070701") && archive.len().is_multiple_of(4));
        let folder = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("cpio")
            .args(["-idm", "--quiet"])
            .current_dir(&folder)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("cpio is installed by make deps");
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), &archive).unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(std::fs::read(folder.path().join("kurrent/sealed")).unwrap(), b"sealed octets");
    }
}
