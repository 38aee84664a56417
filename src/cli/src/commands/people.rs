//! `kurrent login`, `logout`, `whoami`, `user`, `token`. Passwords and tokens are in bodies, headers and files of their own; never
//! in an argument, never shown but where that was asked for.

use crate::arguments::Form;
use crate::arguments::people::{Login, Password, Token, User};
use crate::client::{Client, Place};
use crate::confirm;
use crate::connection::{Connection, Flags, TokenSource, TrustSource, resolve};
use crate::contexts::{Contexts, Entry};
use crate::failure::Failure;
use crate::output::{at, clean, fields, show, text};
use crate::session::{Session, View, body, encoded};
use hyper::Method;
use serde_json::{Value, json};
use std::io::{BufRead, IsTerminal, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Longer is no password, but a file that was named by mistake.
const MAX_OCTETS: u64 = 4096;
const MINUTES_A_DAY: i64 = 24 * 60;

const USERS: View = View {
    key: "users",
    columns: &[
        ("NAME", "name"),
        ("ROLE", "role"),
        ("DISABLED", "disabled"),
        ("TOKENS", "tokens"),
        ("SESSIONS", "sessions"),
        ("CREATED", "created_at"),
    ],
    none: "no users",
};
const TOKENS: View = View {
    key: "tokens",
    columns: &[("ID", "id"), ("SESSION", "session"), ("ROLE", "role"), ("ONLY", "only"), ("EXPIRES", "expires_at"), ("NOTE", "note")],
    none: "no tokens",
};

/// A secret from the first line of a file, or typed unseen; twice for a new one, as nobody sees a slip.
fn secret(file: Option<&Path>, what: &str, option: &str, new: bool) -> Result<String, Failure> {
    let found = match file {
        Some(path) => {
            let failed = |e: std::io::Error| Failure::local(format!("{} can not be read: {e}", path.display()));
            let mut text = String::new();
            std::fs::File::open(path).map_err(failed)?.take(MAX_OCTETS).read_to_string(&mut text).map_err(failed)?;
            text.lines().next().unwrap_or_default().to_owned()
        }
        None => {
            if !std::io::stdin().is_terminal() {
                return Err(Failure::local(format!("there is no terminal to ask for the {what}; give {option} FILE")));
            }
            let prompt = |text: &str| {
                rpassword::prompt_password(text)
                    .map_err(|e| Failure::local(format!("the terminal can not be read: {e}; give {option} FILE")))
            };
            let typed = prompt(&format!("The {what}: "))?;
            if new && prompt("The same again: ")? != typed {
                return Err(Failure::local("the two differ; nothing was done"));
            }
            typed
        }
    };
    if found.is_empty() { Err(Failure::local(format!("the {what} is empty; nothing was done"))) } else { Ok(found) }
}

fn password(wanted: &Password, what: &str, new: bool) -> Result<String, Failure> {
    secret(wanted.password_file.as_deref(), what, "--password-file", new)
}

fn name(wanted: &Login) -> Result<String, Failure> {
    if let Some(user) = &wanted.user {
        return Ok(user.to_string());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::local("say who: --user NAME"));
    }
    let failed = |e: std::io::Error| Failure::local(format!("the terminal can not be read: {e}; say --user NAME"));
    let mut terminal = std::io::stderr();
    write!(terminal, "Name: ").and_then(|()| terminal.flush()).map_err(failed)?;
    let mut typed = String::new();
    std::io::stdin().lock().take(256).read_line(&mut typed).map_err(failed)?;
    Ok(typed.trim().to_owned())
}

