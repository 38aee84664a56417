//! `make bench-ledger`: what one durable change costs in a ledger of 100 and of 10,000 devices and Workers (each with a disk, each
//! device bound), and what that many cost a running daemon. On the disk of `target/`, through the same handle that the API uses.

use criterion::{BatchSize, Criterion};
use kurrent_core::id::{AgentName, MacAddr, Nqn, OsTag, WorkerId, disk_file_name, disk_nqn};
use kurrent_core::ledger::apply::apply;
use kurrent_core::ledger::{Change, Disk, DiskSource, Fingerprint, Ledger};
use kurrent_core::time::Now;
use kurrentd::audit::Audit;
use kurrentd::ledger::{LedgerHandle, load};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SMALL: u32 = 100;
const LARGE: u32 = 10_000;
const SAMPLES: u32 = 3000;
const WRITERS: u32 = 64;
const WRITING: Duration = Duration::from_secs(5);
const STARTS: u32 = 5;
/// Until the daemon has read and told everything.
const SETTLES: Duration = Duration::from_secs(5);

fn mac(n: u32) -> MacAddr {
    let [_, a, b, c] = n.to_be_bytes();
    MacAddr([0x52, 0x54, 0, a, b, c])
}

fn worker(n: u32) -> WorkerId {
    format!("worker-{n:05}").parse().expect("a Worker's name")
}

fn disk(n: u32) -> Disk {
    let [_, a, b, c] = n.to_be_bytes();
    let (os, tag) = ("debian".parse().expect("a system"), OsTag::from_random([0, 0, 0, a, b, c]));
    Disk {
        nqn: disk_nqn(&Nqn::default_base(), &worker(n), &os, &tag),
        filename: disk_file_name(&worker(n), &os, &tag),
        os_tag: tag,
        os,
        os_version: "13".parse().expect("a version"),
        agent: AgentName::local(),
        size_bytes: 4 << 30,
        uuid: uuid::Uuid::from_u128(u128::from(n)),
        source: DiskSource::Master { name: "debian_tpl_13.img".parse().expect("a master"), digest: Some(format!("sha256:{n:064x}")) },
        remark: String::new(),
        created_at: now().wall,
    }
}

fn now() -> Now {
    Now { mono: Default::default(), wall: "2026-11-30T12:00:00Z".parse().expect("a time") }
}

fn note(n: u32, text: String) -> Change {
    Change::EditDevice { mac: mac(n), note: Some(text), keyless_allowed: None, loader: None, address: None }
}

/// Devices as they report themselves, bound to Workers with a disk.
fn ledger_of(count: u32) -> Ledger {
    let mut ledger = Ledger::default();
    let mut make = |change: Change| match apply(&ledger, change, now()) {
        Ok((next, _)) => ledger = next,
        Err(rejected) => panic!("{rejected}"),
    };
    for n in 0..count {
        let fingerprint = Fingerprint {
            manufacturer: "Example Computer Inc.".into(),
            product: "Rack Server 2000".into(),
            serial: format!("SN-{n:08}"),
            cpu_model: "Example CPU @ 2.00GHz".into(),
            memory_total: "65536".into(),
            memory_type: "DDR5".into(),
            memory_speed: "4800".into(),
            nic_chip: "example-nic".into(),
            nic_busid: "01,8086,1572".into(),
        };
        let key = Some(format!("ed25519:{n:064x}"));
        make(Change::Register {
            mac: mac(n),
            public_key: key.clone(),
            keyless_allowed: false,
            note: String::new(),
            labels: Default::default(),
            address: None,
        });
        make(Change::Report { mac: mac(n), uuid: uuid::Uuid::from_u128(u128::from(n)).to_string(), public_key: key, fingerprint });
        make(Change::CreateWorker { worker: worker(n) });
        make(Change::AddDisk { worker: worker(n), disk: disk(n) });
        make(Change::Bind { mac: mac(n), worker: worker(n), force: false });
    }
    ledger
}

/// A folder of its own with these many.
fn folder_of(count: u32, purpose: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target"), PathBuf::from);
    let folder = target.join("bench-ledger").join(format!("{count}-{purpose}"));
    // Of an earlier run.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder below target/");
    for (name, text) in load::texts(&ledger_of(count)).expect("texts") {
        std::fs::write(folder.join(name), text).expect("a ledger file");
    }
    folder
}

