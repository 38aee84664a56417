//! The listener in front of the router, with limits that hold whoever connects.
//!
//! The API is on all addresses, so machines of the boot network reach it too. Each side has places of its own: whoever fills those
//! of the boot network keeps nobody out who asks from elsewhere, or on the appliance itself. Without the token a connection is good
//! for one answer ([`super::guard`]).
//!
//! One port speaks TLS, and plain HTTP to loopback ([`super::https`]). The first octet and the handshake have to come as fast as a head,
//! and hold a place like any connection.

use super::https::{self, Opened};
use super::{Api, router};
use crate::listen::limits::{self, Limits, Place, Places};
use crate::shared::SharedRef;
use anyhow::Context;
use axum::Router;
use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use kurrent_core::config::Config;
use kurrent_core::origin::{Side, counted};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

/// People and programs, not machines by the thousand; of each side (boot network, loopback, elsewhere).
pub(super) const LIMITS: Limits = Limits {
    connections: 128,
    per_address: 32,
    read: Duration::from_secs(15),
    stall: Duration::from_secs(60),
    lifetime: Duration::from_secs(1800),
    // A master of many gigabytes takes its time.
    least: 1 << 20,
};
const MAX_HEAD_OCTETS: usize = 16 * 1024;
/// After a failed accept (no file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const GRACE: Duration = Duration::from_secs(4);

/// Places by where somebody asks from.
struct Sides {
    config: Config,
    boot: Places,
    loopback: Places,
    elsewhere: Places,
}

impl Sides {
    fn new(config: &Config, limits: Limits) -> Self {
        let places = || Places::new(limits.connections, limits.per_address);
        // All of loopback is one machine, ours.
        let loopback = Places::new(limits.connections, limits.connections);
        Self { config: config.clone(), boot: places(), loopback, elsewhere: places() }
    }

    /// A place for this peer, if one is free.
    fn take(&self, peer: IpAddr) -> Option<Place> {
        let places = match Side::of(&self.config, peer) {
            Side::Boot => &self.boot,
            Side::Loopback => &self.loopback,
            Side::Elsewhere => &self.elsewhere,
        };
        places.take(counted(peer)).ok()
    }
}

/// Where a request came from, for whoever handles it (a request extension).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct From {
    /// Address and port of the other side; IPv4 as such.
    pub peer: SocketAddr,
    /// Whether the connection is TLS.
    pub tls: bool,
}

/// Serves the API until `stopped` turns true.
///
/// # Errors
/// The port can not be bound.
pub async fn serve(shared: SharedRef, stopped: watch::Receiver<bool>) -> anyhow::Result<()> {
    let config = &shared.config;
    let bind = async |address: IpAddr| TcpListener::bind(SocketAddr::new(address, config.api_port)).await;
    let listener = match config.api_address {
        Some(address) => bind(address).await,
        // IPv4 comes to the same socket, unless the kernel has no IPv6.
        None => match bind(Ipv6Addr::UNSPECIFIED.into()).await {
            Err(error) if error.kind() != std::io::ErrorKind::AddrInUse => bind(Ipv4Addr::UNSPECIFIED.into()).await,
            other => other,
        },
    };
    let listener = listener.with_context(|| {
        format!("port {} can not be bound; stop what uses it, or change spec.http.apiPort or apiAddress", config.api_port)
    })?;
    serve_on(listener, shared, stopped, LIMITS).await
}

/// [`serve`] on a socket that is bound already.
///
/// # Errors
/// None so far; the socket is tried for ever.
pub async fn serve_on(listener: TcpListener, shared: SharedRef, mut stopped: watch::Receiver<bool>, limits: Limits) -> anyhow::Result<()> {
    let sides = Sides::new(&shared.config, limits);
    let acceptor = TlsAcceptor::from(crate::tls::config(&shared.tls)?);
    let service = TowerToHyperService::new(router(Api::new(shared, stopped.clone())));
    let graceful = GracefulShutdown::new();
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.read).max_buf_size(MAX_HEAD_OCTETS);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|s| *s) => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("API: accepting a connection failed: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Too many: closed at once. Accepting never waits, so that others are heard.
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let Some(place) = sides.take(peer.ip()) else {
            tracing::debug!(%peer, "API: no place is free for this address");
            continue;
        };
        if limits::set_up(&stream, limits.stall).is_err() {
            continue;
        }
        let (acceptor, watcher) = (acceptor.clone(), graceful.watcher());
        let carried = Carried { service: service.clone(), http: http.clone(), limits, peer };
        tokio::spawn(async move {
            // What clients do to their connection is their business.
            match tokio::time::timeout(limits.read, https::open(stream, peer.ip(), &acceptor)).await {
                Ok(Ok(Opened::Tls(stream, octets))) => carried.carry(*stream, true, octets, watcher).await,
                Ok(Ok(Opened::Plain(stream, octets))) => carried.carry(stream, false, octets, watcher).await,
                Ok(Ok(Opened::Refused)) => tracing::debug!(%peer, "API: plain HTTP was refused"),
                Ok(Err(error)) => tracing::debug!(%peer, "API connection: {error}"),
                Err(_) => tracing::debug!(%peer, "API: no handshake in time"),
            }
            drop(place);
        });
    }
    // Whoever does not finish in time is cut off.
    let _ = tokio::time::timeout(GRACE, graceful.shutdown()).await;
    Ok(())
}