/// `kurrent login`: the session's token goes into a file of its own beside the contexts file, and the context names it.
pub async fn login(form: Form, wanted: Login, flags: &Flags, path: &Path) -> Result<(), Failure> {
    let mut contexts = Contexts::read(path)?;
    // A context of this name may be made just now.
    let known = flags.context.clone().filter(|name| contexts.contexts.contains_key(name));
    let mut place = resolve(&Flags { context: known, ..flags.clone() }, |name| std::env::var(name).ok(), &contexts, path)?;
    let context = context_name(flags, &contexts, &place);
    let mut entry = contexts.contexts.get(&context).cloned().unwrap_or_default();
    let parsed = Place::parse(&place.url, &place.url_from)?;
    parsed.may_be_told_a_token(&place.url)?;
    if parsed.tls && (place.trust.is_none() || flags.trust().is_some()) {
        // Before anything secret is asked for: whom it would go to.
        entry.ca = Some(super::context::ca(&context, &place.url, flags, path).await?);
        let home = std::env::var("HOME").ok();
        place.trust = entry.ca_path(path, home.as_deref()).map(TrustSource::File);
    }
    let user = name(&wanted)?;
    let first_run = match wanted.first_run {
        true => Some(secret(
            wanted.first_run_token_file.as_deref(),
            "first-run token on the appliance's screen",
            "--first-run-token-file",
            false,
        )?),
        false => None,
    };
    let password = password(&wanted.password, &format!("password of {user}"), wanted.first_run)?;
    if let Some(token) = first_run {
        let order = json!({ "name": user, "role": "admin", "password": password });
        Client::with(&place, Some(token))?.post("/v1/users", order).await?;
    }
    let order = json!({ "name": user, "password": password });
    let mut answer = Client::with(&place, None)?.post("/v1/login", order).await?;
    let token = answer.as_object_mut().and_then(|a| a.remove("token")).and_then(|t| t.as_str().map(str::to_owned));
    let token = token.ok_or_else(|| Failure::local("the appliance answered no token; is this its API?"))?;
    let file = format!("tokens/{context}");
    keep(&path.with_file_name(&file), &token)?;
    contexts.contexts.insert(context.clone(), Entry { url: place.url.clone(), token_file: Some(file), ..entry });
    if contexts.current.is_none() || flags.context.is_some() {
        contexts.current = Some(context.clone());
    }
    contexts.write(path)?;
    show(form, &answer, |answer| {
        let (name, role, until) = (text(at(answer, "name")), text(at(answer, "role")), text(at(answer, "expires_at")));
        format!("logged in at {} as {name} ({role}) until {until}; context {context}", place.url)
    })
}

/// The one that was named, or that has this address already, or the host's name.
fn context_name(flags: &Flags, contexts: &Contexts, place: &Connection) -> String {
    let same = |(_, entry): &(&String, &Entry)| entry.url.trim_end_matches('/') == place.url.trim_end_matches('/');
    let there = contexts.contexts.iter().find(same).map(|(name, _)| name.clone());
    let host = || place.url.split("//").last().unwrap_or_default().trim_end_matches('/').to_owned();
    let name = flags.context.clone().or(there).unwrap_or_else(host);
    // It is a file's name as well.
    name.chars().map(|c| if c.is_ascii_alphanumeric() || ".-_".contains(c) { c } else { '_' }).collect()
}

/// Replaces the file: a new one beside it, for its user alone, renamed over it.
fn keep(path: &Path, token: &str) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::local(format!("{}: {e}", path.display()));
    if let Some(folder) = path.parent() {
        std::os::unix::fs::DirBuilderExt::mode(std::fs::DirBuilder::new().recursive(true), 0o700).create(folder).map_err(failed)?;
    }
    let new = PathBuf::from(format!("{}.new.{}", path.display(), std::process::id()));
    let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&new).map_err(failed)?;
    let written = file.write_all(format!("{token}\n").as_bytes()).and_then(|()| file.sync_all()).and_then(|()| std::fs::rename(&new, path));
    written.map_err(|e| {
        // What is left of it is no token; the failure itself is told.
        let _ = std::fs::remove_file(&new);
        failed(e)
    })
}

/// `kurrent logout`.
pub async fn logout(session: &Session, place: &Connection, path: &Path) -> Result<(), Failure> {
    session.client.post("/v1/logout", json!({})).await?;
    // Only a file that logging in has made.
    if let Some(TokenSource::File(file)) = &place.token
        && file.parent() == Some(path.with_file_name("tokens").as_path())
    {
        // It is worth nothing, there or not.
        let _ = std::fs::remove_file(file);
    }
    session.show(&json!({ "logged_out": place.url }), |_| format!("logged out at {}", place.url))
}

/// `kurrent whoami`.
pub async fn whoami(session: &Session) -> Result<(), Failure> {
    let answer = session.client.get("/v1/whoami").await?;
    session.show(&answer, fields)
}

