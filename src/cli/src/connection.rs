//! Which appliance is meant, and where the token for it is: flags before the environment, the environment before contexts.

use crate::contexts::{Contexts, Entry};
use crate::failure::{Failure, Problem};
use crate::trust::{Ca, Fingerprint, Trust};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Where the API is when nobody says anything: on this host.
const DEFAULT_URL: &str = "http://127.0.0.1:8443";
const MAX_TOKEN_OCTETS: u64 = 4096;

/// What the command line says.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// `--url`.
    pub url: Option<String>,
    /// `--token-file`.
    pub token_file: Option<PathBuf>,
    /// `--context`.
    pub context: Option<String>,
    /// `--ca`.
    pub ca: Option<PathBuf>,
    /// `--ca-fingerprint`.
    pub ca_fingerprint: Option<Fingerprint>,
}

/// What is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Where the API is.
    pub url: String,
    /// What said so.
    pub url_from: String,
    /// Where the token is.
    pub token: Option<TokenSource>,
    /// Whose certificates are believed, for https.
    pub trust: Option<TrustSource>,
}

/// Where it stands which CA is trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustSource {
    /// In this file.
    File(PathBuf),
    /// It is the one with this fingerprint.
    Fingerprint(Fingerprint),
}

impl TrustSource {
    /// Reads the file.
    pub fn read(&self) -> Result<Trust, Failure> {
        match self {
            Self::File(path) => Ca::read(path).map(Trust::Ca),
            Self::Fingerprint(fingerprint) => Ok(Trust::Fingerprint(*fingerprint)),
        }
    }
}

impl Flags {
    /// What the command line says of the CA.
    pub fn trust(&self) -> Option<TrustSource> {
        let file = self.ca.clone().map(TrustSource::File);
        file.or_else(|| self.ca_fingerprint.map(TrustSource::Fingerprint))
    }
}

/// Where a token is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// In this file.
    File(PathBuf),
    /// In `KURRENT_TOKEN`.
    Variable,
}

/// Decides. `variable` reads the environment; an empty variable is one that is not set.
pub fn resolve(
    flags: &Flags,
    variable: impl Fn(&str) -> Option<String>,
    contexts: &Contexts,
    contexts_path: &Path,
) -> Result<Connection, Failure> {
    let variable = |name: &str| variable(name).filter(|v| !v.trim().is_empty());
    let asked = |name: &String| contexts.entry(name).map(|entry| (name.clone(), entry));
    let flag_context = flags.context.as_ref().map(asked).transpose()?;
    let context = match &flag_context {
        Some(found) => Some(found.clone()),
        None => variable("KURRENT_CONTEXT").or_else(|| contexts.current.clone()).as_ref().map(asked).transpose()?,
    };
    let of_context = |(name, entry): &(String, &Entry)| (entry.url.clone(), format!("context {name}"));
    let said = flags.url.clone().map(|url| (url, "--url".to_owned()));
    let said = said.or_else(|| flag_context.as_ref().map(of_context));
    let said = said.or_else(|| variable("KURRENT_URL").map(|url| (url, "KURRENT_URL".to_owned())));
    let said = said.or_else(|| context.as_ref().map(of_context));
    let (url, url_from) = said.unwrap_or_else(|| (DEFAULT_URL.to_owned(), "default".to_owned()));

    // A context's token is for its own appliance: nobody gets it who was only named by --url.
    let same = |(_, entry): &&(String, &Entry)| entry.url.trim_end_matches('/') == url.trim_end_matches('/');
    let home = variable("HOME");
    let token_of = |(_, entry): &(String, &Entry)| entry.token_path(contexts_path, home.as_deref()).map(TokenSource::File);
    let token = flags.token_file.clone().map(TokenSource::File);
    let token = token.or_else(|| flag_context.as_ref().filter(same).and_then(token_of));
    let token = token.or_else(|| variable("KURRENT_TOKEN_FILE").map(|path| TokenSource::File(path.into())));
    let token = token.or_else(|| variable("KURRENT_TOKEN").map(|_| TokenSource::Variable));
    let token = token.or_else(|| context.as_ref().filter(same).and_then(token_of));

    let ca_of = |(_, entry): &(String, &Entry)| entry.ca_path(contexts_path, home.as_deref()).map(TrustSource::File);
    let trust = flags.trust().or_else(|| flag_context.as_ref().filter(same).and_then(ca_of));
    let trust = trust.or_else(|| variable("KURRENT_CA_FILE").map(|path| TrustSource::File(path.into())));
    let trust = match (trust, variable("KURRENT_CA_FINGERPRINT")) {
        (None, Some(text)) => {
            let wrong = |what| Failure::local(format!("KURRENT_CA_FINGERPRINT: {what}"));
            Some(TrustSource::Fingerprint(crate::trust::fingerprint(&text).map_err(wrong)?))
        }
        (trust, _) => trust,
    };
    let trust = trust.or_else(|| context.as_ref().filter(same).and_then(ca_of));
    Ok(Connection { url, url_from, token, trust })
}

