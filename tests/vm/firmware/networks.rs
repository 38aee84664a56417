//! Other networks than one link with nobody else on it: behind a relay, and beside another DHCP server.

use super::place::{Place, Program};
use super::seen::Seen;
use super::uefi::{NO_PXE4, NO_PXE6};
use anyhow::{Context, Result, ensure};
use kurrent_harness::appliance::ADDRESS;
use kurrent_harness::machine::Machine;
use kurrent_harness::netns::{self, BootNetwork};
use std::net::Ipv4Addr;
use std::sync::Arc;

/// The second machine on the boot network: a router with a relay, or another DHCP server.
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// Its interface there.
const PORT: &str = "port";
const BEHIND_RELAY: &str = "  dhcp:\n    subnets:\n      - network: 10.78.0.0/24\n        router: 10.78.0.1\n";
const PROXY: &str = "  dhcp:\n    mode: proxy\n";

/// The network behind a router with a relay (isc-dhcp-relay, which adds option 82).
fn relayed(place: &Place) -> Result<(Arc<BootNetwork>, Program)> {
    let remote = Arc::new(BootNetwork::new("10.78.0.1/24")?);
    place.network.cable(&remote, PORT)?;
    remote.ip(&["addr", "add", &format!("{OTHER}/24"), "dev", PORT])?;
    place.network.ip(&["route", "add", "10.78.0.0/24", "via", &OTHER.to_string()])?;
    netns::enter(remote.name(), || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1"))?.context("let it route")?;
    let mut command = remote.command("dhcrelay");
    command.args(["-4", "-d", "--no-pid", "-a", "-id", netns::BRIDGE, "-iu", PORT, &ADDRESS.to_string()]);
    let mut relay = Program::start(&place.run, "dhcrelay", command)?;
    relay.says("Sending on")?;
    Ok((remote, relay))
}

fn reaches_script_behind_a_relay(test: &str, start: impl FnOnce(&Place, &Arc<BootNetwork>) -> Result<Machine>) -> Result<Seen> {
    let place = Place::new(test, BEHIND_RELAY)?;
    let (remote, relay) = relayed(&place)?;
    let mut machine = start(&place, &remote)?;
    let seen = place.reaches_script(&mut machine)?;
    let address = seen.address()?;
    ensure!(address.octets().starts_with(&[10, 78, 0]), "the machine has {address}");
    ensure!(seen.offers_agree_with_acks(ADDRESS)? > 0, "no ACK");
    drop(relay);
    place.passed(machine);
    Ok(seen)
}

#[test]
fn ovmf_pxe_behind_a_relay_gets_an_address_of_its_network_and_the_loader() -> Result<()> {
    let seen = reaches_script_behind_a_relay("relay-uefi", |place, remote| place.uefi(remote, &[]))?;
    ensure!(seen.read_requests("snponly.efi").0 > 0, "no loader by TFTP");
    Ok(())
}

#[test]
fn seabios_behind_a_relay_gets_an_address_of_its_network_and_the_script() -> Result<()> {
    reaches_script_behind_a_relay("relay-bios", |place, remote| place.bios(remote)).map(drop)
}

/// dnsmasq on a machine of its own: addresses, and nothing to boot.
fn dnsmasq(place: &Place) -> Result<(BootNetwork, Program)> {
    let other = BootNetwork::new("192.0.2.1/24")?;
    place.network.cable(&other, PORT)?;
    other.ip(&["addr", "add", &format!("{OTHER}/24"), "dev", PORT])?;
    let mut command = other.command("dnsmasq");
    command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root", "--pid-file="]);
    command.args([&format!("--interface={PORT}"), "--bind-interfaces", "--dhcp-range=10.77.0.100,10.77.0.150,1h"]);
    command.args(["--no-ping", "--log-facility=-", &format!("--dhcp-leasefile={}", place.run.scratch().join("leases").display())]);
    let mut program = Program::start(&place.run, "dnsmasq", command)?;
    program.says("DHCP, IP range")?;
    Ok((other, program))
}

fn reaches_script_beside_dnsmasq(test: &str, start: impl FnOnce(&Place) -> Result<Machine>) -> Result<Seen> {
    let place = Place::new(test, PROXY)?;
    let (other, program) = dnsmasq(&place)?;
    let mut machine = start(&place)?;
    let seen = place.reaches_script(&mut machine)?;
    let address = seen.address()?;
    ensure!(matches!(address.octets(), [10, 77, 0, 100..=150]), "the machine has {address}, which is not dnsmasq's");
    ensure!(seen.offers_agree_with_acks(OTHER)? > 0, "no ACK of dnsmasq");
    drop((program, other));
    place.passed(machine);
    Ok(seen)
}

#[test]
fn ovmf_pxe_beside_dnsmasq_has_its_address_and_our_loader() -> Result<()> {
    let seen = reaches_script_beside_dnsmasq("proxy-uefi", |place| place.uefi(&place.network, &[]))?;
    ensure!(seen.read_requests("snponly.efi").0 > 0, "no loader by TFTP");
    Ok(())
}

#[test]
fn seabios_beside_dnsmasq_has_its_address_and_our_script() -> Result<()> {
    let seen = reaches_script_beside_dnsmasq("proxy-bios", |place| place.bios(&place.network))?;
    ensure!(seen.read_requests("undionly.kpxe") == (0, 0), "it was given a loader");
    Ok(())
}

/// Only an offer with `HTTPClient` counts for EDK2: dnsmasq's says nothing of booting.
#[test]
fn ovmf_http_boot_beside_dnsmasq_has_its_address_and_our_url() -> Result<()> {
    let seen = reaches_script_beside_dnsmasq("proxy-http", |place| place.uefi(&place.network, &[NO_PXE4, NO_PXE6]))?;
    ensure!(seen.asked(b"GET /files/snponly.efi HTTP/1.1\r\n") > 0, "no GET of the loader");
    Ok(())
}
