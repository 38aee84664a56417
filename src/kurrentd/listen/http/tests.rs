//! The boot plane over real sockets, with a client that writes and reads octets itself.

use super::*;
use crate::boot_plane::tests::{Bench, MAC, answer_form, key, read_challenge, report_form, set};
use kurrent_core::http::head::{MAX_FIELDS, MAX_HEAD_BYTES};
use kurrent_core::ledger::Change;
use std::fmt::Write as _;
use std::net::SocketAddrV4;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

pub(super) const DEADLINE: Duration = Duration::from_secs(20);

pub(super) struct Served {
    pub(super) bench: Bench,
    pub(super) server: Arc<Server>,
    pub(super) address: SocketAddr,
}

pub(super) async fn served(limits: Limits) -> Served {
    served_by(Bench::new(true), limits).await
}

/// The tests' own addresses are of a network whose machines may boot.
async fn served_to_workers() -> Served {
    let mut config = kurrent_core::config::Config::default();
    config.dhcp.relayed.push(kurrent_core::config::Subnet { address: [127, 0, 0, 0].into(), prefix: 8, ..config.dhcp.local.clone() });
    served_by(Bench::with(config), LIMITS).await
}

pub(super) async fn served_by(bench: Bench, limits: Limits) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::new(Arc::clone(&bench.plane), limits);
    tokio::spawn(serve_on(Arc::clone(&server), listener));
    Served { bench, server, address }
}

impl Served {
    pub(super) fn put(&self, name: &str, octets: &[u8]) {
        std::fs::write(self.bench.folder.path().join("files").join(name), octets).unwrap();
    }

    pub(super) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends octets, ends sending, reads until the server closes.
    pub(super) async fn raw(&self, octets: &[u8]) -> Vec<u8> {
        let mut stream = self.connect().await;
        // The server may close before it has read everything.
        let _ = stream.write_all(octets).await;
        let _ = stream.shutdown().await;
        let mut out = Vec::new();
        let _ = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut out)).await.expect("the server closes in time");
        out
    }

    /// Waits until this address may connect again.
    pub(super) async fn place_is_free(&self) {
        let refused = async {
            while self.raw(b"GET /boot.ipxe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, refused).await.expect("places are given back");
    }

    pub(super) async fn get(&self, path: &str, headers: &str) -> Reply {
        Reply::of(&self.raw(format!("GET {path} HTTP/1.1\r\nHost: x\r\n{headers}Connection: close\r\n\r\n").as_bytes()).await)
    }

    pub(super) async fn post(&self, path: &str, form: &str) -> Reply {
        let request = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{form}", form.len());
        Reply::of(&self.raw(request.as_bytes()).await)
    }
}

pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: Vec<u8>,
}

impl Reply {
    pub(super) fn of(octets: &[u8]) -> Self {
        let end =
            octets.windows(4).position(|w| w == b"\r\n\r\n").unwrap_or_else(|| panic!("no head in {:?}", String::from_utf8_lossy(octets)));
        let head = String::from_utf8(octets[..end].to_vec()).unwrap();
        Self { status: head.split(' ').nth(1).unwrap().parse().unwrap(), head, body: octets[end + 4..].to_vec() }
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")))
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }
}

