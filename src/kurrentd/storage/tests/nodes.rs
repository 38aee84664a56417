//! Several storage nodes: simulated ones behind the seam, beside this appliance.

use super::*;
use crate::storage::jobs::Running;
use crate::storage::node::{Draft, Hold};
use kurrent_core::ledger::{Agent as Record, Role};
use kurrent_core::placement::MasterFile;

const GIB: u64 = 1 << 30;
const MASTER: &str = "debian_tpl_13.img";

/// A node that keeps its files as names and sizes.
pub(super) struct Simulated {
    status: Mutex<NodeStatus>,
    files: Arc<Mutex<BTreeMap<FileName, u64>>>,
}

impl Simulated {
    fn new(free_bytes: u64) -> Arc<Self> {
        let status = NodeStatus {
            reachable: Ok(()),
            data_plane: DataPlane::Ready,
            free_bytes,
            total_bytes: 100 * GIB,
            masters: [(MASTER.parse().unwrap(), MasterFile { size_bytes: GIB, clone_bytes: 0 })].into(),
        };
        Arc::new(Self { status: Mutex::new(status), files: Arc::default() })
    }

    fn files(&self) -> Vec<u64> {
        self.files.lock().unwrap().values().copied().collect()
    }
}

struct SimulatedDraft(Arc<Mutex<BTreeMap<FileName, u64>>>, FileName, u64);

impl Draft for SimulatedDraft {
    fn size_bytes(&self) -> u64 {
        self.2
    }
    fn digest(&self) -> Option<String> {
        None
    }
    fn must_copy(&self) -> bool {
        false
    }
    fn copy(&mut self, _: &Running) -> Result<(), StorageError> {
        Ok(())
    }
    fn finish(self: Box<Self>) -> Result<Hold, StorageError> {
        self.0.lock().unwrap().insert(self.1.clone(), self.2);
        Ok(Box::new(()))
    }
}

impl StorageNode for Simulated {
    fn probe(&self) -> NodeStatus {
        self.status.lock().unwrap().clone()
    }
    fn draft(&self, file: &FileName, content: &Content) -> Result<Box<dyn Draft>, StorageError> {
        let size = match content {
            Content::Empty(size) => *size,
            Content::Master(_) => GIB,
        };
        Ok(Box::new(SimulatedDraft(Arc::clone(&self.files), file.clone(), size)))
    }
    fn grow(&self, file: &FileName, size_bytes: u64) -> Result<Hold, StorageError> {
        self.files.lock().unwrap().insert(file.clone(), size_bytes);
        Ok(Box::new(()))
    }
    fn remove(&self, file: &FileName) -> Result<(), StorageError> {
        self.files.lock().unwrap().remove(file);
        Ok(())
    }
}

/// `local` drained, and two simulated nodes.
async fn cluster() -> (Bench, Arc<Simulated>, Arc<Simulated>) {
    let bench = Bench::new().await;
    let local = Change::EditAgent { name: AgentName::local(), base_url: None, roles: None, drained: Some(true), note: None };
    bench.shared.ledger.submit(local, "test").await.unwrap();
    let nodes = [Simulated::new(50 * GIB), Simulated::new(60 * GIB)];
    for (name, node) in ["a", "b"].into_iter().zip(&nodes) {
        add(&bench, name).await;
        bench.storage().drive(name.parse().unwrap(), node.clone());
    }
    let [a, b] = nodes;
    (bench, a, b)
}

async fn add(bench: &Bench, name: &str) {
    let agent = Record {
        name: name.parse().unwrap(),
        base_url: "https://10.0.0.2:8443".into(),
        roles: vec![Role::Disk],
        drained: false,
        note: String::new(),
        added_at: None,
    };
    bench.shared.ledger.submit(Change::AddAgent { agent }, "test").await.unwrap();
}

fn wanted(worker: &str, version: &str, pin: Option<&str>) -> Wanted {
    Wanted {
        worker: worker.parse().unwrap(),
        os: "debian".parse().unwrap(),
        os_version: version.parse().unwrap(),
        content: Content::Master(MASTER.parse().unwrap()),
        pin: pin.map(|p| p.parse().unwrap()),
    }
}

