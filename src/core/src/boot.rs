//! Who asks, what it has proven, and what it does next: boot, wait with a reason, or hear nothing.
//!
//! One table for every answer of the boot plane. The cryptography happens in the shell, which hands in its [`Evidence`];
//! nonces, keys and clocks are not read here.
//!
//! ```text
//! claimed MAC, lease --identify--> MAC --standing--> unknown | pooled | bound | revoked
//! bound + evidence --authorise--> proven --grant--> worker and disk
//! any refusal: Refusal::answer() -> silence (404) or wait with one line
//! ```

mod grant;

pub use grant::{Grant, no_disk_variables};

use crate::config::{Config, DhcpMode};
use crate::id::{MacAddr, host_nqn};
use crate::ledger::{Device, DeviceState, Ledger};
use std::fmt;

/// Shortest and longest pause between two reports of one machine, seconds.
const WAIT_MIN_SECS: u32 = 1;
const WAIT_POOLED_MAX_SECS: u32 = 5;
const WAIT_STRANGER_MIN_SECS: u32 = 10;
const WAIT_MAX_SECS: u32 = 30;
/// Reports after which the pause grows by a second.
const POLLS_PER_STEP: u32 = 10;

/// Keys of this kind sign a whole `kurrent_handshake::Answer`, boot key included.
pub(crate) const SIGNS_BOOT_KEY: &str = "ed25519:";

/// One authorised boot's name: public, in URLs and on the kernel command line.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BootId([u8; 8]);

impl BootId {
    /// The name of eight random octets.
    #[must_use]
    pub fn from_random(octets: [u8; 8]) -> Self {
        Self(octets)
    }

    /// Reads 16 lower-case hex digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut octets = [0; 8];
        hex::decode_to_slice(text, &mut octets).ok()?;
        let id = Self(octets);
        (id.to_string() == text).then_some(id)
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Where a machine stands, as scripts see it (`kstate`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Not in the ledger.
    Unknown,
    /// Seen; grants nothing (K10).
    Pooled,
    /// Has a Worker.
    Bound,
    /// Is answered by silence (K12).
    Revoked,
}

impl Standing {
    /// Of this MAC, now.
    #[must_use]
    pub fn of(ledger: &Ledger, mac: MacAddr) -> Self {
        match ledger.device(mac).map(|d| d.state) {
            None => Self::Unknown,
            Some(DeviceState::Pooled) => Self::Pooled,
            Some(DeviceState::Bound) => Self::Bound,
            Some(DeviceState::Revoked) => Self::Revoked,
        }
    }

    /// The word in scripts. A revoked machine gets no script at all.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Unknown | Self::Revoked => "unknown",
            Self::Pooled => "pooled",
            Self::Bound => "bound",
        }
    }
}

/// Why a machine does not get what it asked for. `code` is stable: it stands in the audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request has no MAC address, or not one machine's.
    NoMac,
    /// The MAC claimed is not the one that holds the address asking.
    MacMismatch,
    /// We give the addresses here, and gave this one to nobody.
    NoLease,
    /// The device is revoked.
    Revoked,
    /// Nobody admitted this device, or it has no Worker.
    NotBound,
    /// No key is stored for it, and it may not boot without.
    NoKey,
    /// No signature, or not one that can be read.
    MissingSig,
    /// We never made this nonce for this MAC, or it was used.
    NonceUnknown,
    /// Too late.
    NonceExpired,
    /// The signature is not by the stored key over what was asked.
    VerifyFailed,
    /// The machine trusts another appliance and did not answer.
    WrongServer,
    /// The firmware program could not do its work: no entropy, or a failing variable store.
    Firmware,
    /// The Worker has no disk that boots (K21).
    NoDisk,
    /// The disk is not exported for this epoch yet.
    NotReady,
    /// Nothing to seal to: secrets never travel in clear.
    NoChannel,
    /// There is no worker kernel for this machine's architecture.
    NoKernel,
    /// It shows another key than the stored one: nothing changed.
    KeyMismatch,
    /// This machine asks too often.
    TooMany,
    /// The ledger can not take the report now.
    Unavailable,
}

