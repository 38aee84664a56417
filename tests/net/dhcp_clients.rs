//! Clients and a relay that others wrote, and networks that lose and reorder frames.

use crate::net::{Client, DEADLINE, Net, SERVER, wait_for};
use crate::raw_dhcp::{ACK, NAK, REQUEST, RawDhcp, kind, message};
use anyhow::{Context, Result, bail, ensure};
use kurrent_core::dhcp::wire::{self, OP_REPLY, Packet, option};
use kurrent_harness::process::{Lifetime, Process};
use kurrent_harness::tools::run;
use kurrent_harness::wire::Wire;
use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 9, 1];
/// The relay's addresses: towards the appliance, towards its machines.
const RELAY: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);

fn machine(net: &Net) -> Result<Client> {
    net.client(&kurrent_core::id::MacAddr(MAC).to_string())
}

/// The address in what a client says: after a word.
fn after(said: &[u8], word: &str) -> Option<Ipv4Addr> {
    let said = String::from_utf8_lossy(said).into_owned();
    said.split(word).nth(1).and_then(|rest| rest.split([' ', ',', '\n']).next()).and_then(|a| a.parse().ok())
}

#[test]
fn dhcpcd_gets_the_address_of_its_machine() -> Result<()> {
    let net = Net::new("dhcpcd")?;
    let _daemon = net.serve()?;
    let client = machine(&net)?;
    let own = RawDhcp::open(&client)?.lease(MAC, 1, &[])?.yiaddr;
    // Without its own ARP probes, which take seconds, and without touching this machine's resolv.conf.
    let output = client.output("dhcpcd", &["-4", "-1", "-B", "-A", "-t", "25", "-f", "/dev/null", "-c", "/bin/true", "eth0"])?;
    let said = [output.stdout, output.stderr].concat();
    ensure!(after(&said, "leased ") == Some(own), "{own}: {}", String::from_utf8_lossy(&said));
    net.passed();
    Ok(())
}

#[test]
fn dhcping_is_answered() -> Result<()> {
    let net = Net::new("dhcping")?;
    let _daemon = net.serve()?;
    let client = machine(&net)?;
    let own = RawDhcp::open(&client)?.lease(MAC, 1, &[])?.yiaddr;
    client.address(&format!("{own}/24"))?;
    let (own, mac, server) = (own.to_string(), kurrent_core::id::MacAddr(MAC).to_string(), SERVER.to_string());
    // -i: INFORM. Its REQUEST is one of RENEWING that names a server, which ends in a RELEASE.
    for more in [&["-i"][..], &[]] {
        let output = client.output("dhcping", &[more, &["-v", "-t", "10", "-c", &own, "-s", &server, "-h", &mac]].concat())?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && said.contains("Got answer from"), "{more:?}: {said}");
    }
    net.passed();
    Ok(())
}

/// systemd-networkd without systemd: its folders in a mount namespace of its own, which ends with it. A `/sys` that cannot be
/// written is what tells it that no udev is there to wait for, as in a container. It ends when it has said what we wait for.
const NETWORKD: &str = "mount -t tmpfs tmpfs /run/systemd && mount -o remount,bind,ro /sys && mkdir /run/systemd/network || exit 1
printf '[Match]\\nName=eth0\\n[Network]\\nDHCP=ipv4\\nLinkLocalAddressing=no\\n[DHCPv4]\\nSendRelease=no\\n' > /run/systemd/network/eth0.network
SYSTEMD_LOG_LEVEL=debug SYSTEMD_LOG_TARGET=console timeout 25 /lib/systemd/systemd-networkd 2>&1 | sed '/acquired from/q'";

