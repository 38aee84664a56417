//! Power fails, disks fill, at every step: what was acknowledged is there afterwards, nothing is there by half.

use super::checkpoint::Cut;
use super::files::{CommitError, Files};
use super::load::{LoadError, examine};
use super::tests::{applied, bound, mac, register, worker};
use kurrent_core::ledger::records::Records;
use kurrent_core::ledger::schema::LEDGER_VERSION;
use kurrent_core::ledger::{Change, Ledger};
use proptest::prelude::*;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

const JOURNAL: &str = "journal.jsonl";

/// These tests open a folder a few thousand times: in memory where that can be had, power fails in the steps and not in the disk.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Fails from the step with this number on, as after a power cut; counts when there is none.
fn cut_at(at: Option<usize>, count: &Arc<Mutex<Vec<String>>>) -> impl FnMut(&str) -> io::Result<()> + Send + 'static {
    let seen = Arc::clone(count);
    move |step| {
        let mut seen = seen.lock().unwrap();
        seen.push(step.to_owned());
        if at.is_some_and(|at| seen.len() > at) { Err(io::Error::other("cut")) } else { Ok(()) }
    }
}

fn same(a: &Ledger, b: &Ledger) -> bool {
    a.generation == b.generation && a.records().differences(&b.records()).is_empty() && a.bound == b.bound && a.disk_names == b.disk_names
}

/// What the next start has.
fn started(folder: &Path) -> Ledger {
    Files::open(folder).unwrap().1
}

/// The same. The start itself is cut at every step first.
fn reopened(folder: &Path) -> Ledger {
    for at in 0.. {
        let steps = Arc::default();
        match Files::open_with(folder, Cut::with(cut_at(Some(at), &steps))) {
            Ok((_, ledger)) => {
                let checked = examine(folder).unwrap().unwrap();
                assert!(same(&checked.ledger, &ledger), "check sees what a start sees");
                assert!(!folder.join("intent.json").exists());
                return ledger;
            }
            Err(LoadError::Io { .. }) => assert!(at < 100, "a start that never ends"),
            Err(other) => panic!("a start cut at step {at}: {other}"),
        }
    }
    unreachable!()
}

/// Runs `work` cut at each of its steps; `holds` gets the cut, what came of it, and what the next start has.
fn cut_everywhere<T>(
    prepare: impl Fn(&Path) -> (Files, Ledger),
    work: impl Fn(&mut Files, &Ledger) -> T,
    holds: impl Fn(&str, T, &Ledger, &Ledger),
    least: usize,
) {
    let steps: Arc<Mutex<Vec<String>>> = Arc::default();
    let attempt = |at: Option<usize>| {
        let folder = scratch();
        let (mut files, ledger) = prepare(folder.path());
        steps.lock().unwrap().clear();
        files.cut_with(cut_at(at, &steps));
        let result = work(&mut files, &ledger);
        drop(files);
        let name = at.and_then(|at| steps.lock().unwrap().get(at).cloned()).unwrap_or_default();
        holds(&name, result, &ledger, &reopened(folder.path()));
    };
    attempt(None);
    let count = steps.lock().unwrap().len();
    assert!(count >= least, "{:?}", steps.lock().unwrap());
    (0..count).for_each(|at| attempt(Some(at)));
}

fn furnished(folder: &Path) -> (Files, Ledger) {
    let (mut files, empty) = Files::open(folder).unwrap();
    let ledger = applied(&empty, bound());
    files.commit(&empty, &ledger, None).unwrap();
    (files, ledger)
}

/// Of all records, in all ledgers.
fn everything(before: &Ledger) -> Ledger {
    let tags = kurrent_core::ledger::MasterTags { name: "a_tpl_1.img".parse().unwrap(), os: None, os_version: None, remark: "r".into() };
    let drain = Change::EditAgent {
        name: kurrent_core::id::AgentName::local(),
        base_url: None,
        roles: None,
        drained: Some(true),
        note: Some("full".into()),
    };
    let rest = [Change::TagMaster { tags }, drain, Change::EditSettings { enforcement: Some(Some(false)), boot: None }];
    applied(
        before,
        [Change::DeleteWorker { worker: worker("w1") }, register(2), Change::CreateWorker { worker: worker("w2") }].into_iter().chain(rest),
    )
}

