//! `make bench-tftp`: ours against the TFTP servers of Debian, all on one link, one work after the other, servers in turn.
//!
//! Prints figures of each and, what counts, ours over the best of the others in the same round. Ends by itself; what it started dies with it.
//! `ROUNDS=9` makes more rounds, `ONLY=window` does only the works with that in their heading.

mod load;

use anyhow::{Context, Result, ensure};
use kurrent_harness::evidence::Run;
use kurrent_harness::netns::{BootNetwork, enter};
use kurrent_harness::process::{Lifetime, Process, end_all_on_signal};
use kurrent_harness::tools::{run, target_dir};
use load::{Outcome, Work, content};
use std::ffi::OsStr;
use std::fs;
use std::io::{BufWriter, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 20);
/// One work of one server; with loss, the unfinished are counted then.
const WITHIN: Duration = Duration::from_secs(30);
const ROUNDS: usize = 5;
const LOSSY_ROUNDS: usize = 2;

const WORKS: [Work; 9] = [
    Work { name: "64 MiB, 1468, window 16", file: "64m", size: 64 * MIB, clients: 1, block_bytes: Some(1468), window: 16, ..PLAIN },
    Work { name: "64 MiB, 1468, window 64", file: "64m", size: 64 * MIB, clients: 1, block_bytes: Some(1468), window: 64, ..PLAIN },
    Work { name: "16 MiB, no options", file: "16m", size: 16 * MIB, clients: 1, block_bytes: None, ..PLAIN },
    Work { name: "16 x 1 MiB, no options", file: "1m", size: MIB, clients: 16, block_bytes: None, ..PLAIN },
    Work { name: "16 MiB, 1468", file: "16m", size: 16 * MIB, clients: 1, ..PLAIN },
    Work { name: "64 x 1 MiB, 1468", file: "1m", size: MIB, clients: 64, ..PLAIN },
    Work { name: "64 x 1 MiB, 1468, window 16", file: "1m", size: MIB, clients: 64, window: 16, ..PLAIN },
    Work { name: "64 x 1 MiB, 1468, loss 0.2 %", file: "1m", size: MIB, clients: 64, lose_one_in: 500, each_round: false, ..PLAIN },
    Work {
        name: "64 x 1 MiB, 1468, window 16, loss 0.2 %",
        file: "1m",
        size: MIB,
        clients: 64,
        window: 16,
        lose_one_in: 500,
        each_round: false,
        ..PLAIN
    },
];
const PLAIN: Work = Work { name: "", file: "", size: 0, clients: 1, block_bytes: Some(1468), window: 1, lose_one_in: 0, each_round: true };

/// One that answers on an address of its own.
struct Server {
    name: &'static str,
    address: Ipv4Addr,
    process: Process,
}

struct Bench {
    // In this order: first what runs, then where it ran.
    servers: Vec<Server>,
    network: BootNetwork,
    clients: String,
    run: Option<Run>,
}

impl Bench {
    fn start() -> Result<Self> {
        let run = Run::new("bench-tftp")?;
        let network = BootNetwork::new("10.99.0.1/30")?;
        let clients = format!("{}-c", network.name());
        let bench = Self { servers: Vec::new(), network, clients, run: Some(run) };
        bench.link()?;
        bench.files()?;
        bench.servers()
    }

    fn run(&self) -> Result<&Run> {
        self.run.as_ref().context("a run")
    }

    /// Servers and clients at the two ends of one link.
    fn link(&self) -> Result<()> {
        run(Command::new("ip").args(["netns", "add", &self.clients]))?;
        let servers = |arguments: &[&str]| run(Command::new("ip").args(["-n", self.network.name()]).args(arguments));
        let clients = |arguments: &[&str]| run(Command::new("ip").args(["-n", &self.clients]).args(arguments));
        servers(&["link", "add", "srv0", "type", "veth", "peer", "name", "eth0", "netns", &self.clients])?;
        for last in 1..=4 {
            servers(&["addr", "add", &format!("10.77.0.{last}/24"), "dev", "srv0"])?;
        }
        servers(&["link", "set", "srv0", "up"])?;
        clients(&["addr", "add", &format!("{CLIENT}/24"), "dev", "eth0"])?;
        clients(&["link", "set", "eth0", "up"])?;
        Ok(())
    }

    fn files(&self) -> Result<()> {
        let folder = self.run()?.scratch().join("files");
        fs::create_dir(&folder)?;
        for (name, size) in [("64m", 64 * MIB), ("16m", 16 * MIB), ("1m", MIB)] {
            let mut file = BufWriter::new(fs::File::create(folder.join(name))?);
            for at in (0..size).step_by(4) {
                file.write_all(&content(at))?;
            }
            file.flush()?;
        }
        Ok(())
    }

