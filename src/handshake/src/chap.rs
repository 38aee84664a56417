//! A Worker's login to the iSCSI target that has its disk, for one boot: sealed by the appliance, opened by the firmware program,
//! used by iPXE (`sanboot`) and, through the table that iPXE leaves (iBFT), by the operating system.
//!
//! ```text
//! user=iqn.2026-11.net.example:host.atlas.e7      who the machine is to the target    iPXE's username
//! secret=...                                      how it proves that                  password
//! mutual_user=iqn.2026-11.net.example:atlas       who the target is to the machine    reverse-username
//! mutual_secret=...                               how that is proven                  reverse-password
//! ```
//!
//! Both directions, always: without the second one a rogue target could serve the machine a disk of its own. RFC 7143
//! section 12.1.3 (CHAP); 9.2.1 has the rules for secrets.

use crate::Session;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use zeroize::Zeroizing;

/// Octets of a secret. RFC 7143 section 9.2.1: less than 96 bits only over IPsec, and 128 bits is what everybody must take; no more
/// is what Windows takes. Stock iPXE takes longer ones (tried with 160). That is how long one may be; of these characters only 16 drawn by
/// chance have 96 bits of it, so whoever makes one makes 16.
pub const CHAP_SECRET_OCTETS: RangeInclusive<usize> = 12..=16;
/// Octets of a name; usually that is an iSCSI name, of which RFC 7143 section 4.2.7.1 has no longer ones.
pub const CHAP_NAME_MAX: usize = 223;

const KEYS: [&str; 4] = ["user", "secret", "mutual_user", "mutual_secret"];
/// The longest plaintext: the values, and around each its key, `=` and the end of the line.
const PLAINTEXT_MAX: usize =
    2 * CHAP_NAME_MAX + 2 * *CHAP_SECRET_OCTETS.end() + KEYS[0].len() + KEYS[1].len() + KEYS[2].len() + KEYS[3].len() + 2 * KEYS.len();

/// The login. Not wiped by itself: it borrows from where it stands. No `Debug`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Chap<'a> {
    /// `CHAP_N` of the machine.
    pub user: &'a str,
    /// What its `CHAP_R` is computed with.
    pub secret: &'a str,
    /// `CHAP_N` of the target.
    pub mutual_user: &'a str,
    /// What the target's `CHAP_R` is computed with.
    pub mutual_secret: &'a str,
}

impl<'a> Chap<'a> {
    /// The longest sealed blob.
    pub const SEALED_MAX: usize = Session::SEAL_OCTETS + PLAINTEXT_MAX;

    /// Reads a plaintext. `None` for all but these four lines in this order, with values that [`Self::seal`] would take.
    #[must_use]
    pub fn parse(plaintext: &'a [u8]) -> Option<Self> {
        let mut lines = core::str::from_utf8(plaintext).ok()?.strip_suffix('\n')?.split('\n');
        let mut values = [""; KEYS.len()];
        for (value, key) in values.iter_mut().zip(KEYS) {
            *value = lines.next()?.strip_prefix(key)?.strip_prefix('=')?;
        }
        let [user, secret, mutual_user, mutual_secret] = values;
        let chap = Self { user, secret, mutual_user, mutual_secret };
        (lines.next().is_none() && chap.is_fit()).then_some(chap)
    }

    /// Seals the login for one boot. `None` when a value is not one that every part on the way takes: names of up to
    /// [`CHAP_NAME_MAX`] and secrets of [`CHAP_SECRET_OCTETS`] letters, digits and `-._:`, and two different secrets (RFC 7143
    /// section 9.2.1: with the same one the target's challenge could be sent back to it for an answer).
    #[must_use]
    pub fn seal(&self, session: Session) -> Option<Vec<u8>> {
        if !self.is_fit() {
            return None;
        }
        // Room for all from the start: growing would leave copies behind.
        let mut plaintext = Zeroizing::new(Vec::with_capacity(PLAINTEXT_MAX));
        for (key, value) in KEYS.iter().zip([self.user, self.secret, self.mutual_user, self.mutual_secret]) {
            for part in [key, "=", value, "\n"] {
                plaintext.extend_from_slice(part.as_bytes());
            }
        }
        Some(session.seal(&plaintext))
    }

    fn is_fit(&self) -> bool {
        let plain = [self.user, self.secret, self.mutual_user, self.mutual_secret].iter().all(|value| value.bytes().all(is_plain));
        let names = [self.user, self.mutual_user].iter().all(|name| (1..=CHAP_NAME_MAX).contains(&name.len()));
        let secrets = [self.secret, self.mutual_secret].iter().all(|secret| CHAP_SECRET_OCTETS.contains(&secret.len()));
        plain && names && secrets && self.secret != self.mutual_secret
    }
}