#[test]
fn a_commit_is_all_or_nothing_wherever_it_is_cut() {
    let commit = |files: &mut Files, before: &Ledger| files.commit(before, &everything(before), None);
    let holds = |step: &str, result: Result<(), CommitError>, before: &Ledger, found: &Ledger| {
        let (old, new) = (same(found, before), same(found, &everything(before)));
        match result {
            Ok(()) => assert!(new, "acknowledged, cut at {step:?}"),
            Err(CommitError::NotDone(_)) => assert!(old, "refused, cut at {step:?}"),
            Err(CommitError::InDoubt(_)) => assert!(old || new, "half a change, cut at {step:?}"),
        }
    };
    cut_everywhere(furnished, commit, holds, 4);
}

#[test]
fn a_checkpoint_loses_nothing_wherever_it_is_cut() {
    let checkpoint = |files: &mut Files, before: &Ledger| {
        let after = everything(before);
        files.commit(before, &after, None).map_err(|_| ()).and_then(|()| files.settle(&after).map_err(|_| ()))
    };
    let prepare = |folder: &Path| {
        let (mut files, ledger) = furnished(folder);
        files.settle(&ledger).unwrap();
        (files, ledger)
    };
    let holds = |step: &str, _: Result<(), ()>, before: &Ledger, found: &Ledger| {
        let committed = !step.starts_with("journal ");
        assert!(same(found, &everything(before)) || !committed && same(found, before), "cut at {step:?}");
    };
    // The line, five files, the journal.
    cut_everywhere(prepare, checkpoint, holds, 4 + 6 * 6);
}

/// Commits go on while a checkpoint is written, and stand when that is cut.
#[test]
fn commits_beside_a_checkpoint_are_kept_wherever_that_is_cut() {
    let beside = |files: &mut Files, before: &Ledger| {
        let job = files.job(before).unwrap();
        let after = everything(before);
        let committed = files.commit(before, &after, None);
        let done = job.run();
        let finished = files.finish(done);
        (committed, finished)
    };
    let holds = |step: &str, (committed, _): (Result<(), CommitError>, Result<(), CommitError>), before: &Ledger, found: &Ledger| {
        let (old, new) = (same(found, before), same(found, &everything(before)));
        assert!(new || old && committed.is_err(), "cut at {step:?}");
    };
    cut_everywhere(furnished, beside, holds, 4 + 4 * 6);
}

#[test]
fn the_very_first_start_is_whole_wherever_it_is_cut() {
    let folder = scratch();
    assert!(same(&reopened(folder.path()), &Ledger::default()));
    assert!(["masters", "agents", "workers", "devices", "settings"].iter().all(|f| folder.path().join(format!("{f}.yml")).exists()));
}

/// After a write that failed half-way the journal goes on where it was.
#[test]
fn a_short_write_is_taken_back() {
    let folder = scratch();
    let (mut files, before) = furnished(folder.path());
    let length = || folder.path().join(JOURNAL).metadata().unwrap().len();
    let known = length();
    files.cut_with(|step| if step == "journal HalfWritten" { Err(io::Error::other("no space")) } else { Ok(()) });
    assert!(matches!(files.commit(&before, &everything(&before), None), Err(CommitError::NotDone(_))));
    assert_eq!(length(), known);
    files.cut_with(|_| Ok(()));
    let next = applied(&before, [register(7)]);
    files.commit(&before, &next, None).unwrap();
    drop(files);
    assert!(same(&reopened(folder.path()), &next));
}