    fn servers(mut self) -> Result<Self> {
        let scratch = self.run()?.scratch().to_path_buf();
        let (files, state) = (scratch.join("files"), scratch.join("state"));
        for folder in ["state", "disks", "loaders"] {
            fs::create_dir(scratch.join(folder))?;
        }
        let config = scratch.join("kurrent.yaml");
        fs::write(
            &config,
            format!(
                "apiVersion: kurrent.io/v1\nkind: ApplianceConfiguration\nmetadata: {{name: bench}}\nspec:\n  stateDir: {}\n  filesDir: {}\n  agent: {{diskDir: {}}}\n  dhcp: {{mode: \"off\"}}\n  tftp: {{folder: {}}}\n",
                state.display(),
                scratch.join("loaders").display(),
                scratch.join("disks").display(),
                files.display(),
            ),
        )?;
        let ours = target_dir().join("release/kurrentd");
        let bench = target_dir().join("deps/bench/usr");
        let program = |path: &str| bench.join("sbin").join(path);
        let folder = files.as_os_str();
        self.serve("kurrentd", 1, &ours, &[OsStr::new("run"), OsStr::new("--config"), config.as_os_str()])?;
        self.serve(
            "tftpd-hpa",
            2,
            &program("in.tftpd"),
            &["--foreground", "--user", "root", "--address", "10.77.0.2:69", "--secure"]
                .map(OsStr::new)
                .into_iter()
                .chain([folder])
                .collect::<Vec<_>>(),
        )?;
        self.serve(
            "atftpd",
            3,
            &program("atftpd"),
            &[
                "--daemon",
                "--no-fork",
                "--user",
                "root.root",
                "--bind-address",
                "10.77.0.3",
                "--maxthread",
                "200",
                "--verbose=3",
                "--logfile",
                "/dev/null",
            ]
            .map(OsStr::new)
            .into_iter()
            .chain([folder])
            .collect::<Vec<_>>(),
        )?;
        let root = format!("--tftp-root={}", files.display());
        self.serve(
            "dnsmasq",
            4,
            &program("dnsmasq"),
            &[
                "--no-daemon",
                "--conf-file=/dev/null",
                "--pid-file=",
                "--user=root",
                "--port=0",
                "--enable-tftp",
                "--tftp-max=200",
                "--listen-address=10.77.0.4",
                "--bind-interfaces",
                &root,
            ]
            .map(OsStr::new),
        )?;
        Ok(self)
    }

    /// Starts one and waits until it answers.
    fn serve(&mut self, name: &'static str, last: u8, program: &PathBuf, arguments: &[&OsStr]) -> Result<()> {
        ensure!(Path::new(program).exists(), "{} is not there: start this with `make bench-tftp`", program.display());
        let log = fs::File::create(self.run()?.evidence().join(format!("{name}.log")))?;
        let mut command = self.network.command(program);
        command.args(arguments).stdout(log.try_clone()?).stderr(log);
        command.env("LD_LIBRARY_PATH", target_dir().join("deps/bench/usr/lib/x86_64-linux-gnu"));
        let process = Process::start(name, command, Lifetime::Ours)?;
        let address = Ipv4Addr::new(10, 77, 0, last);
        let server = Server { name, address, process };
        let probe = Work { file: "1m", size: MIB, ..PLAIN };
        let deadline = Instant::now() + WITHIN;
        while !self.work(&server, &probe, Duration::from_secs(2)).is_ok_and(|outcome| outcome.unfinished == 0) {
            ensure!(Instant::now() < deadline, "{name} does not answer; see {}", self.run()?.evidence().display());
        }
        self.servers.push(server);
        Ok(())
    }

    fn work(&self, server: &Server, work: &Work, within: Duration) -> Result<Outcome> {
        let (address, work) = (server.address, *work);
        enter(&self.clients, move || load::run(address, CLIENT, &work, within))?.with_context(|| format!("{}: {}", server.name, work.name))
    }

    fn measure(&mut self, rounds: usize) -> Result<()> {
        let count = self.servers.len();
        println!("TFTP, MB/s: median of {rounds} rounds (those with loss: {LOSSY_ROUNDS}), load before: {}", load_now());
        println!(
            "{:<42}{}{:>10} {:>10}",
            "",
            self.servers.iter().map(|s| format!("{:>11}", s.name)).collect::<String>(),
            "ours/best",
            "worst"
        );
        let only = std::env::var("ONLY").unwrap_or_default();
        for work in WORKS.iter().filter(|work| work.name.contains(&only)) {
            let mut rates = vec![Vec::new(); count];
            let mut unfinished = vec![0; count];
            let mut ratios = Vec::new();
            for round in 0..if work.each_round { rounds } else { LOSSY_ROUNDS } {
                for turn in 0..count {
                    let index = (turn + round) % count;
                    let Some(server) = self.servers.get(index) else { continue };
                    let outcome = self.work(server, work, WITHIN)?;
                    rates[index].push(outcome.rate);
                    unfinished[index] += outcome.unfinished;
                }
                let last: Vec<f64> = rates.iter().filter_map(|all| all.last().copied()).collect();
                ratios.extend(last.split_first().map(|(ours, others)| ours / others.iter().copied().fold(f64::EPSILON, f64::max)));
            }
            let mut row = format!("{:<42}", work.name);
            for (all, left) in rates.iter_mut().zip(&unfinished) {
                let left = if *left > 0 { format!(" -{left}") } else { String::new() };
                row.push_str(&format!("{:>11}", format!("{:.1}{left}", median(all) / 1e6)));
            }
            let worst = ratios.iter().copied().fold(f64::INFINITY, f64::min);
            println!("{row}{:>10.2} {worst:>10.2}", median(&mut ratios));
        }
        println!("-n: transfers that did not finish within {} s, of all rounds. Load after: {}", WITHIN.as_secs(), load_now());
        for server in &mut self.servers {
            ensure!(server.process.ended().is_none(), "{} has ended", server.name);
        }
        Ok(())
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.servers.clear();
        let _ = run(Command::new("ip").args(["netns", "delete", &self.clients]));
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn load_now() -> String {
    fs::read_to_string("/proc/loadavg").unwrap_or_default().split(' ').next().unwrap_or_default().to_owned()
}

fn main() -> Result<()> {
    end_all_on_signal()?;
    let rounds = std::env::var("ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS);
    let mut bench = Bench::start()?;
    bench.measure(rounds)?;
    bench.run.take().into_iter().for_each(Run::passed);
    Ok(())
}
