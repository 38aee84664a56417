//! Why a machine does not get what it asked for: the stable word, the console line, and what follows.

use super::{Wait, jittered};

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
    /// The server key was replaced while the machine answered: it asks again.
    ServerKeyRotated,
    /// A new device key was ordered, and the one that came is not signed by the old and by the new key.
    RekeyFailed,
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
            Self::ServerKeyRotated => "server_key_rotated",
            Self::RekeyFailed => "rekey_failed",
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
            Self::ServerKeyRotated => "the server has a new key; asking it again",
            Self::RekeyFailed => "refused (rekey_failed): the new device key is not signed by the old and by the new one",
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
            | Self::ServerKeyRotated
            | Self::RekeyFailed
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
        !matches!(self, Self::NotReady | Self::ServerKeyRotated | Self::Unavailable | Self::NoDisk | Self::KeyMismatch)
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
            Self::NotReady | Self::NonceUnknown | Self::NonceExpired | Self::ServerKeyRotated => 2,
            Self::NoDisk | Self::MissingSig | Self::Unavailable => 5,
            // Somebody has to do something first.
            Self::NoMac | Self::MacMismatch | Self::NoLease | Self::Revoked | Self::NotBound | Self::NoKey => 10,
            Self::VerifyFailed
            | Self::RekeyFailed
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
