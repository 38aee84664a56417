//! Which TCP connections this host has (`/proc/net/tcp`), also those of the kernel's own sockets: nvmet has no other way to say
//! who is connected on kernels without its debugfs. And the socket option that no crate of ours has.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd as _};
use std::path::Path;

/// Where the kernel lists them.
pub const PROC_NET_TCP: &str = "/proc/net/tcp";
/// `TCP_LISTEN` in the kernel's `tcp_states.h`.
const LISTEN: &str = "0A";
/// Inode of a row that is only the protocol's: the socket was released, or nobody has accepted it yet.
const NO_SOCKET: &str = "0";

/// Has the kernel send at most `rate` octets a second over a TCP connection, evenly spaced (`SO_MAX_PACING_RATE`, socket(7)).
///
/// # Errors
/// The kernel's.
pub fn set_max_pacing_rate(socket: &impl AsFd, rate: u64) -> io::Result<()> {
    // A C `unsigned long`, which is 64 bits wide on all targets of ours; the largest value would switch pacing off.
    let rate = rate.min(u64::MAX - 1);
    let length = libc::socklen_t::try_from(size_of_val(&rate)).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open, and the kernel reads `length` octets of `rate`, which lives through the call.
    let result = unsafe {
        libc::setsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, (&raw const rate).cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The remote ends of all connections to `local` whose socket somebody still holds, whatever their TCP state: nvmet shuts a socket
/// down first and releases it when the queue behind it is torn down, so a connection that is being closed is not gone yet. A
/// kernel's socket has an inode as everybody's; a row without one (`TIME_WAIT`, or closing by itself) has no queue behind it.
///
/// # Errors
/// The list can not be read.
pub fn held(list: &Path, local: SocketAddrV4) -> io::Result<Vec<SocketAddrV4>> {
    let text = std::fs::read_to_string(list)?;
    Ok(text.lines().skip(1).filter_map(|line| remote_of(line, local)).collect())
}

/// `sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode …`
fn remote_of(line: &str, local: SocketAddrV4) -> Option<SocketAddrV4> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (here, there, state) = (words.next()?, words.next()?, words.next()?);
    let inode = words.nth(5)?;
    (state != LISTEN && inode != NO_SOCKET && address(here)? == local).then(|| address(there)).flatten()
}

/// `0100007F:1144`: the address as the host's 32-bit word, the port in network order.
fn address(text: &str) -> Option<SocketAddrV4> {
    let (ip, port) = text.split_once(':')?;
    let ip = u32::from_str_radix(ip, 16).ok()?;
    Some(SocketAddrV4::new(Ipv4Addr::from(ip.to_ne_bytes()), u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_counts_in_every_state_and_nothing_else_does() {
        let list = tempfile::NamedTempFile::new().unwrap();
        let row = |local: &str, remote: &str, state: &str, inode: &str| {
            format!(
                "   1: {local} {remote} {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0000000000000000 20 0 0 10 -1\n"
            )
        };
        let ours = "0100000A:1144";
        let mut text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n".to_owned();
        let mut expected = vec![];
        // Established, SYN_SENT, SYN_RECV, FIN_WAIT1, FIN_WAIT2, CLOSE, CLOSE_WAIT, LAST_ACK, CLOSING.
        for (n, state) in (1u16..).zip(["01", "02", "03", "04", "05", "07", "08", "09", "0B"]) {
            text += &row(ours, &format!("6400000A:{n:04X}"), state, "12345");
            text += &row(ours, &format!("6500000A:{n:04X}"), state, "0");
            expected.push(SocketAddrV4::new([10, 0, 0, 100].into(), n));
        }
        text += &row(ours, "00000000:0000", "0A", "77");
        text += &row(ours, "6600000A:A002", "06", "0");
        text += &row("0100000A:0050", "6400000A:A003", "01", "78");
        text += &row("0200000A:1144", "6400000A:A004", "01", "79");
        text += "   4: short\n";
        std::fs::write(list.path(), text).unwrap();
        assert_eq!(held(list.path(), "10.0.0.1:4420".parse().unwrap()).unwrap(), expected);
    }

    #[test]
    fn a_list_that_can_not_be_read_is_not_an_empty_one() {
        assert!(held(Path::new("/nonexistent/tcp"), "10.0.0.1:4420".parse().unwrap()).is_err());
    }

    #[test]
    fn the_running_kernels_list_is_read() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let std::net::SocketAddr::V4(local) = listener.local_addr().unwrap() else { panic!("IPv4") };
        let mut client = std::net::TcpStream::connect(local).unwrap();
        let held = || held(Path::new(PROC_NET_TCP), local).unwrap();
        assert_eq!(held(), [], "nobody has accepted it yet");
        let (server, remote) = listener.accept().unwrap();
        assert_eq!(held().into_iter().map(std::net::SocketAddr::V4).collect::<Vec<_>>(), [remote]);
        server.shutdown(std::net::Shutdown::Both).unwrap();
        // The end of the stream has come, so the server's side is no longer established; yet its socket is there.
        std::io::Read::read(&mut client, &mut [0]).unwrap();
        assert_eq!(held().len(), 1, "shut down, not released");
        drop(server);
        assert_eq!(held(), []);
    }
}
