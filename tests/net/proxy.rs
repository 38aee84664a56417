//! Proxy mode beside another DHCP server (dnsmasq), as machines see it; and port 4011 in server mode.

use crate::net::{Client, DEADLINE, Net, SERVER, SILENCE, revoke, wait_for};
use crate::raw_dhcp::{ACK, DISCOVER, OFFER, REQUEST, RawDhcp, kind, message};
use anyhow::{Context, Result, ensure};
use kurrent_core::dhcp::wire::{self, FLAG_BROADCAST, Packet, option};
use kurrent_harness::process::{Lifetime, Process};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

/// The machine with the other server.
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const OTHER_MAC: &str = "52:54:00:00:09:02";
const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 9, 1];
const UEFI: &[(u8, &[u8])] = &[(60, b"PXEClient:Arch:00007:UNDI:003016"), (93, &[0, 7]), (97, &[0; 17])];
const PROXY: &str = "  dhcp:\n    mode: proxy\n";

fn text(mac: [u8; 6]) -> String {
    kurrent_core::id::MacAddr(mac).to_string()
}

/// dnsmasq on a machine of its own: addresses, and nothing to boot.
fn dnsmasq(net: &Net) -> Result<(Client, Process)> {
    let machine = net.client(OTHER_MAC)?;
    machine.address(&format!("{OTHER}/24"))?;
    let log = std::fs::File::create(net.path("dnsmasq.log"))?;
    let mut command = std::process::Command::new("ip");
    command.args(["netns", "exec", &machine.netns, "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root"]);
    command.args(["--interface=eth0", "--bind-interfaces", "--dhcp-range=10.77.0.100,10.77.0.150,1h", "--no-ping", "--log-facility=-"]);
    command.arg(format!("--dhcp-leasefile={}", net.path("dnsmasq.leases").display())).arg("--pid-file=");
    command.stdout(log.try_clone()?).stderr(log);
    let process = Process::start("dnsmasq (`make deps` installs it)", command, Lifetime::Ours)?;
    let raw = RawDhcp::open(&machine)?;
    drop(raw);
    wait_for("dnsmasq", || std::fs::read_to_string(net.path("dnsmasq.log")).is_ok_and(|log| log.contains("DHCP, IP range")))?;
    Ok((machine, process))
}

/// All answers to one message until there were `enough`, or silence.
fn answers(raw: &RawDhcp, packet: &Packet, enough: usize) -> Result<Vec<Packet>> {
    raw.send(packet)?;
    let deadline = Instant::now() + if enough > 0 { DEADLINE } else { SILENCE };
    let mut all = Vec::new();
    while let Some(answer) = raw.receive(deadline.saturating_duration_since(Instant::now()), |xid| xid == packet.xid) {
        all.push(answer);
        if enough > 0 && all.len() >= enough {
            break;
        }
    }
    Ok(all)
}

fn from(answers: &[Packet], server: Ipv4Addr) -> Option<&Packet> {
    answers.iter().find(|a| a.options.address(option::SERVER_ID) == Some(server))
}

/// Asks port 4011 as firmware does, from `port`.
fn ask_4011(client: &Client, address: Ipv4Addr, port: u16, within: Duration) -> Result<Option<Packet>> {
    let mut packet = message(REQUEST, MAC, 77, UEFI);
    (packet.ciaddr, packet.flags) = (address, 0);
    let octets = wire::encode(&packet, 1472);
    client.enter(move || -> Result<Option<Packet>> {
        let socket = UdpSocket::bind(SocketAddrV4::new(address, port)).context("bind")?;
        socket.set_read_timeout(Some(within))?;
        socket.send_to(&octets, SocketAddrV4::new(SERVER, 4011))?;
        let mut buffer = [0; 2048];
        let Ok((len, from)) = socket.recv_from(&mut buffer) else { return Ok(None) };
        ensure!(from == SocketAddr::from((SERVER, 4011)), "{from}");
        Ok(Some(wire::decode(&buffer[..len])?))
    })?
}

