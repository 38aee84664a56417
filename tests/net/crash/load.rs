//! `SIGKILL` at random moments while many clients change everything at once.
//!
//! Each actor has devices and Workers of its own and knows from the acknowledgements what they must look like; its one request
//! without an answer may have happened or not, and is asked for again with its Idempotency-Key. Contenders fight over shared Workers with forced binds: for theirs only the
//! invariants hold.

use super::check::{all, invariants, readable, text};
use crate::net::{Net, wait_for};
use anyhow::{Context, Result, bail, ensure};
use kurrent_harness::api::{Answer, Api};
use kurrent_harness::netns;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Another order of requests: `KURRENT_SEED=N`.
const SEED: u64 = 20_261_130;
const ROUNDS: u64 = 8;
const ACTORS: u8 = 16;
const CONTENDERS: u8 = 3;
const OWN: u8 = 3;
const SHARED: u8 = 2;
/// A round ends somewhere in between, but on a slow disk not before something was done.
const ROUND_MS: std::ops::Range<u64> = 300..2500;
/// So many changes are acknowledged in each round.
const ROUND_CHANGES: usize = 16;

/// Xorshift (Marsaglia 2003): the order of an actor's requests depends on its seed alone.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit.max(1)
    }
}

/// What an actor's records must look like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    devices: BTreeMap<String, Device>,
    /// By name: versions of the disks.
    workers: BTreeMap<String, Vec<String>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Device {
    state: String,
    worker: String,
    label: String,
}

/// A request, and what it makes of the model.
#[derive(Clone)]
struct Step {
    method: &'static str,
    path: String,
    body: Value,
    after: Model,
}

struct Actor {
    number: u8,
    random: Random,
    /// As acknowledged.
    model: Model,
    /// The request that got no answer.
    in_doubt: Option<Step>,
    /// How many were asked for: names each one's key.
    asked: u64,
    /// Acknowledged labels: each has its line in the audit.
    labelled: usize,
}

fn mac(owner: u8, n: u8) -> String {
    format!("52:54:00:00:{owner:02x}:{n:02x}")
}

fn worker(owner: u8, n: u8) -> String {
    format!("a{owner}-{n}")
}

impl Actor {
    fn new(number: u8, seed: u64) -> Self {
        Self { number, random: Random::new(seed), model: Model::default(), in_doubt: None, asked: 0, labelled: 0 }
    }

