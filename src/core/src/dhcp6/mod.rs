//! DHCPv6 (RFC 8415, boot options of RFC 5970) and router advertisements (RFC 4861) on the boot network: enough for firmware
//! that boots over IPv6. The data plane stays IPv4.
//!
//! `wire` octets <-> [`wire::Received`], [`wire::Reply`]; `machine` which MAC asks and which address is its; `boot` what it
//! boots; `decide` the answer; `ra` router advertisements.
//!
//! An address is a function of the MAC alone ([`machine::address`]): nothing is kept, so nothing has to be durable before a
//! REPLY, a stranger can fill nothing, and no address can be two machines'.

pub mod boot;
pub mod decide;
mod ia;
pub mod machine;
pub mod ra;
pub mod wire;

pub use decide::{Decision, Reason, View, decide};

#[cfg(test)]
mod decide_tests;
#[cfg(test)]
mod golden_tests;
