//! The statements of the concept page, by their ids.

use super::*;
use crate::id::{OsTag, disk_file_name, disk_nqn};
use crate::ledger::schema::{BootSettings, Disk, DiskSource, Fingerprint, Source};
use crate::ledger::view::Readiness;
use crate::time::{Mono, Wall};
use jiff::SignedDuration;
use std::collections::BTreeMap;

const KEY: &str = "ed25519:d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
const OTHER_KEY: &str = "ed25519:3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c";

fn at(secs: u64) -> Now {
    let wall = Wall::from_second(1_800_000_000 + i64::try_from(secs).unwrap()).unwrap();
    Now { mono: Mono(std::time::Duration::from_secs(secs)), wall }
}

fn mac(n: u8) -> MacAddr {
    MacAddr([0x52, 0x54, 0, 0, 0, n])
}

fn worker(n: u8) -> WorkerId {
    format!("w{n}").parse().unwrap()
}

fn minutes(now: Now, minutes: i64) -> Wall {
    now.wall.checked_add(SignedDuration::from_mins(minutes)).unwrap()
}

fn report(n: u8, key: Option<&str>, product: &str) -> Change {
    let fingerprint = Fingerprint { product: product.into(), ..Fingerprint::default() };
    Change::Report { mac: mac(n), uuid: "4c4c4544".into(), public_key: key.map(str::to_owned), fingerprint }
}

fn register(n: u8) -> Change {
    register_with(n, Some(KEY), "")
}

fn register_with(n: u8, key: Option<&str>, note: &str) -> Change {
    Change::Register {
        mac: mac(n),
        public_key: key.map(Into::into),
        keyless_allowed: false,
        note: note.into(),
        labels: BTreeMap::new(),
        address: None,
    }
}

fn bind(n: u8, w: u8, force: bool) -> Change {
    Change::Bind { mac: mac(n), worker: worker(w), force }
}

fn disk(w: u8, n: u8, os: &str, version: &str) -> Disk {
    let (base, os, tag) = (crate::id::Nqn::default_base(), os.parse().unwrap(), OsTag::from_random([0, 0, 0, 0, w, n]));
    Disk {
        nqn: disk_nqn(&base, &worker(w), &os, &tag),
        filename: disk_file_name(&worker(w), &os, &tag),
        os_tag: tag,
        os,
        os_version: version.parse().unwrap(),
        agent: crate::id::AgentName::local(),
        size_bytes: 4096,
        uuid: uuid::Uuid::from_u128(u128::from(w) * 256 + u128::from(n)),
        source: DiskSource::Empty,
        remark: String::new(),
        created_at: at(u64::from(n)).wall,
    }
}

fn add(w: u8, n: u8, os: &str, version: &str) -> Change {
    Change::AddDisk { worker: worker(w), disk: disk(w, n, os, version) }
}

fn tag(w: u8, n: u8) -> OsTag {
    OsTag::from_random([0, 0, 0, 0, w, n])
}

/// A ledger, and how changes of it are checked.
struct Play {
    ledger: Ledger,
    now: Now,
}

impl Play {
    fn new() -> Self {
        Self { ledger: Ledger::default(), now: at(1000) }
    }

    /// Devices 1 and 2, Workers 1 and 2.
    fn furnished() -> Self {
        let mut play = Self::new();
        for change in [register(1), register(2), Change::CreateWorker { worker: worker(1) }, Change::CreateWorker { worker: worker(2) }] {
            play.ok(change);
        }
        play
    }

    fn with_window() -> Self {
        let mut play = Self::new();
        play.ok(Change::OpenWindow { until: minutes(play.now, 10) });
        play
    }

    fn gives(&mut self, change: Change, expected: Outcome) {
        let shown = format!("{change:?}");
        let (ledger, outcome) = apply(&self.ledger, change, self.now).unwrap_or_else(|r| panic!("{shown}: {r}"));
        assert_eq!(outcome, expected, "{shown}");
        self.ledger = ledger;
    }

    fn ok(&mut self, change: Change) {
        self.gives(change, Outcome::Done);
    }

