//! `kurrent.yaml` in its checked form. The text form is read in `kurrentd::config_file`; only that makes a [`Config`].

use crate::id::{MacAddr, Nqn};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

/// Everything the operator decided, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `metadata.name`: the appliance's own hostname, one DNS label.
    pub name: String,
    /// The boot network, where workers are.
    pub boot_network: BootNetwork,
    /// The way to the rest of the world, if there is one.
    pub uplink: Option<Uplink>,
    /// DHCP.
    pub dhcp: Dhcp,
    /// IPv6 on the boot network; absent: none.
    pub ipv6: Option<Ipv6>,
    /// TFTP.
    pub tftp: Tftp,
    /// TCP port of the boot plane on the boot network address; 80.
    pub boot_port: u16,
    /// Most octets a second that the boot plane sends to one device; absent: no limit. For NICs whose firmware hangs at full
    /// speed (ipxe 1023, 1545).
    pub device_rate: Option<u64>,
    /// TCP port of the API; 8443.
    pub api_port: u16,
    /// The one address that the API is served on; absent: all.
    pub api_address: Option<IpAddr>,
    /// `spec.security.enforcement`: only a verified answer opens the data plane. Default on.
    pub enforcement: bool,
    /// `spec.security.confinement`: `kurrentd` gives up the rights that it does not need. Default on.
    pub confinement: bool,
    /// `spec.registration.minutes`: how long the registration window stays open when nobody says; 1 to 60, default 15.
    pub registration_minutes: u8,
    /// Storage.
    pub agent: Agent,
    /// Ledgers, leases, secrets, audit. Default `/var/lib/kurrent/state`.
    pub state_dir: PathBuf,
    /// Loaders, `kurrent-attest.efi`, `worker/vmlinuz`, `worker/stage1.img`. Default `/usr/share/kurrent`.
    pub files_dir: PathBuf,
    /// The file that this was read from.
    pub file: Option<PathBuf>,
}

impl Default for Config {
    /// The one place of all defaults; `rootfs/boot/kurrent.yaml` shows them, and a test holds the two together.
    fn default() -> Self {
        let (address, prefix) = (Ipv4Addr::new(10, 77, 0, 1), 24);
        let (range_start, range_end) = default_range(address, prefix);
        Self {
            name: "kurrent".into(),
            boot_network: BootNetwork { interface: InterfaceChoice::Link, address, prefix },
            uplink: None,
            dhcp: Dhcp {
                mode: DhcpMode::Server,
                local: Subnet { address, prefix, range_start, range_end, lease_secs: 3600, router: None, dns: Vec::new(), domain: None },
                relayed: Vec::new(),
                routes: Vec::new(),
                relays: Vec::new(),
                lease_key: LeaseKey::Mac,
                bootp: Bootp::Known,
                conflict_probe: true,
                unknown_devices: true,
                newcomers_per_minute: 2000,
            },
            ipv6: None,
            tftp: Tftp { enabled: true, folder: None, ports: None, single_port: false, allow: Vec::new() },
            boot_port: 80,
            device_rate: None,
            api_port: 8443,
            api_address: None,
            enforcement: true,
            confinement: true,
            registration_minutes: 15,
            agent: Agent {
                disk_dir: "/var/lib/kurrent/disks".into(),
                nqn_base: Nqn::default_base(),
                target_port: 4420, // assigned to NVMe over Fabrics
            },
            state_dir: "/var/lib/kurrent/state".into(),
            files_dir: "/usr/share/kurrent".into(),
            file: None,
        }
    }
}

impl Config {
    /// Why an address can not be reserved for a device, if so.
    #[must_use]
    pub fn check_reservation(&self, address: Ipv4Addr) -> Option<String> {
        let Some(subnet) = self.dhcp.subnets().find(|subnet| subnet.contains(address)) else {
            return Some(format!("{address} is in none of the networks that are served; see networking.boot and dhcp.subnets"));
        };
        let (first, last) = host_range(subnet.address, subnet.prefix);
        let whose = match address {
            own if own == self.boot_network.address => "the appliance's own address",
            router if Some(router) == subnet.router => "the router's address",
            end if end < first || end > last => "the network's own or its broadcast address",
            _ => return None,
        };
        Some(format!("{address} is {whose}; choose another one from {first} to {last}"))
    }
}

/// The bits of a network: as many ones as the prefix is long, 32 at most.
#[must_use]
pub fn mask(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32_u32.saturating_sub(u32::from(prefix))).unwrap_or(0)
}

/// The first and last host address of a network.
#[must_use]
pub fn host_range(address: Ipv4Addr, prefix: u8) -> (Ipv4Addr, Ipv4Addr) {
    let mask = mask(prefix);
    let network = u32::from(address) & mask;
    (Ipv4Addr::from(network.saturating_add(1)), Ipv4Addr::from((network | !mask).saturating_sub(1)))
}

