//! The storage node on a real folder, with a real ledger.

use super::*;
use crate::shared::{Shared, SharedRef};
use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame};
use kurrent_core::config::Config;
use kurrent_core::ledger::Change;
use kurrent_core::placement::Wanted;
use std::os::unix::fs::MetadataExt;
use std::pin::Pin;
use std::task::{Context, Poll};

mod disks;
mod masters;
mod nodes;

const WITHIN: Duration = Duration::from_secs(20);
const MASTER_BYTES: usize = 4 << 20;

struct Bench {
    shared: SharedRef,
    folder: tempfile::TempDir,
}

/// A 4 MiB master: a table, one block of content far in, holes between.
fn master() -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    kurrent_harness::master::write_gpt(file.path(), MASTER_BYTES as u64).unwrap();
    let mut image = std::fs::read(file.path()).unwrap();
    image[(2 << 20) + 4096..(2 << 20) + 4103].copy_from_slice(b"content");
    image
}

/// A target that has followed everything and exports nothing.
fn following() -> crate::reconcile::Observation {
    let tree = kurrent_core::target::tree::Observed { port: Some(Default::default()), ..Default::default() };
    crate::reconcile::Observation { generation: u64::MAX, looked: true, tree, ..Default::default() }
}

/// The same, but that it still exports this file.
fn exporting(path: String) -> crate::reconcile::Observation {
    use kurrent_core::target::tree::{NAMESPACE_ID, ObservedNamespace, ObservedSubsystem};
    let mut seen = following();
    let namespace = ObservedNamespace { enabled: true, path, ..Default::default() };
    let subsystem = ObservedSubsystem { namespaces: [(NAMESPACE_ID, namespace)].into(), ..Default::default() };
    seen.tree.subsystems.insert("nqn.x".into(), subsystem);
    seen
}

fn settled() -> TargetHandle {
    let target = TargetHandle::default();
    target.publish(following());
    target
}

impl Bench {
    async fn new() -> Self {
        let bench = Self::open(tempfile::tempdir().unwrap());
        for worker in ["w1", "w2"] {
            bench.shared.ledger.submit(Change::CreateWorker { worker: worker.parse().unwrap() }, "test").await.unwrap();
        }
        bench
    }

    fn open(folder: tempfile::TempDir) -> Self {
        let mut config = Config { state_dir: folder.path().join("state"), ..Config::default() };
        config.agent.disk_dir = folder.path().join("disks");
        Self { shared: Shared::open(config).unwrap(), folder }
    }

    fn storage(&self) -> &Storage {
        &self.shared.storage
    }

    fn files(&self) -> Vec<String> {
        let all = list(&self.folder.path().join("disks")).unwrap().into_iter().map(|(name, _)| name);
        all.filter(|name| name != ".masters.cache.json").collect()
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join("disks").join(name)
    }

    fn worker(&self, id: &str) -> kurrent_core::ledger::Worker {
        self.shared.ledger.snapshot().workers[&id.parse::<WorkerId>().unwrap()].as_ref().clone()
    }

    fn disks(&self, worker: &str) -> Vec<Disk> {
        self.worker(worker).disks
    }

    async fn leftovers(&self) -> Vec<String> {
        self.storage().leftovers().await.unwrap().into_iter().map(|l| l.name).collect()
    }

    fn request(&self, worker: &str, version: &str, content: Content) -> NewDisk {
        NewDisk::anywhere(worker.parse().unwrap(), "debian".parse().unwrap(), version.parse().unwrap(), content)
    }

    async fn import(&self, name: &str, octets: Vec<u8>, length: Option<u64>) -> Result<Master, StorageError> {
        self.storage().import_master(name.parse().unwrap(), length, Full::new(Bytes::from(octets))).await
    }

    async fn create(&self, worker: &str, version: &str, content: Content) -> Result<Disk, StorageError> {
        let job = match self.storage().create_disk(self.request(worker, version, content), "test").await? {
            Created::Disk(disk) => return Ok(disk),
            Created::Job(job) => job,
        };
        let view = self.ended(&job).await;
        match view.state {
            JobState::Done => Ok(view.disk.unwrap()),
            JobState::Cancelled => Err(StorageError::new("cancelled", 409, "cancelled".into())),
            _ => Err(StorageError::new(view.code.unwrap(), 500, view.detail.unwrap())),
        }
    }

