//! Every stage against everything that can be seen in it; what stands in the way, and that each says what to do.

use super::*;
use crate::id::{AgentName, OsTag, disk_file_name, disk_nqn};
use crate::ledger::apply::apply;
use crate::ledger::{Change, Disk, DiskSource};
use crate::time::Now;
use std::collections::BTreeMap;

const KEY: &str = "ed25519:d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 12);

fn mac(n: u8) -> MacAddr {
    MacAddr([0x52, 0x54, 0, 0, 0, n])
}

fn worker(n: u8) -> WorkerId {
    format!("w{n}").parse().unwrap()
}

fn wall(minutes: i64) -> Wall {
    Wall::from_second(1_800_000_000 + 60 * minutes).unwrap()
}

fn now(minutes: i64) -> Now {
    Now { mono: Mono::default(), wall: wall(minutes) }
}

fn at(secs: u64) -> Mono {
    Mono(Duration::from_secs(secs))
}

fn note(from: Option<u8>, to: u8) -> Migration {
    Migration { from: from.map(mac), to: mac(to), since: wall(0), until: wall(15) }
}

fn make(ledger: &Ledger, change: Change) -> Ledger {
    apply(ledger, change, now(0)).unwrap().0
}

fn disk(w: u8) -> Disk {
    let (os, os_tag) = ("debian".parse().unwrap(), OsTag::from_random([w; 6]));
    Disk {
        nqn: disk_nqn(&crate::id::Nqn::default_base(), &worker(w), &os, &os_tag),
        filename: disk_file_name(&worker(w), &os, &os_tag),
        os_tag,
        os,
        os_version: "13".parse().unwrap(),
        agent: AgentName::local(),
        size_bytes: 4096,
        uuid: uuid::Uuid::from_u128(u128::from(w)),
        source: DiskSource::Empty,
        remark: String::new(),
        created_at: wall(0),
    }
}

/// Devices 1 to 4 with keys, Workers 1 and 2 with disks, Worker 3 without; device 1 has Worker 1.
fn ledger() -> Ledger {
    let register = |n| {
        let (labels, note) = (BTreeMap::new(), String::new());
        Change::Register { mac: mac(n), public_key: Some(KEY.into()), keyless_allowed: false, note, labels, address: None }
    };
    let workers = Change::CreateWorkers { workers: [1, 2, 3].map(worker).to_vec() };
    let disks = [1, 2].map(|w| Change::AddDisk { worker: worker(w), disk: disk(w) });
    let bind = Change::Bind { mac: mac(1), worker: worker(1), force: false };
    let changes = [1, 2, 3, 4].map(register).into_iter().chain([workers]).chain(disks).chain([bind]);
    changes.fold(Ledger::default(), |ledger, change| make(&ledger, change))
}

fn begin(w: u8, note: Migration) -> Change {
    Change::Migrate { worker: worker(w), note, enforcement: true }
}

fn ready() -> NodeStatus {
    NodeStatus { reachable: Ok(()), data_plane: DataPlane::Ready, free_bytes: 0, total_bytes: 0, masters: BTreeMap::new() }
}

fn facts() -> Facts {
    Facts { looked: true, node: ready(), faults: vec![], enforcement: true }
}

