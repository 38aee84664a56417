//! The kernel's neighbour table: who has an on-link address.

use crate::link::{self, LinkError};
use kurrent_core::id::MacAddr;
use std::net::IpAddr;

// linux/rtnetlink.h and linux/neighbour.h
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const NLM_F_CREATE: u16 = 0x400;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NTF_USE: u8 = 1;
/// `NUD_INCOMPLETE | NUD_FAILED`: nobody has answered.
const NUD_NOBODY: u16 = 0x01 | 0x20;
/// Octets of `ndmsg`.
const NDMSG: usize = 12;

/// Who has this address on the link of interface `index`, as far as the kernel has seen. One entry is looked up (Linux 5.0), so
/// it costs the same with a full table.
///
/// # Errors
/// The kernel's.
pub fn find(index: u32, address: IpAddr) -> Result<Option<MacAddr>, LinkError> {
    let mut body = vec![family(address), 0, 0, 0];
    body.extend(index.to_ne_bytes());
    body.resize(NDMSG, 0);
    link::attribute(&mut body, NDA_DST, &octets(address));
    let mut found = None;
    let asked = link::question(RTM_GETNEIGH, &body, |kind, body| {
        if kind == RTM_NEWNEIGH {
            found = parse(body, address);
        }
    });
    match asked {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        asked => asked.map(|()| found).map_err(link::fault(format!("looking for the neighbour {address}"))),
    }
}

/// Has the kernel ask who has this address: a later [`find`] knows. An entry that is there is used, not replaced.
///
/// # Errors
/// The kernel's.
pub fn ask(index: u32, address: IpAddr) -> Result<(), LinkError> {
    let mut body = vec![family(address), 0, 0, 0];
    body.extend(index.to_ne_bytes());
    body.extend([0, 0, NTF_USE, 0]);
    link::attribute(&mut body, NDA_DST, &octets(address));
    link::request(RTM_NEWNEIGH, NLM_F_CREATE, &body).map_err(link::fault(format!("asking for the neighbour {address}")))
}

fn family(address: IpAddr) -> u8 {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    u8::try_from(family).unwrap_or_default()
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// `ndm_family`, padding, `ndm_ifindex`, `ndm_state`, `ndm_flags`, `ndm_type`, attributes.
fn parse(body: &[u8], address: IpAddr) -> Option<MacAddr> {
    let state = u16::from_ne_bytes(*body.get(8..)?.first_chunk()?);
    let find = |wanted| link::attributes(body.get(NDMSG..).unwrap_or_default()).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    if state & NUD_NOBODY != 0 || find(NDA_DST)? != octets(address) {
        return None;
    }
    find(NDA_LLADDR)?.try_into().ok().map(MacAddr).filter(|mac| mac.is_unicast())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(state: u16, address: &[u8], mac: &[u8]) -> Vec<u8> {
        let mut body = vec![10, 0, 0, 0, 2, 0, 0, 0];
        body.extend(state.to_ne_bytes());
        body.extend([0, 0]);
        link::attribute(&mut body, NDA_DST, address);
        link::attribute(&mut body, NDA_LLADDR, mac);
        body
    }

    #[test]
    fn an_entry_tells_the_mac_only_when_somebody_answered() {
        let address: IpAddr = "fe80::9".parse().unwrap();
        let own = octets(address);
        let mac = [2, 0, 0, 0, 0, 9];
        for (state, expected) in [(0x02, Some(MacAddr(mac))), (0x04, Some(MacAddr(mac))), (0x01, None), (0x20, None)] {
            assert_eq!(parse(&entry(state, &own, &mac), address), expected, "{state}");
        }
        assert_eq!(parse(&entry(2, &[0; 16], &mac), address), None);
        assert_eq!(parse(&entry(2, &own, &mac[..4]), address), None);
        let whole = entry(2, &own, &mac);
        for cut in 0..whole.len() - 2 {
            assert_eq!(parse(&whole[..cut], address), None, "{cut}");
        }
    }

    #[test]
    fn the_kernel_is_asked_for_one_address_and_says_when_nobody_has_it() {
        // Of the loopback interface, which is there everywhere.
        assert_eq!(find(1, "::".parse().unwrap()).unwrap(), None);
        assert_eq!(find(1, "192.0.2.1".parse().unwrap()).unwrap(), None);
        assert!(find(u32::MAX >> 1, "192.0.2.1".parse().unwrap()).is_err(), "no such interface");
    }
}
