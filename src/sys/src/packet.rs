//! UDP in frames addressed by hand (packet(7)): DHCP talks to machines that have no address and answer no ARP yet.
//!
//! Sockets are cooked (`SOCK_DGRAM`): the kernel writes the link-layer header, we write IPv4 and UDP.

use nix::sys::socket::{LinkAddr, recvfrom};
use socket2::{Domain, SockAddr, SockFilter, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

const IP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
const PROTOCOL_UDP: u8 = 17;
/// `ETH_P_IP`, as packet(7) wants it: in network order.
const ETHERTYPE_IP: u16 = 0x0800_u16.to_be();

/// A socket on one interface.
#[derive(Debug)]
pub struct PacketSocket {
    socket: Socket,
    index: u32,
}

impl PacketSocket {
    /// A socket that only sends.
    ///
    /// # Errors
    /// The kernel's; `PermissionDenied` without `CAP_NET_RAW`.
    pub fn sender(index: u32) -> io::Result<Self> {
        // Protocol 0: nothing is ever received.
        Ok(Self { socket: Socket::new(Domain::PACKET, Type::DGRAM.nonblocking().cloexec(), None)?, index })
    }

    /// A socket that receives UDP datagrams to `port` that arrive on the interface, whatever their address.
    ///
    /// # Errors
    /// The kernel's; `PermissionDenied` without `CAP_NET_RAW`.
    pub fn receiver(index: u32, port: u16) -> io::Result<Self> {
        let socket = Socket::new(Domain::PACKET, Type::DGRAM.nonblocking().cloexec(), None)?;
        // The filter goes in before the bind that starts reception: nothing unfiltered is ever queued.
        socket.attach_filter(&udp_port_filter(port))?;
        socket.bind(&link_address(index, [0xff; 6])?)?;
        Ok(Self { socket, index })
    }

    /// Sends one datagram in a frame to `mac`.
    ///
    /// # Errors
    /// The kernel's; `WouldBlock` when its queue is full, `InvalidInput` when the datagram is too long.
    pub fn send(&self, mac: [u8; 6], from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> io::Result<()> {
        let datagram = datagram(from, to, payload).ok_or(io::ErrorKind::InvalidInput)?;
        self.socket.send_to(&datagram, &link_address(self.index, mac)?).map(drop)
    }

    /// The interface's present hardware address, of a [`Self::receiver`].
    ///
    /// # Errors
    /// The kernel's; `AddrNotAvailable` when it has none.
    pub fn mac(&self) -> io::Result<[u8; 6]> {
        hardware_address(&self.socket)
    }

    /// As [`Self::receive`], with the hardware address that the frame came from.
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub fn receive_from<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Option<Received<'b>>> {
        let (len, link) = recvfrom::<LinkAddr>(self.socket.as_raw_fd(), buffer)?;
        let mac = link.and_then(|link| link.addr()).unwrap_or_default();
        Ok(buffer.get(..len).and_then(udp_payload).map(|(source, payload)| Received { mac, source, payload }))
    }

    /// Receives one datagram into `buffer`. `None`: it was not what the filter let through (cut, a fragment).
    ///
    /// # Errors
    /// The kernel's; `WouldBlock` when there is none.
    pub fn receive<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Option<(SocketAddrV4, &'b [u8])>> {
        let len = nix::unistd::read(&self.socket, buffer)?;
        Ok(buffer.get(..len).and_then(udp_payload))
    }
}

/// A datagram and who sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<'b> {
    /// Of the frame; zeros where the link has none.
    pub mac: [u8; 6],
    /// Of the datagram.
    pub source: SocketAddrV4,
    /// What it carries.
    pub payload: &'b [u8],
}

impl AsRawFd for PacketSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The largest IP packet of an interface.
///
/// # Errors
/// The kernel's; `NotFound`-like when there is no such interface.
pub fn mtu(interface: &str) -> io::Result<u32> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM.cloexec(), None)?;
    // SAFETY: all-zero octets are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from.cast_signed();
    }
    // SAFETY: the descriptor is open and the kernel reads and writes exactly one ifreq.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: SIOCGIFMTU fills in this member.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}

