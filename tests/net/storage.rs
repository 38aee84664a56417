//! A disk folder that is really full: a small file system of its own. Here because mounting needs this layer's rights.

use http_body_util::Full;
use hyper::body::Bytes;
use kurrent_core::config::Config;
use kurrent_core::ledger::Change;
use kurrent_harness::master::write_gpt;
use kurrentd::shared::{Shared, SharedRef};
use kurrentd::storage::{Content, NewDisk};
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
