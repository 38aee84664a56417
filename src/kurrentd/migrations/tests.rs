//! Migrations over a real ledger, storage, target (on a tree that behaves like the kernel's) and boot plane, with devices made of the
//! firmware's library. A daemon is a runtime of its own: dropped, it has ended in the middle of whatever it did.

use super::*;
use crate::boot_plane::tests::{answer_form, read_challenge};
use crate::boot_plane::{Answer, BootPlane, Peer, session};
use crate::reconcile::Kernel;
use crate::storage::{Content, Created, JobState, JobView, NewDisk};
use ed25519_dalek::SigningKey;
use kurrent_core::config::Config;
use kurrent_core::http::Form;
use kurrent_core::timeline::Step;
use kurrent_sys::configfs::Nvmet;
use kurrent_sys::configfs::fake::FakeKernel;
use std::collections::BTreeMap as Map;
use std::fs;
use std::time::Instant;
use tempfile::TempDir;
use tokio::runtime::Runtime;

const A: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 0xa]);
const B: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 0xb]);
const C: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 0xc]);
const WITHIN: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(600);

fn key(mac: MacAddr) -> SigningKey {
    SigningKey::from_bytes(&[mac.0[5]; 32])
}

fn address(mac: MacAddr) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, mac.0[5])
}

fn worker(id: &str) -> WorkerId {
    id.parse().unwrap()
}

/// A daemon on its folder.
struct Daemon {
    runtime: Runtime,
    shared: SharedRef,
    plane: Arc<BootPlane>,
    folder: TempDir,
}

impl Daemon {
    /// Three devices with keys, Workers `w1` and `w2` with disks; A has `w1`.
    fn new() -> Self {
        let daemon = Self::open(tempfile::tempdir().unwrap());
        for mac in [A, B, C] {
            let public_key = Some(format!("ed25519:{}", hex::encode(key(mac).verifying_key().as_bytes())));
            let (note, labels) = (String::new(), Map::new());
            daemon.change(Change::Register { mac, public_key, keyless_allowed: false, note, labels, address: None });
        }
        for id in ["w1", "w2"] {
            daemon.change(Change::CreateWorker { worker: worker(id) });
            let request = NewDisk::anywhere(worker(id), "debian".parse().unwrap(), "13".parse().unwrap(), Content::Empty(1 << 20));
            let created = daemon.runtime.block_on(daemon.shared.storage.create_disk(request, "test")).unwrap();
            assert!(matches!(created, Created::Disk(_)), "empty disks are quick");
        }
        daemon.change(Change::Bind { mac: A, worker: worker("w1"), force: false });
        daemon.wait("the target", || daemon.shared.target.observation().tree.port.is_some());
        daemon
    }

