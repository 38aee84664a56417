//! Secrets made once at the first start: the appliance's identity and the first-run token. Files are 0600; nothing here
//! is ever logged.

use anyhow::{Context, bail};
use ed25519_dalek::SigningKey;
use kurrent_sys::entropy::random;
use kurrent_sys::store;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
/// 128 bits, five a letter, rounded up.
const TOKEN_LETTERS: usize = 26;

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

/// `secrets/server.key`: the Ed25519 seed in hex; read, or made. Devices pin it: it is never replaced by itself.
///
/// # Errors
/// It can not be read or written, or is not a key.
pub fn server_key(folder: &Path) -> anyhow::Result<SigningKey> {
    let text = read_or_make(&folder.join("server.key"), || hex::encode(Zeroizing::new(random::<32>()).as_slice()))?;
    let mut seed = Zeroizing::new([0u8; 32]);
    if hex::decode_to_slice(text.as_bytes(), seed.as_mut_slice()).is_err() {
        bail!("{}/server.key is not 64 hex digits; devices have pinned the key: restore the file from a backup", folder.display());
    }
    Ok(SigningKey::from_bytes(&seed))
}

fn read_or_make(path: &Path, make: impl FnOnce() -> String) -> anyhow::Result<Zeroizing<String>> {
    let octets = store::read(path, 4096).with_context(|| format!("reading {}", path.display()))?.map(Zeroizing::new);
    if let Some(octets) = octets {
        let mode = path.metadata()?.permissions().mode();
        if mode & 0o077 != 0 {
            tracing::warn!("{} was readable by others; it is not any more", path.display());
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        }
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
        let (key, token) = (server_key(folder.path()).unwrap(), first_run_token(folder.path()).unwrap());
        assert_eq!(server_key(folder.path()).unwrap().to_bytes(), key.to_bytes());
        assert!(first_run_token(folder.path()).unwrap().matches(token.reveal().as_bytes()));
        for name in ["server.key", "first-run-token"] {
            assert_eq!(folder.path().join(name).metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
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

    #[test]
    fn a_damaged_identity_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("server.key"), "damaged").unwrap();
        assert!(server_key(folder.path()).is_err());
        assert_eq!(std::fs::read(folder.path().join("server.key")).unwrap(), b"damaged");
    }
}
