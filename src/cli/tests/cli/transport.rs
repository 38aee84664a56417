//! Keys, retries, refusals, and servers that are none of ours.

use crate::fake::{Fake, Reply};
use serde_json::json;
use std::collections::BTreeSet;

const MAC: &str = "52:54:00:00:00:01";

#[test]
fn every_post_has_a_key_of_its_own() {
    let fake = Fake::answering(200, json!({ "mac": MAC, "state": "pooled" }));
    let posts = [
        vec!["device", "register", MAC],
        vec!["device", "admit", MAC],
        vec!["device", "bind", MAC, "w1"],
        vec!["device", "unbind", MAC],
        vec!["device", "revoke", MAC],
        vec!["device", "rekey", MAC],
        vec!["worker", "create", "w1"],
        vec!["worker", "create-batch", "w1", "w2"],
        vec!["worker", "delete-batch", "w1"],
        vec!["disk", "create", "w1", "--os", "data", "--size", "1M"],
        vec!["disk", "adopt", "w1", "a.img", "--os", "data"],
        vec!["disk", "resize", "w1", "0123456789ab", "2M"],
        vec!["agent", "add", "s2", "--base-url", "https://10.0.0.2:8443"],
        vec!["agent", "probe", "s2"],
        vec!["agent", "drain", "s2"],
        vec!["agent", "undrain", "s2"],
        vec!["join-token", "create"],
        vec!["credentials", "rotate", "w1"],
        vec!["server-key", "rotate"],
    ];
    for arguments in &posts {
        fake.ok(arguments);
    }
    let asked: Vec<_> = fake.seen().into_iter().filter(|s| s.method == "POST").collect();
    assert!(asked.len() > posts.len(), "batches ask twice: {:?}", fake.lines());
    let keys: BTreeSet<_> = asked.iter().map(|s| s.header("idempotency-key").unwrap_or_default().to_owned()).collect();
    assert_eq!(keys.len(), asked.len(), "a key is used twice");
    assert!(keys.iter().all(|key| key.len() == 32), "{keys:?}");
    assert!(fake.seen().iter().all(|s| s.header("authorization") == Some("Bearer TOKEN")));
}

#[test]
fn a_post_whose_answer_is_lost_is_sent_once_more_with_the_same_key() {
    let fake = Fake::start(|_, before| if before == 0 { Reply::Drop } else { Reply::Json(201, json!({ "worker_id": "w1" })) });
    fake.ok(&["worker", "create", "w1"]);
    let seen = fake.seen();
    assert_eq!(fake.lines(), ["POST /v1/workers", "POST /v1/workers"]);
    assert_eq!(seen[0].header("idempotency-key"), seen[1].header("idempotency-key"));
    assert_eq!(seen[0].body, seen[1].body);

    let fake = Fake::start(|_, _| Reply::Drop);
    let said = fake.fails(&["worker", "create", "w1"], 3);
    assert!(said.contains("whether it was done is not known"), "{said}");
    assert_eq!(fake.seen().len(), 2, "once more, not for ever");
}

#[test]
fn what_is_still_being_done_is_waited_for() {
    let fake = Fake::start(|_, before| match before {
        0 => Reply::Drop,
        1 => Reply::Json(409, json!({ "status": 409, "code": "in_progress", "detail": "ask again" })),
        _ => Reply::Json(201, json!({ "worker_id": "w1" })),
    });
    fake.ok(&["worker", "create", "w1"]);
    let keys: BTreeSet<_> = fake.seen().iter().map(|s| s.header("idempotency-key").unwrap().to_owned()).collect();
    assert_eq!((fake.seen().len(), keys.len()), (3, 1));
}

#[test]
fn what_can_not_be_repeated_is_not_and_the_doubt_is_told() {
    let fake = Fake::start(|_, _| Reply::Drop);
    let said = fake.fails(&["device", "purge", MAC], 3);
    assert!(said.contains("whether it was done is not known"), "{said}");
    assert_eq!(fake.lines(), [format!("DELETE /v1/devices/{MAC}")]);

    let fake = Fake::start(|_, before| if before == 0 { Reply::Drop } else { Reply::Json(200, json!({ "name": "lab" })) });
    assert!(fake.ok(&["status"]).contains("lab"), "a question may be asked again");
}

#[test]
fn a_refusal_is_told_in_words_with_its_code_and_field() {
    let problem = json!({ "type": "about:blank", "title": "Unprocessable", "status": 422, "code": "note_invalid", "detail": "too long", "field": "note" });
    let said = Fake::answering(422, problem).fails(&["worker", "create", "w1"], 6);
    assert_eq!(said, "kurrent: too long (note_invalid, note)\n");
    for (status, code, exit) in [
        (401, "token_wrong", 4),
        (404, "worker_not_found", 5),
        (409, "worker_exists", 6),
        (409, "plan_stale", 7),
        (409, "outcome_unknown", 7),
        (412, "precondition_failed", 7),
        (422, "idempotency_key_reused", 6),
        (503, "ledger_unreadable", 1),
    ] {
        let fake = Fake::answering(status, json!({ "status": status, "code": code, "detail": "because" }));
        assert_eq!(fake.fails(&["worker", "create", "w1"], exit), format!("kurrent: because ({code})\n"));
    }
}

