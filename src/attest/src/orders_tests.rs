//! A machine whose power fails, and an appliance that knows of it only what it is told.

use super::*;
use crate::smbios::Memory;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use kurrent_handshake::{Answer, FLAG_MAY_PIN, Link, Rotation, Side, boot_public_key, expected};

#[path = "unseal_tests.rs"]
mod unseal;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const SERVER_SECRET: [u8; 32] = [4; 32];

/// A store that loses power after so many writes; from then on nothing can be written.
#[derive(Clone)]
struct Fake {
    variables: BTreeMap<String, (Kind, Vec<u8>)>,
    writes_left: usize,
    writes: usize,
    drawn: u8,
    said: Vec<String>,
    /// Replaces by removing and writing, as firmware without fault tolerance does.
    in_two_steps: bool,
    /// Says that it has written non-volatile variables, and has not.
    forgets: bool,
    full: bool,
    /// Takes everything but this.
    refuses: Option<&'static str>,
}

impl Fake {
    fn new(in_two_steps: bool) -> Self {
        let variables = BTreeMap::new();
        let said = vec![];
        Self { variables, writes_left: usize::MAX, writes: 0, drawn: 0, said, in_two_steps, forgets: false, full: false, refuses: None }
    }

    fn spend(&mut self) -> Result<(), Refusal> {
        self.writes_left = self.writes_left.checked_sub(1).ok_or(Refusal::Firmware)?;
        self.writes += 1;
        Ok(())
    }

    fn set(&mut self, name: &str, kind: Kind, octets: &[u8]) -> Result<(), Refusal> {
        self.spend()?;
        if self.full && kind == Kind::Protected || self.refuses == Some(name) {
            return Err(Refusal::Firmware);
        }
        if !(self.forgets && kind == Kind::Protected) {
            self.variables.insert(name.into(), (kind, octets.into()));
        }
        Ok(())
    }

    /// Off and on again.
    fn power_cycle(&mut self) {
        self.variables.retain(|_, (kind, _)| matches!(kind, Kind::Protected | Kind::Taken));
        (self.writes_left, self.writes) = (usize::MAX, 0);
        self.said.clear();
    }

    fn octets(&self, name: &str) -> Option<&[u8]> {
        self.variables.get(name).map(|(_, octets)| octets.as_slice())
    }

    fn seed(&self, name: &str) -> Option<[u8; 32]> {
        self.octets(name).map(|octets| octets.try_into().unwrap())
    }

    fn public(&self, name: &str) -> [u8; 32] {
        SigningKey::from_bytes(&self.seed(name).unwrap()).verifying_key().to_bytes()
    }
}

impl Machine for Fake {
    fn read<const N: usize>(&mut self, name: &str, kind: Kind) -> Result<Option<Zeroizing<[u8; N]>>, Refusal> {
        match self.variables.get(name) {
            Some((found, octets)) if *found == kind => {
                Ok(Some(Zeroizing::new(octets.as_slice().try_into().map_err(|_| Refusal::Firmware)?)))
            }
            Some(_) => self.remove(name).map(|()| None),
            None => Ok(None),
        }
    }

    fn write(&mut self, name: &str, kind: Kind, octets: &[u8]) -> Result<(), Refusal> {
        assert!(!octets.is_empty(), "an empty value removes the variable");
        if kind == Kind::Protected {
            if self.variables.contains_key(name) {
                return Err(Refusal::Firmware);
            }
        } else {
            self.remove(name)?;
        }
        self.set(name, kind, octets)
    }

    fn replace(&mut self, name: &str, octets: &[u8; 32]) -> Result<(), Refusal> {
        assert!(self.variables.contains_key(name), "only what is there is replaced");
        if self.in_two_steps {
            self.remove(name)?;
        }
        self.set(name, Kind::Protected, octets)
    }

    fn remove(&mut self, name: &str) -> Result<(), Refusal> {
        if self.variables.contains_key(name) {
            self.spend()?;
            self.variables.remove(name);
        }
        Ok(())
    }

    fn remove_lookalikes(&mut self, names: &[&str]) -> Result<(), Refusal> {
        assert!(names.contains(&VARIABLE_REKEY) && names.contains(&VARIABLE_PUBLIC_KEY));
        Ok(())
    }

