//! Leases.

use super::Api;
use super::body::{Query, Segments};
use super::names::{Address, Cursor, MacAddress, Network};
use super::page::Wanted;
use super::problem::Problem;
use crate::api::guard::actor;
use crate::audit::Event;
use crate::lease_orders::{Listed, ReleaseError};
use axum::Json;
use axum::extract::State;
use kurrent_core::config::in_network;
use kurrent_core::dhcp::lease;
use kurrent_core::id::MacAddr;
use kurrent_core::ledger::{DeviceState, Ledger};
use kurrent_core::time::Wall;
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list_leases)).routes(routes!(release_lease))
}

/// How an address stands.
#[derive(Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = LeaseState)]
enum StateWord {
    /// Given to the machine; after `until` it is still its own until somebody needs it.
    Bound,
    /// Given back.
    Released,
    /// In quarantine: the machine found another one using it.
    Declined,
}

impl StateWord {
    fn of(state: lease::State) -> Option<Self> {
        match state {
            lease::State::Offered => None,
            lease::State::Bound => Some(Self::Bound),
            lease::State::Released => Some(Self::Released),
            lease::State::Declined => Some(Self::Declined),
        }
    }
}

/// An address and whose it is.
#[derive(Serialize, ToSchema)]
struct Lease {
    #[schema(value_type = Address)]
    address: Ipv4Addr,
    #[schema(value_type = MacAddress)]
    mac: MacAddr,
    /// The network of the configuration that it lies in; absent when that was taken out of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Network>, nullable = false)]
    subnet: Option<String>,
    /// Absent while DHCP does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<StateWord>, nullable = false)]
    state: Option<StateWord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<super::names::Time>, nullable = false)]
    until: Option<Wall>,
}

#[derive(Serialize, ToSchema)]
struct LeaseList {
    #[schema(max_items = 1000)]
    leases: Vec<Lease>,
    /// The cursor of what follows; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Piece {
    /// Leases of one answer.
    #[param(minimum = 1, maximum = 1000, default = 200)]
    limit: Option<usize>,
    /// Where the previous answer ended.
    #[param(value_type = Option<Cursor>)]
    cursor: Option<String>,
    /// Only leases of this network.
    #[param(value_type = Option<Network>)]
    subnet: Option<String>,
}

/// A network as it is written, without host bits.
fn network(text: &str) -> Option<(Ipv4Addr, u8)> {
    let (address, prefix) = text.split_once('/')?;
    let (address, prefix): (Ipv4Addr, u8) = (address.parse().ok()?, prefix.parse().ok().filter(|p| *p <= 32)?);
    (address.to_bits() & !kurrent_core::config::mask(prefix) == 0).then_some((address, prefix))
}

/// List leases
#[utoipa::path(get, path = "/v1/leases", tag = "leases", params(Piece),
    responses((status = 200, description = "Ordered by address", body = LeaseList)))]
async fn list_leases(State(api): State<Api>, Query(piece): Query<Piece>) -> Result<Json<LeaseList>, Problem> {
    let wanted = Wanted::new(piece.limit, piece.cursor.as_deref())?;
    let none = || Problem::new(400, "cursor_invalid", "the cursor is not one of this list; begin without one").at("cursor");
    let after: Option<Ipv4Addr> = wanted.after().map(|a| a.parse().map_err(|_| none())).transpose()?;
    let unreadable = || Problem::new(400, "query_invalid", "the subnet is a network like 10.78.0.0/24; correct it").at("subnet");
    let asked = piece.subnet.as_deref().map(|text| network(text).ok_or_else(unreadable)).transpose()?;
    let dhcp = &api.shared.config.dhcp;
    let of = |address| dhcp.subnets().find(|s| s.contains(address)).map(|s| format!("{}/{}", s.network(), s.prefix));
    let mut leases: Vec<Lease> = match api.shared.lease_orders.list().await {
        Ok(all) => {
            let lease = |l: Listed| {
                let (state, until) = (StateWord::of(l.state), Some(l.until));
                Lease { address: l.address, mac: l.mac, subnet: of(l.address), state, until }
            };
            all.into_iter().map(lease).collect()
        }
        Err(_) => {
            let held = api.shared.leases.load();
            held.iter().map(|(address, mac)| Lease { address, mac, subnet: of(address), state: None, until: None }).collect()
        }
    };
    leases.retain(|l| asked.is_none_or(|(network, prefix)| in_network(l.address, network, prefix)));
    leases.sort_by_key(|l| l.address);
    let page = wanted.take(leases.into_iter().filter(|l| after.is_none_or(|after| l.address > after)), |l| l.address.to_string());
    Ok(Json(LeaseList { leases: page.items, next: page.next }))
}

