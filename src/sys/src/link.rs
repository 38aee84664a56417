//! Network interfaces by rtnetlink, without async: list, up and down, addresses.
//!
//! netlink and not sysfs, because `/sys/class/net` shows the network namespace it was mounted in, not ours.

use kurrent_core::id::MacAddr;
use nix::sys::socket::{self, AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};

// linux/rtnetlink.h and linux/if_link.h; libc has them with other types on other platforms.
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLM_F_CREATE_REPLACE: u16 = 0x500;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const IFA_F_NODAD: u8 = 0x02;
/// `IFA_F_TENTATIVE | IFA_F_DADFAILED`.
const IFA_F_UNUSABLE: u8 = 0x40 | 0x08;
/// `AF_INET6`.
const FAMILY6: u8 = 10;
const IFF_UP: u32 = 0x1;
const IFF_LOOPBACK: u32 = 0x8;
const IFF_LOWER_UP: u32 = 0x1_0000;
const ARPHRD_ETHER: u16 = 1;

/// Octets of `nlmsghdr`, `ifinfomsg` and `ifaddrmsg`.
const HEADER: usize = 16;
const IFINFO: usize = 16;
const IFADDR: usize = 8;
/// The kernel never sends more than this in one datagram of a dump.
const RECEIVE_BUFFER: usize = 64 * 1024;

/// A fault of the kernel's network configuration.
#[derive(Debug, thiserror::Error)]
#[error("{operation}")]
pub struct LinkError {
    /// What was tried.
    pub operation: String,
    /// Why it failed.
    pub source: io::Error,
}

pub(crate) fn fault(operation: impl Into<String>) -> impl FnOnce(io::Error) -> LinkError {
    let operation = operation.into();
    move |source| LinkError { operation, source }
}

/// One Ethernet interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Kernel index.
    pub index: u32,
    /// Kernel name (`eth0`).
    pub name: String,
    /// Hardware address; `None` for what has no unicast one (a loopback).
    pub mac: Option<MacAddr>,
    /// Administratively up.
    pub up: bool,
    /// A cable with something at the other end. Known only while `up`.
    pub carrier: bool,
}

/// An IPv4 address on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The interface's index.
    pub index: u32,
    /// The address.
    pub address: Ipv4Addr,
    /// Prefix length.
    pub prefix: u8,
}

/// An IPv6 address on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address6 {
    /// The interface's index.
    pub index: u32,
    /// The address.
    pub address: Ipv6Addr,
    /// Prefix length.
    pub prefix: u8,
}

