//! `kurrent-lab bench`: the figures of the README, measured, never asserted. Run it on an idle machine.

use crate::show::Progress;
use anyhow::{Context, Result};
use kurrent_harness::appliance::{self, MEMORY_MIB};
use kurrent_harness::lab::Lab;
use kurrent_harness::process::Lifetime;
use kurrent_harness::{timeline, worker};
use std::path::Path;

const HOSTNAME: &str = "bench";

/// Measures and prints a Markdown table.
pub fn run() -> Result<()> {
    let progress = Progress::start();
    let image = appliance::image()?;
    let lab = Lab::unprivileged("bench", Lifetime::Ours)?;
    let serving = lab.appliance()?.serving_after;
    progress.say("appliance serves");
    lab.import_master()?;
    lab.operator()?.open_window()?;
    let first = lab.serve(0, HOSTNAME, &mut |line| progress.say(line))?;
    // The figure is an everyday boot: the device is known and bound, nobody is waited for.
    let spec = first.machine.cut_power();
    progress.say("worker switched off and on again");
    let mut again = lab.power_on(spec)?;
    let login = worker::wait_for_login(&mut again, HOSTNAME, worker::LOGIN_WITHIN)?;
    let table = timeline::of_boot(lab.appliance()?, &again, login)?;
    println!("\n{}", table.table(None));
    println!("| figure | measured | aim |\n|---|---|---|");
    println!("| image, compressed | {} | under 60 MB |", megabytes(&image.with_extension("img.zst"))?);
    println!("| unified kernel image | {} | under 40 MB |", uki_megabytes(lab.run.scratch(), &image)?);
    println!("| appliance, power-on to serving | {:.1} s | |", serving.as_secs_f64());
    println!("| appliance, memory it was given here | {MEMORY_MIB} MiB | serves in 256 MB |");
    println!("| worker, power-on to login | {:.1} s | under 45 s |", (login - again.started).as_secs_f64());
    lab.run.passed();
    Ok(())
}

fn megabytes(file: &Path) -> Result<String> {
    let octets = std::fs::metadata(file).with_context(|| format!("size of {}", file.display()))?.len();
    // Tenths of a million octets.
    Ok(format!("{}.{} MB", octets / 1_000_000, octets / 100_000 % 10))
}

fn uki_megabytes(scratch: &Path, image: &Path) -> Result<String> {
    let copy = scratch.join("uki.efi");
    appliance::read_from_esp(image, "EFI/BOOT/BOOTX64.EFI", &copy)?;
    megabytes(&copy)
}
