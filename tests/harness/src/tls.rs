//! TLS to an appliance whose CA is known by its fingerprint, as its screen shows it.

use anyhow::{Context, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore, SignatureScheme, StreamOwned};
use sha2::{Digest, Sha256};
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;

/// A secured connection.
pub type Stream = StreamOwned<ClientConnection, TcpStream>;

/// TLS on a connection to the appliance at this address; `ca` is the SHA-256 of its CA certificate in hex.
pub fn secure(stream: TcpStream, address: IpAddr, ca: &str) -> Result<Stream> {
    let known = ring::default_provider().signature_verification_algorithms;
    let pinned = Arc::new(Pinned { ca: ca.to_owned(), known });
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider())).with_safe_default_protocol_versions()?;
    let config = builder.dangerous().with_custom_certificate_verifier(pinned).with_no_client_auth();
    let connection = ClientConnection::new(Arc::new(config), ServerName::from(address)).context("begin TLS")?;
    Ok(StreamOwned::new(connection, stream))
}

#[derive(Debug)]
struct Pinned {
    ca: String,
    known: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let hex = |der: &CertificateDer<'_>| Sha256::digest(der).iter().map(|o| format!("{o:02x}")).collect::<String>();
        let root = others.iter().find(|other| hex(other) == self.ca);
        let mut roots = RootCertStore::empty();
        roots.add(root.ok_or(CertificateError::UnknownIssuer)?.clone().into_owned())?;
        let certificate = ParsedCertificate::try_from(certificate)?;
        verify_server_cert_signed_by_trust_anchor(&certificate, &roots, &[], now, self.known.all)?;
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