#[test]
fn networkd_gets_the_address_of_its_machine() -> Result<()> {
    let net = Net::new("networkd")?;
    let _daemon = net.serve()?;
    let client = machine(&net)?;
    // By its own client identifier (RFC 4361) it would be another machine than the loader before it: the MAC holds.
    let own = RawDhcp::open(&client)?.lease(MAC, 1, &[])?.yiaddr;
    fs::create_dir_all("/run/systemd")?;
    let output = client.output("unshare", &["--mount", "sh", "-c", NETWORKD])?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let lease = format!("DHCPv4 address {own}/24");
    ensure!(said.lines().any(|line| line.contains(&lease) && line.contains(&format!("acquired from {SERVER}"))), "{own}: {said}");
    net.passed();
    Ok(())
}

/// A network behind a relay, which is its router too.
struct Relayed {
    _dhcrelay: Process,
    machine: Client,
    _relay: Client,
}

impl Relayed {
    fn new(net: &Net) -> Result<Self> {
        let relay = net.client("52:54:00:00:09:f0")?;
        relay.address(&format!("{RELAY}/24"))?;
        let machine = net.client("52:54:00:00:09:f1")?;
        machine.ip(&["link", "delete", "eth0"])?;
        relay.ip(&["link", "add", "eth1", "type", "veth", "peer", "name", "eth0", "netns", &machine.netns])?;
        relay.ip(&["address", "add", &format!("{GATEWAY}/24"), "dev", "eth1"])?;
        relay.ip(&["link", "set", "eth1", "up"])?;
        machine.ip(&["link", "set", "eth0", "address", &kurrent_core::id::MacAddr(MAC).to_string()])?;
        machine.ip(&["link", "set", "eth0", "up"])?;
        relay.enter(|| fs::write("/proc/sys/net/ipv4/ip_forward", "1"))??;
        run(net.command("ip").args(["route", "add", "10.78.0.0/24", "via", &RELAY.to_string()]))?;
        let mut command = Command::new("ip");
        // -a: append option 82.
        command.args([
            "netns",
            "exec",
            &relay.netns,
            "dhcrelay",
            "-4",
            "-d",
            "-a",
            "--no-pid",
            "-id",
            "eth1",
            "-iu",
            "eth0",
            &SERVER.to_string(),
        ]);
        let dhcrelay = Process::start("dhcrelay", command, Lifetime::Ours)?;
        Ok(Self { _dhcrelay: dhcrelay, machine, _relay: relay })
    }
}

const SUBNETS: &str = "  dhcp:\n    subnets:\n      - network: 10.78.0.0/24\n        range:\n          start: 10.78.0.10\n          end: 10.78.0.20\n        router: 10.78.0.1\n";

/// The DHCP message in a frame from port 67.
fn dhcp(frame: &[u8]) -> Option<(Vec<u8>, Packet)> {
    let from_server = frame.get(12..14)? == [8, 0] && frame.get(23) == Some(&17) && frame.get(34..36)? == [0, 67];
    let octets = frame.get(42..)?.to_vec();
    let packet = wire::decode(&octets).ok()?;
    from_server.then_some((octets, packet))
}

#[test]
fn udhcpc_behind_dhcrelay_gets_an_address_there_and_option_82_comes_back_as_it_was_and_last() -> Result<()> {
    let net = Net::new("relay")?;
    net.configure(SUBNETS)?;
    let _daemon = net.serve()?;
    let mut seen = Wire::in_netns(net.netns(), "boot")?;
    let relayed = Relayed::new(&net)?;
    let output = relayed.machine.output("udhcpc", &["-i", "eth0", "-f", "-q", "-n", "-t", "8", "-T", "2", "-s", "/bin/true"])?;
    let own = after(&output.stderr, "lease of ").with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    ensure!(Ipv4Addr::new(10, 78, 0, 10) <= own && own <= Ipv4Addr::new(10, 78, 0, 20), "{own}");
    let (mut asked, mut answered) = (None, None);
    seen.receive(DEADLINE, |frame| {
        match dhcp(frame) {
            Some((octets, packet)) if packet.op == OP_REPLY && packet.giaddr == GATEWAY => {
                answered = Some((frame[30..34].to_vec(), octets, packet))
            }
            Some((_, packet)) if packet.giaddr == GATEWAY => asked = packet.options.bytes(option::RELAY_AGENT).map(<[u8]>::to_vec),
            Some(_) | None => {}
        }
        answered.is_some()
    })?;
    let ((to, octets, packet), asked) = (answered.context("an answer to the relay")?, asked.context("option 82 in the request")?);
    ensure!(to == GATEWAY.octets(), "to the relay's address");
    ensure!(packet.options.bytes(option::RELAY_AGENT) == Some(&asked[..]), "echoed");
    let end = [&[option::RELAY_AGENT, u8::try_from(asked.len())?], &asked[..], &[255]].concat();
    let at = octets.windows(end.len()).position(|window| window == end).context("option 82 right before the end")?;
    ensure!(octets[at + end.len()..].iter().all(|octet| *octet == 0), "nothing follows it");
    net.passed();
    Ok(())
}

