//! Where somebody asks from: which side of the appliance that is, and which addresses are to be taken for one machine's.

use crate::config::Config;
use std::net::{IpAddr, Ipv6Addr};

/// Where somebody asks from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The boot network, machines behind relays, and those with an IPv6 address of ours.
    Boot,
    /// The appliance itself.
    Loopback,
    /// Anywhere else.
    Elsewhere,
}

impl Side {
    /// The side that an address is on. What machines of the boot network do must cost nobody anything who asks from elsewhere.
    #[must_use]
    pub fn of(config: &Config, address: IpAddr) -> Self {
        let of_our_prefix = |v6| config.ipv6.as_ref().is_some_and(|ours| network(ours.address) == network(v6));
        match address.to_canonical() {
            IpAddr::V4(v4) if config.boot_network.contains(v4) || config.dhcp.subnets().any(|subnet| subnet.contains(v4)) => Self::Boot,
            address if address.is_loopback() => Self::Loopback,
            IpAddr::V6(v6) if v6.is_unicast_link_local() || of_our_prefix(v6) => Self::Boot,
            IpAddr::V4(_) | IpAddr::V6(_) => Self::Elsewhere,
        }
    }
}

/// Bits of an interface identifier (RFC 4291 section 2.5.4): a machine gives itself as many as it likes.
const IDENTIFIER_BITS: u32 = 64;

/// The /64 that an IPv6 address is in.
#[must_use]
pub fn network(address: Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(address.to_bits() >> IDENTIFIER_BITS << IDENTIFIER_BITS)
}

/// What stands for an address where a machine's share is counted: all of one /64 is one machine's, and IPv4 in IPv6 is IPv4.
#[must_use]
pub fn counted(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => network(v6).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Dhcpv6Mode, Ipv6, Subnet};

    #[test]
    fn a_machine_of_any_of_our_networks_is_on_the_boot_networks_side() {
        let mut config = Config { ipv6: None, ..Config::default() };
        let relayed = Subnet { address: [10, 99, 0, 0].into(), prefix: 24, ..config.dhcp.local.clone() };
        config.dhcp.relayed.push(relayed);
        let boot = config.boot_network.address.to_string();
        for (address, expected) in [
            (boot.as_str(), Side::Boot),
            (&format!("::ffff:{boot}"), Side::Boot),
            ("10.99.0.7", Side::Boot),
            ("10.98.0.7", Side::Elsewhere),
            ("fe80::7", Side::Boot),
            ("fd00:77::7", Side::Elsewhere),
            ("127.0.0.1", Side::Loopback),
            ("::1", Side::Loopback),
            ("::ffff:127.0.0.1", Side::Loopback),
        ] {
            assert_eq!(Side::of(&config, address.parse().unwrap()), expected, "{address}");
        }
        let (address, dhcp) = ("fd00:77::1".parse().unwrap(), Dhcpv6Mode::Off);
        config.ipv6 = Some(Ipv6 { address, dhcp, lease_secs: 3600, router_advertisements: false });
        assert_eq!(Side::of(&config, "fd00:77::7".parse().unwrap()), Side::Boot);
        assert_eq!(Side::of(&config, "fd00:78::7".parse().unwrap()), Side::Elsewhere);
    }

    #[test]
    fn all_of_one_ipv6_network_is_one_machines() {
        for (address, expected) in [
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
            ("fe80::7", "fe80::"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("192.0.2.7", "192.0.2.7"),
        ] {
            assert_eq!(counted(address.parse().unwrap()).to_string(), expected);
        }
    }
}
