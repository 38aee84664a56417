//! `make bench-dhcp`: kurrentd, dnsmasq and Kea in the same namespaces in one run, in turns; the ratios are what counts.
//!
//! A boot storm on the link (1,000 firmwares within 20 ms, PXE back-off), and DORA through a relay (20,000 machines). No system
//! setting is changed. Ends by itself; every process and namespace is gone then.

mod client;
mod peers;
mod relayed;
mod storm;

use anyhow::{Context, Result, bail};
use client::{Ask, OFFER};
use kurrent_harness::netns;
use kurrent_harness::process::{Process, end_all_on_signal};
use kurrent_harness::tools::{run, target_dir};
use peers::{ALL, Peer, RELAY, SERVER};
use std::fs;
use std::net::Ipv4Addr;
use std::process::Command;
use std::time::{Duration, Instant};

/// Rounds of each, in turns; medians are shown. `KURRENT_BENCH_ROUNDS` says otherwise; `KURRENT_BENCH_ONLY=kea` measures only
/// those whose name contains it.
const ROUNDS: usize = 3;
const READY_WITHIN: Duration = Duration::from_secs(20);
/// The load's own numbers: each run has new machines.
const STEP: u32 = 100_000;

fn main() -> Result<()> {
    // `cargo bench` passes --bench; cargo test --benches must not run this.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    end_all_on_signal()?;
    let rounds = std::env::var("KURRENT_BENCH_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(ROUNDS);
    let net = Pair::new()?;
    let mut numbers = (1..).map(|n: u32| n * STEP);
    let only = std::env::var("KURRENT_BENCH_ONLY").unwrap_or_default();
    let mut rows: Vec<Row> = ALL.iter().filter(|peer| peer.name().contains(&only)).map(|peer| Row::new(*peer)).collect();
    for round in 0..rounds {
        for row in &mut rows {
            eprintln!("round {} of {rounds}: {}", round + 1, row.peer.name());
            row.measure(&net, &mut numbers)
                .with_context(|| format!("{} (its log is in {})", row.peer.name(), folder(row.peer).display()))?;
        }
    }
    report(&mut rows);
    Ok(())
}

/// What was measured of one server.
struct Row {
    peer: Peer,
    storms: Vec<storm::Storm>,
    relayed: Vec<relayed::Relayed>,
    /// Resident memory after 20,000 leases, in KiB.
    memory: Vec<u64>,
}

impl Row {
    fn new(peer: Peer) -> Self {
        Self { peer, storms: Vec::new(), relayed: Vec::new(), memory: Vec::new() }
    }

    fn measure(&mut self, net: &Pair, numbers: &mut impl Iterator<Item = u32>) -> Result<()> {
        let mut number = || numbers.next().context("numbers");
        let (ready, first) = (number()?, number()?);
        let server = net.serve(self.peer, ready)?;
        self.storms.push(netns::enter(&net.client, move || storm::run("c0", first))??);
        drop(server);
        let (ready, first) = (number()?, number()?);
        let server = net.serve(self.peer, ready)?;
        self.relayed.push(netns::enter(&net.client, move || relayed::run(RELAY, SERVER, first))??);
        self.memory.push(memory(&server)?);
        Ok(())
    }
}

fn folder(peer: Peer) -> std::path::PathBuf {
    target_dir().join("bench-dhcp").join(peer.name().replace([' ', ','], ""))
}

/// The server's namespace with `s0`, the clients' with `c0`, where the relay lives too.
struct Pair {
    server: String,
    client: String,
}

impl Pair {
    fn new() -> Result<Self> {
        let pair =
            Self { server: format!("kurrent-bench-{}-s", std::process::id()), client: format!("kurrent-bench-{}-c", std::process::id()) };
        for netns in [&pair.server, &pair.client] {
            run(Command::new("ip").args(["netns", "add", netns])).context("make a network namespace")?;
            run(Command::new("ip").args(["-n", netns, "link", "set", "lo", "up"]))?;
        }
        let ip = |netns: &str, words: &[&str]| run(Command::new("ip").args(["-n", netns]).args(words)).map(drop);
        ip(&pair.server, &["link", "add", "s0", "type", "veth", "peer", "name", "c0", "netns", &pair.client])?;
        ip(&pair.server, &["addr", "add", &format!("{SERVER}/16"), "dev", "s0"])?;
        ip(&pair.server, &["link", "set", "s0", "up"])?;
        ip(&pair.client, &["addr", "add", "10.77.0.2/16", "dev", "c0"])?;
        ip(&pair.client, &["addr", "add", &format!("{RELAY}/32"), "dev", "lo"])?;
        ip(&pair.client, &["link", "set", "c0", "up"])?;
        ip(&pair.server, &["route", "add", "10.80.0.0/16", "via", "10.77.0.2"])?;
        Ok(pair)
    }

    /// Starts a server and waits until it has answered a relayed DISCOVER.
    fn serve(&self, peer: Peer, number: u32) -> Result<Process> {
        let mut server = peer.start(&self.server, &folder(peer))?;
        let deadline = Instant::now() + READY_WITHIN;
        while Instant::now() < deadline {
            if server.ended().is_some() {
                bail!("it ended: {}", fs::read_to_string(folder(peer).join("log")).unwrap_or_default());
            }
            if netns::enter(&self.client, move || answers(number))?? {
                return Ok(server);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        bail!("no answer within {} s: {}", READY_WITHIN.as_secs(), fs::read_to_string(folder(peer).join("log")).unwrap_or_default())
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for netns in [&self.server, &self.client] {
            let _ = run(Command::new("ip").args(["netns", "delete", netns]));
        }
    }
}

fn answers(number: u32) -> Result<bool> {
    let socket = std::net::UdpSocket::bind((RELAY, 67)).context("the relay's port")?;
    socket.set_read_timeout(Some(Duration::from_millis(300)))?;
    socket.send_to(&Ask { client: number, giaddr: RELAY, takes: None }.message(), (SERVER, 67))?;
    let mut buffer = [0; 2048];
    let heard = socket.recv(&mut buffer).ok().and_then(|len| client::told(buffer.get(..len)?));
    Ok(heard.is_some_and(|told| told.client == number && told.kind == OFFER && told.address != Ipv4Addr::UNSPECIFIED))
}

/// Resident memory of the server behind `ip netns exec`, which execs.
fn memory(server: &Process) -> Result<u64> {
    let pid = server.pid().context("the server's process")?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).context("VmRSS")?;
    line.trim().trim_end_matches(" kB").trim().parse().context("VmRSS")
}

fn median<T: Copy + PartialOrd>(values: impl Iterator<Item = T>) -> Option<T> {
    let mut values: Vec<T> = values.collect();
    values.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    values.get(values.len() / 2).copied()
}

fn report(rows: &mut [Row]) {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("\nload at the end: {}", load.split(' ').take(3).collect::<Vec<_>>().join(" "));
    println!(
        "{:<20} {:>12} {:>8} {:>10} {:>8} {:>12} {:>8} {:>10}",
        "", "ACKed in 2 s", "in 14 s", "last", "twice", "relayed/s", "lost", "memory"
    );
    let mut best_storm = 0;
    let mut best_rate = 0.0;
    for row in rows.iter() {
        let in_time = median(row.storms.iter().map(|s| s.in_time)).unwrap_or_default();
        let rate = median(row.relayed.iter().map(relayed::Relayed::rate)).unwrap_or_default();
        println!(
            "{:<20} {:>12} {:>8} {:>8} ms {:>8} {:>12.0} {:>8} {:>6} MiB",
            row.peer.name(),
            in_time,
            median(row.storms.iter().map(|s| s.at_all)).unwrap_or_default(),
            median(row.storms.iter().map(|s| s.last.as_millis())).unwrap_or_default(),
            row.storms.iter().map(|s| s.twice).sum::<u32>() + row.relayed.iter().map(|r| r.twice).sum::<u32>(),
            rate,
            median(row.relayed.iter().map(|r| r.lost)).unwrap_or_default(),
            median(row.memory.iter().copied()).unwrap_or_default() / 1024,
        );
        if row.peer != Peer::Kurrent {
            best_storm = best_storm.max(in_time);
            best_rate = rate.max(best_rate);
        }
    }
    if let Some(ours) = rows.iter().find(|row| row.peer == Peer::Kurrent) {
        let in_time = median(ours.storms.iter().map(|s| s.in_time)).unwrap_or_default();
        let rate = median(ours.relayed.iter().map(relayed::Relayed::rate)).unwrap_or_default();
        println!(
            "\nkurrentd to the best peer: storm {:.2}, relayed {:.2}",
            f64::from(in_time) / f64::from(best_storm.max(1)),
            rate / best_rate
        );
    }
}
