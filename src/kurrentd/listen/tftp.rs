//! The TFTP listener: which names there are, and who is met with silence. The protocol is the `tftp-server` crate's.

mod folder;

use super::quiet::Quiet;
use super::revoked::Revoked;
use crate::shared::SharedRef;
use anyhow::Context;
use kurrent_core::config::{Config, in_network};
use kurrent_core::dhcp::pxe::{AUTOEXEC, LOADERS};
use kurrent_core::origin::Side;
use kurrent_core::policy::Silence;
use kurrent_core::time::Mono;
use kurrent_core::timeline::Step;
use kurrent_sys::clock;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddrV4};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tftp_server::{Files, Found, Limits, Options, Ports, Server};

/// The TFTP port.
const PORT: u16 = 69;
/// UDP and TFTP headers of a block; IP's come on top.
const HEADERS_BYTES: u32 = 8 + 4;
/// At most 64 KiB each are in memory.
const MAX_TRANSFERS: usize = 512;
/// Firmware opens one or two; a whole rack behind one router stays under this.
const MAX_TRANSFERS_PER_ADDRESS: usize = 128;

/// Serves TFTP on one address of the boot network until it fails. Cancel-safe.
///
/// # Errors
/// Address or interface missing, port in use, missing privilege: each says what to do.
pub async fn serve(shared: SharedRef, interface: String, address: IpAddr) -> anyhow::Result<()> {
    let mtu = kurrent_sys::packet::mtu(&interface)
        .with_context(|| format!("TFTP: no interface {interface}; check spec.networking in kurrent.yaml against `ip link`"))?;
    let headers = HEADERS_BYTES + if address.is_ipv4() { 20 } else { 40 };
    let block_bytes = u16::try_from(mtu.saturating_sub(headers).min(65_464)).unwrap_or(512);
    let tftp = &shared.config.tftp;
    let ports = match tftp.ports {
        Some((first, last)) => Ports::Range(first, last),
        None if tftp.single_port => Ports::Single,
        None => Ports::Any,
    };
    let limits = Limits { transfers: MAX_TRANSFERS, transfers_per_address: MAX_TRANSFERS_PER_ADDRESS, block_bytes };
    let options = Options { address, port: PORT, interface: Some(interface.clone()), ports, limits };
    let server = match Server::bind(options) {
        Ok(server) => server,
        Err(e) => return Err(explain(&e, address)).with_context(|| format!("TFTP: binding {address} port {PORT} on {interface}")),
    };
    tracing::info!(%interface, %address, block_bytes, ?ports, "TFTP: serving");
    let names = Arc::new(Names::new(shared));
    tftp_server::serve(server, names).await.context("TFTP: the socket is of no use any more")
}

fn explain(error: &io::Error, address: IpAddr) -> anyhow::Error {
    match error.kind() {
        ErrorKind::AddrInUse => {
            anyhow::anyhow!("another program has it: find it with `ss -ulpn 'sport = :69'` and stop it, or set spec.tftp.enabled to false")
        }
        ErrorKind::AddrNotAvailable => anyhow::anyhow!("no interface has the address {address}: give it to the boot interface first"),
        ErrorKind::PermissionDenied => anyhow::anyhow!("it needs CAP_NET_BIND_SERVICE and CAP_NET_RAW: run kurrentd as root"),
        _ => anyhow::anyhow!("{error}"),
    }
}

struct Names {
    shared: SharedRef,
    quiet: Mutex<Quiet>,
    revoked: Mutex<Revoked>,
}

impl Names {
    fn new(shared: SharedRef) -> Self {
        Self { shared, quiet: Mutex::default(), revoked: Mutex::new(Revoked::by("tftp")) }
    }
}

impl Files for Names {
    fn answers(&self, client: IpAddr) -> bool {
        let answers = is_answered(&self.shared.config, client);
        if !answers && let Some(more) = self.admit(FOREIGN, clock::now().mono) {
            tracing::info!(%client, more, "TFTP: {FOREIGN}; if it shall be answered, name its network in spec.tftp.allow");
        }
        answers
    }

    fn find(&self, client: IpAddr, name: Option<&str>) -> Found {
        let now = clock::now();
        let holder = self.shared.holder(client);
        let silence = self.shared.silence(holder);
        if let Some(mac) = holder.filter(|_| silence == Some(Silence::Revoked)) {
            self.revoked.lock().unwrap_or_else(PoisonError::into_inner).asks(&self.shared, mac, now.mono);
        }
        let silent = silence.is_some();
        let found = if silent { Found::Silence } else { self.look_up(name) };
        let class = class(&found);
        if let Some(more) = self.admit(class, now.mono) {
            tracing::info!(%client, ?name, more, "TFTP: {class}");
        }
        if let Some(mac) = holder {
            let served = matches!(found, Found::File(..) | Found::Octets(_));
            self.shared.timelines.sight(mac, "tftp", &format!("{class}: {}", name.unwrap_or("a name that is no text")), !served, now);
            // The script is not a loader yet.
            if matches!(found, Found::File(..) | Found::Fault(_)) {
                self.shared.timelines.mark(mac, Step::Loader, now);
            }
        }
        found
    }
}

