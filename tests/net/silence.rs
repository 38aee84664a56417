//! One policy on every path: who is revoked, or not known where only known machines are served, hears nothing at all. Each path is
//! walked twice: it answers a machine that is served, and then it does not. (The data plane is walked in the machine tests.)

use crate::ipv6;
use crate::net::{Client, DEADLINE, Net, SERVER, SILENCE, bind_again, register, wait_for};
use crate::raw_dhcp::{DISCOVER, REQUEST, RawDhcp, message};
use crate::raw_tftp;
use anyhow::{Result, ensure};
use kurrent_core::dhcp::wire::{self, Packet, option};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 6, 1];
const MAC_TEXT: &str = "52:54:00:00:06:01";
/// Its IPv6 address, which tells its MAC.
const GIVEN6: &str = "fd00:77::6b75:5254:0:601";
const RELAY: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const INFORM: u8 = 8;
/// Network boot firmware, so that proxy offers and port 4011 are for it.
const FIRMWARE: [(u8, &[u8]); 3] = [(60, b"PXEClient:Arch:00007:UNDI:003016"), (93, &[0, 7]), (97, &[0; 17])];
const SIX: &str = "  networking:\n    boot:\n      address6: fd00:77::1/64\n  dhcp6:\n    mode: managed\n";
const SUBNET: &str = "    subnets:\n      - network: 10.78.0.0/24\n        router: 10.78.0.1\n";

/// A machine and where it asks from.
struct Machine {
    client: Client,
    raw: RawDhcp,
    address: Ipv4Addr,
}

fn options<'a>(more: &[(u8, &'a [u8])]) -> Vec<(u8, &'a [u8])> {
    FIRMWARE.iter().copied().chain(more.iter().copied()).collect()
}

impl Machine {
    fn new(net: &Net) -> Result<Self> {
        net.ip(&["route", "replace", "10.78.0.0/24", "dev", "boot"])?;
        let client = ipv6::client(net, MAC_TEXT)?;
        client.ip(&["addr", "add", &format!("{RELAY}/32"), "dev", "eth0"])?;
        client.ip(&["addr", "add", &format!("{GIVEN6}/64"), "dev", "eth0", "nodad"])?;
        let raw = RawDhcp::open(&client)?;
        Ok(Self { client, raw, address: Ipv4Addr::UNSPECIFIED })
    }

    fn with_address(mut self, address: Ipv4Addr) -> Result<Self> {
        self.client.address(&format!("{address}/24"))?;
        self.address = address;
        Ok(self)
    }

    /// The DHCP messages that get an answer, by path.
    fn questions(&self) -> Vec<(&'static str, Packet)> {
        let own = self.address.octets();
        let at = |packet: Packet| Packet { ciaddr: self.address, flags: 0, ..packet };
        let all = [
            ("DISCOVER", message(DISCOVER, MAC, 0, &options(&[]))),
            ("REQUEST after a restart", message(REQUEST, MAC, 0, &options(&[(option::REQUESTED_ADDRESS, &own)]))),
            ("REQUEST to renew", at(message(REQUEST, MAC, 0, &options(&[])))),
            ("INFORM", at(message(INFORM, MAC, 0, &options(&[])))),
            ("BOOTP", Packet { options: wire::Options::default(), ..message(DISCOVER, MAC, 0, &[]) }),
        ];
        all.into_iter().zip(1..).map(|((path, packet), xid)| (path, Packet { xid, ..packet })).collect()
    }

