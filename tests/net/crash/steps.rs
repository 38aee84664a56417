//! `SIGKILL` at each write step of one change, from its request to the last file that is written for it.

use super::check::{all, invariants, readable, text};
use crate::net::{Net, wait_for};
use anyhow::{Context, Result, ensure};
use kurrent_harness::api::Api;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const A: &str = "52:54:00:00:0c:01";
const B: &str = "52:54:00:00:0c:02";
/// Nothing was written for so long: all of the change is in its files.
const QUIET: Duration = Duration::from_secs(3);
/// A step that was there when they were counted comes again within this.
const COMES_WITHIN: Duration = Duration::from_secs(8);
/// Rounds beside each other; most of their time is waiting.
const LANES: usize = 3;

/// One change, and how to tell whether it happened.
pub(super) struct Scenario {
    pub(super) name: &'static str,
    /// Brings about what the change starts from; nothing: the first start of all.
    pub(super) before: Option<fn(&Api) -> Result<()>>,
    /// Asks for the change; whether it was acknowledged.
    pub(super) act: fn(&Api) -> Result<bool>,
    /// Whether it happened. An error when it is half-done.
    pub(super) happened: fn(&Api) -> Result<bool>,
    /// Also at the steps of the start.
    pub(super) from_the_start: bool,
}

pub(super) fn asks(api: &Api, method: &str, path: &str, body: &Value) -> Result<bool> {
    // No answer is no acknowledgement.
    let Ok(answer) = api.request(method, path, Some(body)) else { return Ok(false) };
    ensure!((200..300).contains(&answer.status), "{method} {path}: {} {}", answer.status, answer.text());
    Ok(true)
}

fn must(api: &Api, method: &str, path: &str, body: &Value) -> Result<()> {
    api.ask(method, path, Some(body)).map(drop)
}

fn two_bound(api: &Api) -> Result<()> {
    for (mac, worker) in [(A, "w1"), (B, "w2")] {
        crate::net::register(api, mac)?;
        must(api, "POST", "/v1/workers", &json!({ "worker_id": worker }))?;
        must(api, "POST", &format!("/v1/devices/{mac}/bind"), &json!({ "worker_id": worker }))?;
    }
    Ok(())
}

fn bindings(api: &Api) -> Result<[(String, String); 2]> {
    let of = |mac: &str| -> Result<_> {
        let device = api.get(&format!("/v1/devices/{mac}"))?;
        Ok((text(&device, "state").to_owned(), text(&device, "bound_worker_id").to_owned()))
    };
    Ok([of(A)?, of(B)?])
}

fn pairs(states: [(&str, &str); 2]) -> [(String, String); 2] {
    states.map(|(state, worker)| (state.to_owned(), worker.to_owned()))
}

fn one_of(api: &Api, old: [(&str, &str); 2], new: [(&str, &str); 2]) -> Result<bool> {
    let found = bindings(api)?;
    ensure!(found == pairs(old) || found == pairs(new), "half-done: {found:?}");
    Ok(found == pairs(new))
}

fn with_disks(api: &Api) -> Result<()> {
    two_bound(api)?;
    for version in ["1", "2"] {
        must(api, "POST", "/v1/workers/w1/disks", &json!({ "os": "data", "os_version": version, "size_bytes": 1 << 20 }))?;
    }
    Ok(())
}

fn disks_of_w1(api: &Api) -> Result<Option<usize>> {
    let workers = all(api, "workers")?;
    let w1 = workers.iter().find(|w| text(w, "worker_id") == "w1");
    Ok(w1.and_then(|w| w.get("disks")?.as_array().map(Vec::len)))
}

#[test]
fn k29_a_forced_rebind_is_whole_or_not_at_all_wherever_it_is_cut() -> Result<()> {
    at_every_step(&Scenario {
        name: "rebind",
        before: Some(two_bound),
        act: |api| asks(api, "POST", &format!("/v1/devices/{A}/bind"), &json!({ "worker_id": "w2", "force": true })),
        happened: |api| one_of(api, [("bound", "w1"), ("bound", "w2")], [("bound", "w2"), ("pooled", "")]),
        from_the_start: true,
    })
}

