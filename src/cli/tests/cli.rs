//! The real `kurrent` against the real `kurrentd`, in folders and on ports of their own.

use serde_json::Value;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const READY_WITHIN: Duration = Duration::from_secs(20);

struct Daemon {
    child: Child,
    folder: PathBuf,
    port: u16,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `kurrentd` lies beside `kurrent`; when only this package was asked for, it is built now.
fn kurrentd() -> PathBuf {
    let beside = Path::new(env!("CARGO_BIN_EXE_kurrent")).with_file_name("kurrentd");
    if !beside.exists() {
        let built = Command::new(env!("CARGO")).args(["build", "-q", "-p", "kurrentd", "--bin", "kurrentd"]).status().unwrap();
        assert!(built.success(), "building kurrentd");
    }
    beside
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Daemon {
    fn start(folder: &Path) -> Self {
        let (port, boot_port) = (free_port(), free_port());
        let text = format!(
            "apiVersion: kurrent.io/v1\nkind: ApplianceConfiguration\nspec:\n  dhcp: {{mode: off}}\n  tftp: {{enabled: off}}\n  \
             http: {{apiPort: {port}, bootPort: {boot_port}}}\n  stateDir: {0}/state\n  agent: {{diskDir: {0}/disks}}\n",
            folder.display()
        );
        std::fs::write(folder.join("kurrent.yaml"), text).unwrap();
        let mut daemon = Self { child: Self::spawn(folder), folder: folder.to_owned(), port };
        daemon.wait();
        daemon
    }

    fn spawn(folder: &Path) -> Child {
        let log = std::fs::File::options().create(true).append(true).open(folder.join("log")).unwrap();
        let mut command = Command::new(kurrentd());
        command.arg("run").arg("--config").arg(folder.join("kurrent.yaml")).arg("--status").arg(folder.join("status"));
        command.stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    fn wait(&mut self) {
        let deadline = Instant::now() + READY_WITHIN;
        while !self.kurrent(&["status"]).status.success() {
            assert!(Instant::now() < deadline, "{}", std::fs::read_to_string(self.folder.join("log")).unwrap());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// SIGKILL, then a new one on the same folder.
    fn kill_and_restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = Self::spawn(&self.folder);
        self.wait();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kurrent"));
        command.args(arguments).env_remove("KURRENT_TOKEN");
        command.env("KURRENT_URL", format!("http://127.0.0.1:{}", self.port));
        command.env("KURRENT_TOKEN_FILE", self.folder.join("state/secrets/first-run-token"));
        command
    }

    fn kurrent(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Must succeed; stdout.
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.kurrent(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[arguments, &["-o", "json"]].concat())).unwrap()
    }

    /// Must fail with this exit code and a message that holds `what`.
    fn fails(&self, arguments: &[&str], code: i32, what: &str) {
        check_failure(&self.kurrent(arguments), arguments, code, what);
    }
}

fn check_failure(output: &Output, arguments: &[&str], code: i32, what: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
    assert!(stderr.contains(what), "{arguments:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{arguments:?}: a failure says nothing on stdout");
}

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
    assert!(daemon.ok(&["worker", "list", "-o", "yaml"]).contains("- bound_device: \"52:54:00:00:00:01\""));
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
    assert_eq!(columns[0], ["AT", "ACTOR", "VERB", "DEVICE", "OBJECT", "RESULT", "REPEATED"], "{audit}");
    assert_eq!(columns[1][1..], ["admin", "bind", "52:54:00:00:00:01", "w1", "ok", "-"], "{audit}");
    daemon.fails(&["device", "timeline", "52:54:00:00:00:01"], 5, "no_boot_seen");
    for shown in [&["status"][..], &["target"], &["lease", "list"], &["master", "list"], &["job", "list"], &["device", "knocking"]] {
        assert!(!daemon.ok(shown).is_empty(), "{shown:?}");
    }
}

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
    for url in ["ftp://127.0.0.1", "https://127.0.0.1", "127.0.0.1:8080", "http://127.0.0.1/v1"] {
        daemon.fails(&["status", "--url", url], 1, "write http://ADDRESS:8080");
    }
}

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
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    let path = folder.path().join("state/workers.yml");
    let good = std::fs::read_to_string(&path).unwrap();
    let bad = good.replace("worker_id: w1", "worker_id: W 1");
    std::fs::write(&path, &bad).unwrap();
    let check = Command::new(kurrentd()).args(["state", "check", "--state-dir"]).arg(folder.path().join("state")).output().unwrap();
    check_failure(&check, &["state check"], 2, "workers.yml:6:");
    daemon.child = Daemon::spawn(folder.path());
    daemon.wait();
    let status = daemon.ok(&["status"]);
    assert!(status.contains("workers.yml:6:"), "{status}");
    daemon.fails(&["worker", "list"], 1, "workers.yml:6:");
    daemon.fails(&["worker", "create", "w2"], 1, "ledger_unreadable");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), bad);
    std::fs::write(&path, good).unwrap();
    daemon.kill_and_restart();
    assert!(daemon.ok(&["worker", "list"]).contains("w1"));
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
