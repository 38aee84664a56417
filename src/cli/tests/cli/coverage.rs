//! Every call of the API has a command, and every example in `--help` does what it says there.

use crate::daemon::Daemon;
use crate::fake::{Fake, Reply};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::{Command, Stdio};

/// `kurrent … --help`, of every command.
fn helps() -> Vec<(Vec<String>, String)> {
    let mut todo: Vec<Vec<String>> = vec![vec![]];
    let mut found = Vec::new();
    while let Some(path) = todo.pop() {
        let output = Command::new(env!("CARGO_BIN_EXE_kurrent")).args(&path).arg("--help").output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        let commands = help.split("Commands:\n").nth(1).unwrap_or_default().lines().take_while(|line| !line.is_empty());
        let names = commands.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
        todo.extend(names.map(|name| [path.clone(), vec![name.to_owned()]].concat()));
        found.push((path, help));
    }
    found
}

/// The examples of a help, without their comments and redirections.
fn examples(help: &str) -> Vec<String> {
    let lines = help.lines().filter_map(|line| line.strip_prefix("  ")).filter(|line| line.starts_with("kurrent "));
    lines.map(|line| line.split(" #").next().unwrap_or_default().split(" > ").next().unwrap_or_default().trim().to_owned()).collect()
}

/// Yes to everything, in the shape that each command looks for.
fn agreeable(path: &str) -> Reply {
    match path {
        "/v1/events" => Reply::Stream(vec![b"event: change\ndata: {\"generation\": 1}\n\n".to_vec()]),
        _ => Reply::Json(
            200,
            json!({ "state": "done", "plan": [{}], "generation": 1, "failed": [], "devices": [], "jobs": [], "token": "krt_0_x" }),
        ),
    }
}

/// Types every example; what was asked for.
fn asked_for() -> BTreeSet<String> {
    let fake = Fake::start(|seen, _| agreeable(&seen.path));
    let folder = fake.folder();
    for (name, text) in [
        ("machines.csv", "mac\n52:54:00:00:00:01\n"),
        ("rack7.csv", "52:54:00:00:00:01,w1\n"),
        ("debian_tpl_12.img", "image"),
        ("disk.img", "image"),
        (".kurrent-passphrase", "correct horse\n"),
        (".kurrent-token", "TOKEN\n"),
        (".kurrent-password", "correct horse battery\n"),
        (".kurrent-password2", "another password\n"),
    ] {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let helps = helps();
    assert!(helps.len() > 90, "{} commands", helps.len());
    let mut typed = 0;
    for example in helps.iter().flat_map(|(_, help)| examples(help)).collect::<BTreeSet<_>>() {
        // Contexts are files of this side, with their own tests; what has no end is tried with one.
        if example.starts_with("kurrent context") || example.contains("--context") || example == "kurrent events" {
            continue;
        }
        let line = example.replace(" --watch", "").replacen("kurrent", env!("CARGO_BIN_EXE_kurrent"), 1);
        let stdin = if line.contains("bind-batch -") { "52:54:00:00:00:01,w1\n" } else { "[]" };
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("printf '{stdin}' | {line}")]).current_dir(folder);
        shell.env("HOME", folder).env("KURRENT_URL", &fake.url).env("KURRENT_TOKEN_FILE", folder.join("token"));
        shell.env("KURRENT_PASSPHRASE_FILE", folder.join(".kurrent-passphrase"));
        if line.contains(" --out ci-token") {
            let _ = std::fs::remove_file(folder.join("ci-token"));
        }
        if line.contains(" backup ") {
            let _ = std::fs::remove_file(folder.join("monday.kurrent"));
        }
        if line.contains(" restore ") {
            std::fs::write(folder.join("monday.kurrent"), "ARCHIVE").unwrap();
        }
        let output = shell.stdout(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{example}: {}", String::from_utf8_lossy(&output.stderr));
        typed += 1;
    }
    assert!(typed > 100, "{typed} examples");
    let line = |seen: crate::fake::Seen| format!("{} {}", seen.method, seen.path.split('?').next().unwrap_or_default());
    fake.seen().into_iter().map(line).collect()
}

/// Whether a path is one of a template like `/v1/devices/{mac}`.
fn matches(template: &str, line: &str) -> bool {
    let (template, line): (Vec<&str>, Vec<&str>) = (template.split('/').collect(), line.split('/').collect());
    template.len() == line.len() && template.iter().zip(&line).all(|(t, l)| t == l || (t.starts_with('{') && !l.is_empty()))
}

#[test]
fn every_call_of_the_api_has_a_command_with_an_example() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path());
    let document: Value = serde_json::from_str(&daemon.ok(&["api", "openapi"])).unwrap();
    let calls: Vec<String> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, item)| item.as_object().unwrap().keys().map(move |method| format!("{} {path}", method.to_uppercase())))
        .filter(|call| ["GET", "PUT", "POST", "PATCH", "DELETE"].contains(&call.split(' ').next().unwrap_or_default()))
        .collect();
    assert!(calls.len() > 30, "{calls:?}");
    let asked = asked_for();
    let without: Vec<&String> = calls.iter().filter(|call| !asked.iter().any(|line| matches(call, line))).collect();
    // Progress of a job comes with the job, which a terminal asks for anyway.
    let without: Vec<_> = without.into_iter().filter(|call| *call != "GET /v1/jobs/{id}/events").collect();
    assert!(without.is_empty(), "no command does {without:?}");
    // The other way round: no command asks for what the API does not have. `explain` is the contract's, ahead of the daemon.
    let ahead = |line: &str| line.ends_with("/explain");
    let unknown: Vec<&String> = asked.iter().filter(|line| !ahead(line) && !calls.iter().any(|call| matches(call, line))).collect();
    assert!(unknown.is_empty(), "the API does not have {unknown:?}");
}
