//! The only verbs that change a ledger. Each is applied whole or not at all.

use super::schema::{Agent, BootSettings, Disk, Fingerprint, JoinToken, MasterTags, Migration, Role};
use crate::id::{AgentName, FileName, MacAddr, OsTag, WorkerId};
use crate::time::Wall;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// One change asked of the ledger writer.
#[derive(Clone, Debug)]
pub enum Change {
    /// A device's own report (K05, K07, K08): admits an unknown one only while the window is open and with a valid key;
    /// refreshes a known one. A stored key is replaced only under a [`Change::Rekey`] order; a key is added to a device
    /// without one only while the window is open or under such an order.
    Report {
        /// Who reports.
        mac: MacAddr,
        /// SMBIOS UUID as text.
        uuid: String,
        /// Checked key text (`ed25519:…`, `p256:…`), if one was given.
        public_key: Option<String>,
        /// The reported hardware.
        fingerprint: Fingerprint,
    },
    /// A device has proved its key to the key that the appliance has now; nothing else changes.
    Proved {
        /// Which device.
        mac: MacAddr,
        /// When its answer came.
        at: Wall,
    },
    /// A person adds a device to the pool; not limited by the window (K09).
    Register {
        /// Who.
        mac: MacAddr,
        /// Checked key text, if known.
        public_key: Option<String>,
        /// May boot without a key.
        keyless_allowed: bool,
        /// Free text.
        note: String,
        /// What people sort by.
        labels: BTreeMap<String, String>,
        /// The address that DHCP gives it, as in [`Change::EditDevice`].
        address: Option<Ipv4Addr>,
    },
    /// Replaces what people decide about a device; `None` leaves a value as it is.
    EditDevice {
        /// Which device.
        mac: MacAddr,
        /// Free text.
        note: Option<String>,
        /// May boot without a key.
        keyless_allowed: Option<bool>,
        /// Loader from the loader table; the inner `None` takes the override away.
        loader: Option<Option<String>>,
        /// The address that DHCP gives it; the inner `None` takes the reservation away. Whether it lies in a subnet is asked
        /// where the configuration is known: [`crate::config::Config::check_reservation`].
        address: Option<Option<Ipv4Addr>>,
    },
    /// [`Change::Bind`] for each pair in order, all of them or none. No device and no Worker may occur twice.
    BindAll {
        /// Device and its Worker.
        pairs: Vec<(MacAddr, WorkerId)>,
        /// Displace what stands in the way.
        force: bool,
    },
    /// Gives the Worker's device a new epoch: the old credentials open nothing any more, new ones are made at its next boot.
    RotateCredentials {
        /// Which Worker; it has a bound device.
        worker: WorkerId,
    },
    /// A boot is granted: it is a session of its own, with a new epoch, so that what an earlier boot was given opens nothing any more.
    /// Refused when the binding or the epoch is not what was seen: of two boots at one moment only the first goes on.
    Boot {
        /// Which device; it is bound.
        mac: MacAddr,
        /// As whom it boots.
        worker: WorkerId,
        /// Its epoch so far.
        epoch: u64,
    },
    /// Makes `mac` the one device of `worker`. `force` moves the binding: new written before old cleared, one step (K29).
    Bind {
        /// Which device.
        mac: MacAddr,
        /// Which Worker.
        worker: WorkerId,
        /// Displace what stands in the way.
        force: bool,
    },
    /// Binds the Worker to `note.to` in the place of `note.from`, and notes that this holds only when `to` proves itself in time (K31).
    Migrate {
        /// Which Worker.
        worker: WorkerId,
        /// From where to where, and until when.
        note: Migration,
        /// What the configuration says about devices without a key; see [`super::Ledger::enforcement`].
        enforcement: bool,
    },
    /// The new device has proven itself: the migration is over.
    EndMigration {
        /// Which Worker.
        worker: WorkerId,
        /// As it is noted.
        note: Migration,
    },
    /// Gives the Worker back to `note.from`, under a new epoch; to nobody when that device is not free any more, or there was none.
    RollBackMigration {
        /// Which Worker.
        worker: WorkerId,
        /// As it is noted.
        note: Migration,
    },
    /// Returns the device to the pool; the Worker is untouched (K30).
    Unbind {
        /// Which device.
        mac: MacAddr,
    },
    /// Revokes a device; a bound one is unbound in the same step (K40).
    Revoke {
        /// Which device.
        mac: MacAddr,
    },
    /// Removes a revoked device's record (K40).
    Purge {
        /// Which device.
        mac: MacAddr,
    },
    /// Orders a new key, until then, one-shot. `None` withdraws.
    Rekey {
        /// Which device.
        mac: MacAddr,
        /// At most 60 minutes from now.
        until: Option<Wall>,
        /// The machine makes it and signs it with its old one ([`Change::ReplaceKey`]). Otherwise the next report may bring any
        /// key: an operator replaced a mainboard.
        signed: bool,
    },
    /// The device has made a new key under a signed [`Change::Rekey`] order; both signatures were checked. Bound, it gets a new epoch.
    ReplaceKey {
        /// Which device.
        mac: MacAddr,
        /// The stored key that has signed.
        old: String,
        /// The new one, which has signed as well.
        new: String,
    },
    /// Replaces labels.
    Label {
        /// Which device.
        mac: MacAddr,
        /// The new set.
        labels: BTreeMap<String, String>,
    },
    /// Creates a Worker.
    CreateWorker {
        /// Its identity.
        worker: WorkerId,
    },
    /// [`Change::CreateWorker`] for each, all of them or none.
    CreateWorkers {
        /// Their identities.
        workers: Vec<WorkerId>,
    },
    /// Keeps why the last thing asked for a Worker failed; empty clears it.
    SetWorkerError {
        /// Which one.
        worker: WorkerId,
        /// One sentence.
        error: String,
    },
    /// Deletes a Worker and unbinds its device (K39).
    DeleteWorker {
        /// Which one.
        worker: WorkerId,
    },
    /// Adds a disk whose file is durable already. The first becomes the default (K19).
    AddDisk {
        /// Whose.
        worker: WorkerId,
        /// The record.
        disk: Disk,
    },
    /// Removes a disk's record; deleting the default promotes the newest remaining one (K20).
    RemoveDisk {
        /// Whose.
        worker: WorkerId,
        /// Which.
        os_tag: OsTag,
    },
    /// Records a disk's new, larger size; its file has it already.
    ResizeDisk {
        /// Whose.
        worker: WorkerId,
        /// Which.
        os_tag: OsTag,
        /// A multiple of 4096, not less than before.
        size_bytes: u64,
    },
    /// Replaces a disk's remark.
    RemarkDisk {
        /// Whose.
        worker: WorkerId,
        /// Which.
        os_tag: OsTag,
        /// Free text.
        remark: String,
    },
    /// Chooses the disk that boots.
    SetDefaultDisk {
        /// Whose.
        worker: WorkerId,
        /// Which.
        os_tag: OsTag,
    },
    /// Replaces the boot overrides.
    SetBoot {
        /// Whose.
        worker: WorkerId,
        /// The new settings.
        boot: BootSettings,
    },
    /// Opens automatic admission until then; 1 to 60 minutes from now.
    OpenWindow {
        /// When it closes by itself.
        until: Wall,
    },
    /// Closes automatic admission.
    CloseWindow,
    /// Replaces run-time settings, all that are given or none; `None` leaves one as it is.
    EditSettings {
        /// Whether only a verified answer opens the data plane; the inner `None` follows the configuration again.
        enforcement: Option<Option<bool>>,
        /// What Workers without settings of their own boot with.
        boot: Option<BootSettings>,
    },
    /// Replaces the tags of a master image; empty ones are forgotten (K25).
    TagMaster {
        /// The tags, with the file's name.
        tags: MasterTags,
    },
    /// Forgets the tags of a master image that is gone.
    ForgetMaster {
        /// Its file.
        name: FileName,
    },
    /// Records a further storage node.
    AddAgent {
        /// Its record.
        agent: Agent,
    },
    /// Replaces what people decide about a storage node; `None` leaves a value as it is. Draining keeps new disks away (K32).
    EditAgent {
        /// Which node.
        name: AgentName,
        /// Where its API is; this appliance has none.
        base_url: Option<String>,
        /// What it is for.
        roles: Option<Vec<Role>>,
        /// Takes no new disks.
        drained: Option<bool>,
        /// Free text.
        note: Option<String>,
    },
    /// Forgets a storage node that holds no disk.
    RemoveAgent {
        /// Which node.
        name: AgentName,
    },
    /// Lets a further node join, once, until the token expires.
    AddJoinToken {
        /// The token's record.
        token: JoinToken,
    },
    /// Withdraws a join token.
    RevokeJoinToken {
        /// Its id.
        id: String,
    },
}

