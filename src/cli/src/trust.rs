//! Which CA an appliance's certificate has to come from: exactly the one that was named. The system's roots count for nothing.
//!
//! Appliances send their CA's certificate behind their own: the fingerprint is enough to trust one, and a first contact sends
//! nothing but a TLS handshake.

use crate::client::Place;
use crate::confirm;
use crate::failure::Failure;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use sha2::{Digest, Sha256};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
const MAX_CA_OCTETS: u64 = 64 * 1024;
/// 2000-01-02. Rescue systems have clocks without a battery; no appliance's certificate begins later.
const EARLIEST: Duration = Duration::from_secs(946_771_200);

/// SHA-256 of a CA certificate.
pub type Fingerprint = [u8; 32];

/// What is trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// This CA.
    Ca(Ca),
    /// The CA with this fingerprint.
    Fingerprint(Fingerprint),
}

impl Trust {
    fn fingerprint(&self) -> Fingerprint {
        match self {
            Self::Ca(ca) => ca.digest(),
            Self::Fingerprint(fingerprint) => *fingerprint,
        }
    }
}

/// A CA's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ca(CertificateDer<'static>);

impl Ca {
    /// The first certificate of a PEM file.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let failed = |e: std::io::Error| Failure::local(format!("the CA file {} can not be read: {e}", path.display()));
        let mut octets = Vec::new();
        std::fs::File::open(path).map_err(failed)?.take(MAX_CA_OCTETS).read_to_end(&mut octets).map_err(failed)?;
        let none = |_| Failure::local(format!("{} holds no certificate in PEM; `kurrent ca` writes the appliance's", path.display()));
        CertificateDer::from_pem_slice(&octets).map(Self).map_err(none)
    }

    fn digest(&self) -> Fingerprint {
        Sha256::digest(&self.0).into()
    }

    /// As the appliance's screen shows it.
    pub fn fingerprint(&self) -> String {
        hex(&self.digest())
    }

    /// Keeps it beside the contexts file; its name there.
    pub fn keep(&self, contexts: &Path, context: &str) -> Result<String, Failure> {
        let name = format!("ca-{}.crt", crate::session::encoded(context));
        let path = contexts.with_file_name(&name);
        let failed = |e: std::io::Error| Failure::local(format!("{}: {e}", path.display()));
        if let Some(folder) = contexts.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        }
        let new = path.with_extension(format!("new.{}", std::process::id()));
        let mut file = std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&new).map_err(failed)?;
        file.write_all(self.pem().as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        std::fs::rename(&new, &path).map_err(failed)?;
        Ok(name)
    }

    fn pem(&self) -> String {
        use base64::Engine;
        let text = base64::engine::general_purpose::STANDARD.encode(&self.0);
        let lines: Vec<&str> = text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
    }
}

/// Reads a fingerprint as the screen shows it, or as `openssl x509 -fingerprint` does.
pub fn fingerprint(text: &str) -> Result<Fingerprint, String> {
    let digits: String = text.chars().filter(|c| *c != ':' && !c.is_whitespace()).collect();
    let octet = |at: usize| digits.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
    let octets: Option<Vec<u8>> = (0..32).map(|n| octet(2 * n)).collect();
    let octets = octets.filter(|_| digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit()));
    octets.and_then(|o| o.try_into().ok()).ok_or_else(|| "it is not 64 hex digits; the appliance's screen shows it as 'CA SHA-256'".into())
}

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|o| format!("{o:02x}")).collect()
}

/// The CA of an appliance that nobody has said anything of: shown, and trusted after a yes.
pub async fn first_contact(url: &str) -> Result<Ca, Failure> {
    if !confirm::possible() {
        let what =
            "no CA is known for it, and there is no terminal to ask: give --ca-fingerprint SHA256 (the screen's 'CA SHA-256') or --ca FILE";
        return Err(Failure::local(format!("{url}: {what}")));
    }
    let ca = fetch(url, None).await?;
    eprintln!("{url} shows a CA that is not known here:\n\n  CA SHA-256     {}\n", ca.fingerprint());
    confirm::ask("Does the appliance's own screen show the same?")?;
    Ok(ca)
}

/// The CA that is sent by the appliance, whose certificate comes from it; with `wanted` only that one.
pub async fn fetch(url: &str, wanted: Option<Fingerprint>) -> Result<Ca, Failure> {
    let place = Place::parse(url, "--url")?;
    let stream = place.connect().await.map_err(|what| Failure::Unreachable(format!("{url}: {what}")))?;
    let verifier = Arc::new(Verifier::new(wanted.map(Trust::Fingerprint)));
    handshake(&place, stream, &verifier).await.map_err(|e| e.failure(url))?;
    verifier.shown().ok_or_else(|| Failure::local(format!("{url} shows no CA")))
}

