//! `make bench-http`: kurrentd and nginx (one worker) in the same namespace in one run, in turns; the ratios are what counts.
//!
//! A small file over 256 connections, a large one over 1 and over 16, from 64 addresses. No system setting is changed. Ends by itself;
//! every process and namespace is gone then.

mod load;
mod peers;

use anyhow::{Context, Result, bail};
use kurrent_harness::netns;
use kurrent_harness::process::{Process, end_all_on_signal};
use kurrent_harness::tools::{run, target_dir};
use load::{Figure, Shape};
use peers::{Peer, SERVER};
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

/// Rounds, in turns; medians are shown. `KURRENT_BENCH_ROUNDS` says otherwise.
const ROUNDS: usize = 5;
const READY_WITHIN: Duration = Duration::from_secs(20);
const SMALL_BYTES: u64 = 1024;
const LARGE_BYTES: u64 = 64 << 20;
const SHAPES: [Shape; 3] = [
    Shape {
        name: "1 KiB, 256 connections",
        path: "/files/kurrent-attest.efi",
        length: SMALL_BYTES,
        connections: 256,
        time: Duration::from_secs(3),
    },
    Shape {
        name: "64 MiB, 1 connection",
        path: "/files/worker/vmlinuz",
        length: LARGE_BYTES,
        connections: 1,
        time: Duration::from_secs(2),
    },
    Shape {
        name: "64 MiB, 16 connections",
        path: "/files/worker/vmlinuz",
        length: LARGE_BYTES,
        connections: 16,
        time: Duration::from_secs(3),
    },
];

fn main() -> Result<()> {
    // `cargo bench` passes --bench; cargo test --benches must not run this.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    end_all_on_signal()?;
    let rounds = std::env::var("KURRENT_BENCH_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(ROUNDS);
    let folder = prepare()?;
    let net = Pair::new()?;
    // Of each shape: ours, nginx's.
    let mut figures: Vec<[Vec<Figure>; 2]> = SHAPES.iter().map(|_| [Vec::new(), Vec::new()]).collect();
    for round in 0..rounds {
        let order = if round % 2 == 0 { [Peer::Kurrent, Peer::Nginx] } else { [Peer::Nginx, Peer::Kurrent] };
        for peer in order {
            eprintln!("round {} of {rounds}: {}", round + 1, peer.name());
            let server = net.serve(peer, &folder)?;
            for (shape, rows) in SHAPES.into_iter().zip(&mut figures) {
                let figure = netns::enter(&net.client, move || load::run(shape, server_address()))?;
                let figure = figure.with_context(|| format!("{}, {} (its log is in {})", peer.name(), shape.name, folder.display()))?;
                let [ours, theirs] = rows;
                if peer == Peer::Kurrent { ours } else { theirs }.push(figure);
            }
            drop(server);
        }
    }
    report(&figures);
    Ok(())
}

fn server_address() -> SocketAddr {
    SocketAddr::from((SERVER, 80))
}

/// The files that both serve.
fn prepare() -> Result<PathBuf> {
    let folder = target_dir().join("bench-http");
    let _ = fs::remove_dir_all(&folder);
    for name in ["state", "disks", "files/worker"] {
        fs::create_dir_all(folder.join(name))?;
    }
    let octets = |length: u64| (0..length).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect::<Vec<u8>>();
    for (name, length) in [("files/kurrent-attest.efi", SMALL_BYTES), ("files/worker/vmlinuz", LARGE_BYTES)] {
        fs::write(folder.join(name), octets(length))?;
        // As files of an installed system are: not of this moment.
        let file = fs::File::options().write(true).open(folder.join(name))?;
        file.set_modified(SystemTime::now() - Duration::from_secs(3600))?;
    }
    folder.canonicalize().context("the folder of this bench")
}

/// The server's namespace with `s0`, the clients' with `c0`.
struct Pair {
    server: String,
    client: String,
}

impl Pair {
    fn new() -> Result<Self> {
        let name = |side| format!("kurrent-bench-{}-{side}", std::process::id());
        let pair = Self { server: name("s"), client: name("c") };
        for netns in [&pair.server, &pair.client] {
            run(Command::new("ip").args(["netns", "add", netns])).context("make a network namespace")?;
            run(Command::new("ip").args(["-n", netns, "link", "set", "lo", "up"]))?;
        }
        let ip = |netns: &str, words: &[&str]| run(Command::new("ip").args(["-n", netns]).args(words)).map(drop);
        ip(&pair.server, &["link", "add", "s0", "type", "veth", "peer", "name", "c0", "netns", &pair.client])?;
        ip(&pair.server, &["addr", "add", &format!("{SERVER}/16"), "dev", "s0"])?;
        ip(&pair.server, &["link", "set", "s0", "up"])?;
        for n in 0..load::ADDRESSES {
            ip(&pair.client, &["addr", "add", &format!("{}/16", load::address(n.into())), "dev", "c0"])?;
        }
        ip(&pair.client, &["link", "set", "c0", "up"])?;
        Ok(pair)
    }

    /// Starts a server and waits until it takes connections.
    fn serve(&self, peer: Peer, folder: &std::path::Path) -> Result<Process> {
        let mut server = peer.start(&self.server, folder)?;
        let log = folder.join(format!("{}.log", peer.name()));
        let deadline = Instant::now() + READY_WITHIN;
        while Instant::now() < deadline && server.ended().is_none() {
            let connects = || std::net::TcpStream::connect_timeout(&server_address(), Duration::from_secs(1)).is_ok();
            if netns::enter(&self.client, connects)? {
                return Ok(server);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("{} does not serve: {}", peer.name(), fs::read_to_string(log).unwrap_or_default())
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for netns in [&self.server, &self.client] {
            let _ = run(Command::new("ip").args(["netns", "delete", netns]));
        }
    }
}

fn median(figures: &[Figure], of: impl Fn(&Figure) -> f64) -> f64 {
    let mut values: Vec<f64> = figures.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn report(figures: &[[Vec<Figure>; 2]]) {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("\nload at the end: {}", load.split(' ').take(3).collect::<Vec<_>>().join(" "));
    println!("{:<24} {:>14} {:>14} {:>8}", "", "kurrentd", "nginx", "ratio");
    for (shape, [ours, theirs]) in SHAPES.iter().zip(figures) {
        let (unit, of): (_, fn(&Figure) -> f64) =
            if shape.length == SMALL_BYTES { ("req/s", |f| f.requests_per_second) } else { ("MB/s", |f| f.megabytes_per_second) };
        let (ours, theirs) = (median(ours, of), median(theirs, of));
        println!("{:<24} {ours:>8.0} {unit:<5} {theirs:>8.0} {unit:<5} {:>8.2}", shape.name, ours / theirs);
    }
}
