//! Routes to networks behind relays: told of when they are missing, and set as PID 1 sets them.

use crate::net::{Net, wait_for};
use anyhow::{Context, Result, ensure};
use kurrent_core::config::Route;
use kurrent_harness::netns;
use kurrent_sys::route::{self, Way};
use std::net::Ipv4Addr;

const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 254);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 9);

fn subnets(via: &str) -> String {
    format!("  dhcp:\n    subnets:\n      - network: 10.78.0.0/24\n        router: 10.78.0.1\n{via}")
}

fn faults(net: &Net) -> Result<String> {
    Ok(net.api()?.get("/v1/status")?["faults"].to_string())
}

#[test]
fn a_missing_route_to_a_relayed_network_is_a_fault_until_it_is_there() -> Result<()> {
    let net = Net::new("no-route")?;
    net.configure(&subnets(""))?;
    let daemon = net.serve()?;
    let fault = "there is no route to 10.78.0.0/24";
    wait_for("the fault", || faults(&net).is_ok_and(|f| f.contains(fault) && f.contains("ip route add 10.78.0.0/24 via ROUTER")))?;
    wait_for("the screen", || std::fs::read_to_string(net.path("status")).is_ok_and(|s| s.contains(fault)))?;
    daemon.wait_for_log(fault)?;
    // An uplink's default route is a way, too.
    net.ip(&["route", "add", "default", "via", "10.77.0.9"])?;
    wait_for("no fault", || faults(&net).is_ok_and(|f| !f.contains("10.78.0.0")))?;
    daemon.kill();
    net.configure(&subnets(&format!("        via: {ROUTER}\n")))?;
    let _daemon = net.serve()?;
    let replace = "ip route replace 10.78.0.0/24 via 10.77.0.254";
    wait_for("the fault of another way", || faults(&net).is_ok_and(|f| f.contains("via 10.77.0.9") && f.contains(replace)))?;
    net.ip(&["route", "replace", "10.78.0.0/24", "via", &ROUTER.to_string()])?;
    wait_for("no fault with the route that it named", || faults(&net).is_ok_and(|f| !f.contains("10.78.0.0")))?;
    net.passed();
    Ok(())
}

#[test]
fn routes_are_set_replaced_and_listed_as_iproute2_shows_them() -> Result<()> {
    let net = Net::new("set-route")?;
    let wanted = |via| Route { network: Ipv4Addr::new(10, 78, 0, 0), prefix: 24, via };
    let boot = netns::enter(net.netns(), || kurrent_sys::link::link("boot"))??.index;
    ensure!(netns::enter(net.netns(), || route::way_to(FAR))??.is_none(), "a way before there is one");
    for via in [Ipv4Addr::new(10, 77, 0, 9), ROUTER] {
        netns::enter(net.netns(), move || route::set(boot, wanted(via)))??;
        let shown = net.ip(&["-4", "route", "show", "10.78.0.0/24"])?;
        ensure!(shown.trim().starts_with(&format!("10.78.0.0/24 via {via} dev boot")) && shown.lines().count() == 1, "{shown}");
        ensure!(netns::enter(net.netns(), route::list)??.contains(&(wanted(via), boot)), "not in the list");
        ensure!(netns::enter(net.netns(), || route::way_to(FAR))?? == Some(Way { index: boot, via: Some(via) }));
    }
    net.ip(&["route", "add", "unreachable", "10.78.0.8/29"])?;
    ensure!(netns::enter(net.netns(), || route::way_to(FAR))??.is_none(), "unreachable");
    let off_link = netns::enter(net.netns(), move || route::set(boot, wanted(Ipv4Addr::new(192, 0, 2, 1))))?;
    let error = off_link.err().context("a next hop that is on no link")?;
    ensure!(error.to_string() == "setting the route to 10.78.0.0/24 via 192.0.2.1", "{error}");
    net.passed();
    Ok(())
}
