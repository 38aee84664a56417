//! `kurrent-attest.efi`: holds the device key and answers the appliance's challenge; chained by stock iPXE, returns to it.
//!
//! It never writes a secret to the console, replaces a device key only by one that the appliance has come to expect, and leaves
//! the session key only for stage-1, or opens what is sealed with it itself and removes it. What it decides and in which order it stores is in the library beside it; the firmware
//! calls are in `firmware`.
#![cfg_attr(target_os = "uefi", no_std, no_main)]

#[cfg(target_os = "uefi")]
extern crate alloc;

#[cfg(target_os = "uefi")]
mod firmware;

#[cfg(target_os = "uefi")]
mod program {
    use crate::firmware::{Firmware, load_options};
    use kurrent_attest::Refusal;
    use kurrent_attest::machine::{Kind, Machine};
    use kurrent_attest::orders::run;
    use kurrent_handshake::VARIABLE_ERROR;
    use uefi::{Status, entry};

    #[entry]
    fn main() -> Status {
        let Err(refusal) = run(&mut Firmware, load_options().as_deref()) else { return Status::SUCCESS };
        Firmware.say(refusal.line());
        // Without this variable the script says "unknown": nothing more can be done about it here.
        let _ = Firmware.write(VARIABLE_ERROR, Kind::Volatile, refusal.word().as_bytes());
        match refusal {
            Refusal::NoEntropy => Status::UNSUPPORTED,
            Refusal::WrongServer | Refusal::Forged | Refusal::BadSeal => Status::SECURITY_VIOLATION,
            Refusal::BadArguments | Refusal::BadLogin => Status::INVALID_PARAMETER,
            Refusal::Firmware => Status::DEVICE_ERROR,
        }
    }
}

#[cfg(not(target_os = "uefi"))]
fn main() -> std::process::ExitCode {
    eprintln!("kurrent-attest is a UEFI program: build it with --profile firmware --target x86_64-unknown-uefi");
    std::process::ExitCode::FAILURE
}
