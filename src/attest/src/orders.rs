//! What each order does, step by step. Power may fail before and after each write: what stands in the store then must still
//! prove who the machine is, to an appliance that has stored its new key and to one that has not.
//!
//! ```text
//! KurrentKey      KurrentKeyNext
//! old             -               the usual
//! old             new             a rekey was ordered; the appliance has the old key, or by now the new one
//! new             new             its challenge expects the new key: the old one is replaced, in one firmware call
//! new             -               the usual
//! -               new             firmware that replaces in two steps lost power between them: as the line above
//! ```
//!
//! A session is good for one thing: stage-1 takes it, or `unseal` does, whether or not that succeeds.

use crate::Refusal;
use crate::arguments::{Order, Request, parse};
use crate::exchange::{Pin, accept, answer};
use crate::machine::{Kind, Machine};
use alloc::format;
use ed25519_dalek::SigningKey;
use kurrent_handshake::{
    Challenge, Chap, FLAG_REKEY, Rekey, Session, SignedRekey, VARIABLE_ANSWER, VARIABLE_BOOT_KEY, VARIABLE_CHAP_MUTUAL_SECRET,
    VARIABLE_CHAP_MUTUAL_USER, VARIABLE_CHAP_SECRET, VARIABLE_CHAP_USER, VARIABLE_ERROR, VARIABLE_KEY, VARIABLE_KEY_NEXT,
    VARIABLE_MEMORY_SPEED, VARIABLE_MEMORY_TOTAL, VARIABLE_MEMORY_TYPE, VARIABLE_PUBLIC_KEY, VARIABLE_REKEY, VARIABLE_SERVER,
    VARIABLE_SESSION, VARIABLE_SESSION_MASK, same,
};
use zeroize::Zeroizing;

/// Variables that the boot script reads.
const READ_BY_IPXE: [&str; 13] = [
    VARIABLE_PUBLIC_KEY,
    VARIABLE_MEMORY_TYPE,
    VARIABLE_MEMORY_SPEED,
    VARIABLE_MEMORY_TOTAL,
    VARIABLE_SERVER,
    VARIABLE_ANSWER,
    VARIABLE_BOOT_KEY,
    VARIABLE_REKEY,
    VARIABLE_CHAP_USER,
    VARIABLE_CHAP_SECRET,
    VARIABLE_CHAP_MUTUAL_USER,
    VARIABLE_CHAP_MUTUAL_SECRET,
    VARIABLE_ERROR,
];
/// What an earlier run left must not pass for this one's. The session may even be an earlier boot's, left to runtime by an
/// operating system that was not ours.
const STALE: [&str; 9] = [
    VARIABLE_ERROR,
    VARIABLE_ANSWER,
    VARIABLE_BOOT_KEY,
    VARIABLE_REKEY,
    VARIABLE_SESSION,
    VARIABLE_CHAP_USER,
    VARIABLE_CHAP_SECRET,
    VARIABLE_CHAP_MUTUAL_USER,
    VARIABLE_CHAP_MUTUAL_SECRET,
];

/// Does what the load options say.
///
/// # Errors
/// [`Refusal`].
pub fn run(machine: &mut impl Machine, load_options: Option<&str>) -> Result<(), Refusal> {
    let order = load_options.ok_or(Refusal::BadArguments).and_then(parse);
    let session = if matches!(order, Ok(Order::Unseal(_))) { left_session(machine) } else { Ok(None) };
    for stale in STALE {
        machine.remove(stale)?;
    }
    machine.remove_lookalikes(&READ_BY_IPXE)?;
    match order? {
        Order::Identify => identify(machine),
        Order::Answer(request) => answer_challenge(machine, &request),
        Order::Unseal(blob) => unseal(machine, session?, &blob),
    }
}

