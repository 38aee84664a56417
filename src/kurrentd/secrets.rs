//! Secrets made once at the first start: the first-run token, and the file of the identity (`identity`). Files are 0600;
//! nothing here is ever logged.

use anyhow::{Context, bail};
use kurrent_sys::entropy::random;
use kurrent_sys::store;
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

#[cfg(test)]
mod tests {
    use super::*;

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
