//! People edit ledger files: while kurrentd runs and while it does not, the same records as others and other ones.

use super::files::{Files, Look};
use super::load::examine;
use super::tests::{applied, bound, edit, mac, register, worker};
use super::*;
use kurrent_core::ledger::DeviceState;
use std::time::{Duration, Instant};

fn note(n: u8, text: &str) -> Change {
    Change::EditDevice { mac: mac(n), note: Some(text.into()), keyless_allowed: None, loader: None, address: None }
}

/// A folder whose files are up to date with three devices, one bound to w1.
fn filed(folder: &Path) -> (Files, Ledger) {
    let (mut files, empty) = Files::open(folder).unwrap();
    let ledger = applied(&empty, bound().into_iter().chain([register(2), register(3), note(1, "one"), note(2, "two"), note(3, "three")]));
    files.commit(&empty, &ledger, None).unwrap();
    files.settle(&ledger).unwrap();
    (files, ledger)
}

/// What comes of an edit once it rests.
fn look(files: &mut Files, ours: &Ledger) -> Look {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match files.look(ours) {
            Look::BeingEdited => assert!(Instant::now() < deadline),
            other => return other,
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Takes an edit up; gives the ledger with it.
fn taken(files: &mut Files, ours: &Ledger) -> Ledger {
    match look(files, ours) {
        Look::Edited(edit) => {
            let next = edit.ledger.clone();
            files.commit(ours, &next, Some(*edit)).unwrap();
            next
        }
        Look::Refused(why) => panic!("{why}"),
        Look::Same | Look::BeingEdited => panic!("the edit was not seen"),
    }
}

fn refused(files: &mut Files, ours: &Ledger) -> String {
    match look(files, ours) {
        Look::Refused(why) => why,
        Look::Same | Look::BeingEdited | Look::Edited(_) => panic!("the edit was not refused"),
    }
}

fn note_of(ledger: &Ledger, n: u8) -> String {
    ledger.device(mac(n)).unwrap().note.clone()
}

fn line_of(folder: &Path, n: u8) -> usize {
    let text = std::fs::read_to_string(folder.join("devices.yml")).unwrap();
    text.lines().position(|l| l.contains(&mac(n).to_string())).unwrap() + 1
}

#[test]
fn an_edit_of_one_record_and_a_change_of_another_both_stand() {
    let folder = tempfile::tempdir().unwrap();
    let (mut files, ledger) = filed(folder.path());
    let ours = applied(&ledger, [note(1, "ours"), Change::CreateWorker { worker: worker("w2") }]);
    files.commit(&ledger, &ours, None).unwrap();
    edit("devices.yml", "note: two", "note: by hand")(folder.path());
    let next = taken(&mut files, &ours);
    assert_eq!((note_of(&next, 1), note_of(&next, 2), next.workers.len()), ("ours".into(), "by hand".into(), 2));
    assert_eq!(next.generation, ours.generation + 1);
    // Killed before the files are written anew: the journal takes the edited file for what it is.
    drop(files);
    let (mut files, found) = Files::open(folder.path()).unwrap();
    assert!(next.records().differences(&found.records()).is_empty() && found.generation == next.generation);
    files.settle(&found).unwrap();
    drop(files);
    let checked = examine(folder.path()).unwrap().unwrap();
    assert!(checked.waiting == 0 && next.records().differences(&checked.ledger.records()).is_empty());
}

#[test]
fn an_edit_of_a_file_that_has_just_been_written_is_seen() {
    for step in ["devices.yml Renamed", "devices.yml FolderSynced", "settings.yml FolderSynced"] {
        let folder = tempfile::tempdir().unwrap();
        let (mut files, ledger) = filed(folder.path());
        let ours = applied(&ledger, [note(1, "ours")]);
        files.commit(&ledger, &ours, None).unwrap();
        let path = folder.path().to_owned();
        files.cut_with(move |at| {
            if at == step {
                edit("devices.yml", "note: two", "note: by hand")(&path);
            }
            Ok(())
        });
        let _ = files.settle(&ours);
        files.cut_with(|_| Ok(()));
        let next = taken(&mut files, &ours);
        assert_eq!((note_of(&next, 1), note_of(&next, 2)), ("ours".into(), "by hand".into()), "{step}");
    }
}

#[test]
fn a_record_that_was_changed_on_both_sides_is_refused_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let (mut files, ledger) = filed(folder.path());
    let ours = applied(&ledger, [note(2, "ours")]);
    files.commit(&ledger, &ours, None).unwrap();
    edit("devices.yml", "note: two", "note: by hand")(folder.path());
    let why = refused(&mut files, &ours);
    assert!(
        why.contains(&format!("devices.yml:{}: ", line_of(folder.path(), 2))) && why.contains("take the edit of this record back"),
        "{why}"
    );
    assert!(files.job(&ours).is_none(), "the edit is not overwritten");
    // As the message says.
    edit("devices.yml", "note: by hand", "note: two")(folder.path());
    assert!(matches!(look(&mut files, &ours), Look::Same));
    files.settle(&ours).unwrap();
    edit("devices.yml", "note: ours", "note: by hand")(folder.path());
    assert_eq!(note_of(&taken(&mut files, &ours), 2), "by hand");
}

#[test]
fn the_same_change_by_hand_and_by_order_is_no_conflict() {
    let folder = tempfile::tempdir().unwrap();
    let (mut files, ledger) = filed(folder.path());
    let ours = applied(&ledger, [note(2, "new")]);
    files.commit(&ledger, &ours, None).unwrap();
    edit("devices.yml", "note: two", "note: new")(folder.path());
    assert_eq!(note_of(&taken(&mut files, &ours), 2), "new");
}

/// Each side is right, the two together are not.
#[test]
fn an_edit_that_only_contradicts_the_ledger_as_it_is_now_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (mut files, ledger) = filed(folder.path());
    let ours = applied(&ledger, [Change::Unbind { mac: mac(1) }, Change::Bind { mac: mac(3), worker: worker("w1"), force: false }]);
    files.commit(&ledger, &ours, None).unwrap();
    let name = mac(2).to_string();
    let path = folder.path().join("devices.yml");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, after) = text.split_at(text.find(&name).unwrap());
    std::fs::write(&path, format!("{before}{}", after.replacen("state: pooled", "state: bound\n  bound_worker_id: w1", 1))).unwrap();
    let why = refused(&mut files, &ours);
    assert!(why.contains("both bound to Worker w1"), "{why}");
}