#[test]
fn what_is_no_appliance_is_told_so_and_never_a_crash() {
    let page = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>".to_vec();
    let refused = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 6\r\n\r\n<html>".to_vec();
    let banner = b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n".to_vec();
    let cut = b"HTTP/1.1 200 OK\r\ncontent-length: 600\r\n\r\n{\"devices\": [".to_vec();
    let deep = format!("HTTP/1.1 200 OK\r\ncontent-length: 200000\r\n\r\n{}", "[".repeat(200_000)).into_bytes();
    for (answer, exit, expected) in [
        (page, 3, "not a Kurrent appliance's API"),
        (refused, 1, "answers 502"),
        (banner, 3, "check that this is the API's port"),
        (cut, 3, "the answer was cut"),
        (deep, 3, "not a Kurrent appliance's API"),
        (vec![], 3, "the connection was lost"),
    ] {
        let fake = Fake::start(move |_, _| Reply::Raw(answer.clone()));
        let said = fake.fails(&["device", "list"], exit);
        assert!(said.contains(expected), "{expected}: {said}");
    }
    // JSON, but of another shape.
    for body in [json!([]), json!({ "devices": { "a": [[]] } }), json!("x"), json!(null), json!({ "devices": [1, null, "x", []] })] {
        let fake = Fake::answering(200, body);
        for arguments in
            [&["device", "list"][..], &["device", "get", MAC], &["target"], &["device", "timeline", MAC], &["explain", "device", MAC]]
        {
            fake.ok(arguments);
        }
    }
}

#[test]
fn contexts_name_appliances_and_their_tokens() {
    let fake = Fake::start(|seen, _| Reply::Json(200, json!({ "token": seen.header("authorization") })));
    let run = |arguments: &[&str]| {
        let mut command = fake.command(arguments);
        command.env_remove("KURRENT_URL").env_remove("KURRENT_TOKEN_FILE").current_dir(fake.folder()).output().unwrap()
    };
    let ok = |arguments: &[&str]| {
        let output = run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    std::fs::write(fake.folder().join("lab-token"), "LAB").unwrap();
    assert!(ok(&["context", "list"]).contains("no contexts"));
    ok(&["context", "add", "lab", "--url", &fake.url, "--token-file", "lab-token"]);
    ok(&["context", "add", "home", "--url", "http://127.0.0.1:1"]);
    assert!(ok(&["status"]).contains("Bearer LAB"), "the first one is the current one");
    assert!(ok(&["context", "show"]).contains("context lab"));
    let listed = ok(&["context", "list"]);
    assert!(listed.contains("*        lab") && listed.contains("home"), "{listed}");
    assert_eq!(run(&["context", "add", "bad", "--url", "https://x"]).status.code(), Some(1));
    ok(&["context", "use", "home"]);
    assert!(ok(&["status", "--context", "lab"]).contains("Bearer LAB"));
    assert_eq!(run(&["status"]).status.code(), Some(4), "home has no token, and gets nobody else's");
    ok(&["context", "remove", "home"]);
    let unknown = run(&["status", "--context", "home"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("there are: lab"));

    let file = fake.folder().join(".config/kurrent/contexts.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("token_file", "token")).unwrap();
    let inline = run(&["status", "--context", "lab"]);
    let said = String::from_utf8_lossy(&inline.stderr).into_owned();
    assert_eq!(inline.status.code(), Some(1));
    assert!(said.contains("contexts.yaml:") && said.contains("a file of its own"), "{said}");
}

/// However the address is said, whatever would be sent.
#[test]
fn no_token_and_no_password_goes_in_clear_to_another_host() {
    let fake = Fake::answering(200, json!({}));
    let password = fake.folder().join("password");
    std::fs::write(&password, "correct horse battery\n").unwrap();
    let password = password.to_str().unwrap();
    let contexts = fake.folder().join(".config/kurrent/contexts.yaml");
    std::fs::create_dir_all(contexts.parent().unwrap()).unwrap();
    for host in [
        "192.0.2.1",
        "[2001:db8::1]",
        "[::ffff:192.0.2.1]",
        "kurrent.example",
        "localhost.example",
        "127.0.0.1.example",
        "0.0.0.0",
        "a@192.0.2.1",
    ] {
        let url = format!("http://{host}:8443");
        for arguments in [
            &["status"][..],
            &["events"],
            &["worker", "create", "w1"],
            &["logout"],
            &["login", "--user", "ada", "--password-file", password],
            &["login", "--first-run", "--user", "ada", "--password-file", password, "--first-run-token-file", password],
        ] {
            for way in ["flag", "variable", "context"] {
                let mut command = fake.command(arguments);
                match way {
                    "flag" => drop(command.args(["--url", &url])),
                    "variable" => drop(command.env("KURRENT_URL", &url)),
                    _ => {
                        use std::os::unix::fs::PermissionsExt;
                        std::fs::write(&contexts, format!("current: lab\ncontexts:\n  lab:\n    url: '{url}'\n")).unwrap();
                        std::fs::set_permissions(&contexts, std::fs::Permissions::from_mode(0o600)).unwrap();
                        command.env_remove("KURRENT_URL");
                    }
                }
                let output = command.output().unwrap();
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(
                    !output.status.success() && said.contains("over plain http to this host only"),
                    "{arguments:?} {url} {way}: {said}"
                );
                let _ = std::fs::remove_file(&contexts);
            }
        }
    }
    let help = String::from_utf8(fake.run(&["--help"]).stdout).unwrap();
    assert!(help.contains("[default: http://127.0.0.1:8443, the appliance itself]"), "{help}");
}
