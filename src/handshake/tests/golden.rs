//! The handshake's octets as they were agreed on, and what a program that shares no line with ours makes of them.
//!
//! `tests/golden/handshake/vectors.txt` is written with `UPDATE=1` and reviewed: a change there means that devices in the
//! field and appliances no longer understand each other. `verify.py` beside it (Python `cryptography`) computes everything
//! again from the inputs.

use ed25519_dalek::SigningKey;
use kurrent_handshake::{
    Answer, Challenge, Chap, FLAG_MAY_PIN, FLAG_REKEY, Link, Rekey, Rotation, Side, boot_public_key, expected, fields, report_proof,
};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/handshake")
}

fn hex(octets: &[u8]) -> String {
    octets.iter().fold(String::new(), |mut text, octet| {
        let _ = write!(text, "{octet:02x}");
        text
    })
}

fn vectors() -> String {
    let counting = |first: u8| std::array::from_fn::<u8, 32, _>(|n| first.wrapping_add(u8::try_from(n).unwrap()));
    let (server_seed, device_seed, server_boot, device_boot) = (counting(0x10), counting(0x40), counting(0x70), counting(0xa0));
    let (server, device) = (SigningKey::from_bytes(&server_seed), SigningKey::from_bytes(&device_seed));
    let (next_server, next_device) = (SigningKey::from_bytes(&counting(0x20)), SigningKey::from_bytes(&counting(0x50)));
    let (nonce, mac) = (counting(0xd0), [0x52, 0x54, 0, 0x12, 0x34, 0x56]);
    let challenge = Challenge {
        nonce,
        mac,
        server_boot_key: boot_public_key(&server_boot),
        flags: FLAG_MAY_PIN | FLAG_REKEY,
        expected: expected(&nonce, &mac, device.verifying_key().as_bytes()),
    };
    let answer = Answer {
        challenge,
        uuid: std::array::from_fn(|n| u8::try_from(n * 17).unwrap()),
        server_key: server.verifying_key().to_bytes(),
        device_boot_key: boot_public_key(&device_boot),
    };
    let rotation = Rotation { old: answer.server_key, new: next_server.verifying_key().to_bytes() };
    let link = Link { new: rotation.new, signature: rotation.sign(&server) };
    let (old, new) = (device.verifying_key().to_bytes(), next_device.verifying_key().to_bytes());
    let rekey = Rekey { nonce, mac, server_key: answer.server_key, old, new }.sign(&device, &next_device);
    let session = answer.session(&device_boot, Side::Device).unwrap();
    let plaintext = b"worker=w1\n";
    let chap = Chap {
        user: "iqn.2026-11.net.example:host.w1.e7",
        secret: "iLqf8ZqHzv2xYw4N",
        mutual_user: "iqn.2026-11.net.example:w1",
        mutual_secret: "R5tPq0aJm7sKd1eB",
    };
    let mut text = String::new();
    let mut line = |name: &str, octets: &[u8]| {
        let _ = writeln!(text, "{name}={}", hex(octets));
    };
    line("server_seed", &server_seed);
    line("device_seed", &device_seed);
    line("next_server_seed", &counting(0x20));
    line("next_device_seed", &counting(0x50));
    line("server_boot_secret", &server_boot);
    line("device_boot_secret", &device_boot);
    line("nonce", &challenge.nonce);
    line("mac", &challenge.mac);
    line("flags", &[challenge.flags]);
    line("uuid", &answer.uuid);
    line("plaintext", plaintext);
    line("mask", &counting(0x33));
    line("report_key", &counting(0x05));
    line("report", &fields(&[b"0123456789abcdef", b"failed", b"no root"]));
    line("server_key", &answer.server_key);
    line("device_key", device.verifying_key().as_bytes());
    line("server_boot_key", &challenge.server_boot_key);
    line("device_boot_key", &answer.device_boot_key);
    line("expected", &challenge.expected);
    line("challenge_signature", &challenge.sign(&server));
    line("answer_signature", &answer.sign(&device));
    line("link", &link.to_bytes());
    line("rekey", &rekey.to_bytes());
    line("session", session.to_bytes().as_slice());
    line("session_masked", session.to_handed(&counting(0x33)).as_slice());
    line("sealed", &answer.session(&server_boot, Side::Appliance).unwrap().seal(plaintext));
    for (name, value) in [
        ("chap_user", chap.user),
        ("chap_secret", chap.secret),
        ("chap_mutual_user", chap.mutual_user),
        ("chap_mutual_secret", chap.mutual_secret),
    ] {
        line(name, value.as_bytes());
    }
    line("chap_sealed", &chap.seal(answer.session(&server_boot, Side::Appliance).unwrap()).unwrap());
    line("report_proof", &report_proof(&counting(0x05), "0123456789abcdef", "failed", "no root"));
    text
}

#[test]
fn the_octets_are_the_agreed_ones() {
    let path = folder().join("vectors.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, vectors()).unwrap();
    }
    assert_eq!(vectors(), std::fs::read_to_string(&path).unwrap());
}

#[test]
fn an_independent_program_computes_the_same_octets() {
    for program in ["verify.py", "p256.py"] {
        let output = Command::new("/usr/bin/python3").arg(folder().join(program)).output().expect("Debian's python3 is there (make deps)");
        assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    }
}
