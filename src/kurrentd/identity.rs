//! The appliance's Ed25519 identity, which devices pin: its key, and how it came from the keys that it had before.
//!
//! `secrets/server.key` holds the seed in hex, then a line `old new signature` for each rotation, oldest first: the old key's
//! signature over the change. A file of before there were rotations is a seed alone. The file is replaced whole, so a power cut
//! leaves the old key or the new one with its signature; the old seed is nowhere then. The key is never replaced by itself.

use crate::secrets::read_or_make;
use anyhow::{Context, bail, ensure};
use arc_swap::ArcSwap;
use ed25519_dalek::SigningKey;
use kurrent_handshake::{Challenge, Link, MAX_LINKS, Rotation, same};
use kurrent_sys::entropy::random;
use kurrent_sys::store;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use zeroize::Zeroizing;

const FILE: &str = "server.key";

/// The key and its history at one moment. No `Debug`: it holds the seed.
pub struct Held {
    key: SigningKey,
    /// The key before the first of `links`; the present one when there are none.
    first: [u8; 32],
    links: Vec<Link>,
}

impl Held {
    /// The public key.
    #[must_use]
    pub fn public(&self) -> [u8; 32] {
        self.key.verifying_key().to_bytes()
    }

    /// Signs a challenge.
    #[must_use]
    pub fn sign(&self, challenge: &Challenge) -> [u8; 64] {
        challenge.sign(&self.key)
    }

    /// The keys that it had before and that are remembered, oldest first.
    pub fn former(&self) -> impl Iterator<Item = [u8; 32]> + '_ {
        std::iter::once(self.first).chain(self.links.iter().map(|link| link.new)).take(self.links.len())
    }

    /// The oldest key that is remembered: what else is made of the identity stays the same over rotations.
    #[must_use]
    pub fn first(&self) -> [u8; 32] {
        self.first
    }

    /// The way from a key that it had before to the present one; empty when `pinned` is none of them.
    #[must_use]
    pub fn links_from(&self, pinned: &[u8; 32]) -> &[Link] {
        let at = self.former().position(|key| same(&key, pinned));
        at.and_then(|at| self.links.get(at..)).unwrap_or_default()
    }

    fn text(&self) -> Zeroizing<String> {
        // Room from the start: growing would leave copies of the seed behind.
        let mut text = Zeroizing::new(String::with_capacity(66 + self.links.len() * 260));
        let seed = Zeroizing::new(self.key.to_bytes());
        let mut digits = Zeroizing::new([0u8; 64]);
        if hex::encode_to_slice(seed.as_slice(), digits.as_mut_slice()).is_ok() {
            digits.iter().for_each(|digit| text.push(char::from(*digit)));
        }
        text.push('\n');
        for (old, link) in self.former().zip(&self.links) {
            let _ = writeln!(text, "{} {} {}", hex::encode(old), hex::encode(link.new), hex::encode(link.signature));
        }
        text
    }

    fn read(text: &str) -> anyhow::Result<Self> {
        let mut lines = text.lines();
        let mut seed = Zeroizing::new([0u8; 32]);
        if hex::decode_to_slice(lines.next().unwrap_or_default().trim().as_bytes(), seed.as_mut_slice()).is_err() {
            bail!("line 1 is not 64 hex digits");
        }
        let key = SigningKey::from_bytes(&seed);
        let mut held = Self { first: key.verifying_key().to_bytes(), key, links: Vec::new() };
        let mut last: Option<[u8; 32]> = None;
        for (number, line) in (2..).zip(lines) {
            let (rotation, signature) = rotation(line).with_context(|| format!("line {number} is not `old new signature` in hex"))?;
            ensure!(held.links.len() < MAX_LINKS, "line {number} is one rotation more than {MAX_LINKS}");
            match last {
                None => held.first = rotation.old,
                Some(key) => ensure!(key == rotation.old, "line {number} does not begin at the key where the line before ends"),
            }
            ensure!(rotation.verify(&signature).is_ok(), "line {number} is not signed by its old key");
            last = Some(rotation.new);
            held.links.push(Link { new: rotation.new, signature });
        }
        ensure!(last.is_none_or(|key| key == held.public()), "the last rotation does not end at the key in line 1");
        Ok(held)
    }

    /// With a new key; the oldest rotation is forgotten when there are too many.
    fn rotated(&self, seed: &[u8; 32]) -> Self {
        let key = SigningKey::from_bytes(seed);
        let rotation = Rotation { old: self.public(), new: key.verifying_key().to_bytes() };
        let mut links = self.links.clone();
        links.push(Link { new: rotation.new, signature: rotation.sign(&self.key) });
        let forgotten = links.len().saturating_sub(MAX_LINKS);
        let first = links[..forgotten].last().map_or(self.first, |link| link.new);
        links.drain(..forgotten);
        Self { key, first, links }
    }
}

fn rotation(line: &str) -> Option<(Rotation, [u8; 64])> {
    fn octets<const N: usize>(word: Option<&str>) -> Option<[u8; N]> {
        let mut out = [0; N];
        hex::decode_to_slice(word?, &mut out).ok().map(|()| out)
    }
    let mut words = line.split(' ');
    let found = (Rotation { old: octets(words.next())?, new: octets(words.next())? }, octets(words.next())?);
    words.next().is_none().then_some(found)
}

