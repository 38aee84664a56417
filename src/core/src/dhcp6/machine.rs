//! Which machine asks, and which address is its.
//!
//! A machine is its boot NIC's MAC, as everywhere. A DUID is the last thing to go by: one disk image cloned to many machines
//! carries one DUID, and UEFI's is a UUID that says nothing of the NIC.

use super::wire::{self, Received, Relay, option};
use crate::id::MacAddr;
use crate::origin::network;
use crate::time::Mono;
use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::time::Duration;

/// First 16 bits of the interface identifiers that we give out, `ku` in ASCII; the other 48 are the MAC. Unlike EUI-64 it can
/// not be the address that the machine makes for itself.
const TAG: u16 = 0x6b75;
/// Addresses of one machine, of which it gets the first that it did not decline: `TAG`, `TAG + 1`, …
pub const VARIANTS: u16 = 4;
/// A declined address is tried again after this: whoever had it may have gone.
const DECLINED_FOR: Duration = Duration::from_secs(3600);
/// Machines whose declines are remembered.
const MAX_DECLINED: usize = 1024;
/// DUID-LLT and DUID-LL (RFC 8415 s11.2, s11.4).
const DUID_LLT: u16 = 1;
const DUID_LL: u16 = 3;

/// Whether `address` has the first 64 bits of `own`.
#[must_use]
pub fn in_prefix(own: Ipv6Addr, address: Ipv6Addr) -> bool {
    network(own) == network(address)
}

/// The `variant`th address of a machine in our prefix.
#[must_use]
pub fn address(own: Ipv6Addr, mac: MacAddr, variant: u16) -> Ipv6Addr {
    let identifier = mac.0.iter().fold(u128::from(TAG.wrapping_add(variant % VARIANTS)), |bits, octet| bits << 8 | u128::from(*octet));
    Ipv6Addr::from_bits(network(own).to_bits() | identifier)
}

/// Whose address this is by its form: one that we give out, or one that a machine makes of its MAC (EUI-64, RFC 4291 appendix
/// A), link-local or in our prefix. `None`: it has no such form. On our own link this proves nothing.
#[must_use]
pub fn holder(own: Ipv6Addr, of: Ipv6Addr) -> Option<MacAddr> {
    if !of.is_unicast_link_local() && !in_prefix(own, of) {
        return None;
    }
    let [_, _, _, _, _, _, _, _, a, b, c, d, e, f, g, h] = of.octets();
    let given = in_prefix(own, of) && (TAG..TAG + VARIANTS).contains(&u16::from_be_bytes([a, b]));
    let mac = if given {
        MacAddr([c, d, e, f, g, h])
    } else if [d, e] == [0xff, 0xfe] {
        MacAddr([a ^ 2, b, c, f, g, h])
    } else {
        return None;
    };
    mac.is_unicast().then_some(mac)
}

/// Who asks, of `source`. On our own link `neighbour` is asked for who has that address: its form is the sender's choice. Behind a
/// relay, in this order: what the relay nearest to the client saw (option 79), the client's link-local address, and the DUID.
#[must_use]
pub fn machine(
    received: &Received,
    own: Ipv6Addr,
    source: Ipv6Addr,
    neighbour: impl FnOnce(Ipv6Addr) -> Option<MacAddr>,
) -> Option<MacAddr> {
    let Some(Relay { link_layer, peer, .. }) = received.relays.last() else {
        return neighbour(source);
    };
    link_layer.or_else(|| holder(own, *peer)).or_else(|| of_duid(received.options.bytes(option::CLIENT_ID)?))
}

fn of_duid(duid: &[u8]) -> Option<MacAddr> {
    let (kind, rest) = duid.split_first_chunk::<2>()?;
    match u16::from_be_bytes(*kind) {
        DUID_LL => wire::ethernet(rest),
        DUID_LLT => {
            let (hardware, rest) = rest.split_first_chunk::<2>()?;
            wire::ethernet(&[&hardware[..], rest.get(4..)?].concat())
        }
        _ => None,
    }
}

/// Addresses that machines found in use by others. Lost at a restart: they are found again.
#[derive(Debug, Default)]
pub struct Declined(BTreeMap<MacAddr, (u16, Mono)>);

impl Declined {
    /// The address that a machine gets now; `None`: all of its are in use by others, or the one left is our own.
    #[must_use]
    pub fn usable(&self, own: Ipv6Addr, mac: MacAddr, now: Mono) -> Option<Ipv6Addr> {
        let declined = self.0.get(&mac).filter(|(_, at)| now.since(*at) < DECLINED_FOR).map_or(0, |(declined, _)| *declined);
        (0..VARIANTS).filter(|n| declined & 1 << n == 0).map(|n| address(own, mac, n)).find(|a| *a != own)
    }

    /// A machine found one of its addresses in use; of others' addresses it says nothing that counts.
    pub fn decline(&mut self, own: Ipv6Addr, mac: MacAddr, declined: Ipv6Addr, now: Mono) {
        let Some(variant) = (0..VARIANTS).find(|n| address(own, mac, *n) == declined) else { return };
        self.0.retain(|_, (_, at)| now.since(*at) < DECLINED_FOR);
        if self.0.len() < MAX_DECLINED || self.0.contains_key(&mac) {
            let (all, at) = self.0.entry(mac).or_default();
            (*all, *at) = (*all | 1 << variant, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::{Kind, Options};
    use super::*;
    use proptest::prelude::*;

    const OWN: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 1);
    const MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0x12, 0x34, 0x56]);