    /// Something that must succeed as the records are now.
    fn next(&mut self) -> Option<Step> {
        let (mac, worker) = (mac(self.number, self.die(OWN)), worker(self.number, self.die(OWN)));
        let mut after = self.model.clone();
        let device_path = format!("/v1/devices/{mac}");
        let device = self.model.devices.get(&mac).cloned();
        let state = device.as_ref().map_or("", |d| d.state.as_str());
        let held = self.model.devices.values().any(|d| d.worker == worker);
        let disks = self.model.workers.get(&worker).cloned();
        let set = |after: &mut Model, state: &str, bound: &str| {
            if let Some(d) = after.devices.get_mut(&mac) {
                (d.state, d.worker) = (state.into(), bound.into());
            }
        };
        let (method, path, body) = match (self.random.below(10), state, &disks) {
            (0, "", _) => {
                after.devices.insert(mac.clone(), Device { state: "pooled".into(), ..Device::default() });
                return Some(Step { after, ..register(&mac) });
            }
            (0, "revoked", _) => {
                after.devices.remove(&mac);
                ("DELETE", device_path, json!({}))
            }
            (1, "pooled" | "bound", Some(_)) => {
                for other in after.devices.values_mut().filter(|d| d.worker == worker) {
                    (other.state, other.worker) = ("pooled".into(), String::new());
                }
                set(&mut after, "bound", &worker);
                ("POST", format!("{device_path}/bind"), json!({ "worker_id": worker, "force": true }))
            }
            (2, "pooled", Some(_)) if !held => {
                set(&mut after, "bound", &worker);
                ("POST", format!("{device_path}/bind"), json!({ "worker_id": worker }))
            }
            (3, "bound", _) => {
                set(&mut after, "pooled", "");
                ("POST", format!("{device_path}/unbind"), json!({}))
            }
            (4, "pooled" | "bound", _) if self.random.below(3) == 0 => {
                set(&mut after, "revoked", "");
                ("POST", format!("{device_path}/revoke"), json!({}))
            }
            (5, "pooled" | "bound" | "revoked", _) => {
                let label = self.random.below(1_000_000).to_string();
                if let Some(d) = after.devices.get_mut(&mac) {
                    d.label.clone_from(&label);
                }
                ("PUT", format!("{device_path}/labels"), json!({ "labels": { "n": label } }))
            }
            (6, _, None) => {
                after.workers.insert(worker.clone(), Vec::new());
                ("POST", "/v1/workers".into(), json!({ "worker_id": worker }))
            }
            (7, _, Some(versions)) => {
                let version = self.random.below(4).to_string();
                if versions.contains(&version) {
                    return None;
                }
                after.workers.entry(worker.clone()).or_default().push(version.clone());
                let body = json!({ "os": "data", "os_version": version, "size_bytes": 1 << 20 });
                ("POST", format!("/v1/workers/{worker}/disks"), body)
            }
            (8, _, Some(_)) if self.random.below(3) == 0 => {
                after.workers.remove(&worker);
                for d in after.devices.values_mut().filter(|d| d.worker == worker) {
                    (d.state, d.worker) = ("pooled".into(), String::new());
                }
                ("DELETE", format!("/v1/workers/{worker}?delete_files=true"), json!({}))
            }
            (9, _, _) => return self.batch(),
            _ => return None,
        };
        Some(Step { method, path, body, after })
    }

    /// All pooled devices onto free Workers, in one change.
    fn batch(&self) -> Option<Step> {
        let mut after = self.model.clone();
        let free = self.model.workers.keys().filter(|w| self.model.devices.values().all(|d| d.worker != **w));
        let pooled = self.model.devices.iter().filter(|(_, d)| d.state == "pooled").map(|(mac, _)| mac);
        let pairs: Vec<(&String, &String)> = pooled.zip(free).collect();
        if pairs.len() < 2 {
            return None;
        }
        for (mac, worker) in &pairs {
            if let Some(d) = after.devices.get_mut(*mac) {
                (d.state, d.worker) = ("bound".into(), (*worker).clone());
            }
        }
        let items: Vec<Value> = pairs.iter().map(|(mac, worker)| json!({ "mac": mac, "worker_id": worker })).collect();
        Some(Step { method: "POST", path: "/v1/devices/bind".into(), body: json!({ "items": items }), after })
    }

    fn die(&mut self, sides: u8) -> u8 {
        u8::try_from(self.random.below(u64::from(sides))).unwrap_or(0)
    }

    /// Works until the daemon does not answer any more, or is told to stop.
    fn work(&mut self, api: &Api, stop: &AtomicBool, done: &AtomicUsize) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let Some(step) = self.next() else { continue };
            self.asked += 1;
            let Ok(answer) = self.ask(api, &step) else {
                self.in_doubt = Some(step);
                return Ok(());
            };
            if !(200..300).contains(&answer.status) {
                bail!("actor {}: {} {}: {} {}", self.number, step.method, step.path, answer.status, answer.text());
            }
            self.labelled += usize::from(step.path.ends_with("/labels"));
            self.model = step.after;
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn ask(&self, api: &Api, step: &Step) -> Result<Answer> {
        let key = if step.method == "POST" { format!("Idempotency-Key: {}-{}\r\n", self.number, self.asked) } else { String::new() };
        let head = format!("Authorization: Bearer {}\r\nContent-Type: application/json\r\n{key}", api.token);
        api.exchange(step.method, &step.path, &head, step.body.to_string().as_bytes())
    }

