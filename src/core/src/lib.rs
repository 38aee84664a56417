//! Every decision of the appliance as plain functions of their inputs.
//!
//! Nothing here opens a socket or a file, reads a clock or a random number, starts a thread or logs: callers hand in
//! packets, views and [`time::Now`], and act on what comes back. `clippy.toml` and `tests/tidy.rs` hold that line.

pub mod access;
pub mod boot;
pub mod config;
pub mod dhcp;
pub mod dhcp6;
pub mod explain;
pub mod gpt;
pub mod http;
pub mod id;
pub mod init;
pub mod ipxe;
pub mod ledger;
pub mod migrate;
pub mod modules;
pub mod origin;
pub mod placement;
pub mod policy;
pub mod rotation;
pub mod stage1;
pub mod target;
pub mod time;
pub mod timeline;
pub mod tls;
