//! One boot network per test: a bridge in a namespace, the daemon on it, clients in namespaces of their own.

use anyhow::{Context, Result, bail};
use kurrent_core::dhcp::pxe::LOADERS;
use kurrent_harness::api::Api;
use kurrent_harness::capture::Capture;
use kurrent_harness::evidence::Run;
use kurrent_harness::netns::{self, BRIDGE, BootNetwork};
use kurrent_harness::process::{Lifetime, Process};
use kurrent_harness::steps::{self, Watched};
use kurrent_harness::tools::run;
use serde_json::json;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// The appliance's address.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// Nothing here takes longer on a busy machine, unless it does not work.
pub const DEADLINE: Duration = Duration::from_secs(30);
/// Silence is believed after this.
pub const SILENCE: Duration = Duration::from_secs(2);
/// The daemon says so when port 80 is bound.
const BOOT_PLANE: &str = "boot plane is served";

/// Waits for a condition.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        if Instant::now() > deadline {
            bail!("{what}: not within {} s", DEADLINE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Waits until the API answers, whatever that is: of an appliance that has just started again, its port may not be there yet.
pub fn wait_for_api(api: &Api) -> Result<()> {
    let refused = |e: &anyhow::Error| e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused);
    let mut asked = Ok(());
    wait_for("an answer of the API", || {
        asked = api.request("GET", "/v1/status", None).map(drop);
        !asked.as_ref().is_err_and(refused)
    })?;
    asked
}

/// Binds a UDP port that a socket of ours had a moment ago: a child which another test is just starting can hold that one until it
/// has become its program.
pub fn bind_again(address: SocketAddr) -> Result<UdpSocket> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match UdpSocket::bind(address) {
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5))
            }
            other => return other.with_context(|| format!("bind {address}")),
        }
    }
}

/// A boot network with a packet capture and a folder for state and loaders.
pub struct Net {
    // In this order: first what runs, then where it ran, then the evidence.
    capture: Option<Capture>,
    daemon: std::cell::RefCell<Option<Daemon>>,
    network: BootNetwork,
    clients: std::cell::Cell<u32>,
    run: Run,
}

/// A machine on the boot network.
pub struct Client {
    /// Its namespace.
    pub netns: String,
}

impl Net {
    /// Makes it.
    pub fn new(test: &str) -> Result<Self> {
        let run = Run::new(&format!("net-{test}"))?;
        let network = BootNetwork::new("10.77.0.1/24")?;
        let capture = Capture::start(network.name(), BRIDGE, &run.evidence().join("boot.pcap"))?;
        let net = Self { capture: Some(capture), daemon: std::cell::RefCell::default(), network, clients: std::cell::Cell::new(0), run };
        for folder in ["state", "disks", "files"] {
            fs::create_dir(net.path(folder))?;
        }
        for (index, name) in LOADERS.into_iter().enumerate() {
            fs::write(net.path("files").join(name), loader(index))?;
        }
        net.configure("")?;
        Ok(net)
    }

