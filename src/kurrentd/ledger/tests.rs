use super::files::Files;
use super::load::{self, LoadError};
use super::*;
use kurrent_core::id::{MacAddr, WorkerId};
use kurrent_core::ledger::apply::apply;
use std::path::PathBuf;
use std::sync::Mutex;

pub(super) fn mac(n: u8) -> MacAddr {
    MacAddr([0x52, 0x54, 0, 0, 0, n])
}

pub(super) fn worker(name: &str) -> WorkerId {
    name.parse().unwrap()
}

pub(super) fn register(n: u8) -> Change {
    Change::Register {
        mac: mac(n),
        public_key: None,
        keyless_allowed: false,
        note: String::new(),
        labels: std::collections::BTreeMap::new(),
        address: None,
    }
}

pub(super) fn applied(ledger: &Ledger, changes: impl IntoIterator<Item = Change>) -> Ledger {
    // Always the same time: the same changes make the same ledger.
    let now = kurrent_core::time::Now { mono: Default::default(), wall: "2026-11-30T12:00:00Z".parse().unwrap() };
    changes.into_iter().fold(ledger.clone(), |l, c| apply(&l, c, now).unwrap().0)
}

pub(super) fn bound() -> [Change; 3] {
    [register(1), Change::CreateWorker { worker: worker("w1") }, Change::Bind { mac: mac(1), worker: worker("w1"), force: false }]
}

/// What a start would serve.
fn check(folder: &Path) -> Ledger {
    load::check(folder).unwrap().unwrap()
}

pub(super) async fn open(folder: &Path) -> LedgerHandle {
    LedgerHandle::open(folder, crate::audit::Audit::open(folder).unwrap())
}

fn damaged(change: impl Fn(&Path)) -> (tempfile::TempDir, LoadError) {
    let folder = tempfile::tempdir().unwrap();
    let (mut files, empty) = Files::open(folder.path()).unwrap();
    let full = applied(&empty, bound().into_iter().chain([register(2)]));
    files.commit(&empty, &full, None).unwrap();
    files.settle(&full).unwrap();
    // One more that waits in the journal.
    files.commit(&full, &applied(&full, [register(3)]), None).unwrap();
    drop(files);
    change(folder.path());
    let contents = |folder: &Path| {
        let mut all: Vec<(PathBuf, Vec<u8>)> =
            std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).map(|p| (p.clone(), std::fs::read(p).unwrap())).collect();
        all.sort();
        all
    };
    let before = contents(folder.path());
    let error = Files::open(folder.path()).err().expect("a damaged ledger is refused");
    assert_eq!(contents(folder.path()), before, "nothing is written when a ledger is refused");
    (folder, error)
}

pub(super) fn edit(file: &'static str, from: &'static str, to: &'static str) -> impl Fn(&Path) {
    move |folder| {
        let path = folder.join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from:?} is not in\n{text}");
        std::fs::write(path, text.replacen(from, to, 1)).unwrap();
    }
}

#[test]
fn damage_is_refused_with_file_and_line_and_never_taken_for_empty() {
    type Damage = Box<dyn Fn(&Path)>;
    let table: Vec<(Damage, &str)> = vec![
        (Box::new(edit("devices.yml", "state: bound", "state: bond")), "devices.yml:"),
        (Box::new(edit("devices.yml", "state: bound", "state: pooled")), "has bound_worker_id w1"),
        (Box::new(edit("devices.yml", "bound_worker_id: w1", "bound_worker_id: w9")), "is bound to Worker w9, which is not in workers.yml"),
        (Box::new(edit("devices.yml", "52:54:00:00:00:02", "52:54:00:00:00:01")), "is recorded twice"),
        (Box::new(edit("devices.yml", "epoch:", "epok:")), "did you mean 'epoch'"),
        (Box::new(edit("devices.yml", "version: 3", "version: one")), "devices.yml:"),
        (Box::new(edit("workers.yml", "worker_id: w1", "worker_id: W1")), "workers.yml:"),
        (Box::new(edit("workers.yml", "worker_id: w1", "worker_id: w1\n  default_disk: 0123456789ab")), "default_disk 0123456789ab"),
        (Box::new(|f: &Path| std::fs::write(f.join("devices.yml"), "").unwrap()), "devices.yml"),
        (Box::new(|f: &Path| std::fs::write(f.join("devices.yml"), [0u8; 4096]).unwrap()), "devices.yml"),
        (Box::new(|f: &Path| std::fs::remove_file(f.join("workers.yml")).unwrap()), "workers.yml: this file is missing"),
        (Box::new(|f: &Path| std::fs::write(f.join("intent.json"), "{").unwrap()), "intent.json"),
        (
            Box::new(|f: &Path| {
                let text = std::fs::read(f.join("devices.yml")).unwrap();
                std::fs::write(f.join("devices.yml"), text.get(..text.len() / 2).unwrap()).unwrap();
            }),
            "devices.yml:",
        ),
    ];
    for (at, (change, expected)) in table.iter().enumerate() {
        let (_folder, error) = damaged(change);
        assert!(matches!(error, LoadError::Corrupt { .. }) && error.to_string().contains(expected), "{at}: {error}");
    }
}