#[test]
fn a_machine_gets_its_address_from_dnsmasq_and_what_it_boots_from_us_on_67_and_4011() -> Result<()> {
    let net = Net::new("proxy")?;
    net.configure(PROXY)?;
    let _daemon = net.serve()?;
    let (_machine, _dnsmasq) = dnsmasq(&net)?;
    let client = net.client(&text(MAC))?;
    let raw = RawDhcp::open(&client)?;
    let offers = answers(&raw, &message(DISCOVER, MAC, 1, UEFI), 2)?;
    let (address, boot) = (from(&offers, OTHER).context("an offer of dnsmasq")?, from(&offers, SERVER).context("an offer of ours")?);
    ensure!(kind(boot) == OFFER && boot.yiaddr.is_unspecified() && boot.options.bytes(60) == Some(b"PXEClient"), "{boot:?}");
    ensure!((boot.siaddr, &boot.file[..]) == (SERVER, &b"snponly.efi"[..]), "{boot:?}");
    let given = address.yiaddr;
    let mut options = UEFI.to_vec();
    let (wanted, other) = (given.octets(), OTHER.octets());
    options.extend([(option::REQUESTED_ADDRESS, &wanted[..]), (option::SERVER_ID, &other[..])]);
    let acks = answers(&raw, &message(REQUEST, MAC, 2, &options), 0)?;
    ensure!(acks.len() == 1 && kind(&acks[0]) == ACK && from(&acks, OTHER).is_some(), "only dnsmasq acknowledges: {acks:?}");
    client.address(&format!("{given}/24"))?;
    for port in [68, 4011] {
        let told = ask_4011(&client, given, port, DEADLINE)?.with_context(|| format!("an answer to port {port}"))?;
        ensure!(kind(&told) == ACK && told.yiaddr.is_unspecified() && &told.file[..] == b"snponly.efi", "{told:?}");
    }
    let output = client.output("curl", &["-s", "-m", "10", "-o", "/dev/null", &format!("tftp://{SERVER}/snponly.efi")])?;
    ensure!(output.status.success(), "TFTP");
    // The lease is the other server's, and known here.
    net.api()?.wait_for("the machine's step", &format!("/v1/devices/{}/timeline", text(MAC)), DEADLINE, |v| {
        v.to_string().contains("loader").then_some(())
    })?;
    net.passed();
    Ok(())
}

#[test]
fn a_plain_dhcp_client_never_hears_of_a_proxy() -> Result<()> {
    let net = Net::new("proxy-plain")?;
    net.configure(PROXY)?;
    let daemon = net.serve()?;
    let client = net.client(&text(MAC))?;
    let raw = RawDhcp::open(&client)?;
    // Nobody else is there: whatever comes would be ours.
    for (xid, (kind, class)) in (1..).zip([(DISCOVER, &b"udhcp 1.36.1"[..]), (REQUEST, b"MSFT 5.0"), (8, b"dhcpcd-9.4.1")]) {
        let mut packet = message(kind, MAC, xid, &[(60, class), (50, &[192, 0, 2, 9])]);
        packet.ciaddr = if kind == 8 { Ipv4Addr::new(10, 77, 0, 9) } else { packet.ciaddr };
        ensure!(answers(&raw, &packet, 0)?.is_empty(), "message type {kind} was answered");
    }
    let (_machine, _dnsmasq) = dnsmasq(&net)?;
    let arguments = ["-i", "eth0", "-f", "-q", "-n", "-t", "3", "-T", "1", "-s", "/bin/true"];
    // It gives up after three seconds, so a busy machine may need it more than once.
    wait_for("a lease of dnsmasq", || {
        let output = client.output("udhcpc", &arguments);
        output.is_ok_and(|output| String::from_utf8_lossy(&output.stderr).contains("obtained from 10.77.0.2"))
    })?;
    ensure!(!std::fs::exists(net.path("state/leases"))?, "a proxy has no leases");
    ensure!(!daemon.log().contains("offered"));
    net.passed();
    Ok(())
}

#[test]
fn a_revoked_device_is_met_with_silence_beside_another_server_whatever_address_it_takes() -> Result<()> {
    let net = Net::new("proxy-revoked")?;
    net.configure(PROXY)?;
    let _daemon = net.serve()?;
    let client = net.client(&text(MAC))?;
    let raw = RawDhcp::open(&client)?;
    // Nobody saw it ask for this one.
    let address = Ipv4Addr::new(10, 77, 0, 77);
    client.address(&format!("{address}/24"))?;
    let fetch = |url: String| client.output("curl", &["-s", "-m", "4", "-o", "/dev/null", "-w", "%{http_code}", &url]);
    wait_for("TFTP before it is revoked", || fetch(format!("tftp://{SERVER}/snponly.efi")).is_ok_and(|output| output.status.success()))?;
    revoke(&net.api()?, &text(MAC))?;
    ensure!(answers(&raw, &message(DISCOVER, MAC, 1, UEFI), 0)?.is_empty(), "port 67");
    ensure!(ask_4011(&client, address, 68, SILENCE)?.is_none(), "port 4011");
    ensure!(fetch(format!("tftp://{SERVER}/snponly.efi"))?.status.code() == Some(28), "TFTP");
    ensure!(fetch(format!("http://{SERVER}/boot.ipxe"))?.stdout != b"200", "HTTP");
    net.passed();
    Ok(())
}

#[test]
fn edk2_8149_port_4011_is_answered_in_server_mode_from_our_own_address() -> Result<()> {
    let net = Net::new("pxe-4011")?;
    let daemon = net.serve()?;
    daemon.wait_for_log("PXE: serving port 4011")?;
    let client = net.client(&text(MAC))?;
    let raw = RawDhcp::open(&client)?;
    let own = raw.lease(MAC, 1, UEFI)?.yiaddr;
    client.address(&format!("{own}/24"))?;
    let told = ask_4011(&client, own, 4011, DEADLINE)?.context("an answer")?;
    ensure!(kind(&told) == ACK && told.yiaddr.is_unspecified() && told.ciaddr == own && &told.file[..] == b"snponly.efi", "{told:?}");
    ensure!(told.flags & FLAG_BROADCAST == 0 && told.options.bytes(43).is_none());
    net.passed();
    Ok(())
}