    /// Asks for what got no answer once more: it is done now, was done before, or nobody knows. Never twice, never a refusal.
    fn ask_again(&mut self, api: &Api) -> Result<()> {
        let Some(step) = self.in_doubt.take().filter(|s| s.method == "POST") else { return Ok(()) };
        let answer = self.ask(api, &step)?;
        match answer.status {
            200..300 => self.model = step.after,
            409 if text(&answer.json()?, "code") == "outcome_unknown" => {}
            _ => bail!("actor {}: {} {} again: {} {}", self.number, step.method, step.path, answer.status, answer.text()),
        }
        Ok(())
    }

    /// Compares with what the daemon has now, and goes on from there.
    fn compare(&mut self, devices: &[Value], workers: &[Value]) -> Result<()> {
        let own_device = |d: &&Value| text(d, "mac").starts_with(&format!("52:54:00:00:{:02x}:", self.number));
        let own_worker = |w: &&Value| text(w, "worker_id").starts_with(&format!("a{}-", self.number));
        let device = |d: &Value| Device {
            state: text(d, "state").into(),
            worker: text(d, "bound_worker_id").into(),
            label: d.get("labels").map_or("", |l| text(l, "n")).into(),
        };
        let versions = |w: &Value| -> Vec<String> {
            let disks = w.get("disks").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            disks.iter().map(|d| text(d, "os_version").to_owned()).collect()
        };
        let found = Model {
            devices: devices.iter().filter(own_device).map(|d| (text(d, "mac").to_owned(), device(d))).collect(),
            workers: workers.iter().filter(own_worker).map(|w| (text(w, "worker_id").to_owned(), versions(w))).collect(),
        };
        let in_doubt = self.in_doubt.as_ref().map(|step| &step.after);
        ensure!(
            found == self.model || Some(&found) == in_doubt,
            "actor {}: acknowledged was {:#?}\nin doubt {in_doubt:#?}\nfound {found:#?}",
            self.number,
            self.model
        );
        self.model = found;
        Ok(())
    }
}

fn register(mac: &str) -> Step {
    Step { method: "POST", path: "/v1/devices".into(), body: json!({ "mac": mac, "keyless_allowed": true }), after: Model::default() }
}

/// Forces shared devices onto shared Workers, whoever has them.
fn contend(api: &Api, mut random: Random, stop: &AtomicBool) {
    let mut die = || u8::try_from(random.below(u64::from(SHARED))).unwrap_or(0);
    while !stop.load(Ordering::Relaxed) {
        let body = json!({ "worker_id": worker(0xff, die()), "force": true });
        if api.request("POST", &format!("/v1/devices/{}/bind", mac(0xff, die())), Some(&body)).is_err() {
            return;
        }
    }
}

