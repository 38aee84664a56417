//! What has been on a machine's wire since its start.

use super::place::MAC;
use anyhow::{Context, Result, ensure};
use kurrent_harness::frame::{self, Dhcp};
use kurrent_harness::machine::Machine;
use kurrent_harness::timeline::read_capture;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const PROTOCOL_UDP: u8 = 17;
/// `op` of a server's answer, and the message types of option 53.
const ANSWER: u8 = 2;
const OFFER: u8 = 2;
const ACK: u8 = 5;

/// The frames at the machine's NIC, in order.
pub struct Seen {
    frames: Vec<Vec<u8>>,
}

impl Seen {
    /// Up to now.
    pub fn by(machine: &Machine) -> Result<Self> {
        Ok(Self { frames: read_capture(machine.capture())?.into_iter().map(|captured| captured.frame).collect() })
    }

    fn sent(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.frames.iter().filter(|frame| frame.get(6..12) == Some(&MAC.0[..]))
    }

    /// How often the machine has sent these octets over TCP.
    pub fn asked(&self, octets: &[u8]) -> usize {
        // Of a connection, not of its frames: TCP sends again what is not acknowledged at once.
        let streams = kurrent_harness::frame::streams(self.sent().map(Vec::as_slice));
        streams.values().map(|sent| sent.windows(octets.len()).filter(|window| *window == octets).count()).sum()
    }

    /// Read requests of the machine for this file over TFTP (RFC 1350), by IPv4 and by IPv6.
    pub fn read_requests(&self, name: &str) -> (usize, usize) {
        let request = [b"\0\x01", name.as_bytes(), b"\0octet\0"].concat();
        let of = |kind: [u8; 2]| self.sent().filter(|frame| frame.get(12..14) == Some(&kind[..]) && holds(frame, &request)).count();
        (of(ETHERTYPE_IPV4), of(ETHERTYPE_IPV6))
    }

    /// UDP ports by which somebody has sent the machine a file's data (RFC 1350: opcode 3) over IPv4.
    pub fn tftp_ports(&self) -> BTreeSet<u16> {
        let received =
            self.frames.iter().filter(|frame| frame.get(..6) == Some(&MAC.0[..]) && frame.get(12..14) == Some(&ETHERTYPE_IPV4[..]));
        // Without IP options, as everybody sends it: UDP after 14 and 20 octets, TFTP after 8 more.
        let data = received.filter(|frame| frame.get(23) == Some(&PROTOCOL_UDP) && frame.get(42..44) == Some(&[0, 3]));
        data.filter_map(|frame| Some(u16::from_be_bytes(frame.get(34..36)?.try_into().ok()?))).collect()
    }

    /// DHCP messages of and to the machine.
    pub fn dhcp(&self) -> impl Iterator<Item = Dhcp> {
        self.frames.iter().filter_map(|frame| frame::parse(frame)).filter(|dhcp| dhcp.client == MAC)
    }

    /// Answers to the machine's DHCP.
    pub fn answers(&self) -> impl Iterator<Item = Dhcp> {
        self.dhcp().filter(|dhcp| dhcp.op == ANSWER)
    }

    /// The one address under which the machine has sent, whichever of its programs that was.
    pub fn address(&self) -> Result<Ipv4Addr> {
        let sources = self.sent().filter(|frame| frame.get(12..14) == Some(&ETHERTYPE_IPV4[..])).filter_map(|frame| frame.get(26..30));
        let sources: BTreeSet<Ipv4Addr> =
            sources.filter_map(|octets| <[u8; 4]>::try_from(octets).ok()).map(Ipv4Addr::from).filter(|a| !a.is_unspecified()).collect();
        ensure!(sources.len() == 1, "the machine sent from {sources:?}");
        sources.first().copied().context("an address")
    }

    /// Each ACK of `server` says what its OFFER said (systemd 27471); how many there were.
    pub fn offers_agree_with_acks(&self, server: Ipv4Addr) -> Result<usize> {
        const SERVER_ID: u8 = 54;
        let of_kind = |kind: u8| {
            self.answers().filter(move |d| d.message_type == kind && d.options.get(&SERVER_ID).is_some_and(|id| *id == server.octets()))
        };
        for ack in of_kind(ACK) {
            let offer = of_kind(OFFER).filter(|offer| offer.xid == ack.xid).last().context("an ACK without OFFER")?;
            ensure!(offer.options == ack.options && offer.offered == ack.offered, "offered {offer:?}\nacknowledged {ack:?}");
        }
        Ok(of_kind(ACK).count())
    }
}

fn holds(frame: &[u8], octets: &[u8]) -> bool {
    frame.windows(octets.len()).any(|part| part == octets)
}