    proptest! {
        #[test]
        fn no_address_is_two_machines_and_each_tells_its_machine(a in any::<[u8; 6]>(), b in any::<[u8; 6]>(), n in 0..VARIANTS, m in 0..VARIANTS) {
            let (a, b) = (MacAddr(a), MacAddr(b));
            prop_assert_eq!(address(OWN, a, n) == address(OWN, b, m), (a, n) == (b, m));
            prop_assert_eq!(holder(OWN, address(OWN, a, n)), Some(a).filter(|a| a.is_unicast()));
        }
    }

    #[test]
    fn the_holder_is_read_from_the_address_where_it_says_so() {
        let check = |address: &str, expected| assert_eq!(holder(OWN, address.parse().unwrap()), expected, "{address}");
        check("fd00:77::6b75:5254:12:3456", Some(MAC));
        check("fd00:77::6b78:5254:12:3456", Some(MAC));
        check("fd00:77::6b79:5254:12:3456", None);
        check("fe80::6b75:5254:12:3456", None);
        check("fe80::5054:ff:fe12:3456", Some(MAC));
        check("fd00:77::5054:ff:fe12:3456", Some(MAC));
        check("fd00:78::5054:ff:fe12:3456", None);
        check("fe80::1", None);
    }

    fn received(relays: Vec<Relay>, duid: &[u8]) -> Received {
        let mut options = Options::default();
        options.push(option::CLIENT_ID, duid);
        Received { relays, kind: Kind::Solicit, xid: [0; 3], options }
    }

    /// A cloned disk image carries the DUID of the machine that it was made on.
    #[test]
    fn the_link_counts_before_the_duid() {
        let other = [0, 3, 0, 1, 2, 0, 0, 0, 0, 9];
        let uuid = [&[0, 4][..], &[7; 16]].concat();
        let relay = |peer: &str, link_layer| Relay { hops: 0, link: OWN, peer: peer.parse().unwrap(), interface_id: None, link_layer };
        let check = |relays: Vec<Relay>, duid: &[u8], source: &str, neighbour, expected| {
            let asked = machine(&received(relays, duid), OWN, source.parse().unwrap(), |_| neighbour);
            assert_eq!(asked, expected, "{source} {duid:?}");
        };
        check(vec![], &uuid, "fe80::5054:ff:fe12:3456", Some(MAC), Some(MAC));
        // Its form is the sender's choice: the link counts, and what the link does not know is nobody.
        check(vec![], &other, "fe80::ff:fe00:9", Some(MAC), Some(MAC));
        check(vec![], &uuid, "fe80::5054:ff:fe12:3456", None, None);
        check(vec![], &other, "fe80::1234", Some(MAC), Some(MAC));
        check(vec![], &other, "fe80::1234", None, None);
        check(vec![relay("fe80::1234", Some(MAC))], &other, "fd00:77::2", None, Some(MAC));
        check(vec![relay("fe80::5054:ff:fe12:3456", None)], &other, "fd00:77::2", None, Some(MAC));
        check(vec![relay("fe80::1234", None)], &[0, 3, 0, 1, 0x52, 0x54, 0, 0x12, 0x34, 0x56], "fd00:77::2", None, Some(MAC));
        check(vec![relay("fe80::1234", None)], &[0, 1, 0, 1, 1, 2, 3, 4, 0x52, 0x54, 0, 0x12, 0x34, 0x56], "fd00:77::2", None, Some(MAC));
        check(vec![relay("fe80::1234", None)], &uuid, "fd00:77::2", None, None);
        for cut in 0..14 {
            let duid = &[0, 1, 0, 1, 1, 2, 3, 4, 0x52, 0x54, 0, 0x12, 0x34, 0x56][..cut];
            check(vec![relay("fe80::1234", None)], duid, "fd00:77::2", None, None);
        }
    }

    #[test]
    fn declined_addresses_rest_for_an_hour_and_strangers_can_not_fill_the_memory() {
        let at = |secs| Mono(Duration::from_secs(secs));
        let mut declined = Declined::default();
        for n in 0..VARIANTS {
            assert_eq!(declined.usable(OWN, MAC, at(0)), Some(address(OWN, MAC, n)));
            declined.decline(OWN, MAC, address(OWN, MacAddr([2, 0, 0, 0, 0, 9]), 0), at(0));
            declined.decline(OWN, MAC, address(OWN, MAC, n), at(0));
        }
        assert_eq!(declined.usable(OWN, MAC, at(3599)), None);
        assert_eq!(declined.usable(OWN, MAC, at(3600)), Some(address(OWN, MAC, 0)));
        for n in 0..5000_u32 {
            let [_, b, c, d] = n.to_be_bytes();
            let mac = MacAddr([2, 0, 0, b, c, d]);
            declined.decline(OWN, mac, address(OWN, mac, 0), at(1));
        }
        assert_eq!(declined.0.len(), MAX_DECLINED);
    }

    #[test]
    fn our_own_address_is_nobodys() {
        let own = address(OWN, MAC, 0);
        assert_eq!(Declined::default().usable(own, MAC, Mono::default()), Some(address(OWN, MAC, 1)));
    }
}
