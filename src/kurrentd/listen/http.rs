//! The boot plane's HTTP server: sockets and limits. What it answers is decided in `core::http` and `boot_plane`.
//!
//! A server of our own, not the API's: firmware HTTP clients are old and literal, so each octet of a head is chosen
//! (`core::http::answer`), every answer has a `Content-Length`, nothing is chunked, nothing redirects; and large files go from the page
//! cache to the NIC without a copy. Strangers are bounded: header and body size, time for each, connections in all and for each
//! address, time without progress, life of a connection, lines in the log.

mod connection;
mod files;
mod open;
mod route;
mod send;

use crate::boot_plane::{self, BootPlane};
use crate::listen::limits::{self, Limits, NoPlace, Places};
use crate::listen::quiet::Quiet;
use crate::shared::SharedRef;
use arc_swap::ArcSwap;
use files::Files;
use kurrent_core::http::pace::Pace;
use kurrent_sys::clock;
use open::Open;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// A report is about 600 octets.
const MAX_FORM_BYTES: usize = 16 * 1024;
/// Unsent octets of a connection in the kernel, which doubles it for its own needs. Without it the kernel grows the buffer of
/// a peer that takes nothing to 4 MiB (`tcp_wmem`). A gigabit network of one millisecond needs 125 KiB.
const SEND_BUFFER_BYTES: usize = 80 * 1024;
/// Octets that nobody has read yet, doubled likewise: a whole form fits.
const RECEIVE_BUFFER_BYTES: usize = MAX_FORM_BYTES;
const EXPIRE_EVERY: Duration = Duration::from_secs(30);
/// After a failed accept (no file descriptors left), let others finish.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A connection that has to give way is gone by then.
const GIVES_WAY_WITHIN: Duration = Duration::from_millis(100);
/// An address that is not there yet (IPv6 is checked for duplicates first) is tried again.
const BIND_PAUSE: Duration = Duration::from_secs(2);

/// Each connection holds at most about 220 KiB: a head and a form, and what the kernel keeps of it ([`SEND_BUFFER_BYTES`]); all of
/// them half of an appliance of 256 MiB. iPXE uses one or two connections, a person's browser six.
pub const LIMITS: Limits = Limits {
    connections: 512,
    per_address: 32,
    read: Duration::from_secs(15),
    stall: Duration::from_secs(60),
    lifetime: Duration::from_secs(1800),
    // A large image over a slow network takes its time.
    least: 1 << 20,
};

/// What all connections share, on whatever address they came in.
pub struct Server {
    plane: Arc<BootPlane>,
    files: Files,
    pace: Option<Mutex<Pace>>,
    rate: Option<u64>,
    limits: Limits,
    places: Places,
    open: Arc<Open>,
    date: ArcSwap<(i64, String)>,
    quiet: Mutex<Quiet>,
}

impl Server {
    /// Nobody is connected.
    #[must_use]
    pub fn new(plane: Arc<BootPlane>, limits: Limits) -> Arc<Self> {
        let config = &plane.shared().config;
        let (files, rate) = (Files::new(config.files_dir.clone()), config.device_rate);
        Arc::new(Self {
            plane,
            files,
            pace: rate.map(|rate| Mutex::new(Pace::new(rate))),
            rate,
            limits,
            places: Places::new(limits.connections, limits.per_address),
            open: Arc::default(),
            date: ArcSwap::from_pointee((i64::MIN, String::new())),
            quiet: Mutex::default(),
        })
    }

    /// The time for a head, written once a second.
    fn date(&self) -> String {
        let now = clock::now().wall;
        let written = self.date.load();
        if written.0 == now.as_second() {
            return written.1.clone();
        }
        // Fails for years that have not four digits, which no clock of ours shows.
        let text = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&now).unwrap_or_default();
        self.date.store(Arc::new((now.as_second(), text.clone())));
        text
    }

    /// A line in the log, one for each class and interval: strangers cause them.
    fn warn(&self, class: &'static str, what: &str) {
        let left_out = self.quiet.lock().unwrap_or_else(PoisonError::into_inner).admit(class, clock::now().mono);
        if let Some(left_out) = left_out {
            tracing::warn!(left_out, "boot plane: {what}");
        }
    }
}

