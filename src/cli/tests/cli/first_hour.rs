//! What an operator does in the first hour.

use crate::daemon::Daemon;

#[test]
fn an_operator_gets_from_nothing_to_a_bound_device_with_a_disk() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path());
    assert!(daemon.ok(&["device", "list"]).contains("no devices"));
    assert!(daemon.ok(&["window", "open", "--minutes", "5"]).contains("open until"));
    assert!(daemon.ok(&["window", "show"]).contains("open until"));
    assert!(daemon.ok(&["window", "close"]).contains("closed"));
    daemon.ok(&["worker", "create", "w1"]);
    daemon.ok(&["device", "register", "5254.0000.0001", "--keyless-allowed", "--note", "first rack"]);
    daemon.ok(&["device", "label", "52:54:00:00:00:01", "rack=7", "size=big"]);
    daemon.ok(&["disk", "create", "w1", "--os", "data", "--size", "1M"]);
    daemon.ok(&["device", "bind", "52:54:00:00:00:01", "w1"]);
    let device = daemon.json(&["device", "get", "52-54-00-00-00-01"]);
    assert_eq!((device["state"].as_str(), device["labels"]["rack"].as_str()), (Some("bound"), Some("7")));
    let worker = daemon.json(&["worker", "get", "w1"]);
    assert_eq!((worker["readiness"].as_str(), worker["bound_device"].as_str()), (Some("ready"), Some("52:54:00:00:00:01")));
    let listed = daemon.ok(&["device", "list", "--state", "bound"]);
    assert!(listed.starts_with("MAC ") && listed.contains("52:54:00:00:00:01") && listed.contains("first rack"), "{listed}");
    assert!(daemon.ok(&["worker", "list", "-o", "yaml"]).contains("  bound_device: \"52:54:00:00:00:01\""));
    let tag = worker["default_disk"].as_str().unwrap();
    daemon.ok(&["disk", "default", "w1", tag]);
    daemon.ok(&["disk", "delete", "w1", tag]);
    daemon.ok(&["device", "revoke", "52:54:00:00:00:01"]);
    daemon.ok(&["device", "purge", "52:54:00:00:00:01"]);
    daemon.ok(&["worker", "delete", "w1"]);
    let audit = daemon.json(&["audit", "--device", "52:54:00:00:00:01", "--result", "ok"]);
    let verbs: Vec<&str> = audit["operations"].as_array().unwrap().iter().map(|o| o["verb"].as_str().unwrap()).collect();
    assert_eq!(verbs, ["purge", "unbind", "revoke", "bind", "label", "register"]);
    let audit = daemon.ok(&["audit", "--device", "52:54:00:00:00:01", "--verb", "bind"]);
    let columns: Vec<Vec<&str>> = audit.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(columns[0], ["AT", "ACTOR", "VERB", "DEVICE", "OBJECT", "RESULT", "DETAIL", "REPEATED"], "{audit}");
    assert_eq!(columns[1][1..], ["user", "admin", "bind", "52:54:00:00:00:01", "w1", "ok", "-", "-"], "{audit}");
    daemon.fails(&["device", "timeline", "52:54:00:00:00:01"], 5, "no_boot_seen");
    for shown in [&["status"][..], &["target"], &["lease", "list"], &["master", "list"], &["job", "list"], &["device", "knocking"]] {
        assert!(!daemon.ok(shown).is_empty(), "{shown:?}");
    }
}
