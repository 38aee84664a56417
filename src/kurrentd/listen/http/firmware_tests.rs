//! What each firmware's HTTP client sends and reads, over real sockets, octet for octet. What it expects of an answer stands in
//! `core::http::answer`.

use super::tests::{DEADLINE, Reply, served, served_by};
use super::*;
use crate::boot_plane::tests::Bench;
use kurrent_core::config::Config;
use std::time::Instant;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// An answer as clients with a kept connection read it: to the end of its head, then as many octets as that says.
async fn one_answer(stream: &mut TcpStream) -> Reply {
    let mut octets = Vec::new();
    let read = async {
        let mut octet = [0];
        while !octets.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut octet).await.unwrap();
            octets.push(octet[0]);
        }
        let mut reply = Reply::of(&octets);
        let length = reply.header("Content-Length").map_or(0, |length| length.parse().unwrap());
        reply.body = vec![0; length];
        stream.read_exact(&mut reply.body).await.unwrap();
        reply
    };
    tokio::time::timeout(DEADLINE, read).await.expect("an answer in time")
}

/// httpconn.c keeps a connection only after `Connection: keep-alive` (`HTTP_RESPONSE_KEEPALIVE`): script, program and kernel then
/// come over one.
#[tokio::test]
async fn ipxe_fetches_a_whole_boot_over_one_connection() {
    let server = served(LIMITS).await;
    server.put("kurrent-attest.efi", b"MZ program");
    server.put("worker/vmlinuz", &[7; 100_000]);
    let mut stream = server.connect().await;
    for (path, length) in [("/boot.ipxe", None), ("/files/kurrent-attest.efi", Some(10)), ("/files/worker/vmlinuz", Some(100_000))] {
        let request = format!("GET {path} HTTP/1.1\r\nConnection: keep-alive\r\nUser-Agent: iPXE/2.0.0\r\nHost: 10.77.0.1\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let reply = one_answer(&mut stream).await;
        assert_eq!((reply.status, reply.header("Connection")), (200, Some("keep-alive")), "{path}");
        assert!(length.is_none_or(|length| reply.body.len() == length), "{path}");
    }
    // A form, then the next request, on the same connection.
    let form = "POST /devices/challenge HTTP/1.1\r\nConnection: keep-alive\r\nHost: x\r\nContent-Length: 10\r\n\r\nmac=nobody";
    stream.write_all(form.as_bytes()).await.unwrap();
    assert_eq!(one_answer(&mut stream).await.status, 404);
    stream.write_all(b"HEAD /files/worker/vmlinuz HTTP/1.1\r\nConnection: close\r\nHost: x\r\n\r\n").await.unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.unwrap();
    assert!(rest.contains("\r\nContent-Length: 100000\r\n") && rest.ends_with("\r\n\r\n"), "HEAD has no body: {rest}");
}

/// net/wget.c: HTTP/1.0 without any field; the file ends where the connection does.
#[tokio::test]
async fn u_boot_gets_a_file_without_host_and_sees_the_end() {
    let server = served(LIMITS).await;
    server.put("worker/vmlinuz", &[7; 100_000]);
    let mut stream = server.connect().await;
    stream.write_all(b"GET /files/worker/vmlinuz HTTP/1.0\r\n\r\n").await.unwrap();
    let mut all = Vec::new();
    tokio::time::timeout(DEADLINE, stream.read_to_end(&mut all)).await.expect("the server ends the connection").unwrap();
    let reply = Reply::of(&all);
    assert!(reply.head.starts_with("HTTP/1.1 200 ") && reply.header("Connection") == Some("close"));
    assert_eq!((reply.header("Content-Length"), reply.body.len()), (Some("100000"), 100_000));
}

#[tokio::test]
async fn http_1_0_with_keep_alive_asks_again() {
    let server = served(LIMITS).await;
    let mut stream = server.connect().await;
    for _ in 0..3 {
        stream.write_all(b"GET /boot.ipxe HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").await.unwrap();
        let reply = one_answer(&mut stream).await;
        assert_eq!((reply.status, reply.header("Connection")), (200, Some("keep-alive")));
    }
}

/// HttpBootDxe: HEAD for size and kind, then GET, over the same connection, in HttpUtilitiesLib's spelling.
#[tokio::test]
async fn edk2_asks_head_then_get_over_one_connection() {
    let server = served(LIMITS).await;
    server.put("snponly.efi", &[7; 30_000]);
    let mut stream = server.connect().await;
    let rest = "/files/snponly.efi HTTP/1.1\r\nHost: 10.77.0.1\r\nAccept: */*\r\nUser-Agent: UefiHttpBoot/1.0\r\n\r\n";
    stream.write_all(format!("HEAD {rest}").as_bytes()).await.unwrap();
    let mut head = vec![0; 4];
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head.split_off(4)).unwrap();
    assert!(head.contains("\r\nContent-Length: 30000\r\n") && head.contains("\r\nContent-Type: application/efi\r\n"), "{head}");
    stream.write_all(format!("GET {rest}").as_bytes()).await.unwrap();
    assert_eq!(one_answer(&mut stream).await.body.len(), 30_000);
}

