//! Plans, imports, partial answers, changes that hold to what was seen.

use crate::fake::{Fake, Reply};
use serde_json::json;

fn file(fake: &Fake, name: &str, text: &str) -> String {
    let path = fake.folder().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_plan_that_is_shown_is_the_plan_that_runs() {
    let plan = json!({ "plan": [{ "mac": "52:54:00:00:00:01", "worker_id": "w1", "displaces": "52:54:00:00:00:09" }], "generation": 41, "applied": false });
    let fake = Fake::start(move |_, _| Reply::Json(200, plan.clone()));
    let pairs = file(&fake, "pairs.csv", "mac,worker\n5254.0000.0001,w1\n");
    let shown = fake.ok(&["device", "bind-batch", &pairs, "--force", "--dry-run"]);
    assert!(shown.contains("52:54:00:00:00:09"), "{shown}");
    let items = json!([{ "mac": "52:54:00:00:00:01", "worker_id": "w1" }]);
    assert_eq!(fake.seen()[0].json(), json!({ "items": items, "force": true, "dry_run": true }));
    assert_eq!(fake.seen().len(), 1, "nothing is done");
    fake.ok(&["device", "bind-batch", &pairs]);
    assert_eq!(fake.seen()[1].json(), json!({ "items": items, "force": false, "dry_run": true }));
    assert_eq!(fake.seen()[2].json(), json!({ "items": items, "force": false, "generation": 41 }));
    assert_eq!(fake.lines()[2], "POST /v1/devices/bind");
}

#[test]
fn a_plan_that_can_not_be_done_is_shown_and_not_tried() {
    let plan = json!({ "plan": [{ "worker_id": "w1", "code": "worker_exists", "detail": "there is one" }], "generation": 41 });
    let fake = Fake::answering(200, plan);
    let output = fake.run(&["worker", "create-batch", "--prefix", "w", "--count", "3", "--width", "2"]);
    assert_eq!(output.status.code(), Some(6));
    assert!(String::from_utf8_lossy(&output.stdout).contains("worker_exists"));
    assert_eq!(fake.seen().len(), 1);
    assert_eq!(fake.seen()[0].json(), json!({ "prefix": "w", "count": 3, "width": 2, "dry_run": true }));
}

#[test]
fn a_stale_plan_has_an_exit_code_of_its_own() {
    let fake = Fake::start(|_, before| match before {
        0 => Reply::Json(200, json!({ "plan": [{ "worker_id": "w1" }], "generation": 41 })),
        _ => Reply::Json(409, json!({ "status": 409, "code": "plan_stale", "detail": "the ledger changed; ask for the plan again" })),
    });
    assert!(fake.fails(&["worker", "create-batch", "w1"], 7).contains("plan_stale"));
}

#[test]
fn a_fault_in_a_file_is_named_with_its_line() {
    let fake = Fake::answering(200, json!({}));
    let pairs = file(&fake, "pairs.csv", "52:54:00:00:00:01,w1\nnonsense,w2\n");
    assert!(fake.fails(&["device", "bind-batch", &pairs], 1).contains("pairs.csv:2: "));
    assert!(fake.fails(&["device", "bind-batch", "/nowhere/x"], 1).contains("/nowhere/x"));
    let unnamed = file(&fake, "machines", "mac\n");
    assert!(fake.fails(&["device", "import", &unnamed], 1).contains("--format"));
    assert!(fake.seen().is_empty());
}

#[test]
fn an_import_is_sent_as_it_is_and_what_failed_is_listed() {
    let answer = json!({
        "created": [{ "line": 2, "mac": "52:54:00:00:00:01" }], "skipped": [], "dry_run": true,
        "failed": [{ "line": 3, "mac": "x\u{1b}[2J", "code": "name_invalid", "detail": "no MAC" }],
    });
    let fake = Fake::answering(200, answer);
    let csv = file(&fake, "m.csv", "mac\n52:54:00:00:00:01\nx\n");
    let output = fake.run(&["device", "import", &csv, "--dry-run"]);
    assert_eq!(output.status.code(), Some(8));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("1 would be created, 0 skipped, 1 failed") && said.contains("no MAC") && !said.contains('\u{1b}'), "{said}");
    let seen = fake.seen().remove(0);
    assert_eq!((seen.line().as_str(), seen.header("content-type")), ("POST /v1/devices/import?dry_run=true", Some("text/csv")));
    assert_eq!(seen.body, b"mac\n52:54:00:00:00:01\nx\n");

    let mut command = fake.command(&["device", "import", "-", "--format", "yaml"]);
    let mut child = command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"[]").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(8));
    assert_eq!(fake.seen()[1].header("content-type"), Some("application/yaml"));
}

