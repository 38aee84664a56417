//! Raw Ethernet on the boot network, for looking and for asking what no honest client asks.
//!
//! On the multicast network a frame is one datagram; in a namespace it is a packet socket. Either needs nothing of the parts
//! under test.

use crate::netns;
use anyhow::{Context, Result, bail};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io::Read;
use std::mem::{size_of, zeroed};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

/// A place on the boot network.
pub struct Wire {
    socket: Socket,
    group: Option<SocketAddrV4>,
}

impl Wire {
    /// Joins the multicast group that QEMU's `socket,mcast=` machines are on.
    pub fn on_multicast(group: SocketAddrV4) -> Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).context("datagram socket")?;
        socket.set_reuse_address(true).context("share the group's port")?;
        socket.bind(&SockAddr::from(group)).with_context(|| format!("bind {group}"))?;
        socket.join_multicast_v4(group.ip(), &Ipv4Addr::LOCALHOST).with_context(|| format!("join {group}"))?;
        socket.set_multicast_if_v4(&Ipv4Addr::LOCALHOST).context("send on loopback")?;
        socket.set_multicast_loop_v4(true).context("hear each other")?;
        Ok(Self { socket, group: Some(group) })
    }

    /// Opens a packet socket on `interface` inside the namespace.
    pub fn in_netns(netns: &str, interface: &str) -> Result<Self> {
        let interface = interface.to_owned();
        let socket = netns::enter(netns, move || packet_socket(&interface))??;
        Ok(Self { socket, group: None })
    }

    /// Sends one frame.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        match self.group {
            Some(group) => self.socket.send_to(frame, &SockAddr::from(group)),
            None => self.socket.send(frame),
        }
        .context("send a frame")
        .map(drop)
    }

    /// The next frame that `wanted` accepts, or `None` when there is none within the time.
    pub fn receive(&mut self, within: Duration, mut wanted: impl FnMut(&[u8]) -> bool) -> Result<Option<Vec<u8>>> {
        let deadline = Instant::now() + within;
        let mut buffer = vec![0_u8; 65536];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // Less than a microsecond would be a timeout of zero: none at all.
            if left < Duration::from_millis(1) {
                return Ok(None);
            }
            self.socket.set_read_timeout(Some(left)).context("set a deadline")?;
            match self.socket.read(&mut buffer) {
                Ok(count) => {
                    let frame = buffer.get(..count).unwrap_or_default();
                    if wanted(frame) {
                        return Ok(Some(frame.to_vec()));
                    }
                }
                Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => return Ok(None),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => bail!("receive a frame: {error}"),
            }
        }
    }
}

/// A multicast group and port that no other run on this machine uses now.
pub fn free_group() -> Result<SocketAddrV4> {
    // The port is exclusive while we look, and the group follows from port and process: two runs do not meet by accident.
    let probe = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
    let port = probe.local_addr().context("read the port")?.port();
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ok(SocketAddrV4::new(Ipv4Addr::new(239, 192, high, low), port))
}

/// A socket on an interface of this thread's namespace that sends and receives whole frames of every kind.
pub fn packet_socket(interface: &str) -> Result<Socket> {
    let index = nix::net::if_::if_nametoindex(interface).with_context(|| format!("find {interface}"))?;
    let all = u16::try_from(libc::ETH_P_ALL).unwrap_or_default().to_be();
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(i32::from(all)))).context("packet socket")?;
    // SAFETY: sockaddr_ll is plain old data; all zero is a valid value, and it fits into sockaddr_storage.
    let address = unsafe {
        SockAddr::try_init(|storage, length| {
            let mut link: libc::sockaddr_ll = zeroed();
            link.sll_family = u16::try_from(libc::AF_PACKET).unwrap_or_default();
            link.sll_protocol = all;
            link.sll_ifindex = i32::try_from(index).unwrap_or_default();
            storage.cast::<libc::sockaddr_ll>().write(link);
            *length = u32::try_from(size_of::<libc::sockaddr_ll>()).unwrap_or_default();
            Ok(())
        })
    }
    .context("link-layer address")?
    .1;
    socket.bind(&address).with_context(|| format!("bind {interface}"))?;
    Ok(socket)
}
