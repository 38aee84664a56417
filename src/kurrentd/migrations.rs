//! Workers on their way to another device: the shell around [`kurrent_core::migrate`].
//!
//! A job watches and tells; what holds is the note in the Worker's record. So a restart loses nothing: [`serve`] makes a job for every
//! note that has none. The proof is not seen here: the boot plane takes the note away before it grants the new device its boot.

#[cfg(test)]
mod tests;

use crate::ledger::SubmitError;
use crate::ledger::expect::Expectation;
use crate::shared::{Shared, SharedRef};
use crate::storage::StorageError;
use crate::storage::jobs::{CANCELLED, Kind, Made, Running, cancelled};
use kurrent_core::id::{MacAddr, WorkerId};
use kurrent_core::ledger::{Change, DeviceState, Ledger, Migration};
use kurrent_core::migrate::{self, End, Facts, Next, Plan, Seen, Stage, Standing, Why};
use kurrent_core::placement::NodeStatus;
use kurrent_core::time::{Mono, Wall};
use kurrent_core::timeline::Boot;
use kurrent_sys::clock;
use kurrent_sys::sockets::{self, PROC_NET_TCP};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// How often is looked at what tells nobody when it changes: connections, boots, the target.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often a change that could not be written is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(5);
/// The longest text that goes into a Worker's record, in characters.
const ERROR_CHARS: usize = 1000;

/// Who is on the way where, and the job that watches it.
#[derive(Clone, Default)]
pub struct Migrations {
    on_the_way: Arc<Mutex<BTreeMap<WorkerId, (MacAddr, String)>>>,
    /// The kernel's list of connections; [`PROC_NET_TCP`] but in tests.
    tcp: Arc<OnceLock<PathBuf>>,
}

/// One Worker's and one device's place among them; given back when dropped.
struct Place {
    all: Migrations,
    worker: WorkerId,
}

