//! Another DHCP server on the boot network is found, told of, and taken nothing from.

use crate::net::{Net, SERVER, SILENCE, wait_for};
use crate::raw_dhcp::{REQUEST, RawDhcp, message};
use anyhow::{Context, Result, ensure};
use kurrent_core::dhcp::wire::option;
use kurrent_harness::process::{Lifetime, Process};
use serde_json::Value;
use std::fs;

const RIVAL_MAC: &str = "52:54:00:00:08:66";

fn others(net: &Net) -> Result<Vec<Value>> {
    Ok(net.api()?.get("/v1/dhcp")?["other_servers"].as_array().cloned().unwrap_or_default())
}

#[test]
fn another_server_is_found_by_our_own_question_and_shown_everywhere() -> Result<()> {
    let net = Net::new("rival")?;
    let rival = net.client(RIVAL_MAC)?;
    rival.address("10.77.0.66/24")?;
    let (conf, leases) = (net.path("udhcpd.conf"), net.path("udhcpd.leases"));
    fs::write(&leases, "")?;
    fs::write(
        &conf,
        format!(
            "start 10.77.0.100\nend 10.77.0.109\ninterface eth0\nlease_file {}\npidfile {}\n",
            leases.display(),
            net.path("udhcpd.pid").display()
        ),
    )?;
    let mut command = std::process::Command::new("ip");
    command.args(["netns", "exec", &rival.netns, "busybox", "udhcpd", "-f"]).arg(&conf);
    let _udhcpd = Process::start("udhcpd", command, Lifetime::Ours)?;
    let daemon = net.serve()?;
    wait_for("the other server", || others(&net).is_ok_and(|found| !found.is_empty()))?;
    let found = others(&net)?.remove(0);
    ensure!(found["server"] == "10.77.0.66" && found["mac"] == RIVAL_MAC && found["heard"] == "offer", "{found}");
    ensure!(found["address"].as_str().is_some_and(|a| a.starts_with("10.77.0.10")), "{found}");
    let api = net.api()?;
    let faults = api.get("/v1/status")?["faults"].to_string();
    ensure!(faults.contains("10.77.0.66") && faults.contains("spec.dhcp.mode"), "{faults}");
    wait_for("the screen", || fs::read_to_string(net.path("status")).is_ok_and(|s| s.contains("10.77.0.66")))?;
    ensure!(api.get("/v1/operations?verb=other-dhcp-server")?.to_string().contains("10.77.0.66"));
    // A question, and no more: we do not answer it, and nobody's address is given away by it.
    let own = kurrent_harness::netns::enter(net.netns(), || kurrent_sys::link::link("boot"))??.mac.context("a MAC")?;
    ensure!(!daemon.log().contains(&own.to_string()), "we answered ourselves");
    ensure!(fs::read(&leases)?.is_empty(), "the question took a lease");
    net.passed();
    Ok(())
}

#[test]
fn a_machine_that_chooses_another_server_gives_it_away_and_without_one_there_is_no_fault() -> Result<()> {
    let net = Net::new("chosen")?;
    let _daemon = net.serve()?;
    let mac = [0x52, 0x54, 0, 0, 8, 1];
    let client = net.client("52:54:00:00:08:01")?;
    let raw = RawDhcp::open(&client)?;
    raw.lease(mac, 1, &[])?;
    ensure!(others(&net)?.is_empty());
    ensure!(!net.api()?.get("/v1/status")?["faults"].to_string().contains("DHCP server"));
    let request = message(REQUEST, mac, 2, &[(option::REQUESTED_ADDRESS, &[10, 77, 0, 150]), (option::SERVER_ID, &[10, 77, 0, 67])]);
    ensure!(raw.ask(&request, SILENCE)?.is_none(), "it was not for {SERVER}");
    let found = others(&net)?;
    ensure!(found.len() == 1 && found[0]["server"] == "10.77.0.67" && found[0]["heard"] == "chosen", "{found:?}");
    let dhcp = net.api()?.get("/v1/dhcp")?;
    let count = |what: &str| {
        let all = dhcp["counters"].as_array().cloned().unwrap_or_default();
        all.iter().find(|c| c["what"].as_str().is_some_and(|w| w.starts_with(what))).and_then(|c| c["count"].as_u64()).unwrap_or(0)
    };
    ensure!(
        (count("received"), count("answered"), count("offered"), count("acknowledged"), count("silent: the client chose"))
            == (3, 2, 1, 1, 1),
        "{dhcp}"
    );
    ensure!(dhcp["mode"] == "server" && dhcp["serving"] == true && dhcp["subnets"][0]["in_use"] == 1, "{dhcp}");
    net.passed();
    Ok(())
}
