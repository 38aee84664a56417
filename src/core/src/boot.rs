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
mod refusal;

pub use grant::{Grant, no_disk_variables};
pub use refusal::Refusal;

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
    /// The nonce is ours, and the server key has been replaced since.
    ServerKeyRotated,
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
        (_, Evidence::ServerKeyRotated) => Err(Refusal::ServerKeyRotated),
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
