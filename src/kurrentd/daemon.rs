//! `kurrentd run`: starts every part and keeps it running. A part that fails is a fault on screen, in the API and in the
//! log, and is tried again; the others serve on.

use crate::audit::Event;
use crate::backup::swap::Swapped;
use crate::boot_link;
use crate::confine::{Files, Program};
use crate::shared::{Shared, SharedRef};
use anyhow::{Context, anyhow};
use kurrent_core::config::{Config, DhcpMode, Dhcpv6Mode, Ipv6};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

/// A part that runs this long is taken to work.
const WORKS_AFTER: Duration = Duration::from_secs(2);
const BACK_OFF: [u64; 5] = [1, 2, 5, 10, 30];
/// The boot plane's connections, each with the file it is sent, the API's, and room: strangers must not take the last one from the
/// API. Linux begins with 1024.
const OPEN_FILES: u64 = 8192;
/// How long the API may finish what it is at.
const GRACE: Duration = Duration::from_secs(5);

/// What is to happen after the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Nothing.
    Stop,
    /// This program starts again in its own place.
    Restart,
}

/// What has to be done with all rights and one thread: the last that is, is to give them up ([`crate::confine`]).
pub fn prepare(config: &Config, status: &Path) {
    allow_open_files();
    if !config.confinement {
        return crate::confine::leave_off();
    }
    let files = Files::of_daemon(config, status);
    files.make_folders();
    crate::confine::apply(Program::Daemon, &files);
}

/// Serves until SIGTERM or SIGINT, or a restored state waits for a new start.
///
/// # Errors
/// What no part can do without is missing: the state folder, the disk folder, the secrets.
pub async fn run(config: Config, status: PathBuf) -> anyhow::Result<Ending> {
    let swapped = crate::backup::swap::carry_out(&config.state_dir).context("putting the restored state in place")?;
    let shared = Shared::open(config)?;
    if let Some(fault) = crate::confine::fault() {
        shared.faults.set("confinement", fault);
    }
    tell_restored(&shared, swapped);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), name = shared.config.name, "kurrentd starts");
    tokio::spawn(crate::status::serve(shared.clone(), status));
    shared.storage.watch_masters().context("starting the scanner of masters")?;
    if shared.ledger.unreadable() {
        // Nothing that the ledgers govern is served: an unknown device might be a revoked one. Nothing is withdrawn either:
        // what the kernel exports goes on.
        tracing::error!("the ledgers do not read: only the API serves; repair them and restart kurrentd");
    } else {
        boot_network(&shared);
    }
    keep(&shared, "tls", crate::tls::serve);
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let api = keep(&shared, "api", move |shared| crate::api::serve(shared, stopped.clone()));
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
    let ending = tokio::select! {
        _ = terminate.recv() => Ending::Stop,
        _ = interrupt.recv() => Ending::Stop,
        () = shared.restart.notified() => Ending::Restart,
    };
    tracing::info!("kurrentd ends");
    stop.send_replace(true);
    // Whoever does not finish in time is cut off.
    let _ = tokio::time::timeout(GRACE, api).await;
    shared.ledger.flush().await;
    let audit = shared.audit.clone();
    tokio::task::spawn_blocking(move || audit.flush()).await.context("flushing the audit")?;
    Ok(ending)
}

/// The restored audit goes on with the restore itself, and where to find what came before.
fn tell_restored(shared: &SharedRef, swapped: Swapped) {
    let Swapped::Restored(aside) = swapped else { return };
    let aside = aside.map(|p| p.display().to_string()).unwrap_or_default();
    tracing::info!(former = aside, "the state was restored from a backup");
    let object = aside.rsplit('/').next().unwrap_or_default().to_owned();
    shared.audit.record(Event {
        actor: "system".into(),
        verb: "restored",
        device: None,
        object,
        result: "ok".into(),
        detail: String::new(),
    });
}

/// Raises this process's limit of open files to [`OPEN_FILES`], or as far as it may.
fn allow_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let old = getrlimit(Resource::Nofile);
    let enough = |limit: Option<u64>| limit.map(|l| l.max(OPEN_FILES));
    let wanted = Rlimit { current: enough(old.current), maximum: enough(old.maximum) };
    let as_far_as_allowed = Rlimit { current: old.maximum.map(|m| m.min(OPEN_FILES)).or(Some(OPEN_FILES)), maximum: old.maximum };
    if old.current.is_some_and(|c| c < OPEN_FILES)
        && let Err(error) = setrlimit(Resource::Nofile, wanted).or_else(|_| setrlimit(Resource::Nofile, as_far_as_allowed))
    {
        tracing::warn!("the limit of open files can not be raised to {OPEN_FILES}: {error}");
    }
}

