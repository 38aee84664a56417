//! The appliance's certificate: made by its own CA ([`ca`]), renewed while connections go on.
//!
//! The certificate and its key are in memory only. Clients trust the CA, so a start brings a new certificate and nobody notices. When
//! one is needed is decided in `core::tls`.

mod ca;

use crate::audit::Event;
use crate::shared::{Shared, SharedRef};
use anyhow::Context;
use arc_swap::ArcSwapOption;
use ca::Ca;
use kurrent_core::time::Wall;
use kurrent_core::tls::{self, Names, Pace, Renewal};
use kurrent_sys::clock;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{CipherSuite, ServerConfig};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks at addresses and clock.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What TLS connections are answered with, and the CA behind it. Empty until [`serve`] has read or made the CA.
#[derive(Debug, Default)]
pub struct Tls {
    certificate: ArcSwapOption<CertifiedKey>,
    ca: ArcSwapOption<Ca>,
}

impl Tls {
    /// The CA certificate as PEM.
    #[must_use]
    pub fn ca_pem(&self) -> Option<String> {
        self.ca.load().as_ref().map(|ca| ca.pem().to_owned())
    }

    /// SHA-256 of the CA certificate, in hex.
    #[must_use]
    pub fn ca_fingerprint(&self) -> Option<String> {
        self.ca.load().as_ref().map(|ca| ca.fingerprint().to_owned())
    }
}

impl ResolvesServerCert for Tls {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.certificate.load_full()
    }
}

/// How TLS is spoken: versions 1.2 and 1.3, HTTP/1.1 only, ciphers in the order that suits this CPU. Nothing of a connection is
/// remembered after it: a stranger could fill that.
///
/// # Errors
/// None that can be met: the provider knows both versions.
pub fn config(tls: &Arc<Tls>) -> anyhow::Result<Arc<ServerConfig>> {
    config_for(tls, has_aes())
}

/// Whether this CPU has instructions for AES and for GCM's hash, as ring asks for both. Other architectures than x86-64: yes.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(not(target_arch = "x86_64"))]
    return true;
}

/// Clients with fast AES put it first. A PC without its instructions (or an emulated one) would have to compute it for masters of
/// gigabytes, so there the server chooses: ChaCha20 first. All suites stay.
fn config_for(tls: &Arc<Tls>, has_aes: bool) -> anyhow::Result<Arc<ServerConfig>> {
    let mut provider = rustls::crypto::ring::default_provider();
    if !has_aes {
        provider.cipher_suites.sort_by_key(|suite| !is_chacha20(suite.suite()));
    }
    let builder = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .context("setting up TLS")?;
    let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::clone(tls) as Arc<dyn ResolvesServerCert>);
    config.ignore_client_order = !has_aes;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

fn is_chacha20(suite: CipherSuite) -> bool {
    matches!(
        suite,
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256
    )
}

/// Reads or makes the CA, and keeps the certificate right until the process ends.
///
/// # Errors
/// The CA can not be used, or a certificate not be made. The one that is there is served on.
pub async fn serve(shared: SharedRef) -> anyhow::Result<()> {
    let never: Infallible = keep(shared).await?;
    match never {}
}

async fn keep(shared: SharedRef) -> anyhow::Result<Infallible> {
    let (ca, made) = Ca::open(&shared.config.state_dir)?;
    if made {
        tell(&shared, "ca_made", ca.fingerprint(), "");
    }
    tracing::info!(sha256 = ca.fingerprint(), "the appliance's CA");
    let ca = Arc::new(ca);
    let mut present: Option<(Names, Wall)> = None;
    let (built, mut pace) = (built(), Pace::default());
    loop {
        let (now, wanted) = (clock::now().wall, names(&shared)?);
        if let Some(reason) = tls::renewal(present.as_ref().map(|(names, end)| (names, *end)), &wanted, now, built) {
            let end = tls::not_after(now, built);
            shared.tls.certificate.store(Some(Arc::new(ca.issue(&shared.config.name, &wanted, end)?)));
            // Whoever learns of the CA finds a certificate of it.
            shared.tls.ca.store(Some(Arc::clone(&ca)));
            tracing::info!(reason = reason.word(), %end, addresses = ?wanted.addresses, "a new certificate");
            if reason != Renewal::First {
                tell(&shared, "certificate_renewed", ca.fingerprint(), reason.word());
            }
            present = Some((wanted, end));
            tokio::time::sleep(pace.made(clock::now().mono)).await;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The addresses that the configuration names are named before a NIC has them.
fn names(shared: &Shared) -> anyhow::Result<Names> {
    let config = &shared.config;
    let configured = [Some(config.boot_network.address.into()), config.ipv6.as_ref().map(|v6| v6.address.into()), config.api_address];
    let v4 = kurrent_sys::link::addresses()?.into_iter().map(|a| IpAddr::from(a.address));
    let v6 = kurrent_sys::link::addresses6()?.into_iter().map(|a| IpAddr::from(a.address));
    Ok(Names::of(&config.name, configured.into_iter().flatten().chain(v4).chain(v6)))
}

/// When this program was written to where it lies: no clock is right that says less.
fn built() -> Wall {
    let written = std::env::current_exe().and_then(|exe| exe.metadata()?.modified()).ok();
    written.and_then(|time| Wall::try_from(time).ok()).unwrap_or(tls::NOT_BEFORE)
}

fn tell(shared: &Shared, verb: &'static str, object: &str, detail: &str) {
    let (object, detail) = (object.to_owned(), detail.to_owned());
    shared.audit.record(Event { actor: "system".into(), verb, device: None, object, result: "ok".into(), detail });
}

#[cfg(test)]
mod tests;