/// TLS on a connection to an appliance whose CA is trusted.
pub async fn secure(place: &Place, stream: TcpStream, trust: &Trust) -> Result<TlsStream<TcpStream>, NotSecure> {
    handshake(place, stream, &Arc::new(Verifier::new(Some(trust.clone())))).await
}

/// Why there is no TLS.
pub enum NotSecure {
    /// The other side is not who it should be: nothing was sent.
    Stranger(String),
    /// The connection failed.
    Failed(String),
}

impl NotSecure {
    /// As a failure to reach `url`.
    pub fn failure(self, url: &str) -> Failure {
        match self {
            Self::Stranger(what) => Failure::local(format!("{url}: {what}")),
            Self::Failed(what) => Failure::Unreachable(format!("{url}: {what}")),
        }
    }
}

async fn handshake(place: &Place, stream: TcpStream, verifier: &Arc<Verifier>) -> Result<TlsStream<TcpStream>, NotSecure> {
    let failed = |what: String| NotSecure::Failed(what);
    let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|e| failed(e.to_string()))?.dangerous();
    let mut config = builder.with_custom_certificate_verifier(Arc::clone(verifier) as Arc<dyn ServerCertVerifier>).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // A zone is of this host alone.
    let host = place.host.split('%').next().unwrap_or_default().to_owned();
    let name = ServerName::try_from(host).map_err(|_| failed("its name can not stand in a certificate; use its address".into()))?;
    let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
    match tokio::time::timeout(HANDSHAKE_WITHIN, connecting).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(verifier.explain(place, &error)),
        Err(_) => Err(failed("it does not finish the TLS handshake; check that this is the API's port".into())),
    }
}

/// Decides whether the certificate that is shown will do.
#[derive(Debug)]
struct Verifier {
    trust: Option<Trust>,
    /// What was sent as CA.
    shown: Mutex<Option<Ca>>,
    known: WebPkiSupportedAlgorithms,
}

impl Verifier {
    fn new(trust: Option<Trust>) -> Self {
        Self { trust, shown: Mutex::default(), known: ring::default_provider().signature_verification_algorithms }
    }

    fn shown(&self) -> Option<Ca> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn explain(&self, place: &Place, error: &std::io::Error) -> NotSecure {
        let cause = error.get_ref().and_then(|e| e.downcast_ref::<Error>());
        let Some(cause) = cause else { return NotSecure::Failed(format!("the TLS handshake failed: {error}")) };
        let trusted = self.trust.as_ref().map(Trust::fingerprint);
        match (cause, self.shown(), trusted) {
            (Error::InvalidCertificate(_), Some(shown), Some(trusted)) if shown.digest() != trusted => NotSecure::Stranger(format!(
                "it shows another CA than the one that is trusted; no token was sent. Shown: {}, trusted: {}. If the appliance was set up \
                 anew, compare with its screen and add the context again; if not, somebody is between you and it",
                shown.fingerprint(),
                hex(&trusted)
            )),
            (Error::InvalidCertificate(CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }), _, _) => {
                NotSecure::Stranger(format!("its certificate is not for '{}'; use an address that its screen shows", place.host))
            }
            (Error::InvalidCertificate(why), _, _) => NotSecure::Stranger(format!("its certificate is not to be trusted: {why}")),
            (Error::InvalidMessage(_), _, _) => {
                NotSecure::Failed("what answers there does not speak TLS; check that this is the API's port, not the boot plane's".into())
            }
            (other, _, _) => NotSecure::Failed(format!("the TLS handshake failed: {other}")),
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let shown = others.last().map(|last| Ca(last.clone().into_owned()));
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&shown);
        let unknown = Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let root = match &self.trust {
            Some(Trust::Ca(ca)) => Some(ca.clone()),
            Some(Trust::Fingerprint(wanted)) => shown.filter(|ca| ca.digest() == *wanted),
            None => shown,
        };
        let mut roots = RootCertStore::empty();
        roots.add(root.ok_or(unknown)?.0)?;
        let certificate = ParsedCertificate::try_from(certificate)?;
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()).max(EARLIEST));
        verify_server_cert_signed_by_trust_anchor(&certificate, &roots, others, now, self.known.all)?;
        verify_server_name(&certificate, name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.known.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_read_as_the_screen_and_as_openssl_show_it() {
        let expected: Fingerprint = std::array::from_fn(|n| u8::try_from(n * 7).unwrap_or(255));
        let plain = hex(&expected);
        let colons: Vec<String> = expected.iter().map(|o| format!("{o:02X}")).collect();
        for text in [plain.clone(), format!(" {plain}\n"), colons.join(":")] {
            assert_eq!(fingerprint(&text), Ok(expected), "{text}");
        }
        for text in
            ["", "abc", &plain[1..], &format!("{plain}0"), &plain.replacen('0', "g", 1), &plain.replacen("07", "+7", 1), &"ü".repeat(32)]
        {
            assert!(fingerprint(text).is_err(), "{text}");
        }
    }
}