/// Every Ethernet interface of this network namespace, sorted by name; loopback left out.
pub fn links() -> Result<Vec<Link>, LinkError> {
    let mut found = Vec::new();
    dump(RTM_GETLINK, &[0; IFINFO], |kind, body| {
        if kind == RTM_NEWLINK {
            found.extend(parse_link(body));
        }
    })
    .map_err(fault("listing network interfaces"))?;
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// One interface by name.
pub fn link(name: &str) -> Result<Link, LinkError> {
    let missing = || io::Error::new(io::ErrorKind::NotFound, "there is no such interface");
    links()?.into_iter().find(|link| link.name == name).ok_or_else(|| fault(format!("looking for interface {name}"))(missing()))
}

/// The IPv4 addresses of this network namespace.
pub fn addresses() -> Result<Vec<Address>, LinkError> {
    let mut found = Vec::new();
    dump(RTM_GETADDR, &[0; IFADDR], |kind, body| {
        if kind == RTM_NEWADDR {
            found.extend(parse_address(body));
        }
    })
    .map_err(fault("listing addresses"))?;
    Ok(found)
}

/// Sets an interface up or down. Works for any kind, loopback (index 1) included.
pub fn set_up(index: u32, up: bool) -> Result<(), LinkError> {
    let flags = if up { IFF_UP } else { 0 };
    let mut body = vec![0; 4];
    body.extend(index.to_ne_bytes());
    body.extend(flags.to_ne_bytes());
    body.extend(IFF_UP.to_ne_bytes());
    request(RTM_NEWLINK, 0, &body).map_err(fault(format!("setting interface {index} {}", if up { "up" } else { "down" })))
}

/// Whether an interface takes addresses and routes from router advertisements (RFC 4861 section 6.3; the kernel's `accept_ra`).
/// Nothing to do in a kernel without IPv6. What it has already stays until it expires.
pub fn hear_routers(name: &str, heard: bool) -> Result<(), LinkError> {
    let setting = format!("/proc/sys/net/ipv6/conf/{name}/accept_ra");
    let wanted = if heard { "1" } else { "0" };
    let done = match std::fs::read_to_string(&setting) {
        Ok(now) if now.trim() == wanted => Ok(()),
        Ok(_) => std::fs::write(&setting, wanted),
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(fault) => Err(fault),
    };
    done.map_err(fault(format!("setting accept_ra of {name} to {wanted}")))
}

/// Gives an interface an IPv4 address; one that is there already is fine.
pub fn add_address(index: u32, address: Ipv4Addr, prefix: u8) -> Result<(), LinkError> {
    let body = address_body(index, address, prefix);
    let operation = format!("adding address {address}/{prefix} to interface {index}");
    request(RTM_NEWADDR, NLM_F_CREATE_REPLACE, &body).map_err(fault(operation))
}

/// The IPv6 addresses of this network namespace that can be used: those that are still looked for on the link are left out.
pub fn addresses6() -> Result<Vec<Address6>, LinkError> {
    let mut found = Vec::new();
    dump(RTM_GETADDR, &[0; IFADDR], |kind, body| {
        if kind == RTM_NEWADDR {
            found.extend(parse_address6(body));
        }
    })
    .map_err(fault("listing IPv6 addresses"))?;
    Ok(found)
}

/// Gives an interface an IPv6 address; one that is there already is fine. It can be used at once: it is not looked for on the link
/// first (RFC 4862 section 5.4), because a server that waits for its own network's word can not start it.
pub fn add_address6(index: u32, address: Ipv6Addr, prefix: u8) -> Result<(), LinkError> {
    let mut body = vec![FAMILY6, prefix, IFA_F_NODAD, 0];
    body.extend(index.to_ne_bytes());
    attribute(&mut body, IFA_LOCAL, &address.octets());
    attribute(&mut body, IFA_ADDRESS, &address.octets());
    let operation = format!("adding address {address}/{prefix} to interface {index}");
    request(RTM_NEWADDR, NLM_F_CREATE_REPLACE, &body).map_err(fault(operation))
}

/// Takes an IPv4 address away; one that is not there is fine.
pub fn remove_address(index: u32, address: Ipv4Addr, prefix: u8) -> Result<(), LinkError> {
    let body = address_body(index, address, prefix);
    match request(RTM_DELADDR, 0, &body) {
        Err(gone) if gone.raw_os_error() == Some(libc::EADDRNOTAVAIL) => Ok(()),
        other => other.map_err(fault(format!("removing address {address}/{prefix} from interface {index}"))),
    }
}

/// `AF_INET` as the one octet it is in these messages.
pub(crate) fn family() -> u8 {
    u8::try_from(libc::AF_INET).unwrap_or(2)
}

fn address_body(index: u32, address: Ipv4Addr, prefix: u8) -> Vec<u8> {
    let mut body = vec![family(), prefix, 0, 0];
    body.extend(index.to_ne_bytes());
    attribute(&mut body, IFA_LOCAL, &address.octets());
    attribute(&mut body, IFA_ADDRESS, &address.octets());
    attribute(&mut body, IFA_BROADCAST, &Ipv4Addr::from(u32::from(address) | !kurrent_core::config::mask(prefix)).octets());
    body
}

pub(crate) fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    body.extend(length.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

fn open() -> io::Result<OwnedFd> {
    let socket = socket::socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)
        .map_err(io::Error::from)?;
    socket::connect(socket.as_raw_fd(), &NetlinkAddr::new(0, 0)).map_err(io::Error::from)?;
    Ok(socket)
}

fn send(socket: &OwnedFd, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(HEADER + body.len()).unwrap_or(u32::MAX);
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend(length.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((flags | NLM_F_REQUEST).to_ne_bytes());
    // One request per socket: sequence 1; port 0 lets the kernel fill in ours.
    message.extend(1u32.to_ne_bytes());
    message.extend(0u32.to_ne_bytes());
    message.extend(body);
    socket::send(socket.as_raw_fd(), &message, socket::MsgFlags::empty())?;
    Ok(())
}

/// Sends a change and waits for the kernel's verdict.
pub(crate) fn request(kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
    let socket = open()?;
    send(&socket, kind, flags | NLM_F_ACK, body)?;
    receive(&socket, |_, _| {})
}

/// Asks one question; `each` gets the answer's type and body.
pub(crate) fn question(kind: u16, body: &[u8], each: impl FnMut(u16, &[u8])) -> io::Result<()> {
    let socket = open()?;
    // The acknowledgement that follows the answer is where the reading ends.
    send(&socket, kind, NLM_F_ACK, body)?;
    receive(&socket, each)
}

/// Asks for a list; `each` gets every message's type and body.
pub(crate) fn dump(kind: u16, body: &[u8], each: impl FnMut(u16, &[u8])) -> io::Result<()> {
    let socket = open()?;
    send(&socket, kind, NLM_F_DUMP, body)?;
    receive(&socket, each)
}

/// Reads datagrams until the kernel says that it is done, or what went wrong.
fn receive(socket: &OwnedFd, mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
    let mut buffer = vec![0; RECEIVE_BUFFER];
    loop {
        let length = match socket::recv(socket.as_raw_fd(), &mut buffer, socket::MsgFlags::empty()) {
            Err(nix::errno::Errno::EINTR) => continue,
            other => other?,
        };
        let mut rest = buffer.get(..length).unwrap_or_default();
        while let Some((kind, body, after)) = next_message(rest) {
            match kind {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => {
                    let code = body.first_chunk().map_or(-libc::EIO, |code| i32::from_ne_bytes(*code));
                    return if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code.saturating_neg())) };
                }
                other => each(other, body),
            }
            rest = after;
        }
    }
}