fn open(folder: &Path) -> LedgerHandle {
    let handle = LedgerHandle::open(folder, Audit::open(folder).expect("an audit"));
    assert!(!handle.unreadable(), "{:?}", handle.fault());
    handle
}

/// Some device, another one each time.
fn some(n: u32, count: u32) -> u32 {
    n.wrapping_mul(2_654_435_761) % count
}

/// Times of changes one after the other, sorted.
async fn changes(handle: &LedgerHandle, count: u32) -> Vec<Duration> {
    let mut times = Vec::new();
    for n in 0..SAMPLES {
        let change = note(some(n, count), format!("note {n}"));
        let begun = Instant::now();
        handle.submit(change, "bench").await.expect("a durable change");
        times.push(begun.elapsed());
    }
    times.sort();
    times
}

/// The same while the files are written over and over; and how often they were.
async fn changes_beside_checkpoints(handle: &LedgerHandle, count: u32) -> (Vec<Duration>, u64) {
    let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let task = tokio::spawn({
        let (handle, stop, written) = (handle.clone(), Arc::clone(&stop), Arc::clone(&written));
        async move {
            while !stop.load(Ordering::Relaxed) {
                handle.flush().await;
                written.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let mut times = Vec::new();
    // Through at least a few of them.
    while times.len() < 1000 || written.load(Ordering::Relaxed) < 4 {
        let n = u32::try_from(times.len()).unwrap_or(0);
        let begun = Instant::now();
        handle.submit(note(some(n, count), format!("beside {n}")), "bench").await.expect("a durable change");
        times.push(begun.elapsed());
    }
    stop.store(true, Ordering::Relaxed);
    task.await.expect("the flushing task");
    times.sort();
    (times, written.load(Ordering::Relaxed))
}

/// Changes a second of many writers at once.
async fn throughput(handle: &LedgerHandle, count: u32) -> f64 {
    let begun = Instant::now();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let handle = handle.clone();
            tokio::spawn(async move {
                let mut done = 0u32;
                while begun.elapsed() < WRITING {
                    let change = note(some(done * WRITERS + writer, count), format!("{writer} {done}"));
                    handle.submit(change, "bench").await.expect("a durable change");
                    done += 1;
                }
                done
            })
        })
        .collect();
    let mut all = 0;
    for writer in writers {
        all += writer.await.expect("a writer");
    }
    f64::from(all) / begun.elapsed().as_secs_f64()
}

fn at(times: &[Duration], percent: usize) -> Duration {
    times.get((times.len() * percent / 100).min(times.len().saturating_sub(1))).copied().unwrap_or_default()
}

fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

/// Resident octets of a daemon that serves this many: now, and at most. Not where the kernel would really export all these disks.
fn resident() -> Option<(u64, u64)> {
    if Path::new("/sys/kernel/config/nvmet").exists() {
        return None;
    }
    let state = folder_of(LARGE, "daemon");
    let place = state.parent()?.join("daemon");
    std::fs::create_dir_all(&place).ok()?;
    let port = std::net::TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port();
    let config = place.join("kurrent.yaml");
    let text = format!(
        "apiVersion: kurrent.io/v1\nkind: ApplianceConfiguration\nmetadata: {{name: bench}}\nspec:\n  stateDir: {}\n  filesDir: {}\n  \
         dhcp: {{mode: \"off\"}}\n  http: {{apiPort: {port}}}\n  agent: {{diskDir: {}}}\n",
        state.display(),
        place.display(),
        place.join("disks").display(),
    );
    std::fs::write(&config, text).ok()?;
    let status = place.join("status");
    let _ = std::fs::remove_file(&status);
    let mut daemon = Daemon(
        Command::new(env!("CARGO_BIN_EXE_kurrentd"))
            .arg("run")
            .arg("--config")
            .arg(&config)
            .arg("--status")
            .arg(&status)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(place.join("log")).ok()?)
            .spawn()
            .ok()?,
    );
    let deadline = Instant::now() + Duration::from_secs(30);
    while !status.exists() {
        assert!(Instant::now() < deadline, "kurrentd does not serve; see {}", place.join("log").display());
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(SETTLES);
    let text = std::fs::read_to_string(format!("/proc/{}/status", daemon.0.id())).ok()?;
    let of = |key: &str| text.lines().find_map(|l| l.strip_prefix(key))?.trim().strip_suffix(" kB")?.parse::<u64>().ok();
    let found = (of("VmRSS:")? * 1024, of("VmHWM:")? * 1024);
    let _ = daemon.0.kill();
    Some(found)
}

/// Ended when it goes out of sight.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    let mut rows: Vec<(String, String, &str)> = Vec::new();
    let mut row = |what: String, measured: String, aim: &'static str| {
        println!("{what}: {measured}");
        rows.push((what, measured, aim));
    };
    let mut criterion = Criterion::default().without_plots().measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1));
    let mut medians = Vec::new();
    for count in [SMALL, LARGE] {
        let folder = folder_of(count, "changes");
        let handle = open(&folder);
        runtime.block_on(handle.flush());
        let times = runtime.block_on(changes(&handle, count));
        medians.push(at(&times, 50));
        row(format!("one durable change, {count} devices and Workers, p50"), millis(at(&times, 50)), "");
        row(format!("one durable change, {count} devices and Workers, p99"), millis(at(&times, 99)), "under 20 ms");
        let (times, written) = runtime.block_on(changes_beside_checkpoints(&handle, count));
        row(format!("the same while the files are written without a pause, {count}, p50"), millis(at(&times, 50)), "");
        let measured = format!("{} (worst {}, {written} checkpoints)", millis(at(&times, 99)), millis(at(&times, 100)));
        row(format!("the same while the files are written without a pause, {count}, p99"), measured, "under 20 ms");
        let rate = runtime.block_on(throughput(&handle, count));
        row(format!("durable changes a second, {WRITERS} writers, {count} devices and Workers"), format!("{rate:.0}"), "2,000");
        let mut n = 0u32;
        criterion.bench_function(&format!("change/{count}"), |bencher| {
            bencher.iter_batched(
                || {
                    n += 1;
                    note(some(n, count), format!("criterion {n}"))
                },
                |change| runtime.block_on(handle.submit(change, "bench")).expect("a durable change"),
                BatchSize::SmallInput,
            );
        });
        let snapshot = handle.snapshot();
        criterion.bench_function(&format!("lookup/{count}"), |bencher| {
            bencher.iter(|| {
                n = n.wrapping_add(1);
                black_box(snapshot.device(black_box(mac(some(n, count)))).is_some())
            });
        });
        if count == LARGE {
            let begun = Instant::now();
            for n in 0..1_000_000 {
                black_box(snapshot.device(black_box(mac(some(n, count)))).is_some());
            }
            row(format!("lookup by MAC among {count}"), format!("{:.2} µs", begun.elapsed().as_secs_f64()), "under 2 µs");
        }
    }
    if let [small, large] = medians.as_slice() {
        let ratio = large.as_secs_f64() / small.as_secs_f64();
        row(format!("one durable change, {LARGE} against {SMALL}, ratio of p50"), format!("{ratio:.2}"), "under 1.5");
    }
    let folder = folder_of(LARGE, "start");
    let mut starts: Vec<Duration> = (0..STARTS)
        .map(|_| {
            let audit = Audit::open(&folder).expect("an audit");
            let begun = Instant::now();
            let handle = LedgerHandle::open(&folder, audit);
            let took = begun.elapsed();
            assert!(!handle.unreadable(), "{:?}", handle.fault());
            drop(handle);
            // The writer ends by itself and lets the folder go.
            let deadline = Instant::now() + Duration::from_secs(10);
            while kurrentd::ledger::files::Files::open(&folder).is_err() {
                assert!(Instant::now() < deadline, "the folder is not let go");
                std::thread::sleep(Duration::from_millis(20));
            }
            took
        })
        .collect();
    starts.sort();
    row(format!("start: ledgers of {LARGE} devices and {LARGE} Workers read, median of {STARTS}"), millis(at(&starts, 50)), "under 1 s");
    match resident() {
        Some((now, most)) => {
            let mib = |octets: u64| octets as f64 / f64::from(1 << 20);
            let measured = format!("{:.0} MiB (at most {:.0})", mib(now), mib(most));
            row(format!("resident memory of `kurrentd run`, {LARGE} devices and {LARGE} Workers"), measured, "under 120 MB");
        }
        None => row("resident memory".into(), "not measured: this machine's kernel would export the disks".into(), "under 120 MB"),
    }
    println!("\n| figure | measured | aim |\n|---|---|---|");
    for (what, measured, aim) in rows {
        println!("| {what} | {measured} | {aim} |");
    }
}
