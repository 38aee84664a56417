use super::*;

fn event(verb: &'static str, n: u8, result: &str) -> Event {
    Event { actor: "admin".into(), verb, device: Some(MacAddr([2, 0, 0, 0, 0, n])), object: String::new(), result: result.into() }
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
    assert_eq!(file::first_break(&path).unwrap(), None);
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), 6);
    std::fs::write(&path, text.replacen("\"bind\"", "\"bond\"", 1)).unwrap();
    assert_eq!(file::first_break(&path).unwrap(), Some(2));
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
    let all = audit.read(&Filter::default()).unwrap();
    assert_eq!(all.iter().map(|e| (e.seq, e.verb.as_str())).collect::<Vec<_>>(), [(1, "bind"), (2, "unbind")]);
    assert_eq!(file::first_break(&path).unwrap(), None);
}

#[test]
fn filters_narrow_and_the_latest_come_last() {
    let folder = tempfile::tempdir().unwrap();
    let audit = Audit::open(folder.path()).unwrap();
    for n in 0..10 {
        audit.record(event(if n % 2 == 0 { "bind" } else { "revoke" }, n, if n < 5 { "ok" } else { "device_not_found" }));
    }
    let check = |filter: Filter, expected: &[u64]| {
        let found: Vec<u64> = audit.read(&filter).unwrap().iter().map(|e| e.seq).collect();
        assert_eq!(found, expected, "{filter:?}");
    };
    check(Filter { verb: Some("bind".into()), result: Some("ok".into()), ..Filter::default() }, &[1, 3, 5]);
    check(Filter { device: Some(MacAddr([2, 0, 0, 0, 0, 7])), ..Filter::default() }, &[8]);
    check(Filter { limit: Some(3), ..Filter::default() }, &[8, 9, 10]);
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
    assert_eq!(file::first_break(&path).unwrap(), None);
    let all = file::read(&path, 1000, &|_| true).unwrap();
    assert_eq!((all.len(), all.last().map(|e| e.seq)), (1000, Some(12_000)));
}