    fn refuses(&self, change: Change, code: &str) {
        let shown = format!("{change:?}");
        let rejected = apply(&self.ledger, change, self.now).err().unwrap_or_else(|| panic!("{shown} was accepted"));
        assert_eq!(rejected.code, code, "{shown}");
        assert!(rejected.detail.len() > 20 && (400..500).contains(&rejected.status), "{rejected:?}");
    }

    fn device(&self, n: u8) -> &Device {
        self.ledger.device(mac(n)).unwrap()
    }

    fn worker(&self, n: u8) -> &Worker {
        self.ledger.workers.get(&worker(n)).unwrap()
    }
}

#[test]
fn k05_k06_the_first_report_is_recorded_under_the_mac() {
    let mut play = Play::with_window();
    play.gives(report(1, Some(KEY), "box"), Outcome::Admitted);
    let device = play.device(1);
    assert_eq!(
        (device.state, device.source, device.first_seen, device.last_seen),
        (DeviceState::Pooled, Source::Ipxe, play.now.wall, Some(play.now.wall))
    );
    assert_eq!((device.fingerprint.product.as_str(), device.uuid.as_str()), ("box", "4c4c4544"));
    assert_eq!(device.public_key.as_deref(), Some(KEY));
    // SHA-256 of the raw octets of the key of RFC 8032, section 7.1, test 1; from an independent program.
    assert_eq!(device.public_key_hash.as_deref(), Some("21fe31dfa154a261626bf854046fd2271b7bed4b6abe45aa58877ef47f9721b9"));
}

#[test]
fn k07_automatic_admission_needs_window_and_key() {
    let mut play = Play::new();
    play.gives(report(1, Some(KEY), "box"), Outcome::Knocking);
    play.ok(Change::OpenWindow { until: minutes(play.now, 10) });
    for key in [None, Some(""), Some("ed25519:00"), Some("rsa:00"), Some(&KEY.to_uppercase())] {
        play.gives(report(1, key, "box"), Outcome::Knocking);
    }
    assert!(play.ledger.devices.is_empty());
    play.gives(report(1, Some(KEY), "box"), Outcome::Admitted);
    // It closes by itself.
    play.now = at(1000 + 600);
    play.gives(report(2, Some(KEY), "box"), Outcome::Knocking);
}

#[test]
fn k08_with_the_window_closed_reports_refresh_and_add_nothing() {
    let mut play = Play::furnished();
    let generation = play.ledger.generation;
    play.now = at(2000);
    play.gives(report(1, Some(KEY), "new box"), Outcome::Refreshed);
    assert_eq!((play.device(1).fingerprint.product.as_str(), play.device(1).last_seen), ("new box", Some(play.now.wall)));
    play.gives(report(1, None, "newer box"), Outcome::Refreshed);
    play.gives(report(9, Some(KEY), "stranger"), Outcome::Knocking);
    assert_eq!((play.ledger.generation, play.ledger.devices.len()), (generation, 2), "a refresh makes no generation");
}

#[test]
fn a_report_with_another_key_changes_nothing_until_a_rekey_is_ordered() {
    let mut play = Play::furnished();
    play.ok(Change::OpenWindow { until: minutes(play.now, 60) });
    play.ok(bind(1, 1, false));
    let before = play.ledger.clone();
    play.gives(report(1, Some(OTHER_KEY), "thief"), Outcome::KeyMismatch);
    assert_eq!(play.device(1), before.device(mac(1)).unwrap());
    play.refuses(Change::Rekey { mac: mac(1), until: Some(minutes(play.now, 61)), signed: false }, "minutes_out_of_range");
    play.ok(Change::Rekey { mac: mac(1), until: Some(minutes(play.now, 10)), signed: false });
    play.gives(report(1, Some(KEY), "itself"), Outcome::Refreshed);
    assert!(play.device(1).rekey_until.is_some(), "its own key does not use up the order");
    let epoch = play.device(1).epoch;
    play.gives(report(1, Some(OTHER_KEY), "new board"), Outcome::KeyStored);
    assert!(play.device(1).epoch > epoch, "a new key is fenced from the old one");
    assert_eq!((play.device(1).public_key.as_deref(), play.device(1).rekey_until), (Some(OTHER_KEY), None));
    play.gives(report(1, Some(KEY), "old board"), Outcome::KeyMismatch);
    // An order that has run out is none.
    play.ok(Change::Rekey { mac: mac(1), until: Some(minutes(play.now, 1)), signed: false });
    play.now = at(1000 + 60);
    play.gives(report(1, Some(KEY), "old board"), Outcome::KeyMismatch);
}

