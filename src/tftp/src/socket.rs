//! UDP sockets: bound, connected, and sending many blocks in one call where the kernel can cut them itself (UDP_SEGMENT).

use crate::content::PIECE_BYTES;
use crate::wire;
use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};
use socket2::{Domain, SockRef, Socket, Type};
use std::io::{self, ErrorKind, IoSlice};
use std::net::{IpAddr, SocketAddr, UdpSocket};

/// Most segments that the kernel cuts one send into (UDP_MAX_SEGMENTS of Linux 4.18; newer ones allow more).
const MAX_SEGMENTS: usize = 64;
/// Most octets in one send: an IPv4 datagram's, less its headers.
const MAX_SEND_BYTES: usize = 65_507;
/// Block number and opcode.
pub(crate) const HEAD_BYTES: usize = 4;
/// Requests and, on a single port, ACKs that wait for us; the kernel grants what it allows.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// Binds a UDP socket to `address`, and to `interface` when one is named. Port 0 is any.
pub(crate) fn bind(address: IpAddr, port: u16, interface: Option<&str>) -> io::Result<UdpSocket> {
    let local = SocketAddr::from((address, port));
    let socket = Socket::new(Domain::for_address(local), Type::DGRAM.nonblocking().cloexec(), None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if let Some(interface) = interface {
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    socket.bind(&local.into())?;
    Ok(socket.into())
}

/// Room for many requests at once; less is no fault.
pub(crate) fn widen(socket: &UdpSocket) {
    let _ = SockRef::from(socket).set_recv_buffer_size(RECEIVE_BUFFER_BYTES);
}

/// How a send ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It left, or is as lost as on the wire.
    Yes,
    /// The queue is full; the socket says when it is not.
    Later,
    /// The client's port is closed: it is gone (a crash, or the end of a tsize probe; pin/tftp 125).
    Gone,
}

/// How blocks leave by a socket.
#[derive(Debug)]
pub(crate) struct Segments {
    /// What the socket is set to cut at; 0 is not at all.
    cut_at: usize,
    /// The kernel can not (or not on this link).
    refused: bool,
}

impl Segments {
    pub(crate) const fn new() -> Self {
        Self { cut_at: 0, refused: false }
    }

    /// How many blocks of this size can leave in one send.
    pub(crate) fn most(&self, block_bytes: usize) -> usize {
        if self.refused {
            return 1;
        }
        MAX_SEGMENTS.min(MAX_SEND_BYTES / (block_bytes + HEAD_BYTES)).min(PIECE_BYTES / block_bytes.max(1)).max(1)
    }

    /// Sends the blocks from number `first` on that `payload` is; all but the last of them are full. `to`: when the socket is not connected.
    /// `Ok(None)`: they have to be sent one by one.
    pub(crate) fn send(
        &mut self,
        socket: &UdpSocket,
        to: Option<SocketAddr>,
        first: u16,
        payload: &[u8],
        block_bytes: usize,
        blocks: usize,
    ) -> io::Result<Option<Sent>> {
        if blocks == 1 {
            let head = wire::data_head(first);
            self.whole(socket, head.len() + payload.len());
            return gathered(socket, to, &[IoSlice::new(&head), IoSlice::new(payload)]).map(Some);
        }
        let segment = block_bytes + HEAD_BYTES;
        if self.cut_at != segment {
            let size = i32::try_from(segment).unwrap_or(0);
            if setsockopt(socket, UdpGsoSegment, &size).is_err() {
                self.refused = true;
                return Ok(None);
            }
            self.cut_at = segment;
        }
        let mut heads = [[0; HEAD_BYTES]; MAX_SEGMENTS];
        for (head, ahead) in heads.iter_mut().zip(0_u16..).take(blocks) {
            *head = wire::data_head(first.wrapping_add(ahead));
        }
        let mut slices = [IoSlice::new(&[]); 2 * MAX_SEGMENTS];
        let mut used = 0;
        let payloads = payload.chunks(block_bytes).chain(std::iter::repeat(&[][..]));
        for ((pair, head), payload) in slices.chunks_exact_mut(2).zip(&heads).zip(payloads).take(blocks) {
            if let [first, second] = pair {
                (*first, *second) = (IoSlice::new(head), IoSlice::new(payload));
                used += 2;
            }
        }
        match gathered(socket, to, slices.get(..used).unwrap_or_default()) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EIO | libc::EOPNOTSUPP | libc::EMSGSIZE)) => {
                tracing::debug!(%e, "TFTP: the kernel does not cut datagrams on this link; blocks are sent one by one");
                self.refused = true;
                self.whole(socket, usize::MAX);
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    /// Sends one datagram.
    pub(crate) fn send_one(&mut self, socket: &UdpSocket, to: Option<SocketAddr>, octets: &[u8]) -> io::Result<Sent> {
        self.whole(socket, octets.len());
        gathered(socket, to, &[IoSlice::new(octets)])
    }

    /// Keeps the kernel from cutting a datagram of this length.
    fn whole(&mut self, socket: &UdpSocket, len: usize) {
        if self.cut_at != 0 && len > self.cut_at && setsockopt(socket, UdpGsoSegment, &0).is_ok() {
            self.cut_at = 0;
        }
    }
}

/// A link that is down, or out of memory, is like a loss.
fn gathered(socket: &UdpSocket, to: Option<SocketAddr>, slices: &[IoSlice<'_>]) -> io::Result<Sent> {
    let socket = SockRef::from(socket);
    let sent = match to {
        None => socket.send_vectored(slices),
        Some(to) => socket.send_to_vectored(slices, &to.into()),
    };
    match sent {
        Ok(_) => Ok(Sent::Yes),
        Err(e) => match e.kind() {
            ErrorKind::WouldBlock => Ok(Sent::Later),
            ErrorKind::ConnectionRefused => Ok(Sent::Gone),
            ErrorKind::NetworkDown | ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable | ErrorKind::Interrupted => Ok(Sent::Yes),
            _ if matches!(e.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM | libc::EPERM)) => Ok(Sent::Yes),
            _ => Err(e),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::time::Duration;

    fn pair() -> (UdpSocket, UdpSocket) {
        let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        receiver.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        let sender = bind(Ipv4Addr::LOCALHOST.into(), 0, None).expect("a socket");
        sender.connect(receiver.local_addr().expect("an address")).expect("connect");
        (sender, receiver)
    }

    fn received(receiver: &UdpSocket, count: usize) -> Vec<Vec<u8>> {
        let mut buffer = [0; 2000];
        (0..count).map(|_| receiver.recv(&mut buffer).map(|len| buffer[..len].to_vec()).expect("a datagram")).collect()
    }

    #[test]
    fn a_window_leaves_in_one_send_and_arrives_as_its_blocks() {
        let (sender, receiver) = pair();
        let mut segments = Segments::new();
        let payload: Vec<u8> = (0..1468 * 3 + 700_u32).map(|n| u8::try_from(n % 253).unwrap_or(0)).collect();
        assert!(segments.most(1468) == 44 && segments.most(512) == 64 && segments.most(65_464) == 1);
        let sent = segments.send(&sender, None, 65_534, &payload, 1468, 4).expect("sent");
        assert_eq!(sent, Some(Sent::Yes));
        for (index, datagram) in received(&receiver, 4).into_iter().enumerate() {
            let number = [65_534, 65_535, 0, 1_u16][index];
            assert_eq!(datagram[..4], wire::data_head(number));
            assert_eq!(datagram[4..], payload[index * 1468..payload.len().min((index + 1) * 1468)]);
        }
    }

    #[test]
    fn crowbar_core_1078_the_empty_last_block_leaves_with_its_window() {
        let (sender, receiver) = pair();
        let mut segments = Segments::new();
        segments.send(&sender, None, 1, &[7; 1024], 512, 3).expect("sent");
        assert_eq!(received(&receiver, 3).iter().map(Vec::len).collect::<Vec<_>>(), [516, 516, 4]);
        // A longer one of the same socket is not cut.
        segments.send_one(&sender, None, &[1; 600]).expect("sent");
        assert_eq!(received(&receiver, 1)[0].len(), 600);
    }

    #[test]
    fn where_the_kernel_does_not_cut_blocks_go_one_by_one() {
        let (sender, receiver) = pair();
        let mut segments = Segments { cut_at: 0, refused: true };
        assert_eq!(segments.most(1468), 1);
        assert_eq!(segments.send(&sender, None, 9, &[1; 1468], 1468, 1).expect("sent"), Some(Sent::Yes));
        assert_eq!(received(&receiver, 1)[0].len(), 1472);
        // Larger than the link's MTU: the kernel refuses, and says so once.
        let mut segments = Segments::new();
        sender.connect("127.0.0.1:9").expect("connect");
        assert_eq!(segments.send(&sender, None, 1, &[0; 140_000], 70_000, 2).expect("told"), None);
        assert!(segments.refused);
    }
}
