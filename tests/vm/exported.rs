//! What the appliance has read in the kernel's target of one Worker's disk and one machine's address.

use anyhow::{Context, Result};
use kurrent_core::id::MacAddr;
use kurrent_harness::api::Api;
use serde_json::Value;

/// Of one Worker and one address.
#[derive(Debug)]
pub struct Exported {
    /// Whom the Worker's disk is exported to.
    pub host: String,
    /// Connections from the address.
    pub connections: u64,
}

impl Exported {
    /// As it was seen last.
    pub fn now(api: &Api, worker: &str, address: &str) -> Result<Self> {
        let seen = api.get("/v1/target")?;
        let list = |name: &str| seen.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
        let exports = list("exports");
        let export = exports.iter().find(|export| {
            let subsystem = export.get("subsystem").and_then(Value::as_str).unwrap_or_default();
            subsystem.contains(&format!(":{worker}."))
        });
        let host = export.and_then(|export| export.get("host")?.as_str()).unwrap_or_default().to_owned();
        let sessions = list("sessions");
        let from = sessions.iter().find(|session| session.get("address").and_then(Value::as_str) == Some(address));
        Ok(Self { host, connections: from.and_then(|session| session.get("connections")?.as_u64()).unwrap_or_default() })
    }
}

/// The address that a machine was given.
pub fn address_of(api: &Api, mac: MacAddr) -> Result<String> {
    let leases = api.get("/v1/leases")?;
    let all = leases.get("leases").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let of_mac = all.iter().find(|lease| lease.get("mac").and_then(Value::as_str) == Some(&mac.to_string()));
    Ok(of_mac.and_then(|lease| lease.get("address")?.as_str()).with_context(|| format!("no lease of {mac} in {leases}"))?.to_owned())
}