#[test]
fn k39_deleting_a_worker_with_its_files_is_whole_or_not_at_all_wherever_it_is_cut() -> Result<()> {
    at_every_step(&Scenario {
        name: "delete-worker",
        before: Some(with_disks),
        act: |api| asks(api, "DELETE", "/v1/workers/w1?delete_files=true", &json!({})),
        happened: |api| {
            let gone = one_of(api, [("bound", "w1"), ("bound", "w2")], [("pooled", ""), ("bound", "w2")])?;
            let disks = disks_of_w1(api)?;
            ensure!(disks == if gone { None } else { Some(2) }, "half-done: {disks:?}");
            Ok(gone)
        },
        from_the_start: false,
    })
}

#[test]
fn k18_a_new_disk_has_file_and_record_or_neither_wherever_it_is_cut() -> Result<()> {
    at_every_step(&Scenario {
        name: "create-disk",
        before: Some(with_disks),
        act: |api| asks(api, "POST", "/v1/workers/w1/disks", &json!({ "os": "data", "os_version": "3", "size_bytes": 1 << 20 })),
        happened: |api| match disks_of_w1(api)? {
            Some(2) => Ok(false),
            Some(3) => Ok(true),
            other => anyhow::bail!("half-done: {other:?}"),
        },
        from_the_start: false,
    })
}

#[test]
fn the_first_start_can_be_cut_anywhere_and_the_next_one_serves() -> Result<()> {
    at_every_step(&Scenario {
        name: "first-start",
        before: None,
        act: |api| asks(api, "POST", "/v1/workers", &json!({ "worker_id": "w1" })),
        happened: |api| Ok(disks_of_w1(api)?.is_some()),
        from_the_start: true,
    })
}

fn disks_of(api: &Api, worker: &str) -> Result<Vec<Value>> {
    Ok(api.get(&format!("/v1/workers/{worker}/disks"))?["disks"].as_array().cloned().unwrap_or_default())
}

#[test]
fn a_disk_that_grows_is_never_larger_in_its_record_than_its_file_wherever_it_is_cut() -> Result<()> {
    at_every_step(&Scenario {
        name: "resize-disk",
        before: Some(with_disks),
        act: |api| {
            let disk = disks_of(api, "w1")?.into_iter().find(|d| text(d, "os_version") == "1").context("disk 1")?;
            let path = format!("/v1/workers/w1/disks/{}/resize", text(&disk, "os_tag"));
            asks(api, "POST", &path, &json!({ "size_bytes": 2 << 20 }))
        },
        happened: |api| {
            let disk = disks_of(api, "w1")?.into_iter().find(|d| text(d, "os_version") == "1").context("disk 1")?;
            let fault = disk.get("fault").and_then(Value::as_str).unwrap_or_default();
            match disk["size_bytes"].as_u64() {
                // Its file may be larger already; that is told.
                Some(0x10_0000) if fault.is_empty() || fault.contains("resize it to 2097152") => Ok(false),
                Some(0x20_0000) if fault.is_empty() => Ok(true),
                other => anyhow::bail!("half-done: {other:?} {fault}"),
            }
        },
        from_the_start: false,
    })
}

#[test]
fn k42_an_adopted_file_is_a_disk_or_a_file_without_record_wherever_it_is_cut() -> Result<()> {
    at_every_step(&Scenario {
        name: "adopt-disk",
        before: Some(|api| {
            with_disks(api)?;
            let disk = disks_of(api, "w1")?.into_iter().find(|d| text(d, "os_version") == "2").context("disk 2")?;
            let path = format!("/v1/workers/w1/disks/{}", text(&disk, "os_tag"));
            ensure!(api.request("DELETE", &path, None)?.status == 204, "the file is retained");
            Ok(())
        }),
        act: |api| {
            let left = api.get("/v1/leftovers")?["leftovers"][0]["name"].clone();
            asks(api, "POST", "/v1/workers/w2/disks/adopt", &json!({ "filename": left, "os": "data" }))
        },
        happened: |api| {
            let left = api.get("/v1/leftovers")?["leftovers"].as_array().map(Vec::len);
            match (disks_of(api, "w2")?.len(), left) {
                (0, Some(1)) => Ok(false),
                (1, Some(0)) => Ok(true),
                other => anyhow::bail!("half-done: {other:?}"),
            }
        },
        from_the_start: false,
    })
}

/// State and disks as they were, for every round again.
struct Baseline(PathBuf);

