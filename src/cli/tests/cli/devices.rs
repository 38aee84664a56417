//! Devices of a real appliance: labels, filters, pages, orders that hold to what was seen.

use crate::daemon::Daemon;
use serde_json::Value;

fn macs(listed: &Value) -> Vec<String> {
    listed["devices"].as_array().unwrap().iter().map(|d| d["mac"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn devices_are_registered_with_labels_found_by_them_and_edited() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path());
    daemon.ok(&["device", "register", "52:54:00:00:00:01", "--label", "rack=7", "--label", "size=big"]);
    daemon.ok(&["device", "register", "52:54:00:00:00:02", "--label", "rack=8"]);
    let found = |arguments: &[&str]| macs(&daemon.json(&[&["device", "list"], arguments].concat()));
    assert_eq!(found(&["--label", "rack=7"]), ["52:54:00:00:00:01"]);
    assert_eq!(found(&["--label", "rack"]).len(), 2);
    assert_eq!(found(&["--label", "rack", "--label", "size=big"]), ["52:54:00:00:00:01"]);
    assert_eq!(found(&["--source", "ipxe"]).len(), 0);
    daemon.ok(&["device", "edit", "52:54:00:00:00:01", "--note", "moved", "--keyless-allowed", "true"]);
    let device = daemon.json(&["device", "get", "52:54:00:00:00:01"]);
    assert_eq!((device["keyless_allowed"].as_bool(), device["labels"]["rack"].as_str()), (Some(true), Some("7")));
    daemon.ok(&["device", "edit", "52:54:00:00:00:01", "--note", ""]);
    daemon.fails(&["device", "edit", "52:54:00:00:00:01", "--note", "a\u{1b}[2J"], 6, "note_invalid");
    daemon.fails(&["device", "admit", "52:54:00:00:00:03"], 6, "not_knocking");
    daemon.fails(&["device", "edit", "52:54:00:00:00:03", "--note", "x"], 5, "device_not_found");
}

#[test]
fn a_long_list_comes_whole() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path());
    let names: Vec<String> = (0..230).map(|n| format!("w{n:03}")).collect();
    for name in &names {
        daemon.ok(&["worker", "create", name]);
    }
    let listed = daemon.json(&["worker", "list"]);
    let found: Vec<&str> = listed["workers"].as_array().unwrap().iter().map(|w| w["worker_id"].as_str().unwrap()).collect();
    assert_eq!(found, names, "the API's own page has 200");
    let some = daemon.json(&["worker", "list", "--limit", "3"]);
    assert_eq!(some["workers"].as_array().map(Vec::len), Some(3));
    assert!(some["next"].is_string());
}