/// Whatever is cut off the journal's last line, or was never written of it, it is forgotten; the lines before it stand.
#[test]
fn a_torn_last_line_is_forgotten_and_any_other_damage_is_refused() {
    let folder = scratch();
    let (mut files, one) = furnished(folder.path());
    let path = folder.path().join(JOURNAL);
    let whole_before = std::fs::read(&path).unwrap();
    let two = applied(&one, [register(2)]);
    files.commit(&one, &two, None).unwrap();
    drop(files);
    let whole = std::fs::read(&path).unwrap();
    let opens = |octets: &[u8]| {
        std::fs::write(&path, octets).unwrap();
        let (mut files, ledger) = Files::open(folder.path()).map_err(|e| e.to_string())?;
        // The next line stands behind a whole one.
        let next = applied(&ledger, [register(9)]);
        files.commit(&ledger, &next, None).unwrap();
        drop(files);
        assert!(same(&examine(folder.path()).unwrap().unwrap().ledger, &next));
        Ok::<_, String>(ledger)
    };
    for length in whole_before.len()..whole.len() - 1 {
        assert!(same(&opens(&whole[..length]).unwrap(), &one), "cut after {length} octets");
    }
    assert!(same(&opens(&whole[..whole.len() - 1]).unwrap(), &two), "only the line feed is missing");
    let mut holes = whole.clone();
    holes[whole_before.len() + 10..whole.len() - 10].fill(0);
    assert!(same(&opens(&holes).unwrap(), &one), "octets that never came to the disk");
    for at in (0..whole.len() - 1).step_by(7) {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        let error = opens(&damaged).unwrap_err();
        assert!(error.contains("journal.jsonl:") && error.contains("backup"), "octet {at}: {error}");
    }
    assert!(opens(&whole[..10]).is_err(), "the first line is never torn");
    let lines: Vec<&[u8]> = whole.split_inclusive(|o| *o == b'\n').collect();
    assert_eq!(lines.len(), 3);
    let error = opens(&[lines[0], lines[2]].concat()).unwrap_err();
    assert!(error.contains("journal.jsonl:2: this line goes on from generation"), "{error}");
}

#[test]
fn a_journal_of_a_later_version_is_refused_as_such() {
    let folder = scratch();
    let (files, ledger) = furnished(folder.path());
    drop(files);
    let line = super::journal::Line { version: LEDGER_VERSION + 1, ..super::journal::Line::head(ledger.generation, false) };
    let path = folder.path().join(JOURNAL);
    std::fs::write(&path, [std::fs::read(&path).unwrap(), line.encode().unwrap()].concat()).unwrap();
    assert!(matches!(Files::open(folder.path()), Err(LoadError::Newer { version, .. }) if version == LEDGER_VERSION + 1));
}

#[test]
fn files_and_journal_of_different_times_are_refused() {
    let folder = scratch();
    let (mut files, one) = furnished(folder.path());
    let path = |name: &str| folder.path().join(name);
    let keep = |name: &str| std::fs::read(path(name)).unwrap();
    let (old_settings, old_journal) = (keep("settings.yml"), keep(JOURNAL));
    files.settle(&one).unwrap();
    let two = applied(&one, [Change::DeleteWorker { worker: worker("w1") }]);
    files.commit(&one, &two, None).unwrap();
    files.settle(&two).unwrap();
    drop(files);
    let (settings, journal) = (keep("settings.yml"), keep(JOURNAL));
    let refused = |settings: &[u8], journal: Option<&[u8]>, expected: &str| {
        std::fs::write(path("settings.yml"), settings).unwrap();
        match journal {
            Some(octets) => std::fs::write(path(JOURNAL), octets).unwrap(),
            None => std::fs::remove_file(path(JOURNAL)).unwrap(),
        }
        let error = Files::open(folder.path()).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    };
    refused(&old_settings, Some(&journal), "settings.yml: the files hold generation 0, journal.jsonl goes on from 4");
    refused(&settings, Some(&old_journal), "this file has generation 4, journal.jsonl ends at 3");
    refused(&settings, None, "journal.jsonl: this file is missing");
    // As the message says.
    std::fs::write(path(JOURNAL), "").unwrap();
    assert!(same(&reopened(folder.path()), &two));
}

