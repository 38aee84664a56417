//! The boot plane as independent HTTP clients see it, and the API on an address of its own.

use crate::net::{Net, SERVER, loader, wait_for};
use anyhow::{Result, ensure};
use std::fs;
use std::time::{Duration, Instant};

const MAC: &str = "52:54:00:00:08:01";

#[test]
fn independent_http_clients_get_files_and_parts_octet_for_octet() -> Result<()> {
    let net = Net::new("http-clients")?;
    let _daemon = net.serve()?;
    let client = net.client(MAC)?;
    client.address("10.77.0.20/24")?;
    let url = format!("http://{SERVER}/files/snponly.efi");
    let got = net.path("got");
    let to = got.to_string_lossy().into_owned();
    let whole = loader(0);
    wait_for("the boot plane", || client.output("curl", &["-s", "-f", "-I", &url]).is_ok_and(|output| output.status.success()))?;
    let cases: [&[&str]; 5] = [
        &["curl", "-s", "-S", "-f", "-o", &to, &url],
        &["curl", "-s", "-S", "-f", "-0", "-o", &to, &url],
        &["curl", "-s", "-S", "-f", "-0", "-H", "Connection: keep-alive", "-H", "Host:", "-o", &to, &url],
        &["curl", "-s", "-S", "-f", "--request-target", &url, "-o", &to, &url],
        &["busybox", "wget", "-q", "-O", &to, &url],
    ];
    for case in cases {
        let _ = fs::remove_file(&got);
        let output = client.output(case[0], &case[1..])?;
        ensure!(fs::read(&got).is_ok_and(|octets| octets == whole), "{case:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    // A download that was cut short goes on where it ended.
    for resume in [vec!["curl", "-s", "-S", "-f", "-C", "-", "-o", &to, &url], vec!["busybox", "wget", "-q", "-c", "-O", &to, &url]] {
        fs::write(&got, &whole[..100_000])?;
        let output = client.output(resume[0], &resume[1..])?;
        ensure!(fs::read(&got).is_ok_and(|octets| octets == whole), "{resume:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let twice = client.output("curl", &["-s", "-S", "-w", "%{num_connects}\n", "-o", "/dev/null", &url, "-o", "/dev/null", &url])?;
    ensure!(twice.stdout == b"1\n0\n", "one connection for both: {}", String::from_utf8_lossy(&twice.stdout));
    net.passed();
    Ok(())
}

#[test]
fn ipxe_1023_a_device_is_sent_no_more_than_its_rate_and_the_api_is_on_its_own_address() -> Result<()> {
    let net = Net::new("http-rate")?;
    net.configure("  http:\n    deviceRate: 100000\n    apiPort: 80\n    apiAddress: 127.0.0.1\n")?;
    let _daemon = net.serve()?;
    let client = net.client(MAC)?;
    client.address("10.77.0.20/24")?;
    let url = format!("http://{SERVER}/files/snponly.efi");
    wait_for("the boot plane", || client.output("curl", &["-s", "-f", "-I", &url]).is_ok_and(|output| output.status.success()))?;
    let begun = Instant::now();
    let output = client.output("curl", &["-s", "-S", "-f", &url])?;
    let took = begun.elapsed();
    ensure!(output.stdout == loader(0), "{}", String::from_utf8_lossy(&output.stderr));
    // 200,003 octets at 100,000 a second.
    ensure!(took > Duration::from_millis(1800), "{took:?}");
    // One port, two addresses: here the boot plane, there the API.
    let status = |url: &str| net.command("curl").args(["-s", "-o", "/dev/null", "-w", "%{http_code}", url]).output();
    wait_for("the API on its address", || status("http://127.0.0.1/v1/status").is_ok_and(|output| output.stdout == b"401"))?;
    ensure!(status(&format!("http://{SERVER}/v1/status"))?.stdout == b"404", "the boot plane does not serve the API");
    ensure!(status("http://127.0.0.1/boot.ipxe")?.stdout != b"200", "the API does not serve the boot plane");
    net.passed();
    Ok(())
}