#[tokio::test]
async fn every_answer_says_its_length_as_the_most_literal_client_reads_it() {
    let server = served(LIMITS).await;
    server.put("kurrent-attest.efi", b"MZ program");
    for (path, status) in
        [("/boot.ipxe", 200), ("/files/kurrent-attest.efi", 200), ("/files/autoexec.ipxe", 200), ("/nothing", 404), ("/stage1/report", 405)]
    {
        let reply = server.get(path, "").await;
        assert_eq!(reply.status, status, "{path}");
        assert_eq!(reply.header("Content-Length").and_then(|l| l.parse().ok()), Some(reply.body.len()), "{path}: {}", reply.head);
        assert!(!reply.head.to_lowercase().contains("transfer-encoding"), "{path}");
        let head = Reply::of(&server.raw(format!("HEAD {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).await);
        assert_eq!(
            (head.status, head.header("Content-Length"), head.body.len()),
            (status, reply.header("Content-Length"), 0),
            "HEAD {path}"
        );
    }
    assert_eq!(server.get("/boot.ipxe", "").await.text(), ipxe_text(&server));
    assert_eq!(server.get("/stage1/report", "").await.header("Allow"), Some("POST"));
    let head = Reply::of(&server.raw(b"HEAD /boot-vars?mac=52:54:00:00:00:01 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await);
    assert_eq!((head.status, head.header("Allow")), (405, Some("GET, POST")), "HEAD has no effect");
}

fn ipxe_text(server: &Served) -> String {
    let config = &server.bench.plane.shared().config;
    kurrent_core::ipxe::boot_script(SocketAddrV4::new(config.boot_network.address, config.boot_port))
}

#[tokio::test]
async fn files_are_streamed_whole_in_parts_and_over_one_connection() {
    let server = served(LIMITS).await;
    let kernel: Vec<u8> = (0..300_001u32).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
    server.put("worker/vmlinuz", &kernel);
    let whole = server.get("/files/worker/vmlinuz", "").await;
    assert!(whole.status == 200 && whole.body == kernel);
    assert_eq!(whole.header("Accept-Ranges"), Some("bytes"));
    for (range, first, last) in [
        ("0-0", 0, 0),
        ("65535-65536", 65_535, 65_536),
        ("300000-", 300_000, 300_000),
        ("-100000", 200_001, 300_000),
        ("1-999999", 1, 300_000),
    ] {
        let part = server.get("/files/worker/vmlinuz", &format!("Range: bytes={range}\r\n")).await;
        assert_eq!(part.status, 206, "{range}");
        assert!(part.body == kernel[first..=last], "{range}");
        assert_eq!(part.header("Content-Range"), Some(format!("bytes {first}-{last}/300001").as_str()));
        assert_eq!(part.header("Content-Length"), Some((last - first + 1).to_string().as_str()));
    }
    let beyond = server.get("/files/worker/vmlinuz", "Range: bytes=300001-\r\n").await;
    assert_eq!((beyond.status, beyond.header("Content-Range"), beyond.header("Content-Length")), (416, Some("bytes */300001"), Some("0")));
    let conditional = server.get("/files/worker/vmlinuz", "Range: bytes=0-0\r\nIf-Range: \"x\"\r\n").await;
    assert!(conditional.status == 200 && conditional.body == kernel);

    let mut requests = String::new();
    for first in 0..50 {
        let close = if first == 49 { "Connection: close\r\n" } else { "" };
        let _ = write!(requests, "GET /files/worker/vmlinuz HTTP/1.1\r\nHost: x\r\nRange: bytes={first}-{}\r\n{close}\r\n", first + 1);
    }
    let all = server.raw(requests.as_bytes()).await;
    assert_eq!(all.windows(12).filter(|w| *w == b"HTTP/1.1 206").count(), 50, "keep-alive, requests in a row");
}

#[tokio::test]
async fn only_names_of_the_table_are_served() {
    let server = served(LIMITS).await;
    server.put("other", b"x");
    std::os::unix::fs::symlink("/etc/passwd", server.bench.folder.path().join("files/link")).unwrap();
    for path in [
        "/files/",
        "/files/other",
        "/files/link",
        "/files/../state/secrets/server.key",
        "/files/%2e%2e/state/devices.yml",
        "/files/worker",
        "/files//worker/vmlinuz",
        "/files/worker/../worker/vmlinuz",
        "/files/worker/vmlinuz/",
        "/files/snponly.efi",
        "/stage1/0123456789abcdef/sealed",
        "/stage1/../sealed",
        "/stage1//sealed",
        "//boot.ipxe",
        "/BOOT.IPXE",
        "/",
        "/v1/devices",
    ] {
        let reply = server.get(path, "").await;
        assert_eq!((reply.status, reply.body.len()), (404, 0), "{path}");
    }
}

#[tokio::test]
async fn a_whole_boot_over_the_wire() {
    let server = served_to_workers().await;
    server.bench.open_window().await;
    server.bench.lease(MAC);
    let device = key();
    let pooled = server.post("/devices/report", &report_form(MAC, &device)).await;
    assert_eq!(set(&pooled.text(), "kstate"), "pooled");
    server.bench.worker("w1").await;
    server.bench.bind(MAC, "w1").await;
    let asked = server.post("/devices/challenge", &format!("mac={}", MAC.replace(':', "%3A"))).await.text();
    let (challenge, key_of_server) = read_challenge(&asked, MAC).unwrap();
    let script = server.post("/boot-vars", &answer_form(challenge, key_of_server, &device).0).await.text();
    let sealed = script.split("--name sealed http://10.77.0.1:80").nth(1).unwrap().split(' ').next().unwrap();
    let blob = server.get(sealed, "").await;
    assert!(blob.status == 200 && blob.body.starts_with(b"070701") && blob.header("Cache-Control") == Some("no-store"));
    let part = server.post("/stage1/report", "boot_id=0123456789abcdef&step=root&detail=&proof=00").await;
    assert_eq!((part.status, part.body.len()), (400, 0));
}

#[tokio::test]
async fn k12_a_revoked_address_hears_an_empty_404_everywhere() {
    let server = served(LIMITS).await;
    server.put("kurrent-attest.efi", b"MZ");
    server.bench.open_window().await;
    server.bench.lease(MAC);
    server.post("/devices/report", &report_form(MAC, &key())).await;
    server.bench.change(Change::Revoke { mac: MAC.parse().unwrap() }).await;
    for path in ["/boot.ipxe", "/files/autoexec.ipxe", "/files/kurrent-attest.efi", "/stage1/0123456789abcdef/sealed", "/nothing"] {
        let reply = server.get(path, "").await;
        assert_eq!((reply.status, reply.body.len()), (404, 0), "{path}");
    }
    for path in ["/devices/report", "/devices/challenge", "/boot-vars", "/stage1/report"] {
        let reply = server.post(path, "mac=52:54:00:00:00:09").await;
        assert_eq!((reply.status, reply.body.len()), (404, 0), "{path}");
    }
    assert!(server.bench.audited().contains(&("http".into(), "revoked".into())));
}

#[tokio::test]
async fn what_is_oversized_or_malformed_is_refused_and_the_server_lives_on() {
    let server = served(LIMITS).await;
    let long = format!("mac={}", "x".repeat(MAX_FORM_BYTES));
    assert_eq!(server.post("/devices/report", &long).await.status, 413);
    assert_eq!(server.post("/devices/report", "mac").await.status, 400);
    assert_eq!(server.post("/devices/report", "mac=1&mac=2").await.status, 400);
    assert_eq!(server.post("/devices/challenge", "mac=nobody").await.status, 404);
    let claims_more = b"POST /devices/report HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nmac=";
    let cut = server.raw(claims_more).await;
    assert!(!cut.starts_with(b"HTTP/1.1 200"), "a form that is cut short is not acted on");
    let head = server.raw(format!("GET /boot.ipxe HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "y".repeat(MAX_HEAD_BYTES)).as_bytes()).await;
    assert!(head.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&head));
    let many = format!("GET /boot.ipxe HTTP/1.1\r\n{}\r\n", (0..=MAX_FIELDS).map(|n| format!("X{n}: 1\r\n")).collect::<String>());
    assert!(server.raw(many.as_bytes()).await.starts_with(b"HTTP/1.1 431"));
    let whole = b"POST /boot-vars HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nmac=1&a=%";
    for at in 0..whole.len() {
        server.raw(&whole[..at]).await;
    }
    for round in 0..100u8 {
        let noise: [u8; 64] = kurrent_sys::entropy::random();
        server.raw(&noise).await;
        server.raw(&[b"GET /boot.ipxe HTTP/1.1\r\n".as_slice(), &noise, &[round, b'\r', b'\n', b'\r', b'\n']].concat()).await;
    }
    assert_eq!(server.get("/boot.ipxe", "").await.status, 200);
}

#[tokio::test]
async fn slow_clients_are_cut_off_and_do_not_keep_others_out() {
    let server = served(Limits { read: Duration::from_millis(300), ..LIMITS }).await;
    // One sends nothing, one a head without end, one a form without end.
    let starts: [&[u8]; 3] =
        [b"", b"GET /boot.ipxe HTTP/1.1\r\nHost:", b"POST /devices/report HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nmac="];
    let mut slow = Vec::new();
    for start in starts {
        let mut stream = server.connect().await;
        stream.write_all(start).await.unwrap();
        slow.push(stream);
    }
    assert_eq!(server.get("/boot.ipxe", "").await.status, 200);
    for (at, stream) in slow.iter_mut().enumerate() {
        let mut rest = Vec::new();
        let _ = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut rest))
            .await
            .unwrap_or_else(|_| panic!("slow client {at} is still connected"));
        assert!(!rest.starts_with(b"HTTP/1.1 200"), "slow client {at}");
    }
}

#[tokio::test]
async fn who_takes_nothing_of_what_it_asked_for_does_not_hold_its_place_for_ever() {
    let server = served(Limits { per_address: 1, lifetime: Duration::from_millis(500), ..LIMITS }).await;
    server.put("worker/vmlinuz", &vec![7; 16 << 20]);
    let mut stream = server.connect().await;
    stream.write_all(b"GET /files/worker/vmlinuz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    stream.readable().await.unwrap();
    server.place_is_free().await;
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut rest)).await.expect("it was closed");
    assert!(rest.len() < 16 << 20);
}

/// The kernel doubles what is asked for; without a bound it would grow to megabytes for each peer that takes nothing.
#[tokio::test]
async fn what_strangers_can_make_the_appliance_hold_is_half_of_its_smallest_memory() {
    const SMALLEST_BYTES: usize = 256 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    bound(&stream, LIMITS.stall, Some(1)).unwrap();
    let socket = socket2::SockRef::from(&stream);
    let kernel = socket.send_buffer_size().unwrap() + socket.recv_buffer_size().unwrap();
    assert!(kernel <= 2 * (SEND_BUFFER_BYTES + RECEIVE_BUFFER_BYTES), "{kernel}");
    let each = kernel + connection::HELD_BYTES;
    assert!(LIMITS.connections * each <= SMALLEST_BYTES / 2, "{each} for each");
    const { assert!(LIMITS.per_address * 8 <= LIMITS.connections, "eight machines do not shut the others out") };
}

#[tokio::test]
async fn one_address_can_not_take_all_connections() {
    let server = served(Limits { per_address: 4, ..LIMITS }).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        let mut stream = server.connect().await;
        stream.write_all(b"GET /boot.ipxe HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).await.unwrap();
        held.push(stream);
    }
    let refused = server.raw(b"GET /boot.ipxe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    assert!(refused.is_empty(), "the fifth is closed at once");
    held.clear();
    server.place_is_free().await;
}

#[tokio::test]
async fn a_file_that_shrinks_while_it_is_sent_breaks_the_connection_instead_of_being_padded() {
    let server = served(LIMITS).await;
    server.put("worker/stage1.img", &vec![7; 16 << 20]);
    let mut stream = server.connect().await;
    stream.write_all(b"GET /files/worker/stage1.img HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut first = [0; 1024];
    stream.read_exact(&mut first).await.unwrap();
    server.put("worker/stage1.img", b"short");
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut rest)).await.expect("it ends");
    assert!(rest.len() < 16 << 20);
}

/// Existing scripts know `chain` and `imgfetch` only.
#[tokio::test]
async fn a_boot_by_urls_alone_goes_as_far_as_one_by_forms() {
    let server = served_to_workers().await;
    server.bench.lease(MAC);
    server.bench.open_window().await;
    let device = key();
    let fields = report_form(MAC, &device);
    let report = server.get(&format!("/devices/report?{fields}"), "").await;
    assert_eq!((report.status, set(&report.text(), "kstate")), (200, "pooled"));
    server.bench.worker("w1").await;
    server.bench.bind(MAC, "w1").await;
    let challenge = server.get(&format!("/devices/challenge?mac={MAC}"), "").await.text();
    let (challenge, appliance) = read_challenge(&challenge, MAC).unwrap();
    let (answer, _) = answer_form(challenge, appliance, &device);
    let seen = server.get(&format!("/boot-vars?{answer}&format=json"), "").await;
    assert_eq!((seen.header("Content-Type"), seen.text().contains("\"menu-default\"")), (Some("application/json"), true));
    // What stands in the URL of a POST is not looked at.
    let posted = server.post(&format!("/boot-vars?{answer}"), &format!("mac={MAC}")).await.text();
    assert!(set(&posted, "kreason").contains("missing_sig"), "{posted}");
    let script = server.get(&format!("/boot-vars?{answer}"), "").await.text();
    assert_eq!((set(&script, "hostname"), set(&script, "method")), ("w1", "nvme"), "{script}");
    for bad in ["/boot-vars?mac", "/devices/report?mac=a&mac=b", "/devices/challenge?mac=%zz"] {
        assert_eq!(server.get(bad, "").await.status, 400, "{bad}");
    }
    let refused = server.get("/stage1/report?boot_id=0123456789abcdef&step=root&detail=&proof=00", "").await;
    assert_eq!(refused.status, 405, "stage-1 posts");
}