    fn open(folder: TempDir) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let mut config = Config { state_dir: folder.path().join("state"), files_dir: folder.path().join("files"), ..Config::default() };
        config.agent.disk_dir = folder.path().join("disks");
        if !folder.path().join("tcp").exists() {
            connected(&folder, &[]);
        }
        let root = folder.path().join("nvmet");
        let nvmet = Nvmet::new(root.clone(), Box::new(FakeKernel::new(&root).unwrap()));
        let kernel = Kernel { nvmet, tcp: folder.path().join("tcp") };
        let _entered = runtime.enter();
        let deadline = Instant::now() + WITHIN;
        let shared = loop {
            let shared = Shared::open(config.clone()).unwrap();
            // The ledgers belong to one writer at a time.
            if !shared.ledger.unreadable() {
                break shared;
            }
            assert!(Instant::now() < deadline, "{:?}", shared.ledger.fault());
            std::thread::sleep(Duration::from_millis(5));
        };
        shared.migrations.tcp.set(folder.path().join("tcp")).unwrap();
        let plane = Arc::new(BootPlane::new(shared.clone(), session::issue(), clock::now()));
        tokio::spawn(crate::reconcile::serve(shared.clone(), kernel));
        tokio::spawn(serve(shared.clone()));
        drop(_entered);
        Self { runtime, shared, plane, folder }
    }

    /// It ends where it is, and starts again.
    fn killed(self) -> Self {
        let Self { runtime, shared, plane, folder } = self;
        runtime.shutdown_timeout(WITHIN);
        drop((shared, plane));
        Self::open(folder)
    }

    fn wait(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + WITHIN;
        while !condition() {
            assert!(
                Instant::now() < deadline,
                "{what}: {:?} {:?}",
                self.shared.storage.jobs().views(),
                self.shared.target.observation().faults
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn change(&self, change: Change) -> Arc<Ledger> {
        self.runtime.block_on(self.shared.ledger.submit(change, "test")).unwrap().1
    }

    fn migrate(&self, wait: Duration, attest: Duration) -> Result<String, StorageError> {
        self.migrate_to("w1", B, wait, attest)
    }

    fn migrate_to(&self, id: &str, to: MacAddr, wait: Duration, attest: Duration) -> Result<String, StorageError> {
        self.runtime.block_on(begin(&self.shared, Order { worker: worker(id), to, wait, attest }, "test"))
    }

    fn job(&self, id: &str) -> JobView {
        self.shared.storage.jobs().view(id).unwrap()
    }

    fn says(&self, id: &str, text: &str) {
        self.wait(text, || self.job(id).doing.contains(text));
    }

    fn ended(&self, id: &str) -> JobView {
        self.wait("the end", || self.job(id).state.is_final());
        self.job(id)
    }

    fn holder(&self) -> Option<MacAddr> {
        self.shared.ledger.snapshot().bound.get(&worker("w1")).copied()
    }

    fn noted(&self) -> bool {
        self.shared.ledger.snapshot().migrating.contains(&worker("w1"))
    }

    fn epoch(&self, mac: MacAddr) -> u64 {
        self.shared.ledger.snapshot().device(mac).unwrap().epoch
    }

    fn connected(&self, from: &[Ipv4Addr]) {
        connected(&self.folder, from);
    }

    /// A device answers a challenge; what it is told.
    fn boot(&self, mac: MacAddr, key: &SigningKey) -> String {
        let peer = Peer { address: address(mac).into(), lease: None };
        let form = |text: &str| Form::parse(text.as_bytes()).unwrap();
        let challenge = self.plane.challenge(peer, &form(&format!("mac={mac}")), clock::now());
        let Answer::Script(script) = challenge else { return format!("{challenge:?}") };
        let Ok((challenge, server)) = read_challenge(&script, &mac.to_string()) else { return script };
        let (fields, _) = answer_form(challenge, server, key);
        match self.runtime.block_on(self.plane.boot_vars(peer, &form(&fields), clock::now())) {
            Answer::Script(script) => script,
            other => format!("{other:?}"),
        }
    }

    /// It boots, once its disk is exported to it.
    fn proves_itself(&self, mac: MacAddr) {
        self.wait("a granted boot", || self.boot(mac, &key(mac)).contains("kernel --name"));
    }

    fn refused(&self, mac: MacAddr) -> bool {
        self.boot(mac, &key(mac)).contains("not_bound")
    }
}

/// What the kernel lists as connected to the port.
fn connected(folder: &TempDir, from: &[Ipv4Addr]) {
    let hex = |a: Ipv4Addr| format!("{:08X}", u32::from_ne_bytes(a.octets()));
    let rest = "00000000:00000000 00:00000000 00000000 0 0 4711 1";
    let line = |a: &Ipv4Addr| format!(" 0: {}:1144 {}:A001 01 {rest}\n", hex([10, 77, 0, 1].into()), hex(*a));
    fs::write(folder.path().join("tcp"), format!("  sl local\n{}", from.iter().map(line).collect::<String>())).unwrap();
}

#[test]
fn k31_the_new_device_gets_the_same_disk_when_the_former_one_is_gone_and_both_are_told_apart() {
    let daemon = Daemon::new();
    daemon.proves_itself(A);
    daemon.connected(&[address(A)]);
    let disk = daemon.shared.ledger.snapshot().workers[&worker("w1")].disks.clone();
    let job = daemon.migrate(LONG, LONG).unwrap();
    daemon.says(&job, "waiting for 52:54:00:00:00:0a to go: 1 connection from 10.77.0.10");
    assert_eq!((daemon.holder(), daemon.noted()), (Some(A), false), "nothing is changed while it waits");
    assert!(daemon.refused(B));
    daemon.connected(&[]);
    daemon.says(&job, "waiting for 52:54:00:00:00:0b to prove itself");
    assert_eq!((daemon.holder(), daemon.noted()), (Some(B), true));
    assert!(daemon.refused(A), "who comes back meanwhile is told to wait");
    assert!(daemon.boot(B, &key(C)).contains("verify_failed") && daemon.noted(), "another's signature is no proof");
    daemon.proves_itself(B);
    assert!(!daemon.noted(), "it is over before the device hears of it");
    daemon.says(&job, "52:54:00:00:00:0b is proven");
    assert_eq!(daemon.runtime.block_on(daemon.shared.storage.jobs().cancel(&job)).unwrap_err().code, "job_ending");
    daemon.shared.timelines.mark(B, Step::Root, clock::now());
    let ended = daemon.ended(&job);
    assert_eq!((ended.state, ended.result.as_deref(), ended.warning.as_str()), (JobState::Done, Some("/v1/workers/w1"), ""));
    assert_eq!(daemon.shared.ledger.snapshot().workers[&worker("w1")].disks, disk);
    assert!(daemon.refused(A));
    // The same path works in reverse.
    let job = daemon.migrate_to("w1", A, Duration::ZERO, LONG).unwrap();
    daemon.proves_itself(A);
    assert!(daemon.refused(B));
    daemon.says(&job, "52:54:00:00:00:0a is proven");
}

#[test]
fn a_device_that_never_proves_itself_loses_the_worker_again_under_new_epochs() {
    let daemon = Daemon::new();
    daemon.proves_itself(A);
    let before = daemon.epoch(A);
    let job = daemon.migrate(Duration::ZERO, SOON).unwrap();
    let ended = daemon.ended(&job);
    assert_eq!((ended.state, ended.code), (JobState::Failed, Some("rolled_back")));
    assert!(ended.detail.unwrap().contains("52:54:00:00:00:0a has Worker w1 again; start it"));
    assert_eq!((daemon.holder(), daemon.noted()), (Some(A), false));
    assert!(daemon.epoch(A) > before && daemon.epoch(A) > before + 1, "neither the binding before nor the one between opens anything");
    assert!(daemon.refused(B), "who comes too late is granted nothing");
    daemon.proves_itself(A);
    assert!(daemon.shared.ledger.snapshot().workers[&worker("w1")].error.contains("did not prove itself"));
    let job = daemon.migrate(Duration::ZERO, LONG).unwrap();
    daemon.proves_itself(B);
    daemon.shared.timelines.mark(B, Step::Root, clock::now());
    daemon.ended(&job);
    daemon.wait("a clear record", || daemon.shared.ledger.snapshot().workers[&worker("w1")].error.is_empty());
}

#[test]
fn a_former_device_that_is_not_free_any_more_gets_nothing_back_and_that_is_said() {
    for (change, word) in
        [(Change::Revoke { mac: A }, "was revoked"), (Change::Bind { mac: A, worker: worker("w2"), force: false }, "has Worker w2 now")]
    {
        let daemon = Daemon::new();
        let job = daemon.migrate(Duration::ZERO, LONG).unwrap();
        daemon.wait("the rebind", || daemon.noted());
        daemon.change(change);
        let ended = daemon.runtime.block_on(daemon.shared.storage.jobs().cancel(&job)).unwrap();
        assert_eq!(ended.state, JobState::Cancelled);
        assert!(ended.warning.contains(word) && ended.warning.contains("bind one to it"), "{}", ended.warning);
        assert_eq!((daemon.holder(), daemon.noted()), (None, false));
    }
}

#[test]
fn who_revokes_the_new_device_or_binds_another_one_meanwhile_has_decided() {
    for (change, holder) in [
        (Change::Revoke { mac: B }, None),
        (Change::Bind { mac: C, worker: worker("w1"), force: true }, Some(C)),
        (Change::DeleteWorker { worker: worker("w1") }, None),
    ] {
        let daemon = Daemon::new();
        let job = daemon.migrate(Duration::ZERO, LONG).unwrap();
        daemon.wait("the rebind", || daemon.noted());
        daemon.change(change);
        let ended = daemon.ended(&job);
        assert_eq!((ended.state, ended.code), (JobState::Failed, Some("overtaken")));
        assert_eq!((daemon.holder(), daemon.noted()), (holder, false));
    }
}

#[test]
fn a_cancel_before_the_rebind_changes_nothing_and_one_after_it_gives_the_worker_back() {
    let daemon = Daemon::new();
    daemon.proves_itself(A);
    daemon.connected(&[address(A)]);
    let cancel = |job: &str| daemon.runtime.block_on(daemon.shared.storage.jobs().cancel(job)).unwrap();
    let job = daemon.migrate(LONG, LONG).unwrap();
    daemon.says(&job, "to go");
    let epoch = daemon.epoch(A);
    assert_eq!(cancel(&job).state, JobState::Cancelled);
    assert_eq!((daemon.holder(), daemon.epoch(A)), (Some(A), epoch), "it was not touched");
    let job = daemon.migrate(Duration::ZERO, LONG).unwrap();
    daemon.wait("the rebind", || daemon.noted());
    let view = cancel(&job);
    assert_eq!(view.state, JobState::Cancelled);
    assert!(view.warning.contains("52:54:00:00:00:0a has Worker w1 again"), "{}", view.warning);
    assert_eq!((daemon.holder(), daemon.noted()), (Some(A), false));
    // The kernel has cut it meanwhile.
    daemon.connected(&[]);
    // Still there when its time is up: nothing is done either.
    daemon.proves_itself(A);
    daemon.connected(&[address(A)]);
    let job = daemon.migrate(SOON, LONG).unwrap();
    assert_eq!(daemon.ended(&job).code, Some("still_connected"));
    assert_eq!((daemon.holder(), daemon.noted()), (Some(A), false));
}

#[test]
fn one_worker_and_one_device_have_one_migration_at_a_time() {
    let daemon = Daemon::new();
    daemon.proves_itself(A);
    daemon.connected(&[address(A)]);
    daemon.migrate(LONG, LONG).unwrap();
    let code = |id, to| daemon.migrate_to(id, to, LONG, LONG).unwrap_err().code;
    assert_eq!((code("w1", C), code("w2", B), code("w1", B)), ("migration_under_way", "migration_under_way", "migration_under_way"));
    daemon.connected(&[]);
    daemon.wait("the rebind", || daemon.noted());
    assert_eq!((code("w1", C), code("w2", B), code("w2", A)), ("migration_under_way", "migration_under_way", "device_reserved"));
    daemon.migrate_to("w2", C, LONG, LONG).unwrap();
}

#[test]
fn a_daemon_that_is_killed_goes_on_from_what_is_in_the_ledger() {
    let daemon = Daemon::new();
    daemon.proves_itself(A);
    daemon.connected(&[address(A)]);
    let job = daemon.migrate(LONG, LONG).unwrap();
    daemon.says(&job, "to go");
    // Killed while it waits: nothing was promised, nothing goes on.
    let daemon = daemon.killed();
    assert_eq!((daemon.holder(), daemon.noted(), daemon.shared.storage.jobs().views().len()), (Some(A), false, 0));
    daemon.wait("the target", || daemon.shared.target.observation().looked);
    daemon.migrate(Duration::ZERO, LONG).unwrap();
    daemon.wait("the rebind", || daemon.noted());
    daemon.connected(&[]);
    // Killed after the rebind: a new job waits for the same proof.
    let daemon = daemon.killed();
    daemon.wait("a job", || !daemon.shared.storage.jobs().views().is_empty());
    let job = daemon.shared.storage.jobs().views()[0].id.clone();
    daemon.says(&job, "to prove itself");
    assert_eq!(daemon.migrate_to("w1", C, LONG, LONG).unwrap_err().code, "migration_under_way");
    daemon.proves_itself(B);
    // Killed after the proof: the device boots, so the Worker is its own.
    let daemon = daemon.killed();
    assert_eq!((daemon.holder(), daemon.noted(), daemon.shared.storage.jobs().views().len()), (Some(B), false, 0));
    // The time for the proof runs out while nobody is there.
    daemon.wait("the target", || daemon.shared.target.observation().looked);
    let job = daemon.migrate_to("w1", A, Duration::ZERO, Duration::from_millis(1500)).unwrap();
    // On a slow machine it is over before it was seen.
    daemon.wait("the rebind", || daemon.noted() || daemon.job(&job).state.is_final());
    let daemon = daemon.killed();
    daemon.wait("the way back", || !daemon.noted());
    assert_eq!(daemon.holder(), Some(B));
}
