//! A disk folder that is really full: a small file system of its own. Here because mounting needs this layer's rights.

use http_body_util::Full;
use hyper::body::Bytes;
use kurrent_core::config::Config;
use kurrent_core::ledger::Change;
use kurrent_harness::master::write_gpt;
use kurrentd::shared::{Shared, SharedRef};
use kurrentd::storage::{Content, Created, NewDisk};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::path::PathBuf;

const MIB: usize = 1 << 20;

/// A state folder, and a disk folder on a file system of `mib` MiB.
struct Small {
    shared: SharedRef,
    disks: PathBuf,
    _folder: tempfile::TempDir,
}

impl Small {
    async fn new(mib: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disks = folder.path().join("disks");
        std::fs::create_dir(&disks).unwrap();
        let size = format!("size={mib}m");
        mount(Some("tmpfs"), &disks, Some("tmpfs"), MsFlags::empty(), Some(size.as_str())).expect("this layer may mount");
        let mut config = Config { state_dir: folder.path().join("state"), ..Config::default() };
        config.agent.disk_dir = disks.clone();
        let shared = Shared::open(config).unwrap();
        shared.ledger.submit(Change::CreateWorker { worker: "w1".parse().unwrap() }, "test").await.unwrap();
        Self { shared, disks, _folder: folder }
    }

    fn files(&self) -> Vec<String> {
        let mut names: Vec<String> =
            std::fs::read_dir(&self.disks).unwrap().flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        // What is known of masters, and is no truth.
        names.retain(|name| name != ".masters.cache.json");
        names.sort();
        names
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = umount2(&self.disks, MntFlags::MNT_DETACH);
    }
}

/// A master of `mib` MiB without a zero block.
fn master(mib: usize) -> Bytes {
    let file = tempfile::NamedTempFile::new().unwrap();
    write_gpt(file.path(), (mib * MIB) as u64).unwrap();
    let mut octets = std::fs::read(file.path()).unwrap();
    let last = octets.len() - MIB;
    octets[MIB..last].fill(0xa5);
    octets.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_ends_an_import_with_the_space_named_and_nothing_left() {
    let small = Small::new(4).await;
    let octets = master(8);
    let length = octets.len() as u64;
    let refused = small.shared.storage.import_master("big_tpl_1.img".parse().unwrap(), Some(length), Full::new(octets)).await.unwrap_err();
    assert_eq!((refused.code, refused.status), ("disk_full", 507), "{refused}");
    assert!(refused.detail.contains(&format!("{length} bytes are needed")) && refused.detail.contains("are free"), "{refused}");
    assert_eq!(small.files(), Vec::<String>::new());
    // And the folder is usable again.
    small.shared.storage.import_master("small_tpl_1.img".parse().unwrap(), None, Full::new(master(3))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_ends_a_clone_with_the_space_named_no_file_and_no_record() {
    let small = Small::new(6).await;
    let name = "debian_tpl_13.img";
    small.shared.storage.import_master(name.parse().unwrap(), None, Full::new(master(5))).await.unwrap();
    let content = Content::Master(name.parse().unwrap());
    let request = NewDisk::anywhere("w1".parse().unwrap(), "debian".parse().unwrap(), "13".parse().unwrap(), content);
    let refused = small.shared.storage.create_disk(request, "test").await.unwrap_err();
    assert_eq!(refused.code, "disk_full", "{refused}");
    assert_eq!(small.files(), [name]);
    let ledger = small.shared.ledger.snapshot();
    assert!(ledger.workers.values().all(|w| w.disks.is_empty()));
}

/// A btrfs of its own, in a file: where clones share what they have in common.
struct Btrfs {
    shared: SharedRef,
    disks: PathBuf,
    _folder: tempfile::TempDir,
}

impl Btrfs {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (image, disks) = (folder.path().join("btrfs.img"), folder.path().join("disks"));
        std::fs::create_dir(&disks).unwrap();
        std::fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
        let run = |program: &str, arguments: &[&std::ffi::OsStr]| {
            let done = std::process::Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
            assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
        };
        run("mkfs.btrfs", &["-q".as_ref(), image.as_os_str()]);
        run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), disks.as_os_str()]);
        let mut config = Config { state_dir: folder.path().join("state"), ..Config::default() };
        config.agent.disk_dir = disks.clone();
        let shared = Shared::open(config).unwrap();
        shared.ledger.submit(Change::CreateWorker { worker: "w1".parse().unwrap() }, "test").await.unwrap();
        Self { shared, disks, _folder: folder }
    }
}

