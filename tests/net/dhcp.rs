//! DHCP as independent clients and a raw one see it.

use crate::net::{Client, DEADLINE, Net, SERVER, SILENCE, revoke, wait_for};
use crate::raw_dhcp::{ACK, DISCOVER, NAK, OFFER, REQUEST, RawDhcp, kind, message};
use anyhow::{Context, Result, bail, ensure};
use kurrent_core::dhcp::wire::{self, option};
use serde_json::json;
use std::collections::HashSet;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 1, 1];

fn text(mac: [u8; 6]) -> String {
    kurrent_core::id::MacAddr(mac).to_string()
}

/// udhcpc's address. It gives up after three seconds, so a busy machine may need it more than once.
fn udhcpc(client: &Client, more: &[&str]) -> Result<Ipv4Addr> {
    let arguments = ["-i", "eth0", "-f", "-q", "-n", "-t", "3", "-T", "1", "-s", "/bin/true"];
    let deadline = Instant::now() + DEADLINE;
    loop {
        let output = client.output("udhcpc", &[&arguments[..], more].concat())?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if let Some(address) = said.split("lease of ").nth(1).and_then(|rest| rest.split(' ').next()).and_then(|a| a.parse().ok()) {
            return Ok(address);
        }
        if Instant::now() > deadline {
            bail!("udhcpc has no lease; it said: {said}");
        }
    }
}

/// A copy of a program below target/: AppArmor's profiles go by path, and Debian's for dhclient forbids the files of a test.
pub fn unconfined(name: &str) -> Result<String> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _held = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).chain(["/usr/sbin".into()]).map(|folder| folder.join(name)).find(|path| path.is_file());
    let found = found.with_context(|| format!("{name} is missing (`make deps` installs it)"))?;
    let copy = kurrent_harness::tools::target_dir().join("lab").join(name);
    if fs::read(&copy).ok() != fs::read(&found).ok() {
        // By another process: one of our threads could start a program while we hold this one open for writing.
        let new = copy.with_extension(std::process::id().to_string());
        kurrent_harness::tools::run(std::process::Command::new("cp").arg(&found).arg(&new))?;
        fs::rename(&new, &copy)?;
    }
    Ok(copy.to_string_lossy().into_owned())
}

/// dhclient's address.
fn dhclient(net: &Net, client: &Client, config: &str) -> Result<Ipv4Addr> {
    let (conf, leases, pid, script) =
        (net.path("dhclient.conf"), net.path("dhclient.leases"), net.path("dhclient.pid"), net.path("script"));
    fs::write(&conf, config)?;
    fs::write(&leases, "")?;
    fs::write(&script, "#!/bin/sh\nexit 0\n")?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let path = |p: &std::path::Path| p.to_string_lossy().into_owned();
    let (conf, lease_file, pid, script) = (path(&conf), path(&leases), path(&pid), path(&script));
    let output = client
        .output(&unconfined("dhclient")?, &["-4", "-1", "-v", "-cf", &conf, "-lf", &lease_file, "-pf", &pid, "-sf", &script, "eth0"])?;
    // It stays in the background: ended by its own pid.
    let running = fs::read_to_string(&pid).unwrap_or_default();
    if let Ok(number) = running.trim().parse() {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(number), nix::sys::signal::Signal::SIGKILL)?;
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let address = said.split("bound to ").nth(1).and_then(|rest| rest.split(' ').next()).and_then(|a| a.parse().ok());
    address.with_context(|| format!("dhclient has no lease; it said: {said}"))
}

#[test]
fn one_machine_has_one_address_with_udhcpc_and_dhclient_and_any_client_id() -> Result<()> {
    let net = Net::new("one-address")?;
    let _daemon = net.serve()?;
    let client = net.client(&text(MAC))?;
    let first = udhcpc(&client, &[])?;
    ensure!(udhcpc(&client, &["-x", "0x3d:ff01020304"])? == first);
    ensure!(dhclient(&net, &client, "")? == first);
    ensure!(dhclient(&net, &client, "send dhcp-client-identifier 00:11:22:33;\n")? == first);
    let other = net.client("52:54:00:00:01:02")?;
    ensure!(udhcpc(&other, &[])? != first);
    net.passed();
    Ok(())
}

