//! A device's new key, in the place of its old one: signed by both, for one challenge of one appliance.

use crate::{Untrusted, fields, is_device_key, same, verify};
use alloc::vec::Vec;
use ed25519_dalek::{Signer, SigningKey};

const PURPOSE_REKEY: &[u8] = b"kurrent/rekey/v1";

/// What is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rekey {
    /// The nonce of the challenge that ordered it.
    pub nonce: [u8; 32],
    /// The device.
    pub mac: [u8; 6],
    /// The appliance that ordered it.
    pub server_key: [u8; 32],
    /// The device key until now.
    pub old: [u8; 32],
    /// The device key to come.
    pub new: [u8; 32],
}

/// As it travels: the appliance knows all else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignedRekey {
    /// The device key to come.
    pub new: [u8; 32],
    /// By the device key until now.
    pub by_old: [u8; 64],
    /// By the device key to come: nobody can have a key stored that is somebody else's.
    pub by_new: [u8; 64],
}

impl Rekey {
    fn signed_octets(&self) -> Vec<u8> {
        fields(&[PURPOSE_REKEY, &self.nonce, &self.mac, &self.server_key, &self.old, &self.new])
    }

    /// Both signatures.
    #[must_use]
    pub fn sign(&self, old: &SigningKey, new: &SigningKey) -> SignedRekey {
        let octets = self.signed_octets();
        SignedRekey { new: self.new, by_old: old.sign(&octets).to_bytes(), by_new: new.sign(&octets).to_bytes() }
    }

    /// Checks both signatures.
    ///
    /// # Errors
    /// [`Untrusted::BadKey`] when the new key is none, or is the old one; [`Untrusted::BadSignature`].
    pub fn verify(&self, signed: &SignedRekey) -> Result<(), Untrusted> {
        if !same(&self.new, &signed.new) || same(&self.old, &self.new) || !is_device_key(&self.new) {
            return Err(Untrusted::BadKey);
        }
        let octets = self.signed_octets();
        verify(&self.old, &octets, &signed.by_old)?;
        verify(&self.new, &octets, &signed.by_new)
    }
}

impl SignedRekey {
    /// Length of [`SignedRekey::to_bytes`].
    pub const LEN: usize = 160;

    /// New key, signature by the old one, signature by the new one.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..32].copy_from_slice(&self.new);
        out[32..96].copy_from_slice(&self.by_old);
        out[96..].copy_from_slice(&self.by_new);
        out
    }

    /// Reads [`SignedRekey::to_bytes`].
    #[must_use]
    pub fn from_bytes(octets: &[u8; Self::LEN]) -> Self {
        let (mut new, mut by_old, mut by_new) = ([0; 32], [0; 64], [0; 64]);
        new.copy_from_slice(&octets[..32]);
        by_old.copy_from_slice(&octets[32..96]);
        by_new.copy_from_slice(&octets[96..]);
        Self { new, by_old, by_new }
    }
}
