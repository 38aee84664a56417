//! What appliance and device say to each other before any secret moves: challenge, answer, sealed credentials, reports.
//!
//! `no_std`: the same code runs in the firmware program (`src/attest`), in `kurrentd` and in stage-1. It never reads
//! entropy or a clock; keys and nonces come in as values. All signed and authenticated octets are built by
//! [`fields`], which length-prefixes every field, so that no two different messages have the same octets.
//!
//! ```text
//! appliance                                   device (kurrent-attest.efi)
//!   challenge: nonce, x_s, flags, sig_S  --->   verify sig_S with the pinned key, make x_d
//!              <---  answer: x_d, sig_D         sig_D over nonce, MAC, UUID, S, x_d, x_s
//!   session = HKDF(X25519(x_s, x_d))            session = HKDF(X25519(x_d, x_s)) -> stage-1
//!   seal(session, credentials)           --->   stage-1: open(session, blob)
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::vec::Vec;
use chacha20poly1305::{ChaCha20Poly1305, KeyInit, aead::Aead, aead::Payload};
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use hkdf::Hkdf;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::{Zeroize, Zeroizing};

/// Vendor GUID of every firmware variable of ours.
pub const VARIABLE_GUID: &str = "6b757272-656e-7430-8000-626f6f746b65";
/// Non-volatile, boot-services-only: the 32-octet Ed25519 seed.
pub const VARIABLE_KEY: &str = "KurrentKey";
/// Non-volatile, boot-services-only: the pinned 32-octet Ed25519 key of the appliance.
pub const VARIABLE_SERVER: &str = "KurrentServer";
/// Volatile, boot-services-only: the device's 32-octet public key, for iPXE.
pub const VARIABLE_PUBLIC_KEY: &str = "KurrentPublicKey";
/// Volatile, boot-services-only: the 64-octet answer signature.
pub const VARIABLE_ANSWER: &str = "KurrentAnswer";
/// Volatile, boot-services-only: the per-boot X25519 public key.
pub const VARIABLE_BOOT_KEY: &str = "KurrentBootKey";
/// Volatile, boot-services-only: SMBIOS type 17 memory type, ASCII.
pub const VARIABLE_MEMORY_TYPE: &str = "KurrentMemoryType";
/// Volatile, boot-services-only: sum of the SMBIOS type 17 sizes in MiB, ASCII digits.
pub const VARIABLE_MEMORY_TOTAL: &str = "KurrentMemoryTotal";
/// Volatile, boot-services-only: SMBIOS type 17 speed in MT/s, ASCII digits.
pub const VARIABLE_MEMORY_SPEED: &str = "KurrentMemorySpeed";
/// Volatile, boot-services-only: why the program failed, ASCII; a stable word, e.g. `wrong_server`.
pub const VARIABLE_ERROR: &str = "KurrentError";
/// Volatile, **runtime**: [`Session::to_handed`]. Firmware lets nobody delete a volatile variable at run time (EDK2 answers
/// invalid parameter), so the system can read it until the machine is reset: its key is masked.
pub const VARIABLE_SESSION: &str = "KurrentSession";
/// **Non-volatile, runtime**: the 32 random octets that mask the key in [`VARIABLE_SESSION`]; made anew for each start of the
/// boot script, deleted by stage-1 before anything else runs. Alone, after a power cut, it is worth nothing.
pub const VARIABLE_SESSION_MASK: &str = "KurrentSessionMask";

/// Challenge flag: the registration window is open, an unpinned device may pin this server's key (trust on first use).
pub const FLAG_MAY_PIN: u8 = 1;

const PURPOSE_CHALLENGE: &[u8] = b"kurrent/challenge/v1";
const PURPOSE_ANSWER: &[u8] = b"kurrent/answer/v1";
const PURPOSE_SESSION: &[u8] = b"kurrent/session/v1";
const PURPOSE_SEALED: &[u8] = b"kurrent/sealed/v1";
const PURPOSE_REPORT: &[u8] = b"kurrent/stage1-report/v1";
/// First octets of a sealed blob.
pub const SEALED_MAGIC: &[u8; 8] = b"KSEALED1";

/// Why a message was not believed. Deliberately coarse: the peer learns nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untrusted {
    /// A key is not a point on the curve, or of low order.
    BadKey,
    /// A signature does not verify.
    BadSignature,
    /// A sealed blob was changed, cut, or sealed for somebody else.
    BadSeal,
}