/// Kea's own load, which plays the relay of its machines: each exchange it begins is answered to the end.
#[test]
fn perfdhcp_sees_every_one_of_its_exchanges_answered() -> Result<()> {
    const MACHINES: &str = "60";
    let net = Net::new("perfdhcp")?;
    let _daemon = net.serve()?;
    let client = net.client("52:54:00:00:09:70")?;
    client.address("10.77.0.20/24")?;
    let output =
        client.output("perfdhcp", &["-4", "-l", "10.77.0.20", "-r", "30", "-R", MACHINES, "-n", MACHINES, "-W", "2000000", "10.77.0.1"])?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let told =
        |what: &str| said.lines().filter_map(|line| line.trim().strip_prefix(what)).map(|rest| rest.trim().to_owned()).collect::<Vec<_>>();
    // Of DISCOVER and OFFER, then of REQUEST and ACK.
    let [sent, received, drops] = ["sent packets:", "received packets:", "drops:"].map(told);
    ensure!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    ensure!(sent == [MACHINES, MACHINES] && received == sent && drops == ["0", "0"], "{said}");
    net.passed();
    Ok(())
}

#[test]
fn a_lease_behind_a_router_is_renewed_by_unicast() -> Result<()> {
    let net = Net::new("renew")?;
    net.configure(SUBNETS)?;
    let _daemon = net.serve()?;
    let relayed = Relayed::new(&net)?;
    let raw = RawDhcp::open(&relayed.machine)?;
    let mut own = None;
    // The relay needs a moment to open its sockets.
    wait_for("a lease through the relay", || {
        own = raw.ask(&message(1, MAC, 1, &[]), Duration::from_secs(1)).ok().flatten().map(|offer| offer.yiaddr);
        own.is_some()
    })?;
    let own = own.context("an address")?;
    let ack =
        raw.ask(&message(REQUEST, MAC, 2, &[(option::REQUESTED_ADDRESS, &own.octets()), (option::SERVER_ID, &SERVER.octets())]), DEADLINE)?;
    ensure!(ack.as_ref().map(kind) == Some(ACK), "{ack:?}");
    relayed.machine.address(&format!("{own}/24"))?;
    relayed.machine.ip(&["route", "add", "default", "via", &GATEWAY.to_string()])?;
    let renewal = Packet { ciaddr: own, flags: 0, ..message(REQUEST, MAC, 3, &[]) };
    // Another machine believes that the address is its own: it is told where it hears it.
    let wrong = Packet { ciaddr: own, flags: 0, ..message(REQUEST, [0x52, 0x54, 0, 0, 9, 0x66], 4, &[]) };
    let answers = relayed.machine.enter(move || -> Result<Vec<Packet>> {
        let socket = UdpSocket::bind((own, 68))?;
        socket.set_read_timeout(Some(DEADLINE))?;
        let ask = |asked: &Packet| {
            socket.send_to(&wire::encode(asked, 1472), (SERVER, 67))?;
            let mut buffer = [0; 2048];
            loop {
                let (len, from) = socket.recv_from(&mut buffer)?;
                let packet = wire::decode(&buffer[..len])?;
                // The relay may still bring answers to the questions before.
                if packet.xid == asked.xid {
                    ensure!(from == (SERVER, 67).into(), "from {from}");
                    return Ok(packet);
                }
            }
        };
        [&renewal, &wrong].into_iter().map(ask).collect()
    })??;
    let [answer, refusal] = answers.as_slice() else { bail!("{answers:?}") };
    ensure!(kind(answer) == ACK && answer.yiaddr == own && answer.giaddr.is_unspecified(), "{answer:?}");
    ensure!(kind(refusal) == NAK && refusal.xid == 4, "{refusal:?}");
    net.passed();
    Ok(())
}

