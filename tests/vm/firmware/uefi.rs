//! OVMF with its own network boot.

use super::place::{MAC, Place, SCRIPT_WITHIN};
use super::seen::Seen;
use anyhow::{Result, ensure};
use kurrent_core::id::MacAddr;
use kurrent_harness::appliance::ADDRESS;
use kurrent_harness::frame;
use kurrent_harness::netns::BootNetwork;
use kurrent_harness::wire::Wire;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// OVMF's switches for PXE (OvmfPkg/Library/PlatformBmPrintScLib and NetworkPkg's PcdIPv4PXESupport).
pub const NO_PXE4: (&str, &str) = ("opt/org.tianocore/IPv4PXESupport", "no");
pub const NO_PXE6: (&str, &str) = ("opt/org.tianocore/IPv6PXESupport", "no");
/// An answer to a DISCOVER takes milliseconds.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);

#[test]
fn ovmf_pxe_and_ipxe_have_one_address_and_an_ack_says_what_its_offer_said() -> Result<()> {
    let place = Place::new("pxe", "")?;
    let mut machine = place.uefi(&place.network, &[])?;
    let seen = place.reaches_script(&mut machine)?;
    seen.address()?;
    ensure!(seen.offers_agree_with_acks(ADDRESS)? > 0, "no ACK");
    ensure!(seen.read_requests("snponly.efi").0 > 0, "no loader by TFTP");
    place.passed(machine);
    Ok(())
}

/// EDK2 asks with HEAD, then with GET, and takes nothing without `HTTPClient` in option 60 (xcat-core 7743, smee 210).
#[test]
fn ovmf_http_boot_loads_by_http_and_keeps_one_address() -> Result<()> {
    let place = Place::new("http", "")?;
    let mut machine = place.uefi(&place.network, &[NO_PXE4, NO_PXE6])?;
    let seen = place.reaches_script(&mut machine)?;
    seen.address()?;
    ensure!(seen.offers_agree_with_acks(ADDRESS)? > 0, "no ACK");
    for method in ["HEAD", "GET"] {
        let line = format!("{method} /files/snponly.efi HTTP/1.1\r\n");
        ensure!(seen.asked(line.as_bytes()) > 0, "no {method} of the loader");
    }
    ensure!(seen.read_requests("snponly.efi") == (0, 0), "the loader came by TFTP");
    place.passed(machine);
    Ok(())
}

/// A URL with a port: EDK2 and iPXE both read it.
#[test]
fn ovmf_http_boot_finds_a_boot_plane_on_another_port() -> Result<()> {
    let place = Place::new("http-port", "  http:\n    bootPort: 8000\n")?;
    let mut machine = place.uefi(&place.network, &[NO_PXE4, NO_PXE6])?;
    let seen = place.reaches_script(&mut machine)?;
    ensure!(seen.asked(b"GET /files/snponly.efi HTTP/1.1\r\n") > 0, "no GET of the loader");
    place.passed(machine);
    Ok(())
}

/// Transfers from port 69 itself, to firmware and to iPXE; and the loader that was chosen for this device.
#[test]
fn ovmf_pxe_gets_the_loader_chosen_for_its_device_from_a_single_port() -> Result<()> {
    let place = Place::new("single-port", "  tftp:\n    singlePort: on\n")?;
    let api = place.api()?;
    api.ask("POST", "/v1/devices", Some(&json!({ "mac": MAC.to_string(), "keyless_allowed": true })))?;
    api.ask("PATCH", &format!("/v1/devices/{MAC}"), Some(&json!({ "loader": "ipxe-amd64.efi" })))?;
    let mut machine = place.uefi(&place.network, &[])?;
    let seen = place.reaches_script(&mut machine)?;
    ensure!(seen.read_requests("ipxe-amd64.efi").0 > 0 && seen.read_requests("snponly.efi") == (0, 0), "another loader");
    ensure!(seen.tftp_ports() == BTreeSet::from([69]), "transfers from ports {:?}", seen.tftp_ports());
    place.passed(machine);
    Ok(())
}

/// The NIC that QEMU makes when nobody says otherwise: the iPXE of its ROM takes our script, but knows neither `params` nor
/// `${efi/…}`. It is given ours instead, once, and the machine shows its key.
#[test]
fn ovmf_with_the_ipxe_of_its_rom_is_given_ours_and_shows_its_key() -> Result<()> {
    let place = Place::new("uefi-rom", "")?;
    let api = place.api()?;
    api.ask("PUT", "/v1/settings/registration-window", Some(&json!({ "minutes": 60 })))?;
    let mut machine = place.uefi_with_rom(&place.network)?;
    place.reaches_script(&mut machine)?;
    machine.console.wait_for("iPXE 2.", SCRIPT_WITHIN)?;
    let with_key = |device: &Value| device.get("public_key").and_then(Value::as_str).map(drop);
    api.wait_for("device with its key", &format!("/v1/devices/{MAC}"), SCRIPT_WITHIN, with_key)?;
    let seen = Seen::by(&machine)?;
    seen.address()?;
    ensure!(seen.asked(b"GET /files/snponly.efi HTTP/1.1\r\n") == 1, "not one loader by HTTP");
    place.passed(machine);
    Ok(())
}

#[test]
fn ovmf_of_a_revoked_device_is_met_with_silence() -> Result<()> {
    let place = Place::new("revoked", "")?;
    let api = place.api()?;
    api.ask("POST", "/v1/devices", Some(&json!({ "mac": MAC.to_string(), "keyless_allowed": true })))?;
    api.ask("POST", &format!("/v1/devices/{MAC}/revoke"), Some(&json!({})))?;
    let elsewhere = BootNetwork::new("192.0.2.1/24")?;
    place.network.cable(&elsewhere, "port")?;
    let mut wire = Wire::in_netns(elsewhere.name(), "port")?;
    let machine = place.uefi(&place.network, &[])?;
    let is_discover = |frame: &[u8]| frame::parse(frame).is_some_and(|dhcp| dhcp.client == MAC && dhcp.message_type == 1);
    ensure!(wire.receive(SCRIPT_WITHIN, is_discover)?.is_some(), "no DISCOVER");
    // Asked later and answered: what was asked before will not be answered any more.
    let other = MacAddr([0x52, 0x54, 0, 0x5a, 0, 1]);
    wire.send(&frame::discover(other, 1))?;
    let answer = wire.receive(ANSWERED_WITHIN, |frame| frame::parse(frame).is_some_and(|dhcp| dhcp.op == 2 && dhcp.client == other))?;
    ensure!(answer.is_some(), "nobody is answered: that silence proves nothing");
    let seen = Seen::by(&machine)?;
    ensure!(seen.dhcp().count() > 0 && seen.answers().count() == 0, "the revoked device was answered");
    place.passed(machine);
    Ok(())
}
