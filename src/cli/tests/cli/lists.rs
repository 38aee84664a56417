//! Pages, filters, `--watch`, events, jobs.

use crate::daemon::Daemon;
use crate::fake::{Fake, Reply, Seen, WITHIN, eventually};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

fn query<'s>(seen: &'s Seen, key: &str) -> Option<&'s str> {
    seen.path.split_once('?')?.1.split('&').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='))
}

/// 2500 Workers, in pages no larger than the API's largest.
fn paged() -> Fake {
    Fake::start(|seen, _| {
        let limit = query(seen, "limit").map_or(200, |l| l.parse::<usize>().unwrap());
        assert!((1..=1000).contains(&limit), "{}", seen.path);
        let from = query(seen, "cursor").map_or(0, |c| c.strip_prefix("c%2F").unwrap().parse::<usize>().unwrap());
        let to = (from + limit).min(2500);
        let workers: Vec<Value> = (from..to).map(|n| json!({ "worker_id": format!("w{n}") })).collect();
        let next = (to < 2500).then(|| format!("c/{to}"));
        Reply::Json(200, json!({ "workers": workers, "next": next, "generation": 7 }))
    })
}

#[test]
fn a_list_is_followed_through_all_pages() {
    let fake = paged();
    let all: Value = serde_json::from_str(&fake.ok(&["worker", "list", "-o", "json"])).unwrap();
    let names: Vec<&str> = all["workers"].as_array().unwrap().iter().map(|w| w["worker_id"].as_str().unwrap()).collect();
    assert_eq!((names.len(), names[0], names[2499]), (2500, "w0", "w2499"));
    assert_eq!((all.get("next"), &all["generation"]), (None, &json!(7)));
    assert_eq!(
        fake.seen().iter().map(|s| query(s, "limit").map(str::to_owned)).collect::<Vec<_>>(),
        [None, Some("1000".into()), Some("1000".into()), Some("1000".into())]
    );
}

