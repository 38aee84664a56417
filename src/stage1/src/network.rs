//! The NIC that booted, with the address that it has already: no second DHCP.

use crate::{Fault, one_line, within};
use kurrent_core::stage1::Credentials;
use kurrent_sys::link::{self, Link};
use std::time::{Duration, Instant};

/// How long a driver may take to show its NIC.
const NIC_WITHIN: Duration = Duration::from_secs(15);
/// Between two looks for devices whose driver is not loaded: each walks all of sysfs.
const PLUG_POLL: Duration = Duration::from_millis(200);
/// Auto-negotiation takes up to 5 s; a switch port with spanning tree 30 s more before it forwards, which the connection waits for.
const CARRIER_WITHIN: Duration = Duration::from_secs(30);
/// Kernel index of the loopback interface.
const LOOPBACK: u32 = 1;

/// Brings it up; returns when it has a link. `plug` loads drivers for devices that have appeared.
pub fn bring_up(credentials: &Credentials, plug: impl FnMut()) -> Result<Link, Fault> {
    link::set_up(LOOPBACK, true).map_err(|e| one_line(&e))?;
    let find = || link::links().ok()?.into_iter().find(|l| l.mac == Some(credentials.mac));
    let nic = appear(NIC_WITHIN, PLUG_POLL, find, plug)
        .ok_or_else(|| format!("there is no NIC {}; its driver may be missing from the appliance's stage-1", credentials.mac))?;
    link::set_up(nic.index, true).map_err(|e| one_line(&e))?;
    let up = within(CARRIER_WITHIN, || find().filter(|l| l.carrier));
    let nic =
        up.ok_or_else(|| format!("{} ({}) has no link after {} s; is the cable in?", nic.name, credentials.mac, CARRIER_WITHIN.as_secs()))?;
    link::add_address(nic.index, credentials.address, credentials.prefix).map_err(|e| one_line(&e))?;
    if let Some(gateway) = credentials.gateway {
        kurrent_sys::route::set_default(nic.index, gateway).map_err(|e| one_line(&e))?;
    }
    Ok(nic)
}

/// A NIC on a bus of its own (Hyper-V's, USB) has no modalias before that bus has its driver and has looked: drivers are loaded
/// again and again until it is there.
fn appear<T>(limit: Duration, poll: Duration, find: impl Fn() -> Option<T>, mut plug: impl FnMut()) -> Option<T> {
    let mut plugged: Option<Instant> = None;
    within(limit, || {
        let found = find();
        if found.is_none() && plugged.is_none_or(|at| at.elapsed() >= poll) {
            plug();
            plugged = Some(Instant::now());
        }
        found
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_nic_behind_two_buses_is_found_because_drivers_are_loaded_until_it_is_there() {
        let drivers = Cell::new(0);
        let nic = || (drivers.get() == 3).then_some("eth0");
        let plug = || drivers.set(drivers.get() + 1);
        assert_eq!(appear(NIC_WITHIN, Duration::ZERO, nic, plug), Some("eth0"));
        assert_eq!(appear(Duration::ZERO, Duration::ZERO, nic, || panic!("it is there")), Some("eth0"));
    }

    #[test]
    fn a_nic_that_never_comes_is_given_up_after_more_than_one_look() {
        let looks = Cell::new(0);
        let plug = || looks.set(looks.get() + 1);
        assert_eq!(appear(Duration::from_millis(100), Duration::ZERO, || None::<()>, plug), None);
        assert!(looks.get() > 1);
    }
}