#[test]
fn a_device_without_a_key_gets_one_only_while_the_window_is_open() {
    let mut play = Play::new();
    play.ok(register_with(1, None, ""));
    play.gives(report(1, Some(KEY), "box"), Outcome::Refreshed);
    assert_eq!(play.device(1).public_key, None);
    play.ok(Change::OpenWindow { until: minutes(play.now, 10) });
    play.gives(report(1, Some(KEY), "box"), Outcome::KeyStored);
    assert_eq!(play.device(1).public_key.as_deref(), Some(KEY));
}

#[test]
fn k09_people_register_and_purge_whatever_the_window() {
    let mut play = Play::new();
    play.ok(register(1));
    assert_eq!((play.device(1).source, play.device(1).state), (Source::Manual, DeviceState::Pooled));
    play.refuses(register(1), "device_exists");
    play.refuses(
        Change::Register {
            mac: mac(2),
            public_key: Some("x".into()),
            keyless_allowed: false,
            note: String::new(),
            labels: BTreeMap::new(),
            address: None,
        },
        "public_key_invalid",
    );
    play.refuses(register_with(2, None, "\0"), "note_invalid");
    play.ok(Change::Revoke { mac: mac(1) });
    play.ok(Change::Purge { mac: mac(1) });
    assert!(play.ledger.devices.is_empty());
}

#[test]
fn k10_a_pooled_device_has_no_worker() {
    let play = Play::furnished();
    assert!(play.ledger.worker_of(mac(1)).is_none());
}

/// The drawing in the module's head, every state against every verb.
#[test]
fn k11_every_state_and_verb() {
    use DeviceState::{Bound, Pooled, Revoked};
    let verbs: [fn() -> Change; 4] =
        [|| bind(1, 1, false), || Change::Unbind { mac: mac(1) }, || Change::Revoke { mac: mac(1) }, || Change::Purge { mac: mac(1) }];
    // The state behind the verb (none: forgotten), or the code of the refusal.
    type Result4<'c> = [Result<Option<DeviceState>, &'c str>; 4];
    let table: [(DeviceState, Result4); 3] = [
        (Pooled, [Ok(Some(Bound)), Err("device_not_bound"), Ok(Some(Revoked)), Err("device_not_revoked")]),
        (Bound, [Ok(Some(Bound)), Ok(Some(Pooled)), Ok(Some(Revoked)), Err("device_not_revoked")]),
        (Revoked, [Err("device_revoked"), Err("device_revoked"), Ok(Some(Revoked)), Ok(None)]),
    ];
    for (state, results) in table {
        for (verb, expected) in verbs.iter().zip(results) {
            let mut play = Play::furnished();
            match state {
                Pooled => {}
                Bound => play.ok(bind(1, 1, false)),
                Revoked => play.ok(Change::Revoke { mac: mac(1) }),
            }
            match expected {
                Err(code) => play.refuses(verb(), code),
                Ok(after) => {
                    play.ok(verb());
                    assert_eq!(play.ledger.device(mac(1)).map(|d| d.state), after, "{state:?} {:?}", verb());
                }
            }
        }
    }
    let empty = Play::new();
    verbs.iter().for_each(|verb| empty.refuses(verb(), "device_not_found"));
}

