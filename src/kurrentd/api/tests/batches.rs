//! Batches, imports, paging.

use super::*;

const BIND: &str = "/v1/devices/bind";

/// Devices 1 to 4 (`52:54:00:00:00:0N`) and Workers `w1` to `w4`, nothing bound.
async fn four() -> Server {
    let api = server().await;
    for n in 1..=4 {
        api.expect(("POST", "/v1/devices", json!({"mac": mac(n), "keyless_allowed": true})), 201, "").await;
    }
    api.expect(("POST", "/v1/workers/batch", json!({"prefix": "w", "count": 4})), 200, "").await;
    api
}

fn mac(n: u8) -> String {
    format!("52:54:00:00:00:{n:02x}")
}

fn items(pairs: &[(u8, &str)]) -> Value {
    pairs.iter().map(|(n, worker)| json!({"mac": mac(*n), "worker_id": worker})).collect()
}

#[tokio::test]
async fn k36_the_shown_plan_is_the_one_that_runs_and_a_stale_one_is_refused() {
    let api = four().await;
    let order = |dry_run, generation: Value| json!({"items": items(&[(1, "w1"), (2, "w2")]), "dry_run": dry_run, "generation": generation});
    let shown = api.expect(("POST", BIND, order(true, Value::Null)), 200, "").await;
    assert_eq!((shown["applied"].as_bool(), shown["plan"].as_array().map(Vec::len)), (Some(false), Some(2)));
    assert_eq!(api.shared.ledger.snapshot().bound.len(), 0);
    api.expect(("POST", "/v1/workers", json!({"worker_id": "other"})), 201, "").await;
    api.expect(("POST", BIND, order(false, shown["generation"].clone())), 409, "plan_stale").await;
    api.expect(("POST", BIND, order(true, shown["generation"].clone())), 409, "plan_stale").await;
    let shown = api.expect(("POST", BIND, order(true, Value::Null)), 200, "").await;
    let done = api.expect(("POST", BIND, order(false, shown["generation"].clone())), 200, "").await;
    assert_eq!((done["applied"].as_bool(), &done["plan"]), (Some(true), &shown["plan"]));
    assert_eq!(api.shared.ledger.snapshot().bound.len(), 2);
    // One generation for the whole batch.
    assert_eq!(done["generation"].as_u64(), shown["generation"].as_u64().map(|g| g + 1));
}

#[tokio::test]
async fn k29_a_batch_is_done_whole_or_not_at_all() {
    let api = four().await;
    api.expect(("POST", BIND, json!({"items": items(&[(1, "w1"), (2, "w2")])})), 200, "").await;
    let before = api.shared.ledger.snapshot().generation;
    for (pairs, force, status, code) in [
        (&[(3, "w3"), (4, "w1")][..], false, 409, "worker_bound"),
        (&[(3, "w3"), (4, "none")], true, 404, "worker_not_found"),
        (&[(3, "w3"), (3, "w4")], true, 422, "twice_in_batch"),
        (&[], true, 422, "batch_invalid"),
    ] {
        let problem = api.expect(("POST", BIND, json!({"items": items(pairs), "force": force})), status, code).await;
        assert!(problem["field"].as_str().is_some_and(|f| f.starts_with("items")), "{problem}");
    }
    assert_eq!(api.shared.ledger.snapshot().generation, before);
    let plan = api.expect(("POST", BIND, json!({"items": items(&[(1, "w2"), (3, "w1")]), "force": true})), 200, "").await;
    assert_eq!((plan["plan"][0]["displaces"].as_str(), plan["plan"][0]["leaves"].as_str()), (Some(mac(2).as_str()), Some("w1")), "{plan}");
    assert_eq!(api.expect(("GET", &format!("/v1/devices/{}", mac(2)), Value::Null), 200, "").await["state"], "pooled");
}

