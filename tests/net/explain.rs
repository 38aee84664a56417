//! Why does this machine not boot? A machine made of independent clients, stopped half-way.

use crate::net::{Net, SERVER};
use anyhow::{Result, ensure};
use kurrent_harness::api::Api;
use serde_json::json;
use std::time::Duration;

const MAC: &str = "52:54:00:00:09:01";
const WITHIN: Duration = Duration::from_secs(10);

/// Waits until the first finding has this code, and returns all of them as text.
fn explained(api: &Api, mac: &str, code: &str) -> Result<String> {
    api.wait_for(&format!("the finding {code}"), &format!("/v1/devices/{mac}/explain"), WITHIN, |v| {
        (v["findings"][0]["code"] == code).then(|| v.to_string())
    })
}

#[test]
fn a_machine_that_boots_half_way_is_explained_at_every_step() -> Result<()> {
    let net = Net::new("explain")?;
    let _daemon = net.serve()?;
    let api = net.api()?;
    let client = net.client(MAC)?;
    explained(&api, MAC, "never_seen")?;
    // As firmware asks: vendor class and architecture of a UEFI network boot.
    let options = [
        "-f",
        "-n",
        "-q",
        "-i",
        "eth0",
        "-t",
        "5",
        "-T",
        "1",
        "-s",
        "/bin/true",
        "-V",
        "PXEClient:Arch:00007:UNDI:003016",
        "-x",
        "0x5d:0007",
    ];
    let leased = client.output("udhcpc", &options)?;
    ensure!(leased.status.success(), "{}", String::from_utf8_lossy(&leased.stderr));
    let text = explained(&api, MAC, "no_loader")?;
    ensure!(text.contains("dhcp: acknowledged"), "{text}");
    let leases = api.ask("GET", "/v1/leases", None)?;
    let lease = leases["leases"].as_array().and_then(|all| all.iter().find(|l| l["mac"] == MAC)).map(|l| l["address"].clone());
    let address = lease.as_ref().and_then(|l| l.as_str()).unwrap_or_default().to_owned();
    client.address(&format!("{address}/24"))?;
    let curl = |more: &[&str]| client.output("curl", &[&["-s", "-m", "10", "-o", "/dev/null"], more].concat()).map(|o| o.status.success());
    ensure!(!curl(&[&format!("tftp://{SERVER}/missing.efi")])?);
    let text = explained(&api, MAC, "no_loader")?;
    ensure!(text.contains("no such file: missing.efi"), "{text}");
    ensure!(curl(&[&format!("tftp://{SERVER}/snponly.efi")])?);
    explained(&api, MAC, "no_script")?;
    ensure!(curl(&[&format!("http://{SERVER}/boot.ipxe")])?);
    explained(&api, MAC, "no_report")?;
    ensure!(curl(&["--data", &format!("mac={MAC}"), &format!("http://{SERVER}/devices/report")])?);
    explained(&api, MAC, "no_key")?;
    api.ask("POST", "/v1/devices", Some(&json!({ "mac": MAC, "keyless_allowed": true })))?;
    explained(&api, MAC, "pooled")?;
    api.ask("POST", "/v1/workers", Some(&json!({ "worker_id": "w1" })))?;
    api.ask("POST", &format!("/v1/devices/{MAC}/bind"), Some(&json!({ "worker_id": "w1" })))?;
    let text = explained(&api, MAC, "no_disk")?;
    ensure!(text.contains("bind by user lab"), "{text}");
    api.ask("POST", &format!("/v1/devices/{MAC}/revoke"), Some(&json!({})))?;
    ensure!(!client.output("udhcpc", &options)?.status.success(), "a revoked device has no lease");
    let text = explained(&api, MAC, "revoked")?;
    ensure!(text.contains("silent: the device is revoked"), "{text}");
    net.passed();
    Ok(())
}
