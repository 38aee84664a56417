//! `kurrent.yaml`: raw form (serde, unknown keys refused) to checked form ([`Config`]). Every fault names `FILE:LINE`,
//! what is wrong and what to do; all faults of meaning are told at once.

use crate::yaml::{Fault, located, parse};
use kurrent_core::config::{BootNetwork, Config, InterfaceChoice, Uplink, UplinkMode, host_range};
use kurrent_core::id::MacAddr;
use serde::Deserialize;
use serde_saphyr::Spanned;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A configuration is a page of text; more is a mistake.
const MAX_OCTETS: u64 = 256 * 1024;
const MAX_NODES: usize = 10_000;

/// Why there is no configuration: one line per fault, `FILE:LINE: what; what to do`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct ConfigFault(pub Vec<String>);

/// Reads and checks a file.
///
/// # Errors
/// [`ConfigFault`] with every fault found.
pub fn load(path: &Path) -> Result<Config, ConfigFault> {
    let say = |what: String| ConfigFault(vec![located(path, &Fault { line: 0, what })]);
    let octets = kurrent_sys::store::read(path, MAX_OCTETS)
        .map_err(|e| say(format!("the file can not be read: {e}; check the path and its permissions")))?
        .ok_or_else(|| say("there is no such file; copy the shipped kurrent.yaml there, or give --config FILE".into()))?;
    let checked = check(&octets).map(|config| Config { file: Some(path.to_owned()), ..config });
    checked.map_err(|faults| ConfigFault(faults.iter().map(|f| located(path, f)).collect()))
}

/// Checks the text of a configuration.
///
/// # Errors
/// Every fault with its line.
pub fn check(octets: &[u8]) -> Result<Config, Vec<Fault>> {
    let raw: Document = parse(octets, MAX_NODES).map_err(|f| vec![f])?;
    let mut read = Reader::default();
    let config = read.document(raw);
    if read.faults.is_empty() { Ok(config) } else { Err(read.faults) }
}

type Text = Option<Spanned<String>>;