#[test]
fn k31_what_stands_in_the_way_is_told_with_what_to_do() {
    let codes = |ledger: &Ledger, w: u8, n: u8, facts: &Facts| {
        let plan = plan(ledger, &worker(w), mac(n), facts);
        assert!(plan.refused.iter().all(|r| r.detail.contains("; ") || r.detail.contains("see ")), "{:?}", plan.refused);
        plan.refused.iter().map(|r| r.code).collect::<Vec<_>>()
    };
    let is = ledger();
    assert_eq!(codes(&is, 1, 2, &facts()), [""; 0]);
    assert_eq!(codes(&is, 2, 2, &facts()), [""; 0], "also when nobody has the Worker");
    assert_eq!(codes(&is, 1, 1, &facts()), ["already_there"]);
    assert_eq!(codes(&is, 2, 1, &facts()), ["device_bound"]);
    assert_eq!(codes(&is, 3, 9, &facts()), ["no_disk", "device_not_found"]);
    assert_eq!(codes(&is, 9, 2, &facts()), ["worker_not_found"]);
    let revoked = make(&is, Change::Revoke { mac: mac(2) });
    assert_eq!(codes(&revoked, 1, 2, &facts()), ["device_revoked"]);
    let edit = |key: Option<&str>, keyless_allowed| {
        let mut device = is.device(mac(2)).unwrap().clone();
        (device.public_key, device.keyless_allowed) = (key.map(str::to_owned), keyless_allowed);
        let mut edited = is.clone();
        edited.devices.insert(mac(2), std::sync::Arc::new(device));
        edited
    };
    let off = Facts { enforcement: false, ..facts() };
    assert_eq!(codes(&edit(None, false), 1, 2, &facts()), ["no_key"]);
    assert_eq!(codes(&edit(None, false), 1, 2, &off), [""; 0]);
    assert_eq!(codes(&edit(None, true), 1, 2, &facts()), [""; 0]);
    assert!(plan(&edit(None, true), &worker(1), mac(2), &facts()).warnings[0].contains("whoever"));
    let p256 = format!("p256:04{}", "1".repeat(128));
    assert_eq!(codes(&edit(Some(&p256), true), 1, 2, &off), ["no_channel"]);
    for (plane, code) in [(DataPlane::Absent("no nvmet".into()), "no_target"), (DataPlane::NotReady("no port".into()), "target_not_ready")]
    {
        assert_eq!(codes(&is, 1, 2, &Facts { node: NodeStatus { data_plane: plane, ..ready() }, ..facts() }), [code]);
    }
    assert_eq!(codes(&is, 1, 2, &Facts { node: NodeStatus::unreachable("it is off".into()), ..facts() }), ["agent_unreachable"]);
    assert_eq!(codes(&is, 1, 2, &Facts { faults: vec!["its file is gone".into()], ..facts() }), ["target_fault"]);
    assert_eq!(codes(&is, 1, 2, &Facts { looked: false, ..facts() }), ["target_not_looked"]);
}

#[test]
fn k31_one_change_moves_the_binding_and_notes_it() {
    let is = ledger();
    let under_way = make(&is, begin(1, note(Some(1), 2)));
    assert_eq!(under_way.generation, is.generation + 1);
    assert_eq!(under_way.bound.get(&worker(1)), Some(&mac(2)));
    assert_eq!(under_way.device(mac(1)).unwrap().state, DeviceState::Pooled);
    assert_eq!(under_way.workers[&worker(1)].migration, Some(note(Some(1), 2)));
    assert_eq!(make(&under_way, begin(1, note(Some(1), 2))).generation, under_way.generation, "asked again, the answer is the same");
    for (change, code) in [
        (begin(1, note(Some(2), 3)), "migration_under_way"),
        (begin(2, note(None, 2)), "device_bound"),
        (begin(2, note(None, 1)), "device_reserved"),
    ] {
        assert_eq!(apply(&under_way, change, now(0)).unwrap_err().code, code);
    }
    // What the operator saw is not so any more.
    assert_eq!(apply(&is, begin(1, note(None, 2)), now(0)).unwrap_err().code, "worker_bound");
    let long = Migration { until: wall(24 * 60 + 1), ..note(Some(1), 2) };
    assert_eq!(apply(&is, begin(1, long), now(0)).unwrap_err().code, "minutes_out_of_range");
}

#[test]
fn a_rollback_gives_the_worker_back_under_a_new_epoch_or_to_nobody() {
    let back = |w, note| Change::RollBackMigration { worker: worker(w), note };
    let under_way = make(&ledger(), begin(1, note(Some(1), 2)));
    let epochs = |ledger: &Ledger| ledger.device(mac(2)).unwrap().epoch.max(ledger.device(mac(1)).unwrap().epoch);
    let rolled = make(&under_way, back(1, note(Some(1), 2)));
    assert_eq!((rolled.bound.get(&worker(1)), rolled.generation), (Some(&mac(1)), under_way.generation + 1));
    assert!(rolled.device(mac(1)).unwrap().epoch > epochs(&under_way), "neither's old secrets open anything");
    assert!(rolled.migrating.is_empty() && rolled.workers[&worker(1)].migration.is_none());
    let nobody = |ledger: &Ledger, w: u8, n: Migration| {
        let after = make(ledger, back(w, n));
        assert_eq!((after.bound.get(&worker(w)), after.device(mac(2)).unwrap().state), (None, DeviceState::Pooled));
    };
    nobody(&make(&ledger(), begin(2, note(None, 2))), 2, note(None, 2));
    let revoked = make(&under_way, Change::Revoke { mac: mac(1) });
    assert!(!revoked.migrating.is_empty(), "the migration goes on without a way back");
    nobody(&revoked, 1, note(Some(1), 2));
    nobody(&make(&revoked, Change::Purge { mac: mac(1) }), 1, note(Some(1), 2));
    let elsewhere = make(&under_way, Change::Bind { mac: mac(1), worker: worker(2), force: false });
    nobody(&elsewhere, 1, note(Some(1), 2));
    assert_eq!(make(&elsewhere, back(1, note(Some(1), 2))).bound.get(&worker(2)), Some(&mac(1)), "who has a Worker keeps it");
    for other in [note(Some(1), 3), Migration { since: wall(1), ..note(Some(1), 2) }] {
        assert_eq!(apply(&under_way, back(1, other), now(0)).unwrap_err().code, "not_migrating");
    }
}

