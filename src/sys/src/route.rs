//! IPv4 routes of this network namespace, by rtnetlink.

use crate::link::{self, LinkError};
use kurrent_core::config::Route;
use std::io;
use std::net::Ipv4Addr;

// linux/rtnetlink.h
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_STATIC: u8 = 4;
const RTN_UNICAST: u8 = 1;
/// Octets of `rtmsg`.
const RTMSG: usize = 12;

/// How the kernel would send something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The interface's index.
    pub index: u32,
    /// The next hop; absent for what is on the link itself.
    pub via: Option<Ipv4Addr>,
}

/// Sets the default route; replaces the one that is there.
///
/// # Errors
/// The kernel's: `via` is not on a link of ours, say.
pub fn set_default(index: u32, via: Ipv4Addr) -> Result<(), LinkError> {
    set(index, Route { network: Ipv4Addr::UNSPECIFIED, prefix: 0, via })
}

/// Sets a route; replaces one to the same network.
///
/// # Errors
/// As [`set_default`].
pub fn set(index: u32, Route { network, prefix, via }: Route) -> Result<(), LinkError> {
    // rtmsg: family, two prefix lengths, tos, table, protocol, scope (universe), type, flags.
    let mut body = vec![link::family(), prefix, 0, 0, RT_TABLE_MAIN, RTPROT_STATIC, 0, RTN_UNICAST, 0, 0, 0, 0];
    if prefix > 0 {
        link::attribute(&mut body, RTA_DST, &network.octets());
    }
    link::attribute(&mut body, RTA_GATEWAY, &via.octets());
    link::attribute(&mut body, RTA_OIF, &index.to_ne_bytes());
    let operation = format!("setting the route to {network}/{prefix} via {via}");
    link::request(RTM_NEWROUTE, link::NLM_F_CREATE_REPLACE, &body).map_err(link::fault(operation))
}

/// The main table's routes that have a next hop, each with its interface's index.
///
/// # Errors
/// The kernel's.
pub fn list() -> Result<Vec<(Route, u32)>, LinkError> {
    let mut body = [0; RTMSG];
    body[0] = link::family();
    let mut found = Vec::new();
    link::dump(RTM_GETROUTE, &body, |kind, body| {
        if kind == RTM_NEWROUTE {
            found.extend(parse(body));
        }
    })
    .map_err(link::fault("listing routes"))?;
    Ok(found)
}

/// How the kernel would send to an address now; `None` when it would not.
///
/// # Errors
/// The kernel's, other than that there is no route.
pub fn way_to(address: Ipv4Addr) -> Result<Option<Way>, LinkError> {
    let mut body = vec![0; RTMSG];
    body[..2].copy_from_slice(&[link::family(), 32]);
    link::attribute(&mut body, RTA_DST, &address.octets());
    let mut found = None;
    let asked = link::question(RTM_GETROUTE, &body, |kind, body| {
        if kind == RTM_NEWROUTE {
            found = parse_way(body);
        }
    });
    match asked {
        Ok(()) => Ok(found),
        Err(none) if is_no_route(&none) => Ok(None),
        Err(error) => Err(link::fault(format!("looking for the route to {address}"))(error)),
    }
}

/// No route, or one of the types `unreachable`, `prohibit` and `blackhole`.
fn is_no_route(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL))
}

fn parse(body: &[u8]) -> Option<(Route, u32)> {
    let (&family, &prefix, &table, &kind) = (body.first()?, body.get(1)?, body.get(4)?, body.get(7)?);
    if family != link::family() || table != RT_TABLE_MAIN || kind != RTN_UNICAST {
        return None;
    }
    let way = parse_way(body)?;
    let network = address(body, RTA_DST).unwrap_or(Ipv4Addr::UNSPECIFIED);
    Some((Route { network, prefix, via: way.via? }, way.index))
}

fn parse_way(body: &[u8]) -> Option<Way> {
    let index = link::word(find(body, RTA_OIF)?, 0)?;
    Some(Way { index, via: address(body, RTA_GATEWAY) })
}

fn find(body: &[u8], wanted: u16) -> Option<&[u8]> {
    link::attributes(body.get(RTMSG..)?).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

fn address(body: &[u8], wanted: u16) -> Option<Ipv4Addr> {
    find(body, wanted).and_then(|value| <[u8; 4]>::try_from(value).ok()).map(Ipv4Addr::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(prefix: u8, table: u8, kind: u8, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![2, prefix, 0, 0, table, RTPROT_STATIC, 0, kind, 0, 0, 0, 0];
        attributes.iter().for_each(|(kind, value)| link::attribute(&mut body, *kind, value));
        body
    }

    #[test]
    fn only_the_main_table_s_routes_by_a_next_hop_count() {
        let (index, via) = (7u32.to_ne_bytes(), [10, 77, 0, 254]);
        let all: &[(u16, &[u8])] = &[(RTA_DST, &[10, 78, 0, 0]), (RTA_GATEWAY, &via), (RTA_OIF, &index)];
        let route = Route { network: [10, 78, 0, 0].into(), prefix: 24, via: via.into() };
        assert_eq!(parse(&message(24, RT_TABLE_MAIN, RTN_UNICAST, all)), Some((route, 7)));
        assert_eq!(parse(&message(24, 255, RTN_UNICAST, all)), None, "another table");
        assert_eq!(parse(&message(24, RT_TABLE_MAIN, 7, all)), None, "unreachable");
        assert_eq!(parse(&message(24, RT_TABLE_MAIN, RTN_UNICAST, &all[2..])), None, "on the link");
        let default = Route { network: Ipv4Addr::UNSPECIFIED, prefix: 0, via: via.into() };
        assert_eq!(parse(&message(0, RT_TABLE_MAIN, RTN_UNICAST, &all[1..])), Some((default, 7)));
        assert_eq!(parse(&[2, 24, 0]), None, "cut short");
    }

    #[test]
    fn the_kernel_says_how_it_would_send() {
        assert_eq!(way_to(Ipv4Addr::LOCALHOST).unwrap().map(|way| way.via), Some(None));
    }
}
