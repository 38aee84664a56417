//! Which of our subnets a client is on: one answer for server and proxy.

use super::msg::Request;
use super::pool::SubnetId;
use crate::config::Dhcp;

/// By link selection (RFC 3527), else by `giaddr`, else by `ciaddr`: who renews by unicast is behind a router and tells of it by
/// its own address only (RFC 2131 s4.3.2, RENEWING). Else the boot network.
///
/// Answers go to `giaddr`, so it must be an address that relays have: one of the networks that are served, or one of
/// `spec.dhcp.relays` (RFC 3527 is for relays whose `giaddr` is on another network than their clients). Without that rule a forged
/// `giaddr`, with a link selection of ours, would have us send to anybody in the world.
#[must_use]
pub fn subnet_of(dhcp: &Dhcp, request: &Request) -> Option<SubnetId> {
    let find = |address| dhcp.subnets().position(|subnet| subnet.contains(address)).map(SubnetId::nth);
    // An answer to a directed broadcast would be heard by a whole network.
    let host = |address| find(address).filter(|_| dhcp.subnets().any(|subnet| subnet.has_host(address)));
    let given = |address: std::net::Ipv4Addr| Some(address).filter(|a| !a.is_unspecified());
    match (given(request.giaddr), given(request.ciaddr)) {
        (Some(relay), _) => {
            let known = host(relay).is_some() || dhcp.relays.contains(&relay);
            find(request.link_selection.unwrap_or(relay)).filter(|_| known)
        }
        (None, Some(client)) => host(client),
        (None, None) => Some(SubnetId::LOCAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::dhcp::proxy;
    use crate::dhcp::testing::{World, at, mac, relayed};
    use crate::dhcp::wire::option::{CLIENT_ARCH, RELAY_AGENT, VENDOR_CLASS};
    use crate::dhcp::{Reason, address::Destination};
    use std::net::Ipv4Addr;

    /// As server and as proxy: whether a relay with this `giaddr` and link selection is answered, and where.
    fn answered(relays: &[Ipv4Addr], giaddr: Ipv4Addr, selected: Option<[u8; 4]>) -> (Option<Destination>, Option<Destination>) {
        let mut world = World::default();
        world.config.dhcp.relays = relays.to_vec();
        let agent = selected.map(|[a, b, c, d]| vec![1, 1, 7, 5, 4, a, b, c, d]).unwrap_or(vec![1, 1, 7]);
        let options: [(u8, &[u8]); 3] = [(VENDOR_CLASS, b"PXEClient"), (CLIENT_ARCH, &[0, 7]), (RELAY_AGENT, &agent)];
        let request = relayed(giaddr, 1, mac(1), &options);
        let view = proxy::View { config: &world.config, ledger: &world.ledger };
        let by_proxy = match proxy::decide(&request, &view) {
            (Some((_, to)), _) => Some(to),
            (None, reason) => {
                assert_eq!(reason, proxy::Reason::OtherNetwork);
                None
            }
        };
        let decision = world.ask(&request, at(0));
        assert_eq!(decision.reply.is_none(), decision.reason == Reason::OtherNetwork);
        (decision.reply.map(|(_, to)| to), by_proxy)
    }

    #[test]
    fn rfc_3527_a_link_is_selected_by_relays_that_are_known_and_nobody_makes_us_answer_the_world() {
        let (local, world, own) = ([10, 77, 0, 0], Ipv4Addr::new(8, 8, 8, 8), Ipv4Addr::new(10, 77, 0, 3));
        let both = |relay| (Some(Destination::Relay(relay)), Some(Destination::Relay(relay)));
        assert_eq!(answered(&[], own, None), both(own));
        assert_eq!(answered(&[], own, Some(local)), both(own));
        assert_eq!(answered(&[], own, Some([192, 0, 2, 0])), (None, None), "no network of ours");
        assert_eq!(answered(&[], world, None), (None, None));
        assert_eq!(answered(&[], world, Some(local)), (None, None), "a reflector");
        assert_eq!(answered(&[world], world, Some(local)), both(world));
        assert_eq!(answered(&[world], world, None), (None, None), "its own network is none of ours");
        for end in [0, 255] {
            assert_eq!(answered(&[], Ipv4Addr::new(10, 77, 0, end), Some(local)), (None, None), "a directed broadcast");
        }
    }

    #[test]
    fn who_comes_through_no_relay_is_on_the_network_of_its_address_or_on_ours() {
        let dhcp = Config::default().dhcp;
        let of = |client: [u8; 4]| {
            let request = relayed(Ipv4Addr::UNSPECIFIED, 3, mac(1), &[(RELAY_AGENT, &[5, 4, 192, 0, 2, 0])]);
            subnet_of(&dhcp, &Request { ciaddr: client.into(), ..request })
        };
        assert_eq!((of([0; 4]), of([10, 77, 0, 9]), of([192, 0, 2, 9])), (Some(SubnetId::LOCAL), Some(SubnetId::LOCAL), None));
        assert_eq!((of([10, 77, 0, 0]), of([10, 77, 0, 255])), (None, None), "a directed broadcast");
    }
}
