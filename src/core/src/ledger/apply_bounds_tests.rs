//! Bounds of what people and machines give.

use super::*;
use crate::ledger::rules::MAX_WINDOW_MINUTES;
use std::net::Ipv4Addr;

#[test]
fn the_window_is_open_for_one_to_sixty_minutes_and_expires_on_read() {
    let mut play = Play::new();
    for wrong in [-1, 0, MAX_WINDOW_MINUTES + 1] {
        play.refuses(Change::OpenWindow { until: minutes(play.now, wrong) }, "minutes_out_of_range");
    }
    play.ok(Change::OpenWindow { until: minutes(play.now, 60) });
    assert!(play.ledger.window_open(at(1000 + 3599).wall) && !play.ledger.window_open(at(1000 + 3600).wall));
    play.ok(Change::CloseWindow);
    assert!(!play.ledger.window_open(play.now.wall));
    let generation = play.ledger.generation;
    play.ok(Change::CloseWindow);
    assert_eq!(play.ledger.generation, generation);
}

/// A board without a battery starts in the past, or somebody sets the clock.
#[test]
fn what_ran_out_stays_closed_when_the_wall_clock_is_set_back() {
    let mut play = Play::furnished();
    let late = at(100_000);
    play.now = late;
    play.ok(Change::OpenWindow { until: minutes(late, 60) });
    play.ok(Change::Rekey { mac: mac(1), until: Some(minutes(late, 60)), signed: false });
    for (secs, open) in [(100_000 + 3599, true), (100_000 + 3600, false), (100_000, true), (100_000 - 1, false), (1000, false)] {
        play.now = at(secs);
        assert_eq!(play.ledger.window_open(play.now.wall), open, "{secs}");
        let (stranger, _) = apply(&play.ledger, report(9, Some(KEY), "stranger"), play.now).unwrap();
        assert_eq!(stranger.device(mac(9)).is_some(), open, "{secs}");
        let (_, rekeyed) = apply(&play.ledger, report(1, Some(OTHER_KEY), "new board"), play.now).unwrap();
        assert_eq!(rekeyed, if open { Outcome::KeyStored } else { Outcome::KeyMismatch }, "{secs}");
    }
}

#[test]
fn labels_and_boot_settings_are_bounded() {
    let mut play = Play::furnished();
    let label = |k: &str, v: &str| Change::Label { mac: mac(1), labels: [(k.to_owned(), v.to_owned())].into() };
    play.ok(label("rack", "7"));
    for (k, v) in [("", "x"), ("a b", "x"), (&"a".repeat(64), "x"), ("a", "\n"), ("a", &"x".repeat(254))] {
        play.refuses(label(k, v), "labels_invalid");
    }
    let many = (0..65).map(|n| (format!("k{n}"), String::new())).collect();
    play.refuses(Change::Label { mac: mac(1), labels: many }, "labels_invalid");
    let boot = |edit: fn(&mut BootSettings)| {
        let mut boot = BootSettings::default();
        edit(&mut boot);
        Change::SetBoot { worker: worker(1), boot }
    };
    play.ok(boot(|b| (b.method, b.kernel) = (Some("nvme".into()), Some("appliance".into()))));
    play.ok(boot(|_| {}));
    for wrong in [
        boot(|b| b.method = Some("tftp".into())),
        boot(|b| b.kernel = Some("mine".into())),
        boot(|b| b.kernel = Some("".into())),
        boot(|b| b.menu_default = Some("local".into())),
        boot(|b| b.menu_timeout_ms = Some(3_600_001)),
    ] {
        play.refuses(wrong, "boot_settings_invalid");
    }
    for pretended in [boot(|b| b.method = Some("iscsi".into())), boot(|b| b.kernel = Some("disk".into()))] {
        play.refuses(pretended, "not_in_this_version");
    }
}