#[test]
fn who_binds_unbinds_or_revokes_has_decided_and_the_note_is_gone() {
    let under_way = make(&ledger(), begin(1, note(Some(1), 2)));
    let standing = |ledger: &Ledger| Standing::of(ledger, &worker(1), &note(Some(1), 2));
    assert_eq!(standing(&under_way), Standing::Noted);
    for change in [
        Change::Unbind { mac: mac(2) },
        Change::Revoke { mac: mac(2) },
        Change::Bind { mac: mac(3), worker: worker(1), force: true },
        Change::Bind { mac: mac(2), worker: worker(2), force: true },
        Change::BindAll { pairs: vec![(mac(1), worker(1))], force: true },
        Change::DeleteWorker { worker: worker(1) },
    ] {
        let after = make(&under_way, change.clone());
        assert!(after.migrating.is_empty(), "{change:?}");
        assert_eq!(standing(&after), Standing::Overtaken, "{change:?}");
    }
    for change in [
        Change::Bind { mac: mac(2), worker: worker(1), force: true },
        Change::RotateCredentials { worker: worker(1) },
        Change::RemoveDisk { worker: worker(1), os_tag: disk(1).os_tag },
        Change::Revoke { mac: mac(1) },
        Change::Bind { mac: mac(1), worker: worker(2), force: true },
    ] {
        assert_eq!(standing(&make(&under_way, change.clone())), Standing::Noted, "{change:?}");
    }
    let ended = make(&under_way, Change::EndMigration { worker: worker(1), note: note(Some(1), 2) });
    assert_eq!((standing(&ended), ended.bound.get(&worker(1))), (Standing::Proven, Some(&mac(2))));
    let epoch = |l: &Ledger| l.device(mac(2)).unwrap().epoch;
    assert_eq!(epoch(&ended), epoch(&under_way), "its secrets go on");
}

#[test]
fn a_restored_backup_ends_migrations_and_a_note_by_hand_is_checked() {
    let under_way = make(&ledger(), begin(1, note(Some(1), 2)));
    let again = Ledger::assemble(under_way.records().files()).unwrap();
    assert_eq!(again.migrating, under_way.migrating);
    let restored = under_way.clone().after_restore(0, wall(0), 0).unwrap();
    assert!(restored.migrating.is_empty() && restored.workers[&worker(1)].migration.is_none());
    assert_eq!(restored.bound.get(&worker(1)), Some(&mac(2)));
    Ledger::assemble(restored.records().files()).unwrap();
    for wrong in [note(Some(1), 3), note(Some(2), 2), Migration { until: wall(0), ..note(Some(1), 2) }] {
        let mut files = under_way.records().files();
        files.workers.workers.iter_mut().find(|w| w.worker_id == worker(1)).unwrap().migration = Some(wrong.clone());
        let contradiction = Ledger::assemble(files).unwrap_err();
        assert_eq!((contradiction.file, contradiction.record.as_str()), ("workers.yml", "w1"), "{wrong:?}");
        assert!(contradiction.what.contains("remove it"), "{}", contradiction.what);
    }
}

fn boot(steps: &[Step]) -> Boot {
    let mut boot = Boot::default();
    steps.iter().for_each(|step| boot.mark(*step, now(0)));
    boot
}

