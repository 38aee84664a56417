//! Disks, masters, leftovers, jobs and storage nodes of a real appliance.

use crate::daemon::Daemon;
use serde_json::Value;

const MASTER: &str = "debian_tpl_12.img";

fn disks(daemon: &Daemon, arguments: &[&str]) -> Vec<Value> {
    daemon.json(&[&["disk", "list"], arguments].concat())["disks"].as_array().unwrap().clone()
}

#[test]
fn a_disk_is_made_described_grown_kept_and_mounted_again() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path());
    daemon.ok(&["worker", "create", "w1"]);
    daemon.ok(&["disk", "create", "w1", "--os", "data", "--size", "1M", "--remark", "scratch"]);
    let disk = disks(&daemon, &["w1"]).remove(0);
    let (tag, file) = (disk["os_tag"].as_str().unwrap(), disk["filename"].as_str().unwrap());
    assert!(daemon.ok(&["disk", "get", "w1", tag]).contains("scratch"));
    daemon.ok(&["disk", "edit", "w1", tag, "--remark", "keep"]);
    assert!(daemon.ok(&["disk", "resize", "w1", tag, "2M"]).contains("2 MiB"));
    daemon.fails(&["disk", "resize", "w1", tag, "1M"], 6, "(");
    let grown = daemon.json(&["disk", "get", "w1", tag]);
    assert_eq!((grown["size_bytes"].as_u64(), grown["remark"].as_str()), (Some(2 << 20), Some("keep")));
    assert_eq!(disks(&daemon, &["--os", "data"]).len(), 1);
    assert_eq!(disks(&daemon, &["--os", "debian"]).len(), 0);
    assert_eq!(disks(&daemon, &["w1", "--agent", "local"]).len(), 1);

    daemon.ok(&["disk", "delete", "w1", tag]);
    assert!(daemon.ok(&["leftover", "list"]).contains(file));
    daemon.ok(&["disk", "adopt", "w1", file, "--os", "data", "--remark", "again"]);
    assert!(daemon.ok(&["leftover", "list"]).contains("no leftovers"));
    let adopted = disks(&daemon, &["w1"]).remove(0);
    assert_ne!(adopted["os_tag"].as_str(), Some(tag), "K42: a record of its own");
    let (tag, file) = (adopted["os_tag"].as_str().unwrap(), adopted["filename"].as_str().unwrap());
    daemon.ok(&["disk", "delete", "w1", tag]);
    daemon.ok(&["leftover", "delete", file]);
    daemon.fails(&["leftover", "delete", file], 5, "(");
    daemon.fails(&["disk", "get", "w1", tag], 5, "disk_not_found");
}

#[test]
fn a_master_is_sent_tagged_cloned_for_many_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path());
    let image = folder.path().join("image");
    kurrent_harness::master::write_gpt(&image, 8 << 20).unwrap();
    daemon.ok(&["master", "import", image.to_str().unwrap(), "--name", MASTER]);
    daemon.ok(&["master", "tag", MASTER, "--os", "debian", "--os-version", "12", "--remark", "golden"]);
    let listed = daemon.ok(&["master", "list"]);
    assert!(listed.contains("golden") && listed.contains("8 MiB"), "{listed}");
    assert!(daemon.ok(&["master", "get", MASTER]).contains("partitions[0]"));
    for worker in ["w1", "w2"] {
        daemon.ok(&["worker", "create", worker]);
    }
    let batch = ["disk", "create-batch", "w1", "w2", "--os", "debian", "--os-version", "12", "--master", MASTER];
    let plan = daemon.json(&[&batch[..], &["--dry-run"]].concat());
    assert_eq!((plan["plan"].as_array().map(Vec::len), plan["plan"][0]["agent"].as_str()), (Some(2), Some("local")));
    assert_eq!(disks(&daemon, &[]).len(), 0, "K36: the preview changes nothing");
    assert!(daemon.ok(&batch).contains("2 disks are there"));
    assert_eq!(disks(&daemon, &["--os", "debian"]).len(), 2);
    let again = daemon.kurrent(&batch);
    assert_eq!(again.status.code(), Some(6));
    assert!(String::from_utf8_lossy(&again.stdout).contains("disk_exists"), "{}", String::from_utf8_lossy(&again.stdout));
    let jobs = daemon.json(&["job", "list"]);
    let job = jobs["jobs"][0]["id"].as_str().unwrap().to_owned();
    daemon.ok(&["job", "get", &job]);
    daemon.ok(&["job", "wait", &job]);
    daemon.fails(&["job", "cancel", &job], 6, "(");
    daemon.fails(&["job", "wait", "none"], 5, "job_not_found");
    daemon.ok(&["master", "delete", MASTER]);
    daemon.fails(&["master", "get", MASTER], 5, "master_not_found");
}

#[test]
fn storage_nodes_are_drained_described_and_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path());
    assert!(daemon.ok(&["agent", "list"]).contains("local"));
    daemon.ok(&["agent", "add", "store2", "--base-url", "https://10.0.0.2:8443", "--note", "cellar"]);
    daemon.ok(&["agent", "edit", "store2", "--note", ""]);
    assert_eq!(daemon.json(&["agent", "probe", "store2"])["health"], "unreachable");
    daemon.ok(&["agent", "drain", "local"]);
    daemon.ok(&["worker", "create", "w1"]);
    daemon.fails(&["disk", "create", "w1", "--os", "data", "--size", "1M"], 6, "(");
    daemon.ok(&["agent", "undrain", "local"]);
    daemon.ok(&["disk", "create", "w1", "--os", "data", "--size", "1M"]);
    daemon.ok(&["agent", "remove", "store2"]);
    daemon.fails(&["agent", "remove", "local"], 6, "(");

    let output = daemon.kurrent(&["join-token", "create", "--minutes", "5", "--note", "store3"]);
    let token = String::from_utf8(output.stdout).unwrap();
    assert_eq!(token.trim().len(), 26, "the token alone: {token:?}");
    let listed = daemon.json(&["join-token", "list"]);
    let id = listed["join_tokens"][0]["id"].as_str().unwrap();
    assert!(!listed.to_string().contains(token.trim()));
    daemon.ok(&["join-token", "revoke", id]);
    assert!(daemon.ok(&["join-token", "list"]).contains("no join tokens"));
}