/// The one owner of `secrets/server.key`.
pub struct Identity {
    path: PathBuf,
    held: ArcSwap<Held>,
    rotating: Mutex<()>,
}

impl Identity {
    /// Reads it from the folder of secrets, or makes it.
    ///
    /// # Errors
    /// The file can not be read or written, or is damaged: then it is left as it is.
    pub fn open(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join(FILE);
        let text = read_or_make(&path, || hex::encode(Zeroizing::new(random::<32>()).as_slice()))?;
        let advice = || format!("{}; devices have pinned the key: restore the file from a backup", path.display());
        let held = Held::read(&text).with_context(advice)?;
        Ok(Self { held: ArcSwap::from_pointee(held), path, rotating: Mutex::default() })
    }

    /// Key and history now. Who answers one request takes it once.
    #[must_use]
    pub fn now(&self) -> Arc<Held> {
        self.held.load_full()
    }

    /// Replaces the key, durably; gives what holds from now on. Waits for the disk.
    ///
    /// # Errors
    /// The file can not be written; the old key is used on. After [`store::ReplaceError::InDoubt`] the next start may find the new one.
    pub fn rotate(&self) -> Result<Arc<Held>, store::ReplaceError> {
        let _rotating = self.rotating.lock().unwrap_or_else(PoisonError::into_inner);
        let next = Arc::new(self.now().rotated(&Zeroizing::new(random())));
        store::replace(&self.path, next.text().as_bytes(), 0o600)?;
        self.held.store(Arc::clone(&next));
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kurrent_handshake::follow;

    #[test]
    fn a_rotation_is_signed_by_the_old_key_kept_over_a_restart_and_followed_from_every_key_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        // As it was written before there were rotations.
        std::fs::write(&path, format!("{}\n", "07".repeat(32))).unwrap();
        let identity = Identity::open(folder.path()).unwrap();
        let mut keys = vec![SigningKey::from_bytes(&[7; 32]).verifying_key().to_bytes()];
        assert_eq!((identity.now().public(), identity.now().first(), identity.now().former().count()), (keys[0], keys[0], 0));
        for _ in 0..3 {
            let old = Zeroizing::new(hex::encode(identity.now().key.to_bytes()));
            keys.push(identity.rotate().unwrap().public());
            assert!(!std::fs::read_to_string(&path).unwrap().contains(old.as_str()), "the old seed is gone");
        }
        let again = Identity::open(folder.path()).unwrap().now();
        assert_eq!((again.public(), again.former().collect::<Vec<_>>()), (keys[3], keys[..3].to_vec()));
        for (at, key) in keys.iter().enumerate() {
            assert_eq!(again.links_from(key).len(), 3 - at, "no more than is needed");
            assert_eq!(follow(key, again.links_from(key)), Ok(keys[3]));
        }
        assert!(again.links_from(&[9; 32]).is_empty());
        let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn the_oldest_rotation_is_forgotten_when_there_are_too_many() {
        let folder = tempfile::tempdir().unwrap();
        let identity = Identity::open(folder.path()).unwrap();
        let keys: Vec<[u8; 32]> = (0..MAX_LINKS + 2).map(|_| identity.rotate().unwrap().public()).collect();
        let held = Identity::open(folder.path()).unwrap().now();
        assert_eq!((held.former().count(), held.first()), (MAX_LINKS, keys[1]));
        assert_eq!(follow(&keys[1], held.links_from(&keys[1])), Ok(held.public()));
        assert!(held.links_from(&keys[0]).is_empty());
    }

    #[test]
    fn a_damaged_identity_is_named_and_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let identity = Identity::open(folder.path()).unwrap();
        (0..3).for_each(|_| _ = identity.rotate().unwrap());
        let good = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = good.lines().collect();
        let other_signature = format!("{}{}\n", &lines[1][..200], "00".repeat(29));
        for (bad, fault) in [
            ("damaged\n".to_owned(), "line 1 "),
            (format!("{}\n", "07".repeat(31)), "line 1 "),
            (format!("{}\n{}\n", lines[0], lines[1]), "the last rotation"),
            (format!("{}\n{}\n{}\n", lines[0], lines[1], lines[3]), "line 3 does not begin"),
            (format!("{}\n{}", lines[0], other_signature), "line 2 is not signed"),
            (format!("{}\n{} x\n", lines[0], lines[3]), "line 2 is not `old new signature`"),
            (format!("{}\n\n", lines[0]), ""),
        ] {
            std::fs::write(&path, &bad).unwrap();
            match Identity::open(folder.path()) {
                Ok(_) => assert_eq!(fault, "", "{bad}"),
                Err(error) => {
                    let said = format!("{error:#}");
                    assert!(!fault.is_empty() && said.contains(fault) && said.contains("server.key"), "{said}");
                    assert!(!said.contains(&lines[0][..32]), "the seed is not told");
                }
            }
            assert_eq!(std::fs::read_to_string(&path).unwrap(), bad, "left as it is");
        }
    }

    #[test]
    fn a_key_that_can_not_be_stored_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let identity = Identity::open(folder.path()).unwrap();
        let before = identity.now().public();
        std::fs::remove_dir_all(folder.path()).unwrap();
        assert!(identity.rotate().is_err());
        assert_eq!(identity.now().public(), before);
    }
}