/// A lease that was taken back.
#[derive(Serialize, ToSchema)]
struct Released {
    #[schema(value_type = Address)]
    address: Ipv4Addr,
    #[schema(value_type = MacAddress)]
    mac: MacAddr,
    /// What it means for the machine.
    meaning: String,
}

/// Take a lease back
///
/// As if the machine had given it back: nobody else gets the address for five minutes, and of a bound device never. A machine that runs
/// goes on using it until it renews.
#[utoipa::path(delete, path = "/v1/leases/{address}", tag = "leases", responses((status = 200, description = "Taken back", body = Released)))]
async fn release_lease(State(api): State<Api>, path: Segments) -> Result<Json<Released>, Problem> {
    let wrong = |_| Problem::new(400, "name_invalid", "the address is not an IPv4 address, like 10.77.0.101; correct it").at("address");
    let address: Ipv4Addr = path.text("address").parse().map_err(wrong)?;
    let released = api.shared.lease_orders.release(address).await;
    let result = released.as_ref().map_or_else(code, |_| "ok").to_owned();
    let device = released.as_ref().ok().copied();
    api.shared.audit.record(Event {
        actor: actor(),
        verb: "lease-release",
        device,
        object: address.to_string(),
        result,
        detail: String::new(),
    });
    let mac = released.map_err(|e| Problem::new(status(&e), code(&e), e.to_string()))?;
    Ok(Json(Released { address, mac, meaning: meaning(&api.shared.ledger.snapshot(), mac) }))
}

fn meaning(ledger: &Ledger, mac: MacAddr) -> String {
    match ledger.device(mac).map(|d| (d.state, &d.bound_worker_id)) {
        Some((DeviceState::Bound, Some(worker))) => format!(
            "the device is bound to Worker {worker}: the address stays reserved for it, and a machine that runs keeps its disk and goes on \
             using the address; unbind it to free the address"
        ),
        _ => "the machine may have it again; another one gets it after five minutes, when no fresher address is left".into(),
    }
}

fn code(error: &ReleaseError) -> &'static str {
    match error {
        ReleaseError::NotFound(_) => "lease_not_found",
        ReleaseError::Declined(_) => "lease_declined",
        ReleaseError::NotServed(_) => "dhcp_not_served",
        ReleaseError::NotDurable(_) => "not_durable",
    }
}

fn status(error: &ReleaseError) -> u16 {
    match error {
        ReleaseError::NotFound(_) => 404,
        ReleaseError::Declined(_) => 409,
        ReleaseError::NotServed(_) => 503,
        ReleaseError::NotDurable(_) => 507,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_written_without_host_bits() {
        assert_eq!(network("10.78.0.0/24"), Some(([10, 78, 0, 0].into(), 24)));
        assert_eq!((network("0.0.0.0/0"), network("10.78.0.9/32")), (Some(([0; 4].into(), 0)), Some(([10, 78, 0, 9].into(), 32))));
        for wrong in ["10.78.0.1/24", "10.78.0.0/33", "10.78.0.0", "10.78.0.0/", "/24", "10.78.0.0/-1", "10.78.0.0/24/1", "::/64"] {
            assert_eq!(network(wrong), None, "{wrong}");
        }
    }
}