impl Baseline {
    fn keep(net: &Net) -> Result<Self> {
        let kept = net.path("baseline");
        copy(&net.path("state"), &kept.join("state"))?;
        copy(&net.path("disks"), &kept.join("disks"))?;
        Ok(Self(kept))
    }

    fn put_back(&self, net: &Net) -> Result<()> {
        for folder in ["state", "disks"] {
            std::fs::remove_dir_all(net.path(folder))?;
            copy(&self.0.join(folder), &net.path(folder))?;
        }
        Ok(())
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to.parent().context("a parent")?)?;
    let copied = Command::new("cp").args(["-a", "--sparse=always"]).arg(from).arg(to).status()?;
    ensure!(copied.success(), "copy {}", from.display());
    Ok(())
}

pub(super) fn at_every_step(scenario: &Scenario) -> Result<()> {
    let net = Net::new(&format!("crash-{}", scenario.name))?;
    if let Some(before) = scenario.before {
        let mut daemon = net.start()?;
        before(&net.up(&mut daemon)?.context("the daemon ended by itself")?)?;
        daemon.kill();
    }
    let baseline = Arc::new(Baseline::keep(&net)?);

    let (mut daemon, watched) = net.start_watched(None)?;
    let api = net.up(&mut daemon)?.context("the daemon ended by itself")?;
    let at_start = watched.count();
    ensure!((scenario.act)(&api)?, "refused without any crash");
    quiet(|| watched.count());
    daemon.kill();
    let steps = watched.finish()?;
    let first = if scenario.from_the_start { 1 } else { at_start + 1 };
    ensure!(steps.len() > at_start, "no step was counted after the start: {steps:?}");
    eprintln!("{}: steps {first} to {} are cut, the start has {at_start}", scenario.name, steps.len());
    check(scenario, &net, true).context("without any crash")?;

    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let lane = |lane: usize| {
            let (steps, baseline) = (&steps, Arc::clone(&baseline));
            scope.spawn(move || -> Result<()> {
                let net = Net::new(&format!("crash-{}-{lane}", scenario.name))?;
                for step in (first + lane..=steps.len()).step_by(LANES) {
                    let planned = steps.get(step - 1).map_or("", String::as_str);
                    cut_at(scenario, &net, &baseline, step).with_context(|| format!("killed at step {step}, about {planned}"))?;
                }
                net.passed();
                Ok(())
            })
        };
        let lanes: Vec<_> = (0..LANES).map(lane).collect();
        lanes.into_iter().map(|l| l.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a lane panicked")))).collect()
    });
    results.into_iter().collect::<Result<()>>()?;
    net.passed();
    Ok(())
}

fn cut_at(scenario: &Scenario, net: &Net, baseline: &Baseline, step: usize) -> Result<()> {
    baseline.put_back(net)?;
    let (mut daemon, watched) = net.start_watched(Some(step))?;
    let acknowledged = match net.up(&mut daemon)? {
        Some(api) => (scenario.act)(&api)?,
        None => false,
    };
    let deadline = Instant::now() + COMES_WITHIN;
    while daemon.runs() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    // Some rounds have fewer steps than the one that was counted.
    daemon.kill();
    let made = watched.finish()?;
    let last = made.last().map_or("none", String::as_str);
    readable(net).with_context(|| format!("killed before: {last}"))?;
    check(scenario, net, acknowledged).with_context(|| format!("acknowledged: {acknowledged}, killed before: {last}"))
}

/// What the next start has.
fn check(scenario: &Scenario, net: &Net, acknowledged: bool) -> Result<()> {
    let mut daemon = net.start()?;
    let api = net.up(&mut daemon)?.with_context(|| format!("the next start failed: {}", daemon.log()))?;
    invariants(net, &api)?;
    let happened = (scenario.happened)(&api)?;
    ensure!(happened || !acknowledged, "an acknowledged change is gone");
    let faults = api.get("/v1/status")?.get("faults").cloned().unwrap_or_default();
    ensure!(!faults.to_string().contains("ledger"), "{faults}");
    daemon.kill();
    Ok(())
}

fn quiet(count: impl Fn() -> usize) {
    let (mut seen, mut since) = (count(), Instant::now());
    let _ = wait_for("quiet", || {
        if count() != seen {
            (seen, since) = (count(), Instant::now());
        }
        since.elapsed() >= QUIET
    });
}
