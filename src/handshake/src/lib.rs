//! What appliance and device say to each other before any secret moves: challenge, answer, sealed credentials, reports.
//!
//! `no_std`: the same code runs in the firmware program (`src/attest`), in `kurrentd` and in stage-1. It never reads
//! entropy or a clock; keys and nonces come in as values. All signed and authenticated octets are built by
//! [`fields`], which length-prefixes every field, so that no two different messages have the same octets.
//!
//! ```text
//! appliance                                   device (kurrent-attest.efi)
//!   rotations since the pinned key       --->   each signed by the key before it: follow, pin S
//!   challenge: nonce, x_s, flags,
//!              expected key, sig_S       --->   verify sig_S with the pinned key, make x_d
//!              <---  answer: x_d, sig_D         sig_D over nonce, MAC, UUID, S, x_d, x_s, flags, expected
//!              (<---  new key, signed by itself and by the old one, when that was ordered)
//!   session = HKDF(X25519(x_s, x_d))            session = HKDF(X25519(x_d, x_s)) -> stage-1
//!   seal(session, credentials)           --->   stage-1: open(session, blob)
//!   or, for iSCSI, seal(session, login)  --->   the firmware program: open(session, blob) -> iPXE
//! ```
//!
//! Rooms: `challenge` (and its answer), `rotation` (of the server key), `rekey` (of a device), `session` (what is sealed),
//! `chap` (what is sealed for iSCSI).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod challenge;
mod chap;
mod rekey;
mod rotation;
mod session;
#[cfg(test)]
mod tests;

pub use challenge::{Answer, Challenge, EXPECTS_NONE, Side, expected};
pub use chap::{CHAP_NAME_MAX, CHAP_SECRET_OCTETS, Chap};
pub use rekey::{Rekey, SignedRekey};
pub use rotation::{Link, MAX_LINKS, Rotation, follow};
pub use session::{SEALED_MAGIC, Session, report_is_genuine, report_proof};

use alloc::vec::Vec;
use ed25519_dalek::{Signature, VerifyingKey};
use subtle::ConstantTimeEq;
use x25519_dalek::{PublicKey, StaticSecret};

/// Vendor GUID of every firmware variable of ours.
pub const VARIABLE_GUID: &str = "6b757272-656e-7430-8000-626f6f746b65";
/// Non-volatile, boot-services-only: the 32-octet Ed25519 seed.
pub const VARIABLE_KEY: &str = "KurrentKey";
/// Non-volatile, boot-services-only: the seed of the device key to come, from a rekey order until the appliance expects it.
pub const VARIABLE_KEY_NEXT: &str = "KurrentKeyNext";
/// Non-volatile, boot-services-only: the pinned 32-octet Ed25519 key of the appliance.
pub const VARIABLE_SERVER: &str = "KurrentServer";
/// Volatile, boot-services-only: the device's 32-octet public key, for iPXE.
pub const VARIABLE_PUBLIC_KEY: &str = "KurrentPublicKey";
/// Volatile, boot-services-only: the 64-octet answer signature.
pub const VARIABLE_ANSWER: &str = "KurrentAnswer";
/// Volatile, boot-services-only: the per-boot X25519 public key.
pub const VARIABLE_BOOT_KEY: &str = "KurrentBootKey";
/// Volatile, boot-services-only: [`SignedRekey::to_bytes`], when the challenge ordered a new key.
pub const VARIABLE_REKEY: &str = "KurrentRekey";
/// Volatile, boot-services-only: SMBIOS type 17 memory type, ASCII.
pub const VARIABLE_MEMORY_TYPE: &str = "KurrentMemoryType";
/// Volatile, boot-services-only: sum of the SMBIOS type 17 sizes in MiB, ASCII digits.
pub const VARIABLE_MEMORY_TOTAL: &str = "KurrentMemoryTotal";
/// Volatile, boot-services-only: SMBIOS type 17 speed in MT/s, ASCII digits.
pub const VARIABLE_MEMORY_SPEED: &str = "KurrentMemorySpeed";
/// Volatile, boot-services-only: why the program failed, ASCII; a stable word, e.g. `wrong_server`.
pub const VARIABLE_ERROR: &str = "KurrentError";
/// Volatile, boot-services-only: [`Chap::user`], for iPXE's `username`.
pub const VARIABLE_CHAP_USER: &str = "KurrentChapUser";
/// Volatile, boot-services-only: [`Chap::secret`], for iPXE's `password`.
pub const VARIABLE_CHAP_SECRET: &str = "KurrentChapSecret";
/// Volatile, boot-services-only: [`Chap::mutual_user`], for iPXE's `reverse-username`.
pub const VARIABLE_CHAP_MUTUAL_USER: &str = "KurrentChapMutualUser";
/// Volatile, boot-services-only: [`Chap::mutual_secret`], for iPXE's `reverse-password`.
pub const VARIABLE_CHAP_MUTUAL_SECRET: &str = "KurrentChapMutualSecret";
/// Volatile, **runtime**: [`Session::to_handed`]. Firmware lets nobody delete a volatile variable at run time (EDK2 answers
/// invalid parameter), so the system can read it until the machine is reset: its key is masked.
pub const VARIABLE_SESSION: &str = "KurrentSession";
/// **Non-volatile, runtime**: the 32 random octets that mask the key in [`VARIABLE_SESSION`]; made anew for each start of the
/// boot script, deleted by stage-1 before anything else runs. Alone, after a power cut, it is worth nothing.
pub const VARIABLE_SESSION_MASK: &str = "KurrentSessionMask";

/// Challenge flag: the registration window is open, an unpinned device may pin this server's key (trust on first use).
pub const FLAG_MAY_PIN: u8 = 1;
/// Challenge flag: make a new device key, and sign it with the old one.
pub const FLAG_REKEY: u8 = 2;

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

/// Whether two values are the same; takes the same time wherever they differ.
#[must_use]
pub fn same(one: &[u8], other: &[u8]) -> bool {
    one.ct_eq(other).into()
}

fn verify(key: &[u8; 32], octets: &[u8], signature: &[u8; 64]) -> Result<(), Untrusted> {
    let key = VerifyingKey::from_bytes(key).map_err(|_| Untrusted::BadKey)?;
    key.verify_strict(octets, &Signature::from_bytes(signature)).map_err(|_| Untrusted::BadSignature)
}
