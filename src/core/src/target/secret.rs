//! DH-HMAC-CHAP secrets in the form that kernel and nvme-cli agree on: `DHHC-1:01:base64(32 octets || crc32le):`
//! (NVM Express TCP Transport Specification 1.0c, section 3.6.1.5). `01` is SHA-256: the secret is transformed with that hash.

use base64::{Engine, engine::general_purpose::STANDARD};
use std::{fmt, str::FromStr};
use zeroize::{Zeroize, Zeroizing};

const PREFIX: &str = "DHHC-1:01:";
const KEY_BYTES: usize = 32;

/// A secret. `Debug` is redacted, memory is wiped on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

/// The text is not a secret of ours. Tells nothing of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a DHHC-1:01 secret of 32 octets with a right checksum")]
pub struct NotASecret;

impl Secret {
    /// From 32 random octets.
    #[must_use]
    pub fn from_random(octets: &Zeroizing<[u8; KEY_BYTES]>) -> Self {
        let mut with_sum = Zeroizing::new([0u8; KEY_BYTES + 4]);
        with_sum[..KEY_BYTES].copy_from_slice(octets.as_slice());
        with_sum[KEY_BYTES..].copy_from_slice(&crc32fast::hash(octets.as_slice()).to_le_bytes());
        let encoded = Zeroizing::new(STANDARD.encode(with_sum.as_slice()));
        Self(Zeroizing::new(format!("{PREFIX}{}:", *encoded)))
    }

    /// The text for the kernel, the sealed blob and the credentials file, and nowhere else.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl FromStr for Secret {
    type Err = NotASecret;
    fn from_str(text: &str) -> Result<Self, NotASecret> {
        let encoded = text.strip_prefix(PREFIX).and_then(|t| t.strip_suffix(':')).ok_or(NotASecret)?;
        let octets = Zeroizing::new(STANDARD.decode(encoded).map_err(|_| NotASecret)?);
        let (key, sum) = octets.split_at_checked(KEY_BYTES).ok_or(NotASecret)?;
        if sum == crc32fast::hash(key).to_le_bytes() { Ok(Self(Zeroizing::new(text.to_owned()))) } else { Err(NotASecret) }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl serde::Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.reveal())
    }
}

impl<'de> serde::Deserialize<'de> for Secret {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut text = String::deserialize(deserializer)?;
        let secret = text.parse().map_err(serde::de::Error::custom);
        text.zeroize();
        secret
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_the_form_of_nvme_cli_and_comes_back_as_it_went() {
        let secret = Secret::from_random(&Zeroizing::new([7; 32]));
        assert!(secret.reveal().starts_with("DHHC-1:01:BwcH") && secret.reveal().ends_with(':'));
        assert_eq!(secret.reveal().parse(), Ok(secret.clone()));
        assert_eq!(format!("{secret:?}"), "Secret(…)");
    }

    #[test]
    fn a_changed_or_cut_secret_is_refused() {
        let text = Secret::from_random(&Zeroizing::new([7; 32])).reveal().to_owned();
        for wrong in
            ["", &text[..text.len() - 1], &text.replace("BwcH", "BwcI"), &text.replace(":01:", ":00:"), &format!("{text}\n"), "DHHC-1:01::"]
        {
            assert_eq!(wrong.parse::<Secret>(), Err(NotASecret), "{wrong:?}");
        }
    }
}