/// Type, body and what follows; `None` at the end or when the rest is cut short.
fn next_message(octets: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::try_from(u32::from_ne_bytes(*octets.first_chunk()?)).ok()?;
    let kind = u16::from_ne_bytes(*octets.get(4..)?.first_chunk()?);
    let body = octets.get(HEADER..length)?;
    let after = octets.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, body, after))
}

/// The attributes that follow a message's fixed part.
pub(crate) fn attributes(mut octets: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*octets.first_chunk()?));
        let kind = u16::from_ne_bytes(*octets.get(2..)?.first_chunk()?);
        let value = octets.get(4..length)?;
        octets = octets.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(crate) fn word(octets: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*octets.get(at..)?.first_chunk()?))
}

fn parse_link(body: &[u8]) -> Option<Link> {
    let hardware = u16::from_ne_bytes(*body.get(2..)?.first_chunk()?);
    let (index, flags) = (word(body, 4)?, word(body, 8)?);
    if hardware != ARPHRD_ETHER || flags & IFF_LOOPBACK != 0 {
        return None;
    }
    let mut link = Link { index, name: String::new(), mac: None, up: flags & IFF_UP != 0, carrier: flags & IFF_LOWER_UP != 0 };
    for (kind, value) in attributes(body.get(IFINFO..)?) {
        match kind {
            IFLA_IFNAME => link.name = String::from_utf8_lossy(value).trim_end_matches('\0').to_owned(),
            IFLA_ADDRESS => link.mac = value.try_into().ok().map(MacAddr).filter(|mac| mac.is_unicast()),
            _ => {}
        }
    }
    (!link.name.is_empty()).then_some(link)
}

