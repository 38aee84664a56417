//! Fencing with two real machines: the one that writes is cut off before the next one reads, and does not come back.

use crate::exported::{Exported, address_of};
use crate::shared::{self, hostname};
use crate::writer::{self, Records};
use anyhow::{Result, ensure};
use kurrent_harness::api::Api;
use kurrent_harness::machine::Machine;
use kurrent_harness::worker::{self, LOGIN_WITHIN, SHELL_WITHIN};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// What a worker's kernel says when the target's kernel refuses its host (`nvmf_log_connect_error`).
const REFUSED: &str = "is not allowed, hostnqn:";

/// A full check of 384 MiB, under emulation, over the network.
const CHECKED_WITHIN: Duration = Duration::from_secs(300);

#[test]
fn a_forced_rebind_cuts_the_writer_before_the_next_machine_has_the_disk_and_what_was_acknowledged_is_there() -> Result<()> {
    shared::with(|shared| {
        let mut former = shared.take(1)?;
        let mut next = shared.spare()?;
        let lab = &shared.lab;
        let (api, operator) = (lab.appliance()?.api.clone(), lab.operator()?);
        let address = address_of(&api, worker::mac(former.machine.spec()))?;
        let before = Exported::now(&api, hostname(1), &address)?;
        ensure!(before.connections >= 2, "an admin queue and an I/O queue are expected: {before:?}");
        let writes = writer::start(&mut former.machine)?;

        let ordered = Instant::now();
        let (bound, looks) = watch(&api, &before.host, &address, || operator.rebind(worker::mac(next.spec()), hostname(1)))?;
        let answered = Instant::now();
        let after = Exported::now(&api, hostname(1), &address)?;
        bound?;
        ensure!(after.host != before.host && after.connections == 0, "the order is done, and the kernel has {after:?}");
        let cut = writer::wait_for_cut(&mut former.machine, writes)?;

        // What it has read by now, its own system included, is what there is: nothing is to come behind it.
        worker::wait_for_login(&mut next, hostname(1), LOGIN_WITHIN)?;
        worker::log_in(&mut next)?;
        let first = Records::read(&mut next)?;
        first.hold(cut.acknowledged.0)?;

        worker::check_reads_no_disk(&mut former.machine)?;
        ensure!(former.machine.console.text().contains(REFUSED), "the kernel's target has let it knock without a refusal");
        writer::stays_cut(&former.machine)?;
        ensure!(Records::read(&mut next)? == first, "something was written behind the next machine's back");
        is_whole(&mut next)?;
        let since = |at: Instant| at.saturating_duration_since(ordered).as_millis();
        println!(
            "fence: order to the last acknowledged write {} ms, to the old controller gone and the order done {} ms ({looks} looks meanwhile), \
             to the former machine's error {} ms, to the next machine's login {} ms; {} records",
            since(cut.acknowledged.1),
            since(answered),
            since(cut.failed),
            since(Instant::now()),
            first.file.len(),
        );

        Ok(())
    })
}

/// Gives an order and looks at the kernel's target all the while: never is another host allowed beside a connection from `address`.
/// What the order came to, and how often was looked.
fn watch<T>(api: &Api, host: &str, address: &str, order: impl FnOnce() -> T) -> Result<(T, u32)> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut looks = 0;
            while !done.load(Ordering::Relaxed) {
                let seen = Exported::now(api, hostname(1), address)?;
                ensure!(seen.host.is_empty() || seen.host == host || seen.connections == 0, "both have the disk: {seen:?}");
                looks += 1;
            }
            Ok(looks)
        });
        let outcome = order();
        done.store(true, Ordering::Relaxed);
        let looks = watching.join().map_err(|_| anyhow::anyhow!("the look at the target panicked"))??;
        Ok((outcome, looks))
    })
}

/// The file system is whole: the journal of the machine that was cut off was replayed by the mount, no error was found since, and a
/// full check of what is on the disk then finds nothing. For that the kernel makes it read-only (SysRq `u`): the machine is of no further use.
fn is_whole(machine: &mut Machine) -> Result<()> {
    let console = &mut machine.console;
    let kernel = console.shell("dmesg | grep EXT4-fs || true", SHELL_WITHIN)?;
    ensure!(kernel.contains("recovery complete"), "the journal of a machine that was cut off was not replayed: {kernel}");
    let errors = console.shell("cat /sys/fs/ext4/nvme0n1p1/errors_count", SHELL_WITHIN)?;
    ensure!(errors.trim() == "0", "the file system counts {} errors: {kernel}", errors.trim());
    // All that the check needs is read before: afterwards nothing may be written, not even when a file was last read.
    console.shell(
        "e2fsck -V 2>/dev/null; sync; echo u >/proc/sysrq-trigger; until grep -q ' / ext4 ro' /proc/mounts; do sleep 1; done",
        SHELL_WITHIN,
    )?;
    let checked = console.shell("e2fsck -fn /dev/nvme0n1p1 2>&1; echo status-$?", CHECKED_WITHIN)?;
    ensure!(checked.contains("status-0"), "{checked}");
    Ok(())
}
