//! What machines and other people wrote is printed, and orders the terminal to do nothing.

use crate::fake::Fake;
use serde_json::{Value, json};

#[test]
fn no_answer_of_any_command_moves_the_cursor() {
    let evil = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\r\n\u{202e}x";
    let list: Vec<Value> =
        vec![json!({ "mac": evil, "note": evil, "labels": { evil: evil }, "fingerprint": { "product": evil }, evil: evil })];
    let mut answer = json!({ "data_plane": format!("not yet: {evil}"), "warning": evil, "fault": evil, "state": evil, "mac": evil, "open": true, "until": evil });
    for key in
        ["devices", "knocking", "workers", "disks", "masters", "leases", "jobs", "operations", "marks", "exports", "sessions", "agents"]
    {
        answer[key] = list.clone().into();
    }
    let fake = Fake::answering(200, answer);
    let mac = "52:54:00:00:00:01";
    for arguments in [
        &["status"][..],
        &["target"],
        &["device", "list"],
        &["device", "get", mac],
        &["device", "revoke", mac],
        &["device", "knocking"],
        &["device", "timeline", mac],
        &["device", "explain", mac],
        &["worker", "list"],
        &["worker", "status", "w1"],
        &["disk", "list"],
        &["master", "list"],
        &["lease", "list"],
        &["job", "list"],
        &["agent", "list"],
        &["window", "show"],
        &["audit"],
        &["api", "openapi"],
    ] {
        for form in ["table", "json", "yaml"] {
            let output = fake.run(&[arguments, &["-o", form]].concat());
            assert!(output.status.success(), "{arguments:?}");
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8(said).unwrap();
            assert!(!said.contains(|c: char| (c.is_control() && c != '\n') || c == '\u{202e}'), "{arguments:?} {form}: {said:?}");
        }
    }
    let problem = json!({ "status": 409, "code": evil, "detail": evil, "field": evil });
    let said = Fake::answering(409, problem).fails(&["worker", "create", "w1"], 6);
    assert!(!said.contains(|c: char| c.is_control() && c != '\n') && said.lines().count() == 1, "{said:?}");
}

#[test]
fn both_forms_of_explain_are_the_same() {
    let fake = Fake::answering(200, json!({ "summary": "it boots" }));
    let mac = "52:54:00:00:00:01";
    assert_eq!(fake.ok(&["explain", "device", mac]), fake.ok(&["device", "explain", mac]));
    assert_eq!(fake.lines(), [format!("GET /v1/devices/{mac}/explain"), format!("GET /v1/devices/{mac}/explain")]);
}