impl Migrations {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<WorkerId, (MacAddr, String)>> {
        self.on_the_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One migration for each Worker and each device.
    fn claim(&self, worker: &WorkerId, to: MacAddr) -> Result<Place, StorageError> {
        let mut all = self.lock();
        if let Some((other, (mac, job))) = all.iter().find(|(id, (mac, _))| *id == worker || *mac == to) {
            let detail = format!("Worker {other} is on its way to device {mac} already; wait for job {job}, or cancel it");
            return Err(StorageError::new("migration_under_way", 409, detail));
        }
        all.insert(worker.clone(), (to, String::new()));
        Ok(Place { all: self.clone(), worker: worker.clone() })
    }
}

impl Place {
    fn is_watched_by(&self, id: &str) {
        if let Some((_, job)) = self.all.lock().get_mut(&self.worker) {
            id.clone_into(job);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.lock().remove(&self.worker);
    }
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Order {
    /// Who moves.
    pub worker: WorkerId,
    /// Where to.
    pub to: MacAddr,
    /// How long the former device may take to go; 0: it is cut off at once.
    pub wait: Duration,
    /// How long the new one may take to prove itself.
    pub attest: Duration,
}

/// What the migration would be, and who is connected from the former device.
pub async fn plan(shared: &Shared, worker: &WorkerId, to: MacAddr) -> (Plan, Vec<(Ipv4Addr, usize)>) {
    let ledger = shared.ledger.snapshot();
    let disk = ledger.workers.get(worker).and_then(|w| ledger.boot_disk(w)).cloned();
    let node = match &disk {
        Some(disk) => shared.storage.probe(&disk.agent).await,
        None => NodeStatus::unreachable("there is no disk to ask for".into()),
    };
    let seen = shared.target.observation();
    let about = |fault: &&String| disk.as_ref().is_some_and(|d| fault.contains(d.nqn.as_str()));
    let faults = seen.faults.iter().filter(about).cloned().collect();
    let enforcement = shared.config.enforcement;
    let plan = migrate::plan(&ledger, worker, to, &Facts { looked: seen.looked, node, faults, enforcement });
    let connections = match plan.from {
        Some(from) => connections(shared, &ledger, worker, from).await.unwrap_or_default(),
        None => Vec::new(),
    };
    (plan, connections)
}

/// The connections to the data plane from where this device is, or was when its boots were granted: as the kernel has them now, as
/// the reconciler's own list may be some seconds old. `None`: they can not be told.
async fn connections(shared: &Shared, ledger: &Ledger, worker: &WorkerId, device: MacAddr) -> Option<Vec<(Ipv4Addr, usize)>> {
    let epoch = ledger.device(device).map(|d| d.epoch);
    let records = shared.credentials.of_workers(&BTreeSet::from([worker.clone()]));
    let granted = records.into_iter().filter(|r| r.device == device && Some(r.epoch) == epoch).flat_map(|r| r.addresses);
    let addresses: BTreeSet<Ipv4Addr> = granted.chain(shared.address_of(device)).collect();
    let list = shared.migrations.tcp.get().cloned().unwrap_or_else(|| PROC_NET_TCP.into());
    let local = SocketAddrV4::new(shared.config.boot_network.address, shared.config.agent.target_port);
    let held = tokio::task::spawn_blocking(move || sockets::held(&list, local)).await;
    let held = held.map_err(std::io::Error::other).and_then(|held| held);
    let held = held.inspect_err(|error| tracing::warn!(%error, "who is connected to the disks can not be told")).ok()?;
    let mut counted = BTreeMap::new();
    for address in held.iter().map(|peer| *peer.ip()).filter(|address| addresses.contains(address)) {
        *counted.entry(address).or_insert(0) += 1;
    }
    Some(counted.into_iter().collect())
}

/// Begins a migration as a job; its id.
///
/// # Errors
/// The first of what [`plan`] refuses, `migration_under_way`, `too_many_jobs`.
pub async fn begin(shared: &SharedRef, order: Order, actor: &str) -> Result<String, StorageError> {
    let place = shared.migrations.claim(&order.worker, order.to)?;
    let (plan, _) = plan(shared, &order.worker, order.to).await;
    if let Some(refused) = plan.refused.into_iter().next() {
        return Err(SubmitError::from(refused).into());
    }
    let ledger = shared.ledger.snapshot();
    let since = ledger.workers.get(&order.worker).map(|w| Expectation::WorkerSince(order.worker.clone(), w.created_at));
    let wait = (!order.wait.is_zero()).then(|| deadline(order.wait));
    let run = Run {
        shared: shared.clone(),
        worker: order.worker,
        from: plan.from,
        to: order.to,
        actor: actor.to_owned(),
        expected: since.into_iter().collect(),
        attest: order.attest,
        stage: Stage::Leaving(wait),
        note: None,
        generation: ledger.generation,
    };
    run.start(place, &plan.warnings.join("; "))
}

/// Goes on with every migration that nobody watches: those of before a restart, and those that were noted by hand.
///
/// # Errors
/// None; it ends with the ledger's writer.
pub async fn serve(shared: SharedRef) -> anyhow::Result<()> {
    let mut ledgers = shared.ledger.watch();
    loop {
        let ledger = ledgers.borrow_and_update().clone();
        for id in &ledger.migrating {
            resume(&shared, &ledger, id);
        }
        let look_again = async {
            // Without migrations only a change brings one.
            if ledger.migrating.is_empty() { std::future::pending().await } else { tokio::time::sleep(TRY_AGAIN).await }
        };
        tokio::select! {
            changed = ledgers.changed() => if changed.is_err() { return Ok(()) },
            () = look_again => {}
        }
    }
}

fn resume(shared: &SharedRef, ledger: &Ledger, id: &WorkerId) {
    let Some(note) = ledger.workers.get(id).and_then(|w| w.migration.clone()) else { return };
    let Ok(place) = shared.migrations.claim(id, note.to) else { return };
    let now = clock::now();
    let run = Run {
        shared: shared.clone(),
        worker: id.clone(),
        from: note.from,
        to: note.to,
        actor: "system".into(),
        expected: Vec::new(),
        attest: Duration::ZERO,
        stage: Stage::Proving(now.mono.after(migrate::time_left(&note, now.wall))),
        note: Some(note),
        generation: ledger.generation,
    };
    match run.start(place, "") {
        Ok(job) => tracing::info!(worker = %id, job, "a migration goes on"),
        Err(error) => tracing::warn!(worker = %id, %error, "a migration can not go on yet"),
    }
}

/// One migration and what it knows.
struct Run {
    shared: SharedRef,
    worker: WorkerId,
    from: Option<MacAddr>,
    to: MacAddr,
    actor: String,
    expected: Vec<Expectation>,
    /// How long the new device has.
    attest: Duration,
    stage: Stage,
    note: Option<Migration>,
    /// What the target must have followed.
    generation: u64,
}

/// What was looked at; [`Seen`] borrows from it.
struct Look {
    ledger: Arc<Ledger>,
    connections: Option<Vec<(Ipv4Addr, usize)>>,
    boot: Option<Boot>,
    followed: Result<(), String>,
}

impl Run {
    fn start(self, place: Place, warning: &str) -> Result<String, StorageError> {
        let what = match self.from {
            Some(from) => format!("migrating {} from {from} to {}", self.worker, self.to),
            None => format!("migrating {} to {}", self.worker, self.to),
        };
        let job = self.shared.storage.jobs().start(Kind::Migrate, what, Some(&self.worker), 0)?;
        let id = job.id().to_owned();
        place.is_watched_by(&id);
        job.warn(warning);
        tokio::spawn(async move {
            let (shared, worker) = (self.shared.clone(), self.worker.clone());
            let result = self.carry_out(&job).await;
            let error = match &result {
                Ok(()) => Some(String::new()),
                Err(e) if e.code == CANCELLED => None,
                Err(e) => Some(e.detail.clone()),
            };
            if let Some(error) = error {
                tell_worker(&shared, &worker, error).await;
            }
            // Whoever hears of the end may begin the next one.
            drop(place);
            job.finish(result.map(|()| Made::Moved(worker)));
        });
        Ok(id)
    }

    async fn look(&self) -> Look {
        let shared = &self.shared;
        let ledger = shared.ledger.snapshot();
        let connections = match self.from {
            Some(from) => connections(shared, &ledger, &self.worker, from).await,
            None => Some(Vec::new()),
        };
        let followed = shared.target.settled(self.generation, Duration::ZERO).await;
        let since = self.note.as_ref().map(|note| note.since);
        let boot = shared.timelines.of(self.to).map(|boot| of_this_time(boot, since));
        Look { ledger, connections, boot, followed }
    }

    async fn carry_out(mut self, job: &Running) -> Result<(), StorageError> {
        let mut ledgers = self.shared.ledger.watch();
        job.begin()?;
        loop {
            // Before the look, so that no change is missed in between.
            ledgers.borrow_and_update();
            let look = self.look().await;
            let now = clock::now();
            let standing = match &self.note {
                Some(note) => Standing::of(&look.ledger, &self.worker, note),
                None => Standing::Noted,
            };
            let cancelled_now = job.is_cancelling();
            let seen = Seen {
                connections: look.connections.as_deref(),
                standing,
                followed: look.followed.clone(),
                boot: look.boot.as_ref(),
                cancelled: cancelled_now,
            };
            job.doing(migrate::words(self.stage, self.from, self.to, &seen, now.mono));
            match migrate::next(self.stage, &seen, now.mono) {
                Next::Wait => {}
                Next::Rebind => {
                    self.rebind(now.wall).await?;
                    continue;
                }
                Next::Proven(until) => {
                    // A cancel that comes with the proof comes too late: the device boots.
                    if job.commit().is_err() {
                        job.warn(&format!("device {} had proven itself before: it keeps Worker {}", self.to, self.worker));
                        return Ok(());
                    }
                    self.stage = Stage::Booting(until);
                    continue;
                }
                Next::RollBack(why) => {
                    if let Some(end) = self.roll_back(job, why, &look).await {
                        return end;
                    }
                    continue;
                }
                Next::End(end) => return self.end(end, job, &look),
            }
            tokio::select! {
                _ = ledgers.changed() => {}
                () = job.cancelled() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }

    async fn rebind(&mut self, since: Wall) -> Result<(), StorageError> {
        let too_long = |_| StorageError::new("minutes_out_of_range", 422, "the time for the proof ends beyond all calendars".into());
        let note = Migration { from: self.from, to: self.to, since, until: since.checked_add(self.attest).map_err(too_long)? };
        let enforcement = self.shared.config.enforcement;
        let change = Change::Migrate { worker: self.worker.clone(), note: note.clone(), enforcement };
        let (_, ledger) = self.shared.ledger.submit_if(change, &self.actor, std::mem::take(&mut self.expected)).await?;
        self.generation = ledger.generation;
        self.note = Some(note);
        self.stage = Stage::Proving(deadline(self.attest));
        Ok(())
    }

    /// The end, or nothing when it is to be looked at again.
    async fn roll_back(&self, job: &Running, why: Why, look: &Look) -> Option<Result<(), StorageError>> {
        let note = self.note.clone()?;
        let change = Change::RollBackMigration { worker: self.worker.clone(), note };
        match self.shared.ledger.submit(change, &self.actor).await {
            Ok((_, ledger)) => {
                let back = self.whose(&ledger);
                tracing::info!(worker = %self.worker, ?why, "migration: {back}");
                if why == Why::Cancelled {
                    job.warn(&back);
                    return Some(Err(cancelled()));
                }
                let fault = look.boot.as_ref().and_then(|b| b.fault.as_deref());
                let fault = fault.map(|f| format!(" (it was told: {f})")).unwrap_or_default();
                let detail = format!("device {} did not prove itself in time{fault}; {back}", self.to);
                Some(Err(StorageError::new("rolled_back", 409, detail)))
            }
            // It was proven, or somebody decided otherwise, in this very moment.
            Err(SubmitError::Rejected(_)) => None,
            Err(error) => {
                // The note stays: this job, or the next start, goes on with it.
                job.doing(format!("giving {} back: {error}; trying again", self.worker));
                tokio::time::sleep(TRY_AGAIN).await;
                None
            }
        }
    }

    /// Who has the Worker after a rollback, and what to do.
    fn whose(&self, ledger: &Ledger) -> String {
        let worker = &self.worker;
        let Some(from) = self.from else { return format!("Worker {worker} has no device, as before; ask again when the new one is ready") };
        if ledger.bound.get(worker) == Some(&from) {
            return format!("device {from} has Worker {worker} again; start it, or ask again when the new one is ready");
        }
        let why = match ledger.device(from) {
            None => "is not in the ledger any more".to_owned(),
            Some(device) => match (device.state, &device.bound_worker_id) {
                (DeviceState::Revoked, _) => "was revoked".to_owned(),
                (_, Some(other)) => format!("has Worker {other} now"),
                (_, None) => "was taken off meanwhile".to_owned(),
            },
        };
        format!("the former device {from} {why}, so Worker {worker} has no device; bind one to it")
    }

    fn end(&self, end: End, job: &Running, look: &Look) -> Result<(), StorageError> {
        let Self { worker, to, .. } = self;
        match end {
            End::Done => Ok(()),
            End::Slow => {
                job.warn(&format!("device {to} has Worker {worker}, but its system has not started yet; see kurrent explain device {to}"));
                Ok(())
            }
            End::Cancelled => Err(cancelled()),
            End::StillConnected => {
                let from = self.from.map_or_else(String::new, |from| from.to_string());
                let what = format!("device {from} is still connected, so nothing was changed");
                let detail = format!("{what}; switch it off and ask again, or ask with a wait of 0 to cut it off while it runs");
                Err(StorageError::new("still_connected", 409, detail))
            }
            End::Overtaken => {
                let is = match look.ledger.bound.get(worker) {
                    Some(mac) => format!("it is on device {mac} now"),
                    None if look.ledger.workers.contains_key(worker) => "it has no device now; bind one to it".to_owned(),
                    None => "it was deleted".to_owned(),
                };
                let detail = format!("somebody decided otherwise about Worker {worker} meanwhile: {is}; nothing more was done");
                Err(StorageError::new("overtaken", 409, detail))
            }
        }
    }
}

fn deadline(within: Duration) -> Mono {
    clock::now().mono.after(within)
}

/// Without what was seen before the migration: a device may have run something else.
fn of_this_time(mut boot: Boot, since: Option<Wall>) -> Boot {
    boot.marks.retain(|mark| since.is_none_or(|since| mark.at >= since));
    boot
}

/// Keeps what failed in the Worker's record; a success clears it.
async fn tell_worker(shared: &Shared, worker: &WorkerId, error: String) {
    let error: String = error.chars().filter(|c| !c.is_control()).take(ERROR_CHARS).collect();
    if shared.ledger.snapshot().workers.get(worker).is_none_or(|w| w.error == error) {
        return;
    }
    if let Err(refused) = shared.ledger.submit(Change::SetWorkerError { worker: worker.clone(), error }, "system").await {
        tracing::warn!(%worker, error = %refused, "what became of a migration is not in the Worker's record");
    }
}
