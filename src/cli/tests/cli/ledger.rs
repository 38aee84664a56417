//! What must survive, and what must not be touched.

use crate::daemon::{Daemon, check_failure, kurrentd};
use crate::fake::eventually;
use std::process::Command;

#[test]
fn what_was_acknowledged_survives_sigkill() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start(folder.path());
    for round in 0..3 {
        let worker = format!("w{round}");
        daemon.ok(&["worker", "create", &worker]);
        daemon.ok(&["device", "register", &format!("52:54:00:00:00:0{round}")]);
        daemon.ok(&["device", "bind", &format!("52:54:00:00:00:0{round}"), &worker]);
        daemon.kill_and_restart();
        let device = daemon.json(&["device", "get", &format!("52:54:00:00:00:0{round}")]);
        assert_eq!(device["bound_worker_id"], worker.as_str());
    }
    assert_eq!(daemon.json(&["device", "list"])["devices"].as_array().map(Vec::len), Some(3));
    let audit = daemon.json(&["audit", "--verb", "bind"]);
    assert_eq!(audit["operations"].as_array().map(Vec::len), Some(3), "the audit goes on behind a kill: {audit}");
}

#[test]
fn a_corrupt_ledger_is_named_with_its_line_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start(folder.path());
    daemon.ok(&["worker", "create", "w1"]);
    assert_eq!(daemon.json(&["state", "check"])["holds"], true);
    // The journal has the change at once, the file that a person edits soon after.
    let path = folder.path().join("state/workers.yml");
    let read = || std::fs::read_to_string(&path).unwrap_or_default();
    eventually("workers.yml follows", read, |text| text.contains("worker_id: w1"));
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    let good = std::fs::read_to_string(&path).unwrap();
    let bad = good.replace("worker_id: w1", "worker_id: W 1");
    std::fs::write(&path, &bad).unwrap();
    let check = Command::new(kurrentd()).args(["state", "check", "--state-dir"]).arg(folder.path().join("state")).output().unwrap();
    check_failure(&check, &["state check"], 2, "workers.yml:6:");
    daemon.child = Daemon::spawn(folder.path());
    daemon.wait();
    let status = daemon.ok(&["status"]);
    assert!(status.contains("workers.yml:6:"), "{status}");
    let check = daemon.kurrent(&["state", "check"]);
    assert!(!check.status.success() && String::from_utf8_lossy(&check.stdout).contains("workers.yml:6:"), "{check:?}");
    daemon.fails(&["worker", "list"], 1, "workers.yml:6:");
    daemon.fails(&["worker", "create", "w2"], 1, "ledger_unreadable");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), bad);
    std::fs::write(&path, good).unwrap();
    daemon.kill_and_restart();
    assert!(daemon.ok(&["worker", "list"]).contains("w1"));
}
