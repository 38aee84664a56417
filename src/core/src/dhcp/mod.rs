//! DHCP (RFC 2131, 2132): what the appliance answers to whom, and what its own uplink client asks.
//!
//! `wire` octets <-> [`wire::Packet`]; `msg` Packet -> [`msg::Request`], [`msg::Reply`] -> Packet; `pxe` which network boot
//! client asks and what it is given; `link` which subnet it is on; `decide` the answer; `address` where it goes (RFC 2131 s4.1);
//! `lease` who holds which address: `table` the table itself, `holder` whose a lease is, `pool` one subnet, `range` its dynamic
//! addresses; `lease_file` the text form; `others` other servers; `conflict` who uses what nobody gave him; `client` the uplink's
//! client.

pub mod address;
pub mod arch;
pub mod client;
pub mod conflict;
pub mod decide;
pub mod holder;
pub mod lease;
pub mod lease_file;
pub mod link;
pub mod msg;
pub mod others;
pub mod pool;
pub mod proxy;
pub mod pxe;
pub mod range;
pub mod seen;
pub mod table;
pub mod wire;

pub use decide::{Decision, Reason, View, decide};

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
pub(crate) mod testing;
