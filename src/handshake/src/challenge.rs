//! The challenge, its answer, and the session that follows from both.

use crate::{Session, Untrusted, fields, same, verify};
use alloc::vec::Vec;
use ed25519_dalek::{Signer, SigningKey};
use hkdf::Hkdf;
use sha2::{Digest, Sha256};
use x25519_dalek::{PublicKey, StaticSecret};

const PURPOSE_CHALLENGE: &[u8] = b"kurrent/challenge/v2";
const PURPOSE_ANSWER: &[u8] = b"kurrent/answer/v2";
const PURPOSE_SESSION: &[u8] = b"kurrent/session/v1";
const PURPOSE_EXPECTED: &[u8] = b"kurrent/expected/v1";

/// [`Challenge::expected`] of an appliance that has no key of the device.
pub const EXPECTS_NONE: [u8; 16] = [0; 16];

/// Which device key the appliance has, told only to whom knows the key: others see octets that differ with each nonce.
/// `key` is the stored key's raw octets.
#[must_use]
pub fn expected(nonce: &[u8; 32], mac: &[u8; 6], key: &[u8]) -> [u8; 16] {
    let digest = Sha256::digest(fields(&[PURPOSE_EXPECTED, nonce, mac, key]));
    let mut out = [0; 16];
    out.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
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
    /// [`crate::FLAG_MAY_PIN`], [`crate::FLAG_REKEY`].
    pub flags: u8,
    /// [`expected`] of the stored device key, or [`EXPECTS_NONE`].
    pub expected: [u8; 16],
}

impl Challenge {
    fn signed_octets(&self) -> Vec<u8> {
        fields(&[PURPOSE_CHALLENGE, &self.nonce, &self.mac, &self.server_boot_key, &[self.flags], &self.expected])
    }

    /// Whether this is the key that the appliance has of the device.
    #[must_use]
    pub fn expects(&self, device_key: &[u8; 32]) -> bool {
        same(&expected(&self.nonce, &self.mac, device_key), &self.expected)
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
        let Challenge { nonce, mac, server_boot_key, flags, expected } = &self.challenge;
        let (server_key, boot_key) = (&self.server_key, &self.device_boot_key);
        fields(&[PURPOSE_ANSWER, nonce, mac, &self.uuid, server_key, boot_key, server_boot_key, &[*flags], expected])
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