impl Drop for Btrfs {
    fn drop(&mut self) {
        let _ = umount2(&self.disks, MntFlags::MNT_DETACH);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn k24_where_files_clone_by_reference_ten_clones_are_there_with_the_answer_and_take_no_room() {
    let btrfs = Btrfs::new().await;
    let storage = &btrfs.shared.storage;
    let name = "debian_tpl_13.img";
    let octets = master(64);
    storage.import_master(name.parse().unwrap(), None, Full::new(octets.clone())).await.unwrap();
    // Ten copies would need 640 MiB; there are 256.
    for version in 0..10 {
        let (os, version) = ("debian".parse().unwrap(), version.to_string().parse().unwrap());
        let request = NewDisk::anywhere("w1".parse().unwrap(), os, version, Content::Master(name.parse().unwrap()));
        let Created::Disk(disk) = storage.create_disk(request, "test").await.unwrap() else { panic!("no copy is needed") };
        assert!(std::fs::read(btrfs.disks.join(disk.filename.as_str())).unwrap() == octets);
    }
    assert!(storage.jobs().views().iter().all(|j| j.kind == kurrentd::storage::jobs::Kind::Import));
    let status = storage.probe(&"local".parse().unwrap()).await;
    assert_eq!(status.masters.values().map(|m| m.clone_bytes).collect::<Vec<_>>(), [0]);
    // A clone shares its octets until one is written to.
    let disks = btrfs.shared.ledger.snapshot().workers.values().next().unwrap().disks.clone();
    use std::os::unix::fs::FileExt;
    let path = |n: usize| btrfs.disks.join(disks[n].filename.as_str());
    std::fs::OpenOptions::new().write(true).open(path(0)).unwrap().write_all_at(b"mine", 2 << 20).unwrap();
    assert!(std::fs::read(path(1)).unwrap() == octets && std::fs::read(btrfs.disks.join(name)).unwrap() == octets);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_to_enlarge_and_to_promise_what_is_not_there() {
    let small = Small::new(8).await;
    let storage = &small.shared.storage;
    let empty = |version: &str, bytes: u64| {
        NewDisk::anywhere("w1".parse().unwrap(), "debian".parse().unwrap(), version.parse().unwrap(), Content::Empty(bytes))
    };
    let refused = storage.create_disk(empty("1", 64 << 20), "test").await.unwrap_err();
    assert_eq!((refused.code, refused.status), ("disk_full", 507));
    assert!(refused.detail.contains("local: 67108864 bytes are needed"), "each node with its reason: {refused}");
    let Created::Disk(disk) = storage.create_disk(empty("1", 4 << 20), "test").await.unwrap() else { panic!("quick") };
    let before = small.shared.ledger.snapshot().generation;
    let refused = storage.resize_disk(&"w1".parse().unwrap(), &disk.os_tag, 64 << 20, "test", vec![]).await.unwrap_err();
    assert_eq!((refused.code, small.shared.ledger.snapshot().generation), ("disk_full", before));
    assert_eq!(std::fs::metadata(small.disks.join(disk.filename.as_str())).unwrap().len(), 4 << 20, "the file is as it was");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_copies_do_not_count_on_the_same_room_so_one_is_made_and_the_other_leaves_nothing() {
    let small = Small::new(8).await;
    let storage = &small.shared.storage;
    let name = "debian_tpl_13.img";
    storage.import_master(name.parse().unwrap(), None, Full::new(master(5))).await.unwrap();
    // Planned while there is room for each alone: two at once do not fit, whoever comes second.
    let request = |version: &str| {
        let content = Content::Master(name.parse().unwrap());
        NewDisk::anywhere("w1".parse().unwrap(), "debian".parse().unwrap(), version.parse().unwrap(), content)
    };
    let (a, b) = tokio::join!(storage.create_disk(request("1"), "test"), storage.create_disk(request("2"), "test"));
    for made in [a, b] {
        let Ok(Created::Job(job)) = made else { continue };
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !storage.jobs().view(&job).unwrap().state.is_final() {
            assert!(std::time::Instant::now() < deadline);
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
    let ledger = small.shared.ledger.snapshot();
    let worker = ledger.workers.values().next().unwrap();
    assert_eq!((worker.disks.len(), small.files().len()), (1, 2), "{:?} {:?}", small.files(), storage.jobs().views());
    let jobs = storage.jobs().views();
    assert!(jobs.iter().all(|j| j.code.is_none_or(|code| code == "disk_full")), "{jobs:?}");
}
