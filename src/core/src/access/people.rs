//! Who there is: users and their tokens, and what may be changed of them. No secret is in here: those are kept by token id, and whoever
//! asks says who has a password.

use super::{Role, may_limit_to};
use crate::id::UserName;
use crate::time::Wall;
use imbl::OrdMap;
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Users at most.
pub const MAX_USERS: usize = 1000;
/// Tokens of one user that are no session.
pub const MAX_TOKENS: usize = 48;
/// Sessions of one user; a further one ends the oldest.
pub const MAX_SESSIONS: usize = 16;
/// How long somebody is logged in.
pub const SESSION: SignedDuration = SignedDuration::from_hours(12);
/// The shortest life of a token.
pub const MIN_MINUTES: i64 = 5;
/// The longest: 366 days.
pub const MAX_MINUTES: i64 = 366 * 24 * 60;
/// Octets of a token's note.
const MAX_NOTE: usize = 256;
/// Hex digits of a token's id.
const ID_DIGITS: usize = 12;

/// What a token may do, and how long. The token itself is nowhere but with its holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// 12 hex digits.
    pub id: String,
    /// Made by logging in.
    #[serde(default)]
    pub session: bool,
    /// What a person wrote down.
    #[serde(default)]
    pub note: String,
    /// At most this, and at most what its owner has now.
    pub role: Role,
    /// Tags that it is limited to; empty: all.
    #[serde(default)]
    pub only: Vec<String>,
    /// When.
    pub created_at: Wall,
    /// It is worth nothing from then on.
    pub expires_at: Wall,
}

/// A person, or a program that acts in nobody's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// Unique.
    pub name: UserName,
    /// What the user is trusted with.
    pub role: Role,
    /// Can not log in, and has no token.
    #[serde(default)]
    pub disabled: bool,
    /// When.
    pub created_at: Wall,
    /// The oldest first.
    #[serde(default)]
    pub tokens: Vec<Token>,
}

/// Somebody who has proven himself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Who.
    pub user: UserName,
    /// What the token is worth now.
    pub role: Role,
    /// See [`Token::only`].
    pub only: Vec<String>,
    /// The token's id.
    pub id: String,
    /// See [`Token::session`].
    pub session: bool,
    /// When it ends.
    pub expires_at: Wall,
}

/// Why something can not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// As an HTTP status.
    pub status: u16,
    /// Stable, for programs.
    pub code: &'static str,
    /// What to do.
    pub detail: String,
}

fn refused(status: u16, code: &'static str, detail: impl Into<String>) -> Refused {
    Refused { status, code, detail: detail.into() }
}

/// Everybody. A copy costs nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct People {
    users: OrdMap<UserName, User>,
}

/// Whether a user has a password.
pub type HasPassword<'a> = &'a dyn Fn(&UserName) -> bool;

/// What is wrong with a list of users, and the user or token at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// A word that stands on the line.
    pub at: String,
    /// What, and what to do.
    pub what: String,
}

impl People {
    /// Checks a list that people may have edited.
    ///
    /// # Errors
    /// The first fault.
    pub fn checked(list: Vec<User>) -> Result<Self, Wrong> {
        let wrong = |at: &str, what: String| Err(Wrong { at: at.to_owned(), what });
        let (mut users, mut ids) = (OrdMap::new(), BTreeSet::new());
        for user in list {
            let name = user.name.clone();
            let sessions = user.tokens.iter().filter(|t| t.session).count();
            if sessions > MAX_SESSIONS || user.tokens.len() - sessions > MAX_TOKENS {
                return wrong(
                    name.as_str(),
                    format!("'{name}' has more tokens than {MAX_TOKENS} and {MAX_SESSIONS} sessions; remove some"),
                );
            }
            for token in &user.tokens {
                let id_fine = token.id.len() == ID_DIGITS && token.id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
                if !id_fine || !ids.insert(token.id.clone()) {
                    return wrong(&token.id, format!("the token id '{}' is not {ID_DIGITS} hex digits of its own; remove it", token.id));
                }
                if let Some(tag) = token.only.iter().find(|t| !may_limit_to(t)) {
                    return wrong(&token.id, format!("the token '{}' is limited to '{tag}', which is no such tag; correct it", token.id));
                }
            }
            if users.len() >= MAX_USERS {
                return wrong(name.as_str(), format!("there are more than {MAX_USERS} users; remove some"));
            }
            if users.insert(name.clone(), user).is_some() {
                return wrong(name.as_str(), format!("the user '{name}' is there twice; remove one"));
            }
        }
        Ok(Self { users })
    }

    /// All, by name.
    pub fn iter(&self) -> impl Iterator<Item = &User> {
        self.users.values()
    }

