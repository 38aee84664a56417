use super::*;

fn event(verb: &'static str, n: u8, result: &str) -> Event {
    Event {
        actor: "user admin".into(),
        verb,
        device: Some(MacAddr([2, 0, 0, 0, 0, n])),
        object: String::new(),
        result: result.into(),
        detail: String::new(),
    }
}

#[test]
fn entries_are_chained_across_restarts_and_a_change_shows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("operations.jsonl");
    for round in 0..3u8 {
        let audit = Audit::open(folder.path()).unwrap();
        audit.record(event("bind", round, "ok"));
        audit.record(event("revoke", round, "ok"));
        audit.flush();
    }
    assert_eq!(verify(folder.path()).err(), None);
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), 6);
    std::fs::write(&path, text.replacen("\"bind\"", "\"bond\"", 1)).unwrap();
    let broken = verify(folder.path()).unwrap_err();
    assert_eq!((broken.file.as_path(), broken.line), (path.as_path(), 2), "{broken}");
}

#[test]
fn half_a_line_left_by_a_power_cut_is_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("operations.jsonl");
    let audit = Audit::open(folder.path()).unwrap();
    audit.record(event("bind", 1, "ok"));
    audit.flush();
    let mut text = std::fs::read_to_string(&path).unwrap();
    text.push_str("{\"seq\":2,\"at\":\"20");
    std::fs::write(&path, text).unwrap();
    let audit = Audit::open(folder.path()).unwrap();
    audit.record(event("unbind", 1, "ok"));
    let all = audit.read(&Filter::default()).unwrap().entries;
    assert_eq!(all.iter().map(|e| (e.seq, e.verb.as_str())).collect::<Vec<_>>(), [(2, "unbind"), (1, "bind")]);
    assert_eq!(verify(folder.path()).err(), None);
}

#[test]
fn filters_narrow_and_the_latest_come_first() {
    let folder = tempfile::tempdir().unwrap();
    let audit = Audit::open(folder.path()).unwrap();
    for n in 0..10 {
        audit.record(event(if n % 2 == 0 { "bind" } else { "revoke" }, n, if n < 5 { "ok" } else { "device_not_found" }));
    }
    let check = |filter: Filter, expected: &[u64]| {
        let found: Vec<u64> = audit.read(&filter).unwrap().entries.iter().map(|e| e.seq).collect();
        assert_eq!(found, expected, "{filter:?}");
    };
    check(Filter { verb: Some("bind".into()), result: Some("ok".into()), ..Filter::default() }, &[5, 3, 1]);
    check(Filter { device: Some(MacAddr([2, 0, 0, 0, 0, 7])), ..Filter::default() }, &[8]);
    check(Filter { limit: Some(3), ..Filter::default() }, &[10, 9, 8]);
    check(Filter { since: Some("2999-01-01T00:00:00Z".parse().unwrap()), ..Filter::default() }, &[]);
}

#[test]
fn it_rotates_by_size_keeps_the_chain_and_drops_the_oldest() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("operations.jsonl");
    let mut log = Log::open(&path).unwrap();
    let long = Event { object: "x".repeat(256), ..event("bind", 1, "ok") };
    let wall = kurrent_sys::clock::now().wall;
    for _ in 0..12_000 {
        log.append(&long, None, wall).unwrap();
    }
    assert!(folder.path().join("operations.jsonl.1").exists());
    assert_eq!(verify(folder.path()).err(), None);
    let all = file::read(&path, 1000, None, &|_| true).unwrap();
    assert_eq!((all.len(), all.first().map(|e| e.seq)), (1000, Some(12_000)));
}

/// A log that rotates with the next event, and what its rotated files hold.
fn full_log(folder: &Path, rotated: impl IntoIterator<Item = u8>) -> Log {
    let path = folder.join("operations.jsonl");
    let mut log = Log::open(&path).unwrap();
    let long = Event { object: "x".repeat(256), ..event("bind", 1, "ok") };
    while path.metadata().unwrap().len() < 4 << 20 {
        log.append(&long, None, kurrent_sys::clock::now().wall).unwrap();
    }
    for n in rotated {
        std::fs::write(folder.join(format!("operations.jsonl.{n}")), n.to_string()).unwrap();
    }
    log
}