impl Connection {
    /// Reads the token.
    pub fn token(&self) -> Result<String, Failure> {
        match &self.token {
            Some(TokenSource::File(path)) => {
                let failed = |e: std::io::Error| Failure::local(format!("the token file {} can not be read: {e}", path.display()));
                let file = std::fs::File::open(path).map_err(failed)?;
                if file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o077 != 0) {
                    eprintln!("kurrent: other users can read the token file {0}; chmod 600 {0}", path.display());
                }
                let mut text = String::new();
                file.take(MAX_TOKEN_OCTETS).read_to_string(&mut text).map_err(failed)?;
                Ok(text.trim().to_owned())
            }
            Some(TokenSource::Variable) => Ok(std::env::var("KURRENT_TOKEN").unwrap_or_default().trim().to_owned()),
            None => Err(Failure::Refused(Problem::new(
                401,
                "token_missing",
                "no token: give --token-file FILE, set KURRENT_TOKEN_FILE or KURRENT_TOKEN, or name a context; the appliance's console shows it",
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contexts() -> Contexts {
        let text = "current: lab\ncontexts:\n  lab: {url: http://lab, token_file: /lab}\n  home: {url: http://home, token_file: /home}\n  bare: {url: http://bare}\n";
        Contexts::parse(text, Path::new("/c")).unwrap()
    }

    /// `flags` as url, token file, context.
    fn resolved(flags: [&str; 3], environment: &[(&str, &str)]) -> String {
        let set = |text: &str| Some(text.to_owned()).filter(|t| !t.is_empty());
        let [url, token_file, context] = flags;
        let flags = Flags { url: set(url), token_file: set(token_file).map(PathBuf::from), context: set(context), ..Flags::default() };
        let variable = |name: &str| environment.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        match resolve(&flags, variable, &contexts(), Path::new("/c")) {
            Err(failure) => failure.to_string(),
            Ok(Connection { url, token: Some(TokenSource::File(path)), .. }) => format!("{url} {}", path.display()),
            Ok(Connection { url, token, .. }) => format!("{url} {token:?}"),
        }
    }

    #[test]
    fn flags_come_before_the_environment_and_that_before_contexts() {
        let url = ("KURRENT_URL", "http://env");
        let (file, token) = (("KURRENT_TOKEN_FILE", "/env"), ("KURRENT_TOKEN", "t"));
        let context = ("KURRENT_CONTEXT", "home");
        for (flags, environment, expected) in [
            (["", "", ""], vec![], "http://lab /lab"),
            (["", "", ""], vec![context], "http://home /home"),
            (["", "", "lab"], vec![context], "http://lab /lab"),
            (["", "", "home"], vec![url, file, token], "http://home /home"),
            (["", "", "bare"], vec![url, file], "http://bare /env"),
            (["", "", ""], vec![url, file, token, context], "http://env /env"),
            (["", "", ""], vec![url, token], "http://env Some(Variable)"),
            (["http://flag", "", ""], vec![url, file], "http://flag /env"),
            (["http://flag", "/flag", "home"], vec![url, file], "http://flag /flag"),
            (["", "/flag", ""], vec![], "http://lab /flag"),
            (["", "", ""], vec![("KURRENT_URL", ""), ("KURRENT_TOKEN", " ")], "http://lab /lab"),
        ] {
            assert_eq!(resolved(flags, &environment), expected, "{flags:?} {environment:?}");
        }
        assert!(resolved(["", "", "nowhere"], &[]).contains("there are: bare, home, lab"));
    }

    #[test]
    fn the_token_of_a_context_goes_to_its_own_appliance_only() {
        assert_eq!(resolved(["http://elsewhere", "", ""], &[]), "http://elsewhere None");
        assert_eq!(resolved(["http://elsewhere", "", "lab"], &[]), "http://elsewhere None");
        assert_eq!(resolved(["", "", ""], &[("KURRENT_URL", "http://elsewhere")]), "http://elsewhere None");
        assert_eq!(resolved(["http://lab/", "", ""], &[]), "http://lab/ /lab");
    }

    #[test]
    fn the_ca_of_a_context_is_believed_for_its_own_appliance_only() {
        let text = "current: lab\ncontexts:\n  lab: {url: https://lab, ca: /lab}\n  home: {url: https://home, ca: /home}\n";
        let contexts = Contexts::parse(text, Path::new("/c")).unwrap();
        let (one, other) = ("11".repeat(32), [0x22; 32]);
        let trusted = |flags: Flags, environment: &[(&str, &str)]| {
            let variable = |name: &str| environment.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
            resolve(&flags, variable, &contexts, Path::new("/c")).unwrap().trust
        };
        let file = |path: &str| Some(TrustSource::File(path.into()));
        let (fingerprint, of) =
            (("KURRENT_CA_FINGERPRINT", one.as_str()), |name: &str| Flags { context: Some(name.into()), ..Flags::default() });
        assert_eq!(trusted(Flags::default(), &[]), file("/lab"));
        assert_eq!(trusted(of("home"), &[fingerprint]), file("/home"));
        assert_eq!(trusted(Flags::default(), &[fingerprint]), Some(TrustSource::Fingerprint([0x11; 32])));
        assert_eq!(trusted(Flags::default(), &[fingerprint, ("KURRENT_CA_FILE", "/env")]), file("/env"));
        assert_eq!(trusted(Flags { ca_fingerprint: Some(other), ..of("lab") }, &[fingerprint]), Some(TrustSource::Fingerprint(other)));
        assert_eq!(trusted(Flags { url: Some("https://elsewhere".into()), ..Flags::default() }, &[]), None);
        assert_eq!(trusted(Flags::default(), &[("KURRENT_URL", "https://elsewhere")]), None);
    }
}