#[test]
fn every_stage_knows_what_comes_next() {
    let (root, script) = (boot(&[Step::Attest, Step::Root]), boot(&[Step::Script]));
    let connected = [(ADDRESS, 2)];
    let seen = Seen { connections: Some(&connected), standing: Standing::Noted, followed: Ok(()), boot: Some(&script), cancelled: false };
    let cancelled = Seen { cancelled: true, ..seen.clone() };
    let gone = Seen { connections: Some(&[]), ..seen.clone() };
    let unknown = Seen { connections: None, ..seen.clone() };
    let standing = |standing| Seen { standing, ..seen.clone() };
    let (early, late) = (at(5), at(10));
    let (leaving, proving, booting) = (Stage::Leaving(Some(at(10))), Stage::Proving(at(10)), Stage::Booting(at(10)));
    for (stage, seen, now, expected) in [
        (leaving, &seen, early, Next::Wait),
        (leaving, &unknown, early, Next::Wait),
        (leaving, &unknown, late, Next::End(End::StillConnected)),
        (leaving, &seen, late, Next::End(End::StillConnected)),
        (leaving, &gone, early, Next::Rebind),
        (leaving, &gone, late, Next::Rebind),
        (leaving, &cancelled, early, Next::End(End::Cancelled)),
        (Stage::Leaving(None), &seen, early, Next::Rebind),
        (Stage::Leaving(None), &cancelled, early, Next::End(End::Cancelled)),
        (proving, &seen, early, Next::Wait),
        (proving, &seen, late, Next::RollBack(Why::NoProof)),
        (proving, &cancelled, early, Next::RollBack(Why::Cancelled)),
        (proving, &standing(Standing::Proven), late, Next::Proven(late.after(BOOTS_WITHIN))),
        (proving, &Seen { standing: Standing::Proven, ..cancelled.clone() }, early, Next::Proven(early.after(BOOTS_WITHIN))),
        (proving, &standing(Standing::Overtaken), late, Next::End(End::Overtaken)),
        (proving, &Seen { standing: Standing::Overtaken, ..cancelled.clone() }, early, Next::End(End::Overtaken)),
        (booting, &seen, early, Next::Wait),
        (booting, &seen, late, Next::End(End::Slow)),
        (booting, &Seen { boot: Some(&root), ..seen.clone() }, early, Next::End(End::Done)),
        (booting, &Seen { boot: None, ..seen.clone() }, early, Next::Wait),
    ] {
        assert_eq!(next(stage, seen, now), expected, "{stage:?} {seen:?} {now:?}");
    }
}

#[test]
fn where_it_is_is_told_in_words_of_people() {
    let connected = [(ADDRESS, 1)];
    let script = boot(&[Step::Script]);
    let seen = Seen { connections: Some(&connected), standing: Standing::Noted, followed: Ok(()), boot: None, cancelled: false };
    let say = |stage, seen: &Seen<'_>| words(stage, Some(mac(1)), mac(2), seen, at(60));
    let minutes = |n: u64| at(60 + n * 60);
    for (stage, seen, expected) in [
        (Stage::Leaving(Some(minutes(10))), &seen, "waiting for 52:54:00:00:00:01 to go: 1 connection from 10.77.0.12, 10 min left"),
        (Stage::Leaving(Some(minutes(10))), &Seen { connections: Some(&[]), ..seen.clone() }, "52:54:00:00:00:01 is gone; fencing it"),
        (
            Stage::Proving(minutes(4)),
            &Seen { followed: Err("a connection is still there".into()), ..seen.clone() },
            "fencing: a connection is still there; then 52:54:00:00:00:02 must prove itself, 4 min left",
        ),
        (
            Stage::Proving(minutes(1)),
            &Seen { boot: Some(&script), ..seen.clone() },
            "52:54:00:00:00:01 is fenced; waiting for 52:54:00:00:00:02 to prove itself (seen: script), 60 s left",
        ),
        (Stage::Booting(at(0)), &seen, "52:54:00:00:00:02 is proven; connecting"),
        (
            Stage::Booting(at(0)),
            &Seen { boot: Some(&boot(&[Step::Attest, Step::Root])), ..seen.clone() },
            "52:54:00:00:00:02 is proven; root",
        ),
    ] {
        assert_eq!(say(stage, seen), expected);
    }
}

#[test]
fn a_clock_that_was_set_back_gives_no_more_time_than_there_was() {
    let note = note(Some(1), 2);
    for (minutes, left) in [(0, 15), (10, 5), (15, 0), (99, 0), (-1_000_000, 15)] {
        assert_eq!(time_left(&note, wall(minutes)).as_secs(), left * 60, "{minutes}");
    }
}
