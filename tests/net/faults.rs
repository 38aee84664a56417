//! What is served while something is broken, and what is not.

use crate::net::{Client, Net, SERVER, wait_for};
use anyhow::{Context, Result, ensure};
use kurrent_harness::netns;
use std::fs;
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::time::Duration;

const MAC: &str = "52:54:00:00:01:01";

fn has_lease(client: &Client) -> Result<bool> {
    let output = client.output("udhcpc", &["-i", "eth0", "-f", "-q", "-n", "-t", "3", "-T", "1", "-s", "/bin/true"])?;
    Ok(String::from_utf8_lossy(&output.stderr).contains("lease of "))
}

/// udhcpc gives up after three seconds, so a busy machine may need it more than once.
fn gets_lease(client: &Client, when: &str) -> Result<()> {
    wait_for(&format!("a lease {when}"), || has_lease(client).unwrap_or(false))
}

fn status(net: &Net) -> String {
    fs::read_to_string(net.path("status")).unwrap_or_default()
}

/// Whether something answers on this TCP port of the appliance, seen from its own namespace.
fn listens(net: &Net, port: u16) -> Result<bool> {
    let address = SocketAddr::V4(SocketAddrV4::new(SERVER, port));
    netns::enter(net.netns(), move || TcpStream::connect_timeout(&address, Duration::from_secs(2)).is_ok())
}

#[test]
fn a_corrupt_ledger_stops_what_it_governs_and_nothing_is_freed() -> Result<()> {
    let net = Net::new("corrupt")?;
    let client = net.client(MAC)?;
    let daemon = net.serve()?;
    gets_lease(&client, "while all is well")?;
    net.api()?.ask("POST", "/v1/devices", Some(&serde_json::json!({ "mac": MAC, "keyless_allowed": true })))?;
    let path = net.path("state/devices.yml");
    wait_for("the file follows the journal", || fs::read_to_string(&path).is_ok_and(|text| text.contains("state: pooled")))?;
    daemon.kill();
    let good = fs::read_to_string(&path)?;
    let bad = good.replace("state: pooled", "state: polled");
    let line = bad.lines().position(|l| l.contains("polled")).context("no device was recorded")? + 1;
    fs::write(&path, &bad)?;

    let daemon = net.start()?;
    let expected = format!("devices.yml:{line}: 'polled' is not valid for state; write pooled, bound or revoked");
    daemon.wait_for_log(&expected)?;
    net.api()?
        .wait_for("status that names the line", "/v1/status", crate::net::DEADLINE, |s| s.to_string().contains(&expected).then_some(()))?;
    wait_for("the screen names the line", || status(&net).contains(&expected) && status(&net).contains("serving=no"))?;
    ensure!(!has_lease(&client)?, "an address was given although nobody knows who is revoked");
    ensure!(!listens(&net, 80)?, "the boot plane serves");
    ensure!(net.api()?.request("POST", "/v1/workers", Some(&serde_json::json!({ "worker_id": "w1" })))?.status == 503);
    ensure!(fs::read_to_string(&path)? == bad, "the ledger was written");
    daemon.kill();

    fs::write(&path, good)?;
    let _daemon = net.serve()?;
    gets_lease(&client, "after the repair")?;
    ensure!(net.api()?.get(&format!("/v1/devices/{MAC}"))?.get("state") == Some(&"pooled".into()), "the device is gone");
    net.passed();
    Ok(())
}

#[test]
fn a_taken_port_stops_only_what_needs_it_and_is_tried_again() -> Result<()> {
    let net = Net::new("taken-port")?;
    let client = net.client(MAC)?;
    let taken = netns::enter(net.netns(), || TcpListener::bind("0.0.0.0:8443"))?.context("take the API's port")?;
    let _daemon = net.serve()?;
    wait_for("the screen tells of the port", || {
        status(&net).contains("fault=api: port 8443 can not be bound; stop what uses it, or change spec.http.apiPort")
    })?;
    gets_lease(&client, "without the API")?;
    ensure!(listens(&net, 80)?, "the boot plane does not serve");
    drop(taken);
    wait_for("the API is back", || net.api().is_ok_and(|api| api.get("/v1/status").is_ok()))?;
    wait_for("the fault is gone", || !status(&net).contains("fault=api"))?;
    net.passed();
    Ok(())
}

/// A driver that was loaded again, a virtual NIC that was plugged anew: sockets on the old one hear nothing, and are told nothing.
#[test]
fn what_serves_the_boot_network_begins_anew_on_a_nic_that_was_put_in_again() -> Result<()> {
    let net = Net::new("replug")?;
    let _daemon = net.serve()?;
    gets_lease(&net.client(MAC)?, "at first")?;
    net.ip(&["link", "delete", "boot"])?;
    wait_for("a fault that says what is missing", || status(&net).contains("no NIC has the boot network's address 10.77.0.1"))?;
    net.ip(&["link", "add", "boot", "type", "bridge", "stp_state", "0", "forward_delay", "0"])?;
    net.ip(&["addr", "add", "10.77.0.1/24", "dev", "boot"])?;
    net.ip(&["link", "set", "boot", "up"])?;
    let client = net.client("52:54:00:00:01:02")?;
    gets_lease(&client, "on the new NIC")?;
    client.address("10.77.0.20/24")?;
    let fetched = || {
        client.output("curl", &["-s", "-f", "-m", "2", "-o", "/dev/null", "tftp://10.77.0.1/snponly.efi"]).is_ok_and(|o| o.status.success())
    };
    wait_for("TFTP on the new NIC", fetched)?;
    wait_for("no fault any more", || !status(&net).contains("no NIC has"))?;
    net.passed();
    Ok(())
}
