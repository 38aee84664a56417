//! What every task of the daemon is handed: snapshots to read, and the few ways to make something happen.

use crate::audit::Audit;
use crate::boot_plane::Peer;
use crate::credentials::CredentialStore;
use crate::ledger::LedgerHandle;
use crate::people::PeopleStore;
use crate::reconcile::TargetHandle;
use crate::storage::Storage;
use crate::timelines::Timelines;
use anyhow::Context;
use arc_swap::ArcSwap;
use imbl::OrdMap;
use kurrent_core::config::{Config, DhcpMode};
use kurrent_core::id::MacAddr;
use kurrent_core::policy::{self, Silence};
use kurrent_sys::clock;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// Which machine has, or last had, which address, published by the lease owner after every commit. A copy costs nothing, and
/// a change no more with many leases than with few.
#[derive(Clone, Debug, Default)]
pub struct LeaseSnapshot {
    holders: OrdMap<Ipv4Addr, MacAddr>,
    /// The address that a machine was given last; in another subnet it may have another.
    addresses: OrdMap<MacAddr, Ipv4Addr>,
}

impl LeaseSnapshot {
    /// Who holds an address.
    #[must_use]
    pub fn holder(&self, address: Ipv4Addr) -> Option<MacAddr> {
        self.holders.get(&address).copied()
    }

    /// The address that a machine was given last.
    #[must_use]
    pub fn address_of(&self, mac: MacAddr) -> Option<Ipv4Addr> {
        self.addresses.get(&mac).copied()
    }

    /// All, by address.
    pub fn iter(&self) -> impl Iterator<Item = (Ipv4Addr, MacAddr)> {
        self.holders.iter().map(|(address, mac)| (*address, *mac))
    }

    /// A machine was given an address.
    pub fn give(&mut self, address: Ipv4Addr, mac: MacAddr) {
        self.take(address);
        self.holders.insert(address, mac);
        self.addresses.insert(mac, address);
    }

    /// An address is nobody's any more.
    pub fn take(&mut self, address: Ipv4Addr) {
        if let Some(mac) = self.holders.remove(&address)
            && self.address_of(mac) == Some(address)
        {
            self.addresses.remove(&mac);
        }
    }
}

impl FromIterator<(Ipv4Addr, MacAddr)> for LeaseSnapshot {
    fn from_iter<T: IntoIterator<Item = (Ipv4Addr, MacAddr)>>(all: T) -> Self {
        let mut snapshot = Self::default();
        all.into_iter().for_each(|(address, mac)| snapshot.give(address, mac));
        snapshot
    }
}

/// Handed to every task; cheap to clone through `Arc`.
pub struct Shared {
    /// The checked `kurrent.yaml`.
    pub config: Config,
    /// Snapshots of, and changes to, the ledgers.
    pub ledger: LedgerHandle,
    /// Address to MAC, for TFTP and HTTP, whose clients have only an address: our leases, or as a proxy what was seen of others'.
    pub leases: ArcSwap<LeaseSnapshot>,
    /// Who answers on our own link.
    pub neighbours: crate::neighbours::Neighbours,
    /// The way to the owner of the lease table.
    pub lease_orders: crate::lease_orders::LeaseOrders,
    /// What the DHCP tasks know besides leases.
    pub dhcp: crate::dhcp_state::DhcpState,
    /// Boot timelines.
    pub timelines: Timelines,
    /// The audit.
    pub audit: Audit,
    /// Data plane secrets.
    pub credentials: CredentialStore,
    /// Who may use the API.
    pub people: PeopleStore,
    /// Masters and disks.
    pub storage: Storage,
    /// What the kernel exports.
    pub target: TargetHandle,
    /// The appliance's Ed25519 identity (`state/secrets/server.key`).
    pub server_key: crate::identity::Identity,
    /// Workers on their way to another device.
    pub migrations: crate::migrations::Migrations,
    /// What TLS connections are answered with.
    pub tls: Arc<crate::tls::Tls>,
    /// What is wrong now, for the log, the API and the screen.
    pub faults: Faults,
    /// One backup or restore at a time: each takes memory for its key.
    pub archives: tokio::sync::Mutex<()>,
    /// Told when the daemon shall end in order and start itself again, with a restored state.
    pub restart: tokio::sync::Notify,
}

/// What is wrong now, one sentence with what to do per part (`dhcp`, `target`, …).
#[derive(Debug, Default)]
pub struct Faults(Mutex<BTreeMap<String, String>>);

impl Faults {
    /// Sets a part's fault; logged when it is news.
    pub fn set(&self, part: &str, what: impl Into<String>) {
        let what = what.into();
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if map.get(part) != Some(&what) {
            tracing::error!("{part}: {what}");
            map.insert(part.to_owned(), what);
        }
    }

