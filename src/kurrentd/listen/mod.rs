//! One task per protocol, and the limits that their peers have.

pub mod dhcp;
pub mod dhcp6;
pub mod http;
pub mod limits;
mod quiet;
pub mod ra;
mod revoked;
pub mod rivals;
pub mod tftp;