    /// The job when it has ended.
    async fn ended(&self, job: &str) -> JobView {
        let deadline = std::time::Instant::now() + WITHIN;
        loop {
            let view = self.storage().jobs().view(job).unwrap();
            if view.state.is_final() {
                return view;
            }
            assert!(std::time::Instant::now() < deadline, "{view:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clone_has_the_masters_octets_and_holes_and_its_record_follows_its_file() {
    let bench = Bench::new().await;
    let octets = master();
    let imported = bench.import("debian_tpl_13.img", octets.clone(), Some(MASTER_BYTES as u64)).await.unwrap();
    assert_eq!(imported.size_bytes, MASTER_BYTES as u64);
    let path = |name: &str| bench.folder.path().join("disks").join(name);
    assert!(std::fs::metadata(path("debian_tpl_13.img")).unwrap().blocks() * 512 < 1 << 20, "zero blocks are holes");
    let disk = bench.create("w1", "13", Content::Master("debian_tpl_13.img".parse().unwrap())).await.unwrap();
    assert!(std::fs::read(path(disk.filename.as_str())).unwrap() == octets);
    assert!(std::fs::metadata(path(disk.filename.as_str())).unwrap().blocks() * 512 < 1 << 20, "and stay holes");
    let ledger = bench.shared.ledger.snapshot();
    let worker = &ledger.workers[&"w1".parse::<WorkerId>().unwrap()];
    assert_eq!((worker.disks.as_slice(), worker.default_disk.as_ref()), ([disk.clone()].as_slice(), Some(&disk.os_tag)));
    assert_eq!(bench.files(), ["debian_tpl_13.img", disk.filename.as_str()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_requests_for_one_version_leave_one_disk_and_one_file() {
    let bench = Bench::new().await;
    let (a, b) = tokio::join!(bench.create("w1", "13", Content::Empty(1 << 20)), bench.create("w1", "13", Content::Empty(1 << 20)));
    assert_eq!(a.is_ok() as u8 + b.is_ok() as u8, 1, "{a:?} {b:?}");
    assert_eq!(bench.files().len(), 1, "the loser's file is gone");
    assert!(bench.create("w2", "13", Content::Empty(1 << 20)).await.is_ok(), "another worker may");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_a_whole_4k_native_master_is_refused_by_name_and_nothing_is_left() {
    let bench = Bench::new().await;
    let mut damaged = master();
    damaged[4096 + 40] ^= 1;
    let mut small = master();
    small.truncate(1 << 20);
    let mut small_sectors = vec![0; 1 << 20];
    small_sectors[512..520].copy_from_slice(b"EFI PART");
    for (name, octets, length, code) in [
        ("debian.img", master(), None, "not_a_master"),
        ("a_tpl_1.img", small_sectors, None, "sector_size"),
        ("a_tpl_1.img", vec![0; 1 << 20], None, "not_partitioned"),
        ("a_tpl_1.img", damaged, None, "damaged"),
        ("a_tpl_1.img", small, None, "truncated"),
        ("a_tpl_1.img", master()[..5000].to_vec(), None, "size"),
        ("a_tpl_1.img", vec![], None, "size"),
        ("a_tpl_1.img", master(), Some(5000), "size"),
        ("a_tpl_1.img", master()[..1 << 20].to_vec(), Some(MASTER_BYTES as u64), "interrupted"),
    ] {
        let refused = bench.import(name, octets, length).await.unwrap_err();
        assert_eq!(refused.code, code, "{refused}");
        assert_eq!(bench.files(), Vec::<String>::new(), "{code}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_that_goes_away_leaves_nothing() {
    let bench = Bench::new().await;
    let body = Cut(Some(Bytes::from(master())));
    let refused = bench.storage().import_master("a_tpl_1.img".parse().unwrap(), None, body).await.unwrap_err();
    assert_eq!(refused.code, "interrupted");
    assert_eq!(bench.files(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_is_never_replaced_and_never_a_disk_of_another_name() {
    let bench = Bench::new().await;
    bench.import("a_tpl_1.img", master(), None).await.unwrap();
    assert_eq!(bench.import("a_tpl_1.img", master(), None).await.unwrap_err().code, "master_exists");
    let disk = bench.create("w1", "13", Content::Empty(1 << 20)).await.unwrap();
    for (name, code) in [("b_tpl_1.img", "master_not_found"), (disk.filename.as_str(), "not_a_master")] {
        let refused = bench.create("w1", "14", Content::Master(name.parse().unwrap())).await.unwrap_err();
        assert_eq!(refused.code, code);
    }
    assert_eq!(bench.create("w9", "14", Content::Empty(4096)).await.unwrap_err().code, "worker_not_found");
    assert_eq!(bench.create("w1", "14", Content::Empty(4095)).await.unwrap_err().code, "size");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_crash_left_is_removed_or_listed_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let disks = folder.path().join("disks");
    std::fs::create_dir(&disks).unwrap();
    for name in [".w1.debian.000000000001.img.part", "w1.debian.000000000002.img", "a_tpl_1.img"] {
        std::fs::write(disks.join(name), [0; 8]).unwrap();
    }
    let bench = Bench::open(folder);
    assert_eq!(bench.files(), ["a_tpl_1.img", "w1.debian.000000000002.img"]);
    let leftovers: Vec<(String, LeftoverKind)> = bench.storage().leftovers().await.unwrap().into_iter().map(|l| (l.name, l.kind)).collect();
    let expected = [
        (".w1.debian.000000000001.img.part".to_owned(), LeftoverKind::Unfinished),
        ("w1.debian.000000000002.img".to_owned(), LeftoverKind::Unrecorded),
    ];
    assert_eq!(leftovers, expected);
    let masters = bench.storage().masters().await.unwrap();
    assert!(masters[0].fault.is_some(), "a master that can not be cloned is listed with the reason");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_is_deleted_with_or_without_its_file() {
    let bench = Bench::new().await;
    let kept = bench.create("w1", "13", Content::Empty(1 << 20)).await.unwrap();
    let gone = bench.create("w1", "14", Content::Empty(1 << 20)).await.unwrap();
    let worker: WorkerId = "w1".parse().unwrap();
    bench.shared.target.publish(following());
    for (disk, delete_file) in [(&kept, false), (&gone, true)] {
        bench.storage().delete_disk(&worker, &disk.os_tag, delete_file, "test", vec![]).await.unwrap();
    }
    assert_eq!(bench.files(), [kept.filename.as_str()]);
    let again = bench.storage().delete_disk(&worker, &kept.os_tag, true, "test", vec![]).await;
    assert_eq!(again.unwrap_err().code, "disk_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_still_exported_is_kept() {
    let bench = Bench::new().await;
    let disk = bench.create("w1", "13", Content::Empty(1 << 20)).await.unwrap();
    let path = bench.folder.path().join("disks").join(disk.filename.as_str()).display().to_string();
    bench.shared.target.publish(exporting(path));
    let other = bench.create("w1", "14", Content::Empty(1 << 20)).await.unwrap();
    let (_, ledger) = bench.shared.ledger.submit(Change::DeleteWorker { worker: "w1".parse().unwrap() }, "test").await.unwrap();
    let kept = bench.storage().remove_files(vec![disk.clone(), other.clone()], ledger.generation, "test").await;
    assert_eq!(kept.iter().map(|k| (k.filename.clone(), k.code)).collect::<Vec<_>>(), [(disk.filename.clone(), "still_exported")]);
    assert!(kept[0].detail.contains(&format!("DELETE /v1/leftovers/{}", disk.filename)), "{kept:?}");
    assert_eq!(bench.files(), [disk.filename.as_str()], "one that stays keeps no other");
    let told = bench.shared.audit.read(&crate::audit::Filter { verb: Some("file-delete".into()), ..Default::default() }).unwrap();
    let told: Vec<(String, String)> = told.entries.into_iter().map(|e| (e.object, e.result)).collect();
    assert_eq!(told, [(other.filename.to_string(), "ok".into()), (disk.filename.to_string(), "still_exported".into())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_keeps_its_file_when_nobody_knows_whether_its_record_was_written() {
    for (step, code, kept) in [("journal Written", "in_doubt", true), ("journal HalfWritten", "not_durable", false)] {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config { state_dir: folder.path().join("state"), ..Config::default() };
        config.agent.disk_dir = folder.path().join("disks");
        let broken = Arc::new(Mutex::new(false));
        let (mut files, ledger) = crate::ledger::files::Files::open(&config.state_dir).unwrap();
        let switch = Arc::clone(&broken);
        files.cut_with(move |s| if *switch.lock().unwrap() && s == step { Err(io::Error::other("cut")) } else { Ok(()) });
        let audit = crate::audit::Audit::open(&config.state_dir).unwrap();
        let ledger = LedgerHandle::start(files, ledger, audit.clone());
        ledger.submit(Change::CreateWorker { worker: "w1".parse().unwrap() }, "test").await.unwrap();
        let storage = Storage::open(&config.agent, ledger, audit, TargetHandle::default()).unwrap();
        *broken.lock().unwrap() = true;
        let (os, version) = ("debian".parse().unwrap(), "13".parse().unwrap());
        let request = NewDisk::anywhere("w1".parse().unwrap(), os, version, Content::Empty(1 << 20));
        let refused = storage.create_disk(request, "test").await.unwrap_err();
        assert_eq!(refused.code, code, "{refused}");
        let left: Vec<LeftoverKind> = storage.leftovers().await.unwrap().into_iter().map(|l| l.kind).collect();
        assert_eq!(left, if kept { vec![LeftoverKind::Unrecorded] } else { vec![] }, "{code}");
        if kept {
            // What a restart reads in this case: the record is there, and so is its file.
            let found = crate::ledger::load::check(&config.state_dir).unwrap().unwrap();
            let disk = &found.workers[&"w1".parse::<WorkerId>().unwrap()].disks[0];
            assert!(config.agent.disk_dir.join(disk.filename.as_str()).exists());
            assert!(refused.detail.contains("unknown until kurrentd is restarted"), "{refused}");
        }
    }
}

/// A body whose sender goes away after its first piece.
struct Cut(Option<Bytes>);

impl Body for Cut {
    type Data = Bytes;
    type Error = &'static str;
    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        Poll::Ready(Some(self.0.take().map(Frame::data).ok_or("connection reset")))
    }
}