fn identify(machine: &mut impl Machine) -> Result<(), Refusal> {
    let key = device_key(machine)?;
    // Once for each start of the script, not for each answer: a machine may wait for days, and flash wears.
    let mask = machine.random()?;
    machine.write(VARIABLE_SESSION_MASK, Kind::Taken, mask.as_slice())?;
    machine.write(VARIABLE_PUBLIC_KEY, Kind::Volatile, key.verifying_key().as_bytes())?;
    if let Some(memory) = machine.memory() {
        machine.write(VARIABLE_MEMORY_TYPE, Kind::Volatile, memory.kind.as_bytes())?;
        machine.write(VARIABLE_MEMORY_TOTAL, Kind::Volatile, format!("{}", memory.total_mib).as_bytes())?;
        machine.write(VARIABLE_MEMORY_SPEED, Kind::Volatile, format!("{}", memory.speed).as_bytes())?;
    }
    Ok(())
}

fn answer_challenge(machine: &mut impl Machine, request: &Request) -> Result<(), Refusal> {
    let pinned = machine.read(VARIABLE_SERVER, Kind::Protected)?;
    let pin = accept(request, pinned.as_deref())?;
    let device = expected_key(machine, &request.challenge)?;
    let boot_secret = machine.random()?;
    let reply = answer(request, &device, &boot_secret)?;
    match pin {
        Pin::Known => {}
        Pin::Store => {
            machine.write(VARIABLE_SERVER, Kind::Protected, &request.server_key)?;
            machine.say("this machine now trusts this server only");
        }
        Pin::Move => {
            machine.replace(VARIABLE_SERVER, &request.server_key)?;
            machine.say("this server has a new key, signed by its old one; this machine now trusts the new key only");
        }
    }
    let rekey = ordered_rekey(machine, request, &device);
    machine.write(VARIABLE_ANSWER, Kind::Volatile, &reply.signature)?;
    machine.write(VARIABLE_BOOT_KEY, Kind::Volatile, &reply.boot_key)?;
    if let Some(rekey) = rekey {
        machine.write(VARIABLE_REKEY, Kind::Volatile, &rekey.to_bytes())?;
    }
    let mask = session_mask(machine)?;
    machine.write(VARIABLE_SESSION, Kind::Handed, reply.session.to_handed(&mask).as_slice())
}

/// The session that the last answer left.
fn left_session(machine: &mut impl Machine) -> Result<Option<Session>, Refusal> {
    let handed = machine.read::<{ Session::LEN }>(VARIABLE_SESSION, Kind::Handed)?;
    let mask = machine.read::<32>(VARIABLE_SESSION_MASK, Kind::Taken)?;
    Ok(handed.zip(mask).and_then(|(handed, mask)| Session::from_handed(handed.as_slice(), mask.as_slice())))
}

/// Opens a login to an iSCSI target and leaves it for iPXE. The session itself is gone from the store already; its mask goes here,
/// as no stage-1 will take it.
fn unseal(machine: &mut impl Machine, session: Option<Session>, blob: &[u8]) -> Result<(), Refusal> {
    machine.remove(VARIABLE_SESSION_MASK)?;
    let plaintext = session.and_then(|session| session.open(blob).ok()).ok_or(Refusal::BadSeal)?;
    let chap = Chap::parse(&plaintext).ok_or(Refusal::BadLogin)?;
    let left = [
        (VARIABLE_CHAP_USER, chap.user),
        (VARIABLE_CHAP_SECRET, chap.secret),
        (VARIABLE_CHAP_MUTUAL_USER, chap.mutual_user),
        (VARIABLE_CHAP_MUTUAL_SECRET, chap.mutual_secret),
    ];
    let written = left.iter().try_for_each(|(name, value)| machine.write(name, Kind::Volatile, value.as_bytes()));
    if written.is_err() {
        // Half a login opens nothing, and is a secret all the same.
        left.iter().try_for_each(|(name, _)| machine.remove(name))?;
    } else {
        machine.say("opened this start's login to its disk");
    }
    written
}

/// What masks this boot's session; made by [`identify`], or here if that did not run.
fn session_mask(machine: &mut impl Machine) -> Result<Zeroizing<[u8; 32]>, Refusal> {
    if let Some(mask) = machine.read(VARIABLE_SESSION_MASK, Kind::Taken)? {
        return Ok(mask);
    }
    let mask = machine.random()?;
    machine.write(VARIABLE_SESSION_MASK, Kind::Taken, mask.as_slice())?;
    Ok(mask)
}