#[test]
fn an_edited_binding_is_fenced_by_a_new_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let (mut files, ledger) = filed(folder.path());
    edit("devices.yml", "state: bound\n  bound_worker_id: w1", "state: pooled")(folder.path());
    let next = taken(&mut files, &ledger);
    let device = next.device(mac(1)).unwrap();
    assert_eq!((device.state, device.epoch), (DeviceState::Pooled, next.generation));
    drop(files);
    let (_, found) = Files::open(folder.path()).unwrap();
    assert_eq!(found.device(mac(1)).unwrap().epoch, next.generation);
}

/// With a generation at the end of all numbers the next change could not be told from none: answered, and not durable.
#[test]
fn a_generation_or_epoch_that_leaves_no_room_for_changes_is_refused() {
    type Wanted = (&'static str, &'static str);
    let end = u64::MAX.to_string();
    for (file, key) in [("settings.yml", "generation: "), ("devices.yml", "generation: "), ("devices.yml", "epoch: ")] as [Wanted; 3] {
        let folder = tempfile::tempdir().unwrap();
        let (mut files, ledger) = filed(folder.path());
        let path = folder.path().join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        let (before, after) = text.split_at(text.find(key).unwrap());
        let rest = &after[after.find('\n').unwrap()..];
        std::fs::write(&path, format!("{before}{key}{end}{rest}")).unwrap();
        // A change that would be taken by itself.
        edit("devices.yml", "note: two", "note: by hand")(folder.path());
        let why = refused(&mut files, &ledger);
        assert!(why.contains(file) && why.contains(&end), "{file} {key}: {why}");
        drop(files);
        // Nor by a start, also when the journal that does not fit is emptied as the message says.
        assert!(Files::open(folder.path()).is_err(), "{file} {key}");
        std::fs::write(folder.path().join("journal.jsonl"), "").unwrap();
        let why = Files::open(folder.path()).err().unwrap().to_string();
        assert!(why.contains(file) && why.contains(&end), "{file} {key}: {why}");
    }
}