#[test]
fn what_firmware_says_is_cut_and_cleaned() {
    let mut play = Play::with_window();
    play.gives(report(1, Some(KEY), &format!(" a\u{1b}[2Jb\n{}", "x".repeat(1000))), Outcome::Admitted);
    let product = &play.device(1).fingerprint.product;
    assert!(product.starts_with("a[2Jb") && product.chars().count() <= 128, "{product:?}");
}

#[test]
fn k21_a_menu_entry_is_one_of_the_workers_disks_or_reboot_and_goes_with_its_disk() {
    let mut play = Play::furnished();
    let (one, tag) = (disk(1, 7, "haiku", "1"), OsTag::from_random([0, 0, 0, 0, 1, 7]));
    play.ok(Change::AddDisk { worker: worker(1), disk: one });
    play.ok(Change::AddDisk { worker: worker(1), disk: disk(1, 8, "haiku", "2") });
    let entry = |n, entry: &str| Change::SetBoot {
        worker: worker(n),
        boot: BootSettings { menu_default: Some(entry.to_owned()), ..BootSettings::default() },
    };
    play.ok(entry(1, "reboot"));
    assert!(play.ledger.boot_disk(&play.ledger.workers[&worker(1)]).is_none());
    play.ok(entry(1, tag.as_str()));
    play.refuses(entry(2, tag.as_str()), "boot_settings_invalid");
    assert_eq!(play.ledger.boot_disk(&play.ledger.workers[&worker(1)]).map(|d| &d.os_tag), Some(&tag));
    let all = |entry: &str| Change::EditSettings {
        enforcement: None,
        boot: Some(BootSettings { menu_default: Some(entry.to_owned()), ..BootSettings::default() }),
    };
    play.refuses(all(tag.as_str()), "boot_settings_invalid");
    play.ok(all("reboot"));
    assert!(play.ledger.boot_disk(&play.ledger.workers[&worker(1)]).is_some(), "its own entry counts");
    play.ok(Change::RemoveDisk { worker: worker(1), os_tag: tag });
    assert!(!play.ledger.workers[&worker(1)].disks.is_empty());
    let left = &play.ledger.workers[&worker(1)];
    assert_eq!((left.boot.menu_default.as_ref(), play.ledger.boot_disk(left)), (None, None), "reboot of all Workers is left");
}

#[test]
fn a_refusal_names_the_value_at_fault() {
    let mut play = Play::furnished();
    let field = |play: &Play, change: Change| apply(&play.ledger, change, play.now).unwrap_err().field;
    play.ok(add(1, 1, "debian", "12"));
    let tag = play.ledger.workers.get(&worker(1)).unwrap().disks[0].os_tag.clone();
    let reserve =
        |address| Change::EditDevice { mac: mac(2), note: None, keyless_allowed: None, loader: None, address: Some(Some(address)) };
    play.ok(reserve(Ipv4Addr::LOCALHOST));
    play.ok(reserve(Ipv4Addr::LOCALHOST));
    let boot = BootSettings { menu_timeout_ms: Some(u32::MAX), ..BootSettings::default() };
    for (change, expected) in [
        (Change::Label { mac: mac(1), labels: [("a b".to_owned(), String::new())].into() }, "labels"),
        (Change::EditDevice { mac: mac(1), note: Some("\0".into()), keyless_allowed: None, loader: None, address: None }, "note"),
        (Change::EditDevice { mac: mac(1), note: None, keyless_allowed: None, loader: Some(Some("/".into())), address: None }, "loader"),
        (
            Change::EditDevice { mac: mac(1), note: None, keyless_allowed: None, loader: None, address: Some(Some(Ipv4Addr::LOCALHOST)) },
            "reserved_address",
        ),
        (Change::RemarkDisk { worker: worker(1), os_tag: tag, remark: "x".repeat(1025) }, "remark"),
        (Change::EditSettings { enforcement: Some(Some(true)), boot: Some(boot) }, "menu_timeout_ms"),
        (Change::OpenWindow { until: minutes(play.now, 61) }, "minutes"),
    ] {
        assert_eq!(field(&play, change.clone()), Some(expected), "{change:?}");
    }
    assert_eq!(field(&play, Change::Purge { mac: mac(9) }), None);
}

