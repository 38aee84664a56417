//! One `kurrentd` in a folder and on ports of its own, and `kurrent` for it.

use serde_json::Value;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

const READY_WITHIN: Duration = Duration::from_secs(20);

pub struct Daemon {
    pub child: Child,
    pub folder: PathBuf,
    port: u16,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `kurrentd` lies beside `kurrent`; when only this package was asked for, it is built now.
pub fn kurrentd() -> PathBuf {
    let beside = Path::new(env!("CARGO_BIN_EXE_kurrent")).with_file_name("kurrentd");
    if !beside.exists() {
        let built = Command::new(env!("CARGO")).args(["build", "-q", "-p", "kurrentd", "--bin", "kurrentd"]).status().unwrap();
        assert!(built.success(), "building kurrentd");
    }
    beside
}

/// A port that nobody else is given, also while its daemon starts again: those that the kernel hands out begin at 32768, and each
/// process of tests begins somewhere else below.
pub fn free_port() -> u16 {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let first = 20_000 + 100 * u16::try_from(std::process::id() % 120).unwrap();
    loop {
        let port = first + TAKEN.fetch_add(1, Ordering::Relaxed);
        assert!(port < 32_768, "no port is free");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Daemon {
    pub fn start(folder: &Path) -> Self {
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

    pub fn spawn(folder: &Path) -> Child {
        let log = std::fs::File::options().create(true).append(true).open(folder.join("log")).unwrap();
        let mut command = Command::new(kurrentd());
        command.arg("run").arg("--config").arg(folder.join("kurrent.yaml")).arg("--status").arg(folder.join("status"));
        command.stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    /// Waits for the API, and logs in when nobody has.
    pub fn wait(&mut self) {
        let deadline = Instant::now() + READY_WITHIN;
        while !self.logged_in() {
            assert!(Instant::now() < deadline, "{}", std::fs::read_to_string(self.folder.join("log")).unwrap());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until something listens where the API is, whatever it answers.
    pub fn wait_for_port(&self) {
        let deadline = Instant::now() + READY_WITHIN;
        while !self.listens() {
            assert!(Instant::now() < deadline, "{}", std::fs::read_to_string(self.folder.join("log")).unwrap());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn listens(&self) -> bool {
        std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok()
    }

    fn logged_in(&self) -> bool {
        let (first_run, password) = (self.folder.join("state/secrets/first-run-token"), self.folder.join("password"));
        if !first_run.exists() || !self.listens() {
            // A restore has ended all sessions.
            return self.kurrent(&["status"]).status.success() || password.exists() && self.log_in(&[]);
        }
        std::fs::write(&password, "correct horse battery\n").unwrap();
        self.log_in(&["--first-run".as_ref(), "--first-run-token-file".as_ref(), first_run.as_os_str()])
    }

    fn log_in(&self, more: &[&std::ffi::OsStr]) -> bool {
        let mut login = self.command(&["login", "--user", "admin", "--context", "lab", "--password-file"]);
        login.env("XDG_CONFIG_HOME", self.folder.join("config")).arg(self.folder.join("password")).args(more);
        login.output().unwrap().status.success()
    }

    /// SIGKILL, then a new one on the same folder.
    pub fn kill_and_restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = Self::spawn(&self.folder);
        self.wait();
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn token_file(&self) -> PathBuf {
        self.folder.join("config/kurrent/tokens/lab")
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kurrent"));
        command.args(arguments).env_remove("KURRENT_TOKEN");
        command.env("KURRENT_URL", self.url());
        command.env("KURRENT_TOKEN_FILE", self.token_file());
        command
    }

    pub fn kurrent(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Must succeed; stdout.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.kurrent(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[arguments, &["-o", "json"]].concat())).unwrap()
    }

    /// Must fail with this exit code and a message that holds `what`.
    pub fn fails(&self, arguments: &[&str], code: i32, what: &str) {
        check_failure(&self.kurrent(arguments), arguments, code, what);
    }
}

pub fn check_failure(output: &Output, arguments: &[&str], code: i32, what: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
    assert!(stderr.contains(what), "{arguments:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{arguments:?}: a failure says nothing on stdout");
}
