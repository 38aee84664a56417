//! `state/secrets/credentials.yml`: the DH-HMAC-CHAP secrets of every (Worker, epoch, device), made by us, durable before use.
//!
//! A record is made when a device is bound and goes when its epoch has been fenced or its Worker is deleted; a Worker that is
//! created again under the same name gets new secrets. The device is part of the key: even if two devices of one Worker had one
//! epoch and so one host NQN, they would not have one secret, and other secrets are fenced like another host.

use arc_swap::ArcSwap;
use imbl::OrdMap;
use kurrent_core::config::Config;
use kurrent_core::id::{MacAddr, WorkerId, host_nqn};
use kurrent_core::ledger::Ledger;
use kurrent_core::stage1;
use kurrent_core::target::Secret;
use kurrent_core::target::tree::Keys;
use kurrent_sys::{entropy, store};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use zeroize::Zeroizing;

const VERSION: u32 = 1;
const FILE: &str = "secrets/credentials.yml";
const FILE_MODE: u32 = 0o600;
/// About 60,000 records.
const MAX_BYTES: u64 = 32 << 20;
const MAX_NODES: usize = 1_000_000;
/// Addresses kept of one record: a device has one at a time, and connections from an earlier one end with their keep-alive.
const MOST_ADDRESSES: usize = 8;

/// The secrets of one device's epoch as one Worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Whose.
    pub worker_id: WorkerId,
    /// The device's epoch.
    pub epoch: u64,
    /// The device.
    pub device: MacAddr,
    /// NVMe host identifier; the kernel wants one per host NQN.
    pub host_id: uuid::Uuid,
    /// The host proves itself with it.
    pub host_secret: Secret,
    /// The target proves itself with it.
    pub controller_secret: Secret,
    /// Where its boots were granted to, the latest last: whose connections they are when this epoch is cut.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Ipv4Addr>,
}

impl Record {
    fn new(key: &Key) -> Self {
        let secret = || Secret::from_random(&Zeroizing::new(entropy::random()));
        let host_id = uuid::Builder::from_random_bytes(entropy::random()).into_uuid();
        let (worker_id, epoch, device) = key.clone();
        Self { worker_id, epoch, device, host_id, host_secret: secret(), controller_secret: secret(), addresses: vec![] }
    }

    /// Both secrets, for the target.
    #[must_use]
    pub fn keys(&self) -> Keys {
        Keys { host: self.host_secret.clone(), controller: self.controller_secret.clone() }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CredentialsFile {
    version: u32,
    credentials: Vec<Record>,
}

type Key = (WorkerId, u64, MacAddr);
/// Shared with those who read: one more record costs one record.
type Records = OrdMap<Key, Arc<Record>>;

/// Why there are no secrets. Never contains one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    /// The file is there but can not be believed; it is left as it is.
    #[error("{0}; restore the file, or move it away: every bound device then gets new secrets and must boot again")]
    Unusable(String),
    /// The file could not be written: nothing was promised.
    #[error("the credentials could not be written: {0}")]
    NotDurable(String),
}

/// The one owner of the file. Calls that write block on the disk; calls that read see the latest durable records and wait for
/// nobody: the boot plane asks from threads that must not block.
#[derive(Clone)]
pub struct CredentialStore(Arc<Inner>);

struct Inner {
    path: PathBuf,
    records: ArcSwap<Result<Records, CredentialsError>>,
    /// Held by the one who writes.
    writing: Mutex<()>,
    /// Addresses that the file does not have yet, of records that are there. Never held while something blocks.
    news: Mutex<BTreeMap<Key, Vec<Ipv4Addr>>>,
}

impl CredentialStore {
    /// Reads the file under `state_dir`. Only a *missing* file begins empty; an unusable one leaves a store that says so to
    /// everybody who asks ([`CredentialStore::fault`]), so that the rest of the appliance can serve.
    #[must_use]
    pub fn open(state_dir: &Path) -> Self {
        let path = state_dir.join(FILE);
        let records = load(&path).map_err(CredentialsError::Unusable);
        Self(Arc::new(Inner { path, records: ArcSwap::from_pointee(records), writing: Mutex::default(), news: Mutex::default() }))
    }

    /// Why nothing can be authorised, if so.
    #[must_use]
    pub fn fault(&self) -> Option<CredentialsError> {
        self.0.records.load().as_ref().as_ref().err().cloned()
    }

    /// The record of this epoch, if it was made.
    #[must_use]
    pub fn of(&self, worker: &WorkerId, epoch: u64, device: MacAddr) -> Option<Record> {
        self.0.records.load().as_ref().as_ref().ok()?.get(&(worker.clone(), epoch, device)).map(|r| r.as_ref().clone())
    }