/// What is no record is taken back: the next start would refuse what it says.
#[test]
fn after_an_edit_of_nothing_but_the_head_of_a_file_the_next_start_serves() {
    for (from, to) in [("generation: ", "generation: 9"), ("version: 3", "version: 1")] {
        let folder = tempfile::tempdir().unwrap();
        let (mut files, ledger) = filed(folder.path());
        edit("devices.yml", from, to)(folder.path());
        assert!(matches!(look(&mut files, &ledger), Look::Same), "{to}");
        // As the writer does it: at once, and beside changes of other files.
        assert!(files.due(&ledger).is_some());
        let done = files.job(&ledger).unwrap().run();
        files.finish(done).unwrap();
        let next = applied(&ledger, [Change::CreateWorker { worker: worker("w2") }]);
        files.commit(&ledger, &next, None).unwrap();
        drop(files);
        let (_, found) = Files::open(folder.path()).unwrap();
        assert_eq!((found.generation, found.workers.len()), (next.generation, 2), "{to}");
    }
}

#[test]
fn a_ledger_file_that_is_gone_is_written_anew_and_the_journal_too() {
    let all = ["masters.yml", "agents.yml", "workers.yml", "devices.yml", "settings.yml", "journal.jsonl"];
    for gone in [&all[3..4], &all[..]] {
        let folder = tempfile::tempdir().unwrap();
        let (mut files, ledger) = filed(folder.path());
        for name in gone {
            std::fs::remove_file(folder.path().join(name)).unwrap();
        }
        assert!(matches!(look(&mut files, &ledger), Look::Same));
        for _ in 0..3 {
            files.settle(&ledger).unwrap();
        }
        drop(files);
        let (_, found) = Files::open(folder.path()).unwrap();
        assert!(found.generation == ledger.generation && found.records().differences(&ledger.records()).is_empty(), "{gone:?}");
    }
}

/// What is refused for a full journal says: finish the edit.
#[test]
fn an_edit_that_is_repaired_is_taken_although_the_journal_is_full() {
    let folder = tempfile::tempdir().unwrap();
    let (mut files, mut ledger) = filed(folder.path());
    edit("devices.yml", "state: bound", "state: pooled")(folder.path());
    refused(&mut files, &ledger);
    // Nothing is put into the files, so the journal grows.
    let next = applied(&ledger, [note(3, "ours")]);
    files.commit(&ledger, &next, None).unwrap();
    ledger = next;
    files.fill_journal();
    let next = applied(&ledger, [note(2, "ours")]);
    let full = files.commit(&ledger, &next, None).unwrap_err();
    assert!(matches!(&full, super::files::CommitError::NotDone(what) if what.contains("full")), "{full:?}");
    edit("devices.yml", "  bound_worker_id: w1\n", "")(folder.path());
    ledger = taken(&mut files, &ledger);
    files.settle(&ledger).unwrap();
    let next = applied(&ledger, [note(2, "ours")]);
    files.commit(&ledger, &next, None).unwrap();
}

