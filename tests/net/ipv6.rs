//! DHCPv6, router advertisements, TFTP and HTTP over IPv6 as independent clients see them.

use crate::dhcp::unconfined;
use crate::net::{Client, Daemon, Net, SILENCE, bind_again, loader, revoke, wait_for};
use anyhow::{Context, Result, ensure};
use kurrent_core::dhcp6::wire::{Options, option};
use std::fs;
use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

const OWN: &str = "fd00:77::1";
const MAC: &str = "52:54:00:00:06:01";
/// The address of [`MAC`]: it tells its machine.
const GIVEN: &str = "fd00:77::6b75:5254:0:601";
const GROUP: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
const ADVERTISE: u8 = 2;
const REPLY: u8 = 7;

/// A boot network with an IPv6 address, and a daemon that serves it.
fn serve(test: &str, mode: &str, advertisements: bool) -> Result<(Net, Daemon)> {
    let net = Net::new(test)?;
    net.ip(&["addr", "add", "fd00:77::1/64", "dev", "boot", "nodad"])?;
    net.configure(&format!(
        "  networking:\n    boot:\n      address6: {OWN}/64\n  dhcp6:\n    mode: {mode}\n    routerAdvertisements: {advertisements}\n"
    ))?;
    let daemon = net.serve()?;
    if mode != "off" {
        daemon.wait_for_log("DHCPv6: serving")?;
    }
    if advertisements {
        daemon.wait_for_log("router advertisements: sending")?;
    }
    Ok((net, daemon))
}

/// A machine whose link-local address can be used.
pub fn client(net: &Net, mac: &str) -> Result<Client> {
    let client = net.client(mac)?;
    let usable =
        || client.ip(&["-6", "addr", "show", "dev", "eth0", "scope", "link", "-tentative"]).is_ok_and(|text| text.contains("fe80::"));
    wait_for("a link-local address", usable)?;
    Ok(client)
}

/// Sends one message to all servers and returns the answers' octets until nothing comes for a while.
pub fn ask(client: &Client, message: Vec<u8>, wait: Duration) -> Result<Option<Vec<u8>>> {
    client.enter(move || -> Result<Option<Vec<u8>>> {
        let index = nix::net::if_::if_nametoindex("eth0")?;
        let socket = bind_again((Ipv6Addr::UNSPECIFIED, 546).into())?;
        socket.set_read_timeout(Some(wait))?;
        socket.send_to(&message, SocketAddrV6::new(GROUP, 547, 0, index))?;
        let mut buffer = [0; 2048];
        match socket.recv(&mut buffer) {
            Ok(len) => Ok(Some(buffer[..len].to_vec())),
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => Ok(None),
            Err(e) => Err(e.into()),
        }
    })?
}

/// A message with these options.
pub fn message(kind: u8, list: &[(u16, &[u8])]) -> Vec<u8> {
    let mut options = Options::default();
    for (code, value) in list {
        options.push(*code, value);
    }
    [&[kind, 1, 2, 3][..], &options.encode()].concat()
}

/// As EDK2's UefiPxeBcDxe and Dhcp6Dxe send it: a DUID-UUID that says nothing of the NIC.
fn edk2_solicit(arch: u8, class: &str) -> Vec<u8> {
    let duid = [&[0, 4][..], &[0x42; 16]].concat();
    let class = [&343_u32.to_be_bytes()[..], &[0, u8::try_from(class.len()).unwrap_or(0)], class.as_bytes()].concat();
    let ia = [0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 0, 0, 0, 0];
    message(1, &[(1, &duid), (8, &[0, 0]), (option::IA_NA, &ia), (6, &[0, 59, 0, 60]), (62, &[1, 3, 16]), (61, &[0, arch]), (16, &class)])
}

fn read(octets: &[u8], kind: u8) -> Result<Options> {
    ensure!(octets.get(..4) == Some(&[kind, 1, 2, 3]), "another message: {octets:?}");
    Ok(Options::read(&octets[4..])?)
}