#[test]
fn a_record_at_fault_is_named_with_its_line() {
    let (folder, error) = damaged(edit("devices.yml", "52:54:00:00:00:02", "52:54:00:00:00:01"));
    let text = std::fs::read_to_string(folder.path().join("devices.yml")).unwrap();
    let line = text.lines().position(|l| l.contains("mac:")).unwrap() + 1;
    let second = text.lines().enumerate().filter(|(_, l)| l.contains("mac:")).nth(1).unwrap().0 + 1;
    assert!(second > line && error.to_string().contains(&format!("devices.yml:{second}:")), "{error}");
}

#[test]
fn two_daemons_never_share_a_state_folder() {
    let folder = tempfile::tempdir().unwrap();
    let first = Files::open(folder.path()).unwrap();
    assert!(matches!(Files::open(folder.path()), Err(LoadError::InUse(_))));
    drop(first);
    assert!(Files::open(folder.path()).is_ok());
}

#[test]
fn a_ledger_of_a_later_version_is_refused_as_such() {
    let (_folder, error) = damaged(edit("devices.yml", "version: 3", "version: 4\nfuture: thing"));
    assert!(matches!(error, LoadError::Newer { version: 4, .. }), "{error}");
}

#[test]
fn the_sample_of_the_released_format_still_loads() {
    let folder = tempfile::tempdir().unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/ledger/v1");
    for name in ["devices.yml", "workers.yml", "settings.yml"] {
        std::fs::copy(golden.join(name), folder.path().join(name)).unwrap();
    }
    let ledger = check(folder.path());
    assert_eq!((ledger.devices.len(), ledger.workers.len(), ledger.bound.len()), (3, 2, 1));
    // What this program writes of it is what it read.
    let (mut files, loaded) = Files::open(folder.path()).unwrap();
    let next = applied(&loaded, [register(9), Change::CreateWorker { worker: worker("new") }]);
    files.commit(&loaded, &next, None).unwrap();
    files.settle(&next).unwrap();
    let again = check(folder.path());
    assert!(loaded.devices.iter().all(|(m, d)| again.devices.get(m) == Some(d)));
    assert!(loaded.workers.iter().all(|(m, d)| again.workers.get(m) == Some(d)));
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let handle = open(folder.path()).await;
    for change in bound() {
        handle.submit(change, "user admin").await.unwrap();
    }
    // No flush, no orderly end: a new reader sees it all.
    let found = check(folder.path());
    assert_eq!(found.worker_of(mac(1)).map(|w| w.worker_id.to_string()), Some("w1".into()));
    assert_eq!(found.generation, handle.snapshot().generation);
}