#[test]
fn an_edit_is_taken_although_the_journal_was_lost_too() {
    let folder = tempfile::tempdir().unwrap();
    let (mut files, ledger) = filed(folder.path());
    let ours = applied(&ledger, [note(3, "waits")]);
    files.commit(&ledger, &ours, None).unwrap();
    std::fs::remove_file(folder.path().join("journal.jsonl")).unwrap();
    edit("devices.yml", "note: two", "note: by hand")(folder.path());
    let next = taken(&mut files, &ours);
    let after = applied(&next, [note(1, "after")]);
    files.commit(&next, &after, None).unwrap();
    drop(files);
    let (_, found) = Files::open(folder.path()).unwrap();
    assert_eq!([1, 2, 3].map(|n| note_of(&found, n)), ["after", "by hand", "waits"]);
}

/// Opening one waits for whoever writes into it.
#[test]
fn a_pipe_in_the_place_of_a_ledger_file_is_refused_and_holds_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let (mut files, ledger) = filed(folder.path());
    let path = folder.path().join("devices.yml");
    std::fs::remove_file(&path).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600), 0).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(refused(&mut files, &ledger)));
    let why = told.recv_timeout(Duration::from_secs(20)).expect("it waits for ever");
    assert!(why.contains("devices.yml") && why.contains("no regular file"), "{why}");
}

#[test]
fn what_a_device_says_of_itself_is_never_in_the_way_of_an_edit() {
    let folder = tempfile::tempdir().unwrap();
    let (mut files, ledger) = filed(folder.path());
    let fingerprint = kurrent_core::ledger::Fingerprint { product: "box".into(), ..Default::default() };
    let report = Change::Report { mac: mac(2), uuid: "u".into(), public_key: None, fingerprint };
    let ours = applied(&ledger, [report]);
    edit("devices.yml", "note: two", "note: by hand")(folder.path());
    let next = taken(&mut files, &ours);
    let device = next.device(mac(2)).unwrap();
    assert_eq!((device.note.as_str(), device.fingerprint.product.as_str(), device.last_seen.is_some()), ("by hand", "box", true));
}

/// The files were edited while no daemon ran, and changes wait in the journal.
#[test]
fn an_edit_while_the_daemon_is_down_is_told_from_what_waits_in_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let (mut files, ledger) = filed(folder.path());
    let one = applied(&ledger, [note(1, "first")]);
    files.commit(&ledger, &one, None).unwrap();
    let two = applied(&one, [note(1, "second"), Change::Revoke { mac: mac(3) }]);
    files.commit(&one, &two, None).unwrap();
    drop(files);
    let serves = || examine(folder.path()).map(|c| c.unwrap().ledger).map_err(|e| e.to_string());
    // Another record.
    edit("devices.yml", "note: two", "note: by hand")(folder.path());
    let found = serves().unwrap();
    assert_eq!((note_of(&found, 1), note_of(&found, 2)), ("second".into(), "by hand".into()));
    // The same record: refused with its line and the journal's.
    edit("devices.yml", "note: one", "note: mine")(folder.path());
    let why = serves().unwrap_err();
    assert!(why.contains(&format!("devices.yml:{}: ", line_of(folder.path(), 1))) && why.contains("journal.jsonl:3"), "{why}");
    assert!(Files::open(folder.path()).is_err());
    // Either way out that the message names.
    edit("devices.yml", "note: mine", "note: second")(folder.path());
    assert_eq!(note_of(&serves().unwrap(), 1), "second");
    edit("devices.yml", "note: second", "note: one")(folder.path());
    let (_, found) = Files::open(folder.path()).unwrap();
    assert_eq!((note_of(&found, 1), found.device(mac(3)).unwrap().state), ("second".into(), DeviceState::Revoked));
}

#[test]
fn a_record_removed_by_hand_while_the_ledger_changed_it_is_a_conflict() {
    let folder = tempfile::tempdir().unwrap();
    let (mut files, ledger) = filed(folder.path());
    let ours = applied(&ledger, [Change::SetWorkerError { worker: worker("w1"), error: "oh".into() }]);
    let path = folder.path().join("workers.yml");
    let text = std::fs::read_to_string(&path).unwrap();
    files.commit(&ledger, &ours, None).unwrap();
    std::fs::write(&path, format!("{}workers: []\n", &text[..text.find("workers:\n").unwrap()])).unwrap();
    let why = refused(&mut files, &ours);
    assert!(why.contains("workers.yml: Worker w1 was edited here"), "{why}");
    drop(files);
    let why = Files::open(folder.path()).err().unwrap().to_string();
    assert!(why.contains("Worker w1 was edited while a change of it waited"), "{why}");
}

