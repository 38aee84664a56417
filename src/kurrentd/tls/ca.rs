//! The appliance's own CA: an ECDSA P-256 key and its certificate in one file, `secrets/ca.key`, so that no power cut parts them.
//! `ca.crt` beside the secrets is a copy of the certificate for people.
//!
//! Clients have pinned it, so it is never replaced by itself. The key is read when something is to be signed, and wiped after that.

use anyhow::{Context, bail};
use kurrent_core::time::Wall;
use kurrent_core::tls::{CA_NOT_AFTER, NOT_BEFORE, Names};
use kurrent_sys::entropy::random;
use kurrent_sys::store;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, SanType, SerialNumber, date_time_ymd,
};
use rustls::RootCertStore;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::time::Duration;
use zeroize::Zeroizing;

/// Key and certificate are about 900 octets.
const MAX_OCTETS: u64 = 16 * 1024;

/// The CA, without its key.
#[derive(Debug)]
pub struct Ca {
    file: PathBuf,
    certificate: CertificateDer<'static>,
    pem: String,
    fingerprint: String,
}

impl Ca {
    /// Reads it, or makes it at the first start; whether it was made.
    ///
    /// # Errors
    /// It can not be read or written, is damaged, or its key is gone.
    pub fn open(state_dir: &Path) -> anyhow::Result<(Self, bool)> {
        let (file, copy) = (state_dir.join("secrets/ca.key"), state_dir.join("ca.crt"));
        let made = match (crate::secrets::read(&file, MAX_OCTETS)?, copy.exists()) {
            (Some(_), _) => false,
            (None, true) => bail!(
                "{0} is missing, but {1} is there: people trust that CA; restore {0} from a backup, or remove {1} to have a new CA made \
                 that everybody has to be told of",
                file.display(),
                copy.display()
            ),
            (None, false) => {
                make(&file)?;
                true
            }
        };
        let (_, certificate) = read(&file)?;
        let fingerprint = hex::encode(Sha256::digest(&certificate));
        let pem = pem(&certificate);
        let ca = Self { file, certificate, pem, fingerprint };
        // Key and certificate belong together, or nothing that it signs would be believed.
        ca.issue("localhost", &Names::of("localhost", []), CA_NOT_AFTER)?;
        if store::read(&copy, MAX_OCTETS).ok().flatten().as_deref() != Some(ca.pem.as_bytes()) {
            store::replace(&copy, ca.pem.as_bytes(), 0o644)?;
        }
        Ok((ca, made))
    }

    /// The certificate.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// SHA-256 of the certificate, in hex.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// A new key and a certificate for it, with the CA's behind it: who has only the fingerprint finds the CA there.
    ///
    /// # Errors
    /// The CA's key can not be used.
    pub fn issue(&self, name: &str, names: &Names, end: Wall) -> anyhow::Result<CertifiedKey> {
        let key = new_key()?;
        let issuer_key = read(&self.file)?.0;
        let leaf = {
            let issuer = Issuer::new(ca_params(&issuer_key), &*issuer_key);
            leaf_params(name, names, end)?.signed_by(&*key, &issuer).context("signing a certificate")?
        };
        self.check(leaf.der(), end)?;
        let der = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialized_der()));
        let signer = rustls::crypto::ring::sign::any_ecdsa_type(&der).context("using a new key")?;
        Ok(CertifiedKey::new(vec![leaf.der().clone(), self.certificate.clone()], signer))
    }

    /// What was signed, as a client sees it.
    fn check(&self, leaf: &CertificateDer<'_>, end: Wall) -> anyhow::Result<()> {
        let damaged = || format!("{} is damaged; people trust its certificate: restore the file from a backup", self.file.display());
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).with_context(damaged)?;
        let leaf = ParsedCertificate::try_from(leaf).with_context(damaged)?;
        let last = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(end.as_second() - 1).unwrap_or(0)));
        let known = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        verify_server_cert_signed_by_trust_anchor(&leaf, &roots, &[], last, known.all).with_context(damaged)
    }
}

fn new_key() -> anyhow::Result<Zeroizing<KeyPair>> {
    Ok(Zeroizing::new(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).context("making a key")?))
}

fn make(file: &Path) -> anyhow::Result<()> {
    let key = new_key()?;
    let certificate = ca_params(&key).self_signed(&*key).context("making the CA")?;
    let both = Zeroizing::new([Zeroizing::new(key.serialize_pem()).as_str(), &pem(certificate.der())].concat());
    Ok(store::replace(file, both.as_bytes(), 0o600)?)
}

fn read(file: &Path) -> anyhow::Result<(Zeroizing<KeyPair>, CertificateDer<'static>)> {
    let what = || format!("{} does not hold a key and its certificate; people trust that: restore the file from a backup", file.display());
    let text = crate::secrets::read(file, MAX_OCTETS)?.with_context(what)?;
    let text = std::str::from_utf8(&text).ok().with_context(what)?;
    // The parser's own words could quote the file.
    let key = KeyPair::from_pkcs8_pem_and_sign_algo(text, &PKCS_ECDSA_P256_SHA256).ok().map(Zeroizing::new);
    let certificate = CertificateDer::from_pem_slice(text.as_bytes()).ok();
    key.zip(certificate).with_context(what)
}

/// Also who the issuer of a certificate is: made of the key alone.
fn ca_params(key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    let id = hex::encode(Sha256::digest(key.public_key_raw()).get(..8).unwrap_or_default());
    params.distinguished_name = named(&format!("Kurrent CA {id}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.serial_number = Some(serial());
    set_end(&mut params, CA_NOT_AFTER);
    params
}

fn leaf_params(name: &str, names: &Names, end: Wall) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(name);
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    params.serial_number = Some(serial());
    set_end(&mut params, end);
    for name in &names.dns {
        params.subject_alt_names.push(SanType::DnsName(name.as_str().try_into().context("naming a certificate")?));
    }
    params.subject_alt_names.extend(names.addresses.iter().copied().map(SanType::IpAddress));
    Ok(params)
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

/// Positive, and never zero in front (RFC 5280 section 4.1.2.2): two appliances, or one after a restore, must not use one twice.
fn serial() -> SerialNumber {
    let mut octets: [u8; 16] = random();
    octets[0] = octets[0] & 0x3f | 0x40;
    SerialNumber::from_slice(&octets)
}

fn set_end(params: &mut CertificateParams, end: Wall) {
    let since_1970 = |time: Wall| Duration::from_secs(u64::try_from(time.as_second()).unwrap_or(0));
    let epoch = date_time_ymd(1970, 1, 1);
    (params.not_before, params.not_after) = (epoch + since_1970(NOT_BEFORE), epoch + since_1970(end));
}

pub(super) fn pem(certificate: &CertificateDer<'_>) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(certificate);
    let lines: Vec<&str> = text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}
