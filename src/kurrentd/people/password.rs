//! Passwords and tokens: making, keeping, comparing.

use argon2::password_hash::{PasswordHasher, PasswordVerifier, phc::PasswordHash};
use argon2::{Algorithm, Argon2, Params, Version};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kurrent_sys::entropy;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Characters of a password: shorter ones are found by trying.
pub const MIN_CHARS: usize = 12;
/// Octets of a password: nobody types more.
pub const MAX_OCTETS: usize = 1024;
/// OWASP's first choice for Argon2id with one lane: 19 MiB, two passes. Two at a time fit an appliance of 256 MiB beside all else; RFC
/// 9106's 64 MiB would not.
#[cfg(not(test))]
const COST: (u32, u32) = (19 * 1024, 2);
/// Tests make many passwords, none of which protects anything.
#[cfg(test)]
const COST: (u32, u32) = (64, 1);
/// What an edited file may make us spend.
const MOST: (u32, u32) = (256 * 1024, 16);
/// In front of every token, so that people and scanners know one when they see it.
pub const PREFIX: &str = "krt_";

fn argon2(cost: (u32, u32)) -> Option<Argon2<'static>> {
    let params = Params::new(cost.0, cost.1, 1, Some(32)).ok()?;
    Some(Argon2::new(Algorithm::Argon2id, Version::V0x13, params))
}

/// The PHC string of a password; takes its time.
pub fn hash(password: &str) -> Option<String> {
    let salt: [u8; 16] = entropy::random();
    Some(argon2(COST)?.hash_password_with_salt(password.as_bytes(), &salt).ok()?.to_string())
}

/// Whether this is a PHC string that we would check a password against.
pub fn is_usable(phc: &str) -> bool {
    let Ok(hash) = PasswordHash::new(phc) else { return false };
    let bounded = Params::try_from(&hash).is_ok_and(|p| p.m_cost() <= MOST.0 && p.t_cost() <= MOST.1 && p.p_cost() <= 4);
    bounded && hash.algorithm.as_str() == "argon2id" && hash.hash.is_some()
}

/// Whether it is the password; takes its time.
pub fn matches(password: &str, phc: &str) -> bool {
    let argon2 = argon2(COST);
    is_usable(phc) && argon2.is_some_and(|a| PasswordVerifier::<str>::verify_password(&a, password.as_bytes(), phc).is_ok())
}

/// A new token: its id, the whole, and what is kept of it.
pub struct NewToken {
    /// 12 hex digits.
    pub id: String,
    /// `krt_ID_SECRET`, for its holder.
    pub text: Zeroizing<String>,
    /// SHA-256 of the whole, in hex.
    pub digest: String,
}

impl NewToken {
    /// 256 random bits and an id.
    pub fn make() -> Self {
        let id = hex::encode(entropy::random::<6>());
        let secret = Zeroizing::new(URL_SAFE_NO_PAD.encode(Zeroizing::new(entropy::random::<32>()).as_slice()));
        let text = Zeroizing::new(format!("{PREFIX}{id}_{}", secret.as_str()));
        Self { digest: digest(&text), id, text }
    }
}

/// The id in a token, if it has the form of one.
pub fn id_of(token: &str) -> Option<&str> {
    token.strip_prefix(PREFIX)?.split_once('_').map(|(id, _)| id)
}

/// What is kept of a token. It is random, so nothing slower is needed.
pub fn digest(token: &str) -> String {
    hex::encode(Sha256::digest(token.as_bytes()))
}

/// Whether what is kept is of this token; takes the same time wherever they differ.
pub fn is_of(token: &str, kept: &str) -> bool {
    digest(token).as_bytes().ct_eq(kept.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_kept_as_argon2id_and_matches_only_itself() {
        let kept = hash("correct horse").unwrap();
        assert!(kept.starts_with("$argon2id$v=19$m=64,t=1,p=1$"), "{kept}");
        assert_ne!(kept, hash("correct horse").unwrap(), "each has a salt of its own");
        assert!(matches("correct horse", &kept) && !matches("correct hors", &kept) && !matches("", &kept));
        for other in [
            "",
            "x",
            "$argon2i$v=19$m=64,t=1,p=1$c2FsdHNhbHQ$aGFzaGhhc2hoYXNo",
            "$argon2id$v=19$m=4194304,t=1,p=1$c2FsdHNhbHQ$aGFzaGhhc2hoYXNo",
        ] {
            assert!(!is_usable(other) && !matches("x", other), "{other}");
        }
    }

    #[test]
    fn a_token_carries_its_id_and_is_kept_as_a_digest() {
        let (one, two) = (NewToken::make(), NewToken::make());
        assert_eq!(id_of(&one.text), Some(one.id.as_str()));
        assert_eq!(one.text.len(), 4 + 12 + 1 + 43);
        assert!(is_of(&one.text, &one.digest) && !is_of(&two.text, &one.digest) && !is_of("", &one.digest) && !is_of(&one.text, ""));
        assert!(id_of("krt_").is_none() && id_of("x").is_none() && !one.digest.contains(one.text.as_str()));
    }
}
