//! Whether there is a way to the networks behind relays. Without one the relay hears nothing of us, and neither do its machines.
//!
//! The daemon sets no route: on the appliance PID 1 does, elsewhere the host's administrator.

use crate::shared::SharedRef;
use kurrent_core::config::{Dhcp, Subnet};
use kurrent_sys::link::LinkError;
use kurrent_sys::route::{self, Way};
use std::net::Ipv4Addr;
use std::time::Duration;

/// The part of [`crate::shared::Faults`].
const FAULT: &str = "dhcp-subnets";
/// How often is looked: routes come and go with NICs and by hand.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Networks that are named; of more there is the number.
const MAX_NAMED: usize = 4;

/// Looks again and again, and tells. Cancel-safe.
///
/// # Errors
/// The kernel does not answer.
pub async fn watch(shared: SharedRef) -> anyhow::Result<()> {
    let mut look = tokio::time::interval(LOOK_EVERY);
    loop {
        look.tick().await;
        match fault(&shared.config.dhcp, route::way_to)? {
            Some(what) => shared.faults.set(FAULT, what),
            None => shared.faults.clear(FAULT),
        }
    }
}

/// What is wrong, in words.
fn fault(dhcp: &Dhcp, way_to: impl Fn(Ipv4Addr) -> Result<Option<Way>, LinkError>) -> Result<Option<String>, LinkError> {
    let mut faults = Vec::new();
    for subnet in &dhcp.relayed {
        let via = dhcp.routes.iter().find(|route| route.network == subnet.address).map(|route| route.via);
        faults.extend(subnet_fault(subnet, via, &way_to)?);
    }
    let more = faults.len().saturating_sub(MAX_NAMED);
    faults.truncate(MAX_NAMED);
    if more > 0 {
        faults.push(format!("and {more} networks more"));
    }
    Ok((!faults.is_empty()).then(|| faults.join("; ")))
}

fn subnet_fault(
    subnet: &Subnet,
    via: Option<Ipv4Addr>,
    way_to: impl Fn(Ipv4Addr) -> Result<Option<Way>, LinkError>,
) -> Result<Option<String>, LinkError> {
    let network = format!("{}/{}", subnet.address, subnet.prefix);
    // The relay is most often the network's router; a narrower route may lead to a part of the network only.
    for address in subnet.router.into_iter().chain([subnet.range_start, subnet.range_end]) {
        let Some(way) = way_to(address)? else {
            let remedy = match via {
                Some(via) => format!("`ip route add {network} via {via}`"),
                None => format!("write `via` for it in spec.dhcp.subnets, or `ip route add {network} via ROUTER`"),
            };
            return Ok(Some(format!("there is no route to {network} behind its relay, so nothing there gets an answer: {remedy}")));
        };
        if let Some(via) = via.filter(|via| way.via != Some(*via)) {
            let instead = way.via.map_or_else(|| "is on a link of our own".to_owned(), |other| format!("is reached via {other}"));
            return Ok(Some(format!(
                "{network} {instead}, not via {via} as spec.dhcp.subnets says: `ip route replace {network} via {via}`"
            )));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kurrent_core::config::{Config, Route};

    fn dhcp(via: Option<u8>, networks: u8) -> Dhcp {
        let mut dhcp = Config::default().dhcp;
        for net in 78..78 + networks {
            let host = |last| Ipv4Addr::new(10, net, 0, last);
            let network = host(0);
            let relayed =
                Subnet { address: network, router: Some(host(1)), range_start: host(10), range_end: host(20), ..dhcp.local.clone() };
            dhcp.relayed.push(relayed);
            dhcp.routes.extend(via.map(|last| Route { network, prefix: 24, via: Ipv4Addr::new(10, 77, 0, last) }));
        }
        dhcp
    }

    /// With a route to the addresses below `below`.
    fn told(dhcp: &Dhcp, below: u8, via: Option<u8>) -> Option<String> {
        let via = via.map(|last| Ipv4Addr::new(10, 77, 0, last));
        fault(dhcp, |address| Ok((address.octets()[3] < below).then_some(Way { index: 2, via }))).unwrap()
    }

    #[test]
    fn the_fault_says_which_route_or_via_is_missing() {
        assert_eq!(told(&dhcp(None, 0), 0, None), None, "nothing is behind relays");
        assert_eq!(told(&dhcp(None, 2), 255, Some(9)), None, "whatever route there is");
        let none = told(&dhcp(None, 1), 0, None).unwrap();
        assert!(none.contains("no route to 10.78.0.0/24") && none.contains("`via`") && none.contains("`ip route add"), "{none}");
        let with_via = told(&dhcp(Some(254), 1), 0, None).unwrap();
        assert!(with_via.ends_with("`ip route add 10.78.0.0/24 via 10.77.0.254`"), "{with_via}");
        assert_eq!(told(&dhcp(Some(254), 1), 255, Some(254)), None);
        let other = told(&dhcp(Some(254), 1), 255, Some(9)).unwrap();
        assert!(other.starts_with("10.78.0.0/24 is reached via 10.77.0.9, not via 10.77.0.254"), "{other}");
        let own = told(&dhcp(Some(254), 1), 255, None).unwrap();
        assert!(own.contains("on a link of our own"), "{own}");
    }

    #[test]
    fn a_route_to_a_part_of_the_network_is_not_enough() {
        assert!(told(&dhcp(None, 1), 15, Some(9)).is_some());
        assert_eq!(told(&dhcp(None, 1), 21, Some(9)), None);
    }

    #[test]
    fn many_networks_make_no_long_fault() {
        let what = told(&dhcp(None, 100), 0, None).unwrap();
        assert!(what.ends_with("; and 96 networks more") && what.len() < 1000, "{what}");
    }
}
