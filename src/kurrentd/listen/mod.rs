//! One task per protocol.

pub mod dhcp;
pub mod http;
pub mod tftp;