#[test]
fn k12_a_revoked_device_is_ignored_whatever_it_reports() {
    let mut play = Play::with_window();
    play.ok(register(1));
    play.ok(Change::Revoke { mac: mac(1) });
    let before = play.ledger.clone();
    play.gives(report(1, Some(KEY), "back again"), Outcome::Revoked);
    assert_eq!(play.ledger.devices, before.devices);
    assert!(play.ledger.is_revoked(mac(1)));
    play.refuses(Change::Rekey { mac: mac(1), until: None, signed: false }, "device_revoked");
}

#[test]
fn k13_k30_a_worker_survives_its_hardware_and_unbinding_touches_the_device_only() {
    let mut play = Play::furnished();
    play.ok(add(1, 1, "debian", "12"));
    play.ok(bind(1, 1, false));
    let before = play.worker(1).clone();
    play.ok(Change::Unbind { mac: mac(1) });
    assert_eq!(*play.worker(1), before);
    play.ok(bind(2, 1, false));
    assert_eq!(play.ledger.worker_of(mac(2)), Some(&before));
}

#[test]
fn k14_k15_readiness_is_derived() {
    let mut play = Play::furnished();
    let check = |play: &Play, state: &str, readiness| {
        assert_eq!((play.worker(1).state(), play.ledger.readiness(play.worker(1))), (state, readiness));
    };
    check(&play, "registered", Readiness::Idle);
    play.ok(bind(1, 1, false));
    check(&play, "registered", Readiness::Partial);
    play.ok(add(1, 1, "debian", "12"));
    check(&play, "ready", Readiness::Ready);
    play.ok(Change::Unbind { mac: mac(1) });
    check(&play, "ready", Readiness::Partial);
}

#[test]
fn k17_one_disk_per_os_and_version_and_versions_coexist() {
    let mut play = Play::furnished();
    play.ok(add(1, 1, "debian", "12"));
    play.refuses(add(1, 2, "debian", "12"), "disk_exists");
    play.ok(add(1, 3, "debian", "13"));
    play.ok(add(1, 4, "my.own-os_7", ""));
    play.refuses(add(2, 1, "debian", "12").with(|d| d.os_tag = tag(1, 1)), "disk_not_unique");
    play.refuses(add(2, 1, "debian", "12").with(|d| d.filename = disk(1, 1, "debian", "12").filename), "disk_not_unique");
    play.refuses(add(2, 1, "debian", "12").with(|d| d.uuid = disk(1, 1, "debian", "12").uuid), "disk_not_unique");
    play.refuses(add(2, 1, "debian", "12").with(|d| d.size_bytes = 4097), "disk_invalid");
    play.refuses(add(3, 1, "debian", "12"), "worker_not_found");
}

impl Change {
    fn with(mut self, edit: impl FnOnce(&mut Disk)) -> Self {
        if let Self::AddDisk { disk, .. } = &mut self {
            edit(disk);
        }
        self
    }
}

#[test]
fn k18_a_master_is_never_a_disk() {
    let play = Play::furnished();
    play.refuses(add(1, 1, "debian", "12").with(|d| d.filename = "debian_TPL_12.img".parse().unwrap()), "disk_invalid");
}

#[test]
fn k19_k20_the_default_disk() {
    let mut play = Play::furnished();
    play.ok(add(1, 1, "a", ""));
    play.ok(add(1, 2, "b", ""));
    play.ok(add(1, 3, "c", ""));
    assert_eq!(play.worker(1).default_disk, Some(tag(1, 1)), "the first becomes default, later ones do not rewrite it");
    play.ok(Change::RemoveDisk { worker: worker(1), os_tag: tag(1, 1) });
    assert_eq!(play.worker(1).default_disk, Some(tag(1, 3)), "the newest is promoted");
    play.ok(Change::SetDefaultDisk { worker: worker(1), os_tag: tag(1, 2) });
    play.ok(Change::RemoveDisk { worker: worker(1), os_tag: tag(1, 3) });
    assert_eq!(play.worker(1).default_disk, Some(tag(1, 2)), "removing another one changes nothing");
    play.ok(Change::RemoveDisk { worker: worker(1), os_tag: tag(1, 2) });
    assert_eq!(play.worker(1).default_disk, None, "none left clears it");
    play.refuses(Change::SetDefaultDisk { worker: worker(1), os_tag: tag(1, 2) }, "disk_not_found");
    play.refuses(Change::RemoveDisk { worker: worker(1), os_tag: tag(1, 2) }, "disk_not_found");
    play.ok(add(1, 4, "d", ""));
    assert_eq!(play.worker(1).default_disk, Some(tag(1, 4)), "the next first one is default again");
}