fn agents(planned: &PlannedBatch) -> Vec<String> {
    planned.plan.iter().map(|p| p.agent.as_ref().map_or_else(|| p.code.unwrap().to_owned(), ToString::to_string)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn k36_a_batch_is_carried_out_as_it_was_shown() {
    let (bench, a, b) = cluster().await;
    let items = vec![wanted("w1", "1", None), wanted("w1", "2", None), wanted("w2", "1", None), wanted("w2", "2", Some("b"))];
    let preview = Batch { wanted: items.clone(), dry_run: true, generation: None };
    let shown = bench.storage().create_batch(preview, "test").await.unwrap();
    assert_eq!((agents(&shown), shown.jobs.is_none()), (vec!["b".into(), "a".into(), "b".into(), "b".into()], true));
    assert!(a.files().is_empty() && b.files().is_empty(), "a preview makes nothing");
    let order = Batch { wanted: items, dry_run: false, generation: Some(shown.generation) };
    let begun = bench.storage().create_batch(order.clone(), "test").await.unwrap();
    assert_eq!(begun.plan, shown.plan);
    for (job, planned) in begun.jobs.unwrap().iter().zip(&shown.plan) {
        assert_eq!(bench.ended(job).await.disk.unwrap().agent, *planned.agent.as_ref().unwrap());
    }
    assert_eq!((a.files().len(), b.files().len()), (1, 3));
    let stale = bench.storage().create_batch(order, "test").await.unwrap_err();
    assert_eq!((stale.code, stale.status), ("plan_stale", 409));
}

#[tokio::test(flavor = "multi_thread")]
async fn k36_a_plan_whose_nodes_changed_is_refused_not_changed_and_one_refusal_holds_all() {
    let (bench, a, b) = cluster().await;
    let items = vec![wanted("w1", "1", None)];
    let preview = Batch { wanted: items.clone(), dry_run: true, generation: None };
    let shown = bench.storage().create_batch(preview, "test").await.unwrap();
    assert_eq!(agents(&shown), ["b"]);
    b.status.lock().unwrap().reachable = Err("the cable is out".into());
    let order = Batch { wanted: items, dry_run: false, generation: Some(shown.generation) };
    assert_eq!(bench.storage().create_batch(order.clone(), "test").await.unwrap_err().code, "plan_stale");
    let mut with_refusal = order.wanted.clone();
    with_refusal.push(wanted("w2", "1", Some("b")));
    let held = Batch { wanted: with_refusal, generation: None, ..order };
    let held = bench.storage().create_batch(held, "test").await.unwrap();
    assert_eq!((agents(&held), held.jobs), (vec!["a".into(), "no_storage_node".into()], None));
    assert!(held.plan[1].detail.as_ref().unwrap().contains("b: it is not reachable: the cable is out"));
    assert!(a.files().is_empty() && b.files().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn k32_a_drained_node_keeps_its_disks_and_gets_no_new_ones() {
    let (bench, _, b) = cluster().await;
    let disk = bench.create("w1", "1", Content::Master(MASTER.parse().unwrap())).await.unwrap();
    assert_eq!(disk.agent.as_str(), "b");
    let drain = Change::EditAgent { name: "b".parse().unwrap(), base_url: None, roles: None, drained: Some(true), note: None };
    bench.shared.ledger.submit(drain, "test").await.unwrap();
    for version in ["2", "3"] {
        assert_eq!(bench.create("w1", version, Content::Empty(4096)).await.unwrap().agent.as_str(), "a");
    }
    let grown = bench.storage().resize_disk(&"w1".parse().unwrap(), &disk.os_tag, 2 * GIB, "test", vec![]).await.unwrap().0;
    assert_eq!((grown.size_bytes, b.files()), (2 * GIB, vec![2 * GIB]), "what is there stays in service");
}

#[tokio::test(flavor = "multi_thread")]
async fn k32_a_node_that_is_only_recorded_is_never_chosen_and_says_why() {
    let bench = Bench::new().await;
    add(&bench, "far").await;
    assert_eq!(bench.create("w1", "1", Content::Empty(4096)).await.unwrap().agent, AgentName::local());
    let status = bench.storage().probe(&"far".parse().unwrap()).await;
    assert!(status.reachable.unwrap_err().contains("https://10.0.0.2:8443"));
    let pinned = NewDisk { wanted: wanted("w1", "2", Some("far")), remark: String::new(), expected: vec![] };
    assert_eq!(bench.storage().create_disk(pinned, "test").await.unwrap_err().code, "no_storage_node");
}

/// A node whose copies end when the test says so.
struct Slow {
    drafts: std::sync::atomic::AtomicUsize,
    files: Arc<Mutex<Vec<FileName>>>,
    release: Arc<Mutex<std::sync::mpsc::Receiver<()>>>,
}

struct SlowDraft(Arc<Mutex<Vec<FileName>>>, FileName, Arc<Mutex<std::sync::mpsc::Receiver<()>>>);

impl Draft for SlowDraft {
    fn size_bytes(&self) -> u64 {
        GIB
    }
    fn digest(&self) -> Option<String> {
        None
    }
    fn must_copy(&self) -> bool {
        true
    }
    fn copy(&mut self, job: &Running) -> Result<(), StorageError> {
        self.2.lock().unwrap().recv_timeout(WITHIN).unwrap();
        job.add(GIB).map_err(|e| job.explain(StorageError::new("disk_dir", 500, e.to_string())))
    }
    fn finish(self: Box<Self>) -> Result<Hold, StorageError> {
        self.0.lock().unwrap().push(self.1.clone());
        Ok(Box::new(()))
    }
}

impl StorageNode for Slow {
    fn probe(&self) -> NodeStatus {
        Simulated::new(50 * GIB).probe()
    }
    fn draft(&self, file: &FileName, _: &Content) -> Result<Box<dyn Draft>, StorageError> {
        self.drafts.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Ok(Box::new(SlowDraft(Arc::clone(&self.files), file.clone(), Arc::clone(&self.release))))
    }
    fn grow(&self, _: &FileName, _: u64) -> Result<Hold, StorageError> {
        Ok(Box::new(()))
    }
    fn remove(&self, file: &FileName) -> Result<(), StorageError> {
        self.files.lock().unwrap().retain(|f| f != file);
        Ok(())
    }
}

/// The slow node alone, and what lets one copy end.
async fn slow() -> (Bench, Arc<Slow>, std::sync::mpsc::Sender<()>) {
    let bench = Bench::new().await;
    let (release, released) = std::sync::mpsc::channel();
    let node = Arc::new(Slow { drafts: Default::default(), files: Arc::default(), release: Arc::new(Mutex::new(released)) });
    let local = Change::EditAgent { name: AgentName::local(), base_url: None, roles: None, drained: Some(true), note: None };
    bench.shared.ledger.submit(local, "test").await.unwrap();
    add(&bench, "slow").await;
    bench.storage().drive("slow".parse().unwrap(), node.clone());
    (bench, node, release)
}

async fn renew(bench: &Bench, worker: &str) {
    let worker: WorkerId = worker.parse().unwrap();
    bench.shared.ledger.submit(Change::DeleteWorker { worker: worker.clone() }, "test").await.unwrap();
    bench.shared.ledger.submit(Change::CreateWorker { worker }, "test").await.unwrap();
}

async fn copying(bench: &Bench) -> String {
    let content = Content::Master(MASTER.parse().unwrap());
    match bench.storage().create_disk(bench.request("w1", "13", content), "test").await.unwrap() {
        Created::Job(job) => job,
        Created::Disk(disk) => panic!("{disk:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn k41_a_job_gives_its_disk_to_the_worker_it_was_begun_for_never_to_a_new_one_of_that_name() {
    let (bench, node, release) = slow().await;
    let job = copying(&bench).await;
    renew(&bench, "w1").await;
    release.send(()).unwrap();
    let ended = bench.ended(&job).await;
    assert_eq!((ended.state, ended.code), (JobState::Failed, Some("worker_replaced")));
    let new = bench.worker("w1");
    assert_eq!((new.disks, new.default_disk, new.error.as_str()), (vec![], None, ""), "it inherits neither disk nor error");
    assert!(node.files.lock().unwrap().is_empty(), "what nobody has is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn k41_the_jobs_of_a_deleted_worker_are_cancelled() {
    let (bench, node, release) = slow().await;
    let job = copying(&bench).await;
    bench.shared.ledger.submit(Change::DeleteWorker { worker: "w1".parse().unwrap() }, "test").await.unwrap();
    bench.storage().forget_worker(&"w1".parse().unwrap());
    release.send(()).unwrap();
    assert_eq!(bench.ended(&job).await.state, JobState::Cancelled);
    assert!(node.files.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn k32_k41_what_a_plan_rests_on_is_looked_at_again_before_each_disk_of_a_batch() {
    let (bench, node, release) = slow().await;
    let versions = ["1", "2", "3"];
    let items: Vec<Wanted> = versions.iter().map(|v| wanted("w1", v, None)).chain([wanted("w2", "4", None)]).collect();
    let jobs = bench.storage().create_batch(Batch { wanted: items, dry_run: false, generation: None }, "test").await.unwrap().jobs.unwrap();
    let deadline = std::time::Instant::now() + WITHIN;
    while node.drafts.load(std::sync::atomic::Ordering::SeqCst) < COPIES {
        assert!(std::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let drain = Change::EditAgent { name: "slow".parse().unwrap(), base_url: None, roles: None, drained: Some(true), note: None };
    bench.shared.ledger.submit(drain, "test").await.unwrap();
    for _ in &jobs {
        release.send(()).unwrap();
    }
    let mut codes = vec![];
    for job in &jobs {
        codes.push(bench.ended(job).await.code.unwrap_or("ok"));
    }
    codes.sort_unstable();
    assert_eq!(codes, ["no_storage_node", "no_storage_node", "ok", "ok"], "what had begun is finished, the rest goes nowhere");
    assert_eq!(node.files.lock().unwrap().len(), 2);
}
