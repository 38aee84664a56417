use super::super::Reason;
use super::super::lease::Change;
use super::super::msg::Request;
use super::super::testing::{SERVER, World, at, mac, request};
use super::super::wire::option;
use super::*;
use crate::ledger::DeviceState;
use std::net::Ipv4Addr;

const FIRMWARE: &[u8] = b"\0firmware";
const SYSTEM: &[u8] = b"\xffsystem";

fn address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, last)
}

fn by_client_id() -> World {
    let mut world = World::with_range(100, 119);
    world.key(LeaseKey::ClientId);
    world.record(mac(1), DeviceState::Bound);
    world
}

impl World {
    /// Leases go by this from now on, as after a restart.
    fn key(&mut self, key: LeaseKey) {
        self.config.dhcp.lease_key = key;
        let records: Vec<_> = self.records.values().copied().collect();
        self.leases = Leases::restore(&self.config.dhcp, SERVER, &records, &self.ledger, at(1));
    }
}

fn renews(world: &mut World, id: &[u8], address: Ipv4Addr, secs: u64) -> Reason {
    world.ask(&Request { ciaddr: address, ..request(3, mac(1), &[(option::CLIENT_ID, id)]) }, at(secs)).reason
}

/// A lease by DISCOVER and REQUEST.
fn lease(world: &mut World, id: &[u8], secs: u64) -> Ipv4Addr {
    let offer = world.ask(&request(1, mac(1), &[(option::CLIENT_ID, id)]), at(secs)).reply.unwrap().0.yiaddr;
    let take = [(option::CLIENT_ID, id), (option::REQUESTED_ADDRESS, &offer.octets()), (option::SERVER_ID, &SERVER.octets())];
    assert_eq!(world.ask(&request(3, mac(1), &take), at(secs)).reason, Reason::Acknowledged);
    offer
}

#[test]
fn a_reservation_that_is_made_or_removed_cuts_no_running_client_off() {
    let mut world = by_client_id();
    let (firmware, system) = (lease(&mut world, FIRMWARE, 2), lease(&mut world, SYSTEM, 2));
    assert_ne!(firmware, system);
    world.reserve(mac(1), address(50));
    assert_eq!(renews(&mut world, SYSTEM, system, 10), Reason::Acknowledged);
    // Who starts anew has the reserved one; the other one runs on.
    assert_eq!(lease(&mut world, FIRMWARE, 11), address(50));
    assert_eq!(renews(&mut world, SYSTEM, system, 12), Reason::Acknowledged);
    world.record(mac(1), DeviceState::Bound);
    assert_eq!(world.leases.reserved_for(address(50)), None);
    assert_eq!(renews(&mut world, FIRMWARE, address(50), 13), Reason::Acknowledged, "no longer reserved");
    // What it may renew, it may give back.
    world.reserve(mac(1), address(60));
    let release = Request { ciaddr: system, ..request(7, mac(1), &[(option::CLIENT_ID, SYSTEM)]) };
    assert_eq!(world.ask(&release, at(14)).reason, Reason::Released);
}

#[test]
fn another_lease_key_after_a_restart_cuts_no_running_client_off() {
    let mut world = by_client_id();
    let system = lease(&mut world, SYSTEM, 2);
    world.key(LeaseKey::Mac);
    assert_eq!(renews(&mut world, SYSTEM, system, 10), Reason::Acknowledged);
    world.key(LeaseKey::ClientId);
    assert_eq!(renews(&mut world, SYSTEM, system, 20), Reason::Acknowledged);
}

#[test]
fn a_client_of_a_machine_gets_no_other_clients_address_by_naming_it() {
    let mut world = by_client_id();
    let (firmware, system) = (lease(&mut world, FIRMWARE, 2), lease(&mut world, SYSTEM, 2));
    assert_eq!(renews(&mut world, FIRMWARE, system, 3), Reason::Taken);
    let without = Request { ciaddr: firmware, ..request(3, mac(1), &[]) };
    assert_eq!(world.ask(&without, at(4)).reason, Reason::Taken);
    assert_eq!(world.ask(&Request { mac: mac(2), ..without }, at(4)).reason, Reason::Taken, "another machine");
    assert!(
        matches!(world.decide(&request(1, mac(1), &[(option::CLIENT_ID, FIRMWARE)]), at(5)).change, Some(Change::Offer { address, .. }) if address == firmware)
    );
}