    /// All records, for the reconciler to see what was promised before, with the addresses of the latest boots.
    #[must_use]
    pub fn all(&self) -> Vec<Record> {
        let mut records = self.0.records.load().as_ref().as_ref().cloned().unwrap_or_default();
        add_news(&mut records, &self.news());
        records.values().map(|r| r.as_ref().clone()).collect()
    }

    /// As [`CredentialStore::all`], of these Workers.
    #[must_use]
    pub fn of_workers(&self, workers: &BTreeSet<WorkerId>) -> Vec<Record> {
        let mut records = self.0.records.load().as_ref().as_ref().cloned().unwrap_or_default();
        add_news(&mut records, &self.news());
        workers.iter().flat_map(|w| of_worker(&records, w)).map(|(_, r)| r.as_ref().clone()).collect()
    }

    /// Remembers where a boot of this epoch is granted to. Never blocks on the disk: the next [`CredentialStore::ensure`] writes
    /// it, and an address that is lost until then only makes the fence count more connections than it must.
    pub fn granted(&self, worker: &WorkerId, epoch: u64, device: MacAddr, address: Ipv4Addr) {
        // Bounded by the records.
        if self.of(worker, epoch, device).is_some() {
            add_address(self.news().entry((worker.clone(), epoch, device)).or_default(), address);
        }
    }

    fn news(&self) -> std::sync::MutexGuard<'_, BTreeMap<Key, Vec<Ipv4Addr>>> {
        self.0.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes what is missing, in one durable write.
    ///
    /// # Errors
    /// [`CredentialsError`]; then nothing was made.
    pub fn ensure(&self, wanted: &[(WorkerId, u64, MacAddr)]) -> Result<(), CredentialsError> {
        self.change(|records| {
            for key in wanted {
                if !records.contains_key(key) {
                    records.insert(key.clone(), Arc::new(Record::new(key)));
                }
            }
        })
    }

    /// Removes, durably, every record that `keep` does not name.
    ///
    /// # Errors
    /// [`CredentialsError`]; then nothing was removed.
    pub fn retain(&self, keep: impl Fn(&Record) -> bool) -> Result<(), CredentialsError> {
        self.change(|records| {
            let gone: Vec<Key> = records.iter().filter(|(_, r)| !keep(r)).map(|(k, _)| k.clone()).collect();
            gone.iter().for_each(|k| _ = records.remove(k));
        })
    }

    /// As [`CredentialStore::retain`], looking only at these Workers' records.
    ///
    /// # Errors
    /// [`CredentialsError`]; then nothing was removed.
    pub fn retain_of(&self, workers: &BTreeSet<WorkerId>, keep: impl Fn(&Record) -> bool) -> Result<(), CredentialsError> {
        self.change(|records| {
            let of_them = workers.iter().flat_map(|w| of_worker(records, w));
            let gone: Vec<Key> = of_them.filter(|(_, r)| !keep(r)).map(|(k, _)| k.clone()).collect();
            gone.iter().for_each(|k| _ = records.remove(k));
        })
    }

    fn change(&self, change: impl FnOnce(&mut Records)) -> Result<(), CredentialsError> {
        let _writing = self.0.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let held = self.0.records.load_full();
        let records = held.as_ref().as_ref().map_err(Clone::clone)?;
        let mut next = records.clone();
        change(&mut next);
        let news = self.news().clone();
        add_news(&mut next, &news);
        if !next.ptr_eq(records) {
            save(&self.0.path, &next).map_err(CredentialsError::NotDurable)?;
            self.0.records.store(Arc::new(Ok(next)));
        }
        // What came meanwhile stays for the next time.
        self.news().retain(|key, addresses| news.get(key) != Some(addresses));
        Ok(())
    }
}

/// One Worker's records.
fn of_worker<'a>(records: &'a Records, worker: &WorkerId) -> impl Iterator<Item = (&'a Key, &'a Arc<Record>)> {
    let (first, last) = (MacAddr([0; 6]), MacAddr([0xff; 6]));
    records.range((worker.clone(), 0, first)..=(worker.clone(), u64::MAX, last))
}

/// Puts addresses into the records they are of; what has them already is not touched.
fn add_news(records: &mut Records, news: &BTreeMap<Key, Vec<Ipv4Addr>>) {
    for (key, addresses) in news {
        let Some(record) = records.get(key) else { continue };
        let mut all = record.addresses.clone();
        for address in addresses {
            add_address(&mut all, *address);
        }
        if all != record.addresses {
            let moved = Record { addresses: all, ..record.as_ref().clone() };
            records.insert(key.clone(), Arc::new(moved));
        }
    }
}

