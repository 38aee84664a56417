//! One lab for all tests that leave the appliance as they found it: booted once, its workers kept running.
//!
//! Machine numbers, so that tests do not meet: 1 and 2 are kept (`alpha`, `bravo`); 3 is revoked; 4 loses its key; 5 is registered
//! and has no Worker of its own; 6 is never registered.

use anyhow::{Context, Result, anyhow};
use kurrent_harness::lab::{Lab, Served};
use kurrent_harness::machine::Machine;
use kurrent_harness::worker::{self, REPORTS_WITHIN};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The shared lab and the workers that run in it.
pub struct Shared {
    /// The lab.
    pub lab: Lab,
    workers: BTreeMap<u8, Served>,
}

static SHARED: Mutex<Option<Result<Shared, String>>> = Mutex::new(None);

/// Runs a test in the shared lab. The window is open and the master imported.
pub fn with(test: impl FnOnce(&mut Shared) -> Result<()>) -> Result<()> {
    let mut slot = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    // A lab that does not come up fails every test at once, instead of each after its own wait.
    let made = slot.get_or_insert_with(|| make().map_err(|error| format!("{error:#}")));
    let shared = made.as_mut().map_err(|error| anyhow!("the shared lab did not come up: {error}"))?;
    let outcome = test(shared);
    if outcome.is_err() {
        shared.lab.run.failed();
        // Nobody knows in which state it has left its machines: the next test boots its own.
        shared.workers.clear();
        match shared.lab.appliance() {
            Ok(appliance) => appliance.record(&shared.lab.run),
            Err(_) => shared.lab.start_appliance().unwrap_or_else(|error| println!("the appliance does not start again: {error:#}")),
        }
    }
    outcome
}

fn make() -> Result<Shared> {
    let lab = Lab::bridged("vm")?;
    lab.import_master()?;
    lab.operator()?.open_window()?;
    Ok(Shared { lab, workers: BTreeMap::new() })
}

/// The machine without a Worker of its own.
const SPARE: u8 = 5;

/// Hostname of a kept worker.
pub fn hostname(index: u8) -> &'static str {
    if index == 1 { "alpha" } else { "bravo" }
}

impl Shared {
    /// Worker `index`, logged in at its console. Booted the straight path on first use; when a test has left it without its machine,
    /// that one has it again and is switched on.
    pub fn worker(&mut self, index: u8) -> Result<(&Lab, &mut Served)> {
        if !self.workers.contains_key(&index) {
            let spec = self.lab.worker_spec(index)?;
            let worker = self.lab.appliance()?.api.request("GET", &format!("/v1/workers/{}", hostname(index)), None)?;
            let mut served = if worker.status == 200 {
                // A test may have failed before it had a disk, or moved it to another machine.
                if self.lab.appliance()?.api.get(&format!("/v1/workers/{}/disks", hostname(index)))?.pointer("/disks/0").is_none() {
                    self.lab.operator()?.clone_disk(hostname(index))?;
                }
                self.lab.operator()?.rebind(worker::mac_of(index), hostname(index))?;
                let mut machine = self.lab.power_on(spec)?;
                let login = worker::wait_for_login(&mut machine, hostname(index), worker::LOGIN_WITHIN)?;
                Served { pooled: machine.started, bound: machine.started, login, machine }
            } else {
                self.lab.operator()?.open_window()?;
                self.lab.serve(index, hostname(index), &mut |_| {})?
            };
            worker::log_in(&mut served.machine)?;
            self.workers.insert(index, served);
        }
        Ok((&self.lab, self.workers.get_mut(&index).context("just put in")?))
    }

    /// Takes a kept worker out, to do something to it that the others must not see.
    pub fn take(&mut self, index: u8) -> Result<Served> {
        self.worker(index)?;
        self.workers.remove(&index).context("just put in")
    }

    /// As [`Self::take`], if it was wanted before.
    pub fn take_if_on(&mut self, index: u8) -> Option<Served> {
        self.workers.remove(&index)
    }

    /// The machine that has no Worker, switched on and waiting at its console to be bound.
    pub fn spare(&self) -> Result<Machine> {
        self.lab.operator()?.open_window()?;
        let mut machine = self.lab.power_on(self.lab.worker_spec(SPARE)?)?;
        machine.console.wait_for("waiting to be bound", REPORTS_WITHIN)?;
        Ok(machine)
    }

    /// Puts it back, logged in.
    pub fn put(&mut self, index: u8, served: Served) {
        self.workers.insert(index, served);
    }
}
