//! A copy of a machine: both firmware stores, the same MAC address, so the same key. Nobody can tell which is which; they never have
//! the disk together.

use crate::exported::{Exported, address_of};
use crate::shared::{self, hostname};
use crate::writer::{self, Records};
use anyhow::{Context, Result, bail, ensure};
use kurrent_harness::machine::{Firmware, Spec};
use kurrent_harness::worker::{self, LOGIN_WITHIN, REPORTS_WITHIN};
use serde_json::json;
use std::fs;

/// Of the disk's connections (contract 0001).
const TARGET_PORT: u16 = 4420;
/// The rule by which the network gives the disk's connections to the first machine.
const DISK_TO_THE_FIRST: u32 = 1;

#[test]
fn the_boot_of_a_copied_machine_cuts_the_one_that_writes_and_the_two_never_have_the_disk_together() -> Result<()> {
    shared::with(|shared| {
        let mut first = shared.take(1)?;
        let lab = &shared.lab;
        let (appliance, bridge) = (lab.appliance()?, lab.network.bridge()?);
        let address = address_of(&appliance.api, worker::mac(first.machine.spec()))?;
        let before = Exported::now(&appliance.api, hostname(1), &address)?;
        ensure!(before.connections >= 2, "an admin queue and an I/O queue are expected: {before:?}");
        let writes = writer::start(&mut first.machine)?;

        // Two machines with one address disturb each other on a network; here it tells them apart, so that neither is cut off by
        // anything but the appliance: the disk's connections are the first machine's, all else is the copy's.
        bridge.forget(first.machine.spec().tap()?)?;
        let uplink = appliance.machine.spec().tap()?;
        bridge.divert(uplink, DISK_TO_THE_FIRST, TARGET_PORT, first.machine.spec().tap()?)?;
        let mut grant = || -> Result<_> {
            let mut copy = lab.power_on(copied(first.machine.spec(), lab.worker_spec(1)?)?)?;
            copy.console.wait_for(&format!("Kurrent: booting as {}", hostname(1)), REPORTS_WITHIN)?;
            let granted = Exported::now(&appliance.api, hostname(1), &address)?;
            ensure!(granted.host != before.host && granted.connections == 0, "the copy has its grant, and the kernel has {granted:?}");
            Ok((copy, writer::wait_for_cut(&mut first.machine, writes)?))
        };
        let granted = grant();

        first.machine.qmp.execute_with("set_link", &json!({ "name": "net0", "up": false }))?;
        // Also when that failed: the tests after this one have the same network.
        bridge.pass(uplink, DISK_TO_THE_FIRST)?;
        let (mut copy, cut) = granted?;
        worker::wait_for_login(&mut copy, hostname(1), LOGIN_WITHIN)?;
        worker::log_in(&mut copy)?;
        let records = Records::read(&mut copy)?;
        records.hold(cut.acknowledged.0)?;
        worker::check_reads_no_disk(&mut first.machine)?;
        writer::stays_cut(&first.machine)?;
        ensure!(Records::read(&mut copy)? == records, "something was written behind the copy's back");
        Ok(())
    })
}

/// `original`, with a copy of its firmware store, in another place of the network.
fn copied(original: &Spec, place: Spec) -> Result<Spec> {
    let Firmware::Uefi(store) = &original.firmware else { bail!("workers of the lab have UEFI") };
    let copy = store.with_extension("copy");
    fs::copy(store, &copy).context("copy the firmware store")?;
    Ok(Spec { name: format!("{}-copy", original.name), firmware: Firmware::Uefi(copy), ..place })
}