    fn random(&mut self) -> Result<Zeroizing<[u8; 32]>, Refusal> {
        self.drawn += 1;
        Ok(Zeroizing::new([self.drawn; 32]))
    }

    fn memory(&mut self) -> Option<Memory> {
        Some(Memory { kind: "DDR5", speed: 4800, total_mib: 1024 })
    }

    fn say(&mut self, line: &str) {
        self.said.push(line.into());
    }
}

/// The appliance's side.
struct Appliance {
    server: SigningKey,
    links: Vec<Link>,
    stored: [u8; 32],
    nonce: u8,
}

impl Appliance {
    fn new(stored: [u8; 32]) -> Self {
        Self { server: SigningKey::from_bytes(&[200; 32]), links: vec![], stored, nonce: 0 }
    }

    fn server_key(&self) -> [u8; 32] {
        self.server.verifying_key().to_bytes()
    }

    fn challenge(&mut self, flags: u8) -> Challenge {
        self.nonce += 1;
        let nonce = [self.nonce; 32];
        Challenge {
            nonce,
            mac: MAC,
            server_boot_key: boot_public_key(&SERVER_SECRET),
            flags,
            expected: expected(&nonce, &MAC, &self.stored),
        }
    }

    /// As the boot script gives it.
    fn words(&self, challenge: &Challenge) -> String {
        let hex = |octets: &[u8]| octets.iter().map(|o| format!("{o:02x}")).collect::<String>();
        let links: String = self.links.iter().map(|link| hex(&link.to_bytes())).collect();
        let Challenge { nonce, server_boot_key, flags, expected, .. } = challenge;
        format!(
            "x.efi answer {} 02:00:00:00:00:01 00112233-4455-6677-8899-aabbccddeeff {} {} {flags} {} {} {links}",
            hex(nonce),
            hex(&self.server_key()),
            hex(server_boot_key),
            hex(expected),
            hex(&challenge.sign(&self.server))
        )
    }

    /// Whether what the machine left proves it; a new key is stored then.
    fn takes(&mut self, challenge: &Challenge, machine: &Fake) -> bool {
        let (Some(signature), Some(boot_key)) = (machine.octets(VARIABLE_ANSWER), machine.octets(VARIABLE_BOOT_KEY)) else { return false };
        let uuid = [0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff];
        let answer = Answer { challenge: *challenge, uuid, server_key: self.server_key(), device_boot_key: boot_key.try_into().unwrap() };
        if answer.verify(&self.stored, signature.try_into().unwrap()).is_err() {
            return false;
        }
        assert!(answer.session(&SERVER_SECRET, Side::Appliance).is_ok());
        if let Some(rekey) = machine.octets(VARIABLE_REKEY) {
            let signed = SignedRekey::from_bytes(rekey.try_into().unwrap());
            let Challenge { nonce, mac, .. } = *challenge;
            let rekey = Rekey { nonce, mac, server_key: self.server_key(), old: self.stored, new: signed.new };
            assert_eq!(rekey.verify(&signed), Ok(()));
            self.stored = signed.new;
        }
        true
    }

    /// One whole boot: identify, challenge, answer.
    fn boots(&mut self, machine: &mut Fake, flags: u8) -> bool {
        machine.power_cycle();
        run(machine, Some("x.efi identify")).unwrap();
        let challenge = self.challenge(flags);
        run(machine, Some(&self.words(&challenge))).is_ok() && self.takes(&challenge, machine)
    }
}

/// A machine that is known to an appliance and has pinned it.
fn known(in_two_steps: bool) -> (Fake, Appliance) {
    let mut machine = Fake::new(in_two_steps);
    run(&mut machine, Some("x.efi identify")).unwrap();
    let mut appliance = Appliance::new(machine.public(VARIABLE_KEY));
    assert!(appliance.boots(&mut machine, FLAG_MAY_PIN));
    (machine, appliance)
}

