//! `kurrent.yaml` in its checked form. The text form is read in `kurrentd::config_file`; only that makes a [`Config`].

use crate::id::{MacAddr, Nqn};
use std::net::Ipv4Addr;
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
    /// Whether TFTP is served.
    pub tftp_enabled: bool,
    /// TCP port of the boot plane on the boot network address; 80.
    pub boot_port: u16,
    /// TCP port of the API on all addresses; 8080.
    pub api_port: u16,
    /// `spec.security.enforcement`: only a verified answer opens the data plane. Default on.
    pub enforcement: bool,
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
                range_start,
                range_end,
                lease_secs: 3600,
                router: None,
                dns: Vec::new(),
                domain: None,
                unknown_devices: true,
            },
            tftp_enabled: true,
            boot_port: 80,
            api_port: 8080,
            enforcement: true,
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

/// The first and last host address of a network.
#[must_use]
pub fn host_range(address: Ipv4Addr, prefix: u8) -> (Ipv4Addr, Ipv4Addr) {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
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
        let host_bits = 32_u32.saturating_sub(u32::from(self.prefix));
        (address.to_bits() ^ self.address.to_bits()).checked_shr(host_bits).unwrap_or(0) == 0
    }
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
    /// Nothing is bound.
    Off,
}

/// DHCP on the boot network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dhcp {
    /// See [`DhcpMode`].
    pub mode: DhcpMode,
    /// First dynamic address, inside the boot network.
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
    /// Whether devices that are not in the ledger get an address at all. Default true.
    pub unknown_devices: bool,
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
