//! The contexts file: which appliances this user works with. It says where tokens are and never holds one.

use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Thousands of contexts; more is no contexts file.
const MAX_OCTETS: u64 = 1024 * 1024;

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contexts {
    /// The one that is meant when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// All of them.
    #[serde(default)]
    pub contexts: BTreeMap<String, Entry>,
}

/// One appliance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Where its API is.
    pub url: String,
    /// File that holds the token; `~/` is the user's home, a relative path begins at the contexts file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<String>,
    /// File with the CA's certificate, found like `token_file`; for https.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
}

/// `$XDG_CONFIG_HOME/kurrent/contexts.yaml`, or `None` when there is neither that nor a home.
pub fn place(variable: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    // The XDG base directory specification: a relative path is not valid and is ignored.
    let config = variable("XDG_CONFIG_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
    let config = config.or_else(|| variable("HOME").map(|home| Path::new(&home).join(".config")));
    config.map(|config| config.join("kurrent/contexts.yaml"))
}

impl Contexts {
    /// Reads the file; an absent one holds no contexts.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let failed = |e: std::io::Error| Failure::local(format!("{}: {e}", path.display()));
        let file = match std::fs::File::open(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            other => other.map_err(failed)?,
        };
        let mode = file.metadata().map_err(failed)?.permissions().mode();
        if mode & 0o077 != 0 {
            // Whoever writes it decides where tokens are sent.
            let what = format!("{0}: other users can read or write it (mode {1:o}); chmod 600 {0}", path.display(), mode & 0o777);
            return Err(Failure::local(what));
        }
        let mut text = String::new();
        file.take(MAX_OCTETS).read_to_string(&mut text).map_err(failed)?;
        Self::parse(&text, path)
    }

    /// Reads the text of the file; a fault has its line.
    pub fn parse(text: &str, path: &Path) -> Result<Self, Failure> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let options = serde_saphyr::options! {
            with_snippet: false,
            duplicate_keys: serde_saphyr::DuplicateKeyPolicy::Error,
        };
        let contexts: Self = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let error = error.without_snippet();
            let line = error.location().map(|l| format!("{}:", l.line())).unwrap_or_default();
            let what = match error {
                serde_saphyr::Error::SerdeUnknownField { field, .. } if field == "token" => {
                    "a token does not stand in this file, which is copied and shown too easily; write it into a file of its own, mode 600, \
                     and name that as token_file"
                        .to_owned()
                }
                serde_saphyr::Error::SerdeUnknownField { field, expected, .. } => {
                    format!("the key '{field}' is not known; valid here: {}", expected.join(", "))
                }
                serde_saphyr::Error::SerdeMissingField { field, .. } => format!("the key '{field}' is missing; add it"),
                other => other.to_string().lines().next().unwrap_or_default().split(" at line ").next().unwrap_or_default().to_owned(),
            };
            Failure::local(format!("{}:{line} {what}", path.display()))
        })?;
        match &contexts.current {
            Some(current) if !contexts.contexts.contains_key(current) => {
                let line = text.lines().position(|l| l.starts_with("current")).map(|l| format!("{}:", l + 1)).unwrap_or_default();
                let what = format!("the current context '{current}' is not in this file; kurrent context use NAME");
                Err(Failure::local(format!("{}:{line} {what}", path.display())))
            }
            _ => Ok(contexts),
        }
    }

    /// Replaces the file: a new one beside it, renamed over it, so that a full disk loses nothing.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let failed = |e: std::io::Error| Failure::local(format!("{}: {e}", path.display()));
        let text = serde_saphyr::to_string(self).map_err(|e| Failure::local(format!("{}: {e}", path.display())))?;
        if let Some(folder) = path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        }
        let new = path.with_extension(format!("new.{}", std::process::id()));
        let mut file = std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&new).map_err(failed)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        std::fs::rename(&new, path).map_err(failed)
    }

    /// The context of this name.
    pub fn entry(&self, name: &str) -> Result<&Entry, Failure> {
        self.contexts.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "there is none yet".to_owned() } else { format!("there are: {}", known.join(", ")) };
            Failure::local(format!("there is no context '{name}'; {known}; kurrent context add NAME --url URL --token-file FILE"))
        })
    }
}

