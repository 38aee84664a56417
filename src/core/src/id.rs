//! Names parsed once, at the edge. What these types hold is safe to put into a path, an NQN, a script or a command line.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Why a text is not the name it should be. The message says what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {text:?} is not valid: {rule}")]
pub struct InvalidName {
    /// What the text should have been ("MAC address").
    pub what: &'static str,
    /// The text as given, cut to 64 characters.
    pub text: String,
    /// The rule it breaks.
    pub rule: &'static str,
}

fn invalid(what: &'static str, text: &str, rule: &'static str) -> InvalidName {
    InvalidName { what, text: text.chars().take(64).collect(), rule }
}

/// Serde through `FromStr` and `Display`: ledgers and API hold the canonical text.
macro_rules! text_serde {
    ($name:ident) => {
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

/// A device's identifier: its boot NIC's IEEE 802 MAC address.
///
/// Accepts `aa:bb:cc:dd:ee:ff`, `aa-bb-…`, `aabb.ccdd.eeff` and bare hex in any case; shows lower-case colon form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// Group (multicast) bit set, or all zero: never one machine's own address.
    #[must_use]
    pub fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MacAddr {
    type Err = InvalidName;
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        const RULE: &str = "write six octets, like 52:54:00:12:34:56, and not a multicast or zero address";
        let wrong = || invalid("MAC address", text, RULE);
        let groups: Vec<&str> = text.split([':', '-', '.']).collect();
        let separators: Vec<char> = text.chars().filter(|c| ":-.".contains(*c)).collect();
        let shape_ok = match separators.first() {
            None => text.len() == 12,
            Some('.') => groups.len() == 3 && groups.iter().all(|g| g.len() == 4),
            Some(_) => groups.len() == 6 && groups.iter().all(|g| g.len() == 2),
        };
        if !shape_ok || separators.iter().any(|c| Some(c) != separators.first()) {
            return Err(wrong());
        }
        let mut octets = [0u8; 6];
        hex::decode_to_slice(groups.concat(), &mut octets).map_err(|_| wrong())?;
        let mac = Self(octets);
        if mac.is_unicast() { Ok(mac) } else { Err(wrong()) }
    }
}

text_serde!(MacAddr);

/// A checked text with `as_str`, `Display`, `Debug` and serde.
macro_rules! text_name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $rule:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// The canonical text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl FromStr for $name {
            type Err = InvalidName;
            fn from_str(text: &str) -> Result<Self, InvalidName> {
                let check: fn(&str) -> bool = $check;
                if check(text) { Ok(Self(text.to_owned())) } else { Err(invalid($what, text, $rule)) }
            }
        }
        text_serde!($name);
    };
}

/// RFC 1123 host name label, lower case: the first and last character are never a hyphen.
fn is_dns_label(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn is_os_word(text: &str) -> bool {
    (1..=32).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b))
}

text_name!(
    /// A user's name: of a person, or of a program that has tokens.
    UserName, "user name",
    "use 1 to 32 of a-z, 0-9, '.', '_' and '-', beginning with a letter",
    |text| is_os_word(text) && text.starts_with(|c: char| c.is_ascii_lowercase())
);

text_name!(
    /// A Worker's identity; it *is* the hostname, so it is one DNS label in lower case (K03).
    WorkerId, "worker_id",
    "use 1 to 63 of a-z, 0-9 and '-', not starting or ending with '-'", is_dns_label
);
text_name!(
    /// A storage node's name: one DNS label.
    AgentName, "agent", "use 1 to 63 of a-z, 0-9 and '-', not starting or ending with '-'", is_dns_label
);
text_name!(
    /// Operating system name of a disk or master: display and grouping only (K17).
    OsName, "os", "use 1 to 32 of a-z, 0-9, '.', '_' and '-'", is_os_word
);
text_name!(
    /// Operating system version of a disk or master; may be empty.
    OsVersion, "os_version", "use at most 32 of a-z, 0-9, '.', '_' and '-'", |t| t.is_empty() || is_os_word(t)
);
text_name!(
    /// Identifies one disk for ever: 12 random lower-case hex digits, made by the appliance (K16).
    OsTag, "os_tag", "it is 12 lower-case hex digits",
    |t| t.len() == 12 && t.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
);
text_name!(
    /// A file name in the disk folder: one path component, no leading dot.
    FileName, "file name", "use 1 to 200 of A-Z, a-z, 0-9, '.', '_' and '-', not starting with '.'",
    |t| (1..=200).contains(&t.len()) && !t.starts_with('.')
        && t.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
);
text_name!(
    /// NVMe Qualified Name of a subsystem or host (NVM Express Base Specification 2.0, section 4.5): `nqn.yyyy-mm.domain:rest`,
    /// at most 223 octets.
    Nqn, "NQN", "write nqn.YYYY-MM.reversed.domain:name, at most 223 of a-z, 0-9, '.', ':', '_' and '-'",
    |t| t.len() <= 223 && t.starts_with("nqn.") && t.len() > 12
        && t.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b".:_-".contains(&b))
);