#[test]
fn k26_k29_binding_is_one_to_one_and_force_moves_it_whole() {
    let mut play = Play::furnished();
    play.ok(bind(1, 1, false));
    play.refuses(bind(1, 2, false), "device_bound");
    play.refuses(bind(2, 1, false), "worker_bound");
    let generation = play.ledger.generation;
    play.ok(bind(1, 1, false));
    assert_eq!(play.ledger.generation, generation, "what is so already changes nothing");
    play.ok(bind(2, 2, false));
    // Device 1 takes Worker 2: device 2 is displaced, Worker 1 is left.
    play.ok(bind(1, 2, true));
    assert_eq!(play.ledger.generation, generation + 2, "one step");
    assert_eq!(play.ledger.device_of(&worker(2)).map(|d| d.mac), Some(mac(1)));
    assert_eq!(play.ledger.device_of(&worker(1)), None);
    assert_eq!((play.device(2).state, &play.device(2).bound_worker_id), (DeviceState::Pooled, &None));
}

#[test]
fn k31_a_cold_migration_and_back_never_reuses_an_epoch() {
    let mut play = Play::furnished();
    let mut epochs = std::collections::BTreeSet::new();
    for round in 0..4 {
        let device = 1 + round % 2;
        play.ok(bind(device, 1, true));
        assert!(epochs.insert(play.device(device).epoch), "round {round}");
    }
    // Not even when the device is forgotten and comes back, or the Worker is made anew (K41).
    play.ok(Change::Revoke { mac: mac(1) });
    play.ok(Change::Purge { mac: mac(1) });
    play.ok(register(1));
    play.ok(Change::DeleteWorker { worker: worker(1) });
    play.ok(Change::CreateWorker { worker: worker(1) });
    play.ok(bind(1, 1, true));
    assert!(epochs.insert(play.device(1).epoch));
}

#[test]
fn k39_k41_deleting_a_worker_unbinds_and_its_successor_inherits_nothing() {
    let mut play = Play::furnished();
    play.ok(add(1, 1, "debian", "12"));
    play.ok(Change::SetBoot { worker: worker(1), boot: BootSettings { kernel: Some("appliance".into()), ..BootSettings::default() } });
    play.ok(bind(1, 1, false));
    let epoch = play.device(1).epoch;
    play.ok(Change::DeleteWorker { worker: worker(1) });
    assert_eq!(play.device(1).state, DeviceState::Pooled);
    assert!(play.device(1).epoch > epoch);
    play.ok(Change::CreateWorker { worker: worker(1) });
    let new = play.worker(1);
    assert_eq!(
        (new.disks.len(), new.default_disk.as_ref(), &new.boot, play.ledger.device_of(&worker(1))),
        (0, None, &BootSettings::default(), None)
    );
    play.refuses(Change::CreateWorker { worker: worker(1) }, "worker_exists");
    play.refuses(Change::DeleteWorker { worker: worker(9) }, "worker_not_found");
}

#[test]
fn k40_revoking_a_bound_device_unbinds_and_fences_in_the_same_step() {
    let mut play = Play::furnished();
    play.ok(bind(1, 1, false));
    let (epoch, generation) = (play.device(1).epoch, play.ledger.generation);
    play.ok(Change::Revoke { mac: mac(1) });
    assert_eq!((play.ledger.generation, play.ledger.bound.len()), (generation + 1, 0));
    assert!(play.device(1).epoch > epoch && play.device(1).bound_worker_id.is_none());
}

#[path = "apply_bounds_tests.rs"]
mod bounds;
#[path = "apply_laws_tests.rs"]
mod laws;
