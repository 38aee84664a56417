//! A whole lab: appliance, network, workers, and the straight path from an unknown machine to a login prompt.

use crate::api::Api;
use crate::appliance::{self, Appliance, Network, OUR_ADDRESS};
use crate::evidence::Run;
use crate::machine::{Machine, Spec};
use crate::master;
use crate::netns::BootNetwork;
use crate::operator::Operator;
use crate::process::Lifetime;
use crate::wire;
use crate::worker;
use anyhow::{Context, Result};
use std::sync::Arc;
use std::time::Instant;

/// A running lab.
pub struct Lab {
    /// Its evidence.
    pub run: Run,
    /// Its boot network.
    pub network: Network,
    /// Its appliance; `None` only while it is powered off.
    appliance: Option<Appliance>,
    appliance_spec: Spec,
    lifetime: Lifetime,
}

/// A worker at its login prompt.
pub struct Served {
    /// The machine.
    pub machine: Machine,
    /// When it was pooled: from then on it waited for its operator.
    pub pooled: Instant,
    /// When it was bound.
    pub bound: Instant,
    /// When it showed its login prompt.
    pub login: Instant,
}

impl Lab {
    /// A lab without privileges: multicast network, API through a forwarded port.
    pub fn unprivileged(name: &str, lifetime: Lifetime) -> Result<Self> {
        let network = Network::Multicast(wire::free_group()?);
        Self::boot(name, network, lifetime)
    }

    /// A lab on a bridge in a namespace of its own, which tests can enter.
    pub fn bridged(name: &str) -> Result<Self> {
        let network = Network::Bridge(Arc::new(BootNetwork::new(OUR_ADDRESS)?));
        Self::boot(name, network, Lifetime::Ours)
    }

    fn boot(name: &str, network: Network, lifetime: Lifetime) -> Result<Self> {
        let run = Run::new(name)?;
        let appliance = Appliance::boot(&run, &network, &appliance::configuration(&network), lifetime)?;
        let appliance_spec = appliance.machine.spec().clone();
        Ok(Self { run, network, appliance: Some(appliance), appliance_spec, lifetime })
    }

    /// The appliance.
    pub fn appliance(&self) -> Result<&Appliance> {
        self.appliance.as_ref().context("the appliance is off")
    }

    /// The API from now on: a restore ends all sessions, also the lab's.
    pub fn use_api(&mut self, api: Api) -> Result<()> {
        self.appliance.as_mut().context("the appliance is off")?.api = api;
        Ok(())
    }

    /// The operator's program.
    pub fn operator(&self) -> Result<Operator<'_>> {
        self.appliance().map(Operator)
    }

    /// Takes the appliance, to switch it off.
    pub fn take_appliance(&mut self) -> Result<Appliance> {
        self.appliance.take().context("the appliance is off")
    }

    /// Starts the one that was taken and did not come back, from its disk.
    pub fn start_appliance(&mut self) -> Result<()> {
        self.appliance = Some(Appliance::start(&self.run, &self.network, self.appliance_spec.clone())?);
        Ok(())
    }

    /// Gives it back.
    pub fn put_appliance(&mut self, appliance: Appliance) {
        self.appliance = Some(appliance);
    }

    /// What worker machine `index` is made of; its firmware store is kept between starts.
    pub fn worker_spec(&self, index: u8) -> Result<Spec> {
        worker::spec(&self.run, &self.network, index, self.lifetime)
    }

    /// Switches a worker machine on.
    pub fn power_on(&self, spec: Spec) -> Result<Machine> {
        Machine::start(&self.run, spec)
    }

    /// The master is there.
    pub fn import_master(&self) -> Result<()> {
        let image = master::ensure_built(&mut |_| {})?;
        self.operator()?.import_master(master::MASTER_NAME, &image)
    }

    /// The straight path: an unknown machine is admitted, gets a Worker and a disk, is bound while it waits, and goes on to
    /// its login prompt. The window must be open and the master imported. `say` is told each step as it is reached.
    pub fn serve(&self, index: u8, hostname: &str, say: &mut dyn FnMut(&str)) -> Result<Served> {
        let machine = self.power_on(self.worker_spec(index)?)?;
        say(&format!("worker {index} is on: empty firmware store, no disk"));
        self.finish_serving(machine, hostname, say)
    }

    /// The rest of [`Self::serve`] for a machine that is on already.
    pub fn finish_serving(&self, mut machine: Machine, hostname: &str, say: &mut dyn FnMut(&str)) -> Result<Served> {
        let mac = worker::mac(machine.spec());
        let (appliance, operator) = (self.appliance()?, self.operator()?);
        worker::wait_for_state(appliance, mac, "pooled", worker::REPORTS_WITHIN)
            .with_context(|| format!("console of {}:\n{}", machine.spec().name, machine.console.unread()))?;
        let pooled = Instant::now();
        say(&format!("{mac} has reported and is pooled; it waits at its console to be bound"));
        operator.create_worker(hostname)?;
        say(&format!("Worker {hostname} created"));
        operator.clone_disk(hostname)?;
        say("system disk cloned from the master");
        operator.bind(mac, hostname)?;
        let bound = Instant::now();
        say(&format!("{mac} bound to {hostname}; nobody touches the machine from here on"));
        let login = worker::wait_for_login(&mut machine, hostname, worker::LOGIN_WITHIN)?;
        say(&format!("login prompt of {hostname}"));
        Ok(Served { machine, pooled, bound, login })
    }
}
