//! What exactly was asked for, as the audit holds it: a closed set of words and numbers, never free text, and no secret.

use super::change::Change;
use super::schema::{BootSettings, MENU_REBOOT, Role, key_hash};
use crate::id::OsTag;
use crate::time::Wall;

/// `key=value` words with spaces between; the values are ours, or names that were parsed.
#[derive(Default)]
pub(super) struct Words(String);

impl Words {
    pub(super) fn word(mut self, word: &str) -> Self {
        if !self.0.is_empty() {
            self.0.push(' ');
        }
        self.0.push_str(word);
        self
    }

    pub(super) fn when(self, is: bool, word: &str) -> Self {
        if is { self.word(word) } else { self }
    }

    pub(super) fn value(self, key: &str, value: impl std::fmt::Display) -> Self {
        self.word(&format!("{key}={value}"))
    }

    pub(super) fn given(self, key: &str, value: Option<impl std::fmt::Display>) -> Self {
        match value {
            Some(value) => self.value(key, value),
            None => self,
        }
    }

    pub(super) fn until(self, until: Option<Wall>) -> Self {
        match until {
            // Whole seconds are what people ordered.
            Some(until) => self.value("until", until.strftime("%Y-%m-%dT%H:%M:%SZ")),
            None => self.value("until", "none"),
        }
    }

    /// Of each setting what this version knows; another text is one that somebody typed.
    pub(super) fn boot(self, boot: &BootSettings) -> Self {
        let known = |value: &Option<String>, words: [&'static str; 2]| {
            value.as_deref().map(|v| words.into_iter().find(|word| *word == v).unwrap_or("other"))
        };
        let entry = |entry: &str| match entry.parse::<OsTag>() {
            _ if entry == MENU_REBOOT => MENU_REBOOT.to_owned(),
            Ok(tag) => tag.to_string(),
            Err(_) => "other".to_owned(),
        };
        self.given("method", known(&boot.method, ["nvme", "iscsi"]))
            .given("kernel", known(&boot.kernel, ["appliance", "disk"]))
            .given("menu_default", boot.menu_default.as_deref().map(entry))
            .given("menu_timeout_ms", boot.menu_timeout_ms)
            .when(*boot == BootSettings::default(), "boot=none")
    }

    pub(super) fn enforcement(self, enforcement: Option<bool>) -> Self {
        self.value("enforcement", enforcement.map_or("none".to_owned(), |on| on.to_string()))
    }

    fn roles(self, roles: Option<&[Role]>) -> Self {
        let words = |roles: &[Role]| roles.iter().map(|Role::Disk| "disk").collect::<Vec<_>>().join(",");
        self.given("roles", roles.map(words))
    }

    pub(super) fn text(self) -> String {
        self.0
    }
}

