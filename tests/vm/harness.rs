//! The harness itself on real machines: if these fail, nothing else in this layer means anything.

use anyhow::{Context, Result, ensure};
use kurrent_harness::appliance::{Network, OUR_ADDRESS};
use kurrent_harness::evidence::Run;
use kurrent_harness::frame;
use kurrent_harness::machine::Machine;
use kurrent_harness::netns::{BRIDGE, BootNetwork};
use kurrent_harness::process::Lifetime;
use kurrent_harness::wire::{Wire, free_group};
use kurrent_harness::worker;
use std::sync::Arc;
use std::time::Duration;

/// Firmware to its first DISCOVER; about 3 s on an idle machine.
const DISCOVERS_WITHIN: Duration = Duration::from_secs(120);

fn firmware_asks(name: &str, network: &Network, mut wire: Wire) -> Result<()> {
    let lab = Run::new(name)?;
    let spec = worker::spec(&lab, network, 1, Lifetime::Ours)?;
    let mac = worker::mac(&spec);
    let machine = Machine::start(&lab, spec)?;
    let is_discover = |frame: &[u8]| frame::parse(frame).is_some_and(|dhcp| dhcp.client == mac && dhcp.message_type == 1);
    let seen = wire.receive(DISCOVERS_WITHIN, is_discover)?;
    ensure!(seen.is_some(), "no DISCOVER from {mac}; console: {}", machine.console.text());
    let pid = machine.pid().context("QEMU runs")?;
    drop(machine);
    ensure!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "QEMU {pid} outlived its machine");
    lab.passed();
    Ok(())
}

#[test]
fn firmware_on_the_multicast_network_asks_for_an_address() -> Result<()> {
    let group = free_group()?;
    firmware_asks("multicast", &Network::Multicast(group), Wire::on_multicast(group)?)
}

#[test]
fn firmware_on_the_bridge_asks_for_an_address() -> Result<()> {
    let bridge = Arc::new(BootNetwork::new(OUR_ADDRESS)?);
    let wire = Wire::in_netns(bridge.name(), BRIDGE)?;
    firmware_asks("bridge", &Network::Bridge(bridge), wire)
}