/// The dynamic range when none is written: the half of the network without the appliance's own address, so that the other
/// half is free for fixed addresses.
#[must_use]
pub fn default_range(address: Ipv4Addr, prefix: u8) -> (Ipv4Addr, Ipv4Addr) {
    let (first, last) = host_range(address, prefix);
    let middle = Ipv4Addr::from(u32::from(first) / 2 + u32::from(last) / 2 + 1);
    if address < middle {
        (middle.max(Ipv4Addr::from(u32::from(address).saturating_add(1))), last)
    } else {
        (first, Ipv4Addr::from(u32::from(middle).min(u32::from(address)).saturating_sub(1)))
    }
}

/// How a NIC is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterfaceChoice {
    /// By kernel name (`eth0`).
    Name(String),
    /// By MAC address.
    Mac(MacAddr),
    /// The first one, in order of name, that has a link and is not chosen otherwise.
    Link,
}

/// The network that workers boot from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootNetwork {
    /// Which NIC.
    pub interface: InterfaceChoice,
    /// The appliance's own address on it.
    pub address: Ipv4Addr,
    /// Prefix length, 8 to 30.
    pub prefix: u8,
}

impl BootNetwork {
    /// Whether an address lies in it.
    #[must_use]
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        in_network(address, self.address, self.prefix)
    }
}

/// Whether `address` lies in the network of `prefix` bits around `network`.
#[must_use]
pub fn in_network(address: Ipv4Addr, network: Ipv4Addr, prefix: u8) -> bool {
    (address.to_bits() ^ network.to_bits()) & mask(prefix) == 0
}

/// The uplink NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// Which NIC.
    pub interface: InterfaceChoice,
    /// How it gets its address.
    pub mode: UplinkMode,
}

/// How the uplink gets its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UplinkMode {
    /// From a DHCP server there.
    Dhcp,
    /// As written.
    Static {
        /// Own address.
        address: Ipv4Addr,
        /// Prefix length.
        prefix: u8,
        /// Default router.
        gateway: Option<Ipv4Addr>,
        /// Resolvers.
        dns: Vec<Ipv4Addr>,
    },
}

/// What the DHCP listener does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DhcpMode {
    /// Gives addresses and boot information.
    Server,
    /// Boot information only, beside a DHCP server that gives the addresses: answers on ports 67 and 4011 (PXE 2.1 s2.2).
    Proxy,
    /// Nothing is bound.
    Off,
}

/// DHCP for the boot network and those behind relays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dhcp {
    /// See [`DhcpMode`].
    pub mode: DhcpMode,
    /// The boot network's own; its address and prefix are [`BootNetwork`]'s.
    pub local: Subnet,
    /// Networks that are reached through relays (`giaddr`, or option 82's link selection); none overlaps another.
    pub relayed: Vec<Subnet>,
    /// Routes to those of `relayed` that have a `via`; the others are reached by what routes the host has.
    pub routes: Vec<Route>,
    /// Relays whose `giaddr` lies in none of the networks: they select their clients' by option 82 (RFC 3527).
    pub relays: Vec<Ipv4Addr>,
    /// What a lease goes by.
    pub lease_key: LeaseKey,
    /// Who is answered without option 53.
    pub bootp: Bootp,
    /// Whether an address that was never given out is asked for with ARP before it is offered for the first time. Default on.
    pub conflict_probe: bool,
    /// Whether devices that are not in the ledger get an address at all. Default true.
    pub unknown_devices: bool,
    /// Devices that are not in the ledger and get an address within a minute, in all; 1 to 65,536, default 2,000.
    pub newcomers_per_minute: u32,
}

impl Dhcp {
    /// All subnets, the boot network's own first.
    pub fn subnets(&self) -> impl Iterator<Item = &Subnet> {
        std::iter::once(&self.local).chain(&self.relayed)
    }
}

/// The way to a network behind a router of the boot network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The network, without host bits.
    pub network: Ipv4Addr,
    /// Its prefix length.
    pub prefix: u8,
    /// The next hop: a host of the boot network.
    pub via: Ipv4Addr,
}

/// What a lease goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseKey {
    /// `chaddr`: firmware, iPXE and operating system of one machine get one address (the default).
    Mac,
    /// Option 61 where a client sends it (RFC 2131 s4.2), `chaddr` where not. Reservations go by `chaddr` all the same.
    ClientId,
}

/// What BOOTP clients (no option 53; RFC 1534) are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bootp {
    /// Silence.
    Off,
    /// An address for devices that are in the ledger: it is never taken back, so strangers get none. The default.
    Known,
    /// An address for everybody.
    On,
}