impl Change {
    /// What was asked beside verb and subject; empty when these say it all. Free text (notes, remarks, labels) is only named.
    #[must_use]
    pub fn detail(&self) -> String {
        let words = Words::default();
        match self {
            Self::Register { public_key, keyless_allowed, note, labels, address, .. } => words
                .when(public_key.is_some(), "public_key")
                .value("keyless_allowed", keyless_allowed)
                .given("address", address.as_ref())
                .when(!note.is_empty(), "note")
                .when(!labels.is_empty(), &format!("labels={}", labels.len())),
            Self::EditDevice { note, keyless_allowed, loader, address, .. } => words
                .given("keyless_allowed", keyless_allowed.as_ref())
                .given("loader", loader.as_ref().map(|l| if l.is_some() { "own" } else { "none" }))
                .given("address", address.as_ref().map(|a| a.map_or_else(|| "none".to_owned(), |a| a.to_string())))
                .when(note.is_some(), "note"),
            Self::Bind { force, .. } | Self::BindAll { force, .. } => words.when(*force, "force"),
            Self::Rekey { until, signed, .. } => words.until(*until).when(*signed, "signed"),
            Self::ReplaceKey { old, new, .. } => words.given("old", key_hash(old)).given("new", key_hash(new)),
            Self::Migrate { note, .. } => words.given("from", note.from).until(Some(note.until)),
            Self::RollBackMigration { note, .. } => words.value("to", note.to),
            Self::Label { labels, .. } => words.value("labels", labels.len()),
            Self::AddDisk { disk, .. } => words.value("size_bytes", disk.size_bytes).value("agent", &disk.agent),
            Self::ResizeDisk { size_bytes, .. } => words.value("size_bytes", size_bytes),
            Self::SetBoot { boot, .. } => words.boot(boot),
            Self::OpenWindow { until } => words.until(Some(*until)),
            Self::EditSettings { enforcement, boot } => {
                let words = match enforcement {
                    Some(enforcement) => words.enforcement(*enforcement),
                    None => words,
                };
                match boot {
                    Some(boot) => words.boot(boot),
                    None => words,
                }
            }
            Self::TagMaster { tags } => words.given("os", tags.os.as_ref()).given("os_version", tags.os_version.as_ref()),
            Self::AddAgent { agent } => words.roles(Some(&agent.roles)).value("drained", agent.drained),
            Self::EditAgent { base_url, roles, drained, note, .. } => words
                .when(base_url.is_some(), "base_url")
                .roles(roles.as_deref())
                .given("drained", drained.as_ref())
                .when(note.is_some(), "note"),
            Self::AddJoinToken { token } => words.until(Some(token.expires_at)),
            Self::Report { .. }
            | Self::Proved { .. }
            | Self::RotateCredentials { .. }
            | Self::EndMigration { .. }
            | Self::Boot { .. }
            | Self::Unbind { .. }
            | Self::Revoke { .. }
            | Self::Purge { .. }
            | Self::CreateWorker { .. }
            | Self::CreateWorkers { .. }
            | Self::SetWorkerError { .. }
            | Self::DeleteWorker { .. }
            | Self::RemoveDisk { .. }
            | Self::RemarkDisk { .. }
            | Self::SetDefaultDisk { .. }
            | Self::CloseWindow
            | Self::ForgetMaster { .. }
            | Self::RemoveAgent { .. }
            | Self::RevokeJoinToken { .. } => words,
        }
        .text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::MacAddr;

    #[test]
    fn the_audit_holds_what_was_asked_and_no_free_text() {
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let worker: crate::id::WorkerId = "w1".parse().unwrap();
        let until: Wall = "2026-11-30T12:00:00.5Z".parse().unwrap();
        let typed = BootSettings { method: Some("hunter2".into()), menu_default: Some("hunter2".into()), ..BootSettings::default() };
        let known = BootSettings { kernel: Some("appliance".into()), menu_timeout_ms: Some(5), ..BootSettings::default() };
        for (change, expected) in [
            (Change::EditSettings { enforcement: Some(Some(false)), boot: None }, "enforcement=false"),
            (Change::EditSettings { enforcement: Some(None), boot: Some(known) }, "enforcement=none kernel=appliance menu_timeout_ms=5"),
            (Change::SetBoot { worker: worker.clone(), boot: typed }, "method=other menu_default=other"),
            (Change::SetBoot { worker: worker.clone(), boot: BootSettings::default() }, "boot=none"),
            (Change::Bind { mac, worker: worker.clone(), force: true }, "force"),
            (Change::Bind { mac, worker, force: false }, ""),
            (Change::OpenWindow { until }, "until=2026-11-30T12:00:00Z"),
            (Change::Rekey { mac, until: None, signed: false }, "until=none"),
            (Change::Rekey { mac, until: Some(until), signed: true }, "until=2026-11-30T12:00:00Z signed"),
            (
                Change::EditDevice {
                    mac,
                    note: Some("hunter2".into()),
                    keyless_allowed: Some(true),
                    loader: Some(Some("hunter2".into())),
                    address: None,
                },
                "keyless_allowed=true loader=own note",
            ),
        ] {
            assert_eq!(change.detail(), expected, "{change:?}");
        }
    }
}