/// What a change did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Applied and durable.
    Done,
    /// A report admitted a new device to the pool.
    Admitted,
    /// A report refreshed a known device, or nothing differed; nothing need be written at once.
    Refreshed,
    /// A report gave a known device its key (window open and none stored, or a rekey order): durable.
    KeyStored,
    /// A report from an unknown device while the window is closed, or without a valid key (K07, K08).
    Knocking,
    /// A report with another key than the stored one: nothing changed, to be audited.
    KeyMismatch,
    /// The device is revoked: ignored.
    Revoked,
}

/// Why a change was refused. `code` is stable; the text tells what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Rejected {
    /// Stable machine-readable code (`device_not_found`, `device_revoked`, `worker_exists`, …).
    pub code: &'static str,
    /// HTTP status that fits: 404 (not there), 409 (conflicts), 422 (not allowed as asked).
    pub status: u16,
    /// One sentence with the next step.
    pub detail: String,
    /// The value at fault, as requests name it, when it is one of them.
    pub field: Option<&'static str>,
}

impl Rejected {
    /// With the value at fault.
    #[must_use]
    pub fn at(self, field: &'static str) -> Self {
        Self { field: Some(field), ..self }
    }
}

/// A device and a Worker, disk, master or node: what one audit line is about.
pub type Subject = (Option<MacAddr>, String);

