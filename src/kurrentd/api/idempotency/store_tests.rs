use super::*;

const HOUR: jiff::SignedDuration = jiff::SignedDuration::from_hours(1);

fn at(hours: i64) -> Wall {
    Wall::from_second(1_700_000_000 + hours * 3600).unwrap()
}

fn slot(key: &str) -> Slot {
    Slot { actor: "user admin".into(), key: key.into() }
}

fn answered(body: &str) -> End {
    End::Answered(Answer { status: 201, headers: BTreeMap::new(), body: body.into() })
}

/// The word for what a store says to a request.
fn said(store: &Store, key: &str, request: &str, now: Wall) -> String {
    match store.begin(slot(key), request.into(), now) {
        Begin::Fresh => "fresh".into(),
        Begin::Again(answer) => format!("again {}", answer.body),
        Begin::Refused(problem) => serde_json::to_value(problem).unwrap()["code"].as_str().unwrap().into(),
    }
}

fn file() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("idempotency.jsonl");
    (folder, path)
}

#[test]
fn a_key_has_one_outcome_also_across_a_restart() {
    let (_folder, path) = file();
    let store = Store::open(&path);
    let ends = [
        ("done", Some(answered("x")), "again x", "again x"),
        ("secret", Some(End::ShownOnce), "shown_once", "shown_once"),
        ("long", Some(answered(&"x".repeat(MAX_ANSWER_OCTETS + 1)).bounded()), "answer_not_kept", "answer_not_kept"),
        ("free", Some(End::Forgotten), "fresh", "fresh"),
        ("failed", Some(End::Unknown), "outcome_unknown", "outcome_unknown"),
        ("runs", None, "in_progress", "outcome_unknown"),
    ];
    for (key, end, _, _) in &ends {
        assert_eq!(said(&store, key, "r", at(0)), "fresh", "{key}");
        assert_eq!(said(&store, key, "r", at(0)), "in_progress", "{key}");
        if let Some(end) = end {
            store.end(&slot(key), end.clone());
        }
    }
    // A new process reads what is there at this moment, as after a power cut.
    let copy = path.with_file_name("copy.jsonl");
    std::fs::copy(&path, &copy).unwrap();
    let after = Store::open(&copy);
    for (key, _, now, then) in &ends {
        if *now != "fresh" {
            assert_eq!(said(&store, key, "other", at(1)), "idempotency_key_reused", "{key}");
        }
        assert_eq!(said(&store, key, "r", at(1)), *now, "{key}");
        assert_eq!(said(&after, key, "r", at(1)), *then, "{key}");
    }
    assert_eq!(said(&store, "done", "r", at(KEPT_HOURS)), "again x");
    assert_eq!(said(&store, "done", "r", at(KEPT_HOURS) + HOUR), "fresh", "a day is over");
    let other = Slot { actor: "somebody".into(), key: "secret".into() };
    assert!(matches!(after.begin(other, "r".into(), at(0)), Begin::Fresh), "keys are per actor");
}

#[test]
fn cut_anywhere_the_file_opens_and_a_begun_key_is_never_free_again() {
    let (_folder, path) = file();
    let store = Store::open(&path);
    assert_eq!(said(&store, "a", "r", at(0)), "fresh");
    let begun = std::fs::metadata(&path).unwrap().len();
    store.end(&slot("a"), answered("x"));
    let whole = std::fs::read(&path).unwrap();
    for cut in 0..=whole.len() {
        let copy = path.with_file_name("copy.jsonl");
        std::fs::write(&copy, &whole[..cut]).unwrap();
        let expected = match u64::try_from(cut).unwrap() {
            c if c < begun => "fresh",
            _ if cut < whole.len() => "outcome_unknown",
            _ => "again x",
        };
        assert_eq!(said(&Store::open(&copy), "a", "r", at(0)), expected, "cut at {cut}");
    }
}

#[test]
fn it_is_bounded_private_and_shortened() {
    use std::os::unix::fs::PermissionsExt;
    let (_folder, path) = file();
    let store = Store::open(&path);
    let body = "x".repeat(MAX_ANSWER_OCTETS);
    for n in 0..3 * MAX_ALL_OCTETS / MAX_ANSWER_OCTETS {
        let key = n.to_string();
        assert_eq!(said(&store, &key, "r", at(0)), "fresh");
        store.end(&slot(&key), answered(&body));
    }
    assert!(store.lock().shares.octets() <= MAX_ALL_OCTETS);
    assert_eq!(said(&store, "0", "r", at(0)), "fresh", "the oldest is forgotten");
    for _ in 0..SPARE_LINES {
        assert_eq!(said(&store, "again", "r", at(0)), "fresh");
        store.end(&slot("again"), End::Forgotten);
    }
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.lines().count() < 2 * SPARE_LINES, "{}", text.lines().count());
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
}