/// What a connection needs to be served.
struct Carried {
    service: TowerToHyperService<Router>,
    http: hyper::server::conn::http1::Builder,
    limits: Limits,
    peer: SocketAddr,
}

impl Carried {
    async fn carry<S>(self, stream: S, tls: bool, octets: Arc<AtomicU64>, watcher: Watcher)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Self { service, http, limits, peer } = self;
        let counted = Arc::clone(&octets);
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(From { peer, tls });
            let (answer, octets) = (service.call(request), Arc::clone(&counted));
            async move { answer.await.map(|response| with_events_moving(response, octets, limits.least)) }
        });
        let connection = watcher.watch(http.serve_connection(TokioIo::new(stream), service));
        match limits::while_it_moves(connection, &octets, limits.least, limits.lifetime).await {
            Some(Ok(())) => {}
            Some(Err(error)) => tracing::debug!(%peer, "API connection: {error}"),
            None => tracing::debug!(%peer, "API: connection lived too long"),
        }
    }
}

/// Each event of a stream, also one that only keeps it alive, counts as movement: it is quiet by nature. A peer that takes none
/// is cut off by [`Limits::stall`].
fn with_events_moving(response: Response, octets: Arc<AtomicU64>, least: u64) -> Response {
    let is_events = |kind: &HeaderValue| kind.as_bytes().starts_with(b"text/event-stream");
    if !response.headers().get(CONTENT_TYPE).is_some_and(is_events) {
        return response;
    }
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            octets.fetch_add(least, Ordering::Relaxed);
            frame
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_fills_the_boot_networks_places_keeps_nobody_else_out() {
        let config = kurrent_core::config::Config::default();
        let sides = Sides::new(&config, Limits { connections: 40, per_address: 8, ..LIMITS });
        let [a, b, c, d] = config.boot_network.address.octets();
        let stranger = |n: u8| IpAddr::from([a, b, c, d.wrapping_add(n)]);
        let take = |address: IpAddr| sides.take(address);
        let held: Vec<_> = (1..=20).flat_map(|n| (0..100).map(move |_| n)).filter_map(|n| take(stranger(n))).collect();
        assert_eq!(held.len(), 40, "a machine with many addresses");
        assert!(take(stranger(21)).is_none());
        let others: Vec<_> = ["127.0.0.1", "192.0.2.7"].iter().map(|o| take(o.parse().unwrap())).collect();
        assert!(others.iter().all(Option::is_some));
        assert!(take("fe80::1".parse().unwrap()).is_none(), "link-local addresses are the boot network's, too");
        let one_network = |n: u16| take(IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, n]));
        let held: Vec<_> = (1..=40).filter_map(one_network).collect();
        assert_eq!(held.len(), 8, "one machine gives itself any address of its network");
        assert!(take("2001:db8:0:1::1".parse().unwrap()).is_some());
    }

    /// One rule for all that counts by sides: a machine behind a relay takes no place of those who ask from elsewhere.
    #[test]
    fn machines_behind_relays_have_the_boot_networks_places() {
        let mut config = Config::default();
        let relayed = kurrent_core::config::Subnet { address: [10, 99, 0, 0].into(), prefix: 24, ..config.dhcp.local.clone() };
        config.dhcp.relayed.push(relayed);
        let sides = Sides::new(&config, Limits { connections: 4, per_address: 4, ..LIMITS });
        let held: Vec<_> = (0..10).filter_map(|_| sides.take(IpAddr::from([10, 99, 0, 7]))).collect();
        assert_eq!(held.len(), 4);
        assert!(sides.take(IpAddr::from([192, 0, 2, 7])).is_some());
        assert!(sides.take(config.boot_network.address.into()).is_none());
    }
}