impl Change {
    /// How the audit names it.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Report { .. } => "report",
            Self::Proved { .. } => "proved",
            Self::Register { .. } => "register",
            Self::EditDevice { .. } => "device-edit",
            Self::Bind { .. } | Self::BindAll { .. } => "bind",
            Self::RotateCredentials { .. } => "credentials-rotate",
            Self::Migrate { .. } => "migrate",
            Self::EndMigration { .. } => "migrate-end",
            Self::RollBackMigration { .. } => "migrate-rollback",
            Self::Boot { .. } => "boot",
            Self::Unbind { .. } => "unbind",
            Self::Revoke { .. } => "revoke",
            Self::Purge { .. } => "purge",
            Self::Rekey { .. } => "rekey",
            Self::ReplaceKey { .. } => "key-replace",
            Self::Label { .. } => "label",
            Self::CreateWorker { .. } | Self::CreateWorkers { .. } => "worker-create",
            Self::SetWorkerError { .. } => "worker-error",
            Self::DeleteWorker { .. } => "worker-delete",
            Self::AddDisk { .. } => "disk-add",
            Self::RemoveDisk { .. } => "disk-remove",
            Self::ResizeDisk { .. } => "disk-resize",
            Self::RemarkDisk { .. } => "disk-remark",
            Self::SetDefaultDisk { .. } => "default-disk",
            Self::SetBoot { .. } => "boot-settings",
            Self::OpenWindow { .. } => "window-open",
            Self::CloseWindow => "window-close",
            Self::EditSettings { .. } => "settings-edit",
            Self::TagMaster { .. } => "master-tag",
            Self::ForgetMaster { .. } => "master-forget",
            Self::AddAgent { .. } => "agent-add",
            Self::EditAgent { .. } => "agent-edit",
            Self::RemoveAgent { .. } => "agent-remove",
            Self::AddJoinToken { .. } => "join-token-add",
            Self::RevokeJoinToken { .. } => "join-token-revoke",
        }
    }

    /// What it is about: one subject, or one for each item of a batch. Never empty.
    #[must_use]
    pub fn subjects(&self) -> Vec<Subject> {
        let device = |mac: &MacAddr| vec![(Some(*mac), String::new())];
        let other = |object: String| vec![(None, object)];
        match self {
            Self::Report { mac, .. }
            | Self::Proved { mac, .. }
            | Self::Register { mac, .. }
            | Self::EditDevice { mac, .. }
            | Self::Unbind { mac }
            | Self::Revoke { mac }
            | Self::Purge { mac }
            | Self::Rekey { mac, .. }
            | Self::ReplaceKey { mac, .. }
            | Self::Label { mac, .. } => device(mac),
            Self::Bind { mac, worker, .. } | Self::Boot { mac, worker, .. } => vec![(Some(*mac), worker.to_string())],
            Self::BindAll { pairs, .. } => pairs.iter().map(|(mac, worker)| (Some(*mac), worker.to_string())).collect(),
            Self::Migrate { worker, note, .. } | Self::EndMigration { worker, note } => vec![(Some(note.to), worker.to_string())],
            Self::RollBackMigration { worker, note } => vec![(note.from.or(Some(note.to)), worker.to_string())],
            Self::CreateWorkers { workers } => workers.iter().map(|worker| (None, worker.to_string())).collect(),
            Self::RotateCredentials { worker }
            | Self::CreateWorker { worker }
            | Self::SetWorkerError { worker, .. }
            | Self::DeleteWorker { worker }
            | Self::SetBoot { worker, .. } => other(worker.to_string()),
            Self::AddDisk { worker, disk } => other(format!("{worker} {}", disk.os_tag)),
            Self::RemoveDisk { worker, os_tag }
            | Self::ResizeDisk { worker, os_tag, .. }
            | Self::RemarkDisk { worker, os_tag, .. }
            | Self::SetDefaultDisk { worker, os_tag } => other(format!("{worker} {os_tag}")),
            Self::OpenWindow { .. } | Self::CloseWindow | Self::EditSettings { .. } => other(String::new()),
            Self::TagMaster { tags } => other(tags.name.to_string()),
            Self::ForgetMaster { name } => other(name.to_string()),
            Self::AddAgent { agent } => other(agent.name.to_string()),
            Self::EditAgent { name, .. } | Self::RemoveAgent { name } => other(name.to_string()),
            Self::AddJoinToken { token } => other(token.id.clone()),
            Self::RevokeJoinToken { id } => other(id.clone()),
        }
    }
}

impl Outcome {
    /// How the audit names it.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Done => "ok",
            Self::Admitted => "admitted",
            Self::Refreshed => "refreshed",
            Self::KeyStored => "key_stored",
            Self::Knocking => "not_registered",
            Self::KeyMismatch => "key_mismatch",
            Self::Revoked => "revoked",
        }
    }
}