impl Refusal {
    /// The stable reason.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::NoMac => "no_mac",
            Self::MacMismatch => "mac_mismatch",
            Self::NoLease => "no_lease",
            Self::Revoked => "revoked",
            Self::NotBound => "not_bound",
            Self::NoKey => "no_key",
            Self::MissingSig => "missing_sig",
            Self::NonceUnknown => "nonce_unknown",
            Self::NonceExpired => "nonce_expired",
            Self::VerifyFailed => "verify_failed",
            Self::WrongServer => "wrong_server",
            Self::Firmware => "firmware",
            Self::NoDisk => "no_disk",
            Self::NotReady => "not_ready",
            Self::NoChannel => "no_channel",
            Self::NoKernel => "no_kernel",
            Self::KeyMismatch => "key_mismatch",
            Self::TooMany => "too_many",
            Self::Unavailable => "unavailable",
        }
    }

    /// The line on the machine's console. Tells the person in front of it what to do, and a stranger nothing else.
    #[must_use]
    pub fn line(self) -> &'static str {
        match self {
            Self::NoMac => "no MAC address was given",
            Self::MacMismatch => "refused (mac_mismatch): this address belongs to another machine",
            Self::NoLease => "not registered (no_lease): no lease for this address: this machine must get it from this server by DHCP",
            Self::Revoked => "",
            Self::NotBound => "refused (not_bound): this machine has no worker",
            Self::NoKey => "refused (no_key): no device key is stored for this machine; open the registration window or allow it keyless",
            Self::MissingSig => "refused (missing_sig): the answer to the challenge is missing",
            Self::NonceUnknown => "refused (nonce_unknown): the challenge is not one of this server's, or was used before",
            Self::NonceExpired => "refused (nonce_expired): the answer came too late",
            Self::VerifyFailed => "refused (verify_failed): this is not the device key that was registered",
            Self::WrongServer => "refused (wrong_server): this machine trusts another server",
            Self::Firmware => "refused (firmware): the device key can not be used; see the line of the firmware program above",
            Self::NoDisk => "no system disk: the worker has none, or none is chosen to boot",
            Self::NotReady => "the disk is being made ready",
            Self::NoKernel => {
                "refused (no_kernel): this server has no worker kernel for this machine's architecture; bind an x86-64 machine"
            }
            Self::NoChannel => "refused (no_channel): this boot method needs the firmware program to receive its secrets",
            Self::KeyMismatch => {
                "refused (key_mismatch): this machine shows another key than the registered one; rekey it if that is right"
            }
            Self::TooMany => "refused (too_many): this machine boots too often; wait a minute",
            Self::Unavailable => "the server can not write its ledger now; see its screen",
        }
    }

    /// Whether the answer is an empty 404 rather than a line.
    #[must_use]
    pub fn is_silent(self) -> bool {
        match self {
            Self::NoMac | Self::Revoked => true,
            Self::MacMismatch
            | Self::NoLease
            | Self::NotBound
            | Self::NoKey
            | Self::MissingSig
            | Self::NonceUnknown
            | Self::NonceExpired
            | Self::VerifyFailed
            | Self::WrongServer
            | Self::Firmware
            | Self::NoDisk
            | Self::NotReady
            | Self::NoChannel
            | Self::NoKernel
            | Self::KeyMismatch
            | Self::TooMany
            | Self::Unavailable => false,
        }
    }

    /// Whether the boot plane audits it: not a state of things that will pass, nor what the ledger writer audits.
    #[must_use]
    pub fn is_audited(self) -> bool {
        !matches!(self, Self::NotReady | Self::Unavailable | Self::NoDisk | Self::KeyMismatch)
    }

    /// Whether a new lease is the way out: for a machine whose lease was lost here, iPXE itself never renews.
    #[must_use]
    pub fn needs_lease(self) -> bool {
        matches!(self, Self::NoLease | Self::MacMismatch)
    }

    /// What `KurrentError` says of the firmware program's failure.
    #[must_use]
    pub fn of_firmware(word: &str) -> Self {
        if word == "wrong_server" { Self::WrongServer } else { Self::Firmware }
    }

    fn wait_secs(self) -> u32 {
        match self {
            // Will pass by itself, or by asking again.
            Self::NotReady | Self::NonceUnknown | Self::NonceExpired => 2,
            Self::NoDisk | Self::MissingSig | Self::Unavailable => 5,
            // Somebody has to do something first.
            Self::NoMac | Self::MacMismatch | Self::NoLease | Self::Revoked | Self::NotBound | Self::NoKey => 10,
            Self::VerifyFailed
            | Self::WrongServer
            | Self::Firmware
            | Self::NoChannel
            | Self::NoKernel
            | Self::KeyMismatch
            | Self::TooMany => 15,
        }
    }

    /// The wait that goes with this refusal.
    #[must_use]
    pub fn wait(self, jitter: u8) -> Wait {
        Wait { secs: jittered(self.wait_secs(), jitter), reason: self.line().to_owned() }
    }
}

