//! Disks, masters, jobs, storage nodes and join tokens, over a socket.

use super::*;

const DISKS: &str = "/v1/workers/w1/disks";

async fn with_worker() -> Server {
    let api = server().await;
    for worker in ["w1", "w1-b"] {
        api.expect(("POST", "/v1/workers", json!({"worker_id": worker})), 201, "").await;
    }
    api
}

impl Server {
    /// Asks with one more header; the status, the `ETag`, and the body.
    async fn with(&self, request: (&str, &str, Value), header: &str) -> (u16, String, Value) {
        let (method, path, body) = request;
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n{header}Content-Length: {}\r\n\r\n{body}",
            self.token,
            body.len()
        );
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let text = rest(&mut stream).await;
        let status = text.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
        let etag = head.lines().find_map(|l| l.to_ascii_lowercase().starts_with("etag: ").then(|| l[6..].to_owned()));
        (status, etag.unwrap_or_default(), serde_json::from_str(body).unwrap_or(Value::Null))
    }

    async fn upload(&self, name: &str, octets: &[u8]) -> (u16, Value) {
        let head = format!(
            "PUT /v1/masters/{name} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n",
            self.token,
            octets.len()
        );
        let (status, body) = self.raw(&[head.as_bytes(), octets].concat()).await;
        (status, serde_json::from_str(&body).unwrap_or(Value::Null))
    }

    async fn empty_disk(&self, worker: &str, version: &str) -> Value {
        let order = json!({"os": "debian", "os_version": version, "size_bytes": 1 << 20});
        self.expect(("POST", &format!("/v1/workers/{worker}/disks"), order), 201, "").await
    }

    /// The job when it has ended.
    async fn ended(&self, job: &str) -> Value {
        let deadline = std::time::Instant::now() + WITHIN;
        loop {
            let job = self.expect(("GET", &format!("/v1/jobs/{job}"), Value::Null), 200, "").await;
            if ["done", "failed", "cancelled"].contains(&job["state"].as_str().unwrap()) {
                return job;
            }
            assert!(std::time::Instant::now() < deadline, "{job}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn master() -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    kurrent_harness::master::write_gpt(file.path(), 4 << 20).unwrap();
    std::fs::read(file.path()).unwrap()
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} of {value}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_is_made_described_enlarged_and_deleted_and_only_on_what_was_seen() {
    let api = with_worker().await;
    let disk = api.empty_disk("w1", "13").await;
    let path = format!("{DISKS}/{}", text(&disk, "os_tag"));
    assert_eq!((text(&disk, "worker_id"), text(&disk, "agent")), ("w1", "local"));
    assert_eq!(text(&disk, "iqn"), text(&disk, "nqn").replacen("nqn.", "iqn.", 1));
    api.expect(("POST", DISKS, json!({"os": "debian", "os_version": "13", "size_bytes": 4096})), 409, "disk_exists").await;
    api.expect(("POST", DISKS, json!({"os": "debian", "size_bytes": 4097})), 422, "size").await;
    api.expect(("POST", DISKS, json!({"os": "debian", "size_bytes": 4096, "agent": "far"})), 404, "agent_not_found").await;
    api.expect(("POST", DISKS, json!({"os": "debian", "size_bytes": 1u64 << 60})), 507, "disk_full").await;

    let (_, etag, _) = api.with(("GET", &path, Value::Null), "").await;
    let (status, changed, seen) = api.with(("PATCH", &path, json!({"remark": "root"})), &format!("If-Match: {etag}\r\n")).await;
    assert_eq!((status, text(&seen, "remark")), (200, "root"));
    for (method, path, body) in [
        ("PATCH", path.clone(), json!({"remark": "x"})),
        ("POST", format!("{path}/resize"), json!({"size_bytes": 2 << 20})),
        ("DELETE", path.clone(), Value::Null),
        ("POST", DISKS.to_owned(), json!({"os": "other", "size_bytes": 4096})),
    ] {
        let (status, _, answer) = api.with((method, &path, body), &format!("If-Match: {etag}\r\n")).await;
        assert_eq!((status, text(&answer, "code")), (412, "precondition_failed"), "{method} {path}");
    }
    let (status, _, seen) =
        api.with(("POST", &format!("{path}/resize"), json!({"size_bytes": 2 << 20})), &format!("If-Match: {changed}\r\n")).await;
    assert_eq!((status, &seen["size_bytes"], text(&seen, "data_plane")), (200, &json!(2 << 20), "followed"));
    api.expect(("POST", &format!("{path}/resize"), json!({"size_bytes": 4096})), 422, "disk_shrinks").await;

    let file = text(&disk, "filename").to_owned();
    std::fs::OpenOptions::new().write(true).open(api.folder.path().join("disks").join(&file)).unwrap().set_len(3 << 20).unwrap();
    let listed = api.expect(("GET", "/v1/disks", Value::Null), 200, "").await;
    assert!(text(&listed["disks"][0], "fault").contains("a resize was cut off"), "what a crash left is shown: {listed}");
    assert_eq!(api.ask("DELETE", &path, "").await.0, 204);
    let leftovers = api.expect(("GET", "/v1/leftovers", Value::Null), 200, "").await;
    assert_eq!(leftovers["leftovers"], json!([{"name": file, "size_bytes": 3 << 20, "kind": "unrecorded"}]));
    let adopt = json!({"filename": file, "os": "debian", "os_version": "13", "remark": "again"});
    let again = api.expect(("POST", "/v1/workers/w1-b/disks/adopt", adopt), 201, "").await;
    assert_ne!(text(&again, "os_tag"), text(&disk, "os_tag"));
    assert_eq!((again["size_bytes"].as_u64(), again["source"].as_str()), (Some(3 << 20), Some("adopted")));
    api.expect(("DELETE", &format!("/v1/leftovers/{file}"), Value::Null), 404, "file_not_found").await;
    api.expect(("DELETE", &format!("/v1/leftovers/{}", text(&again, "filename")), Value::Null), 409, "file_is_recorded").await;
    let path = format!("/v1/workers/w1-b/disks/{}", text(&again, "os_tag"));
    assert_eq!(api.ask("DELETE", &format!("{path}?delete_file=true"), "").await.0, 204);
    api.expect(("GET", &path, Value::Null), 404, "disk_not_found").await;
    assert_eq!(api.expect(("GET", "/v1/leftovers", Value::Null), 200, "").await["leftovers"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_of_all_workers_come_in_pieces_and_by_filter() {
    let api = with_worker().await;
    for (worker, version) in [("w1", "1"), ("w1-b", "1"), ("w1", "2"), ("w1-b", "2"), ("w1", "3")] {
        api.empty_disk(worker, version).await;
    }
    let (mut seen, mut cursor) = (vec![], String::new());
    loop {
        let list = api.expect(("GET", &format!("/v1/disks?limit=2{cursor}"), Value::Null), 200, "").await;
        seen.extend(list["disks"].as_array().unwrap().iter().map(|d| (text(d, "worker_id").to_owned(), text(d, "os_tag").to_owned())));
        let Some(next) = list["next"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    let mut sorted = seen.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!((seen.len(), seen), (5, sorted), "each once, in order");
    for (query, count) in [("worker=w1", 3), ("agent=local", 5), ("agent=far", 0), ("os=debian&worker=w1-b", 2), ("os=other", 0)] {
        let list = api.expect(("GET", &format!("/v1/disks?{query}"), Value::Null), 200, "").await;
        assert_eq!(list["disks"].as_array().unwrap().len(), count, "{query}");
    }
    assert_eq!(api.expect(("GET", DISKS, Value::Null), 200, "").await["disks"].as_array().unwrap().len(), 3);
    api.expect(("GET", "/v1/workers/none/disks", Value::Null), 404, "worker_not_found").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k36_the_preview_of_a_batch_is_what_is_carried_out_or_nothing_is() {
    let api = with_worker().await;
    let item = |worker: &str, version: &str| json!({"worker_id": worker, "os": "debian", "os_version": version, "size_bytes": 1 << 20});
    let items = json!([item("w1", "1"), item("w1-b", "1")]);
    let shown = api.expect(("POST", "/v1/disks/batch", json!({"items": items, "dry_run": true})), 200, "").await;
    assert_eq!((shown["plan"][0]["agent"].as_str(), shown.get("jobs")), (Some("local"), None));
    let order = json!({"items": items, "generation": shown["generation"]});
    let begun = api.expect(("POST", "/v1/disks/batch", order.clone()), 202, "").await;
    assert_eq!(begun["plan"], shown["plan"]);
    for job in begun["jobs"].as_array().unwrap() {
        assert_eq!(api.ended(job.as_str().unwrap()).await["state"], "done");
    }
    api.expect(("POST", "/v1/disks/batch", order), 409, "plan_stale").await;
    let mixed = json!({"items": [item("w1", "2"), item("w1", "1"), item("none", "1")]});
    let held = api.expect(("POST", "/v1/disks/batch", mixed), 200, "").await;
    let codes: Vec<&Value> = held["plan"].as_array().unwrap().iter().map(|p| &p["code"]).collect();
    assert_eq!((codes, held.get("jobs")), (vec![&Value::Null, &json!("disk_exists"), &json!("worker_not_found")], None));
    assert_eq!(api.expect(("GET", "/v1/disks", Value::Null), 200, "").await["disks"].as_array().unwrap().len(), 2);
    api.expect(("POST", "/v1/disks/batch", json!({"items": []})), 422, "batch_empty").await;
    let wrong = json!({"items": [item("w1", "5"), {"worker_id": "w1", "os": "debian"}]});
    let refused = api.expect(("POST", "/v1/disks/batch", wrong), 422, "body_invalid").await;
    assert_eq!(text(&refused, "field"), "items[1].master");
}

#[tokio::test(flavor = "multi_thread")]
async fn k25_a_master_is_imported_tagged_cloned_and_deleted_with_its_tags() {
    let api = with_worker().await;
    let path = "/v1/masters/debian_tpl_13.img";
    let octets = master();
    let (status, imported) = api.upload("debian_tpl_13.img", &octets).await;
    assert_eq!((status, imported["sector_bytes"].as_u64(), text(&imported, "sha256").len()), (201, Some(4096), 64));
    assert_eq!(api.upload("debian_tpl_13.img", &octets).await.1["code"], "master_exists");
    let (_, etag, _) = api.with(("GET", path, Value::Null), "").await;
    let tags = json!({"os": "debian", "os_version": "13", "remark": "golden"});
    let (status, _, tagged) = api.with(("PUT", &format!("{path}/tags"), tags.clone()), &format!("If-Match: {etag}\r\n")).await;
    assert_eq!((status, text(&tagged, "os"), text(&tagged, "remark")), (200, "debian", "golden"));
    let (status, _, stale) = api.with(("PUT", &format!("{path}/tags"), json!({})), &format!("If-Match: {etag}\r\n")).await;
    assert_eq!((status, text(&stale, "code")), (412, "precondition_failed"));
    api.expect(("PUT", "/v1/masters/none_tpl_.img/tags", tags), 404, "master_not_found").await;
    let listed = api.expect(("GET", "/v1/masters", Value::Null), 200, "").await;
    assert_eq!(listed["masters"][0], tagged);

    let (status, made) = api.ask("POST", DISKS, &json!({"os": "debian", "master": "debian_tpl_13.img"}).to_string()).await;
    let disk = if status == 202 { api.ended(text(&made, "job")).await["disk"].clone() } else { made };
    assert_eq!(text(&disk["source"]["master"], "digest"), format!("sha256:{}", text(&imported, "sha256")));
    assert_eq!(api.with(("DELETE", path, Value::Null), &format!("If-Match: {etag}\r\n")).await.0, 412, "somebody tagged it since");
    assert_eq!(api.ask("DELETE", path, "").await.0, 204);
    api.expect(("GET", path, Value::Null), 404, "master_not_found").await;
    assert_eq!(api.upload("debian_tpl_13.img", &octets).await.1["remark"], "", "tags do not come back");
    let verbs = api.expect(("GET", "/v1/operations?verb=master-delete", Value::Null), 200, "").await;
    assert_eq!(verbs["operations"].as_array().unwrap().len(), 2, "a refusal is written too: {verbs}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_watched_until_it_ends_and_cancelled_from_elsewhere() {
    let api = with_worker().await;
    // An import that stalls.
    let mut import = TcpStream::connect(api.address).await.unwrap();
    let head = format!(
        "PUT /v1/masters/slow_tpl_1.img HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n",
        api.token,
        4 << 20
    );
    import.write_all(head.as_bytes()).await.unwrap();
    import.write_all(&master()[..1 << 20]).await.unwrap();
    let job = loop {
        let jobs = api.expect(("GET", "/v1/jobs", Value::Null), 200, "").await;
        if jobs["jobs"][0]["done_bytes"] == 1 << 20 {
            break jobs["jobs"][0].clone();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!((text(&job, "kind"), text(&job, "state"), job["total_bytes"].as_u64()), ("import", "running", Some(4 << 20)));
    let path = format!("/v1/jobs/{}", text(&job, "id"));
    let mut watch = TcpStream::connect(api.address).await.unwrap();
    let ask = format!("GET {path}/events HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\r\n", api.token);
    watch.write_all(ask.as_bytes()).await.unwrap();
    let mut first = [0; 4096];
    let mut begun = String::new();
    while !begun.contains("\n\n") {
        let read = tokio::time::timeout(WITHIN, watch.read(&mut first)).await.unwrap().unwrap();
        begun.push_str(&String::from_utf8_lossy(&first[..read]));
    }
    assert!(begun.contains("text/event-stream") && begun.contains("event: job\n") && begun.contains("\"state\":\"running\""), "{begun}");
    let cancelled = api.expect(("DELETE", &path, Value::Null), 200, "").await;
    assert_eq!((text(&cancelled, "state"), cancelled["finished_at"].is_string()), ("cancelled", true));
    let told = rest(&mut watch).await;
    assert!(told.contains("\"state\":\"cancelled\""), "the watch ends with the end: {told}");
    assert_eq!(std::fs::read_dir(api.folder.path().join("disks")).unwrap().count(), 0, "nothing is left");
    drop(import);

    let (_, imported) = api.upload("done_tpl_1.img", &master()).await;
    assert_eq!(text(&imported, "name"), "done_tpl_1.img");
    let jobs = api.expect(("GET", "/v1/jobs", Value::Null), 200, "").await;
    let last = jobs["jobs"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((text(&last, "state"), text(&last, "result")), ("done", "/v1/masters/done_tpl_1.img"));
    api.expect(("DELETE", &format!("/v1/jobs/{}", text(&last, "id")), Value::Null), 409, "job_finished").await;
    api.expect(("DELETE", "/v1/jobs/none", Value::Null), 404, "job_not_found").await;
    api.expect(("GET", "/v1/jobs/none/events", Value::Null), 404, "job_not_found").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k32_storage_nodes_are_added_drained_and_removed_and_the_appliance_is_always_one() {
    let api = with_worker().await;
    api.empty_disk("w1", "1").await;
    let list = api.expect(("GET", "/v1/agents", Value::Null), 200, "").await;
    let local = &list["agents"][0];
    assert_eq!((text(local, "name"), text(local, "health"), &local["disks"]), ("local", "ready", &json!(1)), "{list}");
    assert!(local["free_bytes"].as_u64() > Some(0) && local["free_bytes"].as_u64() <= local["total_bytes"].as_u64());
    let order = json!({"name": "far", "base_url": "https://10.0.0.2:8443", "note": "cellar"});
    let far = api.expect(("POST", "/v1/agents", order.clone()), 201, "").await;
    assert_eq!((text(&far, "health"), far["local"].as_bool()), ("unreachable", Some(false)));
    assert!(text(&far, "detail").contains("recorded and not asked"), "{far}");
    api.expect(("POST", "/v1/agents", order), 409, "agent_exists").await;
    api.expect(("POST", "/v1/agents", json!({"name": "x", "base_url": "ftp://x"})), 422, "base_url_invalid").await;
    let (_, etag, _) = api.with(("GET", "/v1/agents/far", Value::Null), "").await;
    assert_eq!(api.with(("PATCH", "/v1/agents/far", json!({"note": "attic"})), &format!("If-Match: {etag}\r\n")).await.0, 200);
    for (method, path) in [("PATCH", "/v1/agents/far"), ("POST", "/v1/agents/far/drain"), ("DELETE", "/v1/agents/far")] {
        let (status, _, answer) = api.with((method, path, json!({})), &format!("If-Match: {etag}\r\n")).await;
        assert_eq!((status, text(&answer, "code")), (412, "precondition_failed"), "{method} {path}");
    }
    let probed = api.expect(("POST", "/v1/agents/far/probe", Value::Null), 200, "").await;
    assert_eq!(text(&probed, "note"), "attic");

    assert_eq!(api.expect(("POST", "/v1/agents/local/drain", Value::Null), 200, "").await["drained"], true);
    let refused = api.expect(("POST", DISKS, json!({"os": "debian", "os_version": "2", "size_bytes": 4096})), 409, "no_storage_node").await;
    let why = text(&refused, "detail");
    assert!(why.contains("local: it is drained") && why.contains("far: it is not reachable"), "{why}");
    assert_eq!(api.expect(("POST", "/v1/agents/local/undrain", Value::Null), 200, "").await["drained"], false);
    api.empty_disk("w1", "2").await;
    api.expect(("DELETE", "/v1/agents/local", Value::Null), 409, "agent_is_local").await;
    api.expect(("PATCH", "/v1/agents/local", json!({"base_url": "https://x:1"})), 422, "agent_is_local").await;
    assert_eq!(api.ask("DELETE", "/v1/agents/far", "").await.0, 204);
    api.expect(("GET", "/v1/agents/far", Value::Null), 404, "agent_not_found").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_token_is_shown_once_kept_as_a_hash_and_revoked() {
    let api = server().await;
    let (_, _, made) = api.with(("POST", "/v1/join-tokens", json!({"minutes": 30, "note": "store2"})), "Idempotency-Key: one\r\n").await;
    let token = text(&made, "token").to_owned();
    assert!(token.len() == 26 && token.bytes().all(|b| b.is_ascii_uppercase() || (b'2'..=b'7').contains(&b)), "{token}");
    let again = api.with(("POST", "/v1/join-tokens", json!({"minutes": 30, "note": "store2"})), "Idempotency-Key: one\r\n").await;
    assert!(!again.2.to_string().contains(&token), "not even to who lost the answer: {again:?}");
    let list = api.expect(("GET", "/v1/join-tokens", Value::Null), 200, "").await;
    let listed = &list["join_tokens"][0];
    assert_eq!((listed["id"].clone(), text(listed, "note"), listed["expired"].as_bool()), (made["id"].clone(), "store2", Some(false)));
    assert!(!list.to_string().contains(&token) && !list.to_string().contains("hash"));
    let hash = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(token.as_bytes()));
    assert_eq!(api.shared.ledger.snapshot().join_tokens[text(&made, "id")].token_hash, hash);
    for minutes in [0, 61, -1, i64::MAX] {
        api.expect(("POST", "/v1/join-tokens", json!({"minutes": minutes})), 422, "minutes_out_of_range").await;
    }
    let state = std::fs::read_dir(api.folder.path().join("state")).unwrap().flatten().filter(|e| e.path().is_file());
    for file in state {
        let octets = std::fs::read(file.path()).unwrap();
        assert!(!octets.windows(token.len()).any(|w| w == token.as_bytes()), "{:?} holds the token", file.path());
    }
    let path = format!("/v1/join-tokens/{}", text(&made, "id"));
    assert_eq!(api.ask("DELETE", &path, "").await.0, 204);
    api.expect(("DELETE", &path, Value::Null), 404, "join_token_not_found").await;
}

#[tokio::test]
async fn k37_a_deleted_disk_is_not_exported_any_more_when_that_is_answered() {
    let api = server().await;
    api.expect(("POST", "/v1/devices", json!({"mac": "52:54:00:00:00:01", "keyless_allowed": true})), 201, "").await;
    api.expect(("POST", "/v1/workers", json!({"worker_id": "w1"})), 201, "").await;
    let disk = api.expect(("POST", DISKS, json!({"os": "data", "size_bytes": 1_048_576})), 201, "").await;
    let bound = api.expect(("POST", &format!("{MAC}/bind"), json!({"worker_id": "w1"})), 200, "").await;
    assert_eq!(bound["data_plane"], "followed");
    let exports = async || api.expect(("GET", "/v1/target", Value::Null), 200, "").await["exports"].clone();
    assert_eq!(exports().await[0]["subsystem"], disk["nqn"]);
    assert_eq!(api.ask("DELETE", &format!("{DISKS}/{}", text(&disk, "os_tag")), "").await.0, 204);
    assert_eq!(exports().await, json!([]));
}
