//! A read-only TFTP server (RFC 1350, 2347, 2348, 2349, 7440) for network boot.
//!
//! `wire` octets <-> packets; `transfer` one read transfer as a pure state machine; `server` sockets, files and limits.
//! What a name means is the caller's: see [`Files`]. Writes are refused.

mod content;
pub mod server;
pub mod transfer;
pub mod wire;

pub use content::{Files, Found};
pub use server::{Limits, serve};