/// Somebody replaced the journal: no line goes into a file that has no name any more.
#[test]
fn a_journal_that_somebody_replaced_is_written_anew_before_the_next_change() {
    let folder = scratch();
    let (mut files, one) = furnished(folder.path());
    let path = folder.path().join(JOURNAL);
    std::fs::write(path.with_extension("new"), "").unwrap();
    std::fs::rename(path.with_extension("new"), &path).unwrap();
    let two = applied(&one, [register(2)]);
    assert!(matches!(files.commit(&one, &two, None), Err(CommitError::NotDone(w)) if w.contains("somebody else")));
    assert!(files.due(&one).is_some_and(|due| due <= std::time::Instant::now()));
    files.settle(&one).unwrap();
    files.commit(&one, &two, None).unwrap();
    // The same while a job is out, and a change stood only in what was replaced.
    let job = files.job(&two).unwrap();
    let three = applied(&two, [register(3)]);
    files.commit(&two, &three, None).unwrap();
    std::fs::write(&path, "gone").unwrap();
    let four = applied(&three, [register(4)]);
    assert!(matches!(files.commit(&three, &four, None), Err(CommitError::NotDone(_))));
    files.finish(job.run()).unwrap();
    assert!(matches!(files.commit(&three, &four, None), Err(CommitError::NotDone(_))));
    files.settle(&three).unwrap();
    files.commit(&three, &four, None).unwrap();
    drop(files);
    assert!(same(&reopened(folder.path()), &four));
}

fn copy(from: &str, to: &Path) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/ledger").join(from);
    for entry in std::fs::read_dir(golden).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

#[test]
fn a_folder_of_version_1_becomes_one_of_this_version_wherever_that_is_cut() {
    for (sample, devices, generation) in [("v1", 3, 12), ("v1-intent", 4, 13)] {
        let folder = scratch();
        copy(sample, folder.path());
        let before = examine(folder.path()).unwrap().unwrap().ledger;
        assert_eq!((before.devices.len(), before.generation), (devices, generation), "{sample}");
        let after = reopened(folder.path());
        assert!(same(&before, &after), "{sample}");
        for name in ["masters", "agents", "workers", "devices", "settings"] {
            let text = std::fs::read_to_string(folder.path().join(format!("{name}.yml"))).unwrap();
            assert!(text.contains(&format!("\nversion: 3\ngeneration: {generation}\n")), "{sample} {name}");
        }
        let (mut files, ledger) = Files::open(folder.path()).unwrap();
        let next = applied(&ledger, [register(9)]);
        files.commit(&ledger, &next, None).unwrap();
        drop(files);
        assert!(same(&reopened(folder.path()), &next));
    }
}

#[test]
fn the_sample_of_version_2_loads_with_its_pending_journal() {
    let folder = scratch();
    copy("v2", folder.path());
    let checked = examine(folder.path()).unwrap().unwrap();
    let ledger = reopened(folder.path());
    assert!(same(&checked.ledger, &ledger));
    assert_eq!((checked.waiting, ledger.generation, ledger.devices.len(), ledger.workers.len()), (6, 21, 3, 3));
    assert_eq!((ledger.masters.len(), ledger.agents.len(), ledger.join_tokens.len()), (1, 2, 1));
    assert_eq!(ledger.settings.enforcement, Some(false));
    let bound = kurrent_core::id::MacAddr([0x52, 0x54, 0, 0x12, 0x34, 0x57]);
    assert_eq!(ledger.device(bound).map(|d| (d.epoch, d.note.as_str())), Some((18, "old BIOS box: no key")));
    assert!(ledger.agent(&kurrent_core::id::AgentName::local()).is_some_and(|a| a.drained));
}

/// What a random run does.
#[derive(Clone, Debug)]
enum Act {
    Change(Box<Change>),
    Checkpoint,
    /// A checkpoint that the next acts overtake.
    BeginCheckpoint,
    EndCheckpoint,
    /// The daemon is killed.
    Restart,
    /// Power fails at the step that comes so far from here.
    Cut(usize),
}