fn link_address(index: u32, mac: [u8; 6]) -> io::Result<SockAddr> {
    address_of(index, mac, ETHERTYPE_IP)
}

/// The present hardware address of the interface that a packet socket is bound to. It may change: a bridge takes that of a port.
///
/// # Errors
/// The kernel's; `AddrNotAvailable` when the socket is not bound, or its interface has none.
pub(crate) fn hardware_address(socket: &Socket) -> io::Result<[u8; 6]> {
    let bound = socket.local_addr()?;
    // Not by nix: the kernel's length leaves out the unused end of the address, and nix refuses that.
    if i32::from(bound.family()) != libc::AF_PACKET {
        return Err(io::ErrorKind::AddrNotAvailable.into());
    }
    // SAFETY: a SockAddr is as large as any address, its unwritten rest is zeros, and this one is a sockaddr_ll by its family.
    let link = unsafe { bound.as_ptr().cast::<libc::sockaddr_ll>().read_unaligned() };
    let mac = link.sll_addr.first_chunk::<6>().copied().filter(|mac| link.sll_halen == 6 && *mac != [0; 6]);
    mac.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

/// Where a frame of this type goes, or (in a bind) comes from.
pub(crate) fn address_of(index: u32, mac: [u8; 6], ethertype: u16) -> io::Result<SockAddr> {
    let index = i32::try_from(index).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let mut octets = [0; 8];
    for (to, from) in octets.iter_mut().zip(mac) {
        *to = from;
    }
    let address = libc::sockaddr_ll {
        sll_family: libc::sa_family_t::try_from(libc::AF_PACKET).unwrap_or_default(),
        sll_protocol: ethertype,
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: octets,
    };
    let len = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).unwrap_or_default();
    // SAFETY: the storage is zeroed, aligned for every address family and larger than sockaddr_ll; len is what was written.
    unsafe {
        SockAddr::try_init(|storage, storage_len| {
            storage.cast::<libc::sockaddr_ll>().write(address);
            storage_len.write(len);
            Ok(())
        })
    }
    .map(|((), address)| address)
}

/// Lets UDP to `port` through: not a fragment's tail, header length respected (linux/filter.h).
fn udp_port_filter(port: u16) -> [SockFilter; 9] {
    let port = u32::from(port);
    [
        SockFilter::new(0x30, 0, 0, 9),                       // A = protocol
        SockFilter::new(0x15, 0, 5, u32::from(PROTOCOL_UDP)), // not UDP: drop
        SockFilter::new(0x28, 0, 0, 6),                       // A = flags and fragment offset
        SockFilter::new(0x45, 3, 0, 0x1fff),                  // not the first fragment: drop
        SockFilter::new(0xb1, 0, 0, 0),                       // X = length of the IP header
        SockFilter::new(0x48, 0, 0, 2),                       // A = destination port
        SockFilter::new(0x15, 1, 0, port),                    // ours: keep
        SockFilter::new(0x06, 0, 0, 0),                       // drop
        SockFilter::new(0x06, 0, 0, 0xffff),                  // keep all of it
    ]
}

/// Bit 13 of the fragment field: more fragments follow.
const MORE_FRAGMENTS: u8 = 0x20;
/// Bit 14 of the same field.
const DO_NOT_FRAGMENT: u8 = 0x40;
/// What the kernel gives its own datagrams.
const TTL: u8 = 64;

