//! Random changes against what must always hold.

use super::*;
use crate::ledger::Migration;
use proptest::prelude::*;

/// What holds after any sequence of changes.
fn holds(ledger: &Ledger) {
    let again = Ledger::assemble(ledger.records().files()).expect("it loads again");
    assert_eq!(
        (again.generation, &again.devices, &again.workers, &again.bound, &again.migrating),
        (ledger.generation, &ledger.devices, &ledger.workers, &ledger.bound, &ledger.migrating)
    );
    for (worker, mac) in &ledger.bound {
        let device = ledger.device(*mac).unwrap();
        assert_eq!((device.state, device.bound_worker_id.as_ref()), (DeviceState::Bound, Some(worker)));
    }
    let noted = ledger.workers.values().filter(|w| w.migration.is_some()).map(|w| w.worker_id.clone()).collect();
    assert_eq!(ledger.migrating, noted, "every migration is in the index");
    for note in ledger.workers.values().filter_map(|w| Some((&w.worker_id, w.migration.as_ref()?))) {
        assert_eq!(ledger.bound.get(note.0), Some(&note.1.to), "a note never says otherwise than the binding");
    }
    let bound = ledger.devices.values().filter(|d| d.state == DeviceState::Bound).count();
    assert_eq!(bound, ledger.bound.len(), "every bound device is in the index");
    for worker in ledger.workers.values() {
        assert_eq!(worker.default_disk().is_some(), !worker.disks.is_empty());
    }
}

fn note(from: Option<u8>, to: u8) -> Migration {
    Migration { from: from.map(mac), to: mac(to), since: at(1000).wall, until: minutes(at(1000), 15) }
}

fn any_change() -> impl Strategy<Value = Change> {
    let n = 1u8..4;
    let key = prop_oneof![Just(None), Just(Some(KEY)), Just(Some(OTHER_KEY))];
    prop_oneof![
        3 => (n.clone(), key).prop_map(|(n, key)| report(n, key, "box")),
        2 => n.clone().prop_map(register),
        6 => (n.clone(), n.clone(), any::<bool>()).prop_map(|(d, w, force)| bind(d, w, force)),
        2 => n.clone().prop_map(|n| Change::Unbind { mac: mac(n) }),
        1 => n.clone().prop_map(|n| Change::Revoke { mac: mac(n) }),
        2 => (n.clone(), n.clone(), 0..20u64).prop_map(|(d, w, epoch)| Change::Boot { mac: mac(d), worker: worker(w), epoch }),
        1 => n.clone().prop_map(|n| Change::Proved { mac: mac(n), at: at(1000).wall }),
        1 => n.clone().prop_map(|n| Change::Purge { mac: mac(n) }),
        1 => n.clone().prop_map(|n| Change::Rekey { mac: mac(n), until: Some(minutes(at(1000), 5)), signed: false }),
        3 => n.clone().prop_map(|n| Change::CreateWorker { worker: worker(n) }),
        1 => n.clone().prop_map(|n| Change::DeleteWorker { worker: worker(n) }),
        4 => (n.clone(), n.clone()).prop_map(|(w, d)| add(w, d, &format!("os{d}"), "")),
        2 => (n.clone(), n.clone()).prop_map(|(w, d)| Change::RemoveDisk { worker: worker(w), os_tag: tag(w, d) }),
        1 => (n.clone(), n.clone()).prop_map(|(w, d)| Change::SetDefaultDisk { worker: worker(w), os_tag: tag(w, d) }),
        1 => Just(Change::OpenWindow { until: minutes(at(1000), 30) }),
        1 => Just(Change::CloseWindow),
        5 => (n.clone(), n.clone(), proptest::option::of(n.clone())).prop_map(|(w, to, from)| {
            Change::Migrate { worker: worker(w), note: note(from, to), enforcement: false }
        }),
        1 => (n.clone(), n.clone(), proptest::option::of(n.clone())).prop_map(|(w, to, from)| {
            Change::EndMigration { worker: worker(w), note: note(from, to) }
        }),
        2 => (n.clone(), n.clone(), proptest::option::of(n)).prop_map(|(w, to, from)| {
            Change::RollBackMigration { worker: worker(w), note: note(from, to) }
        }),
    ]
}

proptest! {
    #[test]
    fn any_sequence_of_changes_keeps_every_invariant(changes in proptest::collection::vec(any_change(), 1..60)) {
        let mut ledger = Ledger::default();
        // (worker, epoch) to the device that had it.
        let mut hosts = std::collections::BTreeMap::new();
        for change in changes {
            let before = ledger.clone();
            match apply(&ledger, change, at(1000)) {
                Err(rejected) => prop_assert!((400..500).contains(&rejected.status)),
                Ok((next, _)) => {
                    prop_assert!(next.generation == before.generation || next.generation == before.generation + 1);
                    ledger = next;
                }
            }
            holds(&ledger);
            for (worker, mac) in &ledger.bound {
                let epoch = ledger.device(*mac).unwrap().epoch;
                let holder = *hosts.entry((worker.clone(), epoch)).or_insert(*mac);
                prop_assert_eq!(holder, *mac, "one host NQN, one device, for ever");
            }
        }
    }
}

#[test]
fn a_granted_boot_has_an_epoch_of_its_own_and_of_two_that_saw_the_same_one_only_the_first() {
    let mut play = Play::furnished();
    let boot = |epoch| Change::Boot { mac: mac(1), worker: worker(1), epoch };
    play.refuses(boot(0), "boot_overtaken");
    play.ok(bind(1, 1, false));
    let seen = play.ledger.device(mac(1)).unwrap().epoch;
    play.ok(boot(seen));
    assert_eq!(play.ledger.device(mac(1)).unwrap().epoch, play.ledger.generation);
    play.refuses(boot(seen), "boot_overtaken");
    let seen = play.ledger.generation;
    play.refuses(Change::Boot { mac: mac(1), worker: worker(2), epoch: seen }, "boot_overtaken");
    play.ok(Change::Revoke { mac: mac(1) });
    play.refuses(boot(play.ledger.generation), "boot_overtaken");
}
