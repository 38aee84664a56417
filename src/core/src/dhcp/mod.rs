//! DHCP (RFC 2131, 2132): what the appliance answers to whom, and what its own uplink client asks.
//!
//! `wire` octets <-> [`wire::Packet`]; `msg` Packet -> [`msg::Request`], [`msg::Reply`] -> Packet; `pxe` which network boot
//! client asks and what it is given; `decide` the answer; `address` where it goes (RFC 2131 s4.1); `lease` who holds which
//! address, of which `range`; `lease_file` its text form; `client` the uplink's client.

pub mod address;
pub mod client;
pub mod decide;
pub mod lease;
pub mod lease_file;
pub mod msg;
pub mod pxe;
pub mod range;
pub mod wire;

pub use decide::{Decision, Reason, View, decide};

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod testing;
