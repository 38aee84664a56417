//! `kurrent context`: files on this side only.

use crate::arguments::Form;
use crate::arguments::context::Context;
use crate::client::Place;
use crate::connection::{Flags, TokenSource, TrustSource, resolve};
use crate::contexts::{Contexts, Entry};
use crate::failure::Failure;
use crate::output::{Column, fields, show, table};
use crate::trust::{self, Ca};
use serde_json::json;
use std::path::Path;

const CONTEXTS: &[Column] = &[("CURRENT", "current"), ("NAME", "name"), ("URL", "url"), ("TOKEN FILE", "token_file"), ("CA", "ca")];

/// Carries it out.
pub async fn run(form: Form, command: Context, flags: &Flags, path: &Path) -> Result<(), Failure> {
    let mut contexts = Contexts::read(path)?;
    let said = match command {
        Context::List => {
            let item = |(name, entry): (&String, &Entry)| {
                let current = if contexts.current.as_ref() == Some(name) { "*" } else { "" };
                json!({ "current": current, "name": name, "url": entry.url, "token_file": entry.token_file, "ca": entry.ca })
            };
            let list = json!({ "contexts": contexts.contexts.iter().map(item).collect::<Vec<_>>() });
            return show(form, &list, |list| table(list, "contexts", CONTEXTS, "no contexts; kurrent context add NAME --url URL"));
        }
        Context::Show => {
            let connection = resolve(flags, |name| std::env::var(name).ok(), &contexts, path)?;
            let token = match &connection.token {
                Some(TokenSource::File(path)) => path.display().to_string(),
                Some(TokenSource::Variable) => "KURRENT_TOKEN".to_owned(),
                None => "none".to_owned(),
            };
            let ca = match &connection.trust {
                Some(TrustSource::File(path)) => path.display().to_string(),
                Some(TrustSource::Fingerprint(_)) => "a fingerprint".to_owned(),
                None => "none".to_owned(),
            };
            let shown = json!({ "url": connection.url, "url_from": connection.url_from, "token_from": token, "ca_from": ca });
            return show(form, &shown, fields);
        }
        Context::Add { name } => {
            let url = flags.url.clone().ok_or_else(|| Failure::local("say where it is: --url https://ADDRESS:8443"))?;
            let place = Place::parse(&url, "--url")?;
            place.may_be_told_a_token(&url)?;
            let ca = if place.tls { Some(ca(&name, &url, flags, path).await?) } else { None };
            let token_file = flags.token_file.as_ref().map(|file| absolute(file)).transpose()?;
            contexts.contexts.insert(name.clone(), Entry { url, token_file, ca });
            contexts.current.get_or_insert_with(|| name.clone());
            format!("context {name} is in {}", path.display())
        }
        Context::Use { name } => {
            contexts.entry(&name)?;
            contexts.current = Some(name.clone());
            format!("{name} is the current context")
        }
        Context::Remove { name } => {
            contexts.entry(&name)?;
            contexts.contexts.remove(&name);
            contexts.current = contexts.current.filter(|current| *current != name);
            format!("context {name} is forgotten")
        }
    };
    contexts.write(path)?;
    show(form, &json!({ "current": contexts.current, "contexts": contexts.contexts }), |_| said)
}

/// The file of the CA that is to be trusted.
pub(super) async fn ca(name: &str, url: &str, flags: &Flags, contexts: &Path) -> Result<String, Failure> {
    match flags.trust() {
        Some(TrustSource::File(file)) => Ca::read(&file).and_then(|_| absolute(&file)),
        Some(TrustSource::Fingerprint(fingerprint)) => trust::fetch(url, Some(fingerprint)).await?.keep(contexts, name),
        None => trust::first_contact(url).await?.keep(contexts, name),
    }
}

/// The shell has replaced `~` already, and the file is read from other folders than this one.
fn absolute(file: &Path) -> Result<String, Failure> {
    if file.starts_with("~") {
        return Ok(file.display().to_string());
    }
    let path = std::path::absolute(file).map_err(|e| Failure::local(format!("{}: {e}", file.display())))?;
    path.into_os_string().into_string().map_err(|p| Failure::local(format!("the path {} is not UTF-8", p.display())))
}
