//! What is refused, and how it is told.

use crate::daemon::{Daemon, check_failure, free_port, kurrentd};
use std::process::Command;

#[test]
fn failures_have_their_exit_code_and_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path());
    daemon.fails(&["device", "get", "52:54:00:00:00:01"], 5, "device_not_found");
    daemon.fails(&["device", "bind", "52:54:00:00:00:01", "w1"], 5, "device_not_found");
    daemon.fails(&["device", "get", "nonsense"], 2, "write six octets");
    daemon.fails(&["worker", "create", "No_Host_Name"], 2, "a-z, 0-9 and '-'");
    daemon.fails(&["window", "open", "--minutes", "61"], 2, "1..=60");
    daemon.fails(&["disk", "create", "w1", "--os", "debian"], 2, "--master");
    daemon.fails(&["disk", "create", "w1", "--os", "debian", "--size", "much"], 2, "10G");
    daemon.ok(&["worker", "create", "w1"]);
    daemon.fails(&["worker", "create", "w1"], 6, "worker_exists");
    daemon.fails(&["worker", "boot", "w1", "--method", "iscsi"], 6, "not_in_this_version");
    daemon.fails(&["worker", "boot", "w1", "--kernel", "disk"], 6, "not_in_this_version");
    daemon.fails(&["device", "register", "52:54:00:00:00:01", "--public-key-hash", "00"], 2, "--admit");
    daemon.fails(&["device", "register", "52:54:00:00:00:01", "--admit", "--public-key-hash", "00"], 6, "not_knocking");
    daemon.fails(&["disk", "create", "w1", "--os", "debian", "--master", "no_tpl_such.img"], 5, "master_not_found");
    daemon.fails(&["master", "import", "/nowhere/a_tpl_b.img"], 1, "/nowhere/a_tpl_b.img");
    daemon.fails(&["audit", "--since", "yesterday"], 6, "query_invalid");

    let image = folder.path().join("a_tpl_b.img");
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    daemon.fails(&["master", "import", image.to_str().unwrap()], 6, "4096");
    daemon.fails(&["master", "import", image.to_str().unwrap(), "--name", "plain.img"], 6, "not_a_master");
    assert!(daemon.ok(&["master", "list"]).contains("no masters"));

    let mut wrong = daemon.command(&["status"]);
    std::fs::write(folder.path().join("wrong"), "A".repeat(26)).unwrap();
    check_failure(&wrong.env("KURRENT_TOKEN_FILE", folder.path().join("wrong")).output().unwrap(), &["wrong token"], 4, "token_wrong");
    let mut none = daemon.command(&["status"]);
    check_failure(&none.env_remove("KURRENT_TOKEN_FILE").output().unwrap(), &["no token"], 4, "KURRENT_TOKEN");
    let closed = format!("http://127.0.0.1:{}", free_port());
    daemon.fails(&["status", "--url", &closed], 3, "is kurrentd running there");
    for url in ["ftp://127.0.0.1", "127.0.0.1:8080", "http://127.0.0.1/v1"] {
        daemon.fails(&["status", "--url", url], 1, "write https://ADDRESS:8443");
    }
    daemon.fails(&["status", "--url", "https://127.0.0.1"], 1, "no CA is known for it");
    daemon.fails(&["status", "--url", "http://192.0.2.1:8443"], 1, "use https://192.0.2.1:8443");
}

#[test]
fn a_bad_configuration_is_refused_with_its_line_and_shown_on_the_status() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kurrent.yaml");
    std::fs::write(&path, "apiVersion: kurrent.io/v1\nkind: ApplianceConfiguration\nspec:\n  dchp: {}\n").unwrap();
    let status = folder.path().join("status");
    for arguments in [&["check"][..], &["plan"], &["run", "--status", status.to_str().unwrap(), "--config"]] {
        let output = Command::new(kurrentd()).args(arguments).arg(&path).output().unwrap();
        check_failure(&output, arguments, 2, &format!("{}:4: the key 'dchp' is not known; did you mean 'dhcp'?", path.display()));
    }
    let text = std::fs::read_to_string(status).unwrap();
    assert!(text.starts_with("serving=no\n") && text.contains("did you mean 'dhcp'?"), "{text}");
}
