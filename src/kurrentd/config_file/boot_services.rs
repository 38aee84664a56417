//! `spec.dhcp`, `spec.dhcp6`, `spec.tftp`.

use super::{Range, RawDhcp, RawDhcp6, RawSubnet, RawTftp, Reader, Text, is_domain, overlap, within};
use kurrent_core::config::{Bootp, Config, DhcpMode, Dhcpv6Mode, Ipv6, LeaseKey, Route, Subnet, default_range, host_range};
use serde_saphyr::Spanned;
use std::net::{Ipv4Addr, Ipv6Addr};

/// More networks behind relays than this are a mistake.
const MAX_SUBNETS: usize = 256;
const LEASE_RULE: &str = "seconds, 60 to 2592000 (30 days)";
const MAX_LEASE_SECS: u32 = 2_592_000;

fn line(value: &Text) -> u64 {
    value.as_ref().map_or(0, |v| v.referenced.line())
}

impl Reader {
    pub(super) fn dhcp(&mut self, config: &mut Config, raw: RawDhcp) {
        let (own, prefix) = (config.boot_network.address, config.boot_network.prefix);
        let dhcp = &mut config.dhcp;
        let mode = self.parsed("spec.dhcp.mode", raw.mode, "server, proxy or off", |t| match t {
            "server" => Some(DhcpMode::Server),
            "proxy" => Some(DhcpMode::Proxy),
            "off" => Some(DhcpMode::Off),
            _ => None,
        });
        dhcp.mode = mode.unwrap_or(dhcp.mode);
        let RawDhcp { range, lease_secs, router, dns, domain, .. } = raw;
        let local = RawSubnet { range, lease_secs, router, dns, domain, ..RawSubnet::default() };
        let (range_start, range_end) = default_range(own, prefix);
        let default = Subnet { range_start, range_end, ..dhcp.local.clone() };
        dhcp.local = self.subnet("spec.dhcp", own, prefix, local, &default);
        (dhcp.relayed, dhcp.routes) = self.relayed(&dhcp.local, raw.subnets.unwrap_or_default());
        dhcp.relays = self.addresses("spec.dhcp.relays", raw.relays);
        let key = self.parsed("spec.dhcp.leaseKey", raw.lease_key, "mac or clientId", |t| match t {
            "mac" => Some(LeaseKey::Mac),
            "clientId" => Some(LeaseKey::ClientId),
            _ => None,
        });
        dhcp.lease_key = key.unwrap_or(dhcp.lease_key);
        let bootp = self.parsed("spec.dhcp.bootp", raw.bootp, "known, on or off", |t| match t.to_ascii_lowercase().as_str() {
            "known" => Some(Bootp::Known),
            "on" | "true" | "yes" => Some(Bootp::On),
            "off" | "false" | "no" => Some(Bootp::Off),
            _ => None,
        });
        dhcp.bootp = bootp.unwrap_or(dhcp.bootp);
        dhcp.conflict_probe = self.switch("spec.dhcp.conflictProbe", raw.conflict_probe).unwrap_or(dhcp.conflict_probe);
        dhcp.unknown_devices = self.switch("spec.dhcp.unknownDevices", raw.unknown_devices).unwrap_or(dhcp.unknown_devices);
        let newcomers = self.number("spec.dhcp.newcomersPerMinute", raw.newcomers_per_minute, "1 to 65536", 1, 65_536);
        dhcp.newcomers_per_minute = newcomers.unwrap_or(dhcp.newcomers_per_minute);
    }

