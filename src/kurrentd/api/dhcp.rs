//! How DHCP is.

use super::Api;
use super::names::{Address, MacAddress, Time};
use crate::lease_orders::Listed;
use axum::Json;
use axum::extract::State;
use kurrent_core::config::{DhcpMode, Subnet};
use kurrent_core::dhcp::conflict::Conflict;
use kurrent_core::dhcp::lease;
use kurrent_core::dhcp::others::{Heard, Other};
use kurrent_core::id::MacAddr;
use kurrent_core::time::Wall;
use kurrent_sys::clock;
use serde::Serialize;
use std::net::Ipv4Addr;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(get_dhcp))
}

/// What Kurrent does about DHCP.
#[derive(Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = DhcpModeWord)]
enum ModeWord {
    /// It gives addresses.
    Server,
    /// Another server does; it adds what machines boot.
    Proxy,
    /// Neither.
    Off,
}

/// A network that addresses are given out in.
#[derive(Serialize, ToSchema)]
#[schema(as = DhcpSubnet)]
struct SubnetView {
    /// With its prefix length.
    network: String,
    #[schema(value_type = Address)]
    range_start: Ipv4Addr,
    #[schema(value_type = Address)]
    range_end: Ipv4Addr,
    /// Addresses of the range.
    size: u32,
    /// Leases that run.
    in_use: u32,
    /// Leases that ended or were given back: still their machine's, until somebody needs them and no address was never used.
    ended: u32,
    /// Some other machine uses them.
    quarantined: u32,
    /// Addresses that were never given out.
    unused: u32,
}

/// How another server was noticed.
#[derive(Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = DhcpServerHeard)]
enum HeardWord {
    /// It offered an address.
    Offer,
    /// It offered boot information without an address.
    ProxyOffer,
    /// It gave an address.
    Ack,
    /// It refused one.
    Nak,
    /// A machine said that it chose this server.
    Chosen,
}

/// Another DHCP server on the boot network.
#[derive(Serialize, ToSchema)]
#[schema(as = OtherDhcpServer)]
struct OtherView {
    #[schema(value_type = Address)]
    server: Ipv4Addr,
    /// Where its frames come from; absent when only machines spoke of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<MacAddress>, nullable = false)]
    mac: Option<MacAddr>,
    heard: HeardWord,
    /// The address that it offered or gave last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Address>, nullable = false)]
    address: Option<Ipv4Addr>,
    #[schema(value_type = Time)]
    first_seen: Wall,
    #[schema(value_type = Time)]
    last_seen: Wall,
}

/// An address that a machine uses although nobody gave it that.
#[derive(Serialize, ToSchema)]
#[schema(as = DhcpConflict)]
struct ConflictView {
    #[schema(value_type = Address)]
    address: Ipv4Addr,
    /// Who uses it.
    #[schema(value_type = MacAddress)]
    mac: MacAddr,
    /// Whose lease it is; absent: nobody's, and it is not given out meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<MacAddress>, nullable = false)]
    given_to: Option<MacAddr>,
    #[schema(value_type = Time)]
    last_seen: Wall,
}

/// What became of so many datagrams.
#[derive(Serialize, ToSchema)]
#[schema(as = DhcpCounter)]
struct CounterView {
    /// In words; `ignored`, `silent`, `refused` and `lost` begin with that.
    #[schema(value_type = String)]
    what: &'static str,
    count: u64,
}

/// How DHCP is.
#[derive(Serialize, ToSchema)]
struct Dhcp {
    mode: ModeWord,
    /// Whether leases are given out now.
    serving: bool,
    /// The boot network's own first.
    subnets: Vec<SubnetView>,
    other_servers: Vec<OtherView>,
    /// As heard in ARP on the boot network.
    conflicts: Vec<ConflictView>,
    /// Since the daemon's start.
    counters: Vec<CounterView>,
}