/// Forwards frames between two interfaces of one namespace until it is told to end: of each three one is lost, and of the others
/// each second is held back until another one has passed.
fn lossy(netns: &str, ended: &Arc<AtomicBool>) -> Result<Vec<std::thread::JoinHandle<()>>> {
    let way = |from: &str, to: &str, port: u8, first: usize| -> Result<_> {
        let (mut from, to, ended) = (Wire::in_netns(netns, from)?, Wire::in_netns(netns, to)?, ended.clone());
        Ok(std::thread::spawn(move || {
            let (mut count, mut held): (usize, Option<Vec<u8>>) = (first, None);
            while !ended.load(Ordering::Relaxed) {
                // Only DHCP: the kernel's own chatter would decide what is lost. And only this way: a packet socket hears also what
                // is sent on its interface.
                let wanted = |frame: &[u8]| frame.get(23) == Some(&17) && frame.get(36..38) == Some(&[0, port]);
                let Ok(Some(frame)) = from.receive(Duration::from_millis(50), wanted) else {
                    held.take().into_iter().for_each(|frame| drop(to.send(&frame)));
                    continue;
                };
                count += 1;
                if count % 3 == 0 {
                    continue;
                }
                let now = if count % 2 == 0 { held.replace(frame) } else { Some(frame) };
                now.into_iter().chain(if count % 2 == 1 { held.take() } else { None }).for_each(|frame| drop(to.send(&frame)));
            }
        }))
    };
    Ok(vec![way("in", "out", 67, 1)?, way("out", "in", 68, 0)?])
}

#[test]
fn dora_completes_where_a_third_of_the_frames_is_lost_and_others_change_places() -> Result<()> {
    let net = Net::new("lossy")?;
    let _daemon = net.serve()?;
    let client = machine(&net)?;
    // A namespace in between: `out` is on the boot network, `in` faces the machine.
    let between = net.client("52:54:00:00:09:f0")?;
    between.ip(&["link", "set", "eth0", "down"])?;
    between.ip(&["link", "set", "eth0", "name", "out"])?;
    between.ip(&["link", "set", "out", "promisc", "on", "up"])?;
    client.ip(&["link", "delete", "eth0"])?;
    between.ip(&["link", "add", "in", "type", "veth", "peer", "name", "eth0", "netns", &client.netns])?;
    between.ip(&["link", "set", "in", "promisc", "on", "up"])?;
    client.ip(&["link", "set", "eth0", "address", &kurrent_core::id::MacAddr(MAC).to_string(), "up"])?;
    let ended = Arc::new(AtomicBool::new(false));
    let forwarders = lossy(&between.netns, &ended)?;
    let output = client.output("udhcpc", &["-i", "eth0", "-f", "-q", "-n", "-t", "12", "-T", "1", "-s", "/bin/true"]);
    ended.store(true, Ordering::Relaxed);
    forwarders.into_iter().for_each(|forwarder| drop(forwarder.join()));
    let output = output?;
    let own = after(&output.stderr, "lease of ").with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    ensure!(own > SERVER);
    net.passed();
    Ok(())
}
