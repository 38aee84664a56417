//! `/run/kurrent/status`: what PID 1 draws on the screen. Replaced whole whenever it changes.

use crate::shared::{Shared, SharedRef};
use kurrent_core::config::Config;
use kurrent_core::init::Status;
use kurrent_core::ledger::{DeviceState, Ledger};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often the parts without a change signal are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// It walks all devices: not for every one of a thousand changes a second, which nobody reads off a screen.
const PAUSE: Duration = Duration::from_millis(250);
const DEVICES_SHOWN: usize = 12;
/// Whom to ask; one line of the screen.
const ADMINS_SHOWN: usize = 4;
/// It holds the first-run token: only for PID 1.
const MODE: u32 = 0o600;

/// Keeps the file up to date until the daemon ends.
pub async fn serve(shared: SharedRef, path: PathBuf) {
    let mut ledgers = shared.ledger.watch();
    let mut written = None;
    loop {
        let text = compose(&shared).encode();
        if written.as_ref() != Some(&text) {
            match write(&path, &text) {
                Ok(()) => {
                    shared.faults.clear("status");
                    written = Some(text);
                }
                Err(e) => shared.faults.set("status", format!("{e}; the screen is not up to date")),
            }
        }
        tokio::time::sleep(PAUSE).await;
        tokio::select! {
            changed = ledgers.changed() => if changed.is_err() { tokio::time::sleep(LOOK_EVERY).await },
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// Writes a status when there is no daemon to speak of (it can not start). A screen that can not be told is only logged: what
/// is wrong goes to stderr as well.
pub fn write_fault(path: &Path, fault: &str) {
    let faults = fault.lines().map(str::to_owned).collect();
    if let Err(error) = write(path, &Status { faults, ..Status::default() }.encode()) {
        tracing::warn!("{}: {error:#}", path.display());
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    Ok(kurrent_sys::store::replace(path, text.as_bytes(), MODE)?)
}

/// The status now.
#[must_use]
pub fn compose(shared: &Shared) -> Status {
    let ledger = shared.ledger.snapshot();
    let unreadable = shared.ledger.unreadable();
    Status {
        serving: !unreadable,
        api: api_addresses(&shared.config),
        first_run_token: shared.people.first_run().map(|token| token.reveal().to_owned()),
        admins: shared.people.admins().into_iter().take(ADMINS_SHOWN).collect(),
        ca_fingerprint: shared.tls.ca_fingerprint(),
        devices: if unreadable { "unknown: the ledger does not read".into() } else { counts(&ledger) },
        device: recent(shared, &ledger),
        faults: shared.all_faults(),
        refusals: shared.audit.refusals(),
    }
}

/// Where the API answers, one URL per address of this host, IPv4 first; or the one address that it is served on. Addresses that are
/// good on one link only are left out.
#[must_use]
pub fn api_addresses(config: &Config) -> Vec<String> {
    let url = |address| format!("https://{}", SocketAddr::new(address, config.api_port));
    if let Some(address) = config.api_address {
        return vec![url(address)];
    }
    let v4 = kurrent_sys::link::addresses().unwrap_or_default().into_iter().map(|a| IpAddr::from(a.address));
    let v6 = kurrent_sys::link::addresses6().unwrap_or_default().into_iter().filter(|a| !a.address.is_unicast_link_local());
    let all = v4.chain(v6.map(|a| a.address.into()));
    all.filter(|a| !a.is_loopback()).map(url).collect()
}

fn counts(ledger: &Ledger) -> String {
    let count = |state| ledger.devices.values().filter(|d| d.state == state).count();
    let (pooled, bound, revoked) = (count(DeviceState::Pooled), count(DeviceState::Bound), count(DeviceState::Revoked));
    format!("{pooled} pooled, {bound} bound, {revoked} revoked")
}

fn recent(shared: &Shared, ledger: &Ledger) -> Vec<String> {
    let mut devices: Vec<_> = ledger.devices.values().collect();
    devices.sort_by(|a, b| b.last_seen.cmp(&a.last_seen).then(a.mac.cmp(&b.mac)));
    let line = |d: &kurrent_core::ledger::Device| {
        let state = match d.state {
            DeviceState::Pooled => "pooled",
            DeviceState::Bound => "bound",
            DeviceState::Revoked => "revoked",
        };
        let worker = d.bound_worker_id.as_ref().map_or("-", |w| w.as_str());
        format!("{} {state} {worker} {}", d.mac, shared.timelines.summary(d.mac)).trim_end().to_owned()
    };
    devices.into_iter().take(DEVICES_SHOWN).map(|d| line(d)).collect()
}
