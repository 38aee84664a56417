//! `kurrent-attest.efi`: holds the device key and answers the appliance's challenge; chained by stock iPXE, returns to it.
//!
//! It never writes a secret to the console, never overwrites a device key, and leaves the session key only for stage-1.
//! What it decides is in the library beside it; here are the order of events and the console lines. The firmware calls
//! are in `firmware`.
#![cfg_attr(target_os = "uefi", no_std, no_main)]

#[cfg(target_os = "uefi")]
extern crate alloc;

#[cfg(target_os = "uefi")]
mod firmware;

#[cfg(target_os = "uefi")]
mod program {
    use crate::firmware::{self, Kind};
    use alloc::format;
    use ed25519_dalek::SigningKey;
    use kurrent_attest::Refusal;
    use kurrent_attest::arguments::{Order, Request, parse};
    use kurrent_attest::exchange::{Pin, accept, answer};
    use kurrent_handshake::{
        VARIABLE_ANSWER, VARIABLE_BOOT_KEY, VARIABLE_ERROR, VARIABLE_KEY, VARIABLE_MEMORY_SPEED, VARIABLE_MEMORY_TOTAL,
        VARIABLE_MEMORY_TYPE, VARIABLE_PUBLIC_KEY, VARIABLE_SERVER, VARIABLE_SESSION, VARIABLE_SESSION_MASK,
    };
    use uefi::{Status, entry, println};
    use zeroize::Zeroizing;

    /// Variables that the boot script reads.
    const READ_BY_IPXE: [&str; 7] = [
        VARIABLE_PUBLIC_KEY,
        VARIABLE_MEMORY_TYPE,
        VARIABLE_MEMORY_SPEED,
        VARIABLE_MEMORY_TOTAL,
        VARIABLE_ANSWER,
        VARIABLE_BOOT_KEY,
        VARIABLE_ERROR,
    ];

    #[entry]
    fn main() -> Status {
        match run() {
            Ok(()) => Status::SUCCESS,
            Err(refusal) => {
                println!("Kurrent: {}", refusal.line());
                // Without this variable the script says "unknown": nothing more can be done about it here.
                let _ = firmware::write(VARIABLE_ERROR, Kind::Volatile, refusal.word().as_bytes());
                match refusal {
                    Refusal::NoEntropy => Status::UNSUPPORTED,
                    Refusal::WrongServer | Refusal::Forged => Status::SECURITY_VIOLATION,
                    Refusal::BadArguments => Status::INVALID_PARAMETER,
                    Refusal::Firmware => Status::DEVICE_ERROR,
                }
            }
        }
    }

    fn run() -> Result<(), Refusal> {
        // What an earlier run left must not pass for this one's. The session may even be an earlier boot's, left to
        // runtime by an operating system that was not ours.
        for stale in [VARIABLE_ERROR, VARIABLE_ANSWER, VARIABLE_BOOT_KEY, VARIABLE_SESSION] {
            firmware::remove(stale)?;
        }
        firmware::remove_lookalikes(&READ_BY_IPXE)?;
        let load_options = firmware::load_options().ok_or(Refusal::BadArguments)?;
        match parse(&load_options)? {
            Order::Identify => identify(),
            Order::Answer(request) => answer_challenge(&request),
        }
    }

    fn identify() -> Result<(), Refusal> {
        let key = device_key()?;
        // Once for each start of the script, not for each answer: a machine may wait for days, and flash wears.
        firmware::write(VARIABLE_SESSION_MASK, Kind::Taken, firmware::random::<32>()?.as_slice())?;
        firmware::write(VARIABLE_PUBLIC_KEY, Kind::Volatile, key.verifying_key().as_bytes())?;
        if let Some(memory) = firmware::memory() {
            firmware::write(VARIABLE_MEMORY_TYPE, Kind::Volatile, memory.kind.as_bytes())?;
            firmware::write(VARIABLE_MEMORY_TOTAL, Kind::Volatile, format!("{}", memory.total_mib).as_bytes())?;
            firmware::write(VARIABLE_MEMORY_SPEED, Kind::Volatile, format!("{}", memory.speed).as_bytes())?;
        }
        Ok(())
    }

    fn answer_challenge(request: &Request) -> Result<(), Refusal> {
        let pinned = firmware::read::<32>(VARIABLE_SERVER, Kind::Protected)?;
        let pin = accept(request, pinned.as_deref())?;
        let device = device_key()?;
        let boot_secret = firmware::random::<32>()?;
        let reply = answer(request, &device, &boot_secret)?;
        if pin == Pin::Store {
            firmware::write(VARIABLE_SERVER, Kind::Protected, &request.server_key)?;
            println!("Kurrent: this machine now trusts this server only");
        }
        firmware::write(VARIABLE_ANSWER, Kind::Volatile, &reply.signature)?;
        firmware::write(VARIABLE_BOOT_KEY, Kind::Volatile, &reply.boot_key)?;
        firmware::write(VARIABLE_SESSION, Kind::Handed, reply.session.to_handed(&*session_mask()?).as_slice())
    }

    /// What masks this boot's session; made by [`identify`], or here if that did not run.
    fn session_mask() -> Result<Zeroizing<[u8; 32]>, Refusal> {
        if let Some(mask) = firmware::read::<32>(VARIABLE_SESSION_MASK, Kind::Taken)? {
            return Ok(mask);
        }
        let mask = firmware::random::<32>()?;
        firmware::write(VARIABLE_SESSION_MASK, Kind::Taken, mask.as_slice())?;
        Ok(mask)
    }

    /// The device key; made and stored first when there is none.
    fn device_key() -> Result<SigningKey, Refusal> {
        if let Some(seed) = firmware::read::<32>(VARIABLE_KEY, Kind::Protected)? {
            return Ok(SigningKey::from_bytes(&seed));
        }
        let seed: Zeroizing<[u8; 32]> = firmware::random()?;
        firmware::write(VARIABLE_KEY, Kind::Protected, seed.as_slice())?;
        // Some firmware reports success and stores nothing: a key that is gone at the next boot is no identity.
        let stored = firmware::read::<32>(VARIABLE_KEY, Kind::Protected)?;
        if stored.is_none_or(|stored| *stored != *seed) {
            return Err(Refusal::Firmware);
        }
        println!("Kurrent: made this machine's device key");
        Ok(SigningKey::from_bytes(&seed))
    }
}

#[cfg(not(target_os = "uefi"))]
fn main() -> std::process::ExitCode {
    eprintln!("kurrent-attest is a UEFI program: build it with --target x86_64-unknown-uefi");
    std::process::ExitCode::FAILURE
}
