use super::*;
use crate::id::{AgentName, MacAddr, Nqn, OsTag, disk_file_name, disk_nqn};
use crate::ledger::apply::apply;
use crate::ledger::{Change, Disk, DiskSource};
use crate::target::tree::{Desired, Keys};
use crate::time::Now;
use proptest::prelude::*;

fn mac(n: u8) -> MacAddr {
    MacAddr([0x52, 0x54, 0, 0, 0, n])
}

fn worker(n: u8) -> WorkerId {
    format!("w{n}").parse().unwrap()
}

fn now() -> Now {
    Now { mono: Default::default(), wall: "2026-11-30T12:00:00Z".parse().unwrap() }
}

fn disk(w: u8, n: u8) -> Disk {
    let (os, tag) = ("debian".parse().unwrap(), OsTag::from_random([0, 0, 0, 0, w, n]));
    Disk {
        nqn: disk_nqn(&Nqn::default_base(), &worker(w), &os, &tag),
        filename: disk_file_name(&worker(w), &os, &tag),
        os_tag: tag,
        os,
        os_version: "13".parse().unwrap(),
        agent: AgentName::local(),
        size_bytes: 1 << 30,
        uuid: uuid::Uuid::from_u128(u128::from(w) * 256 + u128::from(n) + 1),
        source: DiskSource::Empty,
        remark: String::new(),
        created_at: now().wall,
    }
}

fn some_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (0u8..4, 0u8..4).prop_map(|(m, w)| Change::Bind { mac: mac(m), worker: worker(w), force: true }),
        (0u8..4).prop_map(|m| Change::Unbind { mac: mac(m) }),
        (0u8..4).prop_map(|m| Change::Revoke { mac: mac(m) }),
        (0u8..4).prop_map(|m| Change::Register {
            mac: mac(m),
            public_key: None,
            keyless_allowed: true,
            note: String::new(),
            labels: Default::default(),
            address: None,
        }),
        (0u8..4, "[a-z]{0,3}").prop_map(|(m, note)| Change::EditDevice {
            mac: mac(m),
            note: Some(note),
            keyless_allowed: None,
            loader: None,
            address: None
        }),
        (0u8..4).prop_map(|w| Change::CreateWorker { worker: worker(w) }),
        (0u8..4).prop_map(|w| Change::DeleteWorker { worker: worker(w) }),
        (0u8..4, 0u8..3).prop_map(|(w, n)| Change::AddDisk { worker: worker(w), disk: disk(w, n) }),
    ]
}

fn after(mut ledger: Ledger, changes: Vec<Change>) -> Ledger {
    for change in changes {
        // What is refused changes nothing.
        if let Ok((next, _)) = apply(&ledger, change, now()) {
            ledger = next;
        }
    }
    ledger
}

/// Of each binding its own.
fn keys(worker: &WorkerId, epoch: u64) -> Option<Keys> {
    let secret = |n: u8| {
        let octets: Vec<u8> = format!("{worker} {epoch} {n}").bytes().chain([0; 32]).take(32).collect();
        crate::target::Secret::from_random(&zeroize::Zeroizing::new(octets.try_into().unwrap()))
    };
    Some(Keys { host: secret(1), controller: secret(2) })
}

proptest! {
    #[test]
    fn what_is_wanted_of_every_other_worker_is_the_same(
        first in prop::collection::vec(some_change(), 0..40),
        then in prop::collection::vec(some_change(), 0..4),
    ) {
        let config = Config::default();
        let before = after(Ledger::default(), first);
        let after = after(before.clone(), then);
        let changed = workers(&before, &after);
        for n in 0..4 {
            let id = worker(n);
            let of = |ledger| Desired::of_workers(&config, ledger, [&id], keys);
            if !changed.contains(&id) {
                prop_assert_eq!(of(&before), of(&after));
            }
        }
        let (was, is) = (Desired::from_ledger(&config, &before, keys), Desired::from_ledger(&config, &after, keys));
        let mut named = names(&config, &before, &changed);
        named.extend(names(&config, &after, &changed));
        for name in was.subsystems.keys().chain(is.subsystems.keys()) {
            prop_assert!(named.contains(name) || was.subsystems.get(name) == is.subsystems.get(name), "{name}");
        }
        for name in was.hosts.keys().chain(is.hosts.keys()) {
            prop_assert!(named.contains(name) || was.hosts.get(name) == is.hosts.get(name), "{name}");
        }
    }
}

#[test]
fn a_note_and_an_unbound_device_change_nothing_of_the_target() {
    let register = |m| Change::Register {
        mac: mac(m),
        public_key: None,
        keyless_allowed: true,
        note: String::new(),
        labels: Default::default(),
        address: None,
    };
    let setup = vec![
        register(1),
        Change::CreateWorker { worker: worker(1) },
        Change::AddDisk { worker: worker(1), disk: disk(1, 1) },
        Change::Bind { mac: mac(1), worker: worker(1), force: false },
    ];
    let before = after(Ledger::default(), setup);
    let note = Change::EditDevice { mac: mac(1), note: Some("moved".into()), keyless_allowed: None, loader: None, address: None };
    let noted = after(before.clone(), vec![note, register(2)]);
    assert!(noted.generation > before.generation);
    assert_eq!(workers(&before, &noted), BTreeSet::new());
    let unbound = after(noted.clone(), vec![Change::Unbind { mac: mac(1) }]);
    assert_eq!(workers(&noted, &unbound), [worker(1)].into());
}
