//! The daemon: listeners, the ledger writer, the API, the boot plane, storage and the target reconciler.

pub mod api;
pub mod artifacts;
pub mod audit;
pub mod backup;
pub mod boot_link;
pub mod boot_plane;
pub mod challenges;
pub mod config_file;
pub mod credentials;
pub mod daemon;
pub mod dhcp_state;
pub mod lease_orders;
pub mod leases;
pub mod ledger;
pub mod listen;
pub mod neighbours;
pub mod reconcile;
pub mod routes;
pub mod secrets;
pub mod shared;
pub mod state_check;
pub mod status;
pub mod storage;
pub mod timelines;
pub mod uplink;
pub mod yaml;