#[tokio::test]
async fn changes_that_wait_together_are_committed_in_order_and_each_gets_its_answer() {
    let folder = tempfile::tempdir().unwrap();
    let handle = open(folder.path()).await;
    let tasks: Vec<_> = (0..200u8)
        .map(|n| {
            let handle = handle.clone();
            tokio::spawn(async move { handle.submit(register(n % 100), "user admin").await })
        })
        .collect();
    let mut accepted = 0;
    for task in tasks {
        match task.await.unwrap() {
            Ok((_, snapshot)) => {
                accepted += 1;
                assert!(snapshot.generation > 0);
            }
            Err(SubmitError::Rejected(r)) => assert_eq!(r.code, "device_exists"),
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!((accepted, check(folder.path()).devices.len()), (100, 100));
}

#[tokio::test]
async fn a_full_disk_refuses_the_change_and_nothing_changed() {
    let folder = tempfile::tempdir().unwrap();
    let (mut files, ledger) = Files::open(folder.path()).unwrap();
    let full = Arc::new(Mutex::new(false));
    let switch = Arc::clone(&full);
    // Half of the line fits.
    files.cut_with(
        move |step| if *switch.lock().unwrap() && step == "journal HalfWritten" { Err(std::io::Error::other("no space")) } else { Ok(()) },
    );
    let handle = LedgerHandle::start(files, ledger, crate::audit::Audit::open(folder.path()).unwrap());
    handle.submit(register(1), "user admin").await.unwrap();
    *full.lock().unwrap() = true;
    assert!(matches!(handle.submit(register(2), "user admin").await, Err(SubmitError::NotDurable(_))));
    assert_eq!(handle.snapshot().devices.len(), 1);
    assert!(handle.fault().is_some_and(|f| f.contains("journal.jsonl")));
    *full.lock().unwrap() = false;
    handle.submit(register(3), "user admin").await.unwrap();
    assert_eq!(handle.fault(), None);
    assert_eq!(check(folder.path()).devices.keys().copied().collect::<Vec<_>>(), [mac(1), mac(3)]);
}

/// Files that can not be written are a fault, and no reason to take no changes: the journal has them.
#[tokio::test]
async fn files_that_can_not_be_written_do_not_hold_changes_up() {
    let folder = tempfile::tempdir().unwrap();
    let handle = open(folder.path()).await;
    // A folder where the temporary file has to go.
    let blocker = folder.path().join(format!(".devices.yml{}", kurrent_sys::store::TEMPORARY_SUFFIX));
    std::fs::create_dir(&blocker).unwrap();
    handle.submit(register(1), "user admin").await.unwrap();
    handle.flush().await;
    assert!(handle.fault().is_some_and(|f| f.contains("devices.yml") && f.contains("safe in the journal")));
    handle.submit(register(2), "user admin").await.unwrap();
    assert_eq!(check(folder.path()).devices.len(), 2);
    std::fs::remove_dir(&blocker).unwrap();
    handle.flush().await;
    assert_eq!((handle.fault(), load::examine(folder.path()).unwrap().unwrap().waiting), (None, 0));
}

#[tokio::test]
async fn a_change_in_doubt_is_told_as_such_and_nothing_more_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let (mut files, ledger) = Files::open(folder.path()).unwrap();
    files.cut_with(|step| if step == "journal Written" { Err(std::io::Error::other("cut")) } else { Ok(()) });
    let audit = crate::audit::Audit::open(folder.path()).unwrap();
    let handle = LedgerHandle::start(files, ledger, audit.clone());
    let answer = handle.submit(register(1), "user admin").await.unwrap_err();
    assert!(matches!(&answer, SubmitError::InDoubt(w) if w.contains("journal.jsonl")), "{answer}");
    let answer = handle.submit(register(2), "user admin").await.unwrap_err();
    assert!(matches!(&answer, SubmitError::Stopped(w) if w.contains("restarted")), "{answer}");
    assert!(handle.snapshot().devices.is_empty() && handle.fault().is_some_and(|f| f.contains("restarted")));
    let results: Vec<String> = audit.read(&crate::audit::Filter::default()).unwrap().entries.into_iter().rev().map(|e| e.result).collect();
    assert_eq!(results, ["in_doubt"]);
}

#[tokio::test]
async fn a_writer_that_dies_with_a_change_leaves_it_in_doubt() {
    let folder = tempfile::tempdir().unwrap();
    let (mut files, ledger) = Files::open(folder.path()).unwrap();
    files.cut_with(|_| panic!("a fault in the commit"));
    let handle = LedgerHandle::start(files, ledger, crate::audit::Audit::open(folder.path()).unwrap());
    assert!(matches!(handle.submit(register(1), "user admin").await, Err(SubmitError::InDoubt(_))));
    assert!(matches!(handle.submit(register(2), "user admin").await, Err(SubmitError::Stopped(_))));
    // The other way to die: the order was taken and the answer's sender is dropped.
    let (orders, mut taken) = mpsc::channel(1);
    let handle = LedgerHandle { orders, ..handle };
    tokio::spawn(async move { drop(taken.recv().await) });
    assert!(matches!(handle.submit(register(3), "user admin").await, Err(SubmitError::InDoubt(_))));
}

#[tokio::test]
async fn unreadable_ledgers_refuse_every_change_and_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    drop(Files::open(folder.path()).unwrap());
    std::fs::write(folder.path().join("devices.yml"), "version: 1\ngeneration: 1\ndevices: [\n").unwrap();
    let handle = open(folder.path()).await;
    assert!(handle.unreadable());
    assert!(matches!(handle.submit(register(1), "user admin").await, Err(SubmitError::Stopped(w)) if w.contains("devices.yml:")));
    assert_eq!(std::fs::read_to_string(folder.path().join("devices.yml")).unwrap(), "version: 1\ngeneration: 1\ndevices: [\n");
}