/// Get how DHCP is
#[utoipa::path(get, path = "/v1/dhcp", tag = "leases", responses((status = 200, description = "How DHCP is", body = Dhcp)))]
async fn get_dhcp(State(api): State<Api>) -> Json<Dhcp> {
    let (config, now) = (&api.shared.config.dhcp, clock::now());
    let (mode, gives) = match config.mode {
        DhcpMode::Server => (ModeWord::Server, true),
        DhcpMode::Proxy => (ModeWord::Proxy, false),
        DhcpMode::Off => (ModeWord::Off, false),
    };
    let listed = if gives { api.shared.lease_orders.list().await.ok() } else { None };
    let leases = listed.as_deref().unwrap_or_default();
    let subnets = if gives { config.subnets().map(|subnet| subnet_view(subnet, leases, now.wall)).collect() } else { Vec::new() };
    Json(Dhcp {
        mode,
        serving: listed.is_some(),
        subnets,
        other_servers: api.shared.dhcp.others(now).iter().map(OtherView::from).collect(),
        conflicts: api.shared.dhcp.conflicts().iter().map(ConflictView::from).collect(),
        counters: api.shared.dhcp.counters.list().into_iter().map(|(what, count)| CounterView { what, count }).collect(),
    })
}

fn subnet_view(subnet: &Subnet, leases: &[Listed], now: Wall) -> SubnetView {
    let (first, last) = (subnet.range_start, subnet.range_end);
    let mask = u32::MAX.checked_shl(32_u32.saturating_sub(u32::from(subnet.prefix))).unwrap_or(0);
    let network = Ipv4Addr::from_bits(subnet.address.to_bits() & mask);
    let count = |wanted: &dyn Fn(&Listed) -> bool| {
        let found = leases.iter().filter(|l| (first..=last).contains(&l.address) && wanted(l)).count();
        u32::try_from(found).unwrap_or(u32::MAX)
    };
    let in_use = count(&|l| l.state == lease::State::Bound && l.until > now);
    let quarantined = count(&|l| l.state == lease::State::Declined && l.until > now);
    let ended = count(&|_| true).saturating_sub(in_use).saturating_sub(quarantined);
    let size = last.to_bits().saturating_sub(first.to_bits()).saturating_add(1);
    let unused = size.saturating_sub(in_use).saturating_sub(quarantined).saturating_sub(ended);
    SubnetView {
        network: format!("{network}/{}", subnet.prefix),
        range_start: first,
        range_end: last,
        size,
        in_use,
        ended,
        quarantined,
        unused,
    }
}

impl From<&Conflict> for ConflictView {
    fn from(conflict: &Conflict) -> Self {
        Self { address: conflict.address, mac: conflict.mac, given_to: conflict.given_to, last_seen: conflict.last }
    }
}

impl From<&Other> for OtherView {
    fn from(other: &Other) -> Self {
        let heard = match other.latest.heard {
            Heard::Offer => HeardWord::Offer,
            Heard::ProxyOffer => HeardWord::ProxyOffer,
            Heard::Ack => HeardWord::Ack,
            Heard::Nak => HeardWord::Nak,
            Heard::Chosen => HeardWord::Chosen,
        };
        let latest = other.latest;
        Self { server: latest.server, mac: latest.mac, heard, address: latest.address, first_seen: other.first, last_seen: other.last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_of_the_range_is_counted_once() {
        let now: Wall = "2026-11-30T12:00:00Z".parse().unwrap();
        let (before, after): (Wall, Wall) = ("2026-11-30T11:00:00Z".parse().unwrap(), "2026-11-30T13:00:00Z".parse().unwrap());
        let subnet = kurrent_core::config::Config::default().dhcp.local;
        let listed =
            |last: u8, state, until| Listed { address: Ipv4Addr::new(10, 77, 0, last), mac: MacAddr([2, 0, 0, 0, 0, last]), state, until };
        let leases = [
            listed(129, lease::State::Bound, after),
            listed(130, lease::State::Bound, before),
            listed(131, lease::State::Released, after),
            listed(132, lease::State::Declined, after),
            // A reservation outside the range.
            listed(9, lease::State::Bound, after),
        ];
        let view = subnet_view(&subnet, &leases, now);
        assert_eq!((view.network.as_str(), view.size), ("10.77.0.0/24", 127));
        assert_eq!((view.in_use, view.ended, view.quarantined, view.unused), (1, 2, 1, 123));
    }
}
