//! A login that was sealed for one start, from the firmware program through stock iPXE into a real iSCSI target, and what an operating
//! system that boots from there can still see of it.
//!
//! `kurrentd` has no iSCSI target yet: dnsmasq gives addresses and files here, and the test is the appliance. Firmware, iPXE, firmware
//! program, what is signed and sealed, target, boot loader and kernel are the real ones.

mod disk;
mod plane;
mod portal;

use anyhow::{Context, Result, ensure};
use disk::Hidden;
use ed25519_dalek::SigningKey;
use kurrent_handshake::{Answer, Challenge, Chap, EXPECTS_NONE, FLAG_MAY_PIN, Session, Side, boot_public_key};
use kurrent_harness::machine::Machine;
use plane::{MAC, Plane, attest, hex};
use portal::Portal;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Power-on to the first step; 5 to 15 s on an idle machine.
const STARTS_WITHIN: Duration = Duration::from_secs(300);
/// From one step to the next under emulation, a busy machine beside it.
const NEXT_WITHIN: Duration = Duration::from_secs(120);
/// A boot loader, a kernel and its initramfs from a disk over the network, under emulation.
const BOOTS_WITHIN: Duration = Duration::from_secs(360);
/// What the boot loader and the kernel in the disk need.
const MEMORY_MIB: u32 = 512;

const CHAP: Chap<'_> = Chap {
    user: "iqn.2026-11.lab.kurrent:host.atlas.e7",
    secret: "iLqf8ZqHzv2xYw4N",
    mutual_user: "iqn.2026-11.lab.kurrent:atlas",
    mutual_secret: "R5tPq0aJm7sKd1eB",
};
/// The variables that a login is left in, in the order in which [`SETTINGS`] takes them.
const LEFT: [&str; 4] = ["KurrentChapUser", "KurrentChapSecret", "KurrentChapMutualUser", "KurrentChapMutualSecret"];
/// iPXE's settings for CHAP in both directions.
const SETTINGS: [&str; 4] = ["username", "password", "reverse-username", "reverse-password"];

/// The appliance's side of the handshake.
struct Appliance {
    server: SigningKey,
    boot_secret: [u8; 32],
    nonce: u8,
}

impl Appliance {
    /// Has the machine answer a challenge; the session that follows.
    fn challenge(&mut self, plane: &mut Plane, machine: &mut Machine) -> Result<Session> {
        self.nonce += 1;
        let server_key = self.server.verifying_key().to_bytes();
        let server_boot_key = boot_public_key(&self.boot_secret);
        let challenge = Challenge { nonce: [self.nonce; 32], mac: MAC.0, server_boot_key, flags: FLAG_MAY_PIN, expected: EXPECTS_NONE };
        let words = [
            hex(&challenge.nonce),
            "${netX/mac} ${uuid}".into(),
            hex(&server_key),
            hex(&server_boot_key),
            FLAG_MAY_PIN.to_string(),
            hex(&EXPECTS_NONE),
            hex(&challenge.sign(&self.server)),
        ];
        let label = format!("lab-key-{}", self.nonce);
        plane.step(&format!(
            "{} || echo lab-failed ${{efi/KurrentError:string}}\necho {label} ${{efi/KurrentBootKey:hexraw}}",
            attest(&format!("answer {}", words.join(" ")))
        ))?;
        let device_boot_key = machine.console.wait_until("the machine's boot key", NEXT_WITHIN, |text| {
            let (before, rest) = text.split_once(&format!("{label} "))?;
            let digits = rest.get(..64)?;
            let octets: Option<Vec<u8>> = (0..64).step_by(2).map(|at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok()).collect();
            Some((<[u8; 32]>::try_from(octets?).ok()?, before.len() + label.len() + 1 + digits.len()))
        })?;
        let answer = Answer { challenge, uuid: [0; 16], server_key, device_boot_key };
        answer.session(&self.boot_secret, Side::Appliance).ok().context("the machine's boot key is of low order")
    }
}

/// Opens a blob and gives iPXE what is left of it, whatever that is.
fn unseal(blob: &[u8]) -> String {
    let settings = SETTINGS.iter().zip(LEFT).map(|(setting, left)| format!("set {setting} ${{efi/{left}:string}} ||\n"));
    format!(
        "{} && echo lab-opened || echo lab-refused ${{efi/KurrentError:string}}.\n{}echo lab-user [${{username}}]\n\
         isset ${{efi/KurrentSession:hexraw}} && echo lab-session-left || echo lab-session-gone",
        attest(&format!("unseal {}", hex(blob))),
        settings.collect::<String>()
    )
}

/// Logs in; `said` comes before how it went.
fn hook(portal: &Portal, said: &str) -> String {
    format!("sanhook --drive {} {} && echo {said}-hooked || echo {said}-not-hooked", portal.drive(), portal.uri())
}