/// A pause and why, for the console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Seconds until the next report.
    pub secs: u32,
    /// One line.
    pub reason: String,
}

/// `base` seconds, moved by at most a quarter: machines that were powered on together do not stay together.
fn jittered(base: u32, jitter: u8) -> u32 {
    let spread = base / 2;
    let moved = base - spread / 2 + u32::from(jitter) * (spread + 1) / 256;
    moved.clamp(WAIT_MIN_SECS, WAIT_MAX_SECS)
}

/// Whose request this is. `lease` is who holds the source address by DHCP; without a lease the claim stands alone, and
/// what it is worth is for the signature to show.
///
/// # Errors
/// [`Refusal::Revoked`], [`Refusal::NoMac`], [`Refusal::MacMismatch`].
pub fn identify(ledger: &Ledger, claimed: &str, lease: Option<MacAddr>) -> Result<MacAddr, Refusal> {
    if lease.is_some_and(|mac| ledger.is_revoked(mac)) {
        return Err(Refusal::Revoked);
    }
    let mac: MacAddr = claimed.parse().map_err(|_| Refusal::NoMac)?;
    if ledger.is_revoked(mac) {
        return Err(Refusal::Revoked);
    }
    match lease {
        Some(holder) if holder != mac => Err(Refusal::MacMismatch),
        Some(_) | None => Ok(mac),
    }
}

/// Whether a report may change the ledger. Where we give the addresses, the MAC that holds the source address is known, and
/// a report from any other address is a mere claim: one host with a static address could admit thousands of machines while
/// the window is open, plant keys, and overwrite what is known of others. Without our DHCP nobody's claim is better.
///
/// # Errors
/// [`Refusal::NoLease`].
pub fn may_report(dhcp: DhcpMode, lease: Option<MacAddr>, mac: MacAddr) -> Result<(), Refusal> {
    match dhcp {
        DhcpMode::Server if lease != Some(mac) => Err(Refusal::NoLease),
        DhcpMode::Server | DhcpMode::Proxy | DhcpMode::Off => Ok(()),
    }
}

/// What a machine that reported itself does next, unless it is bound: wait. `polls` counts its reports since it started.
#[must_use]
pub fn after_report(standing: Standing, window_open: bool, has_valid_key: bool, polls: u32, jitter: u8) -> Wait {
    let step = polls / POLLS_PER_STEP;
    let (base, reason) = match standing {
        Standing::Unknown if window_open && !has_valid_key => {
            (WAIT_STRANGER_MIN_SECS, "not registered (no_key): this machine has no device key; register it by hand")
        }
        Standing::Unknown | Standing::Revoked => {
            (WAIT_STRANGER_MIN_SECS, "not registered: open the registration window or register this machine by hand")
        }
        Standing::Pooled => (WAIT_MIN_SECS + 1, "registered; waiting to be bound to a worker"),
        Standing::Bound => (0, "bound; proving who this machine is"),
    };
    let most = if standing == Standing::Pooled { WAIT_POOLED_MAX_SECS } else { WAIT_MAX_SECS };
    Wait { secs: jittered((base + step).min(most), jitter), reason: reason.to_owned() }
}

/// Whether a challenge lets a machine that has pinned no server pin this one: while the window is open, and for a bound
/// device, because binding is an operator's explicit act (K09: registering by hand is not limited by the window). The
/// flag is signed; it keeps passers-by from pinning *us*. What it can not do is stop a stranger's server.
#[must_use]
pub fn may_pin(standing: Standing, window_open: bool) -> bool {
    window_open || standing == Standing::Bound
}