#[test]
fn a_lease_survives_kill_9_of_the_daemon() -> Result<()> {
    let net = Net::new("kill-9")?;
    let daemon = net.serve()?;
    let client = net.client(&text(MAC))?;
    let raw = RawDhcp::open(&client)?;
    let own = raw.lease(MAC, 1, &[])?.yiaddr;
    daemon.kill();
    // What a power cut may leave behind the last line that was acknowledged.
    let mut file = fs::OpenOptions::new().append(true).open(net.path("state/leases"))?;
    std::io::Write::write_all(&mut file, b"2026-11-30T02:15:00Z 10.77.0.1")?;
    let _daemon = net.serve()?;
    let reboot = raw.ask(&message(REQUEST, MAC, 2, &[(option::REQUESTED_ADDRESS, &own.octets())]), DEADLINE)?;
    ensure!(reboot.as_ref().map(kind) == Some(ACK), "INIT-REBOOT after the restart: {reboot:?}");
    for last in 2..30 {
        ensure!(raw.lease([0x52, 0x54, 0, 0, 1, last], last.into(), &[])?.yiaddr != own);
    }
    net.passed();
    Ok(())
}

#[test]
fn a_revoked_device_is_met_with_silence_and_its_neighbour_is_served() -> Result<()> {
    let net = Net::new("revoked")?;
    let _daemon = net.serve()?;
    let api = net.api()?;
    let client = net.client(&text(MAC))?;
    let raw = RawDhcp::open(&client)?;
    let own = raw.lease(MAC, 1, &[])?.yiaddr;
    client.address(&format!("{own}/24"))?;
    let tftp = |name: &str| client.output("curl", &["-s", "-m", "5", "-o", "/dev/null", &format!("tftp://{SERVER}/{name}")]);
    ensure!(tftp("snponly.efi")?.status.success(), "before it is revoked");
    revoke(&api, &text(MAC))?;
    let own = own.octets();
    let server = SERVER.octets();
    for (xid, kind) in [(10, DISCOVER), (11, REQUEST), (12, 4), (13, 7), (14, 8)] {
        let mut packet = message(kind, MAC, xid, &[(option::REQUESTED_ADDRESS, &own), (option::SERVER_ID, &server)]);
        if kind > 4 {
            packet.ciaddr = own.into();
        }
        ensure!(raw.ask(&packet, SILENCE)?.is_none(), "message type {kind} was answered");
    }
    // An ERROR would end curl at once with another code; 28 is its own deadline.
    for name in ["snponly.efi", "autoexec.ipxe", "missing"] {
        ensure!(tftp(name)?.status.code() == Some(28), "{name}");
    }
    ensure!(kind(&raw.lease([0x52, 0x54, 0, 0, 1, 2], 20, &[])?) == ACK);
    api.wait_for("an audit line", "/v1/operations?result=revoked", DEADLINE, |v| v.to_string().contains(&text(MAC)).then_some(()))?;
    net.passed();
    Ok(())
}

#[test]
fn strangers_get_nothing_when_the_operator_says_so() -> Result<()> {
    let net = Net::new("strangers")?;
    net.configure("  dhcp:\n    unknownDevices: off\n")?;
    let _daemon = net.serve()?;
    let client = net.client(&text(MAC))?;
    let raw = RawDhcp::open(&client)?;
    ensure!(raw.ask(&message(DISCOVER, MAC, 1, &[]), SILENCE)?.is_none());
    net.api()?.ask("POST", "/v1/devices", Some(&json!({ "mac": text(MAC), "keyless_allowed": true })))?;
    ensure!(kind(&raw.lease(MAC, 2, &[])?) == ACK);
    net.passed();
    Ok(())
}

