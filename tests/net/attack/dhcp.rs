//! Forged DHCP messages of an address's end.

use super::device::{BELIEVED, Device};
use crate::net::{Net, SERVER};
use crate::raw_dhcp::{ACK, REQUEST, RawDhcp, kind, message};
use anyhow::{Context, Result, ensure};
use kurrent_core::dhcp::wire::{Packet, option};
use kurrent_harness::attack;
use std::net::Ipv4Addr;
use std::time::Duration;

const DECLINE: u8 = 4;
const RELEASE: u8 = 7;

#[test]
fn forged_releases_and_declines_take_no_address_from_a_bound_device() -> Result<()> {
    let net = Net::new("attack-release")?;
    net.keep(net.serve()?);
    let api = net.api()?;
    let victim = Device::bound(&net, &api, 1, "atlas")?;
    let leases = api.get("/v1/leases")?.to_string();
    let address = victim_address(&leases, &victim.text())?;
    let attacker = Device::new(&net, 2)?;
    let raw = RawDhcp::open(&attacker.client)?;
    let server = SERVER.octets();
    let own = address.octets();
    for (mac, xid) in [(attacker.mac, 71), (victim.mac, 72)] {
        let release = Packet { ciaddr: address, ..message(RELEASE, mac, xid, &[(option::SERVER_ID, &server)]) };
        let decline = message(DECLINE, mac, xid + 10, &[(option::SERVER_ID, &server), (option::REQUESTED_ADDRESS, &own)]);
        raw.send(&release)?;
        raw.send(&decline)?;
    }
    // Whatever a stranger says in its name: it renews, and nobody else is given its address.
    let renewal = Packet { ciaddr: address, flags: 0, ..message(REQUEST, victim.mac, 80, &[]) };
    let answer = RawDhcp::open(&victim.client)?.ask(&renewal, Duration::from_secs(10))?.context("no answer to the renewal")?;
    ensure!(kind(&answer) == ACK && answer.yiaddr == address, "{answer:?}");
    let third = Device::new(&net, 3)?;
    ensure!(victim_address(&api.get("/v1/leases")?.to_string(), &third.text())? != address, "the address was given to another machine");
    ensure!(victim.boots(victim.challenge(&victim.mac)?)?.contains(BELIEVED), "it still boots");
    attack::note("forged RELEASE and DECLINE", "the device keeps its address", "kurrent dhcp status, log: DHCP lines of the device")?;
    net.passed();
    Ok(())
}

/// The address of a MAC in the list of leases.
fn victim_address(leases: &str, mac: &str) -> Result<Ipv4Addr> {
    let list: serde_json::Value = serde_json::from_str(leases)?;
    let all = list.get("leases").and_then(serde_json::Value::as_array).context("leases")?;
    let lease = all.iter().find(|lease| lease.get("mac").and_then(serde_json::Value::as_str) == Some(mac));
    let address = lease.and_then(|lease| lease.get("address")).and_then(serde_json::Value::as_str).context("its lease")?;
    Ok(address.parse()?)
}
