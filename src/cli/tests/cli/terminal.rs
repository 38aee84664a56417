//! On a terminal, which `script` (of Debian's essential packages) provides.

use crate::fake::{Fake, Reply, eventually};
use serde_json::json;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

const MAC: &str = "52:54:00:00:00:01";

/// `kurrent` with these arguments on a terminal where `typed` is typed, each part after its prompt was seen; what the terminal
/// shows, and the exit code.
pub fn on_terminal(fake: &Fake, arguments: &[&str], typed: &[(&str, &str)]) -> (String, Option<i32>) {
    let quoted: Vec<String> = arguments.iter().map(|a| format!("'{a}'")).collect();
    let line = format!("exec {} {}", env!("CARGO_BIN_EXE_kurrent"), quoted.join(" "));
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]).env("TERM", "dumb").env("SHELL", "/bin/sh");
    for name in ["KURRENT_TOKEN", "KURRENT_CONTEXT", "KURRENT_PASSPHRASE_FILE", "XDG_CONFIG_HOME"] {
        command.env_remove(name);
    }
    command.env("HOME", fake.folder()).env("KURRENT_URL", &fake.url).env("KURRENT_TOKEN_FILE", fake.folder().join("token"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut keyboard, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let shown = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let kept = shown.clone();
    let reader = std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(octets @ 1..) = screen.read(&mut piece) {
            kept.lock().unwrap().push_str(&String::from_utf8_lossy(&piece[..octets]));
        }
    });
    for (prompt, text) in typed {
        eventually(prompt, || shown.lock().unwrap().clone(), |shown| shown.contains(prompt));
        keyboard.write_all(text.as_bytes()).unwrap();
        keyboard.flush().unwrap();
    }
    let code = child.wait().unwrap().code();
    drop(keyboard);
    reader.join().unwrap();
    let shown = shown.lock().unwrap().clone();
    (shown, code)
}

fn device() -> Fake {
    Fake::start(|seen, _| {
        let device = json!({ "mac": MAC, "state": "bound", "bound_worker_id": "w1" });
        if seen.method == "GET" { Reply::Tagged("\"41\"", device) } else { Reply::Json(200, device) }
    })
}

#[test]
fn a_command_that_destroys_asks_and_a_no_changes_nothing() {
    let fake = device();
    let (shown, code) = on_terminal(&fake, &["device", "revoke", MAC], &[("[y/N]", "n\n")]);
    assert!(shown.contains("bound to w1") && shown.contains("not done"), "{shown}");
    assert_eq!(code, Some(1));
    assert_eq!(fake.lines(), [format!("GET /v1/devices/{MAC}")]);
}

#[test]
fn a_yes_holds_for_what_was_shown_only() {
    let fake = device();
    let (shown, code) = on_terminal(&fake, &["device", "revoke", MAC], &[("[y/N]", "y\n")]);
    assert_eq!(code, Some(0), "{shown}");
    let order = fake.seen().remove(1);
    assert_eq!((order.line(), order.header("if-match")), (format!("POST /v1/devices/{MAC}/revoke"), Some("\"41\"")));
}

#[test]
fn nobody_is_asked_with_yes_or_without_a_terminal() {
    let fake = device();
    let (shown, code) = on_terminal(&fake, &["device", "revoke", MAC, "--yes"], &[]);
    assert_eq!(code, Some(0), "{shown}");
    fake.ok(&["device", "revoke", MAC]);
    assert_eq!(fake.lines(), [format!("POST /v1/devices/{MAC}/revoke"), format!("POST /v1/devices/{MAC}/revoke")]);
}

#[test]
fn who_replaces_the_server_key_is_told_which_machines_it_leaves_behind() {
    let fake = Fake::answering(200, json!({ "fingerprint": "ab", "former": [], "left_behind_next": 3 }));
    let (shown, code) = on_terminal(&fake, &["server-key", "rotate"], &[("[y/N]", "n\n")]);
    assert!(shown.contains("3 machines may still have pinned"), "{shown}");
    assert_eq!((code, fake.lines()), (Some(1), vec!["GET /v1/server-key".to_owned()]));
    let (shown, code) = on_terminal(&fake, &["server-key", "rotate", "--force"], &[("[y/N]", "y\n")]);
    assert!(code == Some(0) && shown.contains("make a backup now"), "{shown}");
    assert_eq!(fake.seen().last().map(|s| (s.line(), s.json())), Some(("POST /v1/server-key/rotate".into(), json!({ "force": true }))));
}

#[test]
fn a_plan_is_shown_before_it_is_asked_about() {
    let plan = json!({ "plan": [{ "mac": MAC, "worker_id": "w1", "displaces": "52:54:00:00:00:09" }], "generation": 41 });
    let fake = Fake::answering(200, plan);
    let pairs = fake.folder().join("pairs");
    std::fs::write(&pairs, format!("{MAC},w1\n")).unwrap();
    let (shown, code) = on_terminal(&fake, &["device", "bind-batch", pairs.to_str().unwrap()], &[("[y/N]", "\n")]);
    assert!(shown.find("52:54:00:00:00:09") < shown.find("[y/N]"), "{shown}");
    assert_eq!((code, fake.seen().len()), (Some(1), 1));
}

#[test]
fn a_passphrase_is_typed_twice_and_never_seen() {
    let fake = Fake::start(|_, _| Reply::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nARCHIVE".to_vec()));
    let file = |name: &str| fake.folder().join(name).to_str().unwrap().to_owned();
    let typed = [("Passphrase:", "correct horse\n"), ("The same again:", "correct horse\n")];
    let (shown, code) = on_terminal(&fake, &["backup", &file("a")], &typed);
    assert_eq!(code, Some(0), "{shown}");
    assert!(!shown.contains("horse"), "{shown}");
    assert_eq!(fake.seen()[0].json(), json!({ "passphrase": "correct horse" }));
    let (shown, code) = on_terminal(&fake, &["backup", &file("b")], &[("Passphrase:", "one\n"), ("The same again:", "two\n")]);
    assert!(code == Some(1) && shown.contains("differ"), "{shown}");
    assert_eq!(fake.seen().len(), 1);
}

#[test]
fn watching_redraws_the_screen_until_ctrl_c() {
    let fake = Fake::start(|seen, before| match seen.path.as_str() {
        "/v1/events" => Reply::Json(404, json!({ "status": 404, "code": "no_such_path", "detail": "none" })),
        // From then on it stays the same, however many looks there are before Ctrl-C.
        _ => Reply::Json(200, json!({ "generation": before.min(2) })),
    });
    let (shown, code) = on_terminal(&fake, &["status", "--watch"], &[("generation  2", "\u{3}")]);
    assert_eq!(code, Some(130), "{shown}");
    assert_eq!(shown.matches("\u{1b}[2J\u{1b}[H").count(), 2, "{shown:?}");
}

#[test]
fn long_work_has_a_bar() {
    let fake = Fake::answering(200, json!({ "masters": [] }));
    let image = fake.folder().join("a_tpl_b.img");
    std::fs::write(&image, vec![7; 8 << 20]).unwrap();
    let (shown, code) = on_terminal(&fake, &["master", "import", image.to_str().unwrap()], &[]);
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("[########################] sending a_tpl_b.img: 100 % of 8 MiB"), "{shown:?}");
    assert!(shown.trim_end().ends_with("master a_tpl_b.img is there"), "{shown:?}");
    assert_eq!(fake.seen()[1].body.len(), 8 << 20);
}
