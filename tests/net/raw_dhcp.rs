//! A DHCP client that says what it likes, from any MAC: for what honest clients do not say.

use crate::net::{Client, DEADLINE};
use anyhow::{Context, Result};
use kurrent_core::dhcp::wire::{self, FLAG_BROADCAST, Packet, option};
use kurrent_sys::packet::PacketSocket;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

/// DISCOVER and its answer, REQUEST and its answers.
pub const DISCOVER: u8 = 1;
pub const OFFER: u8 = 2;
pub const REQUEST: u8 = 3;
pub const ACK: u8 = 5;
pub const NAK: u8 = 6;

/// The raw end of a client's NIC.
pub struct RawDhcp(PacketSocket);

/// A message of `mac` with these options.
pub fn message(kind: u8, mac: [u8; 6], xid: u32, options: &[(u8, &[u8])]) -> Packet {
    // Broadcast replies reach the socket whatever MAC they are for.
    let mut packet = Packet { xid, flags: FLAG_BROADCAST, ..Packet::default() };
    packet.chaddr[..6].copy_from_slice(&mac);
    packet.options.push(option::MESSAGE_TYPE, &[kind]);
    for (code, value) in options {
        packet.options.push(*code, value);
    }
    packet
}

/// The message type of an answer.
pub fn kind(packet: &Packet) -> u8 {
    packet.options.exact::<1>(option::MESSAGE_TYPE).map_or(0, |[kind]| kind)
}

impl RawDhcp {
    /// On the client's `eth0`.
    pub fn open(client: &Client) -> Result<Self> {
        let open = || {
            let index = kurrent_sys::link::link("eth0").map_err(std::io::Error::other)?.index;
            PacketSocket::receiver(index, 68)
        };
        Ok(Self(client.enter(open)?.context("open a packet socket")?))
    }

    /// Octets to port 67 of everybody.
    pub fn send_octets(&self, octets: &[u8]) -> Result<()> {
        let from = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68);
        self.0.send([0xff; 6], from, SocketAddrV4::new(Ipv4Addr::BROADCAST, 67), octets).context("send a frame")
    }

    /// A message from one address to another, as routers deliver it: in a frame to everybody.
    pub fn send_between(&self, packet: &Packet, from: SocketAddrV4, to: SocketAddrV4) -> Result<()> {
        self.0.send([0xff; 6], from, to, &wire::encode(packet, 1472)).context("send a frame")
    }

    /// A message to everybody.
    pub fn send(&self, packet: &Packet) -> Result<()> {
        self.send_octets(&wire::encode(packet, 1472))
    }

    /// The next answer to one of these transactions within a time.
    pub fn receive(&self, within: Duration, wanted: impl Fn(u32) -> bool) -> Option<Packet> {
        let deadline = Instant::now() + within;
        let mut buffer = [0; 2048];
        while Instant::now() < deadline {
            match self.0.receive(&mut buffer) {
                Ok(Some((_, octets))) => {
                    if let Some(packet) = wire::decode(octets).ok().filter(|p| p.op == wire::OP_REPLY && wanted(p.xid)) {
                        return Some(packet);
                    }
                }
                Ok(None) => {}
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
        None
    }

    /// A message and its answer.
    pub fn ask(&self, packet: &Packet, within: Duration) -> Result<Option<Packet>> {
        self.send(packet)?;
        Ok(self.receive(within, |xid| xid == packet.xid))
    }

    /// DISCOVER to ACK; `options` are in both.
    pub fn lease(&self, mac: [u8; 6], xid: u32, options: &[(u8, &[u8])]) -> Result<Packet> {
        let offer = self.ask(&message(DISCOVER, mac, xid, options), DEADLINE)?.context("an OFFER")?;
        let (address, server) = (offer.yiaddr.octets(), offer.options.address(option::SERVER_ID).context("option 54")?.octets());
        let mut all = options.to_vec();
        all.extend([(option::REQUESTED_ADDRESS, &address[..]), (option::SERVER_ID, &server[..])]);
        self.ask(&message(REQUEST, mac, xid, &all), DEADLINE)?.context("an ACK")
    }
}
