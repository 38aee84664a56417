//! What a stranger can try over the wire: smuggling, endless heads, many connections. What a head may hold stands in
//! `core::http::head`.

use super::tests::{DEADLINE, Reply, served};
use super::*;
use kurrent_core::http::head::MAX_HEAD_BYTES;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// The second request of each must never be answered: it is the first one's body, or nobody knows.
#[tokio::test]
async fn a_request_hidden_in_another_is_not_answered() {
    const HIDDEN: &str = "GET /boot.ipxe HTTP/1.1\r\nHost: x\r\n\r\n";
    let server = served(LIMITS).await;
    for (outer, status) in [
        (format!("POST /boot-vars HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: {}\r\n\r\n", HIDDEN.len()), 400),
        (format!("POST /boot-vars HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 5), 400),
        ("POST /boot-vars HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(), 411),
        ("GET /nothing HTTP/1.1\r\nHost: x\r\nContent-Length : 5\r\n\r\n".to_owned(), 400),
        ("GET /nothing HTTP/1.1\r\nHost: x\r\nX: a\n\r\n\r\n".to_owned(), 400),
        // A body where none belongs is left unread, and the connection ends.
        (format!("GET /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", HIDDEN.len()), 404),
        (format!("POST /boot.ipxe HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", HIDDEN.len()), 405),
        (format!("POST /boot-vars HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", u64::MAX), 413),
    ] {
        let all = server.raw(format!("{outer}{HIDDEN}").as_bytes()).await;
        let text = String::from_utf8_lossy(&all);
        assert_eq!((Reply::of(&all).status, text.matches("HTTP/1.1 ").count()), (status, 1), "{outer:?}: {text}");
        assert!(text.contains("\r\nConnection: close\r\n"), "{text}");
    }
}

#[tokio::test]
async fn requests_in_a_row_are_answered_in_order_and_hold_no_memory() {
    let server = served(LIMITS).await;
    server.put("worker/vmlinuz", &[7; 50_000]);
    let many = "GET /files/worker/vmlinuz HTTP/1.1\r\nHost: x\r\n\r\n".repeat(500) + "GET / HTTP/1.1\r\nConnection: close\r\n\r\n";
    let mut stream = server.connect().await;
    let (mut from, mut to) = stream.split();
    // Nothing is read for a while: the server stops at a full buffer instead of taking all requests in.
    let write = async {
        let _ = to.write_all(many.as_bytes()).await;
    };
    let read = async {
        let mut all = Vec::new();
        let _ = tokio::time::timeout(DEADLINE, from.read_to_end(&mut all)).await.expect("it ends");
        all
    };
    let ((), all) = tokio::join!(write, read);
    let heads = all.windows(13).filter(|w| *w == b"HTTP/1.1 200 ").count();
    assert_eq!((heads, all.windows(13).filter(|w| *w == b"HTTP/1.1 404 ").count()), (500, 1));
}

/// The refusal arrives although the server has not read all that was sent (RFC 9112 section 9.6).
#[tokio::test]
async fn who_sends_too_much_still_hears_why_not() {
    let server = served(LIMITS).await;
    for (request, status) in [
        (format!("GET / HTTP/1.1\r\nX: {}", "y".repeat(4 * MAX_HEAD_BYTES)), 431),
        (format!("POST /boot-vars HTTP/1.1\r\nHost: x\r\nContent-Length: 40000\r\n\r\n{}", "z".repeat(40_000)), 413),
    ] {
        for _ in 0..20 {
            let all = server.raw(request.as_bytes()).await;
            assert_eq!(Reply::of(&all).status, status);
        }
    }
}

/// A head that comes octet by octet does not get a new deadline with each.
#[tokio::test]
async fn a_head_that_drips_is_cut_off() {
    let server = served(Limits { read: Duration::from_millis(300), ..LIMITS }).await;
    let mut stream = server.connect().await;
    let dripped = async {
        for octet in b"GET /boot.ipxe HTTP/1.1\r\nX: ".iter().chain(std::iter::repeat(&b'y')) {
            if stream.write_all(&[*octet]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, dripped).await.expect("the connection ends while the head still comes");
}

/// Each of 512 places held by somebody who asks for a large file and takes nothing.
#[tokio::test]
async fn everybody_who_asks_and_takes_nothing_holds_no_file_in_memory() {
    // All that one address may have: nobody gives way to its own next one, however long this takes.
    let server = served(Limits { connections: 65, per_address: 64, ..LIMITS }).await;
    server.put("worker/vmlinuz", &vec![7; 8 << 20]);
    let mut held = Vec::new();
    for _ in 0..64 {
        let mut stream = server.connect().await;
        stream.write_all(b"GET /files/worker/vmlinuz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        stream.readable().await.unwrap();
        held.push(stream);
    }
    assert!(server.raw(b"GET / HTTP/1.1\r\n\r\n").await.is_empty(), "all places are taken");
    let task = std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok());
    let folder = server.bench.folder.path().to_owned();
    let open = task.filter(|to| to.starts_with(&folder) && to.ends_with("worker/vmlinuz")).count();
    assert_eq!(open, 1, "one open file for all of them");
    held.clear();
    server.place_is_free().await;
}

#[tokio::test]
async fn a_missing_file_that_is_asked_for_often_is_logged_seldom() {
    let server = served(LIMITS).await;
    for _ in 0..50 {
        assert_eq!(server.get("/files/snponly.efi", "").await.status, 404);
    }
    let later = clock::now().mono.after(Duration::from_secs(60));
    let left_out = server.server.quiet.lock().unwrap().admit("file", later);
    // How many depends on how long they took; `Quiet` has its own test.
    assert!(left_out.is_some_and(|n| (1..50).contains(&n)), "few lines, and a count of the others: {left_out:?}");
}

/// Found by a breaker: seventeen addresses with forty idle connections each shut the boot plane for 14 s at a time.
#[tokio::test]
async fn connections_that_get_nowhere_give_way_when_there_is_no_place_for_another() {
    // Their own time is up long after ours.
    let read = 10 * DEADLINE;
    let server = served(Limits { connections: 4, per_address: 4, read, stall: read, ..LIMITS }).await;
    server.put("worker/vmlinuz", &[7; 4_000_000]);
    let mut held = Vec::new();
    for octets in [
        &b"GET /boot"[..],
        b"",
        b"GET /files/worker/vmlinuz HTTP/1.1\r\n\r\n",
        b"POST /devices/report HTTP/1.1\r\nContent-Length: 9\r\n\r\n",
    ] {
        let mut stream = server.connect().await;
        stream.write_all(octets).await.unwrap();
        held.push(stream);
    }
    let served_in_time = async {
        loop {
            let mut stream = server.connect().await;
            let _ = stream.write_all(b"GET /boot.ipxe HTTP/1.0\r\n\r\n").await;
            let mut out = Vec::new();
            let _ = stream.read_to_end(&mut out).await;
            if out.starts_with(b"HTTP/1.1 200 ") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(DEADLINE, served_in_time).await.expect("the oldest without progress gives way, long before its own time is up");
}

/// One address asks without end while fifty machines boot: each of them is answered as ever, and the audit has one line of it.
#[tokio::test]
async fn a_flood_of_forms_is_told_to_wait_and_fifty_machines_beside_it_are_not() {
    const FLOOD: usize = 2000;
    let server = served(LIMITS).await;
    let form = |host: u8, path: &str| {
        let body = format!("mac=52:54:00:00:01:{host:02x}");
        format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    let from = async |host: u8, octets: String| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 1, host], 0))).unwrap();
        let mut stream = socket.connect(server.address).await.unwrap();
        let (mut from, mut to) = stream.split();
        let write = async {
            let _ = to.write_all(octets.as_bytes()).await;
            let _ = to.shutdown().await;
        };
        let mut all = Vec::new();
        let ((), read) = tokio::join!(write, tokio::time::timeout(DEADLINE, from.read_to_end(&mut all)));
        read.expect("an answer in time").unwrap();
        String::from_utf8_lossy(&all).into_owned()
    };
    let flood = || from(200, form(200, "/devices/challenge").repeat(FLOOD));
    let begun = std::time::Instant::now();
    // Told before the machines' own refusals fill the audit's minute.
    flood().await;
    let machines = async {
        for host in 1..=50 {
            let boot = ["/devices/report", "/devices/challenge", "/boot-vars"].map(|path| form(host, path)).concat();
            let said = from(host, boot).await;
            assert_eq!((said.matches("HTTP/1.1 200 ").count(), said.matches("too_many").count()), (3, 0), "{host}: {said}");
        }
    };
    let (said, ()) = tokio::join!(flood(), machines);
    let refused = said.matches("refused (too_many)").count();
    // How many depends on how long it took; `Budget` has its own tests.
    assert!(refused > 0, "nobody was told to wait");
    let told = server.bench.audited().into_iter().filter(|(_, result)| result == "too_many").count();
    // Once in a burst. Another one begins when the bucket is half full again, after five seconds at the earliest.
    let bursts = 1 + begun.elapsed().as_secs() / 5;
    assert!(told > 0 && told as u64 <= bursts, "{told} of {bursts}");
}
