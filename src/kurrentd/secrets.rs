//! Secrets made once at the first start: the first-run token, and the file of the identity (`identity`). Files are 0600;
//! nothing here is ever logged.
//!
//! Secrets are wiped where we have them: what is read from a file, its text before it is written ([`to_yaml`]), and the values
//! themselves ([`kurrent_core::target::Secret`], keys). What remains is in other hands: the YAML parser's own copies of a file's
//! words, the serializer's buffer for a word, and the kernel's page cache. None of it leaves the process or the machine: no core is
//! dumped, and nobody may look into the memory ([`crate::confine`]).

use anyhow::{Context, bail};
use kurrent_sys::entropy::random;
use kurrent_sys::store;
use serde::Serialize;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
/// 128 bits, five a letter, rounded up.
const TOKEN_LETTERS: usize = 26;
/// The identity with its history has some 4 KiB.
const MAX_BYTES: u64 = 16 * 1024;

/// The bearer token of the API. No `Debug`: it is shown on the console and nowhere else.
#[derive(Clone)]
pub struct Token(Zeroizing<String>);

impl Token {
    /// Whether `offered` is this token; takes the same time wherever they differ.
    #[must_use]
    pub fn matches(&self, offered: &[u8]) -> bool {
        offered.to_ascii_uppercase().ct_eq(self.0.as_bytes()).into()
    }

    /// For the console.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// 128 random bits as 26 letters of base32: for people to type.
#[must_use]
pub fn random_letters() -> Zeroizing<String> {
    let bits = u128::from_be_bytes(random());
    let letter = |n: usize| BASE32.get(usize::try_from((bits >> (5 * n)) & 31).unwrap_or(0));
    Zeroizing::new((0..TOKEN_LETTERS).filter_map(letter).map(|o| char::from(*o)).collect())
}

/// `secrets/first-run-token`: read, or made.
///
/// # Errors
/// It can not be read or written, or was changed to something else.
pub fn first_run_token(folder: &Path) -> anyhow::Result<Token> {
    let text = read_or_make(&folder.join("first-run-token"), || random_letters().to_string())?;
    if text.len() != TOKEN_LETTERS || !text.bytes().all(|b| BASE32.contains(&b)) {
        bail!("{}/first-run-token is not {TOKEN_LETTERS} letters of base32; remove the file to have a new one made", folder.display());
    }
    Ok(Token(text))
}

/// A secret file, if it is there; closed to others when it was not.
///
/// # Errors
/// It can not be read, or is larger than `max` octets.
pub fn read(path: &Path, max: u64) -> anyhow::Result<Option<Zeroizing<Vec<u8>>>> {
    let octets = store::read(path, max).with_context(|| format!("reading {}", path.display()))?.map(Zeroizing::new);
    if octets.is_some() && path.metadata()?.permissions().mode() & 0o077 != 0 {
        tracing::warn!("{} was readable by others; it is not any more", path.display());
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    }
    Ok(octets)
}

/// The text of a file of one secret, without spaces around it; made first when it is not there.
///
/// # Errors
/// It can not be read or written.
pub fn read_or_make(path: &Path, make: impl FnOnce() -> String) -> anyhow::Result<Zeroizing<String>> {
    if let Some(octets) = read(path, MAX_BYTES)? {
        return Ok(Zeroizing::new(String::from_utf8_lossy(&octets).trim().to_owned()));
    }
    let text = Zeroizing::new(make());
    let line = Zeroizing::new(format!("{}\n", text.as_str()));
    store::replace(path, line.as_bytes(), 0o600)?;
    Ok(text)
}

/// A file's text as YAML, with secrets in it.
///
/// # Errors
/// It can not be put into text; the error's words may quote a secret.
pub fn to_yaml(what: &impl Serialize) -> Result<Zeroizing<String>, serde_saphyr::ser::Error> {
    let mut text = Wiped(Zeroizing::new(String::with_capacity(FIRST_OCTETS)));
    serde_saphyr::to_fmt_writer(&mut text, what)?;
    Ok(text.0)
}

/// Room at the start: a few records.
const FIRST_OCTETS: usize = 4096;

/// Text that wipes the place which it has outgrown.
struct Wiped(Zeroizing<String>);

impl fmt::Write for Wiped {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let length = self.0.len().saturating_add(more.len());
        if length > self.0.capacity() {
            let mut larger = Zeroizing::new(String::with_capacity(length.saturating_mul(2)));
            larger.push_str(&self.0);
            self.0 = larger;
        }
        self.0.push_str(more);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_of_secrets_is_the_serializers_own_whatever_its_length() {
        for count in [0, 1, 3, 1000] {
            let what: Vec<_> = (0..count).map(|n| (format!("{n:0>60}"), n)).collect();
            assert_eq!(to_yaml(&what).unwrap().as_str(), serde_saphyr::to_string(&what).unwrap(), "{count}");
        }
    }

    #[test]
    fn text_that_grows_is_never_moved_by_the_library() {
        let mut text = Wiped(Zeroizing::new(String::with_capacity(8)));
        for turn in 0..100 {
            let before = (text.0.as_ptr(), text.0.capacity());
            fmt::Write::write_str(&mut text, "0123456789").unwrap();
            let after = (text.0.as_ptr(), text.0.capacity());
            // A place that is as large as before is the same place; a larger one was made by us.
            assert!(before == after || after.1 == 20 * (turn + 1), "{before:?} {after:?}");
        }
        assert_eq!(text.0.as_str(), "0123456789".repeat(100));
    }

    #[test]
    fn secrets_are_made_once_and_readable_only_by_their_owner() {
        let folder = tempfile::tempdir().unwrap();
        let token = first_run_token(folder.path()).unwrap();
        assert!(first_run_token(folder.path()).unwrap().matches(token.reveal().as_bytes()));
        assert_eq!(folder.path().join("first-run-token").metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_token_matches_only_itself_in_either_case() {
        let folder = tempfile::tempdir().unwrap();
        let token = first_run_token(folder.path()).unwrap();
        assert_eq!(token.reveal().len(), 26);
        assert!(token.matches(token.reveal().to_lowercase().as_bytes()));
        for wrong in ["", "A", &token.reveal()[..25], &format!("{}A", token.reveal()), &"A".repeat(26)] {
            assert!(!token.matches(wrong.as_bytes()));
        }
    }
}