    /// This one.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn user(&self, name: &UserName) -> Result<&User, Refused> {
        self.users.get(name).ok_or_else(|| not_found(name))
    }

    fn user_mut(&mut self, name: &UserName) -> Result<&mut User, Refused> {
        self.users.get_mut(name).ok_or_else(|| not_found(name))
    }

    /// Admins who can log in.
    pub fn admins(&self, has_password: HasPassword<'_>) -> impl Iterator<Item = &User> {
        self.users.values().filter(move |u| u.role == Role::Admin && !u.disabled && has_password(&u.name))
    }

    /// Whether somebody can still decide when this user can not.
    fn without(&self, name: &UserName, has_password: HasPassword<'_>) -> Result<(), Refused> {
        if self.admins(has_password).any(|u| u.name != *name) || !self.admins(has_password).any(|u| u.name == *name) {
            return Ok(());
        }
        Err(refused(409, "last_admin", format!("'{name}' is the last admin who can log in; make another one first")))
    }

    /// A new user without tokens.
    ///
    /// # Errors
    /// The name is taken, or there are too many.
    pub fn add(&mut self, name: UserName, role: Role, now: Wall) -> Result<(), Refused> {
        if self.users.contains_key(&name) {
            return Err(refused(409, "user_exists", format!("there is a user '{name}' already; choose another name, or edit that one")));
        }
        if self.users.len() >= MAX_USERS {
            return Err(refused(409, "too_many_users", format!("there are {MAX_USERS} users; delete one first")));
        }
        self.users.insert(name.clone(), User { name, role, disabled: false, created_at: now, tokens: Vec::new() });
        Ok(())
    }

    /// The first admin, made with the first-run token while none can log in.
    ///
    /// # Errors
    /// There is one already, or as [`People::add`].
    pub fn add_first(&mut self, name: UserName, role: Role, has_password: HasPassword<'_>, now: Wall) -> Result<(), Refused> {
        if self.admins(has_password).next().is_some() {
            return Err(refused(409, "first_admin_exists", "there is an admin already; log in, or ask that one"));
        }
        if role != Role::Admin {
            return Err(refused(422, "first_user_is_admin", "the first user is an admin; say so"));
        }
        self.add(name, role, now)
    }

    /// Changes what is given.
    ///
    /// # Errors
    /// There is no such user, or it is the last admin.
    pub fn edit(
        &mut self,
        name: &UserName,
        role: Option<Role>,
        disabled: Option<bool>,
        has_password: HasPassword<'_>,
    ) -> Result<(), Refused> {
        self.user(name)?;
        if role.is_some_and(|r| r != Role::Admin) || disabled == Some(true) {
            self.without(name, has_password)?;
        }
        let user = self.user_mut(name)?;
        user.role = role.unwrap_or(user.role);
        user.disabled = disabled.unwrap_or(user.disabled);
        if user.disabled {
            user.tokens.clear();
        }
        Ok(())
    }

    /// Forgets a user.
    ///
    /// # Errors
    /// As [`People::edit`].
    pub fn delete(&mut self, name: &UserName, has_password: HasPassword<'_>) -> Result<(), Refused> {
        self.user(name)?;
        self.without(name, has_password)?;
        self.users.remove(name);
        Ok(())
    }

    /// Ends all tokens of a user: the password is another one now.
    ///
    /// # Errors
    /// There is no such user.
    pub fn end_tokens(&mut self, name: &UserName) -> Result<(), Refused> {
        self.user_mut(name)?.tokens.clear();
        Ok(())
    }

    /// A new session. The oldest one goes when there are too many.
    ///
    /// # Errors
    /// The user is gone or disabled.
    pub fn add_session(&mut self, name: &UserName, id: String, now: Wall) -> Result<Standing, Refused> {
        let user = self.user_mut(name)?;
        if user.disabled {
            return Err(refused(401, "password_wrong", "the name or the password is wrong; try again"));
        }
        user.tokens.retain(|t| t.expires_at > now);
        while user.tokens.iter().filter(|t| t.session).count() >= MAX_SESSIONS {
            let oldest = user.tokens.iter().position(|t| t.session).unwrap_or(0);
            user.tokens.remove(oldest);
        }
        let expires_at = now.checked_add(SESSION).unwrap_or(now);
        let token = Token { id, session: true, note: String::new(), role: user.role, only: vec![], created_at: now, expires_at };
        // A role that is raised later holds for who is logged in, one that is lowered as well.
        user.tokens.push(Token { role: Role::Admin, ..token.clone() });
        Ok(standing(user, &token))
    }

    /// A new token for `name`, made by `by`: it can do no more, and nothing for longer, than who makes it.
    ///
    /// # Errors
    /// It asks for too much.
    pub fn add_token(&mut self, name: &UserName, token: Token, by: &Standing, now: Wall) -> Result<(), Refused> {
        let user = self.user_mut(name)?;
        let most = user.role.min(by.role);
        if token.role > most {
            return Err(refused(422, "role_too_high", format!("the token can have the role {most} at most; ask for that")));
        }
        let minutes = token.expires_at.duration_since(now).as_secs().div_euclid(60);
        if !(MIN_MINUTES..=MAX_MINUTES).contains(&minutes) {
            return Err(refused(422, "minutes_out_of_range", format!("a token lives {MIN_MINUTES} to {MAX_MINUTES} minutes; choose that")));
        }
        if !by.session && token.expires_at > by.expires_at {
            let until = by.expires_at;
            return Err(refused(
                422,
                "expires_too_late",
                format!("the token that asks ends at {until}, and this one must not outlive it; log in"),
            ));
        }
        if let Some(tag) = token.only.iter().find(|t| !may_limit_to(t)) {
            let tags = super::limits().join(", ");
            return Err(refused(
                422,
                "tag_unknown",
                format!("'{}' is no tag that a token can be limited to; there are: {tags}", tag.escape_default()),
            ));
        }
        if token.note.len() > MAX_NOTE || token.note.chars().any(char::is_control) {
            return Err(refused(422, "note_invalid", format!("a token's note is one line of at most {MAX_NOTE} octets; shorten it")));
        }
        if user.disabled {
            return Err(refused(409, "user_disabled", format!("'{name}' is disabled; enable the user first")));
        }
        user.tokens.retain(|t| t.expires_at > now);
        if user.tokens.iter().filter(|t| !t.session).count() >= MAX_TOKENS {
            return Err(refused(409, "too_many_tokens", format!("'{name}' has {MAX_TOKENS} tokens; revoke one first")));
        }
        user.tokens.push(token);
        Ok(())
    }

    /// Makes a token worthless. A token may end itself, and others that do no more than it does itself; so who has logged in may end
    /// all of his own.
    ///
    /// # Errors
    /// There is no such user or token, or it does more than the one that asks.
    pub fn revoke(&mut self, name: &UserName, id: &str, by: &Standing) -> Result<(), Refused> {
        let user = self.user_mut(name)?;
        let at = user.tokens.iter().position(|t| t.id == id);
        let at = at.ok_or_else(|| refused(404, "token_not_found", format!("'{name}' has no token of this id; list them")))?;
        let worth = user.tokens.get(at).map_or(user.role, |t| t.role.min(user.role));
        if by.id != id && (by.role < worth || !by.only.is_empty()) {
            let what = format!("this token has the role {worth}, and yours {}; log in, and revoke it then", by.role);
            return Err(refused(403, "role_missing", what));
        }
        user.tokens.remove(at);
        Ok(())
    }

    /// Ends all tokens but those that `keeps` is true for.
    pub fn keep_tokens(&mut self, mut keeps: impl FnMut(&UserName, &Token) -> bool) {
        let kept = |(name, mut user): (UserName, User)| {
            user.tokens.retain(|token| keeps(&name, token));
            (name, user)
        };
        self.users = std::mem::take(&mut self.users).into_iter().map(kept).collect();
    }

    /// What who asked is worth now, if that is still enough: between a request and its change a token may have ended.
    ///
    /// # Errors
    /// It has ended, or is worth less than `needs`.
    pub fn still(&self, asked: &Standing, needs: Role, now: Wall) -> Result<Standing, Refused> {
        let ended = || refused(401, "token_wrong", "this token has ended meanwhile; nothing was done; log in with 'kurrent login'");
        let standing = self.standing(&asked.user, &asked.id, now).ok_or_else(ended)?;
        if standing.role < needs {
            let what = format!("this takes the role {needs}, and yours is {} by now; nothing was done", standing.role);
            return Err(refused(403, "role_missing", what));
        }
        Ok(standing)
    }

    /// What a token is worth now; nothing when it has ended or its user is disabled.
    #[must_use]
    pub fn standing(&self, name: &UserName, id: &str, now: Wall) -> Option<Standing> {
        let user = self.users.get(name).filter(|u| !u.disabled)?;
        let token = user.tokens.iter().find(|t| t.id == id).filter(|t| t.expires_at > now)?;
        Some(standing(user, token))
    }
}

fn not_found(name: &UserName) -> Refused {
    refused(404, "user_not_found", format!("there is no user '{name}'; list them"))
}

fn standing(user: &User, token: &Token) -> Standing {
    Standing {
        user: user.name.clone(),
        role: token.role.min(user.role),
        only: token.only.clone(),
        id: token.id.clone(),
        session: token.session,
        expires_at: token.expires_at,
    }
}
