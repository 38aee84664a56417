//! What the tests of this module share: a small world with a server in it.

use super::decide::{Decision, View, decide};
use super::lease::{Change, Leases};
use super::lease_file::Record;
use super::msg::{self, Request};
use super::wire::{Options, Packet, option};
use crate::config::Config;
use crate::id::MacAddr;
use crate::ledger::{Device, DeviceState, Fingerprint, Ledger, Source};
use crate::time::{Mono, Now, Wall};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

pub(crate) fn at(secs: u64) -> Now {
    let wall = Wall::from_second(1_796_000_000 + i64::try_from(secs).unwrap()).unwrap();
    Now { mono: Mono(Duration::from_secs(secs)), wall }
}

pub(crate) fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

pub(crate) struct World {
    pub(crate) config: Config,
    pub(crate) ledger: Ledger,
    pub(crate) leases: Leases,
    /// The lease file.
    pub(crate) records: BTreeMap<Ipv4Addr, Record>,
}

impl Default for World {
    /// The appliance's defaults.
    fn default() -> Self {
        let config = Config::default();
        let leases = Leases::new(&config.dhcp, SERVER);
        Self { config, ledger: Ledger::default(), leases, records: BTreeMap::new() }
    }
}

impl World {
    /// With so few addresses that they run out.
    pub(crate) fn with_range(first: u8, last: u8) -> Self {
        let mut world = Self::default();
        world.config.dhcp.local.range_start = Ipv4Addr::new(10, 77, 0, first);
        world.config.dhcp.local.range_end = Ipv4Addr::new(10, 77, 0, last);
        world.leases = Leases::new(&world.config.dhcp, SERVER);
        world
    }

    pub(crate) fn bind(&mut self, mac: MacAddr, address: Ipv4Addr) {
        self.leases.apply(Change::Bind { holder: mac.into(), address, secs: 3600 }, at(0));
    }

    pub(crate) fn record(&mut self, mac: MacAddr, state: DeviceState) {
        let device = Device {
            mac,
            uuid: String::new(),
            state,
            bound_worker_id: (state == DeviceState::Bound).then(|| "worker-1".parse().unwrap()),
            public_key: None,
            public_key_hash: None,
            source: Source::Manual,
            first_seen: at(0).wall,
            last_seen: None,
            proved_at: None,
            epoch: 0,
            rekey_until: None,
            rekey_signed: false,
            keyless_allowed: false,
            loader: None,
            address: None,
            labels: Default::default(),
            note: String::new(),
            fingerprint: Fingerprint::default(),
        };
        self.leases.heed(mac, Some(&device));
        self.ledger.devices.insert(mac, Arc::new(device));
    }

    /// Gives a recorded device this address.
    pub(super) fn reserve(&mut self, mac: MacAddr, address: Ipv4Addr) {
        let device = Device { address: Some(address), ..Device::clone(&self.ledger.devices[&mac]) };
        self.leases.heed(mac, Some(&device));
        self.ledger.devices.insert(mac, Arc::new(device));
    }

    /// Decides without doing.
    pub(crate) fn decide(&self, request: &Request, now: Now) -> Decision {
        let (dhcp, network) = (&self.config.dhcp, &self.config.boot_network);
        decide(request, &View { dhcp, network, boot_port: 80, ledger: &self.ledger, leases: &self.leases }, now)
    }

    /// Decides and applies, as the listener does.
    pub(crate) fn ask(&mut self, request: &Request, now: Now) -> Decision {
        self.leases.advance(now.mono);
        let decision = self.decide(request, now);
        if let Some(record) = decision.change.and_then(|change| self.leases.apply(change, now)) {
            self.records.insert(record.address, record);
        }
        decision
    }
}

/// A request of a plain client; `options` on top of the message type.
pub(crate) fn request(kind: u8, mac: MacAddr, options: &[(u8, &[u8])]) -> Request {
    msg::request(&packet(kind, mac, options)).unwrap()
}

/// The same through a relay.
pub(crate) fn relayed(relay: Ipv4Addr, kind: u8, mac: MacAddr, options: &[(u8, &[u8])]) -> Request {
    msg::request(&Packet { giaddr: relay, ..packet(kind, mac, options) }).unwrap()
}

pub(crate) fn packet(kind: u8, mac: MacAddr, options: &[(u8, &[u8])]) -> Packet {
    let mut packet = Packet { xid: 7, options: Options::default(), ..Packet::default() };
    packet.chaddr[..6].copy_from_slice(&mac.0);
    packet.options.push(option::MESSAGE_TYPE, &[kind]);
    for (code, value) in options {
        packet.options.push(*code, value);
    }
    packet
}
