//! Keys and signatures as they come in forms. Says what an answer proves; what follows from it is `core::boot`'s.

use crate::challenges::Outstanding;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kurrent_core::boot::Evidence;
use kurrent_core::id::{MacAddr, WorkerId};
use kurrent_handshake::{Answer, Challenge, is_device_key};
use p256::ecdsa::signature::Verifier as _;

/// A device's public key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeviceKey {
    /// `kurrent-attest.efi`.
    Ed25519([u8; 32]),
    /// The existing Kurrent firmware: an uncompressed point.
    P256(Box<p256::ecdsa::VerifyingKey>),
}

/// Length of an uncompressed P-256 point.
const P256_POINT: usize = 65;

impl DeviceKey {
    /// The key of a report: 64 hex digits Ed25519, 130 P-256; `None` unless it is usable.
    #[must_use]
    pub fn of_report(text: &str) -> Option<Self> {
        if text.len() == P256_POINT * 2 {
            let mut point = [0; P256_POINT];
            hex::decode_to_slice(text, &mut point).ok()?;
            return p256::ecdsa::VerifyingKey::from_sec1_bytes(&point).ok().map(|key| Self::P256(Box::new(key)));
        }
        let key = octets(text)?;
        is_device_key(&key).then_some(Self::Ed25519(key))
    }

    /// The key of a ledger record.
    #[must_use]
    pub fn of_ledger(text: &str) -> Option<Self> {
        let (kind, digits) = text.split_once(':')?;
        let key = Self::of_report(digits)?;
        (kind == key.kind()).then_some(key)
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Ed25519(_) => "ed25519",
            Self::P256(_) => "p256",
        }
    }

    /// The form in the ledger.
    #[must_use]
    pub fn text(&self) -> String {
        let digits = match self {
            Self::Ed25519(key) => hex::encode(key),
            Self::P256(key) => hex::encode(key.to_sec1_point(false).as_bytes()),
        };
        format!("{}:{digits}", self.kind())
    }
}

/// Exactly `N` octets of hex digits.
#[must_use]
pub fn octets<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut out = [0; N];
    hex::decode_to_slice(text, &mut out).ok()?;
    Some(out)
}

/// What the form of `/boot-vars` holds besides MAC and nonce.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// `sig`.
    pub signature: &'a str,
    /// `boot_key`, hex.
    pub boot_key: &'a str,
    /// `uuid`, text form.
    pub uuid: &'a str,
}

impl Claim<'_> {
    /// The whole answer that an Ed25519 device has signed, if the form holds one.
    #[must_use]
    pub fn answer(&self, outstanding: &Outstanding, server_key: [u8; 32]) -> Option<Answer> {
        let uuid = if self.uuid.is_empty() { uuid::Uuid::nil() } else { self.uuid.parse().ok()? };
        let device_boot_key = octets(self.boot_key)?;
        Some(Answer { challenge: outstanding.challenge, uuid: uuid.into_bytes(), server_key, device_boot_key })
    }
}

/// What `claim` proves about the holder of `key`. `answer` is [`Claim::answer`].
#[must_use]
pub fn evidence(key: &DeviceKey, claim: &Claim<'_>, answer: Option<&Answer>, challenge: &Challenge, worker: Option<&WorkerId>) -> Evidence {
    let genuine = match key {
        DeviceKey::Ed25519(key) => {
            let (Some(answer), Some(signature)) = (answer, octets(claim.signature)) else { return Evidence::Nothing };
            answer.verify(key, &signature).is_ok()
        }
        DeviceKey::P256(key) => {
            // Query encodings lose the plus sign; base64 has no space.
            let Ok(der) = STANDARD.decode(claim.signature.replace(' ', "+")) else { return Evidence::Nothing };
            let Ok(signature) = p256::ecdsa::Signature::from_der(&der) else { return Evidence::Nothing };
            let text = compatibility_text(&challenge.nonce, MacAddr(challenge.mac), worker);
            key.verify(text.as_bytes(), &signature).is_ok()
        }
    };
    if genuine { Evidence::Genuine } else { Evidence::Wrong }
}

/// What the existing firmware signs (ECDSA over its SHA-256): nonce in hex, MAC in colon form, hostname.
fn compatibility_text(nonce: &[u8; 32], mac: MacAddr, worker: Option<&WorkerId>) -> String {
    format!("{}{mac}{}", hex::encode(nonce), worker.map_or("", WorkerId::as_str))
}
