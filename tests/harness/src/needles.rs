//! Secrets, searched for in whatever others can read: as they are, and in the forms in which programs tend to print octets.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use std::collections::BTreeSet;

/// Shorter ones are found by accident.
const MIN_OCTETS: usize = 12;
/// How many octets may stand before a secret in what was encoded with it: base64 takes three at a time.
const BASE64_GROUP: usize = 3;

/// The forms that are searched for.
pub const FORMS: [&str; 5] = ["as it is", "hex", "HEX", "base64", "base64url"];

struct Needle {
    secret: String,
    form: &'static str,
    octets: Vec<u8>,
}

/// Secrets in all their forms.
pub struct Needles {
    all: Vec<Needle>,
    /// Indices into `all` by the first two octets: one look for each place of the haystack.
    by_start: Vec<Vec<usize>>,
}

impl Default for Needles {
    fn default() -> Self {
        Self { all: Vec::new(), by_start: vec![Vec::new(); 1 << 16] }
    }
}

impl Needles {
    /// One more secret. One that is a text is given as its octets; what is too short to be told from chance is not taken, and said.
    pub fn add(&mut self, secret: &str, octets: &[u8]) -> anyhow::Result<()> {
        anyhow::ensure!(octets.len() >= MIN_OCTETS, "{secret} has {} octets: too few to search for", octets.len());
        let hex: String = octets.iter().map(|octet| format!("{octet:02x}")).collect();
        self.insert(secret, FORMS[0], octets.to_vec());
        self.insert(secret, FORMS[1], hex.clone().into_bytes());
        self.insert(secret, FORMS[2], hex.to_uppercase().into_bytes());
        for before in 0..BASE64_GROUP {
            let padded = [vec![0; before], octets.to_vec()].concat();
            // Letters that hold bits of what stands before or behind are left out.
            let inner = |text: String| text.get((before * 8).div_ceil(6)..padded.len() * 8 / 6).map(str::to_owned);
            for (form, text) in [(FORMS[3], STANDARD_NO_PAD.encode(&padded)), (FORMS[4], URL_SAFE_NO_PAD.encode(&padded))] {
                self.insert(secret, form, inner(text).unwrap_or_default().into_bytes());
            }
        }
        Ok(())
    }

    fn insert(&mut self, secret: &str, form: &'static str, octets: Vec<u8>) {
        if let Some(start) = start(&octets, 0)
            && let Some(list) = self.by_start.get_mut(start)
        {
            list.push(self.all.len());
            self.all.push(Needle { secret: secret.to_owned(), form, octets });
        }
    }

    /// Which secrets are in there, each with its form.
    pub fn find(&self, haystack: &[u8]) -> BTreeSet<(String, &'static str)> {
        let mut found = BTreeSet::new();
        for at in 0..haystack.len() {
            let candidates = start(haystack, at).and_then(|start| self.by_start.get(start)).map(Vec::as_slice).unwrap_or_default();
            for needle in candidates.iter().filter_map(|index| self.all.get(*index)) {
                if haystack.get(at..).is_some_and(|rest| rest.starts_with(&needle.octets)) {
                    found.insert((needle.secret.clone(), needle.form));
                }
            }
        }
        found
    }
}

fn start(octets: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(*octets.get(at)?) << 8 | usize::from(*octets.get(at + 1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Their base64 has both letters in which the two alphabets differ.
    const SECRET: [u8; 16] = [0xfb, 0xef, 0xff, 0x00, 0x7e, 0x3f, 0xfe, 0x10, 0x80, 0x41, 0xff, 0xfb, 0xef, 0x01, 0x02, 0x03];

    #[test]
    fn each_form_is_found_wherever_it_stands() -> anyhow::Result<()> {
        let mut needles = Needles::default();
        needles.add("key", &SECRET)?;
        needles.add("word", b"correct horse")?;
        assert!(needles.find(&[0; 64]).is_empty());
        let found =
            |haystack: &[u8]| needles.find(haystack).into_iter().map(|(secret, form)| format!("{secret} {form}")).collect::<Vec<_>>();
        assert_eq!(found(&[b"x".as_slice(), &SECRET, b"y"].concat()), ["key as it is"]);
        assert_eq!(found(b"key=fbefff007e3ffe108041fffbef010203"), ["key hex"]);
        assert_eq!(found(b"FBEFFF007E3FFE108041FFFBEF010203"), ["key HEX"]);
        for before in 0..7 {
            let text = [b"0123456".get(..before).unwrap_or_default(), &SECRET, b"behind"].concat();
            assert_eq!(found(STANDARD_NO_PAD.encode(&text).as_bytes()), ["key base64"], "{before}");
            assert_eq!(found(URL_SAFE_NO_PAD.encode(&text).as_bytes()), ["key base64url"], "{before}");
        }
        assert_eq!(found(b"a correct horse, and FBEFFF007E3FFE108041FFFBEF01020"), ["word as it is"], "a part is not found");
        assert!(needles.add("short", b"12345678901").is_err());
        Ok(())
    }
}