#[test]
fn a_rotation_that_came_half_way_is_finished_and_costs_no_history() {
    let text = |folder: &Path, n: u8| std::fs::read_to_string(folder.join(format!("operations.jsonl.{n}"))).unwrap_or_default();
    let wall = kurrent_sys::clock::now().wall;
    // The file was moved, the new one could not be opened.
    let folder = tempfile::tempdir().unwrap();
    let mut log = full_log(folder.path(), 2..=9);
    let path = folder.path().join("operations.jsonl");
    std::fs::rename(&path, folder.path().join("operations.jsonl.1")).unwrap();
    for _ in 0..12 {
        log.append(&event("bind", 1, "ok"), None, wall).unwrap();
    }
    assert_eq!((2..=9).map(|n| text(folder.path(), n)).collect::<String>(), "23456789");
    let all = file::read(&path, 1000, None, &|_| true).unwrap();
    assert!(all.windows(2).all(|w| w[0].seq == w[1].seq + 1), "the chain goes on");
    // The shift came to a gap and no further.
    let folder = tempfile::tempdir().unwrap();
    let mut log = full_log(folder.path(), 1..=9);
    std::fs::remove_file(folder.path().join("operations.jsonl.4")).unwrap();
    log.append(&event("bind", 1, "ok"), None, wall).unwrap();
    assert_eq!((2..=9).map(|n| text(folder.path(), n)).collect::<String>(), "12356789");
    // No gap: the oldest goes.
    let folder = tempfile::tempdir().unwrap();
    let mut log = full_log(folder.path(), 1..=9);
    log.append(&event("bind", 1, "ok"), None, wall).unwrap();
    assert_eq!((2..=9).map(|n| text(folder.path(), n)).collect::<String>(), "12345678");
}

#[test]
fn an_audit_that_can_not_be_written_is_a_fault_until_it_can_and_tells_how_much_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = full_log(folder.path(), 1..=9);
    // A folder where the oldest goes: rotation fails, and with it the next event.
    let blocker = folder.path().join("operations.jsonl.9");
    std::fs::remove_file(&blocker).unwrap();
    std::fs::create_dir(&blocker).unwrap();
    assert!(log.append(&event("bind", 1, "ok"), None, kurrent_sys::clock::now().wall).is_err());
    drop(log);
    let audit = Audit::open(folder.path()).unwrap();
    assert_eq!(audit.fault(), None);
    for n in 0..3 {
        audit.record(event("bind", n, "ok"));
        audit.flush();
        assert!(audit.fault().is_some_and(|f| f.contains("audit")), "event {n}");
    }
    std::fs::remove_dir(&blocker).unwrap();
    audit.record(event("revoke", 1, "ok"));
    let all = audit.read(&Filter { limit: Some(2), ..Filter::default() }).unwrap().entries;
    assert_eq!(
        all.iter().map(|e| (e.verb.as_str(), e.result.as_str(), e.repeated)).collect::<Vec<_>>(),
        [("audit", "write_failed", Some(3)), ("revoke", "ok", None)]
    );
    assert_eq!(audit.fault(), None);
}