#[test]
fn a_bound_device_is_told_its_workers_name_and_a_boot_file_for_what_it_is() -> Result<()> {
    let net = Net::new("bound")?;
    let _daemon = net.serve()?;
    let api = net.api()?;
    let client = net.client(&text(MAC))?;
    let raw = RawDhcp::open(&client)?;
    api.ask("POST", "/v1/devices", Some(&json!({ "mac": text(MAC), "keyless_allowed": true })))?;
    api.ask("POST", "/v1/workers", Some(&json!({ "worker_id": "worker-1" })))?;
    api.ask("POST", &format!("/v1/devices/{}/bind", text(MAC)), Some(&json!({ "worker_id": "worker-1" })))?;
    let firmware = raw.lease(MAC, 1, &[(60, b"PXEClient:Arch:00007:UNDI:003016"), (93, &[0, 7]), (97, &[0; 17])])?;
    ensure!(firmware.options.bytes(option::HOST_NAME) == Some(&b"worker-1"[..]));
    ensure!((firmware.siaddr, firmware.file.as_slice()) == (SERVER, &b"snponly.efi"[..]));
    ensure!(firmware.options.bytes(option::VENDOR_CLASS).is_none() && firmware.options.bytes(97) == Some(&[0; 17][..]));
    let ipxe = raw.lease(MAC, 2, &[(60, b"PXEClient:Arch:00007:UNDI:003016"), (93, &[0, 7]), (77, b"iPXE")])?;
    ensure!((ipxe.yiaddr, ipxe.file.as_slice()) == (firmware.yiaddr, &b"http://10.77.0.1/boot.ipxe"[..]));
    api.wait_for("the step", &format!("/v1/devices/{}/timeline", text(MAC)), DEADLINE, |v| v.to_string().contains("dhcp").then_some(()))?;
    net.passed();
    Ok(())
}

#[test]
fn a_hundred_clients_at_once_each_get_an_address_of_their_own() -> Result<()> {
    let net = Net::new("burst")?;
    let _daemon = net.serve()?;
    let client = net.client(&text(MAC))?;
    let raw = RawDhcp::open(&client)?;
    let mac = |n: u8| [0x52, 0x54, 0, 0, 2, n];
    for n in 0..100 {
        raw.send(&message(DISCOVER, mac(n), n.into(), &[]))?;
    }
    let mut acked = HashSet::new();
    let deadline = Instant::now() + DEADLINE;
    while acked.len() < 100 {
        let left = deadline.saturating_duration_since(Instant::now());
        let reply = raw.receive(left, |_| true).with_context(|| format!("{} of 100", acked.len()))?;
        if kind(&reply) == OFFER {
            let address = reply.yiaddr.octets();
            let mut request =
                message(REQUEST, MAC, reply.xid, &[(option::REQUESTED_ADDRESS, &address), (option::SERVER_ID, &SERVER.octets())]);
            request.chaddr = reply.chaddr;
            raw.send(&request)?;
        } else {
            ensure!(kind(&reply) == ACK && acked.insert(reply.yiaddr), "{reply:?}");
        }
    }
    net.passed();
    Ok(())
}

#[test]
fn requests_for_another_server_are_never_refused_and_those_of_another_network_are() -> Result<()> {
    let net = Net::new("naks")?;
    let _daemon = net.serve()?;
    let client = net.client(&text(MAC))?;
    let raw = RawDhcp::open(&client)?;
    let elsewhere = [192, 0, 2, 9];
    ensure!(raw.ask(&message(REQUEST, MAC, 1, &[(50, &elsewhere), (54, &[10, 77, 0, 2])]), SILENCE)?.is_none());
    ensure!(raw.ask(&message(REQUEST, MAC, 2, &[(50, &elsewhere)]), DEADLINE)?.as_ref().map(kind) == Some(NAK));
    ensure!(raw.ask(&message(REQUEST, MAC, 3, &[(50, &[10, 77, 0, 9])]), SILENCE)?.is_none(), "no record: silence");
    net.passed();
    Ok(())
}

#[test]
fn random_and_cut_packets_are_survived_on_port_67() -> Result<()> {
    let net = Net::new("junk-67")?;
    let mut daemon = net.serve()?;
    let client = net.client(&text(MAC))?;
    let raw = RawDhcp::open(&client)?;
    let whole = wire::encode(&message(DISCOVER, MAC, 1, &[(60, b"PXEClient"), (93, &[0, 7]), (82, &[5, 4, 10, 77, 0, 0])]), 0);
    for len in 0..whole.len() {
        raw.send_octets(&whole[..len])?;
    }
    let mut state = 0x9e37_79b9_u32;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    for round in 0..3000_u32 {
        // Half of them with a head that is read further.
        let mut octets: Vec<u8> = (0..random() % 1400).map(|_| random().to_le_bytes()[0]).collect();
        if round % 2 == 0 && octets.len() > 300 {
            octets[..240].copy_from_slice(&whole[..240]);
        }
        // A full queue of the interface is no matter here.
        let _ = raw.send_octets(&octets);
    }
    udhcpc(&client, &[]).context("after the junk")?;
    ensure!(daemon.runs() && !daemon.log().contains("panicked"));
    net.passed();
    Ok(())
}