/// Carries it out.
pub async fn user(session: &Session, command: User) -> Result<(), Failure> {
    let path = |name: &dyn std::fmt::Display| format!("/v1/users/{name}");
    let answer = match command {
        User::List(listing) => return session.list("/v1/users".into(), USERS, listing).await,
        User::Get { name } => session.client.get(&path(&name)).await?,
        User::Create { name, role, password: wanted } => {
            let password = password(&wanted, &format!("password of {name}"), true)?;
            session.client.post("/v1/users", json!({ "name": name, "role": role.as_str(), "password": password })).await?
        }
        User::Edit { name, changes } => {
            let disabled = (changes.disable || changes.enable).then_some(changes.disable);
            let order = body([("role", changes.role.map(|r| r.as_str().into())), ("disabled", disabled.map(Value::from))]);
            session.client.change(Method::PATCH, &path(&name), Some(order), None).await?
        }
        User::Delete { name, sure } => {
            if confirm::needed(sure) {
                confirm::ask(&format!("Delete the user {name} and all tokens of {name}?"))?;
            }
            session.client.change(Method::DELETE, &path(&name), None, None).await?;
            return session.show(&json!({ "deleted": name }), |_| format!("user {name} is deleted"));
        }
        User::Passwd { name: Some(name), password: wanted, .. } => {
            let order = json!({ "password": password(&wanted, &format!("new password of {name}"), true)? });
            session.client.change(Method::PUT, &format!("{}/password", path(&name)), Some(order), None).await?;
            return session.show(&json!({ "changed": name }), |_| format!("{name} has another password; all tokens of {name} have ended"));
        }
        User::Passwd { name: None, password: wanted, old_password_file } => {
            let old = secret(old_password_file.as_deref(), "password so far", "--old-password-file", false)?;
            let order = json!({ "old_password": old, "new_password": password(&wanted, "new password", true)? });
            session.client.change(Method::PUT, "/v1/whoami/password", Some(order), None).await?;
            return session
                .show(&json!({ "changed": true }), |_| "the password is changed; all your tokens have ended: kurrent login".into());
        }
    };
    session.show(&answer, fields)
}

/// Carries it out.
pub async fn token(session: &Session, command: Token) -> Result<(), Failure> {
    let path = |user: &Option<kurrent_core::id::UserName>| match user {
        Some(user) => format!("/v1/users/{user}/tokens"),
        None => "/v1/tokens".to_owned(),
    };
    match command {
        Token::List { user, listing } => session.list(path(&user), TOKENS, listing).await,
        Token::Create { user, role, only, days, minutes, note, out } => {
            if let Some(out) = out.as_ref().filter(|out| out.exists()) {
                return Err(Failure::local(format!("{} is there already; name a new file, or remove it", out.display())));
            }
            let minutes = minutes.or(days.map(|d| d.saturating_mul(MINUTES_A_DAY)));
            let order = body([
                ("role", role.map(|r| r.as_str().into())),
                ("only", (!only.is_empty()).then(|| only.into())),
                ("minutes", minutes.map(Value::from)),
                ("note", note.map(Value::from)),
            ]);
            let mut answer = session.client.post(&path(&user), order).await?;
            let (id, until) = (text(at(&answer, "id")), text(at(&answer, "expires_at")));
            let Some(out) = out else {
                // The token alone on stdout: it goes into a file or a pipe. It is not kept anywhere else.
                eprintln!("kurrent: token {}, until {}; it is shown this once", clean(&id), clean(&until));
                return session.show(&answer, |answer| text(at(answer, "token")));
            };
            let token = answer.as_object_mut().and_then(|a| a.remove("token")).unwrap_or_default();
            keep(&out, token.as_str().unwrap_or_default())?;
            session.show(&answer, |_| format!("token {} is in {}, until {}", clean(&id), out.display(), clean(&until)))
        }
        Token::Revoke { id, user } => {
            session.client.change(Method::DELETE, &format!("{}/{}", path(&user), encoded(&id)), None, None).await?;
            session.show(&json!({ "revoked": id }), |_| format!("token {} is worth nothing now", clean(&id)))
        }
    }
}