#[test]
fn items_that_failed_are_listed_and_the_rest_is_done() {
    let fake = Fake::answering(
        200,
        json!({ "deleted": [{ "worker_id": "w1", "retained": ["w1.img"] }], "failed": [{ "worker_id": "w2", "code": "worker_not_found", "detail": "none" }] }),
    );
    let output = fake.run(&["worker", "delete-batch", "w1", "w2", "--delete-files"]);
    assert_eq!(output.status.code(), Some(8));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("worker_not_found") && said.contains("kept: w1.img"), "{said}");
    assert_eq!(fake.seen()[0].json(), json!({ "workers": ["w1", "w2"], "delete_files": true }));
}

#[test]
fn a_deletion_that_left_files_is_done_in_part_and_says_which_and_what_removes_them() {
    let kept = json!([{ "filename": "w1.img", "code": "still_exported", "detail": "remove it with kurrent leftover delete" }]);
    let answers = [
        (json!({ "failed": kept }), vec!["disk", "delete", "w1", "010101010101", "--delete-file"]),
        (json!({ "retained": ["w1.img"], "failed": kept, "data_plane": "followed" }), vec!["worker", "delete", "w1", "--delete-files"]),
        (
            json!({ "deleted": [{ "worker_id": "w1", "retained": ["w1.img"], "failed": kept }], "failed": [] }),
            vec!["worker", "delete-batch", "w1", "--delete-files"],
        ),
    ];
    for (answer, command) in answers {
        let output = Fake::answering(200, answer).run(&command);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(8), "{command:?}: {said}");
        assert!(said.contains("w1.img") && said.contains("still_exported") && said.contains("leftover delete"), "{said}");
    }
}

#[test]
fn settings_that_are_not_named_stay() {
    let fake = Fake::start(|seen, _| match seen.method.as_str() {
        "GET" => Reply::Tagged("\"41\"", json!({ "enforcement": null, "boot": { "method": "nvme", "menu_timeout_ms": 5 } })),
        _ => Reply::Json(200, json!({})),
    });
    fake.ok(&["settings", "set", "--menu-default", "local", "--enforcement", "config"]);
    let seen = fake.seen().remove(1);
    let expected = json!({ "enforcement": null, "boot": { "method": "nvme", "menu_timeout_ms": 5, "menu_default": "local" } });
    assert_eq!((seen.line().as_str(), seen.json()), ("PATCH /v1/settings", expected));
    assert_eq!(seen.header("if-match"), Some("\"41\""));
    fake.ok(&["settings", "set", "--no-boot"]);
    assert_eq!(fake.seen()[2].json(), json!({ "boot": {} }));
    assert!(fake.fails(&["settings", "set"], 1).contains("--enforcement"));
}

#[test]
fn an_edit_names_only_what_changes() {
    let fake = Fake::answering(200, json!({ "mac": "52:54:00:00:00:01", "state": "pooled" }));
    fake.ok(&["device", "edit", "52:54:00:00:00:01", "--no-loader", "--keyless-allowed", "true"]);
    fake.ok(&["device", "edit", "52:54:00:00:00:01", "--note", ""]);
    fake.ok(&["master", "tag", "a_tpl_b.img", "--os", "debian"]);
    fake.ok(&["device", "edit", "52:54:00:00:00:01", "--address", "10.77.0.9"]);
    fake.ok(&["device", "edit", "52:54:00:00:00:01", "--no-address"]);
    fake.fails(&["device", "edit", "52:54:00:00:00:01"], 2);
    let bodies: Vec<_> = fake.seen().iter().map(|s| s.json()).collect();
    let [first, second] = [json!({ "reserved_address": "10.77.0.9" }), json!({ "reserved_address": null })];
    let loader = json!({ "keyless_allowed": true, "loader": null });
    assert_eq!(bodies, [loader, json!({ "note": "" }), json!({ "os": "debian" }), first, second]);
}
