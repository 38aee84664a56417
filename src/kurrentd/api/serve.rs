//! The listener in front of the router, with limits that hold whoever connects.
//!
//! The API is on all addresses, so machines of the boot network reach it too. Each side has places of its own: whoever fills those
//! of the boot network keeps nobody out who asks from elsewhere, or on the appliance itself. Without the token a connection is good
//! for one answer ([`super::guard`]).

use super::{Api, router};
use crate::listen::limits::{self, Counted, Limits, Places};
use crate::secrets::Token;
use crate::shared::SharedRef;
use anyhow::Context;
use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use kurrent_core::config::BootNetwork;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// People and programs, not machines by the thousand; of each side (boot network, loopback, elsewhere).
pub(super) const LIMITS: Limits = Limits {
    connections: 128,
    per_address: 32,
    read: Duration::from_secs(15),
    stall: Duration::from_secs(60),
    lifetime: Duration::from_secs(1800),
};
/// A connection that carried so much in one [`Limits::lifetime`] may have another: a master of many gigabytes takes its time.
const LEAST_OCTETS: u64 = 1 << 20;
const MAX_HEAD_OCTETS: usize = 16 * 1024;
/// After a failed accept (no file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const GRACE: Duration = Duration::from_secs(4);

/// Places by where somebody asks from.
struct Sides {
    network: BootNetwork,
    boot: Places,
    loopback: Places,
    elsewhere: Places,
}

impl Sides {
    fn new(network: BootNetwork, limits: Limits) -> Self {
        let places = || Places::new(limits.connections, limits.per_address);
        // All of loopback is one machine, ours.
        let loopback = Places::new(limits.connections, limits.connections);
        Self { network, boot: places(), loopback, elsewhere: places() }
    }

    fn of(&self, peer: IpAddr) -> &Places {
        match peer {
            IpAddr::V4(address) if self.network.contains(address) => &self.boot,
            _ if peer.is_loopback() => &self.loopback,
            _ => &self.elsewhere,
        }
    }
}

/// Serves the API until `stopped` turns true.
///
/// # Errors
/// The port can not be bound.
pub async fn serve(shared: SharedRef, token: Token, stopped: watch::Receiver<bool>) -> anyhow::Result<()> {
    let config = &shared.config;
    let address = SocketAddr::new(config.api_address.unwrap_or(Ipv4Addr::UNSPECIFIED.into()), config.api_port);
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!("port {} can not be bound; stop what uses it, or change spec.http.apiPort or apiAddress", address.port())
    })?;
    serve_on(listener, shared, token, stopped, LIMITS).await
}

/// [`serve`] on a socket that is bound already.
///
/// # Errors
/// None so far; the socket is tried for ever.
pub async fn serve_on(
    listener: TcpListener,
    shared: SharedRef,
    token: Token,
    mut stopped: watch::Receiver<bool>,
    limits: Limits,
) -> anyhow::Result<()> {
    let sides = Sides::new(shared.config.boot_network.clone(), limits);
    let service = TowerToHyperService::new(router(Api::new(shared, token, stopped.clone())));
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
        let Ok(place) = sides.of(peer.ip()).take(peer.ip()) else {
            tracing::debug!(%peer, "API: no place is free for this address");
            continue;
        };
        if limits::set_up(&stream, limits.stall).is_err() {
            continue;
        }
        let (stream, octets) = Counted::new(stream);
        let served = (service.clone(), Arc::clone(&octets));
        let service = service_fn(move |request| {
            let (answer, octets) = (served.0.call(request), Arc::clone(&served.1));
            async move { answer.await.map(|response| with_events_moving(response, octets)) }
        });
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            // What clients do to their connection is their business.
            match limits::while_it_moves(connection, &octets, LEAST_OCTETS, limits.lifetime).await {
                Some(Ok(())) => {}
                Some(Err(error)) => tracing::debug!(%peer, "API connection: {error}"),
                None => tracing::debug!(%peer, "API: connection lived too long"),
            }
            drop(place);
        });
    }
    // Whoever does not finish in time is cut off.
    let _ = tokio::time::timeout(GRACE, graceful.shutdown()).await;
    Ok(())
}

/// Each event of a stream, also one that only keeps it alive, counts as movement: it is quiet by nature. A peer that takes none
/// is cut off by [`Limits::stall`].
fn with_events_moving(response: Response, octets: Arc<AtomicU64>) -> Response {
    let is_events = |kind: &HeaderValue| kind.as_bytes().starts_with(b"text/event-stream");
    if !response.headers().get(CONTENT_TYPE).is_some_and(is_events) {
        return response;
    }
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            octets.fetch_add(LEAST_OCTETS, Ordering::Relaxed);
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
        let sides = Sides::new(config.boot_network.clone(), Limits { connections: 40, per_address: 8, ..LIMITS });
        let [a, b, c, d] = config.boot_network.address.octets();
        let stranger = |n: u8| IpAddr::from([a, b, c, d.wrapping_add(n)]);
        let take = |address: IpAddr| sides.of(address).take(address).ok();
        let held: Vec<_> = (1..=20).flat_map(|n| (0..100).map(move |_| n)).filter_map(|n| take(stranger(n))).collect();
        assert_eq!(held.len(), 40, "a machine with many addresses");
        assert!(take(stranger(21)).is_none());
        let others: Vec<_> = ["127.0.0.1", "192.0.2.7"].iter().map(|o| take(o.parse().unwrap())).collect();
        assert!(others.iter().all(Option::is_some));
    }
}