/// What is taken must be readable at the next start.
#[test]
fn the_ledger_is_full_before_its_files_are_too_large_to_be_read() {
    let mut ledger = Ledger::default();
    let now = at(1000);
    let labels: BTreeMap<String, String> = (0..64).map(|n| (format!("k{n}"), "ä".repeat(253))).collect();
    let register = |n: u32| {
        let [_, b, c, d] = n.to_be_bytes();
        let labels = labels.clone();
        Change::Register {
            mac: MacAddr([2, 0, 0, b, c, d]),
            public_key: None,
            keyless_allowed: false,
            note: String::new(),
            labels,
            address: None,
        }
    };
    let mut taken = 0;
    let refused = loop {
        match apply(&ledger, register(taken), now) {
            Ok((next, _)) => ledger = next,
            Err(refused) => break refused,
        }
        taken += 1;
    };
    assert_eq!(refused.code, "ledger_full");
    assert!((1000..MAX_DEVICES as u32).contains(&taken), "{taken}");
    let (less, _) = apply(&ledger, Change::Label { mac: MacAddr([2, 0, 0, 0, 0, 0]), labels: BTreeMap::new() }, now).unwrap();
    assert!(less.weights.devices < ledger.weights.devices, "what makes it smaller is always taken");
    let weights = ledger.records().checked().unwrap().weights;
    assert_eq!(weights, ledger.weights, "as counted from the records");
}

#[test]
fn devices_and_workers_are_limited_whoever_adds_them() {
    let mut ledger = Ledger::default();
    let now = at(1000);
    let all = (0..MAX_WORKERS).map(|n| format!("w{n}").parse().unwrap()).collect();
    ledger = apply(&ledger, Change::CreateWorkers { workers: all }, now).unwrap().0;
    let one_more: WorkerId = "more".parse().unwrap();
    assert_eq!(apply(&ledger, Change::CreateWorker { worker: one_more.clone() }, now).unwrap_err().code, "too_many_workers");
    let planned = crate::ledger::plan::create(&ledger, &[one_more]);
    assert_eq!(planned[0].refused.as_ref().map(|r| r.code), Some("too_many_workers"));
    for n in 0..u32::try_from(MAX_DEVICES).unwrap() {
        let [_, b, c, d] = n.to_be_bytes();
        let mac = MacAddr([2, 0, 0, b, c, d]);
        let change =
            Change::Register { mac, public_key: None, keyless_allowed: false, note: String::new(), labels: BTreeMap::new(), address: None };
        ledger = apply(&ledger, change, now).unwrap().0;
    }
    assert_eq!(apply(&ledger, super::register(1), now).unwrap_err().code, "too_many_devices");
    assert!(ledger.weights.devices < crate::ledger::MAX_WEIGHT && ledger.weights.workers < crate::ledger::MAX_WEIGHT / 2);
}

/// A number that saturates would let changes pass that are never written.
#[test]
fn at_the_end_of_the_generations_nothing_changes_and_beyond_it_nothing_loads() {
    use crate::ledger::view::LAST_GENERATION;
    let mut play = Play::furnished();
    play.ledger.generation = LAST_GENERATION;
    let refused = apply(&play.ledger, Change::CreateWorker { worker: worker(9) }, play.now).unwrap_err();
    assert_eq!(refused.code, "generations_used_up");
    play.ledger.generation = LAST_GENERATION - 1;
    play.ok(Change::CreateWorker { worker: worker(9) });
    for generation in [LAST_GENERATION + 1, u64::MAX] {
        let mut files = play.ledger.records().files();
        files.workers.generation = generation;
        let wrong = Ledger::assemble(files).unwrap_err();
        assert_eq!((wrong.file, wrong.record), ("workers.yml", generation.to_string()));
        let mut files = play.ledger.records().files();
        files.devices.devices[0].epoch = generation;
        assert_eq!(Ledger::assemble(files).unwrap_err().file, "devices.yml");
    }
}