/// As the latest, and each only once.
fn add_address(addresses: &mut Vec<Ipv4Addr>, address: Ipv4Addr) {
    addresses.retain(|a| *a != address);
    addresses.push(address);
    addresses.drain(..addresses.len().saturating_sub(MOST_ADDRESSES));
}

fn load(path: &Path) -> Result<Records, String> {
    let Some(octets) = store::read(path, MAX_BYTES).map_err(|e| format!("{}: {e}", path.display()))?.map(Zeroizing::new) else {
        return Ok(Records::new());
    };
    // The fault's own words might quote a secret: only its line is told.
    let file: CredentialsFile = crate::yaml::parse(&octets, MAX_NODES)
        .map_err(|f| format!("{}:{}: not a credentials file of this version", path.display(), f.line))?;
    if file.version != VERSION {
        return Err(format!("{}: version {} is not known to this program (it knows {VERSION})", path.display(), file.version));
    }
    let mut records = Records::new();
    for record in file.credentials {
        let key = (record.worker_id.clone(), record.epoch, record.device);
        if records.insert(key, Arc::new(record)).is_some() {
            return Err(format!("{}: a worker, epoch and device occur twice", path.display()));
        }
    }
    Ok(records)
}

fn save(path: &Path, records: &Records) -> Result<(), String> {
    let file = CredentialsFile { version: VERSION, credentials: records.values().map(|r| r.as_ref().clone()).collect() };
    let text = crate::secrets::to_yaml(&file).map_err(|_| "they could not be put into text".to_owned())?;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    store::replace(path, text.as_bytes(), FILE_MODE).map_err(|e| e.to_string())
}

/// What the boot plane knows of one authorised boot.
pub struct BootFacts {
    /// The device.
    pub mac: MacAddr,
    /// Its address.
    pub address: Ipv4Addr,
    /// Prefix length of the boot network.
    pub prefix: u8,
    /// Default router that DHCP gives.
    pub gateway: Option<Ipv4Addr>,
    /// Resolvers that DHCP gives.
    pub dns: Vec<Ipv4Addr>,
    /// This boot's name.
    pub boot_id: String,
    /// Key of the reports of this boot.
    pub report_key: Zeroizing<[u8; 32]>,
}

/// Why a boot can not be given credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// The device is not bound.
    #[error("this device is not bound to a worker")]
    NotBound,
    /// The Worker has no disk that boots.
    #[error("the worker has no system disk")]
    NoDisk,
    /// The reconciler has not made this epoch's secrets yet, or can not.
    #[error("the storage target is not ready yet")]
    NoCredentials,
}