#[test]
fn a_flood_of_strangers_leaves_room_in_the_queue_for_what_must_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let (events, queued) = channel();
    // Its own count too: the writer, whose queue is gone, takes the old one whenever it comes to its end.
    let audit = Audit { events, lost: Arc::default(), ..Audit::open(folder.path()).unwrap() };
    let stranger = Event { actor: "device".into(), ..event("report", 1, "no_key") };
    (0..2 * QUEUE_OF_STRANGERS).for_each(|_| audit.record(stranger.clone()));
    audit.record(Event { actor: "device".into(), ..event("report", 2, "admitted") });
    // More than any bound: an act of a person is never dropped.
    (0..10_000).for_each(|_| audit.record(event("revoke", 2, "ok")));
    let kept: Vec<Event> = queued.try_iter().filter_map(|m| if let Message::Event(e) = m { Some(e) } else { None }).collect();
    let verbs: Vec<&str> = kept.iter().filter(|e| !limit::is_limited(e)).map(|e| e.result.as_str()).collect();
    assert_eq!((verbs.len(), verbs.first()), (10_001, Some(&"admitted")));
    assert_eq!(usize::try_from(audit.lost.load(Ordering::Relaxed)).unwrap(), 2 * QUEUE_OF_STRANGERS + 10_001 - kept.len());
}

#[test]
fn filters_are_exact_and_a_name_finds_no_longer_one() {
    let folder = tempfile::tempdir().unwrap();
    let audit = Audit::open(folder.path()).unwrap();
    let of = |object: &str, actor: &str| Event { object: object.into(), actor: actor.into(), device: None, ..event("disk-add", 1, "ok") };
    for (object, actor) in
        [("w1", "user admin"), ("w10", "user admin"), ("w1 0123456789ab", "user admin"), ("w10 w1x", "admin2"), ("aw1", "system")]
    {
        audit.record(of(object, actor));
    }
    let check = |filter: Filter, expected: &[u64]| {
        let found: Vec<u64> = audit.read(&filter).unwrap().entries.iter().map(|e| e.seq).collect();
        assert_eq!(found, expected, "{filter:?}");
    };
    let object = |text: &str| Filter { object: Some(text.into()), ..Filter::default() };
    check(object("w1"), &[3, 1]);
    check(object("w10"), &[4, 2]);
    check(object("w1 0123456789ab"), &[3]);
    check(object("w"), &[]);
    check(object(""), &[]);
    check(Filter { actor: Some("user admin".into()), ..Filter::default() }, &[3, 2, 1]);
    check(Filter { verb: Some("disk".into()), ..Filter::default() }, &[]);
}

#[test]
fn a_span_of_time_has_its_first_moment_and_not_its_last() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(file::NAME);
    let at = |s: i64| Wall::from_second(1_800_000_000 + s).unwrap();
    let mut log = Log::open(&path).unwrap();
    for s in 0..5 {
        log.append(&event("bind", 1, "ok"), None, at(s)).unwrap();
    }
    let audit = Audit::open(folder.path()).unwrap();
    let filter = Filter { since: Some(at(1)), until: Some(at(3)), ..Filter::default() };
    assert_eq!(audit.read(&filter).unwrap().entries.iter().map(|e| e.seq).collect::<Vec<_>>(), [3, 2]);
}

#[test]
fn pages_go_over_rotated_files_without_a_gap_or_a_repeat_while_more_is_written() {
    let folder = tempfile::tempdir().unwrap();
    drop(full_log(folder.path(), []));
    let audit = Audit::open(folder.path()).unwrap();
    let long = Event { object: "x".repeat(256), ..event("bind", 1, "ok") };
    (0..50).for_each(|_| audit.record(long.clone()));
    audit.flush();
    assert!(folder.path().join("operations.jsonl.1").exists(), "the pages begin in the new file");
    let mut filter = Filter { limit: Some(20), ..Filter::default() };
    let first = audit.read(&filter).unwrap();
    let newest = first.entries[0].seq;
    let mut seen: Vec<u64> = first.entries.iter().map(|e| e.seq).collect();
    let mut next = first.next;
    while let Some(cursor) = next.filter(|_| seen.len() < 400) {
        audit.record(event("revoke", 1, "ok"));
        filter.cursor = Some(cursor);
        let page = audit.read(&filter).unwrap();
        seen.extend(page.entries.iter().map(|e| e.seq));
        next = page.next;
    }
    assert_eq!(seen, (newest + 1 - 400..=newest).rev().collect::<Vec<_>>());
    let last = audit.read(&Filter { cursor: Some(3), limit: Some(2), ..Filter::default() }).unwrap();
    assert_eq!((last.entries.iter().map(|e| e.seq).collect::<Vec<_>>(), last.next), (vec![2, 1], None), "exactly the rest: no next");
}