/// Concatenates `fields`, each preceded by its length as big-endian `u32`. Injective: different lists give different octets.
#[must_use]
pub fn fields(fields: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(fields.iter().map(|f| f.len() + 4).sum());
    for field in fields {
        let length = u32::try_from(field.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(field);
    }
    out
}

/// What the appliance challenges a device with. Everything in it is public.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// 32 random octets, single use.
    pub nonce: [u8; 32],
    /// The device asked.
    pub mac: [u8; 6],
    /// The appliance's X25519 public key for this challenge.
    pub server_boot_key: [u8; 32],
    /// [`FLAG_MAY_PIN`].
    pub flags: u8,
}

impl Challenge {
    fn signed_octets(&self) -> Vec<u8> {
        fields(&[PURPOSE_CHALLENGE, &self.nonce, &self.mac, &self.server_boot_key, &[self.flags]])
    }

    /// The appliance's signature over this challenge.
    #[must_use]
    pub fn sign(&self, server: &SigningKey) -> [u8; 64] {
        server.sign(&self.signed_octets()).to_bytes()
    }

    /// Checks the appliance's signature.
    ///
    /// # Errors
    /// [`Untrusted::BadKey`] or [`Untrusted::BadSignature`].
    pub fn verify(&self, server_key: &[u8; 32], signature: &[u8; 64]) -> Result<(), Untrusted> {
        verify(server_key, &self.signed_octets(), signature)
    }
}

/// What a device answers, besides the signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The challenge answered.
    pub challenge: Challenge,
    /// SMBIOS UUID octets in text order; zero when the firmware has none.
    pub uuid: [u8; 16],
    /// The appliance the device believes it talks to.
    pub server_key: [u8; 32],
    /// The device's X25519 public key for this boot.
    pub device_boot_key: [u8; 32],
}

impl Answer {
    fn signed_octets(&self) -> Vec<u8> {
        let Challenge { nonce, mac, server_boot_key, flags } = &self.challenge;
        fields(&[PURPOSE_ANSWER, nonce, mac, &self.uuid, &self.server_key, &self.device_boot_key, server_boot_key, &[*flags]])
    }

    /// The device's signature over this answer.
    #[must_use]
    pub fn sign(&self, device: &SigningKey) -> [u8; 64] {
        device.sign(&self.signed_octets()).to_bytes()
    }

    /// Checks the device's signature against its stored key.
    ///
    /// # Errors
    /// [`Untrusted::BadKey`] or [`Untrusted::BadSignature`].
    pub fn verify(&self, device_key: &[u8; 32], signature: &[u8; 64]) -> Result<(), Untrusted> {
        verify(device_key, &self.signed_octets(), signature)
    }

    /// The session both sides share after this answer. `own` is this side's X25519 secret.
    ///
    /// # Errors
    /// [`Untrusted::BadKey`] when the peer's key is of low order.
    pub fn session(&self, own: &[u8; 32], side: Side) -> Result<Session, Untrusted> {
        let peer = match side {
            Side::Appliance => self.device_boot_key,
            Side::Device => self.challenge.server_boot_key,
        };
        let shared = StaticSecret::from(*own).diffie_hellman(&PublicKey::from(peer));
        if !shared.was_contributory() {
            return Err(Untrusted::BadKey);
        }
        let info = fields(&[PURPOSE_SESSION, &self.challenge.mac, &self.device_boot_key, &self.challenge.server_boot_key]);
        let mut key = [0u8; 32];
        let derived = Hkdf::<Sha256>::new(Some(&self.challenge.nonce), shared.as_bytes()).expand(&info, &mut key);
        debug_assert!(derived.is_ok(), "32 octets are always within HKDF-SHA256's limit");
        Ok(Session { key, nonce: self.challenge.nonce, mac: self.challenge.mac })
    }
}

/// Which side computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// `kurrentd`.
    Appliance,
    /// `kurrent-attest.efi`.
    Device,
}

/// The X25519 public key of a secret.
#[must_use]
pub fn boot_public_key(secret: &[u8; 32]) -> [u8; 32] {
    PublicKey::from(&StaticSecret::from(*secret)).to_bytes()
}

/// Whether 32 octets are a usable Ed25519 public key (a point of the curve, not of small order).
#[must_use]
pub fn is_device_key(key: &[u8; 32]) -> bool {
    VerifyingKey::from_bytes(key).is_ok_and(|k| !k.is_weak())
}

fn verify(key: &[u8; 32], octets: &[u8], signature: &[u8; 64]) -> Result<(), Untrusted> {
    let key = VerifyingKey::from_bytes(key).map_err(|_| Untrusted::BadKey)?;
    key.verify_strict(octets, &Signature::from_bytes(signature)).map_err(|_| Untrusted::BadSignature)
}

