//! Disks that are there: adopted, enlarged, deleted; two of everything at once.

use super::*;
use kurrent_core::ledger::DiskSource;

fn adoption(worker: &str, file: &str, version: &str) -> Adoption {
    Adoption {
        worker: worker.parse().unwrap(),
        file: file.parse().unwrap(),
        os: "debian".parse().unwrap(),
        os_version: version.parse().unwrap(),
        remark: "found again".into(),
        expected: vec![],
    }
}

async fn followed() -> Bench {
    let bench = Bench::new().await;
    bench.shared.target.publish(following());
    bench
}

#[tokio::test(flavor = "multi_thread")]
async fn k37_k42_a_retained_file_becomes_a_disk_again_with_a_new_identity_and_the_same_content() {
    let bench = followed().await;
    let octets = master();
    std::fs::write(bench.path("debian_tpl_13.img"), &octets).unwrap();
    let old = bench.create("w1", "13", Content::Master("debian_tpl_13.img".parse().unwrap())).await.unwrap();
    bench.storage().delete_disk(&"w1".parse().unwrap(), &old.os_tag, false, "test", vec![]).await.unwrap();
    assert_eq!(bench.leftovers().await, [old.filename.to_string()]);
    let new = bench.storage().adopt_disk(adoption("w2", old.filename.as_str(), "13"), "test").await.unwrap();
    assert_eq!((new.source.clone(), new.size_bytes, new.remark.as_str()), (DiskSource::Adopted, old.size_bytes, "found again"));
    assert!(new.os_tag != old.os_tag && new.nqn != old.nqn && new.uuid != old.uuid);
    assert_eq!(new.filename.as_str(), format!("w2.debian.{}.img", new.os_tag));
    assert!(std::fs::read(bench.path(new.filename.as_str())).unwrap() == octets);
    assert_eq!((bench.disks("w2"), bench.leftovers().await), (vec![new], vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn k42_what_can_not_be_a_disk_is_refused_by_name_and_keeps_its_name() {
    let bench = followed().await;
    let taken = bench.create("w1", "1", Content::Empty(1 << 20)).await.unwrap();
    let mut small_sectors = vec![0; 1 << 20];
    small_sectors[512..520].copy_from_slice(b"EFI PART");
    let mut damaged = master();
    damaged[4096 + 40] ^= 1;
    let files = [("small", small_sectors), ("odd", vec![0; 5000]), ("void", vec![]), ("damaged", damaged), ("fine", vec![0; 8192])];
    for (name, octets) in &files {
        std::fs::write(bench.path(name), octets).unwrap();
    }
    std::fs::write(bench.path("a_tpl_1.img"), master()).unwrap();
    std::os::unix::fs::symlink(bench.path("fine"), bench.path("link")).unwrap();
    std::fs::write(bench.path("twice"), [0; 4096]).unwrap();
    std::fs::hard_link(bench.path("twice"), bench.path("twice-too")).unwrap();
    std::fs::create_dir(bench.path("folder")).unwrap();
    for (file, version, code) in [
        ("none", "2", "file_not_found"),
        ("small", "2", "sector_size"),
        ("odd", "2", "size"),
        ("void", "2", "size"),
        ("damaged", "2", "damaged"),
        ("a_tpl_1.img", "2", "file_is_master"),
        (taken.filename.as_str(), "2", "file_is_recorded"),
        ("link", "2", "not_a_file"),
        ("folder", "2", "not_a_file"),
        ("twice", "2", "file_is_linked"),
        ("fine", "1", "disk_exists"),
    ] {
        let before = bench.files();
        let refused = bench.storage().adopt_disk(adoption("w1", file, version), "test").await.unwrap_err();
        assert_eq!((refused.code, bench.files()), (code, before), "{file}: {refused}");
    }
    assert_eq!(bench.storage().adopt_disk(adoption("nobody", "fine", "1"), "test").await.unwrap_err().code, "worker_not_found");
    // Still exported: as a record that was just removed, which the kernel has not followed.
    let path = bench.path("fine").display().to_string();
    bench.shared.target.publish(exporting(path));
    assert_eq!(bench.storage().adopt_disk(adoption("w1", "fine", "2"), "test").await.unwrap_err().code, "still_exported");
    assert_eq!(bench.storage().delete_leftover(&"fine".parse().unwrap()).await.unwrap_err().code, "still_exported");
    assert!(bench.path("fine").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn k42_two_adoptions_of_one_file_make_one_disk() {
    let bench = followed().await;
    for round in 0..10 {
        std::fs::write(bench.path("found"), [7; 4096]).unwrap();
        let version = round.to_string();
        let (a, b, c) = tokio::join!(
            bench.storage().adopt_disk(adoption("w1", "found", &version), "test"),
            bench.storage().adopt_disk(adoption("w2", "found", &version), "test"),
            async { bench.storage().delete_leftover(&"found".parse().unwrap()).await },
        );
        let won = [a.is_ok(), b.is_ok(), c.is_ok()].into_iter().filter(|won| *won).count();
        assert_eq!(won, 1, "{a:?} {b:?} {c:?}");
        let files: Vec<String> = a.into_iter().chain(b).map(|d| d.filename.to_string()).collect();
        for file in &files {
            assert_eq!(std::fs::read(bench.path(file)).unwrap(), [7; 4096]);
        }
        assert!(bench.leftovers().await.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn k42_an_adoption_cut_off_before_its_record_leaves_a_file_that_can_be_adopted_again() {
    for (step, code) in [("journal HalfWritten", "not_durable"), ("journal Written", "in_doubt")] {
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
        let target = settled();
        let storage = Storage::open(&config.agent, ledger, audit, target).unwrap();
        std::fs::write(config.agent.disk_dir.join("found"), [7; 4096]).unwrap();
        *broken.lock().unwrap() = true;
        assert_eq!(storage.adopt_disk(adoption("w1", "found", "1"), "test").await.unwrap_err().code, code);
        let left = storage.leftovers().await.unwrap();
        assert_eq!(left.len(), 1, "the file is there under one name");
        assert_eq!(left[0].name == "found", code == "not_durable", "what is known not to be recorded has its old name: {left:?}");
        assert_eq!(std::fs::read(config.agent.disk_dir.join(&left[0].name)).unwrap(), [7; 4096]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_grows_durably_and_never_shrinks_and_what_a_crash_left_is_shown_and_completed() {
    let bench = Bench::new().await;
    let worker: WorkerId = "w1".parse().unwrap();
    let disk = bench.create("w1", "1", Content::Empty(1 << 20)).await.unwrap();
    std::fs::write(bench.path(disk.filename.as_str()), vec![9; 1 << 20]).unwrap();
    let resize = |size| bench.storage().resize_disk(&worker, &disk.os_tag, size, "test", vec![]);
    assert_eq!(resize(2 << 20).await.unwrap().0.size_bytes, 2 << 20);
    let octets = std::fs::read(bench.path(disk.filename.as_str())).unwrap();
    assert!(octets[..1 << 20] == vec![9; 1 << 20] && octets[1 << 20..] == vec![0; 1 << 20], "what was there stays");
    for (size, code) in [(1 << 20, "disk_shrinks"), ((2 << 20) + 1, "size"), (1 << 60, "disk_full")] {
        assert_eq!(resize(size).await.unwrap_err().code, code);
    }
    assert_eq!(resize(2 << 20).await.unwrap().0.size_bytes, 2 << 20, "asked for again");
    // The file was enlarged, and then the power failed.
    std::fs::OpenOptions::new().write(true).open(bench.path(disk.filename.as_str())).unwrap().set_len(4 << 20).unwrap();
    let fault = bench.storage().file_faults(bench.disks("w1")).await.unwrap().remove(0).unwrap();
    assert!(fault.contains("resize it to 4194304"), "{fault}");
    assert_eq!(resize(3 << 20).await.unwrap_err().code, "disk_shrinks", "the file never gets smaller");
    assert_eq!(resize(4 << 20).await.unwrap().0.size_bytes, 4 << 20);
    assert_eq!(bench.storage().file_faults(bench.disks("w1")).await.unwrap(), [None]);
    std::fs::remove_file(bench.path(disk.filename.as_str())).unwrap();
    assert!(bench.storage().file_faults(bench.disks("w1")).await.unwrap()[0].as_ref().unwrap().contains("is gone"));
    assert_eq!(resize(8 << 20).await.unwrap_err().code, "file_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn resizes_and_a_deletion_at_once_leave_file_and_record_in_step() {
    let bench = followed().await;
    let worker: WorkerId = "w1".parse().unwrap();
    for round in 0..10 {
        let disk = bench.create("w1", &round.to_string(), Content::Empty(1 << 20)).await.unwrap();
        let (a, b, deleted) = tokio::join!(
            bench.storage().resize_disk(&worker, &disk.os_tag, 2 << 20, "test", vec![]),
            bench.storage().resize_disk(&worker, &disk.os_tag, 3 << 20, "test", vec![]),
            async {
                if round % 2 == 0 { Some(bench.storage().delete_disk(&worker, &disk.os_tag, true, "test", vec![]).await) } else { None }
            },
        );
        if let Some(deleted) = deleted {
            assert!(bench.disks("w1").iter().all(|d| d.os_tag != disk.os_tag));
            // A resize at work held the file: it is left over then, as the answer says.
            assert_eq!(bench.path(disk.filename.as_str()).exists(), !deleted.as_ref().unwrap().0.is_empty(), "{deleted:?}");
        } else {
            assert!(a.is_ok() || b.is_ok(), "{a:?} {b:?}");
            let faults = bench.storage().file_faults(bench.disks("w1")).await.unwrap();
            assert!(faults.iter().all(Option::is_none), "{faults:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn k37_k38_only_files_without_a_record_can_be_removed_as_leftovers() {
    let bench = followed().await;
    let disk = bench.create("w1", "1", Content::Empty(1 << 20)).await.unwrap();
    std::fs::write(bench.path("debian_tpl_13.img"), master()).unwrap();
    std::fs::write(bench.path("stray"), "x").unwrap();
    for (file, code) in [(disk.filename.as_str(), "file_is_recorded"), ("debian_tpl_13.img", "file_is_master"), ("none", "file_not_found")]
    {
        assert_eq!(bench.storage().delete_leftover(&file.parse().unwrap()).await.unwrap_err().code, code);
    }
    bench.storage().delete_leftover(&"stray".parse().unwrap()).await.unwrap();
    assert_eq!(bench.files(), ["debian_tpl_13.img", disk.filename.as_str()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn k20_the_newest_remaining_disk_is_promoted_and_none_left_clears_the_default() {
    let bench = followed().await;
    let worker: WorkerId = "w1".parse().unwrap();
    let mut disks = vec![];
    for version in ["1", "2", "3"] {
        disks.push(bench.create("w1", version, Content::Empty(4096)).await.unwrap());
    }
    assert_eq!(bench.worker("w1").default_disk, Some(disks[0].os_tag.clone()), "K19: the first stays default");
    for (delete, default) in [(0, Some(2)), (2, Some(1)), (1, None)] {
        bench.storage().delete_disk(&worker, &disks[delete].os_tag, true, "test", vec![]).await.unwrap();
        assert_eq!(bench.worker("w1").default_disk, default.map(|d: usize| disks[d].os_tag.clone()));
    }
    assert_eq!(bench.files(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn with_ledgers_that_do_not_read_no_file_looks_unrecorded_to_who_would_remove_or_adopt_it() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("state")).unwrap();
    std::fs::write(folder.path().join("state/workers.yml"), "damaged: [").unwrap();
    let bench = Bench::open(folder);
    assert!(bench.shared.ledger.unreadable());
    bench.shared.target.publish(following());
    std::fs::write(bench.path("w1.debian.000000000001.img"), [7; 4096]).unwrap();
    let file = "w1.debian.000000000001.img";
    assert_eq!(bench.storage().delete_leftover(&file.parse().unwrap()).await.unwrap_err().code, "not_served");
    assert!(bench.storage().adopt_disk(adoption("w1", file, "1"), "test").await.is_err());
    assert_eq!(bench.files(), [file]);
}