    /// The part works again.
    pub fn clear(&self, part: &str) {
        if self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(part).is_some() {
            tracing::info!("{part}: works again");
        }
    }

    /// All, as `part: what`.
    #[must_use]
    pub fn list(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(part, what)| format!("{part}: {what}")).collect()
    }
}

impl Shared {
    /// Opens everything that lives in the state folder; call inside a tokio runtime. Tests do the same with a folder of theirs.
    ///
    /// # Errors
    /// The state folder or the disk folder can not be used at all. A ledger that does not read is no error here: see [`LedgerHandle::unreadable`].
    pub fn open(config: Config) -> anyhow::Result<SharedRef> {
        let state = &config.state_dir;
        let secrets = state.join("secrets");
        kurrent_sys::store::private_folder(&secrets).with_context(|| format!("making {}", secrets.display()))?;
        let server_key = crate::identity::Identity::open(&secrets)?;
        let audit = Audit::open(state).with_context(|| format!("opening the audit in {}", state.display()))?;
        let ledger = LedgerHandle::open(state, audit.clone());
        let credentials = CredentialStore::open(state);
        let people = PeopleStore::open(state).with_context(|| format!("opening the users in {}", state.display()))?;
        let target = TargetHandle::default();
        let storage = Storage::open(&config.agent, ledger.clone(), audit.clone(), target.clone())?;
        Ok(Arc::new(Self {
            credentials,
            people,
            storage,
            target,
            config,
            ledger,
            leases: ArcSwap::default(),
            neighbours: crate::neighbours::Neighbours::default(),
            lease_orders: crate::lease_orders::LeaseOrders::default(),
            dhcp: crate::dhcp_state::DhcpState::default(),
            timelines: Timelines::default(),
            audit,
            server_key,
            migrations: crate::migrations::Migrations::default(),
            tls: Arc::default(),
            faults: Faults::default(),
            archives: tokio::sync::Mutex::default(),
            restart: tokio::sync::Notify::default(),
        }))
    }

    /// [`Faults::list`], and what is wrong with the ledgers, the audit and the users.
    #[must_use]
    pub fn all_faults(&self) -> Vec<String> {
        let ledger = self.ledger.fault().map(|f| format!("ledger: {f}"));
        let audit = self.audit.fault().map(|f| format!("audit: {f}"));
        let people = self.people.fault().map(|f| format!("people: {f}"));
        ledger.into_iter().chain(audit).chain(people).chain(self.faults.list()).collect()
    }

    /// Which machine has this address, as far as we know: by our lease, and on our own link by the kernel, who knows who answers
    /// to an address that somebody gave itself. As a proxy we give none, so there the kernel comes first, and behind a router
    /// there is what was seen on port 67. What an IPv6 address tells of its machine is its own choice and counts for nothing
    /// here; all of them are of our link.
    #[must_use]
    pub fn holder(&self, address: IpAddr) -> Option<MacAddr> {
        let network = &self.config.boot_network;
        let neighbour = || self.neighbours.mac_of(network.address, address, clock::now().mono);
        match address {
            IpAddr::V4(v4) => {
                let leased = || self.leases.load().holder(v4);
                match (network.contains(v4), self.config.dhcp.mode) {
                    (false, _) => leased(),
                    (true, DhcpMode::Proxy) => neighbour().or_else(leased),
                    (true, DhcpMode::Server | DhcpMode::Off) => leased().or_else(neighbour),
                }
            }
            IpAddr::V6(_) => neighbour(),
        }
    }

    /// Who was given the peer's address: the kernel's word for whose it is makes no lease of an IPv4 address. IPv6 has no leases.
    #[must_use]
    pub fn leased(&self, peer: Peer) -> Option<MacAddr> {
        match peer.address {
            IpAddr::V4(v4) => peer.lease.filter(|mac| self.leases.load().holder(v4) == Some(*mac)),
            IpAddr::V6(_) => peer.lease,
        }
    }

    /// The address that a machine was given, if any.
    #[must_use]
    pub fn address_of(&self, mac: MacAddr) -> Option<Ipv4Addr> {
        self.leases.load().address_of(mac)
    }

    /// Why the [`Self::holder`] of an address is answered by silence, if so: [`policy::silence`].
    #[must_use]
    pub fn silence(&self, holder: Option<MacAddr>) -> Option<Silence> {
        policy::silence(&self.ledger.snapshot(), self.config.dhcp.unknown_devices, holder?)
    }
}

/// An `Arc` of [`Shared`].
pub type SharedRef = Arc<Shared>;