/// Asks until the answer is what `expected` looks for.
async fn until(what: &str, handle: &LedgerHandle, expected: impl Fn(&LedgerHandle) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !expected(handle) {
        assert!(Instant::now() < deadline, "{what}: {:?}", handle.fault());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_hand_edit_is_taken_up_and_a_bad_one_refused_until_repaired_while_changes_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let audit = crate::audit::Audit::open(folder.path()).unwrap();
    let handle = LedgerHandle::open(folder.path(), audit.clone());
    for change in bound() {
        handle.submit(change, "user admin").await.unwrap();
    }
    handle.flush().await;
    let before = handle.snapshot();
    let mut notes = handle.changes();
    // Half an edit.
    edit("devices.yml", "state: bound", "state: pooled")(folder.path());
    let refused = |h: &LedgerHandle| h.fault().is_some_and(|f| f.contains("hand edit is refused") && f.contains("devices.yml:"));
    until("half an edit is refused", &handle, refused).await;
    handle.submit(register(2), "user admin").await.unwrap();
    handle.flush().await;
    assert!(handle.snapshot().bound.len() == 1 && refused(&handle), "the edit waits, changes do not");
    assert!(std::fs::read_to_string(folder.path().join("devices.yml")).unwrap().contains("state: pooled"), "and is not overwritten");
    edit("devices.yml", "  bound_worker_id: w1\n", "")(folder.path());
    until("the whole edit is taken", &handle, |h| h.snapshot().bound.is_empty()).await;
    let after = handle.snapshot();
    assert!(after.device(mac(2)).is_some() && after.device(mac(1)).unwrap().epoch > before.device(mac(1)).unwrap().epoch);
    assert_eq!(notes.recv().await.unwrap().verb, "register");
    assert_eq!(notes.recv().await.unwrap().verb, "ledger-reload");
    let unbound = ChangeNote { generation: after.generation, verb: "unbind", device: Some(mac(1)), object: "w1".into() };
    assert_eq!(notes.recv().await.unwrap(), unbound);
    // And `kurrent audit --device` shows it.
    let of_device = crate::audit::Filter { device: Some(mac(1)), ..Default::default() };
    let last = audit.read(&of_device).unwrap().entries.remove(0);
    assert_eq!((last.actor.as_str(), last.verb.as_str(), last.object.as_str()), (crate::audit::BY_HAND, "unbind", "w1"));
    handle.flush().await;
    assert_eq!(handle.fault(), None);
    let checked = examine(folder.path()).unwrap().unwrap();
    assert_eq!((checked.waiting, &checked.ledger.devices), (0, &after.devices));
}

/// A number that leaves no room would let changes pass that no journal line holds.
#[test]
fn a_number_beyond_all_generations_is_refused_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let (mut files, ledger) = filed(folder.path());
    let replace = |name: &str, from: &str, to: &str| {
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(folder.path().join(name), text.replacen(from, to, 1)).unwrap();
    };
    let generation = format!("generation: {}", ledger.generation);
    replace("workers.yml", &generation, "generation: 18446744073709551615");
    let why = refused(&mut files, &ledger);
    assert!(why.contains("workers.yml:4: generation 18446744073709551615"), "{why}");
    replace("workers.yml", "generation: 18446744073709551615", &generation);
    replace("devices.yml", "epoch: 3", "epoch: 4611686018427387905");
    let why = refused(&mut files, &ledger);
    assert!(why.contains("devices.yml:") && why.contains("the epoch 4611686018427387905"), "{why}");
    drop(files);
    assert!(examine(folder.path()).unwrap_err().to_string().contains("devices.yml:"));
}
