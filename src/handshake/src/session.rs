//! The key that one boot's two sides share, what is sealed with it, and how stage-1's reports are proven.

use crate::{Untrusted, fields};
use alloc::vec::Vec;
use chacha20poly1305::{ChaCha20Poly1305, KeyInit, aead::Aead, aead::Payload};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, Zeroizing};

const PURPOSE_SEALED: &[u8] = b"kurrent/sealed/v1";
const PURPOSE_REPORT: &[u8] = b"kurrent/stage1-report/v1";
/// First octets of a sealed blob.
pub const SEALED_MAGIC: &[u8; 8] = b"KSEALED1";

/// The key of one boot and what it is bound to. Seals exactly one blob. Wiped on drop; no `Debug`.
pub struct Session {
    pub(crate) key: [u8; 32],
    pub(crate) nonce: [u8; 32],
    pub(crate) mac: [u8; 6],
}

impl Session {
    /// Length of [`Session::to_bytes`].
    pub const LEN: usize = 70;
    /// So much longer than its plaintext is a sealed blob: [`SEALED_MAGIC`] and Poly1305's tag.
    pub const SEAL_OCTETS: usize = SEALED_MAGIC.len() + 16;

    /// The form in [`crate::VARIABLE_SESSION`]: [`Session::to_bytes`] with the key masked by [`VARIABLE_SESSION_MASK`].
    #[must_use]
    pub fn to_handed(&self, mask: &[u8; 32]) -> Zeroizing<[u8; Self::LEN]> {
        let mut octets = self.to_bytes();
        octets.iter_mut().zip(mask).for_each(|(octet, mask)| *octet ^= mask);
        octets
    }

    /// Reads [`Session::to_handed`]; `None` when a length is wrong.
    #[must_use]
    pub fn from_handed(octets: &[u8], mask: &[u8]) -> Option<Self> {
        let mut octets = Zeroizing::new(<[u8; Self::LEN]>::try_from(octets).ok()?);
        let mask: &[u8; 32] = mask.try_into().ok()?;
        octets.iter_mut().zip(mask).for_each(|(octet, mask)| *octet ^= mask);
        Self::from_bytes(octets.as_slice())
    }

    /// Key, nonce, MAC.
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<[u8; Self::LEN]> {
        let mut out = Zeroizing::new([0u8; Self::LEN]);
        out[..32].copy_from_slice(&self.key);
        out[32..64].copy_from_slice(&self.nonce);
        out[64..].copy_from_slice(&self.mac);
        out
    }

    /// Reads [`Session::to_bytes`]; `None` when the length is wrong.
    #[must_use]
    pub fn from_bytes(octets: &[u8]) -> Option<Self> {
        let octets: &[u8; Self::LEN] = octets.try_into().ok()?;
        let (mut key, mut nonce, mut mac) = ([0u8; 32], [0u8; 32], [0u8; 6]);
        key.copy_from_slice(&octets[..32]);
        nonce.copy_from_slice(&octets[32..64]);
        mac.copy_from_slice(&octets[64..]);
        Some(Self { key, nonce, mac })
    }

    /// Encrypts the boot credentials: [`SEALED_MAGIC`], then ChaCha20-Poly1305. The all-zero AEAD nonce is right because
    /// a session key is never used for a second message.
    #[must_use]
    pub fn seal(self, plaintext: &[u8]) -> Vec<u8> {
        let aad = fields(&[PURPOSE_SEALED, &self.mac, &self.nonce]);
        let cipher = ChaCha20Poly1305::new(&self.key.into());
        let mut out = SEALED_MAGIC.to_vec();
        // Encryption fails only for messages of 256 GiB and more; an empty body can not be opened.
        out.extend(cipher.encrypt(&[0u8; 12].into(), Payload { msg: plaintext, aad: &aad }).unwrap_or_default());
        out
    }

    /// Decrypts a sealed blob.
    ///
    /// # Errors
    /// [`Untrusted::BadSeal`] for anything but the whole blob sealed to this session.
    pub fn open(&self, blob: &[u8]) -> Result<Zeroizing<Vec<u8>>, Untrusted> {
        let body = blob.strip_prefix(SEALED_MAGIC.as_slice()).ok_or(Untrusted::BadSeal)?;
        let aad = fields(&[PURPOSE_SEALED, &self.mac, &self.nonce]);
        let cipher = ChaCha20Poly1305::new(&self.key.into());
        let opened = cipher.decrypt(&[0u8; 12].into(), Payload { msg: body, aad: &aad }).map_err(|_| Untrusted::BadSeal)?;
        Ok(Zeroizing::new(opened))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

/// HMAC-SHA256 of one stage-1 report (`boot_id`, `step`, `detail`) under the report key from the sealed credentials.
#[must_use]
pub fn report_proof(report_key: &[u8; 32], boot_id: &str, step: &str, detail: &str) -> [u8; 32] {
    let octets = fields(&[PURPOSE_REPORT, boot_id.as_bytes(), step.as_bytes(), detail.as_bytes()]);
    let Ok(mut mac) = <Hmac<Sha256> as hmac::KeyInit>::new_from_slice(report_key) else { return [0; 32] };
    mac.update(&octets);
    mac.finalize().into_bytes().into()
}

/// Compares a report's proof in constant time.
#[must_use]
pub fn report_is_genuine(report_key: &[u8; 32], boot_id: &str, step: &str, detail: &str, proof: &[u8; 32]) -> bool {
    report_proof(report_key, boot_id, step, detail).ct_eq(proof).into()
}