/// One IPv4 network that addresses are given out in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// An address in it: for the boot network our own, for relayed ones the network's.
    pub address: Ipv4Addr,
    /// Prefix length, 8 to 30.
    pub prefix: u8,
    /// First dynamic address.
    pub range_start: Ipv4Addr,
    /// Last dynamic address.
    pub range_end: Ipv4Addr,
    /// Lease time in seconds; 60 to 30 days, default 3600.
    pub lease_secs: u32,
    /// Option 3; absent: none sent.
    pub router: Option<Ipv4Addr>,
    /// Option 6.
    pub dns: Vec<Ipv4Addr>,
    /// Option 15.
    pub domain: Option<String>,
}

impl Subnet {
    /// Whether an address is one that a host in it can have: not the network's own, not the broadcast address.
    #[must_use]
    pub fn has_host(&self, address: Ipv4Addr) -> bool {
        let (first, last) = host_range(self.address, self.prefix);
        (first..=last).contains(&address)
    }

    /// Its network address.
    #[must_use]
    pub fn network(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.address.to_bits() & mask(self.prefix))
    }

    /// Whether an address lies in it.
    #[must_use]
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        in_network(address, self.address, self.prefix)
    }
}

/// IPv6 on the boot network: enough for firmware that boots over IPv6 only. The data plane stays IPv4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipv6 {
    /// Our own address on the boot network; the first 64 bits are the prefix that addresses are given from.
    pub address: Ipv6Addr,
    /// DHCPv6 (RFC 8415).
    pub dhcp: Dhcpv6Mode,
    /// Preferred and, doubled, valid lifetime of a given address in seconds; 60 to 30 days, default 3600.
    pub lease_secs: u32,
    /// Whether we send router advertisements (RFC 4861), with the M and O flags that fit `dhcp`. Never as a default router.
    pub router_advertisements: bool,
}

/// What the DHCPv6 listener does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dhcpv6Mode {
    /// Nothing is bound.
    Off,
    /// Boot information (options 59, 60) without addresses.
    Stateless,
    /// Addresses (IA_NA) and boot information.
    Managed,
}

/// TFTP on the boot network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tftp {
    /// Whether it is served.
    pub enabled: bool,
    /// Further files, besides the loaders: opened beneath it, never through a symbolic link.
    pub folder: Option<PathBuf>,
    /// First and last UDP port of transfers; absent: the kernel's choice. For firewalls.
    pub ports: Option<(u16, u16)>,
    /// Whether transfers run from port 69 itself; for clients behind NAT and strict firewalls.
    pub single_port: bool,
    /// Networks (address, prefix length) besides the boot network and the relayed subnets whose clients are answered.
    pub allow: Vec<(Ipv4Addr, u8)>,
}

/// The local storage node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// Masters and disks. Default `/var/lib/kurrent/disks`.
    pub disk_dir: PathBuf,
    /// Base of all NQNs.
    pub nqn_base: Nqn,
    /// TCP port of the NVMe target on the boot network address; 4420.
    pub target_port: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_reserved_inside_a_subnet_and_not_where_it_is_somebodys_by_nature() {
        let mut config = Config::default();
        let [relayed, router] = [Ipv4Addr::new(10, 78, 0, 0), Ipv4Addr::new(10, 78, 0, 1)];
        config.dhcp.relayed = vec![Subnet { address: relayed, router: Some(router), ..config.dhcp.local.clone() }];
        for (address, fine) in [
            ([10, 77, 0, 5], true),
            ([10, 77, 0, 200], true),
            ([10, 78, 0, 254], true),
            ([10, 77, 0, 1], false),
            ([10, 78, 0, 1], false),
            ([10, 77, 0, 0], false),
            ([10, 78, 0, 255], false),
            ([10, 79, 0, 9], false),
        ] {
            assert_eq!(config.check_reservation(address.into()).is_none(), fine, "{address:?}");
        }
    }

    #[test]
    fn the_boot_network_holds_its_own_addresses_and_no_others() {
        let check = |own: &str, prefix, address: &str, expected| {
            let network = BootNetwork { interface: InterfaceChoice::Link, address: own.parse().unwrap(), prefix };
            assert_eq!(network.contains(address.parse().unwrap()), expected, "{own}/{prefix} {address}");
        };
        check("10.77.0.1", 24, "10.77.0.255", true);
        check("10.77.0.1", 24, "10.77.1.0", false);
        check("10.77.0.1", 24, "10.76.255.255", false);
        check("10.77.0.1", 8, "10.0.0.0", true);
        check("10.77.0.1", 30, "10.77.0.4", false);
        check("10.77.0.1", 24, "127.0.0.1", false);
    }
}
