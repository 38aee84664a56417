//! What a machine that has proven itself is given, and the variables by which scripts hear of it.

use crate::id::{Nqn, WorkerId};
use crate::ledger::Disk;
use crate::ledger::schema::MENU_REBOOT;
use std::net::Ipv4Addr;

/// What a proven machine boots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// As whom.
    pub worker: WorkerId,
    /// From which disk.
    pub disk: Disk,
    /// The device's epoch.
    pub epoch: u64,
    /// Host NQN of this epoch.
    pub host: Nqn,
    /// Base of all NQNs.
    pub nqn_base: Nqn,
    /// Where the disk is.
    pub storager: Ipv4Addr,
    /// How long a menu would wait, milliseconds; for people's own scripts.
    pub menu_timeout_ms: u32,
}

impl Grant {
    /// The boot variables under the names that the existing Kurrent scripts know, in their order. None is a secret.
    #[must_use]
    pub fn variables(&self) -> [(&'static str, String); 10] {
        [
            ("hostname", self.worker.to_string()),
            ("os", self.disk.os.to_string()),
            ("os-version", self.disk.os_version.to_string()),
            ("os-tag", self.disk.os_tag.to_string()),
            ("base-nqn", self.nqn_base.to_string()),
            ("storager-ip", self.storager.to_string()),
            ("hostnqn", self.host.to_string()),
            ("method", "nvme".to_owned()),
            ("menu-default", self.disk.os_tag.to_string()),
            ("menu-timeout", self.menu_timeout_ms.to_string()),
        ]
    }
}

/// What a script is told of a Worker without a disk that boots (K21): it reboots rather than booting anything.
#[must_use]
pub fn no_disk_variables() -> [(&'static str, String); 2] {
    [("menu-default", MENU_REBOOT.to_owned()), ("menu-timeout", "0".to_owned())]
}
