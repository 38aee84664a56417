//! The image on real firmware: it grows, survives power cuts while it does, and says on its screen what a person has to do.

use anyhow::{Result, ensure};
use kurrent_harness::appliance::{self, Appliance, MEMORY_MIB, Network, OUR_ADDRESS, SERVES_WITHIN, partition, write_configuration};
use kurrent_harness::evidence::Run;
use kurrent_harness::machine::{Attachment, Cpu, Machine, Spec, copy_disk};
use kurrent_harness::netns::BootNetwork;
use kurrent_harness::process::Lifetime;
use kurrent_harness::tools::run;
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Firmware and kernel to the screen; about 8 s on an idle machine.
const SCREEN_WITHIN: Duration = Duration::from_secs(300);
const OFF_WITHIN: Duration = Duration::from_secs(120);
/// After "preparing the disk": in front of the growth, in the middle of it, in front of and after the first mount.
const CUTS: [Duration; 3] = [Duration::from_millis(0), Duration::from_millis(150), Duration::from_millis(900)];
/// What is left free at the disk's end: the second table, and up to 1 MiB for alignment.
const END_OCTETS: u64 = 2 << 20;

fn bridge() -> Result<Network> {
    Ok(Network::Bridge(Arc::new(BootNetwork::new(OUR_ADDRESS)?)))
}

/// The image on an old PC; the lab's appliance is a new one.
fn spec(run: &Run, network: &Network) -> Result<Spec> {
    let spec = Appliance::prepare(run, network, &appliance::configuration(network), Lifetime::Ours)?;
    Ok(Spec { cpu: Cpu::Old, ..spec })
}

#[test]
fn power_cuts_during_the_first_start_lose_nothing_and_the_disk_is_used_whole() -> Result<()> {
    let lab = Run::new("first-start")?;
    let network = bridge()?;
    let mut spec = spec(&lab, &network)?;
    for cut in CUTS {
        let mut machine = Machine::start(&lab, spec)?;
        machine.console.wait_for("preparing the disk", SCREEN_WITHIN)?;
        std::thread::sleep(cut);
        spec = machine.cut_power();
    }
    let served = Appliance::start(&lab, &network, spec)?;
    let spec = served.machine.power_off(OFF_WITHIN)?;

    let disk = spec.disk.unwrap_or_default();
    let verdict = run(Command::new("sgdisk").arg("--verify").arg(&disk))?;
    ensure!(verdict.contains("No problems found"), "{verdict}");
    let (start, length) = partition(&disk, "kurrent-data")?;
    ensure!(start + length + END_OCTETS >= fs::metadata(&disk)?.len(), "the data partition ends at {}", start + length);
    check_data(&lab, &disk, start, length)?;
    lab.passed();
    Ok(())
}

/// The file system is whole, as large as its partition, and was left in order.
fn check_data(lab: &Run, disk: &Path, start: u64, length: u64) -> Result<()> {
    const MIB: u64 = 1 << 20;
    let data = lab.scratch().join("data.img");
    let mut copy = Command::new("dd");
    copy.arg(format!("if={}", disk.display())).arg(format!("of={}", data.display()));
    run(copy.args(["bs=1M", "conv=sparse", &format!("skip={}", start / MIB), &format!("count={}", length / MIB)]))?;
    run(Command::new("btrfs").args(["check", "--readonly"]).arg(&data))?;
    let super_block = run(Command::new("btrfs").args(["inspect-internal", "dump-super"]).arg(&data))?;
    let value = |name: &str| super_block.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    ensure!(value("log_root\t") == Some(0), "the file system was not unmounted");
    ensure!(value("total_bytes") == Some(length), "the file system does not fill its partition of {length} octets: {super_block}");
    let files = lab.scratch().join("files");
    fs::create_dir_all(&files)?;
    run(Command::new("btrfs").arg("restore").arg(&data).arg(&files))?;
    let log = fs::read_to_string(files.join("log/kurrent.log"))?;
    for line in [
        "kernel: [",
        "kurrentd: ",
        "init: stopping: power button",
        "init: all services have stopped",
        "init: closed: ",
        ", the root file system is read-only",
    ] {
        ensure!(log.contains(line), "no {line:?} in the log:\n{log}");
    }
    fs::remove_file(data)?;
    Ok(())
}