fn dhclient(net: &Net, client: &Client, more: &[&str]) -> Result<String> {
    let path = |name: &str| net.path(name).to_string_lossy().into_owned();
    let (conf, leases, pid, script) = (path("six.conf"), path("six.leases"), path("six.pid"), path("six.script"));
    for name in [&conf, &leases, &pid] {
        fs::write(name, "")?;
    }
    fs::write(&script, "#!/bin/sh\nexit 0\n")?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let arguments = ["-6", "-1", "-v", "-cf", &conf, "-lf", &leases, "-pf", &pid, "-sf", &script];
    let output = client.output(&unconfined("dhclient")?, &[&arguments[..], more, &["eth0"]].concat())?;
    // It stays in the background: ended by its own pid.
    if let Ok(number) = fs::read_to_string(&pid).unwrap_or_default().trim().parse() {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(number), nix::sys::signal::Signal::SIGKILL)?;
    }
    let (said, held) = (String::from_utf8_lossy(&output.stderr).into_owned(), fs::read_to_string(&leases).unwrap_or_default());
    Ok(format!("{said}\n{held}"))
}

#[test]
fn dhclient_gets_the_address_of_its_mac_with_any_duid() -> Result<()> {
    let (net, _daemon) = serve("six-dhclient", "managed", false)?;
    let client = client(&net, MAC)?;
    for duid in [&["-D", "LL"], &["-D", "LLT"]] {
        let said = dhclient(&net, &client, duid)?;
        ensure!(said.contains(&format!("iaaddr {GIVEN}")), "{said}");
        ensure!(said.contains("preferred-life 3600") && said.contains("max-life 7200"), "{said}");
    }
    let other = crate::ipv6::client(&net, "52:54:00:00:06:02")?;
    let said = dhclient(&net, &other, &[])?;
    ensure!(said.contains("iaaddr fd00:77::6b75:5254:0:602"), "{said}");
    net.passed();
    Ok(())
}

/// With a link-local address that does not tell its MAC: the kernel's neighbours do.
#[test]
fn dhcpcd_follows_the_advertisement_to_the_address_of_its_mac() -> Result<()> {
    let (net, _daemon) = serve("six-dhcpcd", "managed", true)?;
    let client = client(&net, "52:54:00:00:06:07")?;
    let conf = net.path("dhcpcd.conf");
    fs::write(&conf, "ipv6only\nslaac private\nnodelay\ntimeout 25\nnohook resolv.conf\nscript /bin/true\n")?;
    let conf = conf.to_string_lossy().into_owned();
    let output = client.output("dhcpcd", &["-6", "-1", "-B", "-d", "-f", &conf, "eth0"])?;
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(said.contains("fd00:77::6b75:5254:0:607"), "{said}");
    ensure!(!said.contains("default route"), "never a default router: {said}");
    net.passed();
    Ok(())
}

#[test]
fn rdisc6_sees_the_prefix_the_flags_and_no_default_router() -> Result<()> {
    for (mode, stateful, other, autonomous) in
        [("managed", "Yes", "Yes", "No"), ("stateless", "No", "Yes", "Yes"), ("off", "No", "No", "Yes")]
    {
        let (net, _daemon) = serve(&format!("six-rdisc-{mode}"), mode, true)?;
        let client = client(&net, MAC)?;
        let output = client.output("rdisc6", &["-1", "-w", "5000", "eth0"])?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let has = |name: &str, value: &str| {
            said.lines().any(|line| line.split_once(':').is_some_and(|(n, v)| n.trim() == name && v.trim_start().starts_with(value)))
        };
        for (name, value) in [
            ("Stateful address conf.", stateful),
            ("Stateful other conf.", other),
            ("Router lifetime", "0 "),
            ("Prefix", "fd00:77::/64"),
            ("On-link", "Yes"),
            ("Autonomous address conf.", autonomous),
        ] {
            ensure!(has(name, value), "{mode}: {name} is not {value}: {said}");
        }
        let routes = client.ip(&["-6", "route", "show", "default"])?;
        ensure!(routes.trim().is_empty(), "a default route: {routes}");
        net.passed();
    }
    Ok(())
}