impl Names {
    fn admit(&self, class: &'static str, now: Mono) -> Option<u64> {
        self.quiet.lock().unwrap_or_else(PoisonError::into_inner).admit(class, now)
    }

    /// The loaders by their fixed names, whatever the folder holds; then the folder.
    fn look_up(&self, name: Option<&str>) -> Found {
        let config = &self.shared.config;
        let Some(name) = name.and_then(folder::normal) else { return Found::Nothing };
        if AUTOEXEC.eq_ignore_ascii_case(&name) {
            let plane = SocketAddrV4::new(config.boot_network.address, config.boot_port);
            return Found::Octets(kurrent_core::ipxe::autoexec(plane).into_bytes());
        }
        if let Some(loader) = LOADERS.into_iter().find(|loader| loader.eq_ignore_ascii_case(&name)) {
            return found(
                folder::open(&config.files_dir, loader),
                &config.files_dir,
                loader,
                "install the loaders or correct spec.boot.filesDir",
            )
            .unwrap_or_else(|| {
                Found::Fault(format!(
                    "{}/{loader} is not there, or no regular file: install the loaders or correct spec.boot.filesDir",
                    config.files_dir.display()
                ))
            });
        }
        let Some(folder) = &config.tftp.folder else { return Found::Nothing };
        found(folder::open(folder, &name), folder, &name, "correct its permissions or spec.tftp.folder").unwrap_or(Found::Nothing)
    }
}

/// `None`: there is no such file.
fn found(opened: io::Result<Option<(File, u64)>>, folder: &Path, name: &str, what_to_do: &str) -> Option<Found> {
    match opened {
        Ok(file) => file.map(|(file, size)| Found::File(file, size)),
        Err(e) => Some(Found::Fault(format!("{}/{name}: {e}; {what_to_do}", folder.display()))),
    }
}

/// Machines of the boot network, behind relays, and of networks that the operator named; of IPv6 those of the link and our prefix.
fn is_answered(config: &Config, client: IpAddr) -> bool {
    let is_allowed = |v4| config.tftp.allow.iter().any(|(network, prefix)| in_network(v4, *network, *prefix));
    Side::of(config, client) == Side::Boot || matches!(client, IpAddr::V4(v4) if is_allowed(v4))
}

const FOREIGN: &str = "silent: the address is not of the boot network";

fn class(found: &Found) -> &'static str {
    match found {
        Found::Silence => "silent: the address is a revoked device's, or of one that is not known",
        Found::File(..) | Found::Octets(_) => "asked for",
        Found::Fault(_) => "cannot be read",
        Found::Nothing => "no such file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kurrent_core::config::Subnet;
    use std::net::Ipv4Addr;

    #[test]
    fn loaders_are_found_as_real_clients_write_their_names() {
        for name in ["snponly.efi", "//snponly.efi", "\\snponly.efi", "./snponly.efi", ".//snponly.efi", "snponly.efi ", "/./snponly.efi"] {
            assert_eq!(folder::normal(name).as_deref(), Some("snponly.efi"), "{name:?}");
        }
        for name in ["", "/", "..", "../snponly.efi", "snponly.efi/..", "snponly.efi\0x"] {
            assert_eq!(folder::normal(name), None, "{name:?}");
        }
    }

    /// iPXE asks for this name beside the loader that it is, before anything else, and stops when it hears an error.
    #[tokio::test]
    async fn tinkerbell_424_autoexec_ipxe_is_there_over_tftp_as_clients_write_it() {
        let bench = crate::boot_plane::tests::Bench::new(false);
        let names = Names::new(bench.plane.shared().clone());
        let script = kurrent_core::ipxe::autoexec(SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), 80)).into_bytes();
        for name in ["autoexec.ipxe", "/autoexec.ipxe", "\\autoexec.ipxe", "AUTOEXEC.IPXE"] {
            let found = names.find(Ipv4Addr::new(10, 77, 0, 200).into(), Some(name));
            assert!(matches!(&found, Found::Octets(octets) if *octets == script), "{name}");
        }
    }

    #[test]
    fn only_the_boot_network_relayed_subnets_and_what_is_allowed_are_answered() {
        let mut config = Config::default();
        let relayed = Subnet { address: Ipv4Addr::new(10, 78, 0, 0), prefix: 24, ..config.dhcp.local.clone() };
        config.dhcp.relayed.push(relayed);
        config.tftp.allow.push((Ipv4Addr::new(192, 0, 2, 0), 25));
        for (client, expected) in [
            ("10.77.0.200", true),
            ("10.78.0.9", true),
            ("192.0.2.127", true),
            ("192.0.2.128", false),
            ("10.79.0.1", false),
            ("127.0.0.1", false),
            ("fe80::1", true),
            ("fd00::1", false),
        ] {
            assert_eq!(is_answered(&config, client.parse().expect("an address")), expected, "{client}");
        }
    }
}