fn parse_address(body: &[u8]) -> Option<Address> {
    let (&family_octet, &prefix) = (body.first()?, body.get(1)?);
    if family_octet != family() {
        return None;
    }
    let index = word(body, 4)?;
    // IFA_LOCAL is our own end; on point-to-point links IFA_ADDRESS is the other one.
    let find = |wanted| attributes(body.get(IFADDR..).unwrap_or_default()).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    let octets: [u8; 4] = find(IFA_LOCAL).or_else(|| find(IFA_ADDRESS))?.try_into().ok()?;
    Some(Address { index, address: octets.into(), prefix })
}

fn parse_address6(body: &[u8]) -> Option<Address6> {
    let (&family_octet, &prefix, &flags) = (body.first()?, body.get(1)?, body.get(2)?);
    if family_octet != FAMILY6 || flags & IFA_F_UNUSABLE != 0 {
        return None;
    }
    let index = word(body, 4)?;
    let octets = attributes(body.get(IFADDR..)?).find(|(kind, _)| *kind == IFA_ADDRESS)?.1;
    Some(Address6 { index, address: <[u8; 16]>::try_from(octets).ok()?.into(), prefix })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_cut_short_end_the_reading() {
        assert_eq!(next_message(&[]), None);
        assert_eq!(next_message(&[20, 0, 0, 0, 3, 0]), None);
        let mut message = 20u32.to_ne_bytes().to_vec();
        message.extend(NLMSG_DONE.to_ne_bytes());
        message.resize(20, 7);
        assert_eq!(next_message(&message), Some((NLMSG_DONE, &[7u8; 4][..], &[][..])));
        assert_eq!(attributes(&[0, 0, 1, 0, 1, 2]).count(), 0);
        assert_eq!(attributes(&[200, 0, 1, 0]).count(), 0);
        assert_eq!(parse_link(&[0; 5]), None);
        assert_eq!(parse_address(&[2, 24, 0]), None);
        assert_eq!(parse_address6(&[10, 64, 0]), None);
    }

    #[test]
    fn attributes_read_back_what_was_written() {
        let mut body = Vec::new();
        attribute(&mut body, IFLA_IFNAME, b"eth0\0");
        attribute(&mut body, IFLA_ADDRESS, &[0x52, 0x54, 0, 0, 0, 1]);
        let read: Vec<_> = attributes(&body).collect();
        assert_eq!(read, [(IFLA_IFNAME, &b"eth0\0"[..]), (IFLA_ADDRESS, &[0x52, 0x54, 0, 0, 0, 1][..])]);
    }

    #[test]
    fn an_ipv6_address_counts_when_it_can_be_used() {
        let body = |flags: u8| {
            let mut body = vec![FAMILY6, 64, flags, 0];
            body.extend(7u32.to_ne_bytes());
            attribute(&mut body, IFA_ADDRESS, &Ipv6Addr::LOCALHOST.octets());
            body
        };
        let read = Address6 { index: 7, address: Ipv6Addr::LOCALHOST, prefix: 64 };
        assert_eq!(parse_address6(&body(0x80)), Some(read));
        assert_eq!(parse_address6(&body(0xc0)), None, "tentative");
        assert_eq!(parse_address6(&body(0x88)), None, "another has it");
    }

    #[test]
    fn the_kernel_lists_its_interfaces_and_loopback_is_left_out() {
        let links = links().unwrap();
        assert!(links.iter().all(|link| link.name != "lo"), "{links:?}");
        assert!(addresses().unwrap().iter().any(|address| address.address == Ipv4Addr::LOCALHOST));
        assert!(link("no-such-nic").is_err());
    }
}
