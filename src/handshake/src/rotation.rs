//! A new server key, signed by the one before it: how a device that has pinned an old one comes to trust the new one.

use crate::{Untrusted, fields, same, verify};
use alloc::vec::Vec;
use ed25519_dalek::{Signer, SigningKey};

const PURPOSE_ROTATION: &[u8] = b"kurrent/server-rotation/v1";

/// So many rotations are kept: a device that has slept through more of them must be taken over by hand.
pub const MAX_LINKS: usize = 16;

/// `new` takes the place of `old`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The key that signs this.
    pub old: [u8; 32],
    /// The key from now on.
    pub new: [u8; 32],
}

impl Rotation {
    fn signed_octets(&self) -> Vec<u8> {
        fields(&[PURPOSE_ROTATION, &self.old, &self.new])
    }

    /// The old key's signature.
    #[must_use]
    pub fn sign(&self, old: &SigningKey) -> [u8; 64] {
        old.sign(&self.signed_octets()).to_bytes()
    }

    /// Checks the old key's signature.
    ///
    /// # Errors
    /// [`Untrusted::BadKey`] or [`Untrusted::BadSignature`].
    pub fn verify(&self, signature: &[u8; 64]) -> Result<(), Untrusted> {
        verify(&self.old, &self.signed_octets(), signature)
    }
}

/// One rotation as it travels: the old key is the one that the reader trusts already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The key from now on.
    pub new: [u8; 32],
    /// [`Rotation::sign`].
    pub signature: [u8; 64],
}

impl Link {
    /// Length of [`Link::to_bytes`].
    pub const LEN: usize = 96;

    /// New key, signature.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..32].copy_from_slice(&self.new);
        out[32..].copy_from_slice(&self.signature);
        out
    }

    /// Reads [`Link::to_bytes`].
    #[must_use]
    pub fn from_bytes(octets: &[u8; Self::LEN]) -> Self {
        let (mut new, mut signature) = ([0; 32], [0; 64]);
        new.copy_from_slice(&octets[..32]);
        signature.copy_from_slice(&octets[32..]);
        Self { new, signature }
    }
}

/// Goes from a trusted key along `links` to the key that is trusted then.
///
/// # Errors
/// [`Untrusted`] when a link is not signed by the key before it, or there are more than [`MAX_LINKS`].
pub fn follow(trusted: &[u8; 32], links: &[Link]) -> Result<[u8; 32], Untrusted> {
    if links.len() > MAX_LINKS {
        return Err(Untrusted::BadSignature);
    }
    links.iter().try_fold(*trusted, |old, link| {
        // A key that takes its own place would be no rotation.
        if same(&old, &link.new) {
            return Err(Untrusted::BadKey);
        }
        Rotation { old, new: link.new }.verify(&link.signature).map(|()| link.new)
    })
}