    fn relayed(&mut self, local: &Subnet, raw: Vec<RawSubnet>) -> (Vec<Subnet>, Vec<Route>) {
        let mut all: Vec<Subnet> = Vec::new();
        let mut routes = Vec::new();
        for mut subnet in raw {
            let at = line(&subnet.network);
            if all.len() >= MAX_SUBNETS {
                self.fault(at, format!("there are more than {MAX_SUBNETS} networks in spec.dhcp.subnets; use larger ones"));
                break;
            }
            if subnet.network.is_none() {
                let at = [&subnet.router, &subnet.lease_secs, &subnet.domain].into_iter().map(line).find(|l| *l > 0).unwrap_or(0);
                self.fault(at, "a network of spec.dhcp.subnets has no 'network'; write one like 10.78.0.0/24");
                continue;
            }
            let network = self.parsed(
                "spec.dhcp.subnets.network",
                subnet.network.take(),
                "a network with its prefix length (8 to 30), like 10.78.0.0/24",
                |t| {
                    let (address, prefix) = t.split_once('/')?;
                    let (address, prefix): (Ipv4Addr, u8) = (address.parse().ok()?, prefix.parse().ok()?);
                    let first = host_range(address, prefix).0;
                    ((8..=30).contains(&prefix) && super::is_host_address(&first) && u32::from(first) == u32::from(address) + 1)
                        .then_some((address, prefix))
                },
            );
            let Some((address, prefix)) = network else { continue };
            if let Some(other) = std::iter::once(local).chain(&all).find(|other| overlap((address, prefix), (other.address, other.prefix)))
            {
                self.fault(at, format!("{address}/{prefix} overlaps {}/{}; every network is written once", other.address, other.prefix));
                continue;
            }
            let (range_start, range_end) = host_range(address, prefix);
            let default = Subnet { address, prefix, range_start, range_end, ..local.clone() };
            let default = Subnet { router: None, ..default };
            if subnet.router.is_none() {
                self.fault(at, format!("the network {address}/{prefix} has no router; its machines reach the appliance through one"));
            }
            routes.extend(self.via(subnet.via.take(), local).map(|via| Route { network: address, prefix, via }));
            all.push(self.subnet("spec.dhcp.subnets", address, prefix, subnet, &default));
        }
        (all, routes)
    }

    /// A next hop. `local` is the boot network with our own address.
    fn via(&mut self, value: Text, local: &Subnet) -> Option<Ipv4Addr> {
        let at = line(&value);
        let via = self.address("spec.dhcp.subnets.via", value)?;
        if !within(via, local.address, local.prefix) || via == local.address {
            let (own, prefix) = (local.address, local.prefix);
            self.fault(
                at,
                format!("via {via} is not a router of the boot network {own}/{prefix}; leave it out to use the host's own routes"),
            );
        }
        Some(via)
    }

    /// A network's terms; what is not written is `default`'s. `own` is our own address in it, or the network's.
    fn subnet(&mut self, key: &str, own: Ipv4Addr, prefix: u8, raw: RawSubnet, default: &Subnet) -> Subnet {
        let written = raw.range.and_then(|range| self.range(key, own, prefix, range));
        let (range_start, range_end) = written.unwrap_or((default.range_start, default.range_end));
        let lease_secs = self.number(&format!("{key}.leaseSecs"), raw.lease_secs, LEASE_RULE, 60, MAX_LEASE_SECS);
        let router_line = line(&raw.router);
        let router = self.address(&format!("{key}.router"), raw.router);
        if let Some(router) = router.filter(|r| !within(*r, own, prefix)) {
            self.fault(router_line, format!("the router {router} is outside the network {own}/{prefix}"));
        }
        let dns = raw.dns.map(|dns| self.addresses(&format!("{key}.dns"), Some(dns)));
        let domain =
            self.parsed(&format!("{key}.domain"), raw.domain, "a domain name like lab.example", |t| is_domain(t).then(|| t.to_owned()));
        Subnet {
            address: own,
            prefix,
            range_start,
            range_end,
            lease_secs: lease_secs.unwrap_or(default.lease_secs),
            router,
            dns: dns.unwrap_or_else(|| default.dns.clone()),
            domain: domain.or_else(|| default.domain.clone()),
        }
    }

    fn range(&mut self, key: &str, own: Ipv4Addr, prefix: u8, Range { start, end }: Range) -> Option<(Ipv4Addr, Ipv4Addr)> {
        let (start_line, end_line) = (line(&start), line(&end));
        match (self.address(&format!("{key}.range.start"), start), self.address(&format!("{key}.range.end"), end)) {
            (Some(first), Some(last)) => {
                for (address, at) in [(first, start_line), (last, end_line)] {
                    if !within(address, own, prefix) {
                        let (low, high) = host_range(own, prefix);
                        self.fault(at, format!("{address} is outside the network {own}/{prefix}; choose from {low} to {high}"));
                    }
                }
                if first > last {
                    self.fault(end_line, format!("the range ends ({last}) before it starts ({first}); swap them"));
                } else if (first..=last).contains(&own) {
                    self.fault(
                        start_line,
                        format!("the range contains the appliance's own address {own}; start behind it or end before it"),
                    );
                }
                return Some((first, last));
            }
            (Some(_), None) if end_line == 0 => {
                self.fault(start_line, format!("{key}.range has a start but no end; write both or neither"))
            }
            (None, Some(_)) if start_line == 0 => {
                self.fault(end_line, format!("{key}.range has an end but no start; write both or neither"))
            }
            _ => {}
        }
        None
    }