/// The credentials to seal for one boot; from now on connections from its address are taken for this device's. Whether the kernel exports the disk already is asked of
/// [`crate::reconcile::TargetHandle::ready`].
///
/// # Errors
/// [`NotReady`].
pub fn for_boot(store: &CredentialStore, config: &Config, ledger: &Ledger, facts: &BootFacts) -> Result<stage1::Credentials, NotReady> {
    let device = ledger.device(facts.mac).ok_or(NotReady::NotBound)?;
    let worker = ledger.worker_of(facts.mac).ok_or(NotReady::NotBound)?;
    let disk = ledger.boot_disk(worker).ok_or(NotReady::NoDisk)?;
    let record = store.of(&worker.worker_id, device.epoch, facts.mac).ok_or(NotReady::NoCredentials)?;
    store.granted(&worker.worker_id, device.epoch, facts.mac, facts.address);
    Ok(stage1::Credentials {
        worker: worker.worker_id.clone(),
        mac: facts.mac,
        address: facts.address,
        prefix: facts.prefix,
        gateway: facts.gateway,
        dns: facts.dns.clone(),
        server: SocketAddrV4::new(config.boot_network.address, config.boot_port),
        boot_id: facts.boot_id.clone(),
        report_key: facts.report_key.clone(),
        target: SocketAddrV4::new(config.boot_network.address, config.agent.target_port),
        subsystem: disk.nqn.clone(),
        host: host_nqn(&config.agent.nqn_base, &worker.worker_id, device.epoch),
        host_id: record.host_id,
        host_secret: record.host_secret,
        controller_secret: record.controller_secret,
        namespace: disk.uuid,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn key(worker: &str, epoch: u64, last: u8) -> Key {
        (worker.parse().unwrap(), epoch, MacAddr([0x52, 0x54, 0, 0, 0, last]))
    }

    #[test]
    fn secrets_are_made_once_kept_over_a_restart_and_readable_by_root_only() {
        let folder = tempfile::tempdir().unwrap();
        let store = CredentialStore::open(folder.path());
        store.ensure(&[key("w1", 1, 1), key("w2", 1, 2)]).unwrap();
        let made = store.of(&"w1".parse().unwrap(), 1, key("w1", 1, 1).2).unwrap();
        store.ensure(&[key("w1", 1, 1)]).unwrap();
        let again = CredentialStore::open(folder.path());
        assert_eq!(again.of(&"w1".parse().unwrap(), 1, key("w1", 1, 1).2), Some(made.clone()));
        assert_ne!(made.host_secret, made.controller_secret);
        assert_eq!(std::fs::metadata(folder.path().join(FILE)).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!format!("{made:?}").contains("DHHC"), "Debug tells no secret");
    }

    #[test]
    fn the_latest_addresses_of_a_record_are_kept_over_a_restart_and_no_more_than_a_few() {
        let folder = tempfile::tempdir().unwrap();
        let store = CredentialStore::open(folder.path());
        let (worker, epoch, device) = key("w1", 1, 1);
        let wanted = [key("w1", 1, 1)];
        store.ensure(&wanted).unwrap();
        for last in (1..=20).chain([15, 15]) {
            store.granted(&worker, epoch, device, [10, 0, 0, last].into());
        }
        store.granted(&worker, 2, device, [10, 0, 0, 99].into());
        let last = |store: &CredentialStore| store.all()[0].addresses.iter().map(|a| a.octets()[3]).collect::<Vec<_>>();
        let expected = [13, 14, 16, 17, 18, 19, 20, 15];
        assert_eq!(last(&store), expected, "at once");
        assert_eq!(last(&CredentialStore::open(folder.path())), [0; 0], "a grant waits for no disk");
        store.ensure(&wanted).unwrap();
        assert_eq!(last(&CredentialStore::open(folder.path())), expected);
        assert!(store.news().is_empty());
    }

    #[test]
    fn a_worker_that_comes_back_under_its_old_name_gets_new_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let store = CredentialStore::open(folder.path());
        let id = key("w1", 1, 1);
        store.ensure(std::slice::from_ref(&id)).unwrap();
        let old = store.of(&id.0, 1, id.2).unwrap();
        store.retain(|_| false).unwrap();
        assert_eq!(CredentialStore::open(folder.path()).all(), []);
        store.ensure(std::slice::from_ref(&id)).unwrap();
        assert_ne!(store.of(&id.0, 1, id.2).unwrap().host_secret, old.host_secret);
    }

    #[test]
    fn another_device_at_the_same_epoch_has_other_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let store = CredentialStore::open(folder.path());
        store.ensure(&[key("w1", 1, 1), key("w1", 1, 2)]).unwrap();
        let [a, b] = store.all().try_into().unwrap();
        assert_ne!(a.host_secret, b.host_secret);
    }

    #[test]
    fn who_reads_never_waits_for_who_writes() {
        let folder = tempfile::tempdir().unwrap();
        let store = CredentialStore::open(folder.path());
        let id = key("w1", 1, 1);
        store.ensure(std::slice::from_ref(&id)).unwrap();
        let (reader, (done, read)) = (store.clone(), std::sync::mpsc::channel());
        store
            .retain(|_| {
                // In the middle of a change.
                let (reader, id, done) = (reader.clone(), id.clone(), done.clone());
                std::thread::spawn(move || done.send((reader.of(&id.0, id.1, id.2).is_some(), reader.all().len(), reader.fault())));
                assert_eq!(read.recv_timeout(std::time::Duration::from_secs(20)), Ok((true, 1, None)));
                false
            })
            .unwrap();
        assert_eq!(store.all(), []);
    }

    #[test]
    fn only_a_missing_file_begins_empty_and_a_damaged_one_is_kept_and_named() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(CredentialStore::open(folder.path()).fault(), None);
        let path = folder.path().join(FILE);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let secret = "DHHC-1:01:AAAA:";
        for text in [
            "",
            "version: 2\ncredentials: []\n",
            "version: 1\n",
            &format!("version: 1\ncredentials:\n- worker_id: w1\n  host_secret: {secret}\n"),
        ] {
            std::fs::write(&path, text).unwrap();
            let store = CredentialStore::open(folder.path());
            let fault = store.fault().unwrap().to_string();
            assert!(fault.contains("credentials.yml") && !fault.contains("AAAA"), "{fault}");
            assert!(store.ensure(&[key("w1", 1, 1)]).is_err());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "left as it is");
        }
    }
}
