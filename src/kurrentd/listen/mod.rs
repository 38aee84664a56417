//! One task per protocol.

pub mod dhcp;
pub mod http;
mod quiet;
pub mod tftp;