impl Entry {
    /// Where the token is.
    pub fn token_path(&self, contexts: &Path, home: Option<&str>) -> Option<PathBuf> {
        self.token_file.as_deref().map(|written| found(written, contexts, home))
    }

    /// Where the CA's certificate is.
    pub fn ca_path(&self, contexts: &Path, home: Option<&str>) -> Option<PathBuf> {
        self.ca.as_deref().map(|written| found(written, contexts, home))
    }
}

fn found(written: &str, contexts: &Path, home: Option<&str>) -> PathBuf {
    match (written.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => Path::new(home).join(rest),
        _ => contexts.parent().unwrap_or(Path::new("")).join(written),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Contexts::parse(text, Path::new("/c.yaml")).unwrap_err().to_string()
    }

    #[test]
    fn a_fault_in_the_contexts_file_is_named_with_its_line() {
        let good = "current: lab\ncontexts:\n  lab:\n    url: http://10.0.0.1:8443\n    token_file: t\n";
        assert_eq!(Contexts::parse(good, Path::new("/c.yaml")).unwrap().contexts.len(), 1);
        assert_eq!(Contexts::parse("", Path::new("/c.yaml")).unwrap(), Contexts::default());
        for (text, expected) in [
            (good.replace("token_file: t", "token: SECRET"), "/c.yaml:5: a token does not stand in this file"),
            (good.replace("token_file", "tokenfile"), "/c.yaml:5: the key 'tokenfile' is not known; valid here: url, token_file, ca"),
            (good.replace("    url: http://10.0.0.1:8443\n", ""), "the key 'url' is missing"),
            (good.replace("current: lab", "current: home"), "/c.yaml:1: the current context 'home' is not in this file"),
            (good.replace("  lab:", "  lab: ["), "/c.yaml:"),
        ] {
            let found = refused(&text);
            assert!(found.contains(expected), "{found}");
            assert!(!found.contains("SECRET"), "{found}");
        }
    }

    #[test]
    fn the_file_is_written_whole_for_its_user_alone_and_read_no_other_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kurrent/contexts.yaml");
        assert_eq!(Contexts::read(&path).unwrap(), Contexts::default());
        let entry = Entry { url: "http://h:8443".into(), token_file: Some("~/t".into()), ca: Some("ca-a.crt".into()) };
        let written = Contexts { current: Some("a".into()), contexts: [("a".to_owned(), entry)].into() };
        written.write(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Contexts::read(&path).unwrap(), written);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(Contexts::read(&path).unwrap_err().to_string().contains("chmod 600"));
    }

    #[test]
    fn token_files_are_found_from_home_and_from_the_contexts_file() {
        let entry = |t: &str| Entry { url: String::new(), token_file: Some(t.into()), ca: Some(t.into()) };
        let contexts = Path::new("/h/.config/kurrent/contexts.yaml");
        for (written, expected) in [("~/t", "/h/t"), ("/a/t", "/a/t"), ("t", "/h/.config/kurrent/t")] {
            assert_eq!(entry(written).token_path(contexts, Some("/h")), Some(PathBuf::from(expected)));
            assert_eq!(entry(written).ca_path(contexts, Some("/h")), Some(PathBuf::from(expected)));
        }
    }

    #[test]
    fn the_file_is_where_the_xdg_specification_says() {
        let place_of = |variables: &[(&str, &str)]| {
            place(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())).map(|p| p.display().to_string())
        };
        assert_eq!(place_of(&[("XDG_CONFIG_HOME", "/x"), ("HOME", "/h")]).as_deref(), Some("/x/kurrent/contexts.yaml"));
        assert_eq!(place_of(&[("XDG_CONFIG_HOME", "x"), ("HOME", "/h")]).as_deref(), Some("/h/.config/kurrent/contexts.yaml"));
        assert_eq!(place_of(&[]), None);
    }
}
