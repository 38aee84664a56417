//! The records of the ledger files in their on-disk form. Unknown fields are refused.

mod storage;
mod workers;

pub use storage::{Agent, AgentsFile, JoinToken, MasterTags, MastersFile, Role};
pub use workers::{BootSettings, Disk, DiskSource, MENU_REBOOT, Migration, Worker, WorkersFile};

use crate::id::{MacAddr, WorkerId};
use crate::time::Wall;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// The version this program writes. A file with a higher one is refused as "newer than me", one with a lower one is read by
/// [`super::migrate`]. Version 2 added `agents.yml`, `masters.yml`, settings, and the digest of a disk's master; version 3, to the
/// records, signed rekey orders and migrations: a file of version 2 reads as it is.
pub const LEDGER_VERSION: u32 = 3;

/// `state/devices.yml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DevicesFile {
    /// Format version, [`LEDGER_VERSION`].
    pub version: u32,
    /// Grows by one with every durable change of any ledger.
    pub generation: u64,
    /// All device records, ordered by MAC; a MAC occurs once.
    pub devices: Vec<Device>,
}

/// `state/settings.yml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingsFile {
    /// Format version, [`LEDGER_VERSION`].
    pub version: u32,
    /// Grows by one with every durable change of any ledger.
    pub generation: u64,
    /// Automatic admission is open until this time; absent or past: closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registration_open_until: Option<Wall>,
    /// Overrides `spec.security.enforcement`; absent: what the configuration says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<bool>,
    /// What Workers boot with when they have no settings of their own.
    #[serde(default, skip_serializing_if = "BootSettings::is_default")]
    pub boot: BootSettings,
}

/// Where a device stands (K11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceState {
    /// Seen; grants no boot (K10).
    Pooled,
    /// Boots as its Worker.
    Bound,
    /// Answered by silence on every path (K12).
    Revoked,
}

/// How a device came into the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Its own report from the network boot program.
    Ipxe,
    /// A person registered or imported it.
    Manual,
}

/// What the firmware says about the machine: identification and audit, never authority. MAC and UUID stand beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fingerprint {
    /// SMBIOS type 1 manufacturer.
    pub manufacturer: String,
    /// SMBIOS type 1 product name.
    pub product: String,
    /// SMBIOS type 1 serial number.
    pub serial: String,
    /// CPUID brand string.
    pub cpu_model: String,
    /// Total memory, MiB as text.
    pub memory_total: String,
    /// SMBIOS type 17 memory type ("DDR4").
    pub memory_type: String,
    /// SMBIOS type 17 speed, MT/s as text.
    pub memory_speed: String,
    /// iPXE's name of the NIC's driver or chip.
    pub nic_chip: String,
    /// iPXE's bus id of the NIC.
    pub nic_busid: String,
}

/// One physical machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Its identifier.
    pub mac: MacAddr,
    /// SMBIOS UUID as reported; empty when unknown. Vendors ship duplicates: never an identifier.
    #[serde(default)]
    pub uuid: String,
    /// See [`DeviceState`].
    pub state: DeviceState,
    /// The single fact of binding; set exactly when `state` is `bound`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound_worker_id: Option<WorkerId>,
    /// `ed25519:<64 hex>` or `p256:<130 hex>`; absent for machines without a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_key: Option<String>,
    /// SHA-256 of the raw key octets, hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_key_hash: Option<String>,
    /// How it came here.
    pub source: Source,
    /// When it was first recorded.
    pub first_seen: Wall,
    /// Its last accepted report; written with the next change, not by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<Wall>,
    /// Its last answer to a challenge that its key was verified for; written with the next change, not by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proved_at: Option<Wall>,
    /// Grows on bind, unbind, rebind, revoke and a new key: part of the host NQN, so old credentials die with it. It is the
    /// generation of that change, so no two bindings of one Worker, through whatever devices, ever share an epoch.
    pub epoch: u64,
    /// The next report until then may set a new key; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rekey_until: Option<Wall>,
    /// The order of `rekey_until` is for the machine itself: it makes a new key and signs it with the old one. Otherwise the next
    /// report may bring any key (a replaced mainboard).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rekey_signed: bool,
    /// A machine without a key (BIOS) that may boot although enforcement is on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keyless_allowed: bool,
    /// Loader to offer instead of the architecture's default, a name from the loader table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loader: Option<String>,
    /// The address that DHCP gives to it and to nobody else, inside one of the subnets; absent: a dynamic one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Ipv4Addr>,
    /// What people sort by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// What people wrote down.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// The reported hardware.
    #[serde(default)]
    pub fingerprint: Fingerprint,
}

impl Device {
    /// Whether its key is one of `kurrent-attest.efi`: others can not sign a new key.
    #[must_use]
    pub fn signs_answers(&self) -> bool {
        self.public_key.as_deref().is_some_and(|key| key.starts_with("ed25519:"))
    }

    /// Whether the machine is to make a new key and sign it with its old one.
    #[must_use]
    pub fn owes_new_key(&self, now: Wall) -> bool {
        self.rekey_signed && self.signs_answers() && self.rekey_until.is_some_and(|until| super::rules::is_live(until, now))
    }
}

/// `ed25519:<64 hex>` or `p256:<130 hex>` (uncompressed point) as raw octets; `None` when it has neither form. Whether the
/// octets are a point of the curve is checked where keys come in.
#[must_use]
pub fn key_octets(text: &str) -> Option<Vec<u8>> {
    let (digits, length) = match text.split_once(':')? {
        ("ed25519", digits) => (digits, 32),
        ("p256", digits) if digits.starts_with("04") => (digits, 65),
        _ => return None,
    };
    let octets = hex::decode(digits).ok()?;
    (octets.len() == length && !digits.bytes().any(|b| b.is_ascii_uppercase())).then_some(octets)
}

/// SHA-256 (hex) of the raw octets of a key text: what people compare.
#[must_use]
pub fn key_hash(text: &str) -> Option<String> {
    key_octets(text).map(|octets| hex::encode(<sha2::Sha256 as sha2::Digest>::digest(octets)))
}