#[test]
fn a_rekey_leads_over_both_signatures_to_one_key() {
    let (mut machine, mut appliance) = known(false);
    let old = appliance.stored;
    assert!(appliance.boots(&mut machine, FLAG_REKEY));
    assert_ne!(appliance.stored, old);
    assert_eq!((machine.public(VARIABLE_KEY), machine.public(VARIABLE_KEY_NEXT)), (old, appliance.stored));
    assert!(machine.said.iter().any(|line| line.contains("new device key, as the server ordered")));
    // The same start of the script: it asks again and is told what is expected now.
    let challenge = appliance.challenge(0);
    run(&mut machine, Some(&appliance.words(&challenge))).unwrap();
    assert_eq!(machine.octets(VARIABLE_REKEY), None, "what the last run left is gone");
    assert!(appliance.takes(&challenge, &machine));
    assert_eq!((machine.public(VARIABLE_KEY), machine.seed(VARIABLE_KEY_NEXT)), (appliance.stored, None));
    assert_eq!(machine.octets(VARIABLE_PUBLIC_KEY), Some(appliance.stored.as_slice()), "the next report shows it");
    assert!(appliance.boots(&mut machine, 0));
}

/// Each write may be the last one, on its way to the new key and on its way to the one place; whether or not the appliance got
/// to hear of the new key.
#[test]
fn a_power_cut_at_each_write_leaves_a_machine_that_can_prove_itself() {
    for in_two_steps in [false, true] {
        let (machine, appliance) = known(in_two_steps);
        let mut cuts = 0;
        for promote in [false, true] {
            for after in 0.. {
                let (mut machine, mut appliance) =
                    (machine.clone(), Appliance { links: vec![], server: appliance.server.clone(), ..appliance });
                if promote {
                    assert!(appliance.boots(&mut machine, FLAG_REKEY));
                }
                machine.power_cycle();
                machine.writes_left = after;
                let challenge = appliance.challenge(if promote { 0 } else { FLAG_REKEY });
                let words = appliance.words(&challenge);
                let done = run(&mut machine, Some("x.efi identify")).and_then(|()| run(&mut machine, Some(&words))).is_ok();
                // What the machine left may have been sent, or lost.
                for sent in [true, false] {
                    let (mut machine, mut appliance) =
                        (machine.clone(), Appliance { links: vec![], server: appliance.server.clone(), ..appliance });
                    if sent && done {
                        assert!(appliance.takes(&challenge, &machine), "two steps: {in_two_steps}");
                    }
                    let at = format!("cut after write {after}, two steps: {in_two_steps}, promoting: {promote}, sent: {sent}");
                    assert!(appliance.boots(&mut machine, 0), "{at}");
                    assert_eq!(machine.public(VARIABLE_KEY), appliance.stored, "{at}");
                    // And it can be rekeyed again, however the first time ended.
                    let before = appliance.stored;
                    assert!(appliance.boots(&mut machine, FLAG_REKEY) && appliance.stored != before, "{at}");
                    assert!(appliance.boots(&mut machine, 0), "{at}");
                }
                cuts += 1;
                if done {
                    break;
                }
            }
        }
        assert!(cuts > 15, "{cuts} cuts");
    }
}

#[test]
fn a_new_server_key_is_pinned_before_it_is_answered_whatever_the_power_does() {
    for in_two_steps in [false, true] {
        let (machine, mut appliance) = known(in_two_steps);
        for n in 201..204 {
            let next = SigningKey::from_bytes(&[n; 32]);
            let rotation = Rotation { old: appliance.server_key(), new: next.verifying_key().to_bytes() };
            appliance.links.push(Link { new: rotation.new, signature: rotation.sign(&appliance.server) });
            appliance.server = next;
        }
        for after in 0.. {
            let mut machine = machine.clone();
            machine.power_cycle();
            machine.writes_left = after;
            let challenge = appliance.challenge(0);
            let words = appliance.words(&challenge);
            let done = run(&mut machine, Some("x.efi identify")).and_then(|()| run(&mut machine, Some(&words))).is_ok();
            if machine.octets(VARIABLE_ANSWER).is_some() {
                assert_eq!(machine.seed(VARIABLE_SERVER), Some(appliance.server_key()), "answered before it was pinned");
                assert!(machine.said.iter().any(|line| line.contains("new key, signed by its old one")));
            }
            // Firmware that replaces in two steps may have lost the pin: then a bound device may pin again.
            let flags = if in_two_steps { FLAG_MAY_PIN } else { 0 };
            assert!(appliance.boots(&mut machine, flags), "cut after write {after}");
            assert_eq!(machine.seed(VARIABLE_SERVER), Some(appliance.server_key()));
            assert!(appliance.boots(&mut machine, 0), "links from where it is no more do no harm");
            if done {
                break;
            }
        }
    }
}

