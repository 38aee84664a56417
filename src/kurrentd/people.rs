//! Who may use the API: users, their passwords, tokens and sessions. The one writer of `users.yml` and `secrets/logins.yml`.
//!
//! What may be is decided by `core::access::people`; here it is made durable, then true. A token is found by its id, so a request
//! costs no scan. Files that do not read are not taken for empty: then nobody gets in, and the screen says which line is wrong.

mod files;
mod password;
mod restored;

use crate::secrets::{self, Token as FirstRunToken};
use arc_swap::{ArcSwap, ArcSwapOption};
use files::{Failed, Held, Logins};
pub use files::{LOGINS, MAX_BYTES, Octets, USERS};
use kurrent_core::access::lockout::{Attempt, Lockout};
use kurrent_core::access::people::{People, Refused, Standing, Token};
use kurrent_core::access::{Asker, Role};
use kurrent_core::id::UserName;
use kurrent_core::origin::Side;
use kurrent_sys::{clock, store};
use password::{MAX_OCTETS, MIN_CHARS};
pub use password::{NewToken, PREFIX};
pub use restored::{Tokens, after_restore};
use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

/// Each takes memory and a core.
const HASHES_AT_ONCE: usize = 2;
/// For somebody's turn.
const TURN_WITHIN: Duration = Duration::from_secs(10);
const FIRST_RUN: &str = "first-run-token";

/// Takes the place of a password that is not there, so that asking for it takes as long.
static NOBODYS: LazyLock<String> = LazyLock::new(|| password::hash("nobody has this password").unwrap_or_default());

/// Why something was not done.
#[derive(Debug)]
pub enum PeopleError {
    /// It can not be.
    Refused(Refused),
    /// Wrong passwords before: how long to wait.
    LockedOut(Duration),
    /// Too many log in at this moment.
    Busy,
    /// The files do not read.
    Unreadable,
    /// A file was edited while kurrentd ran.
    Edited(PathBuf),
    /// The disk says no; what it concerns did not change.
    NotDurable(String),
}

impl From<Refused> for PeopleError {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

/// Everybody, as of now.
struct Now {
    held: Held,
    /// Whose a token is.
    owners: HashMap<String, UserName>,
}

impl Now {
    fn of(held: Held) -> Self {
        let owners = held.people.iter().flat_map(|u| u.tokens.iter().map(|t| (t.id.clone(), u.name.clone()))).collect();
        Self { held, owners }
    }

    fn admins(&self) -> Vec<String> {
        self.held.people.admins(&self.held.logins.has_password()).map(|u| u.name.to_string()).collect()
    }
}

struct Inner {
    state: PathBuf,
    /// Or `FILE:LINE: what is wrong`.
    now: ArcSwap<Result<Now, String>>,
    /// Held by the one who writes.
    writing: Mutex<()>,
    lockout: Mutex<Lockout>,
    hashing: Arc<Semaphore>,
    first_run: ArcSwapOption<FirstRunToken>,
}

/// The one owner of the files.
#[derive(Clone)]
pub struct PeopleStore(Arc<Inner>);

/// What is asked of a log-in.
pub struct LogIn {
    /// The name, as it was typed.
    pub name: String,
    /// The password.
    pub password: Zeroizing<String>,
    /// Where from.
    pub address: IpAddr,
    /// Which side that is on.
    pub side: Side,
}

/// Who asks for a change. It is judged again when the change is made: what a request takes its time for, its token may not outlive.
pub struct By {
    /// As it was when the request came.
    pub standing: Standing,
    /// What the change takes.
    pub needs: Role,
}

impl By {
    fn still(&self, people: &People) -> Result<Standing, Refused> {
        people.still(&self.standing, self.needs, clock::now().wall)
    }
}

/// A password was right when it was looked at.
struct Proof(String);

impl Proof {
    /// There may be another one by now: every password has a salt of its own.
    fn still(&self, name: &UserName, logins: &Logins) -> Result<(), Refused> {
        if logins.passwords.get(name) == Some(&self.0) { Ok(()) } else { Err(wrong_password()) }
    }
}

impl PeopleStore {
    /// Reads the files. With no admin who could log in there is a first-run token afterwards; with one there is none.
    ///
    /// # Errors
    /// The first-run token can not be made.
    pub fn open(state: &Path) -> anyhow::Result<Self> {
        let now = files::read(state).map(Now::of);
        if let Err(why) = &now {
            tracing::error!("people: {why}");
        }
        let folder = state.join("secrets");
        let first_run = match &now {
            Ok(now) if now.admins().is_empty() => Some(Arc::new(secrets::first_run_token(&folder)?)),
            // One that a crash left behind is worth nothing.
            Ok(_) => {
                store::remove(&folder.join(FIRST_RUN))?;
                None
            }
            Err(_) => None,
        };
        let inner = Inner {
            state: state.to_owned(),
            now: ArcSwap::from_pointee(now),
            writing: Mutex::default(),
            lockout: Mutex::default(),
            hashing: Arc::new(Semaphore::new(HASHES_AT_ONCE)),
            first_run: ArcSwapOption::from(first_run),
        };
        LazyLock::force(&NOBODYS);
        Ok(Self(Arc::new(inner)))
    }

