//! Adapters to Linux, without policy. Each takes its root, path or device as an argument, so that tests can point it
//! at a folder of their own.

pub mod arp;
pub mod block;
pub mod clock;
pub mod configfs;
pub mod entropy;
pub mod fabrics;
pub mod icmp6;
pub mod kmod;
pub mod link;
pub mod mount;
pub mod neighbour;
pub mod packet;
pub mod power;
pub mod route;
pub mod sockets;
pub mod store;
