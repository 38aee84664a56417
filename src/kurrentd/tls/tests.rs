//! Certificates as OpenSSL sees them, and what happens to files that were damaged.

use super::*;
use std::path::Path;
use std::process::{Command, Output};

fn openssl(arguments: &[&str]) -> Output {
    Command::new("openssl").args(arguments).output().expect("openssl (`make deps` installs it)")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

/// A state folder with a CA in it.
fn made() -> (tempfile::TempDir, Ca) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("secrets")).unwrap();
    let (ca, made) = Ca::open(folder.path()).unwrap();
    assert!(made);
    (folder, ca)
}

fn at(text: &str) -> Wall {
    text.parse().unwrap()
}

/// A certificate as a file.
fn issued(folder: &Path, ca: &Ca) -> String {
    let names = Names::of("kurrent", ["10.77.0.1".parse().unwrap(), "2001:db8::7".parse().unwrap()]);
    let leaf = ca.issue("kurrent", &names, at("2028-01-01T00:00:00Z")).unwrap();
    let file = folder.join("leaf.pem");
    std::fs::write(&file, ca::pem(&leaf.cert[0])).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn openssl_believes_the_certificate_for_each_name_from_2000_on_and_for_no_other() {
    let (folder, ca) = made();
    let (leaf, copy) = (issued(folder.path(), &ca), folder.path().join("ca.crt"));
    let verify = |more: &[&str]| {
        let fixed = ["verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", copy.to_str().unwrap()];
        openssl(&[&fixed[..], more, &[leaf.as_str()]].concat())
    };
    for name in [
        ["-verify_hostname", "kurrent"],
        ["-verify_hostname", "kurrent.local"],
        ["-verify_hostname", "localhost"],
        ["-verify_ip", "10.77.0.1"],
        ["-verify_ip", "127.0.0.1"],
        ["-verify_ip", "::1"],
        ["-verify_ip", "2001:db8::7"],
    ] {
        // 2000-01-02: the clock of a rescue system.
        for when in ["946771200", "1800000000"] {
            let output = verify(&[&name[..], &["-attime", when]].concat());
            assert!(output.status.success(), "{name:?} {when}: {}", said(&output));
        }
    }
    for (name, expected) in [
        (["-verify_hostname", "other"], "hostname mismatch"),
        (["-verify_ip", "10.77.0.2"], "IP address mismatch"),
        // 2028-01-02.
        (["-attime", "1830384000"], "certificate has expired"),
    ] {
        let output = verify(&name);
        assert!(!output.status.success() && said(&output).contains(expected), "{name:?}: {}", said(&output));
    }
}

#[test]
fn certificates_say_what_they_are_for() {
    let (folder, ca) = made();
    let leaf = issued(folder.path(), &ca);
    let text = |file: &str| said(&openssl(&["x509", "-in", file, "-noout", "-text", "-fingerprint", "-sha256"]));
    let leaf = text(&leaf);
    for expected in [
        "Basic Constraints: critical\n                CA:FALSE",
        "Key Usage: critical\n                Digital Signature\n",
        "Extended Key Usage: \n                TLS Web Server Authentication\n",
        "Subject Alternative Name: \n",
        "DNS:kurrent, DNS:kurrent.local, DNS:localhost, IP Address:10.77.0.1, IP Address:127.0.0.1",
        "Not Before: Jan  1 00:00:00 2000 GMT",
        "Not After : Jan  1 00:00:00 2028 GMT",
        "Subject: CN = kurrent\n",
        "NIST CURVE: P-256",
        "X509v3 Authority Key Identifier",
    ] {
        assert!(leaf.contains(expected), "{expected}: {leaf}");
    }
    let found = text(folder.path().join("ca.crt").to_str().unwrap());
    for expected in [
        "Basic Constraints: critical\n                CA:TRUE, pathlen:0",
        "Key Usage: critical\n                Certificate Sign, CRL Sign\n",
        "Not Before: Jan  1 00:00:00 2000 GMT",
        "Not After : Jan  1 00:00:00 2100 GMT",
        "NIST CURVE: P-256",
        "Subject: CN = Kurrent CA ",
    ] {
        assert!(found.contains(expected), "{expected}: {found}");
    }
    let fingerprint = found.lines().find_map(|l| l.strip_prefix("sha256 Fingerprint=")).unwrap();
    assert_eq!(fingerprint.replace(':', "").to_lowercase(), ca.fingerprint());
}

#[test]
fn the_ca_is_made_once_its_key_is_private_and_its_copy_is_written_again() {
    use std::os::unix::fs::PermissionsExt;
    let (folder, ca) = made();
    let key = folder.path().join("secrets/ca.key");
    assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_to_string(folder.path().join("ca.crt")).unwrap(), ca.pem());
    assert!(!ca.pem().contains("PRIVATE"));
    // A restored state has the secrets only.
    std::fs::remove_file(folder.path().join("ca.crt")).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let (again, made) = Ca::open(folder.path()).unwrap();
    assert_eq!((again.fingerprint(), again.pem(), made), (ca.fingerprint(), ca.pem(), false));
    assert_eq!(std::fs::read_to_string(folder.path().join("ca.crt")).unwrap(), ca.pem());
    assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_damaged_ca_key_is_told_and_never_replaced() {
    let (folder, ca) = made();
    let key = folder.path().join("secrets/ca.key");
    let good = std::fs::read_to_string(&key).unwrap();
    let (_other_folder, other) = made();
    let (secret, certificate) = good.split_at(good.find("-----BEGIN CERT").unwrap());
    let swapped = [secret, other.pem()].concat();
    for damaged in ["", "rubbish", secret, certificate, &good.replace('M', "N"), &swapped] {
        std::fs::write(&key, damaged).unwrap();
        let error = format!("{:#}", Ca::open(folder.path()).unwrap_err());
        assert!(error.contains("ca.key") && error.contains("restore the file from a backup"), "{error}");
        assert!(!error.contains(secret.lines().nth(1).unwrap()), "{error}");
        assert_eq!(std::fs::read_to_string(&key).unwrap(), damaged);
    }
    std::fs::remove_file(&key).unwrap();
    let error = Ca::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("is missing") && error.contains("restore"), "{error}");
    assert!(!key.exists());
    std::fs::write(&key, good).unwrap();
    assert_eq!(Ca::open(folder.path()).unwrap().0.fingerprint(), ca.fingerprint());
}