    /// Why nobody gets in, if so.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let what = |why: &String| format!("{why}; nobody can log in until it reads; correct the file and restart kurrentd");
        self.0.now.load().as_ref().as_ref().err().map(what)
    }

    /// What makes the first admin, while there is none.
    #[must_use]
    pub fn first_run(&self) -> Option<Arc<FirstRunToken>> {
        self.0.first_run.load_full()
    }

    /// Everybody now, without a copy; nobody when the files do not read.
    #[must_use]
    pub fn people(&self) -> People {
        self.0.now.load().as_ref().as_ref().map(|now| now.held.people.clone()).unwrap_or_default()
    }

    /// Admins who can log in, by name.
    #[must_use]
    pub fn admins(&self) -> Vec<String> {
        self.0.now.load().as_ref().as_ref().map(Now::admins).unwrap_or_default()
    }

    /// Both files as they are now, of one moment; nothing when they do not read.
    #[must_use]
    pub fn octets(&self) -> Option<Octets> {
        self.0.now.load().as_ref().as_ref().ok().map(|now| now.held.octets.clone())
    }

    /// Whose a token is and what it is worth now.
    ///
    /// # Errors
    /// The files do not read.
    pub fn standing(&self, token: &str) -> Result<Option<Standing>, PeopleError> {
        let now = self.0.now.load();
        let now = now.as_ref().as_ref().map_err(|_| PeopleError::Unreadable)?;
        let found = password::id_of(token).and_then(|id| Some((id, now.owners.get(id)?, now.held.logins.tokens.get(id)?)));
        let found = found.filter(|(_, _, kept)| password::is_of(token, kept));
        Ok(found.and_then(|(id, owner, _)| now.held.people.standing(owner, id, clock::now().wall)))
    }

    /// What somebody who had proven himself is worth now; nothing when the token has ended, or nobody is known.
    #[must_use]
    pub fn standing_now(&self, of: &Standing) -> Option<Standing> {
        let now = self.0.now.load();
        now.as_ref().as_ref().ok()?.held.people.standing(&of.user, &of.id, clock::now().wall)
    }

    /// Logs somebody in.
    ///
    /// # Errors
    /// The password is wrong, or it is not the time to try.
    pub async fn log_in(&self, asked: LogIn) -> Result<(Standing, NewToken), PeopleError> {
        let (name, proof) = self.prove(asked).await?;
        self.change(move |people, logins| {
            proof.still(&name, logins)?;
            let token = NewToken::make();
            let standing = people.add_session(&name, token.id.clone(), clock::now().wall)?;
            logins.tokens.insert(token.id.clone(), token.digest.clone());
            Ok((standing, token))
        })
        .await
    }

