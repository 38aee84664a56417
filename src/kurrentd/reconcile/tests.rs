//! The reconciler on a tree that behaves like the kernel's, with a real ledger, storage and credentials.

use super::*;
use crate::credentials::{BootFacts, for_boot};
use crate::shared::Shared;
use crate::storage::{Content, Created, NewDisk};
use kurrent_core::config::Config;
use kurrent_core::id::{MacAddr, WorkerId};
use kurrent_core::ledger::{Change, Disk};
use kurrent_core::target::Step;
use kurrent_sys::configfs::fake::FakeKernel;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use zeroize::Zeroizing;

mod fencing;
mod keys;
mod sessions;

const A: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 0xa]);
const B: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 0xb]);
const ADDRESS_OF_A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 100);
const WITHIN: Duration = Duration::from_secs(10);

struct Bench {
    shared: SharedRef,
    folder: tempfile::TempDir,
}

impl Bench {
    /// Two devices; a Worker `w1` with a disk.
    async fn new() -> Self {
        let bench = Self::open(tempfile::tempdir().unwrap());
        for mac in [A, B] {
            bench
                .change(Change::Register {
                    mac,
                    public_key: None,
                    keyless_allowed: true,
                    note: String::new(),
                    labels: std::collections::BTreeMap::new(),
                    address: None,
                })
                .await;
        }
        bench.worker("w1").await;
        bench.connections(&[]);
        bench.shared.leases.store(Arc::new([(ADDRESS_OF_A, A)].into_iter().collect()));
        bench
    }

    fn open(folder: tempfile::TempDir) -> Self {
        let mut config = Config { state_dir: folder.path().join("state"), ..Config::default() };
        config.agent.disk_dir = folder.path().join("disks");
        config.boot_network.address = [10, 0, 0, 1].into();
        Self { shared: Shared::open(config).unwrap(), folder }
    }

