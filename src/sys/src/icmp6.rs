//! A raw ICMPv6 socket of a host that advertises: hears router solicitations, sends router advertisements.

use nix::cmsg_space;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn6, recvmsg, setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, IoSliceMut};
use std::net::{Ipv6Addr, SocketAddrV6};
use std::os::fd::{AsRawFd, RawFd};

/// `ICMP6_FILTER` of linux/icmpv6.h.
const ICMP6_FILTER: libc::c_int = 1;
/// The largest number of message types; a filter has a bit for each.
const TYPES: usize = 256;

/// The socket. Non-blocking.
#[derive(Debug)]
pub struct RouterSocket {
    socket: Socket,
    index: u32,
}

/// What was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard<'b> {
    /// The ICMPv6 message; its checksum was right.
    pub octets: &'b [u8],
    /// Who sent it.
    pub source: Ipv6Addr,
    /// What was left of its hop limit.
    pub hop_limit: u8,
}

impl RouterSocket {
    /// Opens it on one interface for messages of one type to `group`.
    ///
    /// # Errors
    /// The kernel's; `PermissionDenied` without `CAP_NET_RAW`.
    pub fn open(interface: &str, index: u32, message_type: u8, group: Ipv6Addr) -> io::Result<Self> {
        let socket = Socket::new(Domain::IPV6, Type::RAW.nonblocking().cloexec(), Some(Protocol::ICMPV6))?;
        // First of all: nothing unfiltered is ever queued.
        filter(&socket, message_type)?;
        socket.bind_device(Some(interface.as_bytes()))?;
        setsockopt(&socket, sockopt::Ipv6RecvHopLimit, &true)?;
        socket.join_multicast_v6(&group, index)?;
        socket.set_multicast_if_v6(index)?;
        socket.set_multicast_hops_v6(255)?;
        socket.set_multicast_loop_v6(false)?;
        Ok(Self { socket, index })
    }

    /// Sends a message to a multicast group of the link, from our link-local address, with hop limit 255.
    ///
    /// # Errors
    /// The kernel's; `AddrNotAvailable` while the interface has no link-local address that can be used.
    pub fn send(&self, to: Ipv6Addr, octets: &[u8]) -> io::Result<()> {
        self.socket.send_to(octets, &SocketAddrV6::new(to, 0, 0, self.index).into()).map(drop)
    }

    /// Receives one message into `buffer`; `None`: of something that is no IPv6 host.
    ///
    /// # Errors
    /// The kernel's; `WouldBlock` when there is none.
    pub fn receive<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Option<Heard<'b>>> {
        let mut control = cmsg_space!(libc::c_int);
        let mut pieces = [IoSliceMut::new(buffer)];
        let message = recvmsg::<SockaddrIn6>(self.socket.as_raw_fd(), &mut pieces, Some(&mut control), MsgFlags::empty())?;
        let (len, source) = (message.bytes, message.address.map(|a| a.ip()));
        let hops = message.cmsgs()?.find_map(|c| match c {
            ControlMessageOwned::Ipv6HopLimit(hops) => u8::try_from(hops).ok(),
            _ => None,
        });
        let (Some(source), Some(hop_limit)) = (source, hops) else { return Ok(None) };
        Ok(buffer.get(..len).map(|octets| Heard { octets, source, hop_limit }))
    }
}

impl AsRawFd for RouterSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Lets one message type through. A set bit blocks (RFC 3542 section 3.2, as Linux has it).
fn filter(socket: &Socket, message_type: u8) -> io::Result<()> {
    let mut blocked = [u32::MAX; TYPES / 32];
    if let Some(word) = blocked.get_mut(usize::from(message_type) / 32) {
        *word &= !(1 << (message_type % 32));
    }
    let len = libc::socklen_t::try_from(size_of_val(&blocked)).unwrap_or_default();
    // SAFETY: the descriptor is open, and the kernel reads `len` octets of an array of that size.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_ICMPV6, ICMP6_FILTER, blocked.as_ptr().cast(), len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