#[tokio::test]
async fn workers_are_made_by_names_or_by_number_and_deleted_each_by_itself() {
    let api = server().await;
    let path = "/v1/workers/batch";
    let made = api.expect(("POST", path, json!({"prefix": "rack7-", "start": 9, "count": 2, "width": 3, "dry_run": true})), 200, "").await;
    assert_eq!(made["plan"], json!([{"worker_id": "rack7-009"}, {"worker_id": "rack7-010"}]));
    assert_eq!(api.shared.ledger.snapshot().workers.len(), 0);
    api.expect(("POST", path, json!({"names": ["a", "b", "c"]})), 200, "").await;
    let shown = api.expect(("POST", path, json!({"names": ["c", "d"], "dry_run": true})), 200, "").await;
    assert_eq!((shown["plan"][0]["code"].as_str(), shown["plan"][1].get("code")), (Some("worker_exists"), None));
    api.expect(("POST", path, json!({"names": ["d", "c"]})), 409, "worker_exists").await;
    for body in [
        json!({}),
        json!({"names": ["x"], "prefix": "y"}),
        json!({"names": ["x"], "width": 1}),
        json!({"prefix": "y"}),
        json!({"count": 1}),
    ] {
        api.expect(("POST", path, body), 422, "body_invalid").await;
    }
    api.expect(("POST", path, json!({"prefix": "y", "count": 1001})), 422, "batch_invalid").await;
    api.expect(("POST", path, json!({"prefix": "y_", "count": 1})), 422, "name_invalid").await;
    let gone = api.expect(("POST", "/v1/workers/batch-delete", json!({"workers": ["a", "none", "c"]})), 200, "").await;
    assert_eq!(gone["deleted"].as_array().map(Vec::len), Some(2));
    assert_eq!((gone["failed"][0]["worker_id"].as_str(), gone["failed"][0]["code"].as_str()), (Some("none"), Some("worker_not_found")));
    assert_eq!(api.shared.ledger.snapshot().workers.keys().map(ToString::to_string).collect::<Vec<_>>(), ["b"]);
}

async fn import(api: &Server, query: &str, kind: &str, body: &str) -> (u16, Value) {
    api.ask_with("POST", &format!("/v1/devices/import{query}"), &[("Content-Type", kind)], body).await
}