#[test]
fn port_67_in_use_is_a_fault_that_says_what_to_do_and_goes_by_itself() -> Result<()> {
    let net = Net::new("in-use")?;
    let taken = kurrent_harness::netns::enter(net.netns(), || std::net::UdpSocket::bind("0.0.0.0:67"))??;
    let daemon = net.start()?;
    let told = || fs::read_to_string(net.path("status")).unwrap_or_default();
    wait_for("the fault in the status", || told().contains("port 67") && told().contains("ss -ulpn"))?;
    daemon.wait_for_log("TFTP: serving")?;
    drop(taken);
    daemon.wait_for_log("DHCP: serving")?;
    wait_for("the fault has gone", || !told().contains("port 67"))?;
    net.passed();
    Ok(())
}

#[test]
fn a_spoilt_lease_file_stops_dhcp_with_file_and_line_and_is_left_alone() -> Result<()> {
    let net = Net::new("spoilt")?;
    let spoilt = "kurrent-leases 1\nthis is no lease\n2026-11-30T02:15:00Z 10.77.0.251 52:54:00:00:00:01 bound 137893c2\n";
    let line = kurrent_core::dhcp::lease_file::Record {
        address: Ipv4Addr::new(10, 77, 0, 200),
        holder: kurrent_core::id::MacAddr(MAC).into(),
        state: kurrent_core::dhcp::lease_file::RecordState::Bound,
        until: "2026-11-30T02:15:00Z".parse()?,
    };
    let spoilt = format!("{spoilt}{}", line.line());
    fs::write(net.path("state/leases"), &spoilt)?;
    let daemon = net.start()?;
    daemon.wait_for_log("TFTP: serving")?;
    daemon.wait_for_log("state/leases: line 2: ")?;
    let client = net.client(&text(MAC))?;
    ensure!(RawDhcp::open(&client)?.ask(&message(DISCOVER, MAC, 1, &[]), SILENCE)?.is_none());
    ensure!(fs::read_to_string(net.path("state/leases"))? == spoilt);
    net.passed();
    Ok(())
}

#[test]
fn nothing_is_acknowledged_while_the_disk_is_full() -> Result<()> {
    let net = Net::new("disk-full")?;
    let state = net.path("state");
    let mut mount = std::process::Command::new("mount");
    kurrent_harness::tools::run(mount.args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(&state))?;
    let _unmount = Unmount(state.clone());
    let daemon = net.serve()?;
    let client = net.client(&text(MAC))?;
    let raw = RawDhcp::open(&client)?;
    let filler = state.join("filler");
    // To the last octet: write until it takes no more.
    let mut file = fs::File::create(&filler)?;
    while std::io::Write::write(&mut file, &[0; 512]).is_ok() {}
    let offer = raw.ask(&message(DISCOVER, MAC, 1, &[]), DEADLINE)?.context("an offer promises nothing")?;
    // The page that the file ends in still takes some lines.
    let mut unanswered = None;
    for xid in 2..200 {
        let own = offer.yiaddr.octets();
        let request = message(REQUEST, MAC, xid, &[(50, &own), (54, &SERVER.octets())]);
        if raw.ask(&request, Duration::from_secs(1))?.is_none() {
            unanswered = Some(request);
            break;
        }
    }
    let request = unanswered.context("everything was acknowledged although the disk is full")?;
    daemon.wait_for_log("make room or repair the disk")?;
    drop(file);
    fs::remove_file(&filler)?;
    ensure!(raw.ask(&request, DEADLINE)?.as_ref().map(kind) == Some(ACK), "after room was made");
    drop(daemon);
    net.passed();
    Ok(())
}

struct Unmount(std::path::PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