#[test]
fn edk2_pxe_and_http_boot_get_their_urls_by_their_link_local_address() -> Result<()> {
    let (net, _daemon) = serve("six-edk2", "managed", false)?;
    let client = client(&net, MAC)?;
    for (arch, class, url) in [
        (7, "PXEClient:Arch:00007:UNDI:003016", "tftp://[fd00:77::1]/snponly.efi"),
        (16, "HTTPClient:Arch:00016:UNDI:003016", "http://[fd00:77::1]/files/snponly.efi"),
    ] {
        let answer = ask(&client, edk2_solicit(arch, class), Duration::from_secs(10))?.context("no ADVERTISE")?;
        let options = read(&answer, ADVERTISE)?;
        let ia = options.bytes(option::IA_NA).context("no address")?;
        ensure!(ia.get(16..32) == Some(&GIVEN.parse::<Ipv6Addr>()?.octets()[..]), "another address: {ia:?}");
        ensure!(options.bytes(option::BOOTFILE_URL) == Some(url.as_bytes()), "another URL: {options:?}");
        let echoed = options.bytes(option::VENDOR_CLASS).is_some();
        ensure!(echoed == class.starts_with("HTTP"), "{class}: option 16 {echoed}");
    }
    let solicit = message(1, &[(1, &[0, 4, 1]), (option::IA_NA, &[0; 12]), (61, &[0, 7]), (15, b"\x00\x04iPXE")]);
    let options = read(&ask(&client, solicit, Duration::from_secs(10))?.context("no ADVERTISE for iPXE")?, ADVERTISE)?;
    ensure!(options.bytes(option::BOOTFILE_URL) == Some(&b"http://[fd00:77::1]/files/autoexec.ipxe"[..]), "{options:?}");
    net.passed();
    Ok(())
}

#[test]
fn stateless_informs_and_gives_no_address() -> Result<()> {
    let (net, _daemon) = serve("six-stateless", "stateless", false)?;
    let client = client(&net, MAC)?;
    let answer = ask(&client, message(11, &[(61, &[0, 7])]), Duration::from_secs(10))?.context("no REPLY")?;
    ensure!(read(&answer, REPLY)?.bytes(option::BOOTFILE_URL).is_some(), "{answer:?}");
    let answer = ask(&client, edk2_solicit(7, "PXEClient:Arch:00007:UNDI:003016"), Duration::from_secs(10))?.context("no ADVERTISE")?;
    let options = read(&answer, ADVERTISE)?;
    let ia = options.bytes(option::IA_NA).context("no answer to IA_NA")?;
    ensure!(ia.get(12..14) == Some(&[0, 13]) && ia.get(16..18) == Some(&[0, 2]), "NoAddrsAvail: {options:?}");
    ensure!(options.bytes(option::VENDOR_CLASS).is_some(), "a boot server beside the one with the addresses: {options:?}");
    let system = message(1, &[(1, &[0, 4, 1]), (option::IA_NA, &[0; 12])]);
    ensure!(ask(&client, system, SILENCE)?.is_none(), "an operating system is left to the other server");
    net.passed();
    Ok(())
}

