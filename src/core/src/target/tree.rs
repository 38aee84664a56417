//! The target's configuration as data: desired (from ledger, configuration and credentials) and observed (from configfs).

use super::secret::Secret;
use crate::config::Config;
use crate::id::{Nqn, WorkerId, host_nqn};
use crate::ledger::{Disk, Ledger};
use imbl::{OrdMap, OrdSet};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use uuid::Uuid;

/// The one namespace of every subsystem.
pub const NAMESPACE_ID: u32 = 1;
/// `dhchap_hash` of every host.
pub const DHCHAP_HASH: &str = "hmac(sha256)";
/// `dhchap_dhgroup` of every host: the smallest group of RFC 7919 that the kernel has; larger ones cost seconds on small machines.
pub const DHCHAP_GROUP: &str = "ffdhe2048";

/// What the kernel should export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// Prefix of all names that are ours; everything else in the tree belongs to somebody else and is left alone.
    pub base: String,
    /// Where the port listens; absent: nothing is exported.
    pub port: Option<Port>,
    /// Allowed hosts by NQN.
    pub hosts: BTreeMap<String, Keys>,
    /// Subsystems by NQN.
    pub subsystems: BTreeMap<String, Subsystem>,
}

/// Address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The appliance's address on the boot network.
    pub address: Ipv4Addr,
    /// TCP port.
    pub service: u16,
}

/// The secrets of one host, both directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// The host proves itself with it.
    pub host: Secret,
    /// The target proves itself with it.
    pub controller: Secret,
}

/// One exported disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subsystem {
    /// `attr_serial`; fixed before a host discovers the subsystem.
    pub serial: String,
    /// The one host that may connect.
    pub host: String,
    /// Backing file.
    pub path: PathBuf,
    /// Namespace UUID.
    pub uuid: Uuid,
    /// Namespace NGUID.
    pub nguid: Uuid,
}

/// What the kernel exports now. Persistent maps: a tree that differs in one disk costs one disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Our port, when it is there.
    pub port: Option<ObservedPort>,
    /// All hosts.
    pub hosts: OrdMap<String, ObservedHost>,
    /// All subsystems.
    pub subsystems: OrdMap<String, ObservedSubsystem>,
}

/// A port as read back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedPort {
    /// `addr_trtype`, `addr_adrfam`, `addr_traddr`, `addr_trsvcid`.
    pub address: [String; 4],
    /// Linked subsystems.
    pub links: OrdSet<String>,
}

impl Port {
    /// What configfs says of a port with this address.
    #[must_use]
    pub fn attributes(&self) -> [String; 4] {
        ["tcp".into(), "ipv4".into(), self.address.to_string(), self.service.to_string()]
    }
}

/// A host as read back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedHost {
    /// Its secrets, when both are set and well formed.
    pub keys: Option<Keys>,
    /// `dhchap_hash` and `dhchap_dhgroup`.
    pub method: [String; 2],
}

impl ObservedHost {
    /// A host that has these keys and our method.
    #[must_use]
    pub fn with(keys: &Keys) -> Self {
        Self { keys: Some(keys.clone()), method: [DHCHAP_HASH.to_owned(), DHCHAP_GROUP.to_owned()] }
    }
}

/// A subsystem as read back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedSubsystem {
    /// `attr_allow_any_host` is not 0.
    pub allow_any: bool,
    /// `attr_serial`.
    pub serial: String,
    /// `allowed_hosts`.
    pub allowed: BTreeSet<String>,
    /// Namespaces by number.
    pub namespaces: BTreeMap<u32, ObservedNamespace>,
}

/// A namespace as read back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedNamespace {
    /// `enable`.
    pub enabled: bool,
    /// `device_path`.
    pub path: String,
    /// `device_uuid`.
    pub uuid: Uuid,
    /// `device_nguid`.
    pub nguid: Uuid,
    /// `buffered_io`: gives read errors on btrfs, so it must be off.
    pub buffered: bool,
}

