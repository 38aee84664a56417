//! Leases.

use super::Api;
use super::names::{Address, MacAddress};
use axum::Json;
use axum::extract::State;
use kurrent_core::id::MacAddr;
use serde::Serialize;
use std::net::Ipv4Addr;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list_leases))
}

/// An address and whose it is.
#[derive(Serialize, ToSchema)]
struct Lease {
    #[schema(value_type = Address)]
    address: Ipv4Addr,
    #[schema(value_type = MacAddress)]
    mac: MacAddr,
}

#[derive(Serialize, ToSchema)]
struct LeaseList {
    leases: Vec<Lease>,
}

/// List leases
#[utoipa::path(get, path = "/v1/leases", tag = "leases", responses((status = 200, description = "Ordered by address", body = LeaseList)))]
async fn list_leases(State(api): State<Api>) -> Json<LeaseList> {
    let mut leases: Vec<Lease> = api.shared.leases.load().iter().map(|(address, mac)| Lease { address: *address, mac: *mac }).collect();
    leases.sort_by_key(|l| l.address);
    Json(LeaseList { leases })
}