#[test]
fn loaders_and_scripts_come_over_ipv6_and_not_to_a_revoked_machine() -> Result<()> {
    let (net, daemon) = serve("six-files", "managed", false)?;
    for part in ["TFTP: serving", "boot plane is served"] {
        wait_for(part, || daemon.log().lines().any(|line| line.contains(part) && line.contains(OWN)))?;
    }
    let revoked = "52:54:00:00:06:09";
    revoke(&net.api()?, revoked)?;
    let (good, bad) = (client(&net, MAC)?, client(&net, revoked)?);
    good.ip(&["addr", "add", &format!("{GIVEN}/64"), "dev", "eth0", "nodad"])?;
    // Of no form that tells the machine.
    bad.ip(&["addr", "add", "fd00:77::99/64", "dev", "eth0", "nodad"])?;
    let got = net.path("got").to_string_lossy().into_owned();
    for url in ["tftp://[fd00:77::1]/snponly.efi", "http://[fd00:77::1]/files/snponly.efi"] {
        let fetch = ["-g", "-s", "-S", "-f", "-m", "10", "-o", &got, url];
        let output = good.output("curl", &fetch)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success() && fs::read(&got)? == loader(0), "{url}: {said}");
        let output = bad.output("curl", &["-g", "-s", "-S", "-f", "-m", "3", "-o", &got, url])?;
        ensure!(!output.status.success(), "{url}: a revoked machine got it");
    }
    for url in ["tftp://[fd00:77::1]/autoexec.ipxe", "http://[fd00:77::1]/files/autoexec.ipxe", "http://[fd00:77::1]/boot.ipxe"] {
        let script = good.output("curl", &["-g", "-s", "-m", "10", url])?;
        let text = String::from_utf8_lossy(&script.stdout).into_owned();
        ensure!(text.starts_with("#!ipxe\n") && text.contains("http://10.77.0.1"), "{url} leads on to IPv4: {text}");
    }
    ensure!(ask(&bad, edk2_solicit(7, "PXEClient:Arch:00007"), SILENCE)?.is_none(), "a revoked machine got an ADVERTISE");
    net.passed();
    Ok(())
}

#[test]
fn a_revoked_machine_is_met_with_silence() -> Result<()> {
    let (net, _daemon) = serve("six-revoked", "managed", false)?;
    let client = client(&net, MAC)?;
    let solicit = edk2_solicit(7, "PXEClient:Arch:00007:UNDI:003016");
    ensure!(ask(&client, solicit.clone(), Duration::from_secs(10))?.is_some(), "no ADVERTISE");
    revoke(&net.api()?, MAC)?;
    ensure!(ask(&client, solicit, SILENCE)?.is_none(), "a revoked machine got an ADVERTISE");
    ensure!(ask(&client, message(11, &[(61, &[0, 7])]), SILENCE)?.is_none(), "a revoked machine got a REPLY");
    net.passed();
    Ok(())
}

/// Junk and messages by the thousand: the daemon answers after it as before.
#[test]
fn a_flood_of_junk_is_survived_and_logged_in_few_lines() -> Result<()> {
    let (net, daemon) = serve("six-junk", "managed", true)?;
    let client = client(&net, MAC)?;
    let before = daemon.log().len();
    client.enter(|| -> Result<()> {
        let index = nix::net::if_::if_nametoindex("eth0")?;
        let socket = UdpSocket::bind("[::]:0")?;
        let mut word = 1_u32;
        for n in 0..5000_usize {
            let octets: Vec<u8> = (0..n % 300)
                .map(|_| {
                    word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    u8::try_from(word >> 24).unwrap_or(0)
                })
                .collect();
            // The kernel's queue may be full: the flood goes on.
            let _ = socket.send_to(&[&[u8::try_from(n % 16).unwrap_or(0)][..], &octets].concat(), SocketAddrV6::new(GROUP, 547, 0, index));
        }
        Ok(())
    })??;
    let solicit = edk2_solicit(7, "PXEClient:Arch:00007:UNDI:003016");
    let mut answered = false;
    wait_for("an ADVERTISE after the flood", || {
        answered = ask(&client, solicit.clone(), Duration::from_secs(1)).is_ok_and(|answer| answer.is_some());
        answered
    })?;
    let lines = daemon.log().get(before..).unwrap_or_default().lines().filter(|line| line.contains("DHCPv6")).count();
    ensure!(lines < 60, "{lines} lines of the log");
    net.passed();
    Ok(())
}
