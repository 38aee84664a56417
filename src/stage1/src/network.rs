//! The NIC that booted, with the address that it has already: no second DHCP.

use crate::{Fault, one_line, within};
use kurrent_core::stage1::Credentials;
use kurrent_sys::link::{self, Link};
use std::time::Duration;

/// How long a driver may take to show its NIC.
const NIC_WITHIN: Duration = Duration::from_secs(15);
/// Auto-negotiation takes up to 5 s; a switch port with spanning tree 30 s more before it forwards, which the connection waits for.
const CARRIER_WITHIN: Duration = Duration::from_secs(30);
/// Kernel index of the loopback interface.
const LOOPBACK: u32 = 1;

/// Brings it up; returns when it has a link.
pub fn bring_up(credentials: &Credentials) -> Result<Link, Fault> {
    link::set_up(LOOPBACK, true).map_err(|e| one_line(&e))?;
    let find = || link::links().ok()?.into_iter().find(|l| l.mac == Some(credentials.mac));
    let nic = within(NIC_WITHIN, find)
        .ok_or_else(|| format!("there is no NIC {}; its driver may be missing from the appliance's stage-1", credentials.mac))?;
    link::set_up(nic.index, true).map_err(|e| one_line(&e))?;
    let up = within(CARRIER_WITHIN, || find().filter(|l| l.carrier));
    let nic =
        up.ok_or_else(|| format!("{} ({}) has no link after {} s; is the cable in?", nic.name, credentials.mac, CARRIER_WITHIN.as_secs()))?;
    link::add_address(nic.index, credentials.address, credentials.prefix).map_err(|e| one_line(&e))?;
    if let Some(gateway) = credentials.gateway {
        link::set_default_route(nic.index, gateway).map_err(|e| one_line(&e))?;
    }
    Ok(nic)
}