#[test]
fn a_file_that_rotates_while_it_is_read_shows_nothing_twice() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(file::NAME);
    let mut log = Log::open(&path).unwrap();
    for n in 0..4 {
        log.append(&event("bind", n, "ok"), None, kurrent_sys::clock::now().wall).unwrap();
    }
    std::fs::copy(&path, folder.path().join("operations.jsonl.1")).unwrap();
    let all = file::read(&path, 100, None, &|_| true).unwrap();
    assert_eq!(all.iter().map(|e| e.seq).collect::<Vec<_>>(), [4, 3, 2, 1]);
}

#[test]
fn a_broken_chain_is_told_with_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(file::NAME);
    drop(full_log(folder.path(), []));
    let audit = Audit::open(folder.path()).unwrap();
    (0..3).for_each(|n| audit.record(event("bind", n, "ok")));
    audit.flush();
    let (old, new) = (std::fs::read_to_string(folder.path().join("operations.jsonl.1")).unwrap(), std::fs::read_to_string(&path).unwrap());
    let whole = u64::try_from(old.lines().count() + new.lines().count()).unwrap();
    assert_eq!(verify(folder.path()), Ok(whole));
    let check = |name: &str, text: &str, file: &str, line: u64| {
        let at = folder.path().join(name);
        let before = std::fs::read_to_string(&at).unwrap();
        std::fs::write(&at, text).unwrap();
        let broken = verify(folder.path()).unwrap_err();
        assert_eq!((broken.file, broken.line), (folder.path().join(file), line), "{}", broken.what);
        std::fs::write(&at, before).unwrap();
    };
    let without =
        |text: &str, n: usize| text.lines().enumerate().filter(|(at, _)| *at != n).map(|(_, l)| format!("{l}\n")).collect::<String>();
    check("operations.jsonl", &without(&new, 1), "operations.jsonl", 2);
    check("operations.jsonl", &new.replacen("\"ok\"", "\"no\"", 1), "operations.jsonl", 2);
    check("operations.jsonl", &new.replacen("{\"seq\"", "{\"sek\"", 1), "operations.jsonl", 1);
    check("operations.jsonl.1", &old.replacen("user admin", "nobody", 1), "operations.jsonl.1", 2);
    check("operations.jsonl.1", &without(&old, old.lines().count() - 1), "operations.jsonl", 1);
    // Half a line at the end was acknowledged to nobody.
    std::fs::write(&path, format!("{new}{{\"seq\":")).unwrap();
    assert_eq!(verify(folder.path()), Ok(whole));
}

#[test]
fn files_that_were_opened_for_a_copy_are_whole_and_in_order_also_when_they_rotate_meanwhile() {
    use std::io::Read;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (name, text) in [("operations.jsonl.2", "a"), ("operations.jsonl.1", "b"), ("operations.jsonl", "c")] {
        std::fs::write(at(name), text).unwrap();
    }
    // In the middle of a rotation one stands under two names.
    std::fs::hard_link(at("operations.jsonl.2"), at("operations.jsonl.3")).unwrap();
    let opened = open_all(folder.path()).unwrap();
    std::fs::rename(at("operations.jsonl.1"), at("operations.jsonl.2")).unwrap();
    std::fs::rename(at("operations.jsonl"), at("operations.jsonl.1")).unwrap();
    let read = opened.into_iter().map(|(name, mut file)| {
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        (name, text)
    });
    let wanted = [("operations.jsonl.2", "a"), ("operations.jsonl.1", "b"), ("operations.jsonl", "c")];
    assert_eq!(read.collect::<Vec<_>>(), wanted.map(|(name, text)| (name.to_owned(), text.to_owned())));
}
