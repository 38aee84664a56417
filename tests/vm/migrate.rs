//! A Worker goes to another machine with its disk, and comes back when that one never proves itself.

use crate::shared::{self, hostname};
use anyhow::{Result, ensure};
use kurrent_core::id::MacAddr;
use kurrent_harness::lab::Lab;
use kurrent_harness::tools::run;
use kurrent_harness::worker::{self, LOGIN_WITHIN, SHELL_WITHIN};
use serde_json::json;
use std::time::Instant;

#[test]
fn a_worker_moves_to_a_machine_that_boots_and_comes_back_from_one_that_never_does() -> Result<()> {
    shared::with(|shared| {
        let mut former = shared.take(1)?;
        let mut next = shared.spare()?;
        let lab = &shared.lab;
        let began = Instant::now();
        former.machine.console.shell("echo carried >/root/carried && sync", SHELL_WITHIN)?;
        let off = former.machine.cut_power();

        // Cold: it waits until the connections of the machine that is off are gone.
        let (ended, said) = migrate(lab, worker::mac(next.spec()), &["--wait", "10m"])?;
        ensure!(ended, "{said}");
        worker::wait_for_login(&mut next, hostname(1), LOGIN_WITHIN)?;
        worker::log_in(&mut next)?;
        let carried = next.console.shell("cat /root/carried", SHELL_WITHIN)?;
        ensure!(carried.trim() == "carried", "the disk holds {carried:?}");
        is_bound(lab, worker::mac(next.spec()))?;
        println!("migrate: there after {} s", began.elapsed().as_secs());

        // Cut off at once, for a machine that stays off.
        let (ended, said) = migrate(lab, worker::mac(&off), &["--wait", "0", "--attest", "1m"])?;
        ensure!(!ended && said.contains("rolled_back"), "{said}");
        is_bound(lab, worker::mac(next.spec()))?;
        worker::check_reads_no_disk(&mut next)?;
        next.reset()?;
        worker::wait_for_login(&mut next, hostname(1), LOGIN_WITHIN)?;
        println!("migrate: and back after {} s", began.elapsed().as_secs());
        Ok(())
    })
}

/// Orders it and follows it to its end: whether that was good, and what the program said.
fn migrate(lab: &Lab, to: MacAddr, more: &[&str]) -> Result<(bool, String)> {
    let mut order = lab.appliance()?.kurrent_command()?;
    order.args(["worker", "migrate", hostname(1), "--to", &to.to_string(), "--yes"]).args(more);
    Ok(match run(&mut order) {
        Ok(said) => (true, said),
        Err(error) => (false, format!("{error:#}")),
    })
}

fn is_bound(lab: &Lab, mac: MacAddr) -> Result<()> {
    let device = lab.appliance()?.api.get(&format!("/v1/devices/{mac}"))?;
    ensure!(device.get("bound_worker_id") == Some(&json!(hostname(1))), "{device}");
    let worker = lab.appliance()?.api.get(&format!("/v1/workers/{}", hostname(1)))?;
    ensure!(worker.get("migration").is_none_or(serde_json::Value::is_null), "the note is still there: {worker}");
    Ok(())
}