/// The key of one boot and what it is bound to. Seals exactly one blob. Wiped on drop; no `Debug`.
pub struct Session {
    key: [u8; 32],
    nonce: [u8; 32],
    mac: [u8; 6],
}

impl Session {
    /// Length of [`Session::to_bytes`].
    pub const LEN: usize = 70;

    /// The form in [`VARIABLE_SESSION`]: [`Session::to_bytes`] with the key masked by [`VARIABLE_SESSION_MASK`].
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parties() -> (SigningKey, SigningKey, Answer) {
        let (server, device) = (SigningKey::from_bytes(&[1; 32]), SigningKey::from_bytes(&[2; 32]));
        let challenge =
            Challenge { nonce: [3; 32], mac: [0x52, 0x54, 0, 1, 2, 3], server_boot_key: boot_public_key(&[4; 32]), flags: FLAG_MAY_PIN };
        let answer =
            Answer { challenge, uuid: [5; 16], server_key: server.verifying_key().to_bytes(), device_boot_key: boot_public_key(&[6; 32]) };
        (server, device, answer)
    }

    #[test]
    fn both_sides_reach_the_same_session_and_only_they_can_open() {
        let (_, _, answer) = parties();
        let (ours, theirs) = (answer.session(&[4; 32], Side::Appliance).unwrap(), answer.session(&[6; 32], Side::Device).unwrap());
        let stranger = answer.session(&[7; 32], Side::Device).unwrap();
        let blob = ours.seal(b"secret");
        assert_eq!(theirs.open(&blob).unwrap().as_slice(), b"secret");
        assert_eq!(stranger.open(&blob).err(), Some(Untrusted::BadSeal));
        for at in 0..blob.len() {
            let mut changed = blob.clone();
            changed[at] ^= 1;
            assert!(theirs.open(&changed).is_err(), "octet {at} changed");
            assert!(theirs.open(&blob[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_signature_covers_every_field_of_its_message() {
        let (server, device, answer) = parties();
        let (by_server, by_device) = (answer.challenge.sign(&server), answer.sign(&device));
        let (server_key, device_key) = (server.verifying_key().to_bytes(), device.verifying_key().to_bytes());
        assert_eq!(answer.challenge.verify(&server_key, &by_server), Ok(()));
        assert_eq!(answer.verify(&device_key, &by_device), Ok(()));
        let changes: [fn(&mut Answer); 7] = [
            |a| a.challenge.nonce[0] ^= 1,
            |a| a.challenge.mac[5] ^= 1,
            |a| a.challenge.server_boot_key[0] ^= 1,
            |a| a.challenge.flags ^= 1,
            |a| a.uuid[0] ^= 1,
            |a| a.server_key[0] ^= 1,
            |a| a.device_boot_key[0] ^= 1,
        ];
        for (at, change) in changes.iter().enumerate() {
            let mut other = answer;
            change(&mut other);
            assert_eq!(other.verify(&device_key, &by_device), Err(Untrusted::BadSignature), "field {at}");
            assert_eq!(other.challenge.verify(&server_key, &by_server).is_err(), at < 4, "challenge field {at}");
        }
        assert_eq!(answer.verify(&device_key, &by_server), Err(Untrusted::BadSignature), "one purpose's signature is not another's");
    }

    #[test]
    fn weak_and_low_order_keys_are_refused() {
        assert!(!is_device_key(&[0; 32]));
        let mut identity = [0; 32];
        identity[0] = 1;
        assert!(!is_device_key(&identity));
        let (_, _, mut answer) = parties();
        answer.device_boot_key = [0; 32];
        assert_eq!(answer.session(&[4; 32], Side::Appliance).err(), Some(Untrusted::BadKey));
    }

    #[test]
    fn length_prefixes_keep_neighbouring_fields_apart() {
        assert_ne!(fields(&[b"ab", b"c"]), fields(&[b"a", b"bc"]));
        assert_ne!(fields(&[b"ab"]), fields(&[b"ab", b""]));
    }

    #[test]
    fn a_report_is_believed_only_as_it_was_sent() {
        let proof = report_proof(&[1; 32], "b", "connect", "");
        assert!(report_is_genuine(&[1; 32], "b", "connect", "", &proof));
        assert!(!report_is_genuine(&[2; 32], "b", "connect", "", &proof));
        assert!(!report_is_genuine(&[1; 32], "b", "root", "", &proof));
    }
}