    /// The daemon starts again on the same folders.
    async fn restart(self) -> Self {
        let Self { shared, folder } = self;
        // The ledgers belong to one writer at a time; the old one ends with its last handle.
        drop(shared);
        let deadline = std::time::Instant::now() + WITHIN;
        let mut folder = folder;
        loop {
            let bench = Self::open(folder);
            if !bench.shared.ledger.unreadable() {
                return bench;
            }
            assert!(std::time::Instant::now() < deadline, "{:?}", bench.shared.ledger.fault());
            folder = bench.folder;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn change(&self, change: Change) -> u64 {
        self.shared.ledger.submit(change, "test").await.unwrap().1.generation
    }

    async fn worker(&self, id: &str) -> Disk {
        let worker: WorkerId = id.parse().unwrap();
        self.change(Change::CreateWorker { worker: worker.clone() }).await;
        let request = NewDisk::anywhere(worker, "debian".parse().unwrap(), "13".parse().unwrap(), Content::Empty(1 << 20));
        let Created::Disk(disk) = self.shared.storage.create_disk(request, "test").await.unwrap() else { panic!("empty disks are quick") };
        disk
    }

    async fn bind(&self, mac: MacAddr, worker: &str) -> u64 {
        self.change(Change::Bind { mac, worker: worker.parse().unwrap(), force: true }).await
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("nvmet")
    }

    fn nvmet(&self) -> Nvmet {
        Nvmet::new(self.root(), Box::new(FakeKernel::new(&self.root()).unwrap()))
    }

    fn follower(&self) -> Follower {
        let kernel = Kernel { nvmet: self.nvmet(), tcp: self.folder.path().join("tcp") };
        Follower::new(kernel, self.shared.credentials.clone(), "10.0.0.1:4420".parse().unwrap())
    }

    fn pass(&self, follower: &mut Follower) -> Observation {
        follower.pass(&self.shared.config, &self.shared.ledger.snapshot(), &self.shared.leases.load_full())
    }

    /// What the kernel lists as connected to the port.
    fn connections(&self, from: &[Ipv4Addr]) {
        let hex = |a: Ipv4Addr| format!("{:08X}", u32::from_ne_bytes(a.octets()));
        let rest = "00000000:00000000 00:00000000 00000000 0 0 4711 1";
        let line = |a: &Ipv4Addr| format!(" 0: {}:1144 {}:A001 01 {rest}\n", hex([10, 0, 0, 1].into()), hex(*a));
        fs::write(self.folder.path().join("tcp"), format!("  sl local\n{}", from.iter().map(line).collect::<String>())).unwrap();
    }

    fn boot(&self, mac: MacAddr) -> Result<stage1::Credentials, crate::credentials::NotReady> {
        self.boot_at(mac, ADDRESS_OF_A)
    }

    fn boot_at(&self, mac: MacAddr, address: Ipv4Addr) -> Result<stage1::Credentials, crate::credentials::NotReady> {
        for_boot(&self.shared.credentials, &self.shared.config, &self.shared.ledger.snapshot(), &facts(mac, address))
    }
}

fn facts(mac: MacAddr, address: Ipv4Addr) -> BootFacts {
    BootFacts {
        mac,
        address,
        prefix: 24,
        gateway: None,
        dns: vec![],
        boot_id: "0011223344556677".into(),
        report_key: Zeroizing::new([0; 32]),
    }
}

/// Nobody may reach anything of ours: not linked, nobody allowed.
fn assert_nobody_in(seen: &Observation) {
    assert_eq!(seen.exports(), vec![]);
    assert!(seen.tree.port.as_ref().is_none_or(|p| p.links.is_empty()), "{:?}", seen.tree);
    assert!(seen.tree.subsystems.values().all(|s| s.allowed.is_empty()), "{:?}", seen.tree);
}

/// Nor may controllers that are still there: no namespace is enabled.
fn assert_closed(seen: &Observation) {
    assert_nobody_in(seen);
    assert!(seen.tree.subsystems.values().flat_map(|s| s.namespaces.values()).all(|n| !n.enabled), "{:?}", seen.tree);
}

/// A pass that may not open anything because somebody's connections are there.
fn assert_blocked(seen: &Observation) {
    assert!(seen.faults.iter().any(|f| f.contains("still open")), "{:?}", seen.faults);
    assert_closed(seen);
}

/// Every file and link below, with its inode and time of change: the same again means untouched.
fn fingerprint(folder: &Path) -> Vec<(PathBuf, u64, i64, i64)> {
    let mut found = vec![];
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let metadata = fs::symlink_metadata(entry.path()).unwrap();
        found.push((entry.path(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()));
        if metadata.is_dir() {
            found.extend(fingerprint(&entry.path()));
        }
    }
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn binding_exports_the_disk_and_a_boot_gets_what_opens_it_and_unbinding_takes_it_back() {
    let bench = Bench::new().await;
    let kernel = Kernel { nvmet: bench.nvmet(), tcp: bench.folder.path().join("tcp") };
    tokio::spawn(serve(bench.shared.clone(), kernel));
    let target = &bench.shared.target;
    let bound = bench.bind(A, "w1").await;
    target.settled(bound, WITHIN).await.unwrap();
    let credentials = bench.boot(A).unwrap();
    target.ready(&credentials).unwrap();
    let seen = target.observation();
    assert_eq!(seen.exports().len(), 1);
    assert_eq!(
        (seen.exports()[0].subsystem.as_str(), seen.exports()[0].host.as_str()),
        (credentials.subsystem.as_str(), credentials.host.as_str())
    );
    assert!(bench.boot(B).is_err());

    let unbound = bench.change(Change::Unbind { mac: A }).await;
    target.settled(unbound, WITHIN).await.unwrap();
    assert!(target.ready(&credentials).is_err());
    assert_eq!((target.observation().exports().len(), bench.shared.credentials.all()), (0, vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_daemon_touches_nothing_that_is_right() {
    let bench = Bench::new().await;
    bench.bind(A, "w1").await;
    bench.pass(&mut bench.follower());
    bench.connections(&[ADDRESS_OF_A]);
    let before = fingerprint(&bench.root());
    let bench = bench.restart().await;
    let seen = bench.pass(&mut bench.follower());
    assert_eq!((seen.faults.clone(), seen.exports().len()), (vec![], 1));
    assert_eq!(fingerprint(&bench.root()), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_credentials_file_cuts_nobody_and_lets_nobody_new_in() {
    let bench = Bench::new().await;
    bench.bind(A, "w1").await;
    bench.pass(&mut bench.follower());
    fs::write(bench.folder.path().join("state/secrets/credentials.yml"), "damaged").unwrap();
    let before = fingerprint(&bench.root());
    let bench = bench.restart().await;
    let mut follower = bench.follower();
    let seen = bench.pass(&mut follower);
    assert!(seen.faults.iter().any(|f| f.contains("credentials.yml")), "{:?}", seen.faults);
    assert_eq!((seen.exports().len(), fingerprint(&bench.root()) == before), (1, true));
    assert!(bench.boot(A).is_err());
    bench.bind(B, "w1").await;
    let seen = bench.pass(&mut follower);
    assert_eq!((seen.exports(), seen.tree.hosts.len()), (vec![], 0), "the old device is out although nobody new can come in");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_appliance_that_starts_again_exports_everything_with_the_same_identifiers() {
    let bench = Bench::new().await;
    bench.bind(A, "w1").await;
    let before = bench.pass(&mut bench.follower()).tree;
    fs::remove_dir_all(bench.root()).unwrap();
    let bench = bench.restart().await;
    assert_eq!(bench.pass(&mut bench.follower()).tree, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn drift_made_by_hand_is_repaired() {
    let bench = Bench::new().await;
    let mut follower = bench.follower();
    bench.bind(A, "w1").await;
    let right = bench.pass(&mut follower);
    let subsystem = right.exports()[0].subsystem.clone();
    let nvmet = bench.nvmet();
    // The worker itself reconnects all the while; it keeps its access, so nothing waits for it to go.
    bench.connections(&[ADDRESS_OF_A]);
    for drift in [Step::Unlink(subsystem.clone()), Step::DisableNamespace(subsystem.clone(), 1)] {
        nvmet.run(&drift).unwrap();
        let seen = bench.pass(&mut follower);
        assert_eq!((seen.faults, seen.tree), (vec![], right.tree.clone()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_disk_that_can_not_be_served_does_not_keep_the_others() {
    let bench = Bench::new().await;
    let other = bench.worker("w2").await;
    let path = bench.folder.path().join("disks").join(other.filename.as_str());
    let mut sectors = vec![0; 1 << 20];
    sectors[512..520].copy_from_slice(b"EFI PART");
    fs::write(&path, &sectors).unwrap();
    bench.bind(A, "w1").await;
    bench.bind(B, "w2").await;
    let mut follower = bench.follower();
    let seen = bench.pass(&mut follower);
    assert_eq!(seen.exports().len(), 1);
    assert!(seen.faults.len() == 1 && seen.faults[0].contains("512-byte sectors"), "{:?}", seen.faults);
    // A change of the other Worker is followed although this disk is broken; one of its own is not.
    let target = TargetHandle::default();
    let unbound = bench.change(Change::Unbind { mac: A }).await;
    target.publish(bench.pass(&mut follower));
    target.settled(unbound, WITHIN).await.unwrap();
    assert_eq!(bench.shared.credentials.all().len(), 1, "nor does it keep old secrets");
    let again = bench.bind(A, "w1").await;
    target.publish(bench.pass(&mut follower));
    target.settled(again, WITHIN).await.unwrap();
    bench.change(Change::Unbind { mac: B }).await;
    let rebound = bench.bind(B, "w2").await;
    target.publish(bench.pass(&mut follower));
    assert!(target.settled(rebound, Duration::from_millis(10)).await.is_err());
    fs::remove_file(&path).unwrap();
    assert!(bench.pass(&mut follower).faults[0].contains("can not be read"));
    fs::write(&path, vec![0; 1 << 20]).unwrap();
    let seen = bench.pass(&mut follower);
    assert_eq!((seen.faults.clone(), seen.exports().len()), (vec![], 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_was_enlarged_is_shown_larger_without_a_cut_also_when_the_daemon_died_before_it_said_so() {
    let bench = Bench::new().await;
    let (worker, mut follower) = ("w1".parse::<WorkerId>().unwrap(), bench.follower());
    bench.bind(A, "w1").await;
    bench.pass(&mut follower);
    bench.connections(&[ADDRESS_OF_A]);
    let disk = bench.shared.ledger.snapshot().workers[&worker].disks[0].clone();
    let attribute = bench.root().join(format!("subsystems/{}/namespaces/1/revalidate_size", disk.nqn));
    let seen_size = || fs::read_to_string(&attribute).unwrap().trim().parse::<u64>().unwrap();
    assert_eq!(seen_size(), 1 << 20);
    bench.shared.storage.resize_disk(&worker, &disk.os_tag, 2 << 20, "test", vec![]).await.unwrap();
    let seen = bench.pass(&mut follower);
    assert_eq!((seen.faults.clone(), seen.exports().len(), seen_size()), (vec![], 1, 2 << 20));
    bench.shared.storage.resize_disk(&worker, &disk.os_tag, 3 << 20, "test", vec![]).await.unwrap();
    let bench = bench.restart().await;
    let seen = bench.pass(&mut bench.follower());
    assert_eq!((seen.faults.clone(), seen.exports().len(), seen_size()), (vec![], 1, 3 << 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn k39_k41_a_deleted_workers_credentials_and_push_record_go_and_a_new_one_of_its_name_inherits_nothing() {
    for with_target in [true, false] {
        let bench = Bench::new().await;
        let none = Nvmet::new(bench.folder.path().join("none"), Box::new(kurrent_sys::configfs::RealKernel));
        let nvmet = if with_target { bench.nvmet() } else { none };
        let kernel = Kernel { nvmet, tcp: bench.folder.path().join("tcp") };
        let mut follower = Follower::new(kernel, bench.shared.credentials.clone(), "10.0.0.1:4420".parse().unwrap());
        bench.bind(A, "w1").await;
        bench.pass(&mut follower);
        // The push record is the epoch, and the addresses that boots were granted to, in the credential entry.
        bench.boot(A).unwrap();
        let old = bench.shared.credentials.all().remove(0);
        assert_eq!(old.addresses, [ADDRESS_OF_A]);
        bench.change(Change::DeleteWorker { worker: "w1".parse().unwrap() }).await;
        bench.pass(&mut follower);
        assert_eq!(bench.shared.credentials.all(), vec![], "with target: {with_target}");
        assert!(!fs::read_to_string(bench.folder.path().join("state/secrets/credentials.yml")).unwrap().contains("w1"));
        bench.worker("w1").await;
        bench.bind(A, "w1").await;
        bench.pass(&mut follower);
        let new = bench.shared.credentials.all().remove(0);
        assert!(new.host_secret != old.host_secret && new.controller_secret != old.controller_secret && new.host_id != old.host_id);
        assert!(new.epoch > old.epoch && new.addresses.is_empty(), "its host NQN is another one too");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_without_target_is_a_fault_in_words() {
    let bench = Bench::new().await;
    let kernel =
        Kernel { nvmet: Nvmet::new(bench.folder.path().join("none"), Box::new(kurrent_sys::configfs::RealKernel)), tcp: "/none".into() };
    tokio::spawn(serve(bench.shared.clone(), kernel));
    let bound = bench.bind(A, "w1").await;
    bench.shared.target.followed(bound, WITHIN).await.unwrap();
    let why = bench.shared.target.settled(bound, Duration::ZERO).await.unwrap_err();
    assert!(why.contains("not available on this kernel"), "{why}");
    assert!(bench.shared.faults.list().iter().any(|f| f.contains("not available")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_costs_a_look_at_its_own_worker_and_drift_of_others_is_found_by_the_next_sweep() {
    let bench = Bench::new().await;
    bench.worker("w2").await;
    bench.bind(A, "w1").await;
    bench.bind(B, "w2").await;
    let mut follower = bench.follower();
    let right = bench.pass(&mut follower);
    let of = |worker: &str| bench.shared.ledger.snapshot().workers[&worker.parse::<WorkerId>().unwrap()].disks[0].nqn.to_string();
    bench.nvmet().run(&Step::Unlink(of("w2"))).unwrap();
    bench.change(Change::EditDevice { mac: B, note: Some("moved".into()), keyless_allowed: None, loader: None, address: None }).await;
    let seen = bench.pass(&mut follower);
    assert_eq!((seen.generation, seen.exports().len()), (bench.shared.ledger.snapshot().generation, 2), "a note looks at no disk");
    let unbound = bench.change(Change::Unbind { mac: A }).await;
    let seen = bench.pass(&mut follower);
    assert_eq!((seen.generation, seen.export(&of("w1")), seen.faults.clone()), (unbound, None, vec![]));
    assert!(!bench.nvmet().observe().unwrap().port.unwrap().links.contains(&of("w2")), "not looked at");
    let seen = bench.pass(&mut follower);
    assert_eq!(
        (seen.faults.clone(), seen.export(&of("w2"))),
        (vec![], right.export(&of("w2"))),
        "nothing changed: everything is looked at"
    );
    assert!(bench.nvmet().observe().unwrap().port.unwrap().links.contains(&of("w2")));
}