macro_rules! raw {
    ($($(#[$doc:meta])* $name:ident { $($field:ident : $kind:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "camelCase", default)]
        struct $name { $($field: $kind),* }
    )*};
}

raw! {
    Document { api_version: Text, kind: Text, metadata: Option<Metadata>, spec: Option<Spec> }
    Metadata { name: Text }
    Spec {
        networking: Option<Networking>, dhcp: Option<RawDhcp>, dhcp6: Option<RawDhcp6>, tftp: Option<RawTftp>, http: Option<Http>, boot: Option<Boot>,
        registration: Option<Registration>, security: Option<Security>, agent: Option<RawAgent>,
        control_plane: Option<ControlPlane>, state_dir: Text, files_dir: Text,
    }
    Networking { boot: Option<RawBootNetwork>, uplink: Option<RawUplink> }
    RawBootNetwork { interface: Text, address: Text, address6: Text }
    RawUplink { interface: Text, mode: Text, address: Text, gateway: Text, dns: Option<Vec<Spanned<String>>> }
    RawDhcp {
        mode: Text, range: Option<Range>, lease_secs: Text, router: Text, dns: Option<Vec<Spanned<String>>>, domain: Text,
        unknown_devices: Text, subnets: Option<Vec<RawSubnet>>, relays: Option<Vec<Spanned<String>>>, lease_key: Text, bootp: Text, conflict_probe: Text, newcomers_per_minute: Text,
    }
    RawSubnet {
        network: Text, range: Option<Range>, lease_secs: Text, router: Text, dns: Option<Vec<Spanned<String>>>, domain: Text,
        via: Text,
    }
    Range { start: Text, end: Text }
    RawDhcp6 { mode: Text, lease_secs: Text, router_advertisements: Text }
    RawTftp { enabled: Text, folder: Text, ports: Option<Ports>, single_port: Text, allow: Option<Vec<Spanned<String>>> }
    Ports { first: Text, last: Text }
    Http { boot_port: Text, device_rate: Text, api_port: Text, api_address: Text }
    Boot { kernel: Text, debug_shell: Text }
    Registration { minutes: Text }
    Security { enforcement: Text, confinement: Text }
    RawAgent { backend: Text, disk_dir: Text, nqn_base: Text, target_port: Text }
    ControlPlane { url: Text }
}

/// Collects faults while it turns raw values into checked ones; a bad value is replaced by its default and told.
#[derive(Default)]
struct Reader {
    faults: Vec<Fault>,
}

impl Reader {
    fn fault(&mut self, line: u64, what: impl Into<String>) {
        self.faults.push(Fault { line, what: what.into() });
    }

    /// `value` parsed, or `None` when it is absent or wrong (which is told).
    fn parsed<T>(&mut self, key: &str, value: Text, rule: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let value = value?;
        let parsed = parse(value.value.trim());
        if parsed.is_none() {
            let shown: String = value.value.chars().filter(|c| !c.is_control()).take(64).collect();
            self.fault(value.referenced.line(), format!("'{shown}' is not valid for {key}; write {rule}"));
        }
        parsed
    }

    fn number<T: FromStr + PartialOrd>(&mut self, key: &str, value: Text, rule: &str, low: T, high: T) -> Option<T> {
        self.parsed(key, value, rule, |t| t.parse().ok().filter(|n| *n >= low && *n <= high))
    }

    fn switch(&mut self, key: &str, value: Text) -> Option<bool> {
        self.parsed(key, value, "on or off", |t| match t.to_ascii_lowercase().as_str() {
            "on" | "true" | "yes" => Some(true),
            "off" | "false" | "no" => Some(false),
            _ => None,
        })
    }

    fn address(&mut self, key: &str, value: Text) -> Option<Ipv4Addr> {
        self.parsed(key, value, "an IPv4 address like 10.77.0.1", |t| t.parse().ok().filter(is_host_address))
    }

    fn addresses(&mut self, key: &str, values: Option<Vec<Spanned<String>>>) -> Vec<Ipv4Addr> {
        values.unwrap_or_default().into_iter().filter_map(|v| self.address(key, Some(v))).collect()
    }

    fn network(&mut self, key: &str, value: Text) -> Option<(Ipv4Addr, u8)> {
        self.parsed(key, value, "the appliance's own address with its prefix length (8 to 30), like 10.77.0.1/24", |t| {
            let (address, prefix) = t.split_once('/')?;
            let (address, prefix): (Ipv4Addr, u8) = (address.parse().ok()?, prefix.parse().ok()?);
            if !(8..=30).contains(&prefix) || !is_host_address(&address) {
                return None;
            }
            let (first, last) = host_range(address, prefix);
            (first..=last).contains(&address).then_some((address, prefix))
        })
    }

    fn interface(&mut self, key: &str, value: Text) -> Option<InterfaceChoice> {
        self.parsed(key, value, "a NIC's name like eth0, its MAC address, or 'link' for the first one that has a link", |t| {
            if t == "link" {
                return Some(InterfaceChoice::Link);
            }
            if let Ok(mac) = t.parse::<MacAddr>() {
                return Some(InterfaceChoice::Mac(mac));
            }
            // IFNAMSIZ is 16 with the NUL; '/' and white space are refused by the kernel.
            let fine =
                (1..=15).contains(&t.len()) && t.bytes().all(|b| b.is_ascii_graphic() && b != b'/' && b != b':') && t != "." && t != "..";
            fine.then(|| InterfaceChoice::Name(t.to_owned()))
        })
    }

    fn folder(&mut self, key: &str, value: Text) -> Option<PathBuf> {
        self.parsed(key, value, "an absolute path", |t| (t.starts_with('/') && !t.contains('\0')).then(|| t.into()))
    }

    fn document(&mut self, raw: Document) -> Config {
        let mut config = Config::default();
        let fixed = |read: &mut Self, key: &str, value: Text, only: &str| match value {
            None => read.fault(
                0,
                format!("the key '{key}' is missing; the file starts with apiVersion: kurrent.io/v1 and kind: ApplianceConfiguration"),
            ),
            some => drop(read.parsed(key, some, only, |t| (t == only).then_some(()))),
        };
        fixed(self, "apiVersion", raw.api_version, "kurrent.io/v1");
        fixed(self, "kind", raw.kind, "ApplianceConfiguration");
        if let Some(name) = raw.metadata.and_then(|m| m.name) {
            // The appliance's hostname has the same rule as a Worker's.
            let rule = "one DNS label: 1 to 63 of a-z, 0-9 and '-', not starting or ending with '-'";
            let name = self.parsed("metadata.name", Some(name), rule, |t| t.parse::<kurrent_core::id::WorkerId>().ok());
            config.name = name.map_or(config.name, |n| n.to_string());
        }
        let spec = raw.spec.unwrap_or_default();
        let networking = spec.networking.unwrap_or_default();
        let mut boot_network = networking.boot.unwrap_or_default();
        let address6 = boot_network.address6.take();
        self.boot_network(&mut config, boot_network);
        if let Some(uplink) = networking.uplink {
            config.uplink = self.uplink(&config.boot_network, uplink);
        }
        self.dhcp(&mut config, spec.dhcp.unwrap_or_default());
        self.dhcp6(&mut config, address6, spec.dhcp6.unwrap_or_default());
        self.tftp(&mut config, spec.tftp.unwrap_or_default());
        self.http(&mut config, spec.http.unwrap_or_default());
        let boot = spec.boot.unwrap_or_default();
        // Keys of the form whose other values do nothing yet: refused, not taken and forgotten.
        self.parsed("spec.boot.kernel", boot.kernel, "appliance: a worker's own kernel ('disk') is not in this version", |t| {
            (t == "appliance").then_some(())
        });
        self.parsed("spec.boot.debugShell", boot.debug_shell, "off: the shell is not in this version", |t| {
            matches!(t.to_ascii_lowercase().as_str(), "off" | "false" | "no").then_some(())
        });
        let minutes = spec.registration.unwrap_or_default().minutes;
        config.registration_minutes =
            self.number("spec.registration.minutes", minutes, "1 to 60", 1, 60).unwrap_or(config.registration_minutes);
        let security = spec.security.unwrap_or_default();
        config.enforcement = self.switch("spec.security.enforcement", security.enforcement).unwrap_or(config.enforcement);
        config.confinement = self.switch("spec.security.confinement", security.confinement).unwrap_or(config.confinement);
        self.agent(&mut config, spec.agent.unwrap_or_default());
        let url = spec.control_plane.unwrap_or_default().url;
        self.parsed("spec.controlPlane.url", url, "'local': this version can not join another appliance's control plane", |t| {
            (t == "local").then_some(())
        });
        config.state_dir = self.folder("spec.stateDir", spec.state_dir).unwrap_or(config.state_dir);
        config.files_dir = self.folder("spec.filesDir", spec.files_dir).unwrap_or(config.files_dir);
        config
    }

    fn boot_network(&mut self, config: &mut Config, raw: RawBootNetwork) {
        let network = &mut config.boot_network;
        if let Some(interface) = self.interface("spec.networking.boot.interface", raw.interface) {
            network.interface = interface;
        }
        if let Some((address, prefix)) = self.network("spec.networking.boot.address", raw.address) {
            *network = BootNetwork { interface: network.interface.clone(), address, prefix };
        }
    }

    fn uplink(&mut self, boot: &BootNetwork, raw: RawUplink) -> Option<Uplink> {
        let line = raw.interface.as_ref().map_or(0, |i| i.referenced.line());
        let Some(interface) = raw.interface else {
            self.fault(0, "spec.networking.uplink has no interface; write interface: NAME, a MAC address or link, or remove uplink");
            return None;
        };
        let interface = self.interface("spec.networking.uplink.interface", Some(interface))?;
        if interface == boot.interface && interface != InterfaceChoice::Link {
            self.fault(line, "the uplink is the same NIC as the boot network; they must be two");
        }
        let dhcp = self.parsed("spec.networking.uplink.mode", raw.mode, "dhcp or static", |t| match t {
            "dhcp" => Some(true),
            "static" => Some(false),
            _ => None,
        });
        if dhcp.unwrap_or(true) {
            for (key, value) in [("address", &raw.address), ("gateway", &raw.gateway)] {
                if let Some(value) = value {
                    self.fault(
                        value.referenced.line(),
                        format!("uplink {key} is written but mode is dhcp; write mode: static, or remove {key}"),
                    );
                }
            }
            return Some(Uplink { interface, mode: UplinkMode::Dhcp });
        }
        if raw.address.is_none() {
            self.fault(line, "mode: static needs spec.networking.uplink.address, like 192.0.2.10/24");
        }
        let at = raw.address.as_ref().map_or(line, |a| a.referenced.line());
        let gateway_at = raw.gateway.as_ref().map_or(line, |a| a.referenced.line());
        let (address, prefix) = self.network("spec.networking.uplink.address", raw.address)?;
        let gateway = self.address("spec.networking.uplink.gateway", raw.gateway);
        if overlap((address, prefix), (boot.address, boot.prefix)) {
            self.fault(at, "the uplink's network overlaps the boot network; give one of them another address");
        }
        if gateway.is_some_and(|g| !within(g, address, prefix) || g == address) {
            self.fault(gateway_at, "the gateway is not another host of the uplink's network");
        }
        let dns = self.addresses("spec.networking.uplink.dns", raw.dns);
        Some(Uplink { interface, mode: UplinkMode::Static { address, prefix, gateway, dns } })
    }

    fn http(&mut self, config: &mut Config, raw: Http) {
        const RULE: &str = "a TCP port, 1 to 65535";
        let line = raw.api_port.as_ref().or(raw.boot_port.as_ref()).map_or(0, |p| p.referenced.line());
        config.boot_port = self.number("spec.http.bootPort", raw.boot_port, RULE, 1, u16::MAX).unwrap_or(config.boot_port);
        config.api_port = self.number("spec.http.apiPort", raw.api_port, RULE, 1, u16::MAX).unwrap_or(config.api_port);
        config.device_rate = self.number("spec.http.deviceRate", raw.device_rate, "octets a second, 65536 or more", 65_536, u64::MAX);
        config.api_address = self.parsed("spec.http.apiAddress", raw.api_address, "one address of the appliance", |t| t.parse().ok());
        let apart = config.api_address.is_some_and(|address| !address.is_unspecified() && address != config.boot_network.address);
        if config.boot_port == config.api_port && !apart {
            self.fault(line, "bootPort and apiPort are the same; give them two ports, or the API an address of its own");
        }
    }

    fn agent(&mut self, config: &mut Config, raw: RawAgent) {
        self.parsed("spec.agent.backend", raw.backend, "nvmet, the only backend of this version", |t| (t == "nvmet").then_some(()));
        let agent = &mut config.agent;
        if let Some(folder) = self.folder("spec.agent.diskDir", raw.disk_dir) {
            agent.disk_dir = folder;
        }
        // 223 octets in all; a disk's NQN adds ":" worker "." os "." os_tag, at most 111.
        let rule = "a base like nqn.2026-11.io.kurrent, at most 110 of a-z, 0-9, '.', ':', '_' and '-'";
        let base = self.parsed("spec.agent.nqnBase", raw.nqn_base, rule, |t| t.parse().ok().filter(|_| t.len() <= 110));
        if let Some(base) = base {
            agent.nqn_base = base;
        }
        let port = self.number("spec.agent.targetPort", raw.target_port, "a TCP port, 1 to 65535", 1, u16::MAX);
        agent.target_port = port.unwrap_or(agent.target_port);
    }
}

mod boot_services;

fn is_host_address(address: &Ipv4Addr) -> bool {
    !address.is_unspecified() && !address.is_loopback() && !address.is_multicast() && !address.is_broadcast() && address.octets()[0] < 240
}

fn within(address: Ipv4Addr, network: Ipv4Addr, prefix: u8) -> bool {
    let (first, last) = host_range(network, prefix);
    (first..=last).contains(&address)
}

fn overlap(a: (Ipv4Addr, u8), b: (Ipv4Addr, u8)) -> bool {
    let ((a_first, a_last), (b_first, b_last)) = (host_range(a.0, a.1), host_range(b.0, b.1));
    a_first <= b_last && b_first <= a_last
}

fn is_domain(text: &str) -> bool {
    (1..=253).contains(&text.len()) && text.split('.').all(|label| label.parse::<kurrent_core::id::WorkerId>().is_ok())
}

#[cfg(test)]
#[path = "config_file_tests.rs"]
mod tests;