/// An IPv4 packet with a UDP datagram; `None` when it would be longer than IPv4 can say.
fn datagram(from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> Option<Vec<u8>> {
    let udp_len = u16::try_from(UDP_HEADER + payload.len()).ok()?;
    let total = u16::try_from(IP_HEADER + usize::from(udp_len)).ok()?;
    let mut ip = Vec::with_capacity(usize::from(total));
    ip.extend_from_slice(&[0x45, 0x10]); // version and length; low delay, as DHCP servers send it
    ip.extend_from_slice(&total.to_be_bytes());
    // Never cut into fragments, so its identification says nothing and may be 0 (RFC 6864 s4.1).
    ip.extend_from_slice(&[0, 0, DO_NOT_FRAGMENT, 0, TTL, PROTOCOL_UDP, 0, 0]);
    ip.extend_from_slice(&from.ip().octets());
    ip.extend_from_slice(&to.ip().octets());
    let sum = checksum(0, &ip).to_be_bytes();
    put(&mut ip, 10, sum);
    let mut udp = Vec::with_capacity(usize::from(udp_len));
    for field in [from.port(), to.port(), udp_len, 0] {
        udp.extend_from_slice(&field.to_be_bytes());
    }
    udp.extend_from_slice(payload);
    let pseudo = [from.ip().octets(), to.ip().octets()].concat();
    let seed = sum_words(&pseudo) + u32::from(PROTOCOL_UDP) + u32::from(udp_len);
    // RFC 768: a sum of zero is sent as all ones; zero says "no checksum".
    let sum = Some(checksum(seed, &udp)).filter(|s| *s != 0).unwrap_or(u16::MAX).to_be_bytes();
    put(&mut udp, 6, sum);
    ip.extend_from_slice(&udp);
    Some(ip)
}

fn put(octets: &mut [u8], at: usize, value: [u8; 2]) {
    if let Some(field) = octets.get_mut(at..at + 2) {
        field.copy_from_slice(&value);
    }
}

fn sum_words(octets: &[u8]) -> u32 {
    let (pairs, odd) = octets.as_chunks::<2>();
    let odd = odd.first().map_or(0, |last| u32::from(*last) << 8);
    pairs.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum::<u32>() + odd
}

/// RFC 1071.
fn checksum(seed: u32, octets: &[u8]) -> u16 {
    let mut sum = seed + sum_words(octets);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

/// Source and payload of a UDP datagram in an IPv4 packet. The UDP checksum is not looked at: between virtual machines
/// and over veth it is left for the hardware to fill in, so packet sockets see it unfinished.
fn udp_payload(packet: &[u8]) -> Option<(SocketAddrV4, &[u8])> {
    let head = packet.first_chunk::<IP_HEADER>()?;
    let header_len = usize::from(head[0] & 0xf) * 4;
    if head[0] >> 4 != 4 || header_len < IP_HEADER || head[9] != PROTOCOL_UDP || head[6] & MORE_FRAGMENTS != 0 {
        return None;
    }
    let total = usize::from(u16::from_be_bytes([head[2], head[3]]));
    let udp = packet.get(header_len..total)?;
    let (udp_head, payload) = udp.split_first_chunk::<UDP_HEADER>()?;
    let len = usize::from(u16::from_be_bytes([udp_head[4], udp_head[5]])).checked_sub(UDP_HEADER)?;
    let source = Ipv4Addr::new(head[12], head[13], head[14], head[15]);
    Some((SocketAddrV4::new(source, u16::from_be_bytes([udp_head[0], udp_head[1]])), payload.get(..len)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), 67);
    const TO: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 9), 68);

    #[test]
    fn what_is_built_is_read_back_and_its_sums_are_right() {
        for payload in [&b""[..], b"x", b"kurrent"] {
            let packet = datagram(FROM, TO, payload).unwrap();
            assert_eq!(udp_payload(&packet), Some((FROM, payload)));
            assert_eq!(checksum(0, &packet[..IP_HEADER]), 0);
            let udp = &packet[IP_HEADER..];
            let pseudo = [&FROM.ip().octets()[..], &TO.ip().octets(), &[0, PROTOCOL_UDP], &udp[4..6]].concat();
            assert_eq!(checksum(sum_words(&pseudo), udp), 0);
        }
    }

    #[test]
    fn link_padding_is_not_payload() {
        let mut packet = datagram(FROM, TO, b"ab").unwrap();
        packet.extend([0; 30]);
        assert_eq!(udp_payload(&packet), Some((FROM, &b"ab"[..])));
    }

    #[test]
    fn every_cut_and_every_flipped_octet_is_survived() {
        let packet = datagram(FROM, TO, b"kurrent").unwrap();
        for len in 0..packet.len() {
            assert_eq!(udp_payload(&packet[..len]), None);
            for value in 0..=255 {
                let mut changed = packet.clone();
                changed[len] = value;
                let _ = udp_payload(&changed);
            }
        }
    }

    #[test]
    fn datagram_longer_than_ipv4_can_say_is_refused() {
        assert_eq!(datagram(FROM, TO, &[0; 65_508]), None);
    }
}