/// Starts what serves the boot network.
fn boot_network(shared: &SharedRef) {
    match shared.config.dhcp.mode {
        DhcpMode::Server => {
            keep(shared, "dhcp", |shared| boot_link::serve(shared, boot_link::find, crate::listen::dhcp::serve));
            keep(shared, "pxe", |shared| boot_link::serve(shared, boot_link::find, crate::listen::dhcp::pxe_port::serve));
        }
        DhcpMode::Proxy => {
            keep(shared, "dhcp", |shared| boot_link::serve(shared, boot_link::find, crate::listen::dhcp::proxy::serve));
        }
        DhcpMode::Off => {}
    }
    if !shared.config.dhcp.relayed.is_empty() {
        keep(shared, "routes", crate::routes::watch);
    }
    if let Some(ipv6) = shared.config.ipv6.clone() {
        boot_network6(shared, &ipv6);
    }
    if shared.config.dhcp.mode != DhcpMode::Off {
        keep(shared, "dhcp-rivals", |shared| boot_link::serve(shared, boot_link::find, crate::listen::rivals::serve));
    }
    if shared.config.tftp.enabled {
        let address = shared.config.boot_network.address.into();
        keep(shared, "tftp", move |shared| {
            boot_link::serve(shared, boot_link::find, move |shared, interface| crate::listen::tftp::serve(shared, interface, address))
        });
    }
    keep(shared, "target-task", |shared| crate::reconcile::serve(shared, crate::reconcile::Kernel::real()));
    keep(shared, "migrations", crate::migrations::serve);
    keep(shared, "boot-plane", crate::listen::http::serve);
}

/// Starts what serves the boot network over IPv6; the boot plane listens there itself.
fn boot_network6(shared: &SharedRef, ipv6: &Ipv6) {
    let address = ipv6.address;
    let find = move |config: &Config| boot_link::find6(config, address);
    if ipv6.dhcp != Dhcpv6Mode::Off {
        let ipv6 = ipv6.clone();
        keep(shared, "dhcp6", move |shared| {
            let ipv6 = ipv6.clone();
            boot_link::serve(shared, find, move |shared, interface| crate::listen::dhcp6::serve(shared, ipv6, interface))
        });
    }
    if ipv6.router_advertisements {
        let ipv6 = ipv6.clone();
        keep(shared, "router-advertisements", move |shared| {
            let ipv6 = ipv6.clone();
            boot_link::serve(shared, find, move |shared, interface| crate::listen::ra::serve(shared, ipv6, interface))
        });
    }
    if shared.config.tftp.enabled {
        keep(shared, "tftp6", move |shared| {
            boot_link::serve(shared, find, move |shared, interface| crate::listen::tftp::serve(shared, interface, address.into()))
        });
    }
}

/// Keeps one part running: a failure is told and tried again, with back-off.
fn keep<F, R>(shared: &SharedRef, part: &'static str, start: F) -> JoinHandle<()>
where
    F: Fn(SharedRef) -> R + Send + 'static,
    R: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let shared = shared.clone();
    tokio::spawn(async move {
        let mut back_off = BACK_OFF.into_iter();
        let mut pause = 1;
        loop {
            // A task of its own: a panic in one part is that part's fault.
            let mut running = tokio::spawn(start(shared.clone()));
            let result = tokio::select! {
                early = &mut running => early,
                () = tokio::time::sleep(WORKS_AFTER) => {
                    shared.faults.clear(part);
                    back_off = BACK_OFF.into_iter();
                    running.await
                }
            };
            let result = result.unwrap_or_else(|panic| Err(anyhow!("it failed: {panic}; it is started again, please report the log")));
            match result {
                Ok(()) => return tracing::info!("{part} has ended"),
                Err(error) => shared.faults.set(part, format!("{error:#}")),
            }
            pause = back_off.next().unwrap_or(pause);
            tokio::time::sleep(Duration::from_secs(pause)).await;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_files_may_be_open_than_strangers_can_hold() {
        use rustix::process::{Resource, getrlimit};
        let connections = u64::try_from(crate::listen::http::LIMITS.connections).unwrap();
        // A connection and the file that it is sent.
        assert!(OPEN_FILES > 2 * connections + 1024);
        allow_open_files();
        let now = getrlimit(Resource::Nofile);
        assert!(now.current.is_none_or(|c| c >= OPEN_FILES || Some(c) == now.maximum), "{now:?}");
    }
}
