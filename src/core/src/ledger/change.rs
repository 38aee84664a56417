//! The only verbs that change a ledger. Each is applied whole or not at all.

use super::schema::{BootSettings, Disk, Fingerprint};
use crate::id::{MacAddr, OsTag, WorkerId};
use crate::time::Wall;
use std::collections::BTreeMap;

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
    /// Lets the device's next report, until then, set a new key: one-shot (an operator replaced a mainboard). `None` withdraws.
    Rekey {
        /// Which device.
        mac: MacAddr,
        /// At most 60 minutes from now.
        until: Option<Wall>,
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
}

impl Change {
    /// How the audit names it.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Report { .. } => "report",
            Self::Register { .. } => "register",
            Self::Bind { .. } => "bind",
            Self::Unbind { .. } => "unbind",
            Self::Revoke { .. } => "revoke",
            Self::Purge { .. } => "purge",
            Self::Rekey { .. } => "rekey",
            Self::Label { .. } => "label",
            Self::CreateWorker { .. } => "worker-create",
            Self::DeleteWorker { .. } => "worker-delete",
            Self::AddDisk { .. } => "disk-add",
            Self::RemoveDisk { .. } => "disk-remove",
            Self::SetDefaultDisk { .. } => "default-disk",
            Self::SetBoot { .. } => "boot-settings",
            Self::OpenWindow { .. } => "window-open",
            Self::CloseWindow => "window-close",
        }
    }

    /// The device it is about.
    #[must_use]
    pub fn device(&self) -> Option<MacAddr> {
        match self {
            Self::Report { mac, .. }
            | Self::Register { mac, .. }
            | Self::Bind { mac, .. }
            | Self::Unbind { mac }
            | Self::Revoke { mac }
            | Self::Purge { mac }
            | Self::Rekey { mac, .. }
            | Self::Label { mac, .. } => Some(*mac),
            Self::CreateWorker { .. }
            | Self::DeleteWorker { .. }
            | Self::AddDisk { .. }
            | Self::RemoveDisk { .. }
            | Self::SetDefaultDisk { .. }
            | Self::SetBoot { .. }
            | Self::OpenWindow { .. }
            | Self::CloseWindow => None,
        }
    }

    /// The Worker or disk it is about, as text; empty when neither.
    #[must_use]
    pub fn object(&self) -> String {
        match self {
            Self::Bind { worker, .. } | Self::CreateWorker { worker } | Self::DeleteWorker { worker } | Self::SetBoot { worker, .. } => {
                worker.to_string()
            }
            Self::AddDisk { worker, disk } => format!("{worker} {}", disk.os_tag),
            Self::RemoveDisk { worker, os_tag } | Self::SetDefaultDisk { worker, os_tag } => format!("{worker} {os_tag}"),
            Self::Report { .. }
            | Self::Register { .. }
            | Self::Unbind { .. }
            | Self::Revoke { .. }
            | Self::Purge { .. }
            | Self::Rekey { .. }
            | Self::Label { .. }
            | Self::OpenWindow { .. }
            | Self::CloseWindow => String::new(),
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
