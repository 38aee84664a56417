//! Whose connections a cut must have ended, from what is known of where devices are. Found out only when a pass cuts.

use super::fence::Whose;
use crate::credentials::Record;
use crate::shared::LeaseSnapshot;
use kurrent_core::id::{MacAddr, Nqn, host_nqn};
use kurrent_core::target::tree::{Desired, Keys, Observed};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

/// Where every host is known to be, by its name: by what its boots were granted, and by its device's lease.
#[derive(Default)]
pub(super) struct Addresses(BTreeMap<String, Vec<Known>>);

struct Known {
    keys: Option<Keys>,
    addresses: BTreeSet<Ipv4Addr>,
}

impl Addresses {
    /// `unrecorded`: hosts of which only the ledger tells whose they are.
    pub(super) fn new(base: &Nqn, records: &[Record], unrecorded: Vec<(String, MacAddr)>, leases: &LeaseSnapshot) -> Self {
        let mut leased: BTreeMap<MacAddr, Vec<Ipv4Addr>> = BTreeMap::new();
        for (address, mac) in leases.iter() {
            leased.entry(mac).or_default().push(address);
        }
        let leased = |mac: MacAddr| leased.get(&mac).into_iter().flatten().copied();
        let mut by_host: BTreeMap<String, Vec<Known>> = BTreeMap::new();
        for record in records {
            let host = host_nqn(base, &record.worker_id, record.epoch).to_string();
            let addresses = record.addresses.iter().copied().chain(leased(record.device)).collect();
            by_host.entry(host).or_default().push(Known { keys: Some(record.keys()), addresses });
        }
        for (host, device) in unrecorded {
            by_host.entry(host).or_default().push(Known { keys: None, addresses: leased(device).collect() });
        }
        Self(by_host)
    }

    /// Those of the host that the kernel knows by this name and these keys: two devices may have had one name in turn.
    fn of(&self, host: &str, keys: Option<&Keys>) -> BTreeSet<Ipv4Addr> {
        let named = self.0.get(host).into_iter().flatten().filter(|k| k.keys.as_ref().is_none_or(|known| Some(known) == keys));
        named.flat_map(|k| &k.addresses).copied().collect()
    }
}

/// What tells the cuts of one pass whose connections they must have ended.
pub(super) struct Cuts<'a> {
    desired: &'a Desired,
    before: &'a Observed,
    known: Addresses,
    /// Addresses of hosts that keep their access.
    staying: Option<Arc<BTreeSet<Ipv4Addr>>>,
}

impl<'a> Cuts<'a> {
    pub(super) fn new(desired: &'a Desired, before: &'a Observed, known: Addresses) -> Self {
        Self { desired, before, known, staying: None }
    }

    fn keys(&self, host: &str) -> Option<&Keys> {
        self.before.hosts.get(host).and_then(|h| h.keys.as_ref())
    }

    fn stays(&self, host: &str) -> bool {
        self.desired.hosts.get(host).is_some_and(|wanted| self.keys(host) == Some(wanted))
    }

    fn staying(&mut self) -> Arc<BTreeSet<Ipv4Addr>> {
        if let Some(found) = &self.staying {
            return Arc::clone(found);
        }
        let hosts = self.before.hosts.keys().filter(|h| self.stays(h));
        let found = Arc::new(hosts.flat_map(|h| self.known.of(h, self.keys(h))).collect());
        self.staying = Some(Arc::clone(&found));
        found
    }

    /// Those of the hosts that lose `subsystem`. `unseen`: it was cut without us, so that others than those still on its list may
    /// have had it.
    pub(super) fn whose(&mut self, subsystem: &str, unseen: bool) -> Whose {
        let mut whose = Whose { strangers: unseen, ..Whose::default() };
        if let Some(is) = self.before.subsystems.get(subsystem) {
            whose.strangers |= is.allow_any || is.allowed.is_empty();
            for host in is.allowed.iter().filter(|h| !self.stays(h)) {
                let addresses = self.known.of(host, self.keys(host));
                whose.strangers |= addresses.is_empty();
                whose.addresses.extend(addresses);
            }
        }
        if whose.strangers {
            whose.staying = self.staying();
        }
        whose
    }
}
