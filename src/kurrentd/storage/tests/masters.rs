//! Masters and jobs: what the scanner learns, what may be removed when, what a cancel leaves.

use super::*;
use kurrent_core::ledger::{DiskSource, MasterTags};
use sha2::{Digest, Sha256};
use std::os::unix::fs::FileExt;

const NAME: &str = "debian_tpl_13.img";

fn sha256(octets: &[u8]) -> String {
    hex::encode(Sha256::digest(octets))
}

/// A master of 64 MiB without a zero block: a copy of it takes a while.
fn put_large(bench: &Bench) {
    let path = bench.path(NAME);
    kurrent_harness::master::write_gpt(&path, 64 << 20).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    for mib in 1..63 {
        file.write_all_at(&[0xa5; 1 << 20], mib << 20).unwrap();
    }
}

async fn until<T>(mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = std::time::Instant::now() + WITHIN;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(std::time::Instant::now() < deadline, "in time");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn k22_the_digest_of_an_import_is_known_at_once_kept_over_a_restart_and_goes_with_the_content() {
    let bench = Bench::new().await;
    let octets = master();
    let imported = bench.import(NAME, octets.clone(), None).await.unwrap();
    assert_eq!((imported.sha256, imported.sector_bytes), (Some(sha256(&octets)), Some(4096)));
    let disk = bench.create("w1", "13", Content::Master(NAME.parse().unwrap())).await.unwrap();
    let digest = Some(format!("sha256:{}", sha256(&octets)));
    assert_eq!(disk.source, DiskSource::Master { name: NAME.parse().unwrap(), digest });
    let again = local::LocalNode::open(bench.folder.path().join("disks"), TargetHandle::default());
    assert_eq!(again.catalog.masters().unwrap()[0].sha256, Some(sha256(&octets)), "from the cache file");
    std::fs::OpenOptions::new().write(true).open(bench.path(NAME)).unwrap().write_all_at(b"edited", 3 << 20).unwrap();
    assert_eq!(bench.storage().masters().await.unwrap()[0].sha256, None, "what was written after it is another content");
    std::fs::write(bench.folder.path().join("disks/.masters.cache.json"), "{damaged").unwrap();
    let again = local::LocalNode::open(bench.folder.path().join("disks"), TargetHandle::default());
    assert_eq!(again.catalog.masters().unwrap().len(), 1, "the cache is no truth");
}

#[tokio::test(flavor = "multi_thread")]
async fn k22_the_scanner_finds_what_is_put_into_the_folder_and_computes_its_digest() {
    let bench = Bench::new().await;
    bench.storage().watch_masters().unwrap();
    let octets = master();
    std::fs::write(bench.path("Debian_TPL_13.img"), &octets).unwrap();
    // Written long ago: it may be believed to be whole.
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
    std::fs::OpenOptions::new().write(true).open(bench.path("Debian_TPL_13.img")).unwrap().set_modified(long_ago).unwrap();
    let digest = until(async || bench.storage().masters().await.unwrap().pop()?.sha256).await;
    assert_eq!(digest, sha256(&octets));
}

#[tokio::test(flavor = "multi_thread")]
async fn k23_a_layout_for_512_byte_sectors_is_listed_with_the_reason_and_never_cloned() {
    let bench = Bench::new().await;
    let mut small_sectors = vec![0; 1 << 20];
    small_sectors[512..520].copy_from_slice(b"EFI PART");
    std::fs::write(bench.path(NAME), small_sectors).unwrap();
    let listed = bench.storage().master(&NAME.parse().unwrap()).await.unwrap();
    assert_eq!((listed.fault_code, listed.sector_bytes), (Some("sector_size"), Some(512)));
    assert!(listed.fault.unwrap().contains("for 512-byte sectors, but disks are served with 4096-byte blocks"));
    let refused = bench.create("w1", "13", Content::Master(NAME.parse().unwrap())).await.unwrap_err();
    assert_eq!((refused.code, bench.files()), ("sector_size", vec![NAME.to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_goes_with_its_tags_but_not_while_it_is_cloned() {
    let bench = Bench::new().await;
    put_large(&bench);
    let tags = MasterTags { name: NAME.parse().unwrap(), os: "debian".parse().ok(), os_version: None, remark: "golden".into() };
    bench.shared.ledger.submit(Change::TagMaster { tags }, "test").await.unwrap();
    let content = Content::Master(NAME.parse().unwrap());
    let made = bench.storage().create_disk(bench.request("w1", "13", content), "test").await.unwrap();
    // Where the file system clones by reference there is no such time.
    if let Created::Job(job) = made {
        let refused = bench.storage().delete_master(&NAME.parse().unwrap(), "test", vec![]).await;
        if !bench.storage().jobs().view(&job).unwrap().state.is_final() {
            assert_eq!(refused.unwrap_err().code, "busy");
        }
        assert_eq!(bench.ended(&job).await.state, JobState::Done);
    }
    if bench.path(NAME).exists() {
        bench.storage().delete_master(&NAME.parse().unwrap(), "test", vec![]).await.unwrap();
    }
    assert!(bench.shared.ledger.snapshot().masters.is_empty() && !bench.path(NAME).exists());
    let gone = bench.storage().delete_master(&NAME.parse().unwrap(), "test", vec![]).await.unwrap_err();
    assert_eq!(gone.code, "master_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_clone_leaves_nothing_and_no_error_and_can_be_asked_for_again() {
    let bench = Bench::new().await;
    put_large(&bench);
    let content = Content::Master(NAME.parse().unwrap());
    for round in 0..6 {
        let made = bench.storage().create_disk(bench.request("w1", &round.to_string(), content.clone()), "test").await.unwrap();
        let Created::Job(job) = made else { return };
        // A cancel at any time: at once, in the middle, while it ends.
        tokio::time::sleep(Duration::from_millis(round * 15)).await;
        match bench.storage().jobs().cancel(&job).await {
            Ok(view) => {
                assert_eq!((view.state, view.finished_at.is_some()), (JobState::Cancelled, true));
                assert_eq!(bench.files(), [NAME], "nothing is left when the answer is there");
                assert!(bench.disks("w1").is_empty());
            }
            Err(too_late) => {
                assert!(["job_ending", "job_finished"].contains(&too_late.code));
                let disk = bench.ended(&job).await.disk.unwrap();
                bench.shared.target.publish(following());
                bench.storage().delete_disk(&"w1".parse().unwrap(), &disk.os_tag, true, "test", vec![]).await.unwrap();
            }
        }
        assert_eq!(bench.worker("w1").error, "");
    }
    assert_eq!(bench.create("w1", "0", content).await.unwrap().size_bytes, 64 << 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_has_its_room_from_the_start_and_two_never_count_on_the_same() {
    let bench = Bench::new().await;
    let free = bench.storage().probe(&kurrent_core::id::AgentName::local()).await.free_bytes;
    // Others use this file system too: with room to spare.
    let most = free / 4 * 3 / 4096 * 4096;
    let (sender, body) = Slow::new();
    let (storage, name) = (bench.storage().clone(), NAME.parse::<FileName>().unwrap());
    let import = tokio::spawn(async move { storage.import_master(name, Some(most), body).await });
    sender.send(Bytes::from(master()[..1 << 20].to_vec())).await.unwrap();
    until(async || bench.storage().jobs().views().into_iter().find(|j| j.done_bytes == 1 << 20)).await;
    let refused = bench.import("other_tpl_1.img", master(), Some(most)).await.unwrap_err();
    assert_eq!((refused.code, refused.status), ("disk_full", 507), "{refused}");
    drop(sender);
    assert_eq!(import.await.unwrap().unwrap_err().code, "interrupted");
    assert_eq!(bench.import("other_tpl_1.img", master(), Some(most)).await.unwrap_err().code, "interrupted", "the room came back");
    assert_eq!(bench.files(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_is_a_job_that_others_see_and_can_stop() {
    let bench = Bench::new().await;
    let (sender, body) = Slow::new();
    let (storage, name) = (bench.storage().clone(), NAME.parse::<FileName>().unwrap());
    let import = tokio::spawn(async move { storage.import_master(name, Some(MASTER_BYTES as u64), body).await });
    sender.send(Bytes::from(master()[..1 << 20].to_vec())).await.unwrap();
    let job = until(async || bench.storage().jobs().views().into_iter().find(|j| j.done_bytes == 1 << 20)).await;
    assert_eq!((job.kind, job.total_bytes, job.state), (jobs::Kind::Import, MASTER_BYTES as u64, JobState::Running));
    assert_eq!(bench.storage().delete_master(&NAME.parse().unwrap(), "test", vec![]).await.unwrap_err().code, "busy");
    // The sender stalls: a cancel does not wait for it.
    assert_eq!(bench.storage().jobs().cancel(&job.id).await.unwrap().state, JobState::Cancelled);
    assert_eq!(import.await.unwrap().unwrap_err().code, "cancelled");
    assert_eq!(bench.files(), Vec::<String>::new());
    bench.import(NAME, master(), None).await.unwrap();
    let last = bench.storage().jobs().views().pop().unwrap();
    assert_eq!((last.state, last.result.as_deref()), (JobState::Done, Some("/v1/masters/debian_tpl_13.img")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_job_is_told_in_the_workers_record_until_one_succeeds() {
    let bench = Bench::new().await;
    std::fs::write(bench.path(NAME), master()).unwrap();
    let content = Content::Master(NAME.parse().unwrap());
    // Planned while the master is there, begun when it is damaged.
    let batch =
        |version: &str| Batch { wanted: vec![bench.request("w1", version, content.clone()).wanted], dry_run: false, generation: None };
    std::fs::write(bench.path(NAME), vec![0; 1 << 20]).unwrap();
    let job = bench.storage().create_batch(batch("1"), "test").await.unwrap().jobs.unwrap().remove(0);
    let failed = bench.ended(&job).await;
    assert_eq!((failed.state, failed.code), (JobState::Failed, Some("not_partitioned")));
    assert_eq!(bench.worker("w1").error, failed.detail.unwrap());
    std::fs::write(bench.path(NAME), master()).unwrap();
    let job = bench.storage().create_batch(batch("1"), "test").await.unwrap().jobs.unwrap().remove(0);
    assert_eq!(bench.ended(&job).await.state, JobState::Done);
    assert_eq!(bench.worker("w1").error, "");
}

/// A body whose sender takes its time.
struct Slow(tokio::sync::mpsc::Receiver<Bytes>);

impl Slow {
    fn new() -> (tokio::sync::mpsc::Sender<Bytes>, Self) {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        (sender, Self(receiver))
    }
}

impl Body for Slow {
    type Data = Bytes;
    type Error = &'static str;
    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        self.0.poll_recv(context).map(|octets| octets.map(|o| Ok(Frame::data(o))))
    }
}