    /// Whether it is the password of a user who may log in. An attempt that is not looked at does not count as a wrong one.
    async fn prove(&self, asked: LogIn) -> Result<(UserName, Proof), PeopleError> {
        let LogIn { name, password, address, side } = asked;
        let name = name.parse::<UserName>().ok();
        let kept = {
            let now = self.0.now.load();
            let now = now.as_ref().as_ref().map_err(|_| PeopleError::Unreadable)?;
            let user = name.as_ref().filter(|n| now.held.people.user(n).is_ok_and(|u| !u.disabled));
            user.and_then(|n| now.held.logins.passwords.get(n).cloned())
        };
        // Longer ones are nobody's, and the table is not for texts of strangers.
        let attempt = Attempt { user: name.as_ref().map_or("?", UserName::as_str), address, side };
        let begun = self.lockout().begin(attempt, clock::now().mono).map_err(PeopleError::LockedOut)?;
        let tried = kept.clone().unwrap_or_else(|| NOBODYS.clone());
        let right = match self.hashing(move || password::matches(&password, &tried)).await {
            Ok(right) => right,
            Err(error) => {
                self.lockout().withdrawn(begun);
                return Err(error);
            }
        };
        let (Some(name), Some(kept), true) = (name, kept, right) else { return Err(wrong_password().into()) };
        self.lockout().succeeded(begun);
        Ok((name, Proof(kept)))
    }