/// What neither iPXE's scripts (`${…}`), nor iSCSI's key=value text, nor a target's configuration reads as something else.
const fn is_plain(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || matches!(octet, b'-' | b'.' | b'_' | b':')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SEALED_MAGIC;
    use alloc::format;
    use alloc::string::String;

    const CHAP: Chap<'_> = Chap { user: "iqn.2026-11.x:h", secret: "abcdefghijkl", mutual_user: "t", mutual_secret: "ABCDEFGHIJKLMNOP" };
    const TEXT: &str = "user=iqn.2026-11.x:h\nsecret=abcdefghijkl\nmutual_user=t\nmutual_secret=ABCDEFGHIJKLMNOP\n";

    fn session() -> Session {
        Session { key: [1; 32], nonce: [2; 32], mac: [3; 6] }
    }

    fn is_read(text: &str) -> bool {
        Chap::parse(text.as_bytes()).is_some()
    }

    #[test]
    fn what_is_sealed_is_opened_to_the_four_lines() {
        let blob = CHAP.seal(session()).unwrap();
        assert_eq!(&blob[..8], SEALED_MAGIC);
        let plaintext = session().open(&blob).unwrap();
        assert_eq!(plaintext.as_slice(), TEXT.as_bytes());
        assert!(Chap::parse(&plaintext) == Some(CHAP));
    }

    #[test]
    fn the_longest_login_has_the_longest_blob() {
        let (name, secret) = ("n".repeat(CHAP_NAME_MAX), "s".repeat(*CHAP_SECRET_OCTETS.end()));
        let other = "t".repeat(secret.len());
        let blob = Chap { user: &name, secret: &secret, mutual_user: &name, mutual_secret: &other }.seal(session()).unwrap();
        assert_eq!(blob.len(), Chap::SEALED_MAX);
        assert!(Chap::parse(&session().open(&blob).unwrap()).is_some());
    }

    #[test]
    fn anything_missing_added_repeated_cut_or_reordered_is_refused() {
        assert!(is_read(TEXT));
        for at in 0..TEXT.len() {
            assert!(!is_read(&TEXT[..at]), "cut at {at}");
            assert!(!is_read(&TEXT[at + 1..]), "begins after {at}");
        }
        let lines: [&str; 4] = core::array::from_fn(|at| TEXT.lines().nth(at).unwrap());
        let of = |order: &[usize]| order.iter().map(|at| format!("{}\n", lines[*at])).collect::<String>();
        assert!(is_read(&of(&[0, 1, 2, 3])));
        for order in [&[0, 1, 2][..], &[1, 2, 3], &[0, 1, 2, 3, 3], &[0, 0, 1, 2, 3], &[1, 0, 2, 3], &[2, 3, 0, 1], &[0, 1, 3, 2], &[]] {
            assert!(!is_read(&of(order)), "{order:?}");
        }
        for (from, to) in [
            ("user=", "name="),
            ("user=", "user"),
            ("user=", "user ="),
            ("secret=", "Secret="),
            ("\nmutual_user", "\r\nmutual_user"),
            ("\nmutual_user", "\n\nmutual_user"),
            ("\nmutual_user", "\nworker=w1\nmutual_user"),
        ] {
            assert!(!is_read(&TEXT.replacen(from, to, 1)), "{from:?} -> {to:?}");
        }
        assert!(!is_read(&format!("{TEXT}lun=1\n")) && !is_read(&format!("{TEXT}\n")) && !is_read(&format!("{TEXT} ")));
        assert!(Chap::parse(&[TEXT.as_bytes(), b"\xff"].concat()).is_none());
    }

    #[test]
    fn values_that_a_part_on_the_way_would_not_take_are_neither_sealed_nor_read() {
        let name = "n".repeat(CHAP_NAME_MAX + 1);
        let changes: [(&str, Chap<'_>); 10] = [
            ("no user", Chap { user: "", ..CHAP }),
            ("no name of the target", Chap { mutual_user: "", ..CHAP }),
            ("long user", Chap { user: &name, ..CHAP }),
            ("long name of the target", Chap { mutual_user: &name, ..CHAP }),
            ("11 octets", Chap { secret: "abcdefghijk", ..CHAP }),
            ("17 octets", Chap { secret: "abcdefghijklmnopq", ..CHAP }),
            ("11 octets back", Chap { mutual_secret: "ABCDEFGHIJK", ..CHAP }),
            ("17 octets back", Chap { mutual_secret: "ABCDEFGHIJKLMNOPQ", ..CHAP }),
            ("no secret back", Chap { mutual_secret: "", ..CHAP }),
            ("the same secret", Chap { mutual_secret: CHAP.secret, ..CHAP }),
        ];
        for (what, chap) in changes {
            assert!(chap.seal(session()).is_none(), "{what}");
            let Chap { user, secret, mutual_user, mutual_secret } = chap;
            let text = format!("user={user}\nsecret={secret}\nmutual_user={mutual_user}\nmutual_secret={mutual_secret}\n");
            assert!(!is_read(&text), "{what}");
        }
        for octet in (0..=0x7f_u8).map(char::from).chain(['é']) {
            let fits = octet.is_ascii_alphanumeric() || "-._:".contains(octet);
            let (user, secret) = (format!("a{octet}"), format!("abcdefghijkl{octet}"));
            assert_eq!(Chap { user: &user, ..CHAP }.seal(session()).is_some(), fits, "{octet:?}");
            assert_eq!(Chap { secret: &secret, ..CHAP }.seal(session()).is_some(), fits, "{octet:?}");
            assert_eq!(is_read(&TEXT.replace("user=t", &format!("user={user}"))), fits, "{octet:?}");
            assert_eq!(is_read(&TEXT.replace("=abcdefghijkl", &format!("={secret}"))), fits, "{octet:?}");
        }
    }
}