    pub(super) fn dhcp6(&mut self, config: &mut Config, address: Text, raw: RawDhcp6) {
        const RULE: &str = "the appliance's own address with the prefix length 64, like fd00:77::1/64";
        let written = [&raw.mode, &raw.lease_secs, &raw.router_advertisements].into_iter().map(line).find(|l| *l > 0);
        let no_address = address.is_none();
        let address = self.parsed("spec.networking.boot.address6", address, RULE, |t| {
            let address: Ipv6Addr = t.strip_suffix("/64")?.parse().ok()?;
            let usable = !address.is_multicast() && !address.is_loopback() && !address.is_unspecified() && !address.is_unicast_link_local();
            usable.then_some(address)
        });
        let mode = self.parsed("spec.dhcp6.mode", raw.mode, "stateless, managed or off", |t| match t {
            "off" => Some(Dhcpv6Mode::Off),
            "stateless" => Some(Dhcpv6Mode::Stateless),
            "managed" => Some(Dhcpv6Mode::Managed),
            _ => None,
        });
        let lease_secs = self.number("spec.dhcp6.leaseSecs", raw.lease_secs, LEASE_RULE, 60, MAX_LEASE_SECS);
        let advertise = self.switch("spec.dhcp6.routerAdvertisements", raw.router_advertisements);
        if let Some(at) = written.filter(|_| no_address && (mode.is_some_and(|m| m != Dhcpv6Mode::Off) || advertise == Some(true))) {
            self.fault(at, "DHCPv6 needs spec.networking.boot.address6, like fd00:77::1/64");
        }
        config.ipv6 = address.map(|address| Ipv6 {
            address,
            dhcp: mode.unwrap_or(Dhcpv6Mode::Off),
            lease_secs: lease_secs.unwrap_or(3600),
            router_advertisements: advertise.unwrap_or(false),
        });
    }

    pub(super) fn tftp(&mut self, config: &mut Config, raw: RawTftp) {
        let tftp = &mut config.tftp;
        tftp.enabled = self.switch("spec.tftp.enabled", raw.enabled).unwrap_or(tftp.enabled);
        tftp.folder = self.folder("spec.tftp.folder", raw.folder);
        tftp.single_port = self.switch("spec.tftp.singlePort", raw.single_port).unwrap_or(tftp.single_port);
        if let Some(ports) = raw.ports {
            let at = line(&ports.first).max(line(&ports.last));
            let first = self.number("spec.tftp.ports.first", ports.first, "a UDP port, 1024 to 65535", 1024, u16::MAX);
            let last = self.number("spec.tftp.ports.last", ports.last, "a UDP port, 1024 to 65535", 1024, u16::MAX);
            match (first, last) {
                (Some(first), Some(last)) if first <= last => tftp.ports = Some((first, last)),
                (Some(_), Some(_)) => self.fault(at, "spec.tftp.ports ends before it starts; swap them"),
                _ => self.fault(at, "spec.tftp.ports needs first and last"),
            }
            if tftp.single_port {
                self.fault(at, "spec.tftp.ports and singlePort exclude each other; remove one");
            }
        }
        let allow: Vec<Spanned<String>> = raw.allow.unwrap_or_default();
        const RULE: &str = "a network with its prefix length, like 192.0.2.0/24";
        tftp.allow = allow.into_iter().filter_map(|v| self.parsed("spec.tftp.allow", Some(v), RULE, cidr)).collect();
    }
}

fn cidr(text: &str) -> Option<(Ipv4Addr, u8)> {
    let (address, prefix) = text.split_once('/')?;
    let (address, prefix) = (address.parse().ok()?, prefix.parse().ok()?);
    (prefix <= 32).then_some((address, prefix))
}