#[test]
fn every_acknowledged_change_survives_kill_9_under_load() -> Result<()> {
    let net = Net::new("crash-load")?;
    let seed = std::env::var("KURRENT_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(SEED);
    eprintln!("seed {seed}");
    let mut actors: Vec<Actor> = (0..ACTORS).map(|n| Actor::new(n, seed + u64::from(n))).collect();
    let mut random = Random::new(seed ^ 0x5eed);
    let done = Arc::new(AtomicUsize::new(0));
    for round in 0..ROUNDS {
        let mut daemon = net.start()?;
        let api = net.up(&mut daemon)?.with_context(|| format!("round {round}: the start failed: {}", daemon.log()))?;
        verify(&net, &api, &mut actors).with_context(|| format!("after round {round}, seed {seed}"))?;
        if round == 0 {
            for n in 0..SHARED {
                crate::net::register(&api, &mac(0xff, n))?;
                api.ask("POST", "/v1/workers", Some(&json!({ "worker_id": worker(0xff, n) })))?;
            }
        }
        actors = run_round(&net, &api, actors, &mut random, &done, || daemon.kill())?;
        readable(&net).with_context(|| format!("after round {round}, seed {seed}"))?;
    }
    let mut daemon = net.start()?;
    let api = net.up(&mut daemon)?.with_context(|| format!("the last start failed: {}", daemon.log()))?;
    verify(&net, &api, &mut actors).with_context(|| format!("at the end, seed {seed}"))?;
    let (labelled, audited) = (actors.iter().map(|a| a.labelled).sum::<usize>(), audited(&api, "label")?);
    ensure!(audited >= labelled, "{labelled} labels were acknowledged, the audit has {audited}");
    let done = done.load(Ordering::Relaxed);
    eprintln!("{done} changes were acknowledged, {ROUNDS} times killed");
    ensure!(done > 100, "too little was done to say anything");
    net.passed();
    Ok(())
}

/// How often the audit has this verb with success.
fn audited(api: &Api, verb: &str) -> Result<usize> {
    let (mut count, mut cursor) = (0, String::new());
    loop {
        let page = api.get(&format!("/v1/operations?verb={verb}&result=ok&limit=1000{cursor}"))?;
        count += page.get("operations").and_then(Value::as_array).map_or(0, Vec::len);
        let Some(next) = page.get("next").and_then(Value::as_str) else { return Ok(count) };
        cursor = format!("&cursor={next}");
    }
}

fn verify(net: &Net, api: &Api, actors: &mut [Actor]) -> Result<()> {
    // A file without a record may be left by what nobody acknowledged; a record without a file may not.
    invariants(net, api)?;
    let compare = |actors: &mut [Actor]| -> Result<()> {
        let (devices, workers) = (all(api, "devices")?, all(api, "workers")?);
        actors.iter_mut().try_for_each(|actor| actor.compare(&devices, &workers))
    };
    compare(actors)?;
    actors.iter_mut().try_for_each(|actor| actor.ask_again(api))?;
    compare(actors).context("after what got no answer was asked for again")
}

fn run_round(
    net: &Net,
    api: &Api,
    actors: Vec<Actor>,
    random: &mut Random,
    done: &Arc<AtomicUsize>,
    kill: impl FnOnce(),
) -> Result<Vec<Actor>> {
    let stop = Arc::new(AtomicBool::new(false));
    let enough = done.load(Ordering::Relaxed) + ROUND_CHANGES;
    // Each client lives in the namespace for the whole round.
    let inside = Api { netns: None, ..api.clone() };
    let name = net.netns().to_owned();
    let workers: Vec<_> = actors
        .into_iter()
        .map(|mut actor| {
            let (api, stop, done, name) = (inside.clone(), Arc::clone(&stop), Arc::clone(done), name.clone());
            std::thread::spawn(move || netns::enter(&name, move || actor.work(&api, &stop, &done).map(|()| actor))?)
        })
        .collect();
    let contenders: Vec<_> = (0..CONTENDERS)
        .map(|n| {
            let (api, stop, name, random) =
                (inside.clone(), Arc::clone(&stop), name.clone(), Random::new(random.below(u64::MAX) + u64::from(n)));
            std::thread::spawn(move || netns::enter(&name, move || contend(&api, random, &stop)))
        })
        .collect();
    let until = Instant::now() + Duration::from_millis(ROUND_MS.start + random.below(ROUND_MS.end - ROUND_MS.start));
    std::thread::sleep(until.saturating_duration_since(Instant::now()));
    let worked = wait_for("enough changes in a round", || done.load(Ordering::Relaxed) >= enough);
    kill();
    stop.store(true, Ordering::Relaxed);
    for contender in contenders {
        contender.join().map_err(|_| anyhow::anyhow!("a contender panicked"))??;
    }
    let actors = workers.into_iter().map(|w| w.join().map_err(|_| anyhow::anyhow!("an actor panicked"))?).collect::<Result<Vec<_>>>()?;
    // After what an actor has to say, which may be why.
    worked.map(|()| actors)
}
