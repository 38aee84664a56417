//! A read-only TFTP server for network boot (RFC 1350, 2347, 2348, 2349, 7440), for IPv4 and IPv6.
//!
//! ```no_run
//! # use std::{net::IpAddr, sync::Arc};
//! # use tftp_server::{Files, Found, Options, Server, serve};
//! struct Hello;
//! impl Files for Hello {
//!     fn find(&self, _client: IpAddr, name: Option<&str>) -> Found {
//!         if name == Some("hello") { Found::Octets(b"world".to_vec()) } else { Found::Nothing }
//!     }
//! }
//! # async fn run() -> std::io::Result<()> {
//! let server = Server::bind(Options::new(IpAddr::from([192, 0, 2, 1])))?;
//! serve(server, Arc::new(Hello)).await
//! # }
//! ```
//!
//! One thread (`reactor`) sends and receives for all transfers; it never waits for a disk: what is not in the page cache, and what a
//! name means, is left to a few other threads (`pool`). `wire` is octets <-> packets, `transfer` one read transfer as a pure state machine,
//! `table` who has a place, `content` what is sent. What a name means is the caller's: see [`Files`]. Writes are refused.
//!
//! What strangers can do is bounded: places ([`Limits`]), memory (64 KiB a place), and octets sent per octet received
//! (before the first ACK one packet, three times at most). A place that was taken by a forged request gives way to a new request.

mod content;
mod pool;
mod reactor;
mod sending;
mod server;
mod socket;
mod table;
pub mod transfer;
pub mod wire;

pub use content::{Files, Found};
pub use server::{Limits, Options, Ports, Server, serve};
