//! The listener in front of the router, with limits that hold whoever connects.

use super::{Api, router};
use crate::secrets::Token;
use crate::shared::SharedRef;
use anyhow::Context;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

/// People and programs, not machines by the thousand.
const MAX_CONNECTIONS: usize = 256;
/// A request's head, and an idle connection.
const HEAD_WITHIN: Duration = Duration::from_secs(15);
const MAX_HEAD_OCTETS: usize = 16 * 1024;
/// After a failed accept (no file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const GRACE: Duration = Duration::from_secs(4);

/// Serves the API until `stopped` turns true.
///
/// # Errors
/// The port can not be bound.
pub async fn serve(shared: SharedRef, token: Token, stopped: watch::Receiver<bool>) -> anyhow::Result<()> {
    let address = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, shared.config.api_port);
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("port {} can not be bound; stop what uses it, or change spec.http.apiPort", address.port()))?;
    serve_on(listener, shared, token, stopped).await
}

/// [`serve`] on a socket that is bound already.
///
/// # Errors
/// None so far; the socket is tried for ever.
pub async fn serve_on(listener: TcpListener, shared: SharedRef, token: Token, mut stopped: watch::Receiver<bool>) -> anyhow::Result<()> {
    let service = TowerToHyperService::new(router(Api { shared, token }));
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let graceful = GracefulShutdown::new();
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).max_buf_size(MAX_HEAD_OCTETS);
    loop {
        let place = Arc::clone(&places).acquire_owned().await?;
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|s| *s) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("API: accepting a connection failed: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service.clone()));
        tokio::spawn(async move {
            // What clients do to their connection is their business.
            if let Err(error) = connection.await {
                tracing::debug!("API connection: {error}");
            }
            drop(place);
        });
    }
    // Whoever does not finish in time is cut off.
    let _ = tokio::time::timeout(GRACE, graceful.shutdown()).await;
    Ok(())
}
