//! `users.yml` for people to read, `secrets/logins.yml` for nobody: passwords as Argon2id strings, tokens as SHA-256.
//!
//! A change writes first what new users and tokens need to be of use, then `users.yml`, which makes it count, then what nobody needs
//! any more goes. Power may fail between: a login without a user or a token without an owner is worth nothing.

use super::password;
use crate::yaml::{self, Fault, located};
use kurrent_core::access::people::{People, User};
use kurrent_core::id::UserName;
use kurrent_sys::store;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// In the state folder.
pub const USERS: &str = "users.yml";
/// In the state folder.
pub const LOGINS: &str = "secrets/logins.yml";
/// A thousand users with all their tokens are about 16 MB.
pub const MAX_BYTES: u64 = 32 << 20;
const MAX_NODES: usize = 2_000_000;
const VERSION: u32 = 1;
const MODE: u32 = 0o600;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct UsersFile {
    version: u32,
    users: Vec<User>,
}

/// What proves somebody. No `Debug`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Logins {
    /// Of users, as PHC strings.
    pub passwords: BTreeMap<UserName, String>,
    /// SHA-256 of tokens in hex, by id.
    pub tokens: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoginsFile {
    version: u32,
    passwords: BTreeMap<UserName, String>,
    tokens: BTreeMap<String, String>,
}

impl Logins {
    /// Without those of nobody.
    pub fn keep(&mut self, people: &People) {
        self.passwords.retain(|name, _| people.user(name).is_ok());
        let ids: std::collections::BTreeSet<&str> = people.iter().flat_map(|u| u.tokens.iter().map(|t| t.id.as_str())).collect();
        self.tokens.retain(|id, _| ids.contains(id.as_str()));
    }

    /// These, and what only `other` has.
    fn with_more_of(&self, other: &Self) -> Self {
        let mut all = other.clone();
        all.passwords.extend(self.passwords.iter().map(|(k, v)| (k.clone(), v.clone())));
        all.tokens.extend(self.tokens.iter().map(|(k, v)| (k.clone(), v.clone())));
        all
    }
}

/// Both files, and the octets that they had.
pub struct Held {
    /// Who.
    pub people: People,
    /// What proves them.
    pub logins: Logins,
    /// `users.yml` as it was read or written; nothing when there is none.
    pub users_octets: Option<Vec<u8>>,
    /// The same of the other one.
    pub logins_octets: Option<Zeroizing<Vec<u8>>>,
}

/// Reads both. Only files that are *missing* begin empty.
///
/// # Errors
/// `FILE:LINE: what; what to do`.
pub fn read(state: &Path) -> Result<Held, String> {
    let (users_path, logins_path) = (state.join(USERS), state.join(LOGINS));
    let octets = |path: &PathBuf| store::read(path, MAX_BYTES).map_err(|e| format!("{}: {e}; check the file and the disk", path.display()));
    let users_octets = octets(&users_path)?;
    let logins_octets = octets(&logins_path)?.map(Zeroizing::new);
    let people = match &users_octets {
        None => People::default(),
        Some(octets) => users(octets).map_err(|fault| located(&users_path, &fault))?,
    };
    let logins = match &logins_octets {
        None => Logins::default(),
        Some(octets) => logins(octets).map_err(|fault| located(&logins_path, &fault))?,
    };
    Ok(Held { people, logins, users_octets, logins_octets })
}

fn version(found: u32) -> Result<(), Fault> {
    if found == VERSION {
        return Ok(());
    }
    Err(Fault { line: 0, what: format!("it has version {found}, this program knows {VERSION}; use the kurrentd that wrote it") })
}

fn users(octets: &[u8]) -> Result<People, Fault> {
    let file: UsersFile = yaml::parse(octets, MAX_NODES)?;
    version(file.version)?;
    People::checked(file.users).map_err(|wrong| {
        let text = String::from_utf8_lossy(octets);
        // The last one: of two equal ones the second is at fault.
        let at = text.lines().enumerate().filter(|(_, l)| l.split([' ', ':', '"', '\'']).any(|w| w == wrong.at)).last();
        Fault { line: at.and_then(|(n, _)| u64::try_from(n).ok()).map_or(0, |n| n.saturating_add(1)), what: wrong.what }
    })
}

fn logins(octets: &[u8]) -> Result<Logins, Fault> {
    let file: LoginsFile = yaml::parse(octets, MAX_NODES)?;
    version(file.version)?;
    let unusable = file.passwords.iter().find(|(_, phc)| !password::is_usable(phc));
    if let Some((name, _)) = unusable {
        let what = format!("the password of '{name}' is no Argon2id string; remove the line, and an admin gives a new password");
        return Err(Fault { line: 0, what });
    }
    Ok(Logins { passwords: file.passwords, tokens: file.tokens })
}

fn encoded(what: &impl Serialize) -> Result<Zeroizing<Vec<u8>>, String> {
    serde_saphyr::to_string(what).map(|text| Zeroizing::new(text.into_bytes())).map_err(|e| e.to_string())
}

/// Makes `next` of what is `held`, durably.
///
/// # Errors
/// Somebody edited a file meanwhile, or the disk says no.
pub fn write(state: &Path, held: &Held, people: People, mut logins: Logins) -> Result<Held, Failed> {
    let (users_path, logins_path) = (state.join(USERS), state.join(LOGINS));
    for (path, known) in [(&users_path, held.users_octets.as_deref()), (&logins_path, held.logins_octets.as_ref().map(|o| o.as_slice()))] {
        let now = store::read(path, MAX_BYTES).map(|o| o.map(Zeroizing::new)).map_err(|e| Failed::NotDurable(e.to_string()))?;
        if now.as_ref().map(|o| o.as_slice()) != known {
            return Err(Failed::Edited(path.clone()));
        }
    }
    logins.keep(&people);
    let failed = |e: store::ReplaceError| Failed::NotDurable(e.to_string());
    let write_logins = |logins: &Logins| -> Result<Zeroizing<Vec<u8>>, Failed> {
        let file = LoginsFile { version: VERSION, passwords: logins.passwords.clone(), tokens: logins.tokens.clone() };
        let octets = encoded(&file).map_err(Failed::NotDurable)?;
        store::replace(&logins_path, &octets, MODE).map_err(failed)?;
        Ok(octets)
    };
    // What is replaced counts only after the tokens of the old one are gone.
    let first = held.logins.with_more_of(&logins);
    let mut logins_octets = held.logins_octets.clone();
    if first != held.logins {
        logins_octets = Some(write_logins(&first)?);
    }
    let mut users_octets = held.users_octets.clone();
    if people != held.people || users_octets.is_none() {
        let file = UsersFile { version: VERSION, users: people.iter().cloned().collect() };
        let octets = encoded(&file).map_err(Failed::NotDurable)?;
        store::replace(&users_path, &octets, MODE).map_err(failed)?;
        users_octets = Some(octets.to_vec());
    }
    if first != logins {
        logins_octets = Some(write_logins(&logins)?);
    }
    Ok(Held { people, logins, users_octets, logins_octets })
}

/// Why nothing was promised.
#[derive(Debug)]
pub enum Failed {
    /// A file is not what was read from it.
    Edited(PathBuf),
    /// The disk says no.
    NotDurable(String),
}