#[test]
fn a_login_opens_its_disk_for_one_start_of_one_machine_and_the_system_that_boots_sees_no_variable_of_it() -> Result<()> {
    let mut plane = Plane::new("iscsi")?;
    let secrets = [CHAP.secret, CHAP.mutual_secret];
    let disk = disk::bootable(&plane.run, &Hidden::new(&secrets))?;
    let portal = Portal::start(&plane, 0, &disk, &CHAP)?;
    // It knows the machine's secret, as one may that has seen a backup, and not its own.
    let rogue = Portal::start(&plane, 1, &disk, &Chap { mutual_secret: "anotherSecret456", ..CHAP })?;
    let mut machine = plane.machine(MEMORY_MIB)?;
    let mut appliance = Appliance { server: SigningKey::from_bytes(&[1; 32]), boot_secret: [4; 32], nonce: 0 };

    plane.step(&format!("{} || echo lab-failed ${{efi/KurrentError:string}}\necho lab-identified", attest("identify")))?;
    machine.console.wait_for("lab-identified", STARTS_WITHIN)?;
    let former = appliance.challenge(&mut plane, &mut machine)?;
    let _ = appliance.challenge(&mut plane, &mut machine)?;

    // Sealed for the answer before: refused, and with nothing left there is no login.
    let blob = CHAP.seal(former).context("a login that is fit")?;
    plane.step(&format!("{}\n{}", unseal(&blob), hook(&portal, "lab-former")))?;
    for said in ["refused: the login to the disk is not for this start", "lab-refused bad_seal.", "lab-user []", "lab-session-gone"] {
        machine.console.wait_for(said, NEXT_WITHIN)?;
    }
    machine.console.wait_for("lab-former-not-hooked", NEXT_WITHIN)?;
    ensure!(portal.sessions()? == 0, "the target let somebody in");

    // The right one, changed on the way; then the session is used up for the right one, too.
    let session = appliance.challenge(&mut plane, &mut machine)?;
    let blob = CHAP.seal(session).context("a login that is fit")?;
    let mut changed = blob.clone();
    if let Some(octet) = changed.last_mut() {
        *octet ^= 1;
    }
    for tried in [&changed, &blob] {
        plane.step(&unseal(tried))?;
        for said in ["lab-refused bad_seal.", "lab-user []", "lab-session-gone"] {
            machine.console.wait_for(said, NEXT_WITHIN)?;
        }
    }

    // A session of its own: opened, and good for our target only.
    let session = appliance.challenge(&mut plane, &mut machine)?;
    let blob = CHAP.seal(session).context("a login that is fit")?;
    plane.step(&format!("{}\n{}", unseal(&blob), hook(&rogue, "lab-rogue")))?;
    for said in ["opened this start's login to its disk", "lab-opened", &format!("lab-user [{}]", CHAP.user), "lab-session-gone"] {
        machine.console.wait_for(said, NEXT_WITHIN)?;
    }
    machine.console.wait_for("lab-rogue-not-hooked", NEXT_WITHIN)?;
    plane.step(&hook(&portal, "lab-ours"))?;
    machine.console.wait_for("lab-ours-hooked", NEXT_WITHIN)?;
    ensure!(portal.sessions()? == 1 && rogue.sessions()? == 0, "sessions: {} and {}", portal.sessions()?, rogue.sessions()?);

    plane.step(&format!("sanboot --drive {} || echo lab-not-booted", portal.drive()))?;
    let seen = machine.console.wait_for_any(&["lab-system-ends", "lab-not-booted"], BOOTS_WITHIN)?;
    ensure!(seen.which == 0, "the disk does not boot");
    disk::check_system(&machine.console.text())?;

    // The console, what QEMU said, every frame of the machine and of the network, and what stays in the firmware's own store.
    let evidence = fs::read_dir(plane.run.evidence()).context("the evidence")?.flatten().map(|entry| entry.path());
    for file in evidence.chain([plane.run.scratch().join("worker1.vars")]) {
        holds_none(&file, &secrets)?;
    }
    plane.passed(machine);
    Ok(())
}

/// No secret stands in the file, in any of the forms in which these parts write text.
fn holds_none(file: &Path, secrets: &[&str]) -> Result<()> {
    let octets = fs::read(file).with_context(|| format!("read {}", file.display()))?;
    for secret in secrets {
        let wide: Vec<u8> = secret.bytes().flat_map(|octet| [octet, 0]).collect();
        for form in [secret.as_bytes().to_vec(), wide, hex(secret.as_bytes()).into_bytes()] {
            ensure!(!octets.windows(form.len()).any(|part| part == form), "a secret stands in {}", file.display());
        }
    }
    Ok(())
}