fn lines(list: &Value) -> Vec<u64> {
    list.as_array().unwrap().iter().map(|i| i["line"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn k09_an_import_tells_of_each_line_what_became_of_it() {
    let files = [
        (
            "text/csv",
            "mac,note,labels,keyless_allowed\r\n52:54:00:00:00:01,first,rack=7; size=big,yes\r\nnonsense,,,\r\n\r\n\
             5254.0000.0002,\"a, b\",,\r\n52-54-00-00-00-01,,,\r\n52:54:00:00:00:03,,broken,\r\n52:54:00:00:00:09,,,\r\n52:54:00:00:00:04\r\n",
            (vec![2, 5], vec![8], vec![3, 6, 7, 9]),
        ),
        (
            "application/json",
            "[{\"mac\":\"52:54:00:00:00:01\",\"note\":\"first\",\"labels\":{\"rack\":\"7\",\"size\":\"big\"},\"keyless_allowed\":true},\n\
             {\"mac\":\"nonsense\"},\n{\"mac\":\"5254.0000.0002\",\"note\":\"a, b\"},\n{\"mac\":\"52-54-00-00-00-01\"},\n\
             {\"mac\":\"52:54:00:00:00:03\",\"more\":1},\n{\"mac\":\"52:54:00:00:00:09\"},\n7]",
            (vec![1, 3], vec![6], vec![2, 4, 5, 7]),
        ),
        (
            "application/yaml",
            "devices:\n- mac: \"52:54:00:00:00:01\"\n  note: first\n  labels: {rack: \"7\", size: big}\n  keyless_allowed: true\n- mac: nonsense\n\
             - mac: 5254.0000.0002\n  note: a, b\n- mac: 52-54-00-00-00-01\n- mac: 52:54:00:00:00:09\n",
            (vec![2, 7], vec![10], vec![6, 9]),
        ),
    ];
    for (kind, text, (created, skipped, failed)) in files {
        let api = server().await;
        api.expect(("POST", "/v1/devices", json!({"mac": "52:54:00:00:00:09"})), 201, "").await;
        for query in ["?dry_run=true", ""] {
            let (status, answer) = import(&api, query, kind, text).await;
            assert_eq!(status, 200, "{kind}: {answer}");
            let found = (lines(&answer["created"]), lines(&answer["skipped"]), lines(&answer["failed"]));
            assert_eq!(found, (created.clone(), skipped.clone(), failed.clone()), "{kind}{query}: {answer}");
            assert_eq!(api.shared.ledger.snapshot().devices.len(), if query.is_empty() { 3 } else { 1 });
        }
        let first = api.expect(("GET", MAC, Value::Null), 200, "").await;
        assert_eq!((&first["labels"], first["note"].as_str()), (&json!({"rack": "7", "size": "big"}), Some("first")), "{kind}");
        assert_eq!((first["keyless_allowed"].as_bool(), first["source"].as_str()), (Some(true), Some("manual")), "{kind}");
    }
}

#[tokio::test]
async fn a_reserved_address_of_an_import_is_checked_as_that_of_an_edit() {
    let files = [
        (
            "text/csv",
            "mac,address\n52:54:00:00:00:01,10.77.0.9\n52:54:00:00:00:02,10.77.0.9\n52:54:00:00:00:03,192.0.2.9\n\
             52:54:00:00:00:04,10.77.0.255\n52:54:00:00:00:05,10.77.0\n52:54:00:00:00:06,\n52:54:00:00:00:07,10.77.0.8\n",
        ),
        (
            "application/json",
            "\n[{\"mac\":\"52:54:00:00:00:01\",\"address\":\"10.77.0.9\"},\n{\"mac\":\"52:54:00:00:00:02\",\"address\":\"10.77.0.9\"},\n\
             {\"mac\":\"52:54:00:00:00:03\",\"address\":\"192.0.2.9\"},\n{\"mac\":\"52:54:00:00:00:04\",\"address\":\"10.77.0.255\"},\n\
             {\"mac\":\"52:54:00:00:00:05\",\"address\":\"10.77.0\"},\n{\"mac\":\"52:54:00:00:00:06\",\"address\":null},\n\
             {\"mac\":\"52:54:00:00:00:07\",\"address\":\"10.77.0.8\"}]",
        ),
    ];
    for (kind, text) in files {
        let api = server().await;
        api.expect(("POST", "/v1/devices", json!({"mac": "52:54:00:00:00:09"})), 201, "").await;
        let edit = json!({"reserved_address": "10.77.0.8"});
        api.expect(("PATCH", "/v1/devices/52:54:00:00:00:09", edit), 200, "").await;
        for query in ["?dry_run=true", ""] {
            let (status, answer) = import(&api, query, kind, text).await;
            assert_eq!(status, 200, "{kind}: {answer}");
            let codes: Vec<_> = answer["failed"].as_array().unwrap().iter().map(|f| (f["line"].as_u64(), f["code"].as_str())).collect();
            let invalid = |line| (Some(line), Some("address_invalid"));
            let taken = |line| (Some(line), Some("address_taken"));
            assert_eq!(codes, [taken(3), invalid(4), invalid(5), invalid(6), taken(8)], "{kind}{query}: {answer}");
            assert_eq!(lines(&answer["created"]), [2, 7], "{kind}{query}: {answer}");
        }
        let first = api.expect(("GET", "/v1/devices/52:54:00:00:00:01", Value::Null), 200, "").await;
        assert_eq!(first["reserved_address"], "10.77.0.9", "{first}");
    }
}

#[tokio::test]
async fn files_that_can_not_be_read_change_nothing() {
    let api = server().await;
    for (kind, body, status, code) in [
        ("text/plain", "mac\n", 415, "not_importable"),
        ("text/csv", "", 400, "file_unreadable"),
        ("text/csv", "colour\nred\n", 400, "file_unreadable"),
        ("text/csv", "mac,mac\n1,2\n", 400, "file_unreadable"),
        ("application/json", "{", 400, "file_unreadable"),
        ("application/json", "{\"devices\":[],\"devices\":[]}", 400, "file_unreadable"),
        ("application/json", "{\"workers\":[]}", 400, "file_unreadable"),
        ("application/yaml", "- mac: a\n  mac: b\n", 400, "file_unreadable"),
        ("application/yaml", "a: &a [*a]\n", 400, "file_unreadable"),
        ("application/yaml", &"[".repeat(100_000), 400, "file_unreadable"),
        ("application/json", &"[".repeat(100_000), 400, "file_unreadable"),
    ] {
        let (found, answer) = import(&api, "", kind, body).await;
        assert_eq!((found, answer["code"].as_str()), (status, Some(code)), "{kind} {:?}: {answer}", body.get(..40).unwrap_or(body));
    }
    assert_eq!(api.shared.ledger.snapshot().generation, 0);
}

#[tokio::test]
async fn lists_come_in_pieces_and_filtered() {
    let api = four().await;
    api.expect(("PUT", &format!("/v1/devices/{}/labels", mac(2)), json!({"labels": {"rack": "7"}})), 200, "").await;
    api.expect(("POST", BIND, json!({"items": items(&[(3, "w3")])})), 200, "").await;
    for (path, key, id) in [("/v1/devices", "devices", "mac"), ("/v1/workers", "workers", "worker_id")] {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = api.expect(("GET", &format!("{path}?limit=3{cursor}"), Value::Null), 200, "").await;
            seen.extend(page[key].as_array().unwrap().iter().map(|i| i[id].as_str().unwrap().to_owned()));
            let Some(next) = page["next"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        assert_eq!(seen.len(), 4, "{seen:?}");
        assert!(seen.is_sorted(), "{seen:?}");
    }
    for (query, count) in [
        ("state=bound", 1),
        ("state=pooled", 3),
        ("worker=w3", 1),
        ("worker=w1", 0),
        ("source=manual", 4),
        ("source=ipxe", 0),
        ("label=rack", 1),
        ("label=rack%3D7", 1),
        ("label=rack=8", 0),
        ("label=rack&label=size", 0),
    ] {
        let list = api.expect(("GET", &format!("/v1/devices?{query}"), Value::Null), 200, "").await;
        assert_eq!(list["devices"].as_array().map(Vec::len), Some(count), "{query}");
    }
    for query in ["limit=0", "limit=1001", "limit=x", "limit=1&limit=2", "cursor=%00", "state=Bound", "colour=red", "worker=W"] {
        let (status, answer) = api.ask("GET", &format!("/v1/devices?{query}"), "").await;
        assert_eq!(status, 400, "{query}: {answer}");
    }
    assert_eq!(api.expect(("GET", "/v1/workers?readiness=partial", Value::Null), 200, "").await["workers"][0]["worker_id"], "w3");
}

/// The same threads serve DHCP, TFTP and HTTP boot.
#[tokio::test]
async fn a_long_import_keeps_nobody_waiting() {
    let api = server().await;
    let rows: String = (0..10_000u32).map(|n| format!("02:00:00:00:{:02x}:{:02x},{}\n", n >> 8, n & 255, "n".repeat(300))).collect();
    let (path, file) = ("/v1/devices/import?dry_run=true", format!("mac,note\n{rows}"));
    let request = api.request("POST", path, &[("Content-Type", "text/csv")], &file);
    let (last, before) = request.as_bytes().split_last().unwrap();
    let mut stream = TcpStream::connect(api.address).await.unwrap();
    stream.write_all(before).await.unwrap();
    let other = async || api.expect(("GET", "/v1/whoami", Value::Null), 200, "").await;
    // Meanwhile the server takes in what was sent, so that its last octet begins the work.
    for _ in 0..50 {
        other().await;
    }
    stream.write_all(&[*last]).await.unwrap();
    // All is on one thread: if the work were done on it, hardly anything would be answered before the import is.
    let mut answered = 0;
    let others = async {
        loop {
            other().await;
            answered += 1;
        }
    };
    tokio::select! {
        readable = stream.readable() => readable.unwrap(),
        () = others => unreachable!(),
    }
    let text = rest(&mut stream).await;
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let answer: Value = serde_json::from_str(body).unwrap();
    assert_eq!((head.starts_with("HTTP/1.1 200 "), answer["created"].as_array().map(Vec::len)), (true, Some(10_000)), "{head}");
    assert!(answered >= 5, "others had {answered} answers during the import");
}

#[tokio::test]
async fn what_is_deleted_but_for_a_file_says_so_and_the_other_files_are_gone() {
    let api = server().await;
    for (case, path) in [(1, "/v1/workers/w1?delete_files=true"), (2, "/v1/workers/batch-delete")] {
        let worker = format!("w{case}");
        api.expect(("POST", "/v1/workers", json!({"worker_id": worker})), 201, "").await;
        let mut files = vec![];
        for version in ["1", "2"] {
            let disk = json!({"os": "data", "os_version": version, "size_bytes": 1_048_576});
            let made = api.expect(("POST", &format!("/v1/workers/{worker}/disks"), disk), 201, "").await;
            files.push(api.folder.path().join("disks").join(made["filename"].as_str().unwrap()));
        }
        // What can not be removed as a file.
        std::fs::remove_file(&files[0]).unwrap();
        std::fs::create_dir(&files[0]).unwrap();
        let answer = if case == 1 {
            api.expect(("DELETE", path, Value::Null), 200, "").await
        } else {
            let answer = api.expect(("POST", path, json!({"workers": [worker], "delete_files": true})), 200, "").await;
            assert_eq!((answer["failed"].as_array().unwrap().len(), &answer["deleted"][0]["worker_id"]), (0, &json!(worker)));
            answer["deleted"][0].clone()
        };
        let name = json!(files[0].file_name().unwrap().to_str().unwrap());
        assert_eq!((&answer["retained"], &answer["failed"][0]["filename"]), (&json!([name]), &name), "{answer}");
        assert_eq!(answer["failed"][0]["code"], "file_not_removed", "{answer}");
        assert!(files[0].exists() && !files[1].exists(), "one that stays keeps no other");
        api.expect(("GET", &format!("/v1/workers/{worker}"), Value::Null), 404, "worker_not_found").await;
    }
}