/// Serves the boot plane on the boot network's addresses until the process ends.
///
/// # Errors
/// The IPv4 address can not be bound. An IPv6 address that can not is a fault, and is tried again; IPv4 is served meanwhile.
pub async fn serve(shared: SharedRef) -> anyhow::Result<()> {
    let config = &shared.config;
    let address = SocketAddr::from((config.boot_network.address, config.boot_port));
    let listener = TcpListener::bind(address).await.map_err(|e| anyhow::Error::new(e).context(format!("boot plane: bind {address}")))?;
    let plane = BootPlane::new(Arc::clone(&shared), boot_plane::session::issue(), clock::now());
    let server = Server::new(Arc::new(plane), LIMITS);
    let second = config.ipv6.as_ref().map(|ipv6| SocketAddr::from((ipv6.address, config.boot_port)));
    let second = async {
        let Some(address) = second else { return std::future::pending().await };
        accept(Arc::clone(&server), bound_in_time(&shared, address).await).await
    };
    tracing::info!(%address, "boot plane is served");
    tokio::select! {
        never = serve_on(Arc::clone(&server), listener) => match never {},
        never = second => match never {},
    }
}

async fn bound_in_time(shared: &SharedRef, address: SocketAddr) -> TcpListener {
    const PART: &str = "boot-plane-ipv6";
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                shared.faults.clear(PART);
                tracing::info!(%address, "boot plane is served");
                return listener;
            }
            Err(error) => shared.faults.set(PART, format!("{address} can not be bound: {error}; give it to the boot network's NIC")),
        }
        tokio::time::sleep(BIND_PAUSE).await;
    }
}

/// Serves on a socket that is bound already, and forgets what has expired.
pub async fn serve_on(server: Arc<Server>, listener: TcpListener) -> Infallible {
    let expire = async {
        let mut expire = tokio::time::interval(EXPIRE_EVERY);
        loop {
            expire.tick().await;
            server.plane.expire(clock::now());
        }
    };
    tokio::select! {
        never = accept(Arc::clone(&server), listener) => never,
        never = expire => never,
    }
}

/// Takes connections in. A failed accept is told and tried again.
async fn accept(server: Arc<Server>, listener: TcpListener) -> Infallible {
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                server.warn("accept", &format!("accepting a connection failed: {error}"));
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let address = peer.ip().to_canonical();
        let place = match server.places.take(address) {
            Ok(place) => place,
            // Closed at once: one machine needs no more.
            Err(NoPlace::OfAddress) => continue,
            Err(NoPlace::AtAll) if server.open.one_gives_way() => {
                // It ends as soon as it is told.
                match tokio::time::timeout(GIVES_WAY_WITHIN, server.places.wait(address)).await {
                    Ok(Ok(place)) => place,
                    Ok(Err(_)) | Err(_) => continue,
                }
            }
            // Closed at once: a machine asks again; those that get on are not disturbed.
            Err(NoPlace::AtAll) => {
                server.warn("full", "no place for another connection, and all of them get on: new ones are closed");
                continue;
            }
        };
        if bound(&stream, server.limits.stall, server.rate).is_err() {
            continue;
        }
        let server = Arc::clone(&server);
        let entered = server.open.enter();
        tokio::spawn(async move {
            connection::serve(&server, stream, address, &entered.progress).await;
            drop((place, entered));
        });
    }
}

/// Bounds what the kernel holds for a peer, for how long, and how fast it sends.
fn bound(stream: &TcpStream, stall: Duration, rate: Option<u64>) -> std::io::Result<()> {
    limits::set_up(stream, stall)?;
    let socket = socket2::SockRef::from(stream);
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    rate.map_or(Ok(()), |rate| kurrent_sys::sockets::set_max_pacing_rate(stream, rate))
}

#[cfg(test)]
mod firmware_tests;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod tests;