#[tokio::test]
async fn a_refresh_is_seen_at_once_wakes_nobody_and_is_written_with_the_next_flush() {
    let folder = tempfile::tempdir().unwrap();
    let handle = open(folder.path()).await;
    handle.submit(register(1), "user admin").await.unwrap();
    let mut watch = handle.watch();
    watch.mark_unchanged();
    let fingerprint = kurrent_core::ledger::Fingerprint { product: "box".into(), ..Default::default() };
    let report = Change::Report { mac: mac(1), uuid: String::new(), public_key: None, fingerprint };
    let (outcome, _) = handle.submit(report, "device").await.unwrap();
    assert_eq!((outcome, watch.has_changed().unwrap()), (Outcome::Refreshed, false));
    assert_eq!(handle.snapshot().device(mac(1)).unwrap().fingerprint.product, "box");
    assert_eq!(check(folder.path()).device(mac(1)).unwrap().fingerprint.product, "");
    handle.flush().await;
    assert_eq!(check(folder.path()).device(mac(1)).unwrap().fingerprint.product, "box");
}

#[tokio::test]
async fn unknown_devices_knock_until_they_are_in_the_ledger() {
    let folder = tempfile::tempdir().unwrap();
    let handle = open(folder.path()).await;
    let report = Change::Report { mac: mac(1), uuid: "u".into(), public_key: None, fingerprint: Default::default() };
    let (outcome, _) = handle.submit(report, "device").await.unwrap();
    assert_eq!(outcome, Outcome::Knocking);
    assert_eq!(handle.knocking().list().len(), 1);
    handle.submit(register(1), "user admin").await.unwrap();
    assert!(handle.knocking().list().is_empty());
}

/// Tags are for display, nodes for placing disks: neither stops a boot.
#[test]
fn a_damaged_side_ledger_stops_what_it_governs_and_nothing_else() {
    use kurrent_core::ledger::MasterTags;
    let name: kurrent_core::id::FileName = "debian_tpl_12.img".parse().unwrap();
    let local = kurrent_core::id::AgentName::local();
    let tag =
        |remark: &str| Change::TagMaster { tags: MasterTags { name: name.clone(), os: None, os_version: None, remark: remark.into() } };
    let node = |note: &str| Change::EditAgent { name: local.clone(), base_url: None, roles: None, drained: None, note: Some(note.into()) };
    for file in ["masters.yml", "agents.yml"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(file);
        let (mut files, empty) = Files::open(folder.path()).unwrap();
        let filed = applied(&empty, bound().into_iter().chain([tag("one"), node("one")]));
        files.commit(&empty, &filed, None).unwrap();
        files.settle(&filed).unwrap();
        let waits = applied(&filed, [tag("two"), node("two")]);
        files.commit(&filed, &waits, None).unwrap();
        drop(files);
        let whole = std::fs::read_to_string(&path).unwrap();
        let damage = whole.replace("one", "[");
        assert_ne!(damage, whole);
        std::fs::write(&path, &damage).unwrap();

        let (mut files, served) = Files::open(folder.path()).unwrap();
        assert!(served.unread.has(file) && served.bound.len() == 1, "{:?}", served.unread);
        assert!(served.unread.whys().all(|why| why.contains(&format!("{file}:"))), "{:?}", served.unread);
        let now = kurrent_sys::clock::now();
        for (change, governed_by) in [(tag("three"), "masters.yml"), (node("three"), "agents.yml")] {
            let code = apply(&served, change, now).err().map(|r| r.code);
            assert_eq!(code, (governed_by == file).then_some("ledger_damaged"));
        }
        assert!(load::texts(&served).is_err(), "no backup of half a ledger");
        let next = applied(&served, [register(2)]);
        files.commit(&served, &next, None).unwrap();
        files.settle(&next).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), damage, "it is left as it is");
        std::fs::write(&path, &whole).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let told = loop {
            match files.look(&next) {
                files::Look::Refused(why) => break why,
                _ => assert!(std::time::Instant::now() < deadline),
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        assert!(told.contains("restart kurrentd"), "{told}");
        drop(files);
        let again = check(folder.path());
        assert!(again.unread.is_empty() && again.device(mac(2)).is_some());
        assert_eq!(again.masters.get(&name).unwrap().remark, "two", "what waited in the journal is not lost");
        assert_eq!(again.agent(&local).unwrap().note, "two");
    }
}
