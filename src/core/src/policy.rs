//! Who is met with silence. Every path asks here: DHCP on 67 and 4011, BOOTP, INFORM, DHCPv6, TFTP, HTTP, scripts, data plane.

use crate::id::MacAddr;
use crate::ledger::Ledger;

/// Why a machine gets no answer to anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Silence {
    /// The operator revoked it.
    Revoked,
    /// It is not in the ledger, and `spec.dhcp.unknownDevices` is off.
    Unknown,
}

/// Whether a machine is met with silence. `unknown_devices`: whether machines that are not in the ledger are served
/// (`spec.dhcp.unknownDevices`). The MAC is whatever the path knows: `chaddr`, or who holds the source address; a machine of
/// which no path knows the MAC can not be judged, and what it proves by its signature is judged by `boot`.
#[must_use]
pub fn silence(ledger: &Ledger, unknown_devices: bool, mac: MacAddr) -> Option<Silence> {
    if ledger.is_revoked(mac) {
        return Some(Silence::Revoked);
    }
    (!unknown_devices && ledger.device(mac).is_none()).then_some(Silence::Unknown)
}
