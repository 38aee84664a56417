//! Identity associations (RFC 8415 s21.4 to s21.6, s21.21): what a client holds or wants, and what it is given.

use super::wire::{Options, option};
use std::net::Ipv6Addr;

/// `NoAddrsAvail` (RFC 8415 s21.13).
pub const NO_ADDRESSES: u16 = 2;
/// `NotOnLink`.
pub const NOT_ON_LINK: u16 = 4;
/// `NoPrefixAvail`.
pub const NO_PREFIX: u16 = 6;
/// `Success`.
pub const SUCCESS: u16 = 0;
/// Identity associations of each kind that are answered in one message: clients of one NIC have one. What is more is as if it were not
/// there; many small ones, each answered with a reason, would make us say four times what we hear to whoever was named as the sender.
const MAX_IAS: usize = 2;

/// An `IA_NA` of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The client's number for it.
    pub iaid: [u8; 4],
    /// The addresses in it.
    pub addresses: Vec<Ipv6Addr>,
}

/// All `IA_NA` options that can be read.
pub fn wanted(options: &Options) -> Vec<Wanted> {
    let read = |octets: &[u8]| {
        let (iaid, rest) = octets.split_first_chunk::<4>()?;
        let inner = Options::read(rest.get(8..)?).ok()?;
        let addresses = inner.all(option::IA_ADDR).filter_map(|a| a.first_chunk::<16>()).map(|a| Ipv6Addr::from(*a)).collect();
        Some(Wanted { iaid: *iaid, addresses })
    };
    options.all(option::IA_NA).take(MAX_IAS).filter_map(read).collect()
}

/// An `IA_NA` with addresses and their preferred lifetimes in seconds; 0 takes an address away. Valid is twice preferred.
pub fn given(iaid: [u8; 4], addresses: &[(Ipv6Addr, u32)]) -> Vec<u8> {
    let preferred = addresses.iter().map(|(_, secs)| *secs).max().unwrap_or(0);
    // RFC 8415 s21.4: half, and four fifths, of the preferred lifetime.
    let mut octets = [iaid, (preferred / 2).to_be_bytes(), (preferred / 5 * 4).to_be_bytes()].concat();
    let mut inner = Options::default();
    for (address, secs) in addresses {
        inner.push(option::IA_ADDR, &[&address.octets()[..], &secs.to_be_bytes(), &secs.saturating_mul(2).to_be_bytes()].concat());
    }
    octets.extend(inner.encode());
    octets
}

/// An identity association of the `IA_NA` or `IA_PD` form with nothing but a reason.
pub fn refused(iaid: [u8; 4], code: u16) -> Vec<u8> {
    let mut inner = Options::default();
    inner.push(option::STATUS_CODE, &status(code));
    [&iaid[..], &[0; 8], &inner.encode()].concat()
}

/// A status code option's value. Without words: nobody shows them, and they would be most of an answer.
pub fn status(code: u16) -> [u8; 2] {
    code.to_be_bytes()
}

/// Refuses what is never given: temporary addresses and prefixes.
pub fn refuse_others(asked: &Options, reply: &mut Options) {
    for iaid in asked.all(option::IA_TA).take(MAX_IAS).filter_map(|o| o.first_chunk::<4>()) {
        let mut inner = Options::default();
        inner.push(option::STATUS_CODE, &status(NO_ADDRESSES));
        reply.push(option::IA_TA, &[&iaid[..], &inner.encode()].concat());
    }
    for iaid in asked.all(option::IA_PD).take(MAX_IAS).filter_map(|o| o.first_chunk::<4>()) {
        reply.push(option::IA_PD, &refused(*iaid, NO_PREFIX));
    }
}
