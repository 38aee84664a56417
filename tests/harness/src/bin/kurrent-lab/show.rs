//! `kurrent-lab run`: the tour a newcomer gets.

use anyhow::{Context, Result, ensure};
use kurrent_core::id::MacAddr;
use kurrent_harness::appliance::{Network, program};
use kurrent_harness::lab::{Lab, Served};
use kurrent_harness::process::Lifetime;
use kurrent_harness::wire::Wire;
use kurrent_harness::{frame, kept, master, timeline, worker};
use std::time::{Duration, Instant};

const HOSTNAME: &str = "atlas";
/// Reset to the firmware's DISCOVER.
const DISCOVERS_WITHIN: Duration = Duration::from_secs(60);
/// The appliance answers a DISCOVER within milliseconds; this long without an answer is silence.
const SILENCE: Duration = Duration::from_secs(5);
/// A machine the appliance has never seen: it is answered, so silence towards another is no dead server.
const STRANGER: MacAddr = MacAddr([0x52, 0x54, 0x00, 0x5a, 0x00, 0x01]);

/// Prints progress with the seconds since the start.
pub struct Progress(Instant);

impl Progress {
    /// Starts the clock.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// One line.
    pub fn say(&self, line: &str) {
        println!("{:6.1} s  {line}", self.0.elapsed().as_secs_f64());
    }
}

/// Runs the tour.
pub fn run() -> Result<()> {
    let keep = std::env::var_os("LAB_KEEP").is_some_and(|value| !value.is_empty() && value != "0");
    let progress = Progress::start();
    progress.say("Kurrent lab: two QEMU machines without hardware acceleration; expect a few minutes");
    let master = master::ensure_built(&mut |line| progress.say(line))?;
    progress.say(&format!("Debian 12 master: {}", master.display()));
    let lab = Lab::unprivileged("lab", if keep { Lifetime::MayStay } else { Lifetime::Ours })?;
    let outcome = tour(&lab, &progress, keep);
    match outcome {
        Ok(Some(served)) if keep => leave(lab, served),
        Ok(_) => {
            progress.say("done");
            lab.run.passed();
            Ok(())
        }
        Err(error) => {
            if let Ok(appliance) = lab.appliance() {
                appliance.record(&lab.run);
            }
            Err(error)
        }
    }
}

fn tour(lab: &Lab, progress: &Progress, keep: bool) -> Result<Option<Served>> {
    let appliance = lab.appliance()?;
    progress.say(&format!(
        "appliance serves {:.1} s after its power-on; API {}",
        appliance.serving_after.as_secs_f64(),
        appliance.api.url()
    ));
    lab.import_master()?;
    progress.say(&format!("master {} imported", master::MASTER_NAME));
    lab.operator()?.open_window()?;
    progress.say("registration window open");
    let mut served = lab.serve(0, HOSTNAME, &mut |line| progress.say(line))?;
    let table = timeline::of_boot(appliance, &served.machine, served.login)?;
    worker::log_in(&mut served.machine)?;
    let root = worker::check_root_device(&mut served.machine)?;
    let name = served.machine.console.shell("hostname", worker::SHELL_WITHIN)?;
    ensure!(name.trim() == HOSTNAME, "the worker calls itself {:?}", name.trim());
    progress.say(&format!("logged in on the serial console: hostname {HOSTNAME}, root file system on {root}"));
    println!("\n{}", table.table(Some(served.bound - served.pooled)));
    if keep {
        return Ok(Some(served));
    }
    revoke(lab, &mut served, progress)?;
    Ok(None)
}

/// The device is revoked while it runs: its session is cut, and its next DISCOVER gets no answer.
fn revoke(lab: &Lab, served: &mut Served, progress: &Progress) -> Result<()> {
    let Network::Multicast(group) = lab.network else { anyhow::bail!("the tour runs on the multicast network") };
    let mut wire = Wire::on_multicast(group)?;
    let mac = worker::mac(served.machine.spec());
    worker::check_reads_disk(&mut served.machine)?;
    lab.operator()?.revoke(mac)?;
    progress.say(&format!("{mac} revoked while it runs"));
    worker::check_reads_no_disk(&mut served.machine)?;
    progress.say("its live session is cut: a read of its disk no longer succeeds");

    served.machine.reset()?;
    let is_discover = |frame: &[u8]| frame::parse(frame).is_some_and(|dhcp| dhcp.client == mac && dhcp.message_type == 1);
    let seen = wire.receive(DISCOVERS_WITHIN, is_discover)?;
    ensure!(seen.is_some(), "the worker did not ask again after its reset");
    progress.say("reset; its firmware sends DISCOVER");
    let answered = wire.receive(SILENCE, |frame| frame::parse(frame).is_some_and(|dhcp| dhcp.client == mac && dhcp.op == 2))?;
    ensure!(answered.is_none(), "the revoked device was answered");
    wire.send(&frame::discover(STRANGER, 0x5a5a_0001))?;
    let offer = wire.receive(SILENCE, |frame| frame::parse(frame).is_some_and(|dhcp| dhcp.client == STRANGER && dhcp.op == 2))?;
    ensure!(offer.is_some(), "nobody is answered any more: that silence proves nothing");
    progress.say(&format!("silence: no answer for {} s, while another machine's DISCOVER is answered at once", SILENCE.as_secs()));
    Ok(())
}

/// `LAB_KEEP=1`: both go on; how to reach and how to end them.
fn leave(mut lab: Lab, served: Served) -> Result<()> {
    let appliance = lab.take_appliance()?;
    let groups: Vec<u32> = [appliance.machine.pid(), served.machine.pid()].into_iter().flatten().collect();
    kept::note(lab.run.scratch(), &groups)?;
    let this = std::env::current_exe().context("where am I")?;
    let (url, token, ca) = (appliance.api.url(), appliance.api.token.clone(), appliance.api.ca.clone().unwrap_or_default());
    println!("Both machines are left running.");
    println!("  console of the appliance   {} console appliance", this.display());
    println!("  console of the worker      {} console worker0     (root, no password)", this.display());
    let kurrent = format!("KURRENT_URL={url} KURRENT_CA_FINGERPRINT={ca} KURRENT_TOKEN={token} {}", program("kurrent")?.display());
    println!("  operator's program         {kurrent} device list");
    println!(
        "  API                        {kurrent} ca > lab-ca.crt; curl --cacert lab-ca.crt -H 'Authorization: Bearer {token}' {url}/v1/status"
    );
    println!("  consoles and captures      {}", lab.run.evidence().display());
    println!("  end them                   {} stop", this.display());
    appliance.machine.leave_running();
    served.machine.leave_running();
    lab.run.leave();
    Ok(())
}