/// The suite that a client of this version with its usual order (AES first) is given.
fn suite_given(has_aes: bool, version: &'static rustls::SupportedProtocolVersion) -> CipherSuite {
    let (_folder, ca) = made();
    let tls = Arc::new(Tls::default());
    let names = Names::of("kurrent", []);
    tls.certificate.store(Some(Arc::new(ca.issue("kurrent", &names, tls::not_after(clock::now().wall, tls::NOT_BEFORE)).unwrap())));
    let mut server = rustls::ServerConnection::new(config_for(&tls, has_aes).unwrap()).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(rustls::pki_types::pem::PemObject::from_pem_slice(ca.pem().as_bytes()).unwrap()).unwrap();
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let config = builder.with_protocol_versions(&[version]).unwrap().with_root_certificates(roots).with_no_client_auth();
    let mut client = rustls::ClientConnection::new(Arc::new(config), "kurrent".try_into().unwrap()).unwrap();
    // Each side says what it has, until neither has more to say.
    while client.wants_write() || server.wants_write() {
        let mut wire = Vec::new();
        client.write_tls(&mut wire).unwrap();
        let mut to_server = wire.as_slice();
        while !to_server.is_empty() {
            server.read_tls(&mut to_server).unwrap();
            server.process_new_packets().unwrap();
        }
        let mut wire = Vec::new();
        server.write_tls(&mut wire).unwrap();
        let mut to_client = wire.as_slice();
        while !to_client.is_empty() {
            client.read_tls(&mut to_client).unwrap();
            client.process_new_packets().unwrap();
        }
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    client.negotiated_cipher_suite().unwrap().suite()
}

#[test]
fn a_cpu_without_aes_instructions_speaks_chacha20_with_clients_that_would_have_aes() {
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        assert!(is_chacha20(suite_given(false, version)), "{version:?}");
        assert!(!is_chacha20(suite_given(true, version)), "{version:?}");
    }
}