    /// The paths on which it heard something.
    fn heard(&self) -> Result<BTreeSet<&'static str>> {
        // What was sent late to an earlier question is no answer to these.
        while self.raw.receive(Duration::from_millis(10), |_| true).is_some() {}
        let mut heard = BTreeSet::new();
        let questions = self.questions();
        for (_, packet) in &questions {
            self.raw.send(packet)?;
        }
        let at_4011 = Packet { xid: 4011, ciaddr: self.address, flags: 0, ..message(REQUEST, MAC, 4011, &options(&[])) };
        self.raw.send_between(&at_4011, SocketAddrV4::new(self.address, 68), SocketAddrV4::new(SERVER, 4011))?;
        let relayed = Packet { giaddr: RELAY, hops: 1, flags: 0, ..message(DISCOVER, MAC, 78, &options(&[])) };
        let relay = self.client.enter(|| bind_again((RELAY, 67).into()))??;
        relay.send_to(&wire::encode(&relayed, 1472), (SERVER, 67))?;
        let tftp = [(1, "snponly.efi"), (1, "autoexec.ipxe"), (1, "nothing"), (2, "snponly.efi")];
        let mut transfers = Vec::new();
        for ((opcode, name), path) in tftp.into_iter().zip(["TFTP loader", "TFTP script", "TFTP no such file", "TFTP write"]) {
            let socket = raw_tftp::socket(&self.client, self.address)?;
            socket.send_to(&raw_tftp::request(opcode, name, &[]), (SERVER, 69))?;
            transfers.push((path, socket));
        }
        let until = Instant::now() + SILENCE;
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            let Some(answer) = self.raw.receive(left, |_| true) else { break };
            heard.extend(questions.iter().find(|(_, packet)| packet.xid == answer.xid).map(|(path, _)| *path));
            heard.extend((answer.xid == 4011).then_some("port 4011"));
        }
        relay.set_read_timeout(Some(Duration::from_millis(10)))?;
        heard.extend(relay.recv(&mut [0; 2048]).is_ok().then_some("DISCOVER through a relay"));
        for (path, socket) in transfers {
            socket.set_read_timeout(Some(Duration::from_millis(10)))?;
            heard.extend(socket.recv(&mut [0; 2048]).is_ok().then_some(path));
        }
        for (path, arguments) in [
            ("HTTP script", vec!["http://10.77.0.1/boot.ipxe"]),
            ("HTTP loader", vec!["http://10.77.0.1/files/snponly.efi"]),
            ("HTTP report", vec!["-d", "mac=52:54:00:00:06:01", "http://10.77.0.1/devices/report"]),
            ("HTTP challenge", vec!["-d", "mac=52:54:00:00:06:01", "http://10.77.0.1/devices/challenge"]),
            ("HTTP boot-vars", vec!["-d", "mac=52:54:00:00:06:01", "http://10.77.0.1/boot-vars"]),
            ("HTTP script over IPv6", vec!["http://[fd00:77::1]/boot.ipxe"]),
            ("TFTP loader over IPv6", vec!["tftp://[fd00:77::1]/snponly.efi"]),
        ] {
            let output = self.client.output("curl", &[&["-s", "-f", "-m", "2", "-o", "/dev/null"], &arguments[..]].concat())?;
            heard.extend(output.status.success().then_some(path));
        }
        let duid = [&[0, 3, 0, 1][..], &MAC].concat();
        let ia = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        for (path, kind, list) in [
            ("SOLICIT", 1, vec![(1, &duid[..]), (3, &ia[..]), (8, &[0, 0])]),
            ("INFORMATION-REQUEST", 11, vec![(1, &duid[..]), (6, &[0, 59])]),
        ] {
            heard.extend(ipv6::ask(&self.client, ipv6::message(kind, &list), SILENCE)?.is_some().then_some(path));
        }
        Ok(heard)
    }
}

