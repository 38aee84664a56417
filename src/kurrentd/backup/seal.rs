//! Secrets under a passphrase: Argon2id (RFC 9106) makes the key, XChaCha20-Poly1305 seals, the header is its associated data.
//!
//! ```text
//! KURRENT-SECRETS\n {"version":1,"m_kib":65536,"t":3,"p":1,"salt":"…","nonce":"…"}\n ciphertext
//! ```

use super::BackupError;
use argon2::{Algorithm, Argon2, Params, Version};
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use kurrent_sys::entropy;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

const MAGIC: &str = "KURRENT-SECRETS\n";
const VERSION: u32 = 1;
/// RFC 9106 section 4, the second recommended choice with one lane (we have one thread for it): 64 MiB, three passes. An appliance
/// of 256 MiB has that to spare, once at a time.
#[cfg(not(test))]
const COST: Cost = Cost { m_kib: 64 * 1024, t: 3, p: 1 };
/// Tests try many passphrases, none of which protects anything.
#[cfg(test)]
const COST: Cost = Cost { m_kib: 64, t: 1, p: 1 };
/// What a foreign header may make us spend.
const MOST: Cost = Cost { m_kib: 256 * 1024, t: 16, p: 4 };
const MAX_HEADER_BYTES: usize = 1024;
/// Shorter ones are found by trying.
const MIN_CHARS: usize = 12;

#[derive(Clone, Copy)]
struct Cost {
    m_kib: u32,
    t: u32,
    p: u32,
}

/// A passphrase. No `Debug`; wiped on drop.
pub struct Passphrase(Zeroizing<String>);

impl Passphrase {
    /// For a new backup: not one that is found by trying.
    ///
    /// # Errors
    /// It is too short.
    pub fn new(text: Zeroizing<String>) -> Result<Self, BackupError> {
        if text.chars().count() < MIN_CHARS {
            return Err(BackupError::refused("passphrase_too_short", format!("the passphrase has at least {MIN_CHARS} characters")));
        }
        Ok(Self(text))
    }

    /// For a backup that is there.
    #[must_use]
    pub fn given(text: Zeroizing<String>) -> Self {
        Self(text)
    }

    /// The first line of a file, as `--passphrase-file` has it.
    #[must_use]
    pub fn line(octets: &Zeroizing<Vec<u8>>) -> Zeroizing<String> {
        let line = octets.split(|o| *o == b'\n').next().unwrap_or_default();
        Zeroizing::new(String::from_utf8_lossy(line).trim_end_matches('\r').to_owned())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    version: u32,
    m_kib: u32,
    t: u32,
    p: u32,
    salt: String,
    nonce: String,
}

/// Seals `plaintext`.
pub(super) fn seal(passphrase: &Passphrase, plaintext: &Zeroizing<Vec<u8>>) -> Result<Vec<u8>, BackupError> {
    let (salt, nonce): ([u8; 16], [u8; 24]) = (entropy::random(), entropy::random());
    let Cost { m_kib, t, p } = COST;
    let header = Header { version: VERSION, m_kib, t, p, salt: hex::encode(salt), nonce: hex::encode(nonce) };
    let failed = |what: String| BackupError::refused("seal_failed", format!("the secrets could not be sealed: {what}"));
    let json = serde_json::to_string(&header).map_err(|e| failed(e.to_string()))?;
    let mut out = format!("{MAGIC}{json}\n").into_bytes();
    let cipher = XChaCha20Poly1305::new((&*key(passphrase, &salt, COST)?).into());
    let sealed = cipher.encrypt(&XNonce::from(nonce), Payload { msg: plaintext, aad: &out }).map_err(|e| failed(e.to_string()))?;
    out.extend(sealed);
    Ok(out)
}

/// Opens what [`seal`] made.
pub(super) fn open(passphrase: &Passphrase, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, BackupError> {
    let damaged = || BackupError::refused("archive_damaged", "the header of secrets.enc does not read; take another copy of the backup");
    let body = sealed.strip_prefix(MAGIC.as_bytes()).ok_or_else(damaged)?;
    let end = body.iter().take(MAX_HEADER_BYTES).position(|o| *o == b'\n').ok_or_else(damaged)?;
    let (json, ciphertext) = body.split_at(end);
    let ciphertext = ciphertext.get(1..).unwrap_or_default();
    let version: Version1 = serde_json::from_slice(json).map_err(|_| damaged())?;
    if version.version > VERSION {
        return Err(BackupError::refused(
            "archive_newer",
            "a later kurrentd sealed these secrets; restore with that version or a later one",
        ));
    }
    let header: Header = serde_json::from_slice(json).map_err(|_| damaged())?;
    let cost = Cost { m_kib: header.m_kib, t: header.t, p: header.p };
    if cost.m_kib > MOST.m_kib || cost.t > MOST.t || cost.p > MOST.p {
        return Err(BackupError::refused(
            "archive_invalid",
            "secrets.enc asks for more memory or time than any kurrentd does; it is refused",
        ));
    }
    let (mut salt, mut nonce) = ([0; 16], [0; 24]);
    hex::decode_to_slice(&header.salt, &mut salt).map_err(|_| damaged())?;
    hex::decode_to_slice(&header.nonce, &mut nonce).map_err(|_| damaged())?;
    let head = sealed.len() - ciphertext.len();
    let aad = sealed.get(..head).unwrap_or_default();
    let cipher = XChaCha20Poly1305::new((&*key(passphrase, &salt, cost)?).into());
    let opened = cipher.decrypt(&XNonce::from(nonce), Payload { msg: ciphertext, aad });
    let wrong = |_| {
        BackupError::refused("passphrase_wrong", "the passphrase does not open this backup (or secrets.enc is damaged); try the right one")
    };
    opened.map(Zeroizing::new).map_err(wrong)
}

/// What every version of the header has.
#[derive(Deserialize)]
struct Version1 {
    version: u32,
}

fn key(passphrase: &Passphrase, salt: &[u8], cost: Cost) -> Result<Zeroizing<[u8; 32]>, BackupError> {
    let failed = |e: argon2::Error| BackupError::refused("archive_invalid", format!("no key can be made from the passphrase: {e}"));
    let params = Params::new(cost.m_kib, cost.t, cost.p, Some(32)).map_err(failed)?;
    let mut key = Zeroizing::new([0; 32]);
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into(passphrase.0.as_bytes(), salt, key.as_mut_slice())
        .map_err(failed)?;
    Ok(key)
}
