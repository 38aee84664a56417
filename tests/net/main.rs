//! The network layer: the real `kurrentd` in a network namespace, independent clients in others (`make test-net`, as root).
//!
//! Whoever asks for these tests and cannot run them (no privilege, a client program missing) gets a failure, never a pass.

mod attack;
mod concepts;
mod confined;
mod crash;
mod dhcp;
mod dhcp_clients;
mod dhcp_conflicts;
mod dhcp_rivals;
mod dhcp_wire;
mod explain;
mod faults;
mod fuzz;
mod holders;
mod http;
mod https;
mod ipv6;
mod keys;
mod migrate;
mod net;
mod people;
mod proxy;
mod raw_dhcp;
mod raw_tftp;
mod routes;
mod silence;
mod storage;
mod tftp;
mod uplink;