impl Machine {
    /// Asks until it has heard something on each of these paths, and returns where it has: a busy machine may answer late.
    fn hears(&self, paths: &[&'static str]) -> Result<BTreeSet<&'static str>> {
        let deadline = Instant::now() + DEADLINE;
        let mut heard = self.heard()?;
        while !paths.iter().all(|path| heard.contains(path)) && Instant::now() < deadline {
            heard.extend(self.heard()?);
        }
        let not_heard: Vec<_> = paths.iter().filter(|path| !heard.contains(*path)).collect();
        ensure!(not_heard.is_empty(), "served, and not heard on {not_heard:?}");
        Ok(heard)
    }
}

/// What a machine that is served hears, in server mode.
const ALL: [&str; 20] = [
    "DISCOVER",
    "REQUEST after a restart",
    "REQUEST to renew",
    "INFORM",
    "BOOTP",
    "port 4011",
    "DISCOVER through a relay",
    "TFTP loader",
    "TFTP script",
    "TFTP no such file",
    "TFTP write",
    "HTTP script",
    "HTTP loader",
    "HTTP report",
    "HTTP challenge",
    "HTTP boot-vars",
    "HTTP script over IPv6",
    "TFTP loader over IPv6",
    "SOLICIT",
    "INFORMATION-REQUEST",
];

fn serve(net: &Net, spec: &str) -> Result<crate::net::Daemon> {
    net.configure(&format!("{SIX}{spec}"))?;
    let daemon = net.serve()?;
    daemon.wait_for_log("DHCPv6: serving")?;
    daemon.wait_for_log("PXE: serving port 4011")?;
    let script =
        || net.command("curl").args(["-s", "-f", "http://10.77.0.1/boot.ipxe"]).output().is_ok_and(|output| output.status.success());
    wait_for("the boot plane", script)?;
    Ok(daemon)
}

fn with_six(test: &str) -> Result<Net> {
    let net = Net::new(test)?;
    net.ip(&["addr", "add", "fd00:77::1/64", "dev", "boot", "nodad"])?;
    Ok(net)
}

#[test]
fn k12_a_revoked_device_hears_nothing_on_any_path() -> Result<()> {
    let net = with_six("silence-revoked")?;
    let _daemon = serve(&net, &format!("  dhcp:\n{SUBNET}"))?;
    let api = net.api()?;
    register(&api, MAC_TEXT)?;
    let machine = Machine::new(&net)?;
    let address = machine.raw.lease(MAC, 1, &FIRMWARE)?.yiaddr;
    let machine = machine.with_address(address)?;
    machine.hears(&ALL)?;
    api.ask("POST", &format!("/v1/devices/{MAC_TEXT}/revoke"), Some(&serde_json::json!({})))?;
    let heard = machine.heard()?;
    ensure!(heard.is_empty(), "revoked, and heard on {heard:?}");
    net.passed();
    Ok(())
}

#[test]
fn a_machine_that_is_not_known_hears_nothing_on_any_path_where_only_known_ones_are_served() -> Result<()> {
    let net = with_six("silence-unknown")?;
    let daemon = serve(&net, &format!("  dhcp:\n    bootp: on\n{SUBNET}"))?;
    let machine = Machine::new(&net)?;
    let address = machine.raw.lease(MAC, 1, &FIRMWARE)?.yiaddr;
    let machine = machine.with_address(address)?;
    machine.hears(&ALL)?;
    daemon.kill();
    let _daemon = serve(&net, &format!("  dhcp:\n    bootp: on\n    unknownDevices: off\n{SUBNET}"))?;
    let heard = machine.heard()?;
    ensure!(heard.is_empty(), "not known, and heard on {heard:?}");
    net.passed();
    Ok(())
}

/// Nobody told us the address of this machine but the kernel's neighbours.
#[test]
fn a_revoked_device_hears_nothing_on_any_path_in_proxy_mode() -> Result<()> {
    let net = with_six("silence-proxy")?;
    let _daemon = serve(&net, "  dhcp:\n    mode: proxy\n")?;
    let api = net.api()?;
    register(&api, MAC_TEXT)?;
    let machine = Machine::new(&net)?.with_address(Ipv4Addr::new(10, 77, 0, 20))?;
    let served = machine.hears(&["DISCOVER", "port 4011", "TFTP loader", "TFTP write", "HTTP script", "HTTP report", "SOLICIT"])?;
    ensure!(served.is_disjoint(&BTreeSet::from(["REQUEST to renew", "BOOTP"])), "no address is ours to give: {served:?}");
    api.ask("POST", &format!("/v1/devices/{MAC_TEXT}/revoke"), Some(&serde_json::json!({})))?;
    let heard = machine.heard()?;
    ensure!(heard.is_empty(), "revoked, and heard on {heard:?}");
    net.passed();
    Ok(())
}