fn any_act() -> impl Strategy<Value = Act> {
    let n = || 1..6u8;
    let w = || (1..5u8).prop_map(|n| worker(&format!("w{n}")));
    let change = prop_oneof![
        n().prop_map(register),
        w().prop_map(|worker| Change::CreateWorker { worker }),
        (n(), w(), any::<bool>()).prop_map(|(n, worker, force)| Change::Bind { mac: mac(n), worker, force }),
        n().prop_map(|n| Change::Unbind { mac: mac(n) }),
        n().prop_map(|n| Change::Revoke { mac: mac(n) }),
        n().prop_map(|n| Change::Purge { mac: mac(n) }),
        w().prop_map(|worker| Change::DeleteWorker { worker }),
        any::<Option<bool>>().prop_map(|enforcement| Change::EditSettings { enforcement: Some(enforcement), boot: None }),
        n().prop_map(|n| Change::Report { mac: mac(n), uuid: "u".into(), public_key: None, fingerprint: Default::default() }),
    ];
    prop_oneof![
        8 => change.prop_map(|c| Act::Change(Box::new(c))),
        1 => Just(Act::Checkpoint),
        1 => Just(Act::BeginCheckpoint),
        1 => Just(Act::EndCheckpoint),
        1 => Just(Act::Restart),
        1 => (0..40usize).prop_map(Act::Cut),
    ]
}

/// As people decide about it: what devices only say of themselves may be lost.
fn decided(ledger: &Ledger) -> Records {
    let mut records = ledger.records();
    let all: Vec<_> = records.differences(&Records::default()).into_iter().filter_map(|d| d.before).collect();
    for record in all {
        records.put(record.decided());
    }
    records
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn whatever_happens_the_next_start_has_what_was_acknowledged(acts in proptest::collection::vec(any_act(), 1..60)) {
        let folder = scratch();
        let (mut files, mut ledger) = Files::open(folder.path()).unwrap();
        let mut job = None;
        for act in acts {
            let mut down = false;
            match act {
                Act::Change(change) => {
                    let Ok((next, _)) = kurrent_core::ledger::apply::apply(&ledger, *change, kurrent_sys::clock::now()) else { continue };
                    // As the writer does: a refresh is not committed by itself.
                    let result = if next.generation == ledger.generation { Ok(()) } else { files.commit(&ledger, &next, None) };
                    match result {
                        Ok(()) => ledger = next,
                        Err(CommitError::NotDone(_)) => {}
                        Err(CommitError::InDoubt(_)) => {
                            drop(files);
                            let found = started(folder.path());
                            let (a, b) = (decided(&ledger).differences(&decided(&found)), decided(&next).differences(&decided(&found)));
                            prop_assert!(a.is_empty() || b.is_empty());
                            (files, ledger) = Files::open(folder.path()).unwrap();
                            job = None;
                        }
                    }
                }
                Act::Checkpoint => down = files.settle(&ledger).is_err(),
                Act::BeginCheckpoint => job = files.job(&ledger).or(job),
                Act::EndCheckpoint => if let Some(job) = job.take() {
                    down = files.finish(super::checkpoint::Job::run(job)).is_err();
                },
                Act::Restart => down = true,
                Act::Cut(steps) => files.cut_with(cut_at(Some(steps), &Arc::default())),
            }
            if down {
                drop(files);
                job = None;
                let found = started(folder.path());
                prop_assert_eq!(decided(&ledger).differences(&decided(&found)), vec![]);
                prop_assert_eq!(ledger.generation, found.generation);
                (files, ledger) = Files::open(folder.path()).unwrap();
            }
        }
        drop(files);
        let found = started(folder.path());
        prop_assert_eq!(decided(&ledger).differences(&decided(&found)), vec![]);
        prop_assert_eq!(ledger.generation, found.generation);
    }
}
