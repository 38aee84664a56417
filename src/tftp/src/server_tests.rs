//! The server over loopback: places, ports, what it costs a stranger.

use super::*;
use crate::reactor::QUIET;
use crate::{Files, Found};
use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// `file` has these octets; `gone` panics; 127.0.0.9 is nobody.
struct Few {
    octets: Vec<u8>,
    file: File,
    asked: Mutex<usize>,
}

impl Files for Few {
    fn find(&self, _client: IpAddr, name: Option<&str>) -> Found {
        *self.asked.lock().expect("a lock") += 1;
        match name {
            Some("file") => Found::File(self.file.try_clone().expect("a clone"), u64::try_from(self.octets.len()).expect("small")),
            Some("octets") => Found::Octets(self.octets.clone()),
            Some("silence") => Found::Silence,
            Some("panic") => panic!("a caller's fault"),
            _ => Found::Nothing,
        }
    }

    fn answers(&self, client: IpAddr) -> bool {
        client != IpAddr::from([127, 0, 0, 9])
    }
}

struct Lab {
    runtime: tokio::runtime::Runtime,
    task: tokio::task::JoinHandle<io::Result<()>>,
    server: SocketAddr,
    files: Arc<Few>,
}

impl Lab {
    fn new(ports: Ports, limits: impl FnOnce(&mut Limits)) -> Self {
        Self::at(Ipv4Addr::LOCALHOST.into(), ports, limits)
    }

    fn at(address: IpAddr, ports: Ports, limits: impl FnOnce(&mut Limits)) -> Self {
        Self::asked(address, ports, limits, |_| ()).0
    }

    /// What `ask` sends to the server is there before the server looks for the first time.
    fn asked<T>(address: IpAddr, ports: Ports, limits: impl FnOnce(&mut Limits), ask: impl FnOnce(SocketAddr) -> T) -> (Self, T) {
        let octets: Vec<u8> = (0..300_000_u32).map(|n| u8::try_from(n * 13 % 251).unwrap_or(0)).collect();
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&octets).expect("write");
        let files = Arc::new(Few { octets, file, asked: Mutex::new(0) });
        let mut options = Options { port: 0, ports, ..Options::new(address) };
        limits(&mut options.limits);
        let server = Server::bind(options).expect("a port");
        let at = SocketAddr::from((address, server.port().expect("a port")));
        let asked = ask(at);
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let task = runtime.spawn(serve(server, files.clone()));
        (Self { runtime, task, server: at, files }, asked)
    }

    fn client(&self) -> Client {
        self.client_at(self.server.ip())
    }

    fn client_at(&self, address: IpAddr) -> Client {
        Client::new(address, self.server)
    }
}

struct Client {
    socket: UdpSocket,
    server: SocketAddr,
}

impl Client {
    fn new(address: IpAddr, server: SocketAddr) -> Self {
        let socket = UdpSocket::bind((address, 0)).expect("a socket");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
        Self { socket, server }
    }

    /// Sends a request; says how long it is.
    fn ask(&self, name: &str, options: &str) -> usize {
        self.socket.send_to(format!("\0\x01{name}\0octet\0{options}").as_bytes(), self.server).expect("sent")
    }

    fn ack(&self, block: u16, to: SocketAddr) {
        let [high, low] = block.to_be_bytes();
        self.socket.send_to(&[0, 4, high, low], to).expect("sent");
    }

    /// The next datagram within a time.
    fn next(&self, within: Duration) -> Option<(Vec<u8>, SocketAddr)> {
        let deadline = Instant::now() + within;
        let mut buffer = [0; 70_000];
        while Instant::now() < deadline {
            if let Ok((len, from)) = self.socket.recv_from(&mut buffer) {
                return Some((buffer[..len].to_vec(), from));
            }
        }
        None
    }

    /// Who sends what begins so; blocks before it, once or again, come from `running`.
    fn skip_to(&self, wanted: &[u8], running: SocketAddr) -> SocketAddr {
        loop {
            let (datagram, from) = self.must();
            if datagram.starts_with(wanted) {
                return from;
            }
            assert_eq!((&datagram[..2], from), (&[0, 3][..], running));
        }
    }

