//! What `kurrent-attest.efi` decides, without the firmware: its arguments, the memory fields of SMBIOS, whether an appliance
//! is to be answered, in which order keys are stored, and what of a sealed login iPXE is given. Pure and `no_std`; `firmware` does the firmware calls.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod arguments;
pub mod exchange;
pub mod machine;
pub mod orders;
pub mod smbios;
pub mod stored;

/// Why the program did not do what it was asked: the stable word for `KurrentError`, and what the console says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The firmware has no random numbers and the CPU has none either.
    NoEntropy,
    /// The challenge is from another appliance than the pinned one, or none is pinned and none may be.
    WrongServer,
    /// The challenge is not signed by the key it names.
    Forged,
    /// The arguments are not what the boot script gives.
    BadArguments,
    /// What is to be opened is not sealed for the session that the last answer left, or there is none (any more).
    BadSeal,
    /// It was opened, and is no login to an iSCSI target.
    BadLogin,
    /// A firmware call failed, or a stored variable is damaged.
    Firmware,
}

impl Refusal {
    /// The stable word, as in decision 0001. A forged challenge is another server's doing.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::NoEntropy => "no_entropy",
            Self::WrongServer | Self::Forged => "wrong_server",
            Self::BadArguments => "bad_arguments",
            Self::BadSeal => "bad_seal",
            Self::BadLogin => "bad_login",
            Self::Firmware => "firmware",
        }
    }

    /// The console line.
    #[must_use]
    pub const fn line(self) -> &'static str {
        match self {
            Self::NoEntropy => {
                "this machine has no source of random numbers (firmware RNG protocol or RDRAND): it can not make a device key"
            }
            Self::WrongServer => "refused: this server is not the one that this machine trusts",
            Self::Forged => "refused: the server's signature is wrong; somebody on the network pretends to be it",
            Self::BadArguments => "the arguments are wrong: use the boot script of the appliance",
            Self::BadSeal => {
                "refused: the login to the disk is not for this start of this machine, was changed on the way, or was opened before"
            }
            Self::BadLogin => "refused: what the server has sealed is no login to a disk",
            Self::Firmware => "the firmware's variable store failed or holds a damaged key",
        }
    }
}
