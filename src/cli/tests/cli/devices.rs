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
    let names: Vec<String> = (1..=230).map(|n| format!("w{n:03}")).collect();
    let batch = ["worker", "create-batch", "--prefix", "w", "--count", "230", "--width", "3"];
    assert!(daemon.ok(&[&batch[..], &["--dry-run"]].concat()).contains("w230"));
    assert!(daemon.ok(&["worker", "list"]).contains("no Workers"), "the preview changes nothing");
    assert!(daemon.ok(&batch).contains("230 Workers"));
    let again = daemon.kurrent(&batch);
    assert_eq!(again.status.code(), Some(6));
    assert!(String::from_utf8_lossy(&again.stdout).contains("worker_exists"));
    let listed = daemon.json(&["worker", "list"]);
    let found: Vec<&str> = listed["workers"].as_array().unwrap().iter().map(|w| w["worker_id"].as_str().unwrap()).collect();
    assert_eq!(found, names, "the API's own page has 200");
    let some = daemon.json(&["worker", "list", "--limit", "3"]);
    assert_eq!(some["workers"].as_array().map(Vec::len), Some(3));
    assert!(some["next"].is_string());
}

#[test]
fn many_devices_are_imported_bound_and_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path());
    let file = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name).to_str().unwrap().to_owned()
    };
    let csv = file("m.csv", "mac,note,labels\n52:54:00:00:00:01,first,rack=7;size=big\n5254.0000.0002,,\nnonsense,,\n");
    for arguments in [&["--dry-run"][..], &[]] {
        let output = daemon.kurrent(&[&["device", "import", &csv], arguments].concat());
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(8), "{said}");
        assert!(said.contains("2 ") && said.contains("created, 0 skipped, 1 failed") && said.contains("nonsense"), "{said}");
        assert_eq!(macs(&daemon.json(&["device", "list"])).len(), if arguments.is_empty() { 2 } else { 0 });
    }
    assert_eq!(macs(&daemon.json(&["device", "list", "--label", "size=big"])), ["52:54:00:00:00:01"]);
    let yaml = file("m.yaml", "- mac: 52:54:00:00:00:03\n- mac: 52:54:00:00:00:01\n");
    assert!(daemon.ok(&["device", "import", &yaml]).contains("1 created, 1 skipped, 0 failed"));

    daemon.ok(&["worker", "create-batch", "w1", "w2", "w3"]);
    let pairs = file("pairs", "52:54:00:00:00:01,w1\n52:54:00:00:00:02,w2\n");
    assert!(daemon.ok(&["device", "bind-batch", &pairs, "--dry-run"]).contains("w2"));
    assert_eq!(macs(&daemon.json(&["device", "list", "--state", "bound"])).len(), 0);
    assert!(daemon.ok(&["device", "bind-batch", &pairs]).contains("2 devices are bound"));
    let moved = file("moved", "52:54:00:00:00:03,w1\n52:54:00:00:00:09,w3\n");
    let refused = daemon.kurrent(&["device", "bind-batch", &moved]);
    let plan = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(refused.status.code() == Some(6) && plan.contains("device_not_found"), "{plan}");
    let moved = file("moved", "52:54:00:00:00:03,w1\n");
    let shown = daemon.ok(&["device", "bind-batch", &moved, "--force", "--dry-run"]);
    assert!(shown.contains("52:54:00:00:00:01"), "whom it displaces: {shown}");
    daemon.ok(&["device", "bind-batch", &moved, "--force"]);
    assert_eq!(daemon.json(&["device", "get", "52:54:00:00:00:01"])["state"], "pooled");

    let deleted = daemon.kurrent(&["worker", "delete-batch", "w1", "w2", "w9"]);
    assert_eq!(deleted.status.code(), Some(8));
    assert!(String::from_utf8_lossy(&deleted.stdout).contains("2 deleted, 1 failed"));
    assert_eq!(macs(&daemon.json(&["device", "list", "--state", "bound"])).len(), 0);
}

#[test]
fn a_worker_is_described_as_its_machine_will_see_it() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path());
    daemon.ok(&["worker", "create", "w1"]);
    daemon.ok(&["device", "register", "52:54:00:00:00:01", "--keyless-allowed"]);
    assert!(daemon.ok(&["worker", "status", "w1"]).contains("idle"));
    assert!(daemon.ok(&["worker", "boot-vars", "w1"]).contains("boots"));
    daemon.ok(&["disk", "create", "w1", "--os", "data", "--size", "1M"]);
    daemon.ok(&["device", "bind", "52:54:00:00:00:01", "w1"]);
    assert_eq!(daemon.json(&["worker", "status", "w1"])["readiness"], "ready");
    assert_eq!(daemon.json(&["worker", "boot-vars", "w1"])["variables"]["hostname"], "w1");
    daemon.ok(&["credentials", "list"]);
    daemon.ok(&["credentials", "rotate", "w1"]);
    daemon.fails(&["credentials", "rotate", "w9"], 5, "worker_not_found");
    daemon.fails(&["lease", "release", "10.77.0.50"], 1, "dhcp_not_served");
    assert!(daemon.ok(&["lease", "list"]).contains("no leases"));
    daemon.ok(&["settings", "set", "--enforcement", "off"]);
    assert_eq!(daemon.json(&["settings", "show"])["enforcement"], false);
    daemon.ok(&["settings", "set", "--enforcement", "config", "--method", "nvme"]);
    let settings = daemon.json(&["settings", "show"]);
    assert_eq!((settings["enforcement"].as_bool(), settings["boot"]["method"].as_str()), (Some(true), Some("nvme")));
    daemon.ok(&["settings", "set", "--no-boot"]);
    assert!(daemon.json(&["settings", "show"])["boot"]["method"].is_null());
}