/// The serial number of a disk: its tag, which is as unique and as lasting as a serial number should be (at most 20 octets).
#[must_use]
pub fn serial(disk: &Disk) -> String {
    disk.os_tag.to_string()
}

impl Desired {
    /// What `ledger` asks for: every disk of every Worker with a bound device, allowed to this epoch's host only. All its disks,
    /// not only the default one: choosing another default must not pull the root from under a running machine.
    /// Workers whose keys are not there yet are left out; `keys` says so by `None`.
    #[must_use]
    pub fn from_ledger(config: &Config, ledger: &Ledger, keys: impl Fn(&WorkerId, u64) -> Option<Keys>) -> Self {
        Self::of_workers(config, ledger, ledger.workers.keys(), keys)
    }

    /// The part of [`Desired::from_ledger`] that is of these Workers; those that are not in the ledger have none.
    #[must_use]
    pub fn of_workers<'a>(
        config: &Config,
        ledger: &Ledger,
        workers: impl IntoIterator<Item = &'a WorkerId>,
        keys: impl Fn(&WorkerId, u64) -> Option<Keys>,
    ) -> Self {
        let mut desired = Self { base: format!("{}:", config.agent.nqn_base), ..Self::default() };
        desired.port = Some(Port { address: config.boot_network.address, service: config.agent.target_port });
        for id in workers {
            let Some(worker) = ledger.workers.get(id) else { continue };
            let Some(device) = ledger.device_of(id) else { continue };
            if worker.disks.is_empty() {
                continue;
            }
            let Some(keys) = keys(id, device.epoch) else { continue };
            let host = host_nqn(&config.agent.nqn_base, id, device.epoch).to_string();
            for disk in &worker.disks {
                desired.subsystems.insert(disk.nqn.to_string(), subsystem(config, disk, &host));
            }
            desired.hosts.insert(host, keys);
        }
        desired
    }

    /// Whether a name in the tree is ours to change.
    #[must_use]
    pub fn owns(&self, name: &str) -> bool {
        name.starts_with(&self.base)
    }
}

fn subsystem(config: &Config, disk: &Disk, host: &str) -> Subsystem {
    Subsystem {
        serial: serial(disk),
        host: host.to_owned(),
        path: config.agent.disk_dir.join(disk.filename.as_str()),
        uuid: disk.uuid,
        nguid: disk.uuid,
    }
}

impl Observed {
    /// The part of the tree that these names are: the port with those of its links, hosts and subsystems.
    #[must_use]
    pub fn part(&self, names: &BTreeSet<String>) -> Self {
        let port = self.port.as_ref().map(|port| ObservedPort {
            address: port.address.clone(),
            links: names.iter().filter(|n| port.links.contains(*n)).cloned().collect(),
        });
        let hosts = names.iter().filter_map(|n| Some((n.clone(), self.hosts.get(n)?.clone()))).collect();
        let subsystems = names.iter().filter_map(|n| Some((n.clone(), self.subsystems.get(n)?.clone()))).collect();
        Self { port, hosts, subsystems }
    }

    /// Whether the kernel lets `host`, and only it, reach this subsystem now, with these keys.
    #[must_use]
    pub fn is_exported(&self, subsystem: &Nqn, host: &Nqn, keys: &Keys) -> bool {
        let linked = self.port.as_ref().is_some_and(|p| p.links.contains(subsystem.as_str()));
        let hosted = self.hosts.get(host.as_str()).is_some_and(|h| h.keys.as_ref() == Some(keys));
        let open = self.subsystems.get(subsystem.as_str()).is_some_and(|s| {
            !s.allow_any
                && s.allowed.len() == 1
                && s.allowed.contains(host.as_str())
                && s.namespaces.get(&NAMESPACE_ID).is_some_and(|n| n.enabled)
        });
        linked && hosted && open
    }
}