    fn lockout(&self) -> MutexGuard<'_, Lockout> {
        self.0.lockout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn hashing<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, PeopleError> {
        let turn = tokio::time::timeout(TURN_WITHIN, Arc::clone(&self.0.hashing).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else { return Err(PeopleError::Busy) };
        // The turn ends with the work, also when the client has gone meanwhile.
        let work = move || (work(), drop(turn)).0;
        tokio::task::spawn_blocking(work).await.map_err(|_| PeopleError::Busy)
    }

    async fn hashed(&self, password: Zeroizing<String>) -> Result<String, PeopleError> {
        if password.chars().count() < MIN_CHARS || password.len() > MAX_OCTETS {
            let what = format!("a password has at least {MIN_CHARS} characters and at most {MAX_OCTETS} octets; choose another one");
            return Err(Refused { status: 422, code: "password_length", detail: what }.into());
        }
        self.hashing(move || password::hash(&password)).await?.ok_or_else(|| PeopleError::NotDurable("no memory to hash a password".into()))
    }

    /// Makes a user. The first one is made with the first-run token, which is worth nothing afterwards: by nobody.
    ///
    /// # Errors
    /// [`PeopleError`]; nothing changed.
    pub async fn create(&self, name: UserName, role: Role, password: Zeroizing<String>, by: Option<By>) -> Result<(), PeopleError> {
        let phc = self.hashed(password).await?;
        let first = by.is_none();
        self.change(move |people, logins| {
            let now = clock::now().wall;
            match by {
                Some(by) => {
                    by.still(people)?;
                    people.add(name.clone(), role, now)?;
                }
                None => people.add_first(name.clone(), role, &logins.has_password(), now)?,
            }
            logins.passwords.insert(name, phc);
            Ok(())
        })
        .await?;
        if first {
            self.0.first_run.store(None);
            if let Err(error) = store::remove(&self.0.state.join("secrets").join(FIRST_RUN)) {
                // It is worth nothing all the same: there is an admin.
                tracing::warn!("the first-run token's file can not be removed: {error}; the next start tries again");
            }
        }
        Ok(())
    }

    /// Gives a user another password and ends all his tokens.
    ///
    /// # Errors
    /// [`PeopleError`].
    pub async fn set_password(&self, name: UserName, new: Zeroizing<String>, by: By) -> Result<(), PeopleError> {
        let phc = self.hashed(new).await?;
        self.change(move |people, logins| {
            by.still(people)?;
            people.end_tokens(&name)?;
            logins.passwords.insert(name, phc);
            Ok(())
        })
        .await
    }

    /// The same for oneself: `old` has to be one's password so far.
    ///
    /// # Errors
    /// [`PeopleError`].
    pub async fn change_password(&self, old: LogIn, new: Zeroizing<String>, by: By) -> Result<(), PeopleError> {
        let (name, proof) = self.prove(old).await?;
        let phc = self.hashed(new).await?;
        self.change(move |people, logins| {
            by.still(people)?;
            proof.still(&name, logins)?;
            people.end_tokens(&name)?;
            logins.passwords.insert(name, phc);
            Ok(())
        })
        .await
    }

    /// Makes a token for `name`.
    ///
    /// # Errors
    /// [`PeopleError`]; nothing changed.
    pub async fn add_token(&self, name: UserName, wanted: Token, by: By) -> Result<(Token, NewToken), PeopleError> {
        self.change(move |people, logins| {
            let by = by.still(people)?;
            let new = NewToken::make();
            let token = Token { id: new.id.clone(), ..wanted };
            people.add_token(&name, token.clone(), &by, clock::now().wall)?;
            logins.tokens.insert(new.id.clone(), new.digest.clone());
            Ok((token, new))
        })
        .await
    }

    /// Makes a token worthless.
    ///
    /// # Errors
    /// [`PeopleError`]; nothing changed.
    pub async fn revoke(&self, name: UserName, id: String, by: By) -> Result<(), PeopleError> {
        self.change(move |people, _| people.revoke(&name, &id, &by.still(people)?)).await
    }

    /// Changes what is given.
    ///
    /// # Errors
    /// [`PeopleError`]; nothing changed.
    pub async fn edit(&self, name: UserName, role: Option<Role>, disabled: Option<bool>, by: By) -> Result<(), PeopleError> {
        self.change(move |people, logins| {
            by.still(people)?;
            people.edit(&name, role, disabled, &logins.has_password())
        })
        .await
    }

    /// Forgets a user, and where he has logged in from.
    ///
    /// # Errors
    /// [`PeopleError`]; nothing changed.
    pub async fn delete(&self, name: UserName, by: By) -> Result<(), PeopleError> {
        let gone = name.clone();
        self.change(move |people, logins| {
            by.still(people)?;
            people.delete(&name, &logins.has_password())
        })
        .await?;
        self.lockout().forget(gone.as_str());
        Ok(())
    }

    /// Decides, makes it durable, then true.
    async fn change<T: Send + 'static>(
        &self,
        decide: impl FnOnce(&mut People, &mut Logins) -> Result<T, Refused> + Send + 'static,
    ) -> Result<T, PeopleError> {
        let inner = Arc::clone(&self.0);
        let work = move || {
            let _writing = inner.writing.lock().unwrap_or_else(PoisonError::into_inner);
            let now = inner.now.load_full();
            let held = &now.as_ref().as_ref().map_err(|_| PeopleError::Unreadable)?.held;
            let (mut people, mut logins) = (held.people.clone(), held.logins.clone());
            let made = decide(&mut people, &mut logins)?;
            let written = files::write(&inner.state, held, people, logins).map_err(|failed| match failed {
                Failed::Edited(path) => PeopleError::Edited(path),
                Failed::NotDurable(why) => PeopleError::NotDurable(why),
            });
            match written {
                Ok(held) => inner.now.store(Arc::new(Ok(Now::of(held)))),
                Err(error) => {
                    // A step of it may be on the disk. What is there is what counts.
                    if matches!(error, PeopleError::NotDurable(_)) {
                        inner.now.store(Arc::new(files::read(&inner.state).map(Now::of)));
                    }
                    return Err(error);
                }
            }
            Ok(made)
        };
        // A task of its own: a client that goes away leaves no half change.
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| Err(PeopleError::NotDurable(e.to_string())))
    }
}

fn wrong_password() -> Refused {
    Refused { status: 401, code: "password_wrong", detail: "the name or the password is wrong; try again".into() }
}

/// What a token's owner is to the table.
#[must_use]
pub fn asker(standing: &Standing) -> Asker<'_> {
    Asker::Person { role: standing.role, only: &standing.only }
}

/// What is wrong with the files, if something is; nothing is written.
#[must_use]
pub fn check(state: &Path) -> Option<String> {
    files::read(state).err()
}

#[cfg(test)]
#[path = "people/tests.rs"]
mod tests;
