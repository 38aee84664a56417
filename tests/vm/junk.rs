//! What no protocol allows, on every port of a real appliance: it goes on serving, and nobody else notices.

use crate::shared;
use anyhow::{Context, Result, ensure};
use kurrent_harness::appliance::{ADDRESS, API_PORT, BOOT_PORT, wait_until};
use kurrent_harness::netns::BRIDGE;
use kurrent_harness::{netns, worker};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

const NVME_PORT: u16 = 4420;
const CONNECT_WITHIN: Duration = Duration::from_secs(30);
/// Lengths around what headers need: nothing, a cut head, a whole frame, more than any limit of ours.
const LENGTHS: [usize; 6] = [0, 1, 7, 128, 1400, 100_000];

#[test]
fn junk_on_every_port_disturbs_nobody() -> Result<()> {
    shared::with(|shared| {
        let (lab, served) = shared.worker(1)?;
        let netns = lab.appliance()?.api.netns.clone().context("machine tests have a namespace")?;
        let sent = netns::enter(&netns, || {
            let mut sent = 0;
            for (round, length) in LENGTHS.into_iter().enumerate() {
                let junk = noise(round, length);
                for port in [BOOT_PORT, API_PORT, NVME_PORT] {
                    let mut stream = TcpStream::connect_timeout(&SocketAddrV4::new(ADDRESS, port).into(), CONNECT_WITHIN)
                        .with_context(|| format!("port {port} in round {round}"))?;
                    // A server that hangs up in the middle of it does right.
                    let _ = stream.write_all(&junk);
                    sent += 1;
                }
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).context("a UDP socket")?;
                for port in [67, 68, 69, 4011] {
                    let datagram = junk.get(..length.min(1400)).unwrap_or_default();
                    // An ICMP error for an earlier datagram to a closed port is reported here; it is no fault.
                    let _ = socket.send_to(datagram, SocketAddrV4::new(ADDRESS, port));
                    sent += 1;
                }
            }
            anyhow::Ok(sent)
        })??;
        ensure!(sent == LENGTHS.len() * 7, "only {sent} were sent");
        worker::check_reads_disk(&mut served.machine)?;
        let status = lab.appliance()?.api.get("/v1/status")?;
        ensure!(!status.to_string().contains("panic"), "a part of the daemon failed: {status}");
        // The boot plane and DHCP still serve: the same machine gets through to its login again.
        served.machine.reset()?;
        worker::wait_for_login(&mut served.machine, shared::hostname(1), worker::LOGIN_WITHIN)?;
        worker::log_in(&mut served.machine)
    })
}

/// A router advertisement of a stranger reaches every machine of the link. The worker's kernel takes an address from it, which shows
/// that it is a good one; the appliance takes none, so nobody makes it answer, route or be certified under another name.
#[test]
fn a_strangers_router_advertisement_gives_the_appliance_no_address() -> Result<()> {
    shared::with(|shared| {
        let (lab, served) = shared.worker(1)?;
        let netns = lab.appliance()?.api.netns.clone().context("machine tests have a namespace")?;
        wait_until("the worker takes an address of the advertised prefix", CONNECT_WITHIN * 3, || {
            netns::enter(&netns, || advertise(PREFIX, HOUR))??;
            Ok(served.machine.console.shell("ip -6 addr show", worker::SHELL_WITHIN)?.contains("2001:db8:bad:"))
        })?;
        // An address makes a certificate with its name, seconds later.
        let deadline = Instant::now() + CERTIFIED_WITHIN;
        while Instant::now() < deadline {
            let renewed = lab.appliance()?.api.get("/v1/operations?verb=certificate_renewed")?.to_string();
            ensure!(!renewed.contains("names_changed"), "{renewed}");
            std::thread::sleep(Duration::from_secs(1));
        }
        // The worker is kept for other tests.
        netns::enter(&netns, || advertise(PREFIX, 0))?
    })
}

const HOUR: u16 = 3600;
/// kurrentd looks at its addresses every second; a certificate is made in milliseconds.
const CERTIFIED_WITHIN: Duration = Duration::from_secs(10);
const PREFIX: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xbad, 0, 0, 0, 0, 0);

/// RFC 4861 section 4.2, with one prefix for SLAAC (section 4.6.2), to all nodes. The kernel computes the checksum of this socket.
fn advertise(prefix: Ipv6Addr, seconds: u16) -> Result<()> {
    let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6)).context("a raw ICMPv6 socket")?;
    let index = nix::net::if_::if_nametoindex(BRIDGE).context("the bridge's index")?;
    socket.set_multicast_hops_v6(255)?;
    socket.set_multicast_if_v6(index)?;
    let life = seconds.to_be_bytes();
    let mut octets = vec![134, 0, 0, 0, 64, 0, life[0], life[1], 0, 0, 0, 0, 0, 0, 0, 0];
    // On-link and autonomous, 64 bits, valid and preferred for so long.
    octets.extend([3, 4, 64, 0xc0, 0, 0, life[0], life[1], 0, 0, life[0], life[1], 0, 0, 0, 0]);
    octets.extend(prefix.octets());
    let all_nodes = SocketAddrV6::new(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1), 0, 0, index);
    socket.send_to(&octets, &all_nodes.into()).context("send the advertisement")?;
    Ok(())
}

/// Octets without meaning, the same in every run (a linear congruential generator).
fn noise(seed: usize, length: usize) -> Vec<u8> {
    let mut state = u32::try_from(seed).unwrap_or(0).wrapping_add(0x9e37_79b9);
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(length).collect()
}
