//! ARP (RFC 826) on one interface: asks who has an address, and hears who says that it has one.

use crate::packet::{address_of, hardware_address};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

/// `ETH_P_ARP`, in network order.
const ETHERTYPE_ARP: u16 = 0x0806_u16.to_be();
/// Octets of an ARP packet for IPv4 over Ethernet.
const ARP_BYTES: usize = 28;
/// Ethernet, IPv4, and the lengths of their addresses.
const HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];
const OPERATION_REQUEST: [u8; 2] = [0, 1];

/// A socket for ARP on one interface. Only packets whose sender says that it has an address of one network are heard.
#[derive(Debug)]
pub struct ArpSocket {
    socket: Socket,
    index: u32,
}

/// Somebody says that it has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claimed {
    /// Which.
    pub address: Ipv4Addr,
    /// Who.
    pub mac: [u8; 6],
}

impl ArpSocket {
    /// On the interface of this index, for the network of `prefix` bits around `network`.
    ///
    /// # Errors
    /// The kernel's; `PermissionDenied` without `CAP_NET_RAW`.
    pub fn open(index: u32, network: Ipv4Addr, prefix: u8) -> io::Result<Self> {
        // Protocol 0 until the filter is in: nothing unfiltered is ever queued.
        let socket = Socket::new(Domain::PACKET, Type::DGRAM.nonblocking().cloexec(), Some(Protocol::from(0)))?;
        socket.attach_filter(&sender_filter(network, prefix))?;
        socket.bind(&address_of(index, [0xff; 6], ETHERTYPE_ARP)?)?;
        Ok(Self { socket, index })
    }

    /// Asks everybody who has `target`. From our own address, as any neighbour would: a probe from 0.0.0.0 (RFC 5227) would say
    /// that we want the address ourselves. With the interface's present MAC: an old one would make neighbours lose us.
    ///
    /// # Errors
    /// The kernel's; `WouldBlock` when its queue is full.
    pub fn ask(&self, own: Ipv4Addr, target: Ipv4Addr) -> io::Result<()> {
        self.socket
            .send_to(&request(hardware_address(&self.socket)?, own, target), &address_of(self.index, [0xff; 6], ETHERTYPE_ARP)?)
            .map(drop)
    }

    /// What was heard next; `None` when it is no claim (a probe from 0.0.0.0, or cut).
    ///
    /// # Errors
    /// The kernel's; `WouldBlock` when there is none.
    pub fn receive(&self) -> io::Result<Option<Claimed>> {
        let mut buffer = [0; 64];
        let len = nix::unistd::read(&self.socket, &mut buffer)?;
        Ok(buffer.get(..len).and_then(claimed))
    }
}

impl AsRawFd for ArpSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl AsFd for ArpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// IPv4 over Ethernet whose sender's address is of the network (linux/filter.h).
fn sender_filter(network: Ipv4Addr, prefix: u8) -> [SockFilter; 9] {
    let mask = kurrent_core::config::mask(prefix);
    [
        SockFilter::new(0x20, 0, 0, 0),                        // A = hardware and protocol type
        SockFilter::new(0x15, 0, 5, 0x0001_0800),              // not IPv4 over Ethernet: drop
        SockFilter::new(0x28, 0, 0, 4),                        // A = lengths of both addresses
        SockFilter::new(0x15, 0, 3, 0x0604),                   // others: drop
        SockFilter::new(0x20, 0, 0, 14),                       // A = the sender's address
        SockFilter::new(0x54, 0, 0, mask),                     // its network
        SockFilter::new(0x15, 1, 0, network.to_bits() & mask), // ours: keep
        SockFilter::new(0x06, 0, 0, 0),                        // drop
        SockFilter::new(0x06, 0, 0, 0xffff),                   // keep
    ]
}

fn request(own_mac: [u8; 6], own: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    [&HEAD[..], &OPERATION_REQUEST, &own_mac, &own.octets(), &[0; 6], &target.octets()].concat()
}

fn claimed(packet: &[u8]) -> Option<Claimed> {
    let packet = packet.first_chunk::<ARP_BYTES>()?;
    let [head @ .., _, _] = packet.first_chunk::<8>()?;
    let mac = <[u8; 6]>::try_from(packet.get(8..14)?).ok()?;
    let address = Ipv4Addr::from(<[u8; 4]>::try_from(packet.get(14..18)?).ok()?);
    (*head == HEAD && !address.is_unspecified() && mac[0] & 1 == 0).then_some(Claimed { address, mac })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const OWN: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

    #[test]
    fn what_is_asked_is_laid_out_as_rfc_826_says() {
        let packet = request(MAC, OWN, Ipv4Addr::new(10, 77, 0, 200));
        let text: String = packet.iter().map(|octet| format!("{octet:02x}")).collect();
        assert_eq!(text, "00010800060400010200000000010a4d00010000000000000a4d00c8");
        assert_eq!(claimed(&packet), Some(Claimed { address: OWN, mac: MAC }));
    }

    #[test]
    fn probes_from_nobody_groups_and_cut_packets_claim_nothing() {
        let packet = request(MAC, OWN, OWN);
        assert_eq!(claimed(&request(MAC, Ipv4Addr::UNSPECIFIED, OWN)), None);
        assert_eq!(claimed(&request([0xff; 6], OWN, OWN)), None);
        for len in 0..packet.len() {
            assert_eq!(claimed(&packet[..len]), None);
            for value in 0..=255 {
                let mut changed = packet.clone();
                changed[len] = value;
                let _ = claimed(&changed);
            }
        }
    }
}