/// Whether the worker kernel runs on a machine whose iPXE says it is of `arch` (`buildarch`); scripts of people's own say nothing.
///
/// # Errors
/// [`Refusal::NoKernel`].
pub fn has_kernel(arch: &str) -> Result<(), Refusal> {
    if matches!(arch, "" | "x86_64") { Ok(()) } else { Err(Refusal::NoKernel) }
}

/// What the shell found out about an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// No signature, or not one that can be read.
    Nothing,
    /// The firmware program says why it gives none.
    Declined(Refusal),
    /// The nonce is not ours, not this MAC's, or used.
    NonceUnknown,
    /// The nonce is ours and too old.
    NonceExpired,
    /// The signature does not verify.
    Wrong,
    /// The signature verifies under the stored key.
    Genuine,
}

/// What was proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proven {
    /// The stored key answered, and signed the boot key that the answer is sealed to.
    Verified,
    /// The stored key answered, but what it signs does not hold the boot key (P-256, the existing firmware): whoever sees the
    /// signature pass can send it with a boot key of their own. Nothing is ever sealed on such an answer.
    Unsealable,
    /// Nothing, and nothing was asked for.
    Keyless,
}

/// The signature rule (boot-chain 3): only a verified answer opens the data plane, except for devices without a key that
/// an operator allows, or with enforcement off. A *wrong* answer is refused even then.
///
/// # Errors
/// The [`Refusal`] that the machine shows and the audit holds.
pub fn authorise(device: &Device, enforcement: bool, evidence: Evidence) -> Result<Proven, Refusal> {
    let open = !enforcement || (device.keyless_allowed && device.public_key.is_none());
    match (&device.public_key, evidence) {
        (Some(key), Evidence::Genuine) => Ok(if key.starts_with(SIGNS_BOOT_KEY) { Proven::Verified } else { Proven::Unsealable }),
        (_, Evidence::Wrong) => Err(Refusal::VerifyFailed),
        (_, Evidence::Declined(Refusal::WrongServer)) => Err(Refusal::WrongServer),
        _ if open => Ok(Proven::Keyless),
        (None, _) => Err(Refusal::NoKey),
        (Some(_), Evidence::Nothing) => Err(Refusal::MissingSig),
        (Some(_), Evidence::Declined(refusal)) => Err(refusal),
        (Some(_), Evidence::NonceUnknown) => Err(Refusal::NonceUnknown),
        (Some(_), Evidence::NonceExpired) => Err(Refusal::NonceExpired),
    }
}

/// The table of boot-chain 4 for `/boot-vars`: the whole decision over one snapshot.
///
/// # Errors
/// The [`Refusal`] for everything that does not boot.
pub fn boot_vars(ledger: &Ledger, config: &Config, mac: MacAddr, evidence: Evidence) -> Result<(Proven, Grant), Refusal> {
    let device = ledger.device(mac).ok_or(Refusal::NotBound)?;
    match device.state {
        DeviceState::Revoked => return Err(Refusal::Revoked),
        DeviceState::Pooled => return Err(Refusal::NotBound),
        DeviceState::Bound => {}
    }
    // The signature first: a stranger with a bound machine's MAC must not learn whether it has a disk.
    let proven = authorise(device, ledger.enforcement(config.enforcement), evidence)?;
    let worker = ledger.worker_of(mac).ok_or(Refusal::NotBound)?;
    // K28: the Worker's one device, by the index too. They differ only if the ledger is damaged: then nobody boots.
    if ledger.bound.get(&worker.worker_id) != Some(&mac) {
        return Err(Refusal::NotBound);
    }
    let disk = ledger.boot_disk(worker).ok_or(Refusal::NoDisk)?;
    let grant = Grant {
        worker: worker.worker_id.clone(),
        disk: disk.clone(),
        epoch: device.epoch,
        host: host_nqn(&config.agent.nqn_base, &worker.worker_id, device.epoch),
        nqn_base: config.agent.nqn_base.clone(),
        storager: config.boot_network.address,
        menu_timeout_ms: ledger.boot_of(worker).menu_timeout_ms.unwrap_or(0),
    };
    Ok((proven, grant))
}

#[cfg(test)]
#[path = "boot_tests.rs"]
mod tests;