    /// The next one that is another than this, which may come again meanwhile.
    fn other_than(&self, repeated: &[u8]) -> (Vec<u8>, SocketAddr) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let (datagram, from) = self.next(deadline.saturating_duration_since(Instant::now())).expect("another answer");
            if datagram != repeated {
                return (datagram, from);
            }
        }
    }

    fn must(&self) -> (Vec<u8>, SocketAddr) {
        self.next(Duration::from_secs(20)).expect("an answer")
    }

    /// The whole file, and the port it came from.
    fn read(&self, name: &str, options: &str, block_bytes: usize) -> (Vec<u8>, u16) {
        self.ask(name, options);
        let (mut octets, mut have) = (Vec::new(), 0_u16);
        loop {
            let (datagram, from) = self.must();
            match datagram.as_slice() {
                [0, 6, ..] => self.ack(0, from),
                [0, 3, high, low, payload @ ..] => {
                    let number = u16::from_be_bytes([*high, *low]);
                    if number == have.wrapping_add(1) {
                        have = number;
                        octets.extend_from_slice(payload);
                    }
                    self.ack(have, from);
                    if number == have && payload.len() < block_bytes {
                        return (octets, from.port());
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn files_and_octets_arrive_whole_with_and_without_windows_on_all_kinds_of_ports() {
    for ports in [Ports::Any, Ports::Single, Ports::Range(42_100, 42_103)] {
        let lab = Lab::new(ports, |_| {});
        for name in ["file", "octets"] {
            let (octets, from) = lab.client().read(name, "", 512);
            assert!(octets == lab.files.octets, "{ports:?} {name}");
            match ports {
                Ports::Any => assert_ne!(from, lab.server.port()),
                Ports::Single => assert_eq!(from, lab.server.port()),
                Ports::Range(first, last) => assert!((first..=last).contains(&from)),
            }
            for window in [1, 3, 16, 64] {
                let (octets, _) = lab.client().read(name, &format!("blksize\x001468\0windowsize\0{window}\0"), 1468);
                assert!(octets == lab.files.octets, "{ports:?} {name} {window}");
            }
        }
    }
}

#[test]
fn transfers_of_all_sizes_run_side_by_side_on_a_single_port() {
    let lab = Lab::new(Ports::Single, |_| {});
    std::thread::scope(|scope| {
        for (window, block) in [(1, 512), (64, 1468), (4, 8), (16, 1000), (2, 1468), (1, 8)] {
            let (client, wanted) = (lab.client(), &lab.files.octets);
            scope.spawn(move || {
                let (octets, _) = client.read("file", &format!("blksize\0{block}\0windowsize\0{window}\0"), block);
                assert!(octets == *wanted, "{window} {block}");
            });
        }
    });
}

#[test]
fn ipv6_is_served_too() {
    let lab = Lab::at(Ipv6Addr::LOCALHOST.into(), Ports::Any, |_| {});
    assert!(lab.client().read("file", "blksize\x001400\0windowsize\x008\0", 1400).0 == lab.files.octets);
}

#[test]
fn a_forged_request_is_answered_by_one_packet_three_times_and_nothing_more() {
    // What the victim gets for each octet that was forged, at most; a plain request is answered by a block of 512 as the RFC wants it.
    for (options, most) in [("", 3 * 516), ("blksize\x001468\0windowsize\x0064\0tsize\x000\0timeout\x001\0utimeout\x0010000\0", 3 * 90)] {
        // Both are there at once: a transfer may be over so soon that a later one would begin another.
        let address = Ipv4Addr::LOCALHOST.into();
        let forge = |server| {
            let victim = Client::new(address, server);
            let forged: usize = (0..2).map(|_| victim.ask("file", options)).sum();
            (victim, forged)
        };
        let (_lab, (victim, forged)) = Lab::asked(address, Ports::Any, |_| {}, forge);
        let (mut packets, mut octets) = (0, 0);
        // The place is free after ten seconds; by then all was sent.
        let wait = if options.is_empty() { Duration::from_secs(11) } else { Duration::from_secs(4) };
        let deadline = Instant::now() + wait;
        while let Some((datagram, _)) = victim.next(deadline.saturating_duration_since(Instant::now())) {
            assert!(matches!(datagram.as_slice(), [0, 3, 0, 1, ..] | [0, 6, ..]), "{datagram:?}");
            packets += 1;
            octets += datagram.len();
        }
        assert_eq!(packets, 3, "{options:?}");
        assert!(octets <= most, "{options:?}: {octets} octets for {forged}");
    }
}

#[test]
fn a_flood_of_forged_requests_leaves_room_for_real_clients() {
    let lab = Lab::new(Ports::Any, |limits| (limits.transfers, limits.transfers_per_address) = (16, 16));
    let forged: Vec<Client> = (0..64).map(|_| lab.client()).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..20 {
                for client in &forged {
                    client.ask("file", &format!("timeout\0{}\0", round % 5 + 1));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let client = lab.client();
        let read = std::thread::scope(|inner| inner.spawn(|| client.read_persistently()).join().expect("a reader"));
        assert!(read == lab.files.octets);
    });
}

impl Client {
    /// As firmware does: asks again when nothing comes.
    fn read_persistently(&self) -> Vec<u8> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            self.ask("file", "blksize\x001468\0");
            let Some((first, from)) = self.next(Duration::from_millis(500)) else { continue };
            assert_eq!(first[..2], [0, 6]);
            self.ack(0, from);
            let (mut octets, mut have) = (Vec::new(), 0_u16);
            while let Some((datagram, _)) = self.next(Duration::from_secs(5)) {
                let [0, 3, high, low, payload @ ..] = datagram.as_slice() else { break };
                if u16::from_be_bytes([*high, *low]) == have + 1 {
                    have += 1;
                    octets.extend_from_slice(payload);
                }
                self.ack(have, from);
                if payload.len() < 1468 {
                    return octets;
                }
            }
        }
        panic!("no transfer during the flood");
    }
}

#[test]
fn firmware_that_always_uses_one_port_may_begin_anew() {
    let lab = Lab::new(Ports::Any, |_| {});
    let client = lab.client();
    // pin/tftp 125: the size is asked for, and then silence.
    client.ask("file", "tsize\x000\0");
    let (size, first) = client.must();
    assert_eq!(size, b"\0\x06tsize\x00300000\0");
    client.ask("file", "blksize\x001468\0");
    let (oack, second) = client.other_than(&size);
    assert_eq!(oack, b"\0\x06blksize\x001468\0");
    assert_ne!(first, second);
    client.ack(0, second);
    let (block, from) = client.other_than(&oack);
    assert_eq!((&block[..4], block.len(), from), (&[0, 3, 0, 1][..], 1472, second));
}

#[test]
fn a_request_that_somebody_forges_in_a_clients_name_does_not_end_its_running_transfer() {
    let lab = Lab::new(Ports::Any, |_| {});
    let client = lab.client();
    client.ask("file", "");
    let (_, running) = client.must();
    client.ack(1, running);
    for (block, forged) in [(2, "blksize\x001468\0"), (3, ""), (4, "tsize\x000\0")] {
        client.ask("file", forged);
        client.socket.send_to(b"\0\x02file\0octet\0", client.server).expect("sent");
        // Somebody who is answered after it shows that it was looked at.
        let later = lab.client();
        later.ask("nothing", "");
        assert_eq!(later.must().0[..4], [0, 5, 0, 1]);
        client.skip_to(&[0, 3, 0, block], running);
        client.ack(block.into(), running);
    }
    // The last acknowledgement was seen, so its time counts from before here.
    client.skip_to(&[0, 3, 0, 5], running);
    // It has gone: nothing was acknowledged for a while, and the same port asks anew.
    std::thread::sleep(QUIET);
    client.ask("file", "tsize\x000\0");
    let anew = client.skip_to(b"\0\x06tsize\x00300000\0", running);
    assert_ne!(anew, running);
}

#[test]
fn pin_tftp_125_a_tsize_probe_that_ends_in_error_leaves_nothing() {
    let lab = Lab::new(Ports::Single, |limits| limits.transfers = 1);
    for _ in 0..5 {
        let client = lab.client();
        client.ask("file", "tsize\x000\0");
        let (oack, from) = client.must();
        assert_eq!(oack, b"\0\x06tsize\x00300000\0");
        client.socket.send_to(b"\0\x05\0\0TFTP Aborted\0", from).expect("sent");
    }
    assert!(lab.client().read("file", "", 512).0 == lab.files.octets);
}

#[test]
fn strangers_and_the_revoked_hear_nothing_and_a_fault_of_the_caller_costs_one_transfer() {
    let lab = Lab::new(Ports::Any, |_| {});
    let stranger = lab.client_at([127, 0, 0, 9].into());
    stranger.ask("file", "");
    let revoked = lab.client();
    revoked.ask("silence", "");
    let unlucky = lab.client();
    unlucky.ask("panic", "");
    assert_eq!(unlucky.must().0[..4], [0, 5, 0, 0]);
    for client in [stranger, revoked] {
        assert_eq!(client.next(Duration::from_millis(300)), None);
    }
    assert_eq!(*lab.files.asked.lock().expect("a lock"), 2, "a stranger takes no place");
    let writer = lab.client();
    writer.socket.send_to(b"\0\x02file\0octet\0", writer.server).expect("sent");
    assert_eq!(writer.must().0[..4], [0, 5, 0, 2]);
    assert!(lab.client().read("octets", "", 512).0 == lab.files.octets);
}

#[test]
fn what_others_send_to_a_transfer_changes_nothing() {
    let lab = Lab::new(Ports::Any, |_| {});
    let client = lab.client();
    client.ask("file", "");
    let (_, from) = client.must();
    let other = lab.client();
    other.socket.send_to(b"\0\x05\0\0no\0", from).expect("sent");
    other.ack(1, from);
    assert_eq!(other.next(Duration::from_millis(300)), None);
    client.ack(1, from);
    loop {
        // The first block may have been sent again meanwhile.
        let (block, _) = client.must();
        if block[..4] == [0, 3, 0, 2] {
            break;
        }
        assert_eq!(block[..4], [0, 3, 0, 1]);
    }
}

#[test]
fn the_port_is_free_as_soon_as_the_server_is_dropped() {
    let lab = Lab::new(Ports::Any, |_| {});
    lab.client().ask("file", "");
    lab.task.abort();
    let ended = lab.runtime.block_on(lab.task);
    assert!(ended.is_err_and(|e| e.is_cancelled()));
    UdpSocket::bind(lab.server).expect("the port is free");
}