#[test]
fn the_power_button_unmounts_although_the_target_holds_a_disk_open() -> Result<()> {
    let lab = Run::new("exported")?;
    let network = bridge()?;
    let mut served = Appliance::start(&lab, &network, spec(&lab, &network)?)?;
    let device = "/v1/devices/52:54:00:70:00:09";
    served.api.ask("POST", "/v1/devices", Some(&json!({ "mac": "52:54:00:70:00:09" })))?;
    served.api.ask("POST", "/v1/workers", Some(&json!({ "worker_id": "exported" })))?;
    let disk = json!({ "os": "debian", "os_version": "13", "size_bytes": 64 << 20 });
    served.api.ask("POST", "/v1/workers/exported/disks", Some(&disk))?;
    served.api.ask("POST", &format!("{device}/bind"), Some(&json!({ "worker_id": "exported", "force": false })))?;
    let exported = |target: &serde_json::Value| target.to_string().contains("exported.debian").then_some(());
    served.api.wait_for("export", "/v1/target", SCREEN_WITHIN, exported)?;

    served.machine.qmp.execute("system_powerdown")?;
    served.machine.console.wait_for("stopped, power off", OFF_WITHIN)?;
    let text = served.machine.console.text();
    ensure!(!text.contains("unmounting") && !text.contains("going on without"), "it did not stop in order:\n{text}");
    lab.passed();
    Ok(())
}

#[test]
fn a_disk_smaller_than_the_image_is_said_and_nothing_is_served() -> Result<()> {
    let lab = Run::new("small-disk")?;
    let network = bridge()?;
    let spec = spec(&lab, &network)?;
    let disk = spec.disk.clone().unwrap_or_default();
    // The image ends in the middle of the data partition.
    copy_disk(&appliance::image()?, &disk, 0)?;
    fs::File::options().write(true).open(&disk)?.set_len(400 << 20)?;
    let before = fs::read(&disk)?;
    let mut machine = Machine::start(&lab, spec)?;
    machine.console.wait_for("is too small: it has 419 MB, the image needs", SCREEN_WITHIN)?;
    machine.console.wait_for("Write the", SCREEN_WITHIN)?;
    machine.power_off(OFF_WITHIN)?;
    ensure!(fs::read(&disk)? == before, "something was written to the disk");
    lab.passed();
    Ok(())
}

#[test]
fn a_bad_configuration_is_named_with_its_line_and_a_corrected_one_is_picked_up() -> Result<()> {
    let lab = Run::new("bad-configuration")?;
    let network = bridge()?;
    let spec = spec(&lab, &network)?;
    let disk = spec.disk.clone().unwrap_or_default();
    let good = appliance::configuration(&network);
    let bad = good.replace("address:", "adress:");
    let line = bad.lines().position(|line| line.contains("adress")).map_or(0, |at| at + 1);
    write_configuration(lab.scratch(), &disk, &bad)?;
    let mut machine = Machine::start(&lab, spec)?;
    machine.console.wait_for("NOT SERVING: kurrent.yaml has to be corrected", SCREEN_WITHIN)?;
    machine.console.wait_for(&format!("kurrent.yaml:{line}: "), SCREEN_WITHIN)?;
    machine.console.wait_for("'adress'", SCREEN_WITHIN)?;
    ensure!(!machine.console.text().contains("token"), "it serves with a bad configuration");

    write_configuration(lab.scratch(), &disk, &good)?;
    let keys = ["ctrl", "alt", "delete"].map(|key| json!({ "type": "qcode", "data": key }));
    machine.qmp.execute_with("send-key", &json!({ "keys": keys }))?;
    machine.console.wait_for("stopped, starting again", OFF_WITHIN)?;
    machine.console.wait_for("token", SERVES_WITHIN)?;
    lab.passed();
    Ok(())
}

#[test]
fn without_a_nic_the_screen_says_so() -> Result<()> {
    let lab = Run::new("no-nic")?;
    let spec = Spec { nics: Vec::new(), ..spec(&lab, &bridge()?)? };
    let mut machine = Machine::start(&lab, spec)?;
    machine.console.wait_for("No network card", SCREEN_WITHIN)?;
    machine.power_off(OFF_WITHIN)?;
    lab.passed();
    Ok(())
}

#[test]
fn a_cable_that_is_plugged_in_later_is_found() -> Result<()> {
    let lab = Run::new("late-cable")?;
    let network = bridge()?;
    let spec = spec(&lab, &network)?;
    ensure!(spec.memory_mib == MEMORY_MIB && matches!(spec.nics.first().map(|nic| &nic.attachment), Some(Attachment::Tap { .. })));
    let by_link = appliance::configuration(&network);
    let quoted = by_link.lines().find(|line| line.contains("interface:")).unwrap_or_default().to_owned();
    let by_link = by_link.replace(&quoted, "      interface: link");
    write_configuration(lab.scratch(), spec.disk.as_deref().unwrap_or(Path::new("")), &by_link)?;
    let mut machine = Machine::start(&lab, spec)?;
    let cable = |machine: &mut Machine, up: bool| machine.qmp.execute_with("set_link", &json!({ "name": "net0", "up": up }));
    cable(&mut machine, false)?;
    machine.console.wait_for("is the cable in?", SCREEN_WITHIN)?;
    cable(&mut machine, true)?;
    machine.console.wait_for("token", SERVES_WITHIN)?;
    cable(&mut machine, false)?;
    machine.console.wait_for("NO LINK", SCREEN_WITHIN)?;
    lab.passed();
    Ok(())
}