#[test]
fn a_limit_is_kept_and_what_it_leaves_out_is_said() {
    let fake = paged();
    let output = fake.run(&["worker", "list", "--limit", "1001"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1002);
    assert!(String::from_utf8_lossy(&output.stderr).contains("raise --limit"));
    assert_eq!(fake.seen().iter().map(|s| query(s, "limit").unwrap().to_owned()).collect::<Vec<_>>(), ["1000", "1"]);
}

#[test]
fn a_server_that_repeats_itself_is_not_followed_for_ever() {
    let fake = Fake::answering(200, json!({ "workers": [{ "worker_id": "w1" }], "next": "same" }));
    fake.ok(&["worker", "list"]);
    assert!(fake.seen().len() <= 3, "{}", fake.seen().len());
}

#[test]
fn filters_reach_the_api_as_one_value_each() {
    let fake = Fake::answering(200, json!({ "devices": [], "operations": [], "disks": [] }));
    fake.ok(&["device", "list", "--state", "bound", "--label", "rack=7&x", "--label", "big", "--source", "manual"]);
    fake.ok(&["audit", "--verb", "bind", "--until", "2026-11-30T00:00:00Z", "--object", "w1", "--actor", "admin"]);
    fake.ok(&["disk", "list"]);
    fake.ok(&["disk", "list", "w1"]);
    fake.ok(&["disk", "list", "w1", "--os", "debian"]);
    let lines = fake.lines();
    let expected = [
        "GET /v1/devices?state=bound&source=manual&label=rack%3D7%26x&label=big",
        "GET /v1/operations?object=w1&verb=bind&actor=admin&until=2026-11-30T00%3A00%3A00Z&limit=100",
        "GET /v1/disks",
        "GET /v1/workers/w1/disks",
        "GET /v1/disks?worker=w1&os=debian",
    ];
    assert_eq!(lines, expected);
}

/// Lines of a running program, with a deadline each.
struct Running {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Running {
    fn start(fake: &Fake, arguments: &[&str]) -> Self {
        let mut child = fake.command(arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (sender, lines) = std::sync::mpsc::channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(WITHIN).unwrap()
    }

    /// Ctrl-C, as the terminal sends it.
    fn interrupt(mut self) -> Option<i32> {
        let sent = std::process::Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn watching_elsewhere_than_on_a_terminal_prints_what_changes_and_ctrl_c_ends_it_with_130() {
    let state = Arc::new(AtomicUsize::new(0));
    let now = state.clone();
    let fake = Fake::start(move |seen, _| {
        if seen.path == "/v1/events" {
            return Reply::Json(404, json!({ "status": 404, "code": "no_such_path", "detail": "none" }));
        }
        let second = ["pooled", "bound"][now.load(Ordering::SeqCst).min(1)];
        Reply::Json(200, json!({ "devices": [{ "mac": "a1", "state": "pooled" }, { "mac": "a2", "state": second }] }))
    });
    let running = Running::start(&fake, &["device", "list", "--watch"]);
    assert!(running.line().starts_with("MAC "));
    assert!(running.line().starts_with("a1"));
    assert!(running.line().starts_with("a2"));
    state.store(1, Ordering::SeqCst);
    let changed = running.line();
    assert!(changed.starts_with("a2") && changed.contains("bound"), "only what changed: {changed}");
    assert_eq!(running.interrupt(), Some(130));
}

#[test]
fn an_event_makes_a_watch_look_again_at_once() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let fake = Fake::start(move |seen, _| match seen.path.as_str() {
        "/v1/events" => Reply::Stream(vec![b"event: change\ndata: {\"generation\": 1}\n\n".to_vec()]),
        _ => Reply::Json(200, json!({ "generation": count.fetch_add(1, Ordering::SeqCst) })),
    });
    let begun = Instant::now();
    let running = Running::start(&fake, &["status", "-w", "-o", "json"]);
    assert_eq!(running.line(), "{\"generation\":0}");
    assert_eq!(running.line(), "{\"generation\":1}");
    assert!(begun.elapsed().as_millis() < 900 || begun.elapsed() < WITHIN);
    assert_eq!(running.interrupt(), Some(130));
}

#[test]
fn events_are_printed_as_they_come_and_counted() {
    let stream = b": hi\n\nevent: change\ndata: {\"generation\": 7, \"verb\": \"bind\", \"device\": \"52:54:00:00:00:01\"}\n\nevent: job\ndata: {\"id\": \"j1\", \"state\": \"done\"}\n\n";
    let fake = Fake::start(move |_, _| Reply::Stream(vec![stream[..20].to_vec(), stream[20..].to_vec()]));
    assert_eq!(fake.ok(&["events", "--count", "2"]), "change  7  bind  52:54:00:00:00:01\njob     j1  done\n");
    let json = fake.ok(&["events", "--count", "1", "-o", "json", "--device", "52:54:00:00:00:01"]);
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["data"]["verb"], "bind");
    assert_eq!(fake.seen()[0].header("accept"), Some("text/event-stream"));
}

#[test]
fn events_that_end_with_the_token_say_why_and_are_not_asked_for_again() {
    let event = b"event: ended\ndata: {\"status\": 401, \"code\": \"token_wrong\", \"detail\": \"it has ended\"}\n\n".to_vec();
    let fake = Fake::start(move |_, _| Reply::Stream(vec![event.clone()]));
    for arguments in [&["events"][..], &["events", "--device", "52:54:00:00:00:01"]] {
        assert!(fake.fails(arguments, 4).contains("it has ended (token_wrong)"));
    }
    assert_eq!(fake.seen().len(), 2);
}

#[test]
fn a_job_is_waited_for_and_its_failure_is_the_commands() {
    let fake = Fake::start(|seen, before| match (seen.method.as_str(), before) {
        ("POST", _) => Reply::Json(202, json!({ "job": "j/1" })),
        (_, 1) => Reply::Json(200, json!({ "id": "j/1", "state": "running", "what": "copy", "done_bytes": 1, "total_bytes": 2 })),
        (_, 2) => Reply::Drop,
        _ => Reply::Json(200, json!({ "id": "j/1", "state": "done", "disk": { "os_tag": "0123456789ab", "filename": "f.img" } })),
    });
    let said = fake.ok(&["disk", "create", "w1", "--os", "debian", "--master", "a_tpl_b.img"]);
    assert_eq!(said, "disk 0123456789ab of w1 is there: f.img\n");
    assert_eq!(fake.lines()[1], "GET /v1/jobs/j%2F1");

    let failed = json!({ "id": "j1", "state": "failed", "code": "no_room", "detail": "the disk is full" });
    let said = Fake::answering(200, failed).fails(&["job", "wait", "j1"], 1);
    assert_eq!(said, "kurrent: the disk is full (no_room)\n");

    let fake = Fake::answering(200, json!({ "id": "j1", "state": "running", "total_bytes": 10 }));
    let running = Running::start(&fake, &["job", "wait", "j1"]);
    eventually("the job is asked for", || fake.seen().len(), |n| *n >= 2);
    assert_eq!(running.interrupt(), Some(130));
}

#[test]
fn a_real_appliance_tells_what_changes() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path());
    let mut command = daemon.command(&["events", "--count", "2"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut ready).unwrap();
    assert!(ready.contains("waiting for events"), "{ready}");
    daemon.ok(&["worker", "create", "w1"]);
    daemon.ok(&["device", "register", "52:54:00:00:00:01"]);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let verbs: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        (verbs[0][0], verbs[0][2], verbs[1][2], verbs[1][3]),
        ("change", "worker-create", "register", "52:54:00:00:00:01"),
        "{said}"
    );
    assert!(output.status.success());
}
