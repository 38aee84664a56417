//! The TFTP listener: which names there are, and who is met with silence. The protocol is the `tftp-server` crate's.

use super::quiet::Quiet;
use crate::shared::SharedRef;
use anyhow::Context;
use kurrent_core::dhcp::pxe::{AUTOEXEC, LOADERS};
use kurrent_core::timeline::Step;
use kurrent_sys::clock;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tftp_server::{Files, Found, Limits};

/// The TFTP port.
const PORT: u16 = 69;
/// IPv4, UDP and TFTP headers of a block.
const HEADERS_BYTES: u32 = 20 + 8 + 4;
/// At most 64 KiB each are in memory.
const MAX_TRANSFERS: usize = 512;
/// Firmware opens one or two; a whole rack behind one router stays under this.
const MAX_TRANSFERS_PER_ADDRESS: usize = 128;

/// Serves TFTP on the boot network until it fails. Cancel-safe.
///
/// # Errors
/// Address or interface missing, port in use, missing privilege: each says what to do.
pub async fn serve(shared: SharedRef, interface: String) -> anyhow::Result<()> {
    let address = shared.config.boot_network.address;
    let mtu = kurrent_sys::packet::mtu(&interface)
        .with_context(|| format!("TFTP: no interface {interface}; check spec.networking in kurrent.yaml against `ip link`"))?;
    let block_bytes = u16::try_from(mtu.saturating_sub(HEADERS_BYTES).min(65_464)).unwrap_or(512);
    let bind = move |port, interface: &str| tftp_server::server::bind(IpAddr::V4(address), port, Some(interface));
    let socket = match bind(PORT, &interface) {
        Ok(socket) => socket,
        Err(e) => return Err(explain(&e, address)).with_context(|| format!("TFTP: binding {address} port {PORT} on {interface}")),
    };
    tracing::info!(%interface, %address, block_bytes, "TFTP: serving");
    let limits = Limits { transfers: MAX_TRANSFERS, transfers_per_address: MAX_TRANSFERS_PER_ADDRESS, block_bytes };
    let names = Arc::new(Names { shared, quiet: Mutex::new(Quiet::default()) });
    tftp_server::serve(socket, Box::new(move || bind(0, &interface)), names, limits).await.context("TFTP: the socket is of no use any more")
}

fn explain(error: &io::Error, address: Ipv4Addr) -> anyhow::Error {
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
}

impl Files for Names {
    fn find(&self, client: Ipv4Addr, name: Option<&str>) -> Found {
        let now = clock::now();
        let known = name.and_then(known_name);
        let holder = self.shared.holder(client.into());
        let silent = self.shared.silence(holder).is_some() || !self.on_link(client);
        if let Some(more) = self.quiet.lock().unwrap_or_else(PoisonError::into_inner).admit(class(silent, known.is_some()), now.mono) {
            tracing::info!(%client, ?name, more, "TFTP: {}", class(silent, known.is_some()));
        }
        if let Some(mac) = holder {
            let what = format!("{}: {}", class(silent, known.is_some()), name.unwrap_or("a name that is no text"));
            self.shared.timelines.sight(mac, "tftp", &what, silent || known.is_none(), now);
        }
        let Some(known) = known.filter(|_| !silent) else {
            return if silent { Found::Silence } else { Found::Nothing };
        };
        let config = &self.shared.config;
        if known == AUTOEXEC {
            let plane = SocketAddrV4::new(config.boot_network.address, config.boot_port);
            return Found::Octets(kurrent_core::ipxe::autoexec(plane).into_bytes());
        }
        if let Some(mac) = holder {
            self.shared.timelines.mark(mac, Step::Loader, now);
        }
        match open(&config.files_dir, known) {
            Ok((file, size)) => Found::File(file, size),
            Err(e) => {
                Found::Fault(format!("{}/{known}: {e}; install the loaders or correct spec.boot.filesDir", config.files_dir.display()))
            }
        }
    }
}

impl Names {
    fn on_link(&self, client: Ipv4Addr) -> bool {
        let network = &self.shared.config.boot_network;
        let mask = u32::MAX.checked_shl(32_u32.saturating_sub(u32::from(network.prefix))).unwrap_or(0);
        (client.to_bits() ^ network.address.to_bits()) & mask == 0
    }
}

fn class(silent: bool, known: bool) -> &'static str {
    match (silent, known) {
        (true, _) => "silent: the address is a revoked device's or not of the boot network",
        (false, true) => "asked for",
        (false, false) => "no such file",
    }
}

/// The file that a client means: names come with leading slashes, `./`, backslashes and in any case. There are no folders.
fn known_name(name: &str) -> Option<&'static str> {
    let name = name.replace('\\', "/");
    let mut name = name.trim_matches(|c: char| c.is_whitespace() || c == '/');
    while let Some(rest) = name.strip_prefix("./") {
        name = rest.trim_start_matches('/');
    }
    LOADERS.into_iter().chain([AUTOEXEC]).find(|known| known.eq_ignore_ascii_case(name))
}

/// Opens a loader by its fixed name: a regular file, never through a link.
fn open(folder: &Path, name: &'static str) -> io::Result<(File, u64)> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(folder.join(name), flags, Mode::empty())?);
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok((file, about.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_as_real_clients_write_them() {
        for name in [
            "snponly.efi",
            "/snponly.efi",
            "//snponly.efi",
            "\\snponly.efi",
            "SNPONLY.EFI",
            "./snponly.efi",
            ".//snponly.efi",
            "snponly.efi ",
            "/./snponly.efi",
        ] {
            assert_eq!(known_name(name), Some("snponly.efi"), "{name:?}");
        }
        assert_eq!(known_name("/autoexec.ipxe"), Some(AUTOEXEC));
    }

    #[test]
    fn nothing_else_is_a_name() {
        for name in
            ["", "/", "..", "../snponly.efi", "a/snponly.efi", "/etc/passwd", "snponly.efi/..", "snponly", "kurrent.yaml", "snponly.efi\0x"]
        {
            assert_eq!(known_name(name), None, "{name:?}");
        }
    }
}
