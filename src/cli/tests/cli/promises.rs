//! What the program and the real appliance promise each other: an order is done once, and only on what was seen.

use crate::daemon::Daemon;
use crate::fake::{Fake, Reply};
use crate::terminal::on_terminal;

const MAC: &str = "52:54:00:00:00:01";

#[test]
fn an_order_whose_answer_is_lost_on_the_way_is_done_once() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path());
    let lossy = Fake::before(&daemon.url(), &daemon.token_file(), |_, before, answer| match before % 2 {
        0 => Reply::Drop,
        _ => Reply::Raw(answer),
    });
    assert!(lossy.ok(&["worker", "create", "w1"]).contains("created"), "not: it exists already");
    lossy.ok(&["device", "register", MAC, "--keyless-allowed"]);
    lossy.ok(&["device", "bind", MAC, "w1"]);
    assert_eq!(lossy.seen().len(), 6);
    for verb in ["worker-create", "register", "bind"] {
        let audit = daemon.json(&["audit", "--verb", verb]);
        let done = audit["operations"].as_array().unwrap().iter().filter(|o| o["result"] == "ok").count();
        assert_eq!(done, 1, "{verb}: {audit}");
    }
}

#[test]
fn what_changed_since_it_was_asked_about_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path());
    daemon.ok(&["worker", "create", "w1"]);
    daemon.ok(&["device", "register", MAC]);
    let (url, token) = (daemon.url(), daemon.token_file());
    // Somebody else is quicker than the person who reads the question.
    let meddler = std::sync::Arc::new(daemon);
    // The fake's thread outlives the test; the daemon must not.
    let other = std::sync::Arc::downgrade(&meddler);
    let fake = Fake::before(&url, &token, move |_, before, answer| {
        if let Some(other) = other.upgrade().filter(|_| before == 0) {
            other.ok(&["device", "bind", MAC, "w1"]);
        }
        Reply::Raw(answer)
    });
    let (shown, code) = on_terminal(&fake, &["device", "revoke", MAC], &[("[y/N]", "y\n")]);
    assert!(code == Some(7) && shown.contains("precondition_failed"), "{shown}");
    assert_eq!(meddler.json(&["device", "get", MAC])["state"], "bound");
}

#[test]
fn a_yes_to_what_is_still_so_is_carried_out() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path());
    daemon.ok(&["worker", "create", "w1"]);
    daemon.ok(&["device", "register", MAC, "--keyless-allowed"]);
    daemon.ok(&["disk", "create", "w1", "--os", "data", "--size", "1M"]);
    daemon.ok(&["device", "bind", MAC, "w1"]);
    daemon.ok(&["agent", "add", "store2", "--base-url", "https://10.0.0.2:8443"]);
    let tag = daemon.json(&["worker", "get", "w1"])["default_disk"].as_str().unwrap().to_owned();
    let fake = Fake::before(&daemon.url(), &daemon.token_file(), |_, _, answer| Reply::Raw(answer));
    for arguments in [
        &["disk", "delete", "w1", &tag][..],
        &["device", "unbind", MAC],
        &["device", "bind", MAC, "w1", "--force"],
        &["device", "revoke", MAC],
        &["device", "purge", MAC],
        &["worker", "delete", "w1"],
        &["agent", "remove", "store2"],
    ] {
        let (shown, code) = on_terminal(&fake, arguments, &[("[y/N]", "y\n")]);
        assert_eq!(code, Some(0), "{arguments:?}: {shown}");
        assert!(fake.seen().last().unwrap().header("if-match").is_some(), "{arguments:?}");
    }
}
