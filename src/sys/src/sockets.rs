//! Which TCP connections this host has (`/proc/net/tcp`), also those of the kernel's own sockets: nvmet has no other way to say
//! who is connected on kernels without its debugfs.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

/// Where the kernel lists them.
pub const PROC_NET_TCP: &str = "/proc/net/tcp";
/// `TCP_ESTABLISHED` in the kernel's `tcp_states.h`.
const ESTABLISHED: &str = "01";

/// The remote ends of all established connections to `local`.
///
/// # Errors
/// The list can not be read.
pub fn established(list: &Path, local: SocketAddrV4) -> io::Result<Vec<SocketAddrV4>> {
    let text = std::fs::read_to_string(list)?;
    Ok(text.lines().skip(1).filter_map(|line| remote_of(line, local)).collect())
}

fn remote_of(line: &str, local: SocketAddrV4) -> Option<SocketAddrV4> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (here, there, state) = (words.next()?, words.next()?, words.next()?);
    (state == ESTABLISHED && address(here)? == local).then(|| address(there)).flatten()
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
    fn established_connections_to_the_port_are_found_and_others_are_not() {
        let list = tempfile::NamedTempFile::new().unwrap();
        let text = "  sl  local_address rem_address   st\n\
            0: 0100000A:1144 00000000:0000 0A 0\n\
            1: 0100000A:1144 6400000A:A001 01 0\n\
            2: 0100000A:1144 6500000A:A002 06 0\n\
            3: 0100000A:0050 6400000A:A003 01 0\n\
            4: short\n";
        std::fs::write(list.path(), text).unwrap();
        let found = established(list.path(), "10.0.0.1:4420".parse().unwrap()).unwrap();
        assert_eq!(found, ["10.0.0.100:40961".parse().unwrap()]);
    }
}
