//! SeaBIOS with QEMU's iPXE option ROM (of 2019), and the stock iPXE for BIOS.

use super::place::{Place, SCRIPT_WITHIN};
use anyhow::{Result, ensure};
use kurrent_harness::appliance::ADDRESS;
use kurrent_harness::console::Console;
use std::time::{Duration, Instant};

/// What the script says to a machine without UEFI.
const REFUSAL: &str = "this machine started in BIOS mode, where it can not prove who it is";
/// A key to its echo.
const ECHO_WITHIN: Duration = Duration::from_secs(30);
const CTRL_B: &[u8] = &[2];
const PRESS_AGAIN: Duration = Duration::from_millis(500);

/// Types slowly: a BIOS keeps 16 keys.
fn type_line(console: &mut Console, line: &str) -> Result<()> {
    for key in line.chars() {
        let mut octets = [0; 4];
        let key = key.encode_utf8(&mut octets);
        console.press(key.as_bytes())?;
        console.wait_for(key, ECHO_WITHIN)?;
    }
    console.send_line("")
}

/// Presses Ctrl-B again and again: the ROM looks for it only now and then, on a loaded machine not at the time of its prompt.
/// (In the shell the key moves the cursor, and there is nothing to move over.)
fn open_shell(console: &mut Console) -> Result<()> {
    let deadline = Instant::now() + SCRIPT_WITHIN;
    loop {
        console.press(CTRL_B)?;
        match console.wait_for("iPXE>", PRESS_AGAIN) {
            Ok(_) => return Ok(()),
            Err(_) if Instant::now() < deadline => {}
            Err(error) => return Err(error),
        }
    }
}

/// An iPXE with HTTP is never given a loader again (ipxe 908, 922).
#[test]
fn seabios_with_the_ipxe_of_its_rom_gets_the_script_without_another_loader() -> Result<()> {
    let place = Place::new("bios", "")?;
    let mut machine = place.bios(&place.network)?;
    let seen = place.reaches_script(&mut machine)?;
    machine.console.wait_for(REFUSAL, SCRIPT_WITHIN)?;
    seen.address()?;
    ensure!(seen.offers_agree_with_acks(ADDRESS)? > 0, "no ACK");
    ensure!(seen.read_requests("undionly.kpxe") == (0, 0), "it was given a loader");
    place.passed(machine);
    Ok(())
}

/// By hand in the ROM's shell, as no boot agent of a BIOS but iPXE is at hand here.
#[test]
fn stock_undionly_on_seabios_gets_the_script_under_the_same_address() -> Result<()> {
    let place = Place::new("undionly", "")?;
    let mut machine = place.bios(&place.network)?;
    open_shell(&mut machine.console)?;
    type_line(&mut machine.console, &format!("dhcp && chain tftp://{ADDRESS}/undionly.kpxe"))?;
    machine.console.wait_for("iPXE 2.", SCRIPT_WITHIN)?;
    let seen = place.reaches_script(&mut machine)?;
    machine.console.wait_for(REFUSAL, SCRIPT_WITHIN)?;
    seen.address()?;
    ensure!(seen.read_requests("undionly.kpxe").0 > 0, "no loader by TFTP");
    place.passed(machine);
    Ok(())
}
