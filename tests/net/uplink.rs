//! `kurrentd uplink` against an independent server (busybox udhcpd).

use crate::confined::every_thread_is_confined;
use crate::net::{Net, SERVER, wait_for};
use anyhow::{Context, Result, ensure};
use kurrent_harness::process::{Lifetime, Process};
use std::fs;

/// `NET_BIND_SERVICE`, `NET_ADMIN`, `NET_RAW` (linux/capability.h).
const KEPT: u64 = 1 << 10 | 1 << 12 | 1 << 13;

#[test]
fn the_uplink_gets_address_route_and_resolvers_from_a_foreign_server_and_renews() -> Result<()> {
    let net = Net::new("uplink")?;
    let leases = net.path("udhcpd.leases");
    fs::write(&leases, "")?;
    let conf = net.path("udhcpd.conf");
    let text = format!(
        "start 10.77.0.50\nend 10.77.0.60\ninterface boot\nlease_file {}\npidfile {}\nmin_lease 10\noption subnet 255.255.255.0\noption router {SERVER}\noption dns 10.77.0.1 10.77.0.2\noption domain lab.example\noption lease 60\n",
        leases.display(),
        net.path("udhcpd.pid").display()
    );
    fs::write(&conf, text)?;
    let mut server = net.command("busybox");
    server.args(["udhcpd", "-f"]).arg(&conf);
    let _server = Process::start("udhcpd", server, Lifetime::Ours)?;
    let client = net.client("52:54:00:00:03:01")?;
    let (lease, resolv) = (net.path("uplink.lease"), net.path("resolv.conf"));
    let mut uplink = std::process::Command::new("ip");
    uplink.args(["netns", "exec", &client.netns, env!("CARGO_BIN_EXE_kurrentd"), "uplink", "--interface", "eth0"]);
    uplink.arg("--lease-file").arg(&lease).arg("--resolv-conf").arg(&resolv);
    let uplink = Process::start("uplink", uplink, Lifetime::Ours)?;
    let told = || fs::read_to_string(&lease).unwrap_or_default();
    wait_for("a lease", || told().contains("state=bound\ninterface=eth0\naddress=10.77.0.5"))?;
    ensure!(told().contains("\nrouter=10.77.0.1\ndns=10.77.0.1 10.77.0.2\ndomain=lab.example\nserver=10.77.0.1\nexpires=2"), "{}", told());
    ensure!(fs::read_to_string(&resolv)?.ends_with("search lab.example\nnameserver 10.77.0.1\nnameserver 10.77.0.2\n"));
    ensure!(client.ip(&["addr", "show", "dev", "eth0"])?.contains("inet 10.77.0.5"));
    ensure!(client.ip(&["route", "show", "default"])?.contains("via 10.77.0.1 dev eth0"));
    // All of that with what it has kept, and what follows, too.
    every_thread_is_confined(uplink.pid().context("its process")?, KEPT)?;
    // Half of the shortest lease: the next line of life.
    let first = told();
    wait_for_renewal(&told, &first)?;
    net.passed();
    Ok(())
}

fn wait_for_renewal(told: &impl Fn() -> String, first: &str) -> Result<()> {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(45);
    while told() == first {
        ensure!(std::time::Instant::now() < deadline, "no renewal: {first}");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    ensure!(told().contains("state=bound"), "{}", told());
    Ok(())
}
