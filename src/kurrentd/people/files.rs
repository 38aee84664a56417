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
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
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

    /// For what asks who has a password.
    pub fn has_password(&self) -> impl Fn(&UserName) -> bool + '_ {
        |name| self.passwords.contains_key(name)
    }

    /// These, and what only `other` has.
    fn with_more_of(&self, other: &Self) -> Self {
        let mut all = other.clone();
        all.passwords.extend(self.passwords.iter().map(|(k, v)| (k.clone(), v.clone())));
        all.tokens.extend(self.tokens.iter().map(|(k, v)| (k.clone(), v.clone())));
        all
    }
}

/// Both files, as they were read or written; nothing where there is none.
#[derive(Clone, Default)]
pub struct Octets {
    /// `users.yml`.
    pub users: Option<Arc<Vec<u8>>>,
    /// `secrets/logins.yml`.
    pub logins: Option<Arc<Zeroizing<Vec<u8>>>>,
}

impl Octets {
    /// Reads both, whatever is in them.
    ///
    /// # Errors
    /// The path, and why it does not read.
    pub fn read(state: &Path) -> Result<Self, (PathBuf, io::Error)> {
        let read = |name: &str| {
            let path = state.join(name);
            store::read(&path, MAX_BYTES).map_err(|e| (path, e))
        };
        Ok(Self { users: read(USERS)?.map(Arc::new), logins: read(LOGINS)?.map(|octets| Arc::new(Zeroizing::new(octets))) })
    }
}

/// What both files say.
pub struct Held {
    /// Who.
    pub people: People,
    /// What proves them.
    pub logins: Logins,
    /// The files themselves.
    pub octets: Octets,
}

/// Reads both. Only files that are *missing* begin empty.
///
/// # Errors
/// `FILE:LINE: what; what to do`.
pub fn read(state: &Path) -> Result<Held, String> {
    let octets = Octets::read(state).map_err(|(path, e)| format!("{}: {e}; check the file and the disk", path.display()))?;
    let people = match &octets.users {
        None => People::default(),
        Some(octets) => users(octets).map_err(|fault| located(&state.join(USERS), &fault))?,
    };
    let logins = match &octets.logins {
        None => Logins::default(),
        Some(octets) => logins(octets).map_err(|fault| located(&state.join(LOGINS), &fault))?,
    };
    Ok(Held { people, logins, octets })
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
    // The place stays the same, and is wiped as octets.
    crate::secrets::to_yaml(what).map(|mut text| Zeroizing::new(std::mem::take(&mut *text).into_bytes())).map_err(|e| e.to_string())
}

/// Makes `next` of what is `held`, durably.
///
/// # Errors
/// Somebody edited a file meanwhile, or the disk says no.
pub fn write(state: &Path, held: &Held, people: People, mut logins: Logins) -> Result<Held, Failed> {
    let (users_path, logins_path) = (state.join(USERS), state.join(LOGINS));
    let now = Octets::read(state).map_err(|(_, e)| Failed::NotDurable(e.to_string()))?;
    let mut octets = held.octets.clone();
    if now.users != octets.users {
        return Err(Failed::Edited(users_path));
    }
    if now.logins != octets.logins {
        return Err(Failed::Edited(logins_path));
    }
    logins.keep(&people);
    let failed = |e: store::ReplaceError| Failed::NotDurable(e.to_string());
    let write_logins = |logins: &Logins| -> Result<Arc<Zeroizing<Vec<u8>>>, Failed> {
        let file = LoginsFile { version: VERSION, passwords: logins.passwords.clone(), tokens: logins.tokens.clone() };
        let octets = encoded(&file).map_err(Failed::NotDurable)?;
        store::replace(&logins_path, &octets, MODE).map_err(failed)?;
        Ok(Arc::new(octets))
    };
    // What is replaced counts only after the tokens of the old one are gone.
    let first = held.logins.with_more_of(&logins);
    if first != held.logins {
        octets.logins = Some(write_logins(&first)?);
    }
    if people != held.people || octets.users.is_none() {
        let file = UsersFile { version: VERSION, users: people.iter().cloned().collect() };
        let written = encoded(&file).map_err(Failed::NotDurable)?;
        store::replace(&users_path, &written, MODE).map_err(failed)?;
        octets.users = Some(Arc::new(written.to_vec()));
    }
    if first != logins {
        octets.logins = Some(write_logins(&logins)?);
    }
    Ok(Held { people, logins, octets })
}

/// Why nothing was promised.
#[derive(Debug)]
pub enum Failed {
    /// A file is not what was read from it.
    Edited(PathBuf),
    /// The disk says no.
    NotDurable(String),
}