/// With one token or with many.
#[test]
fn whoever_uses_many_keys_or_gets_long_answers_pushes_out_only_his_own() {
    let (_folder, path) = file();
    let store = Store::open(&path);
    let put = |actor: String, key: String, body: &str| {
        let slot = Slot { actor, key };
        store.lock().put(Line { slot, request: "r".into(), at: at(0), end: Some(answered(body)) });
        store.lock().make_room();
    };
    let olga = |n: usize| Slot { actor: "user olga".into(), key: n.to_string() };
    for n in 0..10 {
        put(olga(n).actor, olga(n).key, "x");
    }
    let long = "x".repeat(MAX_ANSWER_OCTETS);
    for n in 0..2 * MAX_KEYS {
        let actor = if n % 2 == 0 { "user eve".into() } else { format!("token eve/{:012x}", n % 48) };
        put(actor, n.to_string(), if n % 100 == 0 { &long } else { "x" });
    }
    for n in 0..10 {
        assert!(matches!(store.begin(olga(n), "r".into(), at(0)), Begin::Again(_)), "{n}");
    }
    assert!(store.lock().keys.len() < MAX_KEYS && store.lock().shares.octets() <= MAX_ALL_OCTETS);
    let last = Slot { actor: "user eve".into(), key: (2 * MAX_KEYS - 2).to_string() };
    assert!(matches!(store.begin(last, "r".into(), at(0)), Begin::Again(_)), "and of those the oldest");
}

#[test]
fn long_answers_never_make_a_file_that_the_next_start_sets_aside() {
    let (_folder, path) = file();
    let store = Store::open(&path);
    // Quotes are two octets in the file.
    let body = "\"".repeat(MAX_ANSWER_OCTETS);
    let long = usize::try_from(MAX_FILE_OCTETS).unwrap() / MAX_ANSWER_OCTETS;
    for n in 0..long {
        let key = n.to_string();
        assert_eq!(said(&store, &key, "r", at(0)), "fresh");
        store.end(&slot(&key), answered(&body));
        assert!(std::fs::metadata(&path).unwrap().len() <= MAX_FILE_OCTETS, "{n}");
    }
    let last = (long - 1).to_string();
    assert!(said(&Store::open(&path), &last, "r", at(0)).starts_with("again "));
}

#[test]
fn a_file_that_is_removed_meanwhile_is_written_anew_with_all_keys() {
    let (_folder, path) = file();
    let store = Store::open(&path);
    assert_eq!(said(&store, "a", "r", at(0)), "fresh");
    store.end(&slot("a"), answered("x"));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(said(&store, "b", "r", at(0)), "fresh");
    let after = Store::open(&path);
    assert_eq!([said(&after, "a", "r", at(0)), said(&after, "b", "r", at(0))], ["again x", "outcome_unknown"]);
}

#[test]
fn what_does_not_read_is_set_aside_and_what_can_not_be_written_refuses() {
    let (_folder, path) = file();
    std::fs::write(&path, "nonsense\n").unwrap();
    let store = Store::open(&path);
    assert_eq!(said(&store, "a", "r", at(0)), "fresh");
    assert_eq!(std::fs::read_to_string(path.with_extension("damaged")).unwrap(), "nonsense\n");
    let mut inner = store.lock();
    inner.file = Log::open(Path::new("/dev/full"));
    inner.path = "/proc/nothing".into();
    drop(inner);
    for _ in 0..2 {
        assert_eq!(said(&store, "b", "r", at(0)), "not_durable");
    }
    assert_eq!(said(&store, "a", "r", at(0)), "in_progress");
}

#[test]
fn a_key_that_runs_is_never_forgotten_for_others() {
    let (_folder, path) = file();
    let store = Store::open(&path);
    assert_eq!(said(&store, "runs", "r", at(0)), "fresh");
    let mut inner = store.lock();
    for n in 0..2 * MAX_KEYS {
        inner.make_room();
        let line = Line { slot: slot(&format!("k{n}")), request: "r".into(), at: at(0), end: Some(answered("x")) };
        inner.put(line);
    }
    drop(inner);
    assert_eq!(said(&store, "runs", "r", at(100)), "in_progress");
    assert_eq!(said(&store, "k0", "r", at(0)), "fresh", "forgotten");
    store.end(&slot("runs"), answered("late"));
    assert_eq!(said(&store, "runs", "r", at(0)), "again late");
}

#[test]
fn what_a_power_cut_left_behind_the_last_sync_is_cut_off_and_frees_no_key_that_was_begun() {
    let (_folder, path) = file();
    let store = Store::open(&path);
    assert_eq!(said(&store, "a", "r", at(0)), "fresh");
    let durable = std::fs::read(&path).unwrap();
    store.end(&slot("a"), answered("x"));
    assert_eq!(said(&store, "b", "r", at(0)), "fresh");
    let all = std::fs::read(&path).unwrap();
    drop(store);
    // Octets of the first lines behind the sync that never came to the disk, and such as did.
    for zeros in 1..all.len() - durable.len() {
        let mut torn = all.clone();
        torn[durable.len()..durable.len() + zeros].fill(0);
        std::fs::write(&path, &torn).unwrap();
        let store = Store::open(&path);
        assert_eq!(said(&store, "a", "r", at(1)), "outcome_unknown", "{zeros}");
        assert_eq!(std::fs::read(&path).unwrap(), durable, "{zeros}");
    }
}

#[test]
fn many_that_begin_together_are_all_durable() {
    let (_folder, path) = file();
    let store = Store::open(&path);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let store = &store;
            scope.spawn(move || {
                for n in 0..20 {
                    let key = format!("{thread} {n}");
                    assert_eq!(said(store, &key, "r", at(0)), "fresh");
                    store.end(&slot(&key), answered(&key));
                }
            });
        }
    });
    let again = Store::open(&path);
    for key in (0..8).flat_map(|thread| (0..20).map(move |n| format!("{thread} {n}"))) {
        assert_eq!(said(&again, &key, "r", at(1)), format!("again {key}"));
    }
}
