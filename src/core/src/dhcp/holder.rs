//! What a lease goes by (`spec.dhcp.leaseKey`).
//!
//! By MAC, the default, firmware, iPXE and operating system of one machine get one address, whatever they call themselves
//! (warewulf 802, understack 1928), and machines with equal client-ids do not share one (talos 7694, FOG 196).
//!
//! By client-id, each system of a machine gets an address of its own.
//! DEVIATION(RFC 2131 s4.2): the identifier names a client *of that MAC*. Cloned systems have equal identifiers, identifiers can
//! be forged like MACs, and a machine that is not the one of the ledger must not get at its address.

use super::lease::Leases;
use super::pool::SubnetId;
use crate::config::LeaseKey;
use crate::id::MacAddr;
use sha2::{Digest, Sha256};
use std::fmt;

/// Clients of one machine; all further ones are one with that which sends no identifier. A forger of a device's MAC takes so
/// many addresses and no more.
const MAX_CLIENTS: usize = 8;

/// SHA-256 of option 61, the first half: of a fixed size, whatever was sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub [u8; 16]);

impl ClientId {
    fn of(option: &[u8]) -> Option<Self> {
        if option.is_empty() {
            return None;
        }
        Sha256::digest(option).first_chunk::<16>().copied().map(Self)
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whose a lease is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    /// The machine.
    pub mac: MacAddr,
    /// Which of its clients, when leases go by client-id.
    pub id: Option<ClientId>,
}

impl From<MacAddr> for Holder {
    fn from(mac: MacAddr) -> Self {
        Self { mac, id: None }
    }
}

impl Holder {
    /// Who asks in this subnet. A reservation is the machine's, so its clients are one there.
    #[must_use]
    pub fn of(leases: &Leases, key: LeaseKey, mac: MacAddr, option: Option<&[u8]>, subnet: SubnetId) -> Self {
        let machine = Self::from(mac);
        let id = match key {
            LeaseKey::Mac => None,
            LeaseKey::ClientId => option.and_then(ClientId::of),
        };
        if id.is_none() || leases.reservation(mac, subnet).is_some() {
            return machine;
        }
        let one = Self { mac, id };
        let known = leases.address_of(one, subnet).is_some();
        if known || leases.count_of(mac, MAX_CLIENTS) < MAX_CLIENTS { one } else { machine }
    }
}

#[cfg(test)]
#[path = "holder_tests.rs"]
mod tests;