    /// A path in this test's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.run.scratch().join(name)
    }

    /// The daemon's namespace.
    pub fn netns(&self) -> &str {
        self.network.name()
    }

    /// Writes the configuration; `more` are further lines of `spec`.
    pub fn configure(&self, more: &str) -> Result<()> {
        let dir = self.run.scratch().display();
        let text = format!(
            "apiVersion: kurrent.io/v1\nkind: ApplianceConfiguration\nmetadata:\n  name: net\nspec:\n  stateDir: {dir}/state\n  filesDir: {dir}/files\n  agent:\n    diskDir: {dir}/disks\n{more}"
        );
        fs::write(self.path("kurrent.yaml"), text).context("write kurrent.yaml")
    }

    /// A program in the daemon's namespace.
    pub fn command(&self, program: &str) -> Command {
        self.network.command(program)
    }

    /// Starts the daemon and does not wait for anything.
    pub fn start(&self) -> Result<Daemon> {
        self.start_prepared(|_| {})
    }

    /// Starts the daemon so that it ends at its `last_step`-th write step in the state and disk folders.
    pub fn start_watched(&self, last_step: Option<usize>) -> Result<(Daemon, Watched)> {
        let daemon = self.start_prepared(steps::prepare)?;
        let watched = steps::watch(daemon.pid()?, &[self.path("state"), self.path("disks")], last_step)?;
        Ok((daemon, watched))
    }

    /// The daemon runs as long as this.
    pub fn keep(&self, daemon: Daemon) {
        self.daemon.replace(Some(daemon));
    }

    /// `kill -9` for the daemon that is kept.
    pub fn daemon_ends(&self) -> Result<()> {
        self.daemon.replace(None).context("a daemon").map(Daemon::kill)
    }

    /// The API, once it answers and the boot plane is there; nothing when the daemon has ended before.
    pub fn up(&self, daemon: &mut Daemon) -> Result<Option<Api>> {
        let mut api = None;
        let mut ended = false;
        wait_for("an answer of the API", || {
            ended = !daemon.runs();
            api = self.api_now().ok().filter(|api| api.get("/v1/status").is_ok() && daemon.log().contains(BOOT_PLANE));
            ended || api.is_some()
        })
        .with_context(|| format!("it said: {}", daemon.log()))?;
        Ok(api.filter(|_| !ended))
    }

    fn start_prepared(&self, prepare: impl FnOnce(&mut Command)) -> Result<Daemon> {
        let log = self.run.evidence().join("kurrentd.log");
        let out = fs::OpenOptions::new().create(true).append(true).open(&log)?;
        let from = out.metadata()?.len();
        let mut command = self.network.command(env!("CARGO_BIN_EXE_kurrentd"));
        command.arg("run").arg("--config").arg(self.path("kurrent.yaml")).arg("--status").arg(self.path("status"));
        command.stderr(out.try_clone()?).stdout(out).env("KURRENT_LOG", "debug");
        prepare(&mut command);
        let process = Process::start("kurrentd", command, Lifetime::Ours)?;
        Ok(Daemon { process, log, from })
    }

    /// Starts the daemon and waits until it serves DHCP, TFTP and the boot plane; for the API, see [`wait_for_api`].
    pub fn serve(&self) -> Result<Daemon> {
        let daemon = self.start()?;
        daemon.wait_for_log("DHCP: serving")?;
        daemon.wait_for_log("TFTP: serving")?;
        daemon.wait_for_log(BOOT_PLANE)?;
        Ok(daemon)
    }

    /// The API, from inside, as an admin; waits until somebody can log in.
    pub fn api(&self) -> Result<Api> {
        let mut tried = None;
        let answers = |api: &Api| api.request("GET", "/v1/status", None).is_ok();
        let waited = wait_for("an answer of the API", || tried.insert(self.api_now()).as_ref().is_ok_and(answers));
        tried.context("nobody tried to log in")?.and_then(|api| waited.map(|()| api))
    }

    /// The same, at once or not at all.
    fn api_now(&self) -> Result<Api> {
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8443);
        // Plain: from loopback.
        let api = Api { address, token: String::new(), netns: Some(self.netns().to_owned()), ca: None };
        api.logged_in_at(&self.path("state"), &self.path("state/lab-session"))
    }

    /// A machine with one NIC `eth0`.
    pub fn client(&self, mac: &str) -> Result<Client> {
        let number = self.clients.get();
        self.clients.set(number + 1);
        let netns = format!("{}-c{number}", self.netns());
        run(Command::new("ip").args(["netns", "add", &netns]))?;
        let client = Client { netns };
        let port = format!("port{number}");
        self.ip(&["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &client.netns])?;
        self.ip(&["link", "set", &port, "master", BRIDGE])?;
        self.ip(&["link", "set", &port, "up"])?;
        client.ip(&["link", "set", "lo", "up"])?;
        client.ip(&["link", "set", "eth0", "address", mac])?;
        client.ip(&["link", "set", "eth0", "up"])?;
        // The kernel learns of the link a moment later, on a busy machine up to a second; a frame before that is lost.
        wait_for("the client's link", || {
            let forwards = self.ip(&["-d", "link", "show", &port]).is_ok_and(|said| said.contains("state forwarding"));
            forwards && client.ip(&["link", "show", "eth0"]).is_ok_and(|said| said.contains("state UP"))
        })?;
        Ok(client)
    }

    /// `ip` in the daemon's namespace.
    pub fn ip(&self, arguments: &[&str]) -> Result<String> {
        run(Command::new("ip").args(["-n", self.netns()]).args(arguments))
    }

    /// Everything held: no evidence is kept.
    pub fn passed(mut self) {
        self.capture = None;
        self.daemon.replace(None);
        self.run.passed();
    }
}

impl Client {
    /// `ip` on this machine.
    pub fn ip(&self, arguments: &[&str]) -> Result<String> {
        run(Command::new("ip").args(["-n", &self.netns]).args(arguments))
    }

    /// A program on this machine.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.netns, "timeout", "30", program]);
        command
    }

    /// Runs a program to its end, whatever that is.
    pub fn output(&self, program: &str, arguments: &[&str]) -> Result<Output> {
        self.command(program).args(arguments).output().with_context(|| format!("start {program} (`make deps` installs it)"))
    }

    /// Gives itself an address by hand.
    pub fn address(&self, address: &str) -> Result<()> {
        self.ip(&["addr", "add", address, "dev", "eth0"]).map(drop)
    }

    /// Work in a thread of this machine.
    pub fn enter<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        netns::enter(&self.netns, work)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = run(Command::new("ip").args(["netns", "delete", &self.netns]));
    }
}

/// A running daemon; killed when dropped.
pub struct Daemon {
    process: Process,
    log: PathBuf,
    from: u64,
}

impl Daemon {
    /// Its process id.
    pub fn pid(&self) -> Result<u32> {
        self.process.pid().context("the daemon's process")
    }

    /// `kill -9`.
    pub fn kill(mut self) {
        self.process.kill();
    }

    /// What it has logged since it started.
    pub fn log(&self) -> String {
        let octets = fs::read(&self.log).unwrap_or_default();
        let from = usize::try_from(self.from).unwrap_or(0);
        String::from_utf8_lossy(octets.get(from..).unwrap_or_default()).into_owned()
    }

    /// Waits for a line.
    pub fn wait_for_log(&self, text: &str) -> Result<()> {
        wait_for(&format!("{text:?} in the daemon's log"), || self.log().contains(text)).with_context(|| format!("it said: {}", self.log()))
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        self.process.ended().is_none()
    }
}

/// A loader's octets: of an odd length, different in each block.
pub fn loader(index: usize) -> Vec<u8> {
    let len = 200_003 + index * 4096;
    (0..len).map(|at| u8::try_from((at * 31 + at / 251 + index * 7) % 256).unwrap_or(0)).collect()
}

/// Records a device by hand.
pub fn register(api: &Api, mac: &str) -> Result<()> {
    api.ask("POST", "/v1/devices", Some(&json!({ "mac": mac, "keyless_allowed": true }))).map(drop)
}

/// Records a device by hand and revokes it.
pub fn revoke(api: &Api, mac: &str) -> Result<()> {
    register(api, mac)?;
    api.ask("POST", &format!("/v1/devices/{mac}/revoke"), Some(&json!({}))).map(drop)
}
