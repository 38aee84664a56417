//! Workers: the straight path, the key that stays, several at once, and an appliance that dies under them.

use crate::shared::{self, hostname};
use anyhow::{Context, Result, ensure};
use kurrent_handshake::{VARIABLE_KEY, VARIABLE_SERVER, VARIABLE_SESSION_MASK};
use kurrent_harness::worker::{self, LOGIN_WITHIN, SHELL_WITHIN};
use serde_json::Value;
use std::time::Duration;

/// The checksum loop goes round this often before and after the appliance dies.
const ROUNDS: u64 = 3;
/// One round under emulation, with slack.
const ROUNDS_WITHIN: Duration = Duration::from_secs(180);
/// Restart, reconnect back-off (10 s by default) and the rounds themselves.
const RESUMES_WITHIN: Duration = Duration::from_secs(240);

#[test]
fn an_unknown_machine_is_admitted_bound_and_goes_on_to_login_by_itself() -> Result<()> {
    shared::with(|shared| {
        let (lab, served) = shared.worker(1)?;
        let root = worker::check_root_device(&mut served.machine)?;
        ensure!(root.starts_with("/dev/nvme0n1p"), "{root}");
        let name = served.machine.console.shell("hostname", SHELL_WITHIN)?;
        ensure!(name.trim() == hostname(1), "hostname is {name:?}");
        let device = lab.appliance()?.api.get(&format!("/v1/devices/{}", worker::mac(served.machine.spec())))?;
        ensure!(text(&device, "state")? == "bound", "{device}");
        ensure!(text(&device, "bound_worker_id")? == hostname(1), "{device}");
        Ok(())
    })
}

#[test]
fn nothing_secret_is_on_the_command_line_or_the_console() -> Result<()> {
    shared::with(|shared| {
        let (_, served) = shared.worker(1)?;
        let command_line = served.machine.console.shell("cat /proc/cmdline", SHELL_WITHIN)?;
        ensure!(command_line.contains("kurrent.boot="), "{command_line}");
        for text in [command_line, served.machine.console.text()] {
            ensure!(!text.contains("DHHC-1"), "an NVMe secret is readable: {text}");
        }
        // What opens the session must be gone before the worker's own system runs, and what identifies the machine never shows.
        // The session itself is volatile: it stays, masked, until the machine is reset.
        let listed = served
            .machine
            .console
            .shell("mount -t efivarfs e /sys/firmware/efi/efivars 2>/dev/null; ls /sys/firmware/efi/efivars", SHELL_WITHIN)?;
        let names: Vec<&str> = listed.split_whitespace().collect();
        ensure!(names.iter().any(|n| n.starts_with("BootCurrent-")), "the firmware's variables are not listed at all: {listed}");
        for hidden in [VARIABLE_SESSION_MASK, VARIABLE_KEY, VARIABLE_SERVER] {
            ensure!(!names.iter().any(|n| n.starts_with(hidden)), "the system sees {hidden}: {listed}");
        }
        let modes = served
            .machine
            .console
            .shell("stat -c %a /sys/class/nvme/nvme0/dhchap_secret /sys/class/nvme/nvme0/dhchap_ctrl_secret", SHELL_WITHIN)?;
        ensure!(modes.split_whitespace().eq(["400", "400"]), "the disk's secrets are not root's alone: {modes}");
        Ok(())
    })
}

#[test]
fn a_second_boot_keeps_the_device_key() -> Result<()> {
    shared::with(|shared| {
        let mut served = shared.take(1)?;
        let lab = &shared.lab;
        let path = format!("/v1/devices/{}", worker::mac(served.machine.spec()));
        let before = lab.appliance()?.api.get(&path)?;
        served.machine = lab.power_on(served.machine.cut_power())?;
        served.login = worker::wait_for_login(&mut served.machine, hostname(1), LOGIN_WITHIN)?;
        worker::log_in(&mut served.machine)?;
        let after = lab.appliance()?.api.get(&path)?;
        ensure!(text(&before, "public_key")? == text(&after, "public_key")?, "before {before}, after {after}");
        shared.put(1, served);
        Ok(())
    })
}

#[test]
fn two_workers_boot_at_once_and_each_has_its_own_disk() -> Result<()> {
    shared::with(|shared| {
        for index in [1, 2] {
            let (_, served) = shared.worker(index)?;
            served.machine.console.shell(&format!("echo {} >/root/whose && sync", hostname(index)), SHELL_WITHIN)?;
        }
        for index in [1, 2] {
            shared.worker(index)?.1.machine.reset()?;
        }
        for index in [1, 2] {
            let (_, served) = shared.worker(index)?;
            worker::wait_for_login(&mut served.machine, hostname(index), LOGIN_WITHIN)?;
            worker::log_in(&mut served.machine)?;
        }
        for index in [1, 2] {
            let (_, served) = shared.worker(index)?;
            let whose = served.machine.console.shell("cat /root/whose", SHELL_WITHIN)?;
            ensure!(whose.trim() == hostname(index), "{} reads {whose:?}", hostname(index));
        }
        Ok(())
    })
}

#[test]
fn a_running_worker_goes_on_when_the_appliance_is_killed_and_restarted() -> Result<()> {
    shared::with(|shared| {
        let (_, served) = shared.worker(1)?;
        let console = &mut served.machine.console;
        console.shell(
            "dd if=/dev/urandom of=/root/data bs=1M count=16 2>/dev/null && sha256sum /root/data >/root/sum && sync",
            ROUNDS_WITHIN,
        )?;
        // Each round reads the disk again, not the cache, and says its number or what went wrong.
        let round = "echo 3 >/proc/sys/vm/drop_caches; sha256sum -c --status /root/sum && echo round-''$n || echo checksum-''error";
        console.shell(&format!("(n=0; while :; do n=$((n+1)); {round}; sleep 0.2; done) & echo $! >/run/loop"), SHELL_WITHIN)?;
        console.wait_for(&format!("round-{ROUNDS}\n"), ROUNDS_WITHIN)?;

        let appliance = shared.lab.take_appliance()?;
        let appliance = appliance.cut_power_and_restart(&shared.lab.run)?;
        shared.lab.put_appliance(appliance);

        let (_, served) = shared.worker(1)?;
        let console = &mut served.machine.console;
        console.skip_to_end();
        for _ in 0..ROUNDS {
            console.wait_for("round-", RESUMES_WITHIN)?;
        }
        console.shell("kill $(cat /run/loop); wait 2>/dev/null; true", SHELL_WITHIN)?;
        ensure!(!console.text().contains("checksum-error"), "the worker read wrong data or none");
        // What the file system was told. A read-ahead under way at the cut may fail on the path (`nvme0c0n1`): the kernel never
        // retries those (REQ_FAILFAST), and reads again when somebody wants the data.
        let seen = console.shell("dmesg | grep -cE 'EXT4-fs (error|warning)|Buffer I/O error|Aborting journal' || true", SHELL_WITHIN)?;
        ensure!(seen.trim() == "0", "the worker's file system saw {} errors", seen.trim());
        Ok(())
    })
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value.get(key).and_then(Value::as_str).with_context(|| format!("no {key} in {value}"))
}