#[test]
fn another_server_is_refused_and_changes_nothing() {
    let (mut machine, appliance) = known(false);
    let mut other = Appliance { server: SigningKey::from_bytes(&[99; 32]), ..Appliance::new(appliance.stored) };
    let mine = Rotation { old: appliance.server_key(), new: other.server_key() };
    for links in [vec![], vec![Link { new: mine.new, signature: mine.sign(&other.server) }]] {
        other.links = links;
        let before = machine.variables.clone();
        let challenge = other.challenge(FLAG_MAY_PIN | FLAG_REKEY);
        assert_eq!(run(&mut machine, Some(&other.words(&challenge))), Err(Refusal::WrongServer));
        for kept in [VARIABLE_KEY, VARIABLE_SERVER] {
            assert_eq!(machine.variables.get(kept), before.get(kept));
        }
        for left in [VARIABLE_KEY_NEXT, VARIABLE_ANSWER, VARIABLE_REKEY, VARIABLE_SESSION] {
            assert_eq!(machine.octets(left), None, "{left}");
        }
    }
    assert_eq!((Refusal::WrongServer.word(), Refusal::WrongServer.line().contains("refused")), ("wrong_server", true));
}

#[test]
fn no_key_is_made_for_an_appliance_that_has_another_one() {
    let (mut machine, mut appliance) = known(false);
    appliance.stored = SigningKey::from_bytes(&[77; 32]).verifying_key().to_bytes();
    assert!(!appliance.boots(&mut machine, FLAG_REKEY));
    assert_eq!((machine.seed(VARIABLE_KEY_NEXT), machine.octets(VARIABLE_REKEY)), (None, None));
}

#[test]
fn a_machine_that_can_not_store_a_new_key_keeps_its_old_one_and_says_so() {
    for (full, forgets) in [(true, false), (false, true)] {
        let (mut machine, mut appliance) = known(false);
        (machine.full, machine.forgets) = (full, forgets);
        let before = appliance.stored;
        assert!(appliance.boots(&mut machine, FLAG_REKEY));
        assert_eq!((appliance.stored, machine.octets(VARIABLE_REKEY)), (before, None));
        assert!(machine.said.iter().any(|line| line.contains("keeps its old one")), "{:?}", machine.said);
    }
    let mut machine = Fake { forgets: true, ..Fake::new(false) };
    assert_eq!(run(&mut machine, Some("x.efi identify")), Err(Refusal::Firmware), "a key that is not stored is no identity");
}

#[test]
fn a_key_that_an_operating_system_planted_is_never_promoted() {
    let (mut machine, mut appliance) = known(false);
    let planted = SigningKey::from_bytes(&[66; 32]);
    machine.variables.insert(VARIABLE_KEY_NEXT.into(), (Kind::Taken, planted.to_bytes().to_vec()));
    assert!(appliance.boots(&mut machine, FLAG_REKEY));
    assert_ne!(appliance.stored, planted.verifying_key().to_bytes());
}

#[test]
fn no_secret_is_said_or_left_where_ipxe_reads() {
    let (mut machine, mut appliance) = known(false);
    assert!(appliance.boots(&mut machine, FLAG_REKEY));
    let secrets = [machine.seed(VARIABLE_KEY), machine.seed(VARIABLE_KEY_NEXT), machine.seed(VARIABLE_SESSION_MASK)].map(Option::unwrap);
    for (name, (kind, octets)) in &machine.variables {
        if *kind == Kind::Volatile {
            assert!(secrets.iter().all(|secret| octets.windows(32).all(|part| part != secret)), "{name}");
        }
    }
    let said = machine.said.join("\n");
    assert!(secrets.iter().all(|secret| !said.contains(&secret.iter().map(|o| format!("{o:02x}")).collect::<String>())));
}