/// The device key; made and stored first when there is none.
fn device_key(machine: &mut impl Machine) -> Result<SigningKey, Refusal> {
    if let Some(seed) = machine.read(VARIABLE_KEY, Kind::Protected)? {
        return Ok(SigningKey::from_bytes(&seed));
    }
    // Only a replacement that was cut short leaves the next key alone.
    if let Some(next) = machine.read(VARIABLE_KEY_NEXT, Kind::Protected)? {
        return store(machine, VARIABLE_KEY, next);
    }
    let seed = machine.random()?;
    let key = store(machine, VARIABLE_KEY, seed)?;
    machine.say("made this machine's device key");
    Ok(key)
}

/// Stores a seed under a name that is free.
fn store(machine: &mut impl Machine, name: &str, seed: Zeroizing<[u8; 32]>) -> Result<SigningKey, Refusal> {
    machine.write(name, Kind::Protected, seed.as_slice())?;
    stored(machine, name, &seed)
}

/// The key of a seed that was stored. Some firmware reports success and stores nothing: a key that is gone at the next boot is
/// no identity.
fn stored(machine: &mut impl Machine, name: &str, seed: &[u8; 32]) -> Result<SigningKey, Refusal> {
    let found = machine.read::<32>(name, Kind::Protected)?.ok_or(Refusal::Firmware)?;
    if same(found.as_slice(), seed) { Ok(SigningKey::from_bytes(seed)) } else { Err(Refusal::Firmware) }
}

/// The key that answers: the stored one, or the next one if that is what the appliance expects by now; then it is the stored
/// one from here on.
fn expected_key(machine: &mut impl Machine, challenge: &Challenge) -> Result<SigningKey, Refusal> {
    let current = device_key(machine)?;
    if challenge.expects(current.verifying_key().as_bytes()) {
        return Ok(current);
    }
    let Some(seed) = machine.read(VARIABLE_KEY_NEXT, Kind::Protected)? else { return Ok(current) };
    let next = SigningKey::from_bytes(&seed);
    if !challenge.expects(next.verifying_key().as_bytes()) {
        return Ok(current);
    }
    machine.replace(VARIABLE_KEY, &seed)?;
    stored(machine, VARIABLE_KEY, &seed)?;
    machine.remove(VARIABLE_KEY_NEXT)?;
    machine.write(VARIABLE_PUBLIC_KEY, Kind::Volatile, next.verifying_key().as_bytes())?;
    machine.say("this machine's new device key is in place");
    Ok(next)
}

/// The new key that the challenge orders, stored and signed. A machine that can not store one says so and keeps its old key.
fn ordered_rekey(machine: &mut impl Machine, request: &Request, old: &SigningKey) -> Option<SignedRekey> {
    let challenge = &request.challenge;
    let old_key = old.verifying_key().to_bytes();
    // Without `expects`: the answer is refused anyway, and a key to come must not be made for an appliance that has another one.
    if challenge.flags & FLAG_REKEY == 0 || !challenge.expects(&old_key) {
        return None;
    }
    let Ok(next) = next_key(machine, old) else {
        machine.say("a new device key was ordered and could not be stored; this machine keeps its old one");
        return None;
    };
    machine.say("made a new device key, as the server ordered");
    let Challenge { nonce, mac, .. } = *challenge;
    let rekey = Rekey { nonce, mac, server_key: request.server_key, old: old_key, new: next.verifying_key().to_bytes() };
    Some(rekey.sign(old, &next))
}

/// The key to come: the one that an earlier answer has named, if the appliance never stored it, else a new one.
fn next_key(machine: &mut impl Machine, old: &SigningKey) -> Result<SigningKey, Refusal> {
    match machine.read(VARIABLE_KEY_NEXT, Kind::Protected)? {
        Some(seed) if !same(seed.as_slice(), old.as_bytes()) => return Ok(SigningKey::from_bytes(&seed)),
        // Left from a replacement that was cut short after its first step.
        Some(_) => machine.remove(VARIABLE_KEY_NEXT)?,
        None => {}
    }
    let seed = machine.random()?;
    store(machine, VARIABLE_KEY_NEXT, seed)
}

#[cfg(test)]
#[path = "orders_tests.rs"]
mod tests;
