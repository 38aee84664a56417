//! The worker's side after the kernel: what it is told (sealed), and what it does next.

use crate::id::{MacAddr, Nqn, WorkerId};
use std::net::{Ipv4Addr, SocketAddrV4};
use zeroize::Zeroizing;

/// Everything stage-1 needs to become its Worker. Travels sealed; no `Debug`, because it holds secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Hostname to set.
    pub worker: WorkerId,
    /// The NIC that booted.
    pub mac: MacAddr,
    /// The address it has from DHCP; kept, no second DHCP.
    pub address: Ipv4Addr,
    /// Prefix length.
    pub prefix: u8,
    /// Default router, if DHCP gives one.
    pub gateway: Option<Ipv4Addr>,
    /// Resolvers.
    pub dns: Vec<Ipv4Addr>,
    /// Boot plane, for reports.
    pub server: SocketAddrV4,
    /// This boot's name.
    pub boot_id: String,
    /// Key of [`kurrent_handshake::report_proof`].
    pub report_key: Zeroizing<[u8; 32]>,
    /// NVMe/TCP target.
    pub target: SocketAddrV4,
    /// Subsystem NQN of the disk.
    pub subsystem: Nqn,
    /// Host NQN of this epoch.
    pub host: Nqn,
    /// NVMe host identifier.
    pub host_id: uuid::Uuid,
    /// `DHHC-1:01:…:` the host proves itself with.
    pub host_secret: Zeroizing<String>,
    /// `DHHC-1:01:…:` the target proves itself with.
    pub controller_secret: Zeroizing<String>,
    /// Namespace to wait for.
    pub namespace: uuid::Uuid,
    /// A shell on failure, when the operator enabled it.
    pub debug_shell: bool,
}
