//! A backup and its way back, through the real programs.

use crate::daemon::{Daemon, check_failure, kurrentd};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const MAC: &str = "52:54:00:00:00:01";
const WITHIN: Duration = Duration::from_secs(30);

fn passphrase(folder: &Path, words: &str) -> String {
    let path = folder.join(format!("passphrase-{}", words.len()));
    std::fs::write(&path, format!("{words}\n")).unwrap();
    path.display().to_string()
}

fn offline(arguments: &[&str]) -> Output {
    Command::new(kurrentd()).args(arguments).output().unwrap()
}

#[test]
fn what_was_backed_up_comes_back_in_the_same_process_and_earlier_credentials_are_worthless() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start(folder.path());
    daemon.ok(&["worker", "create", "w1"]);
    daemon.ok(&["device", "register", MAC]);
    daemon.ok(&["device", "bind", MAC, "w1"]);
    let archive = folder.path().join("monday.kurrent").display().to_string();
    let (right, wrong) = (passphrase(folder.path(), "correct horse battery"), passphrase(folder.path(), "correct horse batteries"));
    daemon.ok(&["backup", &archive, "--passphrase-file", &right]);
    daemon.ok(&["worker", "create", "later"]);
    // Credentials of later epochs are given out after the backup.
    for _ in 0..3 {
        daemon.ok(&["device", "unbind", MAC, "--yes"]);
        daemon.ok(&["device", "bind", MAC, "w1"]);
    }
    let before = daemon.json(&["device", "get", MAC]);
    let pid = daemon.child.id();
    daemon.fails(&["restore", &archive, "--passphrase-file", &wrong, "--yes"], 6, "passphrase_wrong");
    let seen = daemon.json(&["restore", &archive, "--passphrase-file", &right, "--dry-run"]);
    assert_eq!((seen["workers"].as_u64(), seen["applied"].as_bool()), (Some(1), Some(false)), "{seen}");
    assert!(daemon.ok(&["worker", "list"]).contains("later"), "only looked at");
    // A folder in use is not for the offline commands.
    let state = folder.path().join("state").display().to_string();
    let busy = offline(&["restore", "--state-dir", &state, &archive, "--passphrase-file", &right, "--force"]);
    check_failure(&busy, &["restore"], 2, "used by a running kurrentd");

    assert_eq!((seen["sessions_ended"].as_u64(), seen["revocations_known"].as_bool()), (Some(1), Some(true)), "{seen}");
    let told = daemon.ok(&["restore", &archive, "--passphrase-file", &right, "--yes"]);
    assert!(told.contains("all sessions have ended: kurrent login") && told.contains("stay revoked"), "{told}");
    let deadline = Instant::now() + WITHIN;
    while !folder.path().join("log").exists()
        || !std::fs::read_to_string(folder.path().join("log")).unwrap().contains("the state was restored")
    {
        assert!(Instant::now() < deadline, "{}", std::fs::read_to_string(folder.path().join("log")).unwrap());
        std::thread::sleep(Duration::from_millis(20));
    }
    // The log says so before the new run of the daemon listens.
    daemon.wait_for_port();
    daemon.fails(&["worker", "list"], 4, "token_wrong");
    daemon.wait();
    assert_eq!((daemon.child.try_wait().unwrap(), daemon.child.id()), (None, pid), "the same process");
    assert!(!daemon.ok(&["worker", "list"]).contains("later"));
    let after = daemon.json(&["device", "get", MAC]);
    assert_eq!(after["bound_worker_id"], "w1");
    assert!(after["epoch"].as_u64() > before["epoch"].as_u64(), "{after} after {before}");
    let audit = daemon.json(&["audit", "--verb", "restored"]);
    let aside = audit["operations"][0]["object"].as_str().unwrap();
    assert!(folder.path().join(aside).join("workers.yml").is_file(), "{aside}");
    let check = offline(&["state", "check", "--state-dir", &state]);
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
    let kept = offline(&["state", "check", "--state-dir", &folder.path().join(aside).display().to_string()]);
    assert!(kept.status.success(), "{}", String::from_utf8_lossy(&kept.stderr));
}

#[test]
fn a_state_folder_is_backed_up_and_restored_without_a_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let mut daemon = Daemon::start(folder.path());
    daemon.ok(&["worker", "create", "w1"]);
    let words = passphrase(folder.path(), "correct horse battery");
    let backup = |out: &str| offline(&["backup", "--state-dir", &at("state"), "--out", out, "--passphrase-file", &words]);
    check_failure(&backup(&at("a.tar")), &["backup"], 2, "used by a running kurrentd");
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    assert!(backup(&at("a.tar")).status.success());
    check_failure(&backup(&at("a.tar")), &["backup"], 2, "a.tar");
    let restore = |state: &str, more: &[&str]| {
        offline(&[&["restore", "--state-dir", state, &at("a.tar"), "--passphrase-file", &words], more].concat())
    };
    check_failure(&restore(&at("state"), &[]), &["restore"], 2, "--force");
    assert!(restore(&at("elsewhere"), &[]).status.success());
    std::fs::write(folder.path().join("state/workers.yml"), "damaged").unwrap();
    let forced = restore(&at("state"), &["--force"]);
    assert!(forced.status.success(), "{}", String::from_utf8_lossy(&forced.stderr));
    for state in [at("state"), at("elsewhere")] {
        let check = offline(&["state", "check", "--state-dir", &state]);
        assert!(String::from_utf8_lossy(&check.stdout).contains("1 Workers"), "{check:?}");
    }
    daemon.child = Daemon::spawn(folder.path());
    daemon.wait();
    assert!(daemon.ok(&["worker", "list"]).contains("w1"));
}
