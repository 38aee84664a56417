//! `make bench-target`: how long a change waits until the target follows it, with 100 and with 10,000 bound Workers of one disk
//! each. The kernel's tree is a folder (`FakeKernel`), so only the two against each other say something, not the times alone.

use kurrent_core::config::Config;
use kurrent_core::id::{AgentName, MacAddr, Nqn, OsTag, WorkerId, disk_file_name, disk_nqn};
use kurrent_core::ledger::apply::apply;
use kurrent_core::ledger::{Change, Disk, DiskSource, Ledger};
use kurrent_core::time::Now;
use kurrent_sys::configfs::Nvmet;
use kurrent_sys::configfs::fake::FakeKernel;
use kurrentd::ledger::load;
use kurrentd::reconcile::{Kernel, serve};
use kurrentd::shared::{Shared, SharedRef};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SMALL: u32 = 100;
const LARGE: u32 = 10_000;
const SAMPLES: u32 = 20;
const DISK_BYTES: u64 = 1 << 20;
/// The first pass makes everything.
const FIRST_WITHIN: Duration = Duration::from_secs(600);
const WITHIN: Duration = Duration::from_secs(60);

fn mac(n: u32) -> MacAddr {
    let [_, a, b, c] = n.to_be_bytes();
    MacAddr([0x52, 0x54, 0, a, b, c])
}

fn worker(n: u32) -> WorkerId {
    format!("worker-{n:05}").parse().expect("a Worker's name")
}

fn now() -> Now {
    Now { mono: Default::default(), wall: "2026-11-30T12:00:00Z".parse().expect("a time") }
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
        size_bytes: DISK_BYTES,
        uuid: uuid::Uuid::from_u128(u128::from(n)),
        source: DiskSource::Empty,
        remark: String::new(),
        created_at: now().wall,
    }
}

/// `bound` Workers with a device, and [`SAMPLES`] more without.
fn ledger_of(bound: u32) -> Ledger {
    let mut ledger = Ledger::default();
    let mut make = |change: Change| match apply(&ledger, change, now()) {
        Ok((next, _)) => ledger = next,
        Err(rejected) => panic!("{rejected}"),
    };
    for n in 0..bound + SAMPLES {
        make(Change::Register {
            mac: mac(n),
            public_key: None,
            keyless_allowed: true,
            note: String::new(),
            labels: Default::default(),
            address: None,
        });
        make(Change::CreateWorker { worker: worker(n) });
        make(Change::AddDisk { worker: worker(n), disk: disk(n) });
        if n < bound {
            make(Change::Bind { mac: mac(n), worker: worker(n), force: false });
        }
    }
    ledger
}

/// Everything in a folder of its own below `target/`.
fn open(bound: u32) -> (SharedRef, PathBuf) {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target"), PathBuf::from);
    let folder = target.join("bench-target").join(bound.to_string());
    // Of an earlier run.
    let _ = std::fs::remove_dir_all(&folder);
    let mut config = Config { state_dir: folder.join("state"), ..Config::default() };
    config.agent.disk_dir = folder.join("disks");
    config.boot_network.address = [10, 0, 0, 1].into();
    for made in [&config.state_dir, &config.agent.disk_dir] {
        std::fs::create_dir_all(made).expect("a folder below target/");
    }
    for (name, text) in load::texts(&ledger_of(bound)).expect("texts") {
        std::fs::write(config.state_dir.join(name), text).expect("a ledger file");
    }
    for n in 0..bound + SAMPLES {
        let file = std::fs::File::create(config.agent.disk_dir.join(disk(n).filename.as_str())).expect("a disk");
        file.set_len(DISK_BYTES).expect("a disk's size");
    }
    std::fs::write(folder.join("tcp"), "  sl  local_address rem_address\n").expect("a list of connections");
    let shared = Shared::open(config).expect("a state folder");
    assert!(!shared.ledger.unreadable(), "{:?}", shared.ledger.fault());
    let lease = |n: u32| (std::net::Ipv4Addr::from(0x0a01_0000 + n), mac(n));
    shared.leases.store(Arc::new((0..bound).map(lease).collect()));
    (shared, folder)
}

/// From the durable change to the observation that has it, sorted.
async fn follows(shared: &SharedRef, change: impl Fn(u32) -> Change) -> Vec<Duration> {
    let mut times = Vec::new();
    for n in 0..SAMPLES {
        let (_, ledger) = shared.ledger.submit(change(n), "bench").await.expect("a durable change");
        let begun = Instant::now();
        shared.target.settled(ledger.generation, WITHIN).await.expect("a target that follows");
        times.push(begun.elapsed());
    }
    times.sort();
    times
}

fn told(what: &str, bound: u32, times: &[Duration]) {
    let of = |percent: usize| times.get(times.len() * percent / 100).copied().unwrap_or_default().as_secs_f64() * 1000.0;
    println!("| {what}, {bound} bound Workers | p50 {:.1} ms, p90 {:.1} ms |", of(50), of(90));
}

async fn measure(bound: u32) {
    let (shared, folder) = open(bound);
    let root = folder.join("nvmet");
    let nvmet = Nvmet::new(root.clone(), Box::new(FakeKernel::new(&root).expect("a tree")));
    let begun = Instant::now();
    let task = tokio::spawn(serve(shared.clone(), Kernel { nvmet, tcp: folder.join("tcp") }));
    let generation = shared.ledger.snapshot().generation;
    shared.target.settled(generation, FIRST_WITHIN).await.expect("everything exported");
    println!("| everything exported at a start, {bound} bound Workers | {:.1} s |", begun.elapsed().as_secs_f64());
    let note =
        |n: u32| Change::EditDevice { mac: mac(n), note: Some(format!("note {n}")), keyless_allowed: None, loader: None, address: None };
    told("the target has followed a note", bound, &follows(&shared, note).await);
    let bind = |n: u32| Change::Bind { mac: mac(bound + n), worker: worker(bound + n), force: false };
    told("the target has followed a bind", bound, &follows(&shared, bind).await);
    let unbind = |n: u32| Change::Unbind { mac: mac(bound + n) };
    told("the target has followed an unbind", bound, &follows(&shared, unbind).await);
    task.abort();
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    println!("| figure | measured |\n|---|---|");
    for bound in [SMALL, LARGE] {
        runtime.block_on(measure(bound));
    }
}
