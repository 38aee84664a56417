//! How DHCP is.

use super::Api;
use super::names::{Address, MacAddress, Time};
use crate::lease_orders::Listed;
use axum::Json;
use axum::extract::State;
use kurrent_core::config::{DhcpMode, Dhcpv6Mode, Ipv6, Subnet};
use kurrent_core::dhcp::conflict::Conflict;
use kurrent_core::dhcp::lease;
use kurrent_core::dhcp::others::{Heard, Other};
use kurrent_core::id::MacAddr;
use kurrent_core::ledger::Ledger;
use kurrent_core::ledger::schema::{Device, DeviceState};
use kurrent_core::time::Wall;
use kurrent_sys::clock;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
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
    /// To whom it was given, or for whom it is reserved; absent: nobody's, and no other machine is given it meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<MacAddress>, nullable = false)]
    given_to: Option<MacAddr>,
    #[schema(value_type = Time)]
    last_seen: Wall,
}

/// A reservation that waits for another machine.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = DhcpWaiting)]
struct WaitingView {
    /// Whose reservation it is.
    #[schema(value_type = MacAddress)]
    mac: MacAddr,
    #[schema(value_type = Address)]
    address: Ipv4Addr,
    /// Who still has the address.
    #[schema(value_type = MacAddress)]
    held_by: MacAddr,
    /// When its lease ends, unless it renews it; of a bound device the address is not taken then either.
    #[schema(value_type = Time)]
    until: Wall,
}

/// What Kurrent does about DHCPv6.
#[derive(Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = Dhcp6ModeWord)]
enum Mode6Word {
    /// Nothing.
    Off,
    /// It says what machines boot, and gives no addresses.
    Stateless,
    /// It gives addresses, too.
    Managed,
}

/// IPv6 on the boot network.
#[derive(Serialize, ToSchema)]
#[schema(as = DhcpIpv6)]
struct Ipv6View {
    /// The appliance's own address there; its prefix has 64 bits.
    #[schema(value_type = String, format = Ipv6)]
    address: Ipv6Addr,
    mode: Mode6Word,
    /// Whether the prefix is advertised.
    router_advertisements: bool,
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
    /// Reservations of devices that meanwhile have another address.
    waiting: Vec<WaitingView>,
    /// Absent without `networking.boot.address6`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    ipv6: Option<Ipv6View>,
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
        waiting: waiting(&api.shared.ledger.snapshot(), leases, now.wall),
        ipv6: api.shared.config.ipv6.as_ref().map(Ipv6View::from),
        counters: api.shared.dhcp.counters.list().into_iter().map(|(what, count)| CounterView { what, count }).collect(),
    })
}

/// As [`lease::Leases::pick`] has it: what a bound device was given is never taken from it, what others were only when it ended.
fn waiting(ledger: &Ledger, leases: &[Listed], now: Wall) -> Vec<WaitingView> {
    let held: BTreeMap<Ipv4Addr, &Listed> = leases.iter().filter(|l| l.state == lease::State::Bound).map(|l| (l.address, l)).collect();
    let keeps = |l: &Listed| l.until > now || ledger.device(l.mac).is_some_and(|d| d.state == DeviceState::Bound);
    let waits = |device: &Device| {
        let lease = device.address.and_then(|address| held.get(&address)).filter(|l| l.mac != device.mac && keeps(l))?;
        Some(WaitingView { mac: device.mac, address: lease.address, held_by: lease.mac, until: lease.until })
    };
    ledger.devices.values().filter_map(|device| waits(device)).collect()
}

impl From<&Ipv6> for Ipv6View {
    fn from(ipv6: &Ipv6) -> Self {
        let mode = match ipv6.dhcp {
            Dhcpv6Mode::Off => Mode6Word::Off,
            Dhcpv6Mode::Stateless => Mode6Word::Stateless,
            Dhcpv6Mode::Managed => Mode6Word::Managed,
        };
        Self { address: ipv6.address, mode, router_advertisements: ipv6.router_advertisements }
    }
}

fn subnet_view(subnet: &Subnet, leases: &[Listed], now: Wall) -> SubnetView {
    let (first, last) = (subnet.range_start, subnet.range_end);
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
        network: format!("{}/{}", subnet.network(), subnet.prefix),
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
    use kurrent_core::ledger::Change;

    #[test]
    fn a_reservation_waits_while_another_machine_runs_on_it_or_is_bound() {
        let now: Wall = "2026-11-30T12:00:00Z".parse().unwrap();
        let (before, after): (Wall, Wall) = ("2026-11-30T11:00:00Z".parse().unwrap(), "2026-11-30T13:00:00Z".parse().unwrap());
        let (mac, address) = (|last: u8| MacAddr([0x52, 0x54, 0, 0, 0, last]), Ipv4Addr::new(10, 77, 0, 9));
        let change = |ledger: Ledger, change| kurrent_core::ledger::apply::apply(&ledger, change, clock::now()).unwrap().0;
        let register = |last| Change::Register {
            mac: mac(last),
            public_key: None,
            keyless_allowed: true,
            note: String::new(),
            labels: BTreeMap::new(),
            address: None,
        };
        let ledger = change(change(Ledger::default(), register(1)), register(2));
        let reserve = Change::EditDevice { mac: mac(1), note: None, keyless_allowed: None, loader: None, address: Some(Some(address)) };
        let ledger = change(ledger, reserve);
        let waits = |ledger: &Ledger, holder: u8, state, until| {
            let view = waiting(ledger, &[Listed { address, mac: mac(holder), state, until }], now);
            view.first().map(|w| (w.mac, w.address, w.held_by, w.until))
        };
        assert_eq!(waits(&ledger, 2, lease::State::Bound, after), Some((mac(1), address, mac(2), after)));
        assert_eq!(waits(&ledger, 1, lease::State::Bound, after), None, "its own");
        assert_eq!(waits(&ledger, 2, lease::State::Released, after), None);
        assert_eq!(waits(&ledger, 2, lease::State::Bound, before), None, "ended");
        let ledger = change(ledger, Change::CreateWorker { worker: "w1".parse().unwrap() });
        let ledger = change(ledger, Change::Bind { mac: mac(2), worker: "w1".parse().unwrap(), force: false });
        assert!(waits(&ledger, 2, lease::State::Bound, before).is_some(), "of a bound device");
    }

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