/// grub-core/net/http.c, `http_seek`: each seek is a new connection with an open range.
#[tokio::test]
async fn grub_seeks_with_open_ranges_beyond_4_gib() {
    const SIZE: u64 = (4 << 30) + 1000;
    let server = served(LIMITS).await;
    server.put("worker/stage1.img", b"");
    let image = std::fs::File::options().write(true).open(server.bench.folder.path().join("files/worker/stage1.img")).unwrap();
    image.set_len(SIZE).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&image, b"last", SIZE - 4).unwrap();
    for (first, length) in [(4_u64 << 30, 1000), (SIZE - 4, 4)] {
        let reply = server.get("/files/worker/stage1.img", &format!("User-Agent: GRUB 2.06\r\nRange: bytes={first}-\r\n")).await;
        assert_eq!((reply.status, reply.body.len()), (206, length));
        assert_eq!(reply.header("Content-Range"), Some(format!("bytes {first}-{}/{SIZE}", SIZE - 1).as_str()));
        assert!(reply.body.ends_with(b"last"));
    }
    let beyond = server.get("/files/worker/stage1.img", &format!("Range: bytes={SIZE}-\r\n")).await;
    assert_eq!((beyond.status, beyond.header("Content-Range")), (416, Some(format!("bytes */{SIZE}").as_str())));
}

/// RFC 9112 section 3.2.2; proxies' clients and some firmware write the whole URL.
#[tokio::test]
async fn absolute_urls_are_taken_whatever_their_host() {
    let server = served(LIMITS).await;
    for url in ["http://10.77.0.1/boot.ipxe", "HTTP://other.example:8080/boot.ipxe?x"] {
        assert_eq!(server.get(url, "").await.status, 200, "{url}");
    }
    assert_eq!(server.get("http://10.77.0.1", "").await.status, 404);
    assert_eq!(server.get("ftp://10.77.0.1/boot.ipxe", "").await.status, 400);
}

/// A server that corrects a path by a redirect (301 for a doubled slash, a folder without its own) ends such a boot.
#[tokio::test]
async fn rpi_eeprom_475_no_path_is_answered_with_a_redirect() {
    let server = served(LIMITS).await;
    server.put("snponly.efi", b"MZ loader");
    for path in [
        "/files/snponly.efi",
        "/files//snponly.efi",
        "//files/snponly.efi",
        "/files",
        "/files/",
        "/",
        "/stage1",
        "/boot.ipxe/",
        "/files/./x",
    ] {
        let reply = server.get(path, "").await;
        assert!(matches!(reply.status, 200 | 404) && reply.header("Location").is_none(), "{path}: {}", reply.head);
    }
}

/// iPXE asks for this name beside the loader that it is, before anything else, and stops when it hears an error.
#[tokio::test]
async fn tinkerbell_424_autoexec_ipxe_is_there_over_http_beside_the_loader() {
    let server = served(LIMITS).await;
    let config = &server.bench.plane.shared().config;
    let script = kurrent_core::ipxe::autoexec(std::net::SocketAddrV4::new(config.boot_network.address, config.boot_port));
    let reply = server.get("/files/autoexec.ipxe", "").await;
    assert_eq!((reply.status, reply.text()), (200, script.clone()));
    let head = Reply::of(&server.raw(b"HEAD /files/autoexec.ipxe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await);
    assert_eq!((head.status, head.header("Content-Length")), (200, Some(script.len().to_string().as_str())));
}

/// Older `curl` asks so for each form over 1 KiB, and waits a second when it hears nothing.
#[tokio::test]
async fn who_waits_for_100_continue_hears_it() {
    let server = served(LIMITS).await;
    let mut stream = server.connect().await;
    let head = "POST /devices/challenge HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 10\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut interim = [0; 25];
    tokio::time::timeout(DEADLINE, stream.read_exact(&mut interim)).await.expect("it is told to go on").unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"mac=nobody").await.unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    assert_eq!(Reply::of(&rest).status, 404);
}

/// NICs that hang at full speed. Two connections of one device share its rate.
#[tokio::test]
async fn ipxe_1023_1545_a_device_gets_no_more_than_its_rate_over_all_its_connections() {
    const RATE: u64 = 2_000_000;
    const EACH: usize = 400_000;
    let server = served_by(Bench::with(Config { device_rate: Some(RATE), ..Config::default() }), LIMITS).await;
    server.put("worker/vmlinuz", &[7; EACH]);
    let begun = Instant::now();
    let (a, b) = tokio::join!(server.get("/files/worker/vmlinuz", ""), server.get("/files/worker/vmlinuz", ""));
    let took = begun.elapsed();
    assert_eq!((a.body.len(), b.body.len()), (EACH, EACH));
    // 800,000 octets at 2,000,000 a second: 0.4 s, less the pieces that need not wait.
    assert!(took >= Duration::from_millis(370), "{took:?}");
}

/// What is kept in memory and what is sent from the file look the same.
#[tokio::test]
async fn small_and_large_files_and_their_parts_are_right_octet_for_octet() {
    let server = served(LIMITS).await;
    let path = server.bench.folder.path().join("files/snponly.efi");
    for size in [0_usize, 1, 1024, 16 * 1024, 16 * 1024 + 1, 700_001] {
        let octets: Vec<u8> = (0..size).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
        server.put("snponly.efi", &octets);
        for age in [0, 3600] {
            let at = std::time::SystemTime::now() - Duration::from_secs(age);
            std::fs::File::options().write(true).open(&path).unwrap().set_modified(at).unwrap();
            let whole = server.get("/files/snponly.efi", "").await;
            assert!(whole.status == 200 && whole.body == octets, "{size}");
            let part = server.get("/files/snponly.efi", "Range: bytes=1-700000\r\n").await;
            if size < 2 {
                assert_eq!((part.status, part.body.len()), (416, 0), "{size}");
            } else {
                assert!(part.status == 206 && part.body == octets[1..], "{size}");
            }
        }
    }
}