impl AgentName {
    /// This appliance itself.
    #[must_use]
    pub fn local() -> Self {
        Self("local".into())
    }
}

impl OsTag {
    /// The tag of six random octets.
    #[must_use]
    pub fn from_random(octets: [u8; 6]) -> Self {
        Self(hex::encode(octets))
    }
}

impl Nqn {
    /// `spec.agent.nqnBase` when it is not written.
    #[must_use]
    pub fn default_base() -> Self {
        Self("nqn.2026-11.io.kurrent".into())
    }
}

impl FileName {
    /// Whether this names a master image: contains `_tpl_` in any case (K22).
    #[must_use]
    pub fn is_master(&self) -> bool {
        self.0.to_ascii_lowercase().contains("_tpl_")
    }
}

/// `<nqnBase>:<worker_id>.<os>.<os_tag>`: the disk's identifier on the data plane (K16).
#[must_use]
pub fn disk_nqn(base: &Nqn, worker: &WorkerId, os: &OsName, tag: &OsTag) -> Nqn {
    Nqn(format!("{base}:{worker}.{os}.{tag}"))
}

/// The disk's iSCSI name: its NQN with `nqn.` replaced by `iqn.`; derived, never authoritative.
#[must_use]
pub fn disk_iqn(nqn: &Nqn) -> String {
    nqn.as_str().replacen("nqn.", "iqn.", 1)
}

/// `<worker_id>.<os>.<os_tag>.img`: the disk's file in the disk folder.
#[must_use]
pub fn disk_file_name(worker: &WorkerId, os: &OsName, tag: &OsTag) -> FileName {
    FileName(format!("{worker}.{os}.{tag}.img"))
}

/// `<nqnBase>:host.<worker_id>.e<epoch>`: the host NQN of one epoch of one Worker's device.
#[must_use]
pub fn host_nqn(base: &Nqn, worker: &WorkerId, epoch: u64) -> Nqn {
    Nqn(format!("{base}:host.{worker}.e{epoch}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_is_accepted_in_every_form_people_write_and_shown_in_one() {
        for text in ["52:54:00:AB:cd:ef", "52-54-00-ab-cd-ef", "5254.00ab.cdef", "525400ABCDEF"] {
            assert_eq!(text.parse::<MacAddr>().map(|m| m.to_string()), Ok("52:54:00:ab:cd:ef".to_owned()), "{text}");
        }
    }

    #[test]
    fn mac_refuses_what_is_not_one_machine() {
        for text in [
            "",
            "52:54:00:ab:cd",
            "52:54-00:ab:cd:ef",
            "01:00:5e:00:00:01",
            "00:00:00:00:00:00",
            "5254.00ab",
            "zz:54:00:ab:cd:ef",
            "５2:54:00:ab:cd:ef",
        ] {
            assert!(text.parse::<MacAddr>().is_err(), "{text}");
        }
    }

    #[test]
    fn worker_id_is_a_host_name_label() {
        for (text, ok) in [
            ("w", true),
            ("worker-1", true),
            (&"a".repeat(63), true),
            (&"a".repeat(64), false),
            ("", false),
            ("-a", false),
            ("a-", false),
            ("A", false),
            ("a.b", false),
            ("a_b", false),
            ("ä", false),
            ("a\n", false),
        ] {
            assert_eq!(text.parse::<WorkerId>().is_ok(), ok, "{text:?}");
        }
    }

    #[test]
    fn k16_names_of_a_disk_derive_from_worker_os_and_tag() {
        let base: Nqn = "nqn.2026-11.io.kurrent".parse().unwrap();
        let (worker, os, tag) = ("w1".parse().unwrap(), "debian".parse().unwrap(), OsTag::from_random([0, 1, 2, 0xab, 0xcd, 0xef]));
        let nqn = disk_nqn(&base, &worker, &os, &tag);
        assert_eq!(nqn.as_str(), "nqn.2026-11.io.kurrent:w1.debian.000102abcdef");
        assert_eq!(disk_iqn(&nqn), "iqn.2026-11.io.kurrent:w1.debian.000102abcdef");
        assert_eq!(disk_file_name(&worker, &os, &tag).as_str(), "w1.debian.000102abcdef.img");
        assert_eq!(host_nqn(&base, &worker, 3).as_str(), "nqn.2026-11.io.kurrent:host.w1.e3");
    }

    #[test]
    fn k22_master_is_named_tpl_in_any_case() {
        for (name, master) in [("debian_tpl_12.img", true), ("Debian_TPL_12.img", true), ("w1.debian.000102abcdef.img", false)] {
            assert_eq!(name.parse::<FileName>().unwrap().is_master(), master);
        }
        assert!("../etc_tpl_".parse::<FileName>().is_err());
    }
}
