use super::*;
use proptest::prelude::*;

fn head(octets: &[u8]) -> Head<'_> {
    match read(octets) {
        Read::Whole(head, length) => {
            assert_eq!(length, octets.len(), "all of it is the head");
            head
        }
        other => panic!("{:?} for {:?}", other, String::from_utf8_lossy(octets)),
    }
}

fn refused(octets: &[u8]) -> Option<Refusal> {
    match read(octets) {
        Read::Refused(refusal) => Some(refusal),
        Read::More | Read::Whole(..) => None,
    }
}

/// httpcore.c, `http_request`: no Connection but when it wants to keep the connection.
#[test]
fn requests_of_ipxe() {
    let first = head(b"GET /boot.ipxe HTTP/1.1\r\nConnection: keep-alive\r\nUser-Agent: iPXE/2.0.0\r\nHost: 10.77.0.1\r\n\r\n");
    assert_eq!((first.method, first.path, first.keep_alive, first.asks_keep_alive), (Method::Get, "/boot.ipxe", true, true));
    let block = head(b"GET /files/a HTTP/1.1\r\nUser-Agent: iPXE/1.0.0+\r\nHost: x\r\nRange: bytes=0-511\r\n\r\n");
    assert_eq!((block.range, block.keep_alive, block.asks_keep_alive), (Some("bytes=0-511"), true, false));
    let post = head(b"POST /boot-vars HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 9\r\n\r\n");
    assert_eq!((post.method, post.body_bytes), (Method::Post, 9));
}

/// HttpDxe (HttpUtilitiesLib): names in its own case, `Host` first, no `Connection`; HttpBootDxe asks HEAD for the size, then GET.
#[test]
fn requests_of_edk2() {
    let rest = b" /files/snponly.efi HTTP/1.1\r\nHost: 10.77.0.1\r\nAccept: */*\r\nUser-Agent: UefiHttpBoot/1.0\r\n\r\n";
    assert_eq!(head(&[b"HEAD".as_slice(), rest].concat()).method, Method::Head);
    let get = [b"GET".as_slice(), rest].concat();
    assert_eq!((head(&get).method, head(&get).path, head(&get).keep_alive), (Method::Get, "/files/snponly.efi", true));
}

/// net/wget.c: `GET`, the path, ` HTTP/1.0`, nothing else; it takes the end of the connection for the end of the file.
#[test]
fn a_request_of_u_boot() {
    let asked = head(b"GET /files/snponly.efi HTTP/1.0\r\n\r\n");
    assert_eq!((asked.version, asked.path, asked.keep_alive), (Version::Http10, "/files/snponly.efi", false));
}

/// grub-core/net/http.c, `http_establish`: a seek asks for an open range.
#[test]
fn a_request_of_grub() {
    let seek = head(b"GET /files/worker/vmlinuz HTTP/1.1\r\nHost: 10.77.0.1\r\nUser-Agent: GRUB 2.06\r\nRange: bytes=4294967296-\r\n\r\n");
    assert_eq!(seek.range, Some("bytes=4294967296-"));
}

#[test]
fn http_1_0_keeps_a_connection_only_when_it_asks_to() {
    let check = |version: &str, field: &str, keep, asks| {
        let octets = format!("GET / HTTP/{version}\r\n{field}\r\n");
        let head = head(octets.as_bytes());
        assert_eq!((head.keep_alive, head.asks_keep_alive), (keep, asks), "{version} {field}");
    };
    check("1.0", "", false, false);
    check("1.0", "Connection: keep-alive\r\n", true, true);
    check("1.0", "connection: Keep-Alive, TE\r\n", true, true);
    check("1.0", "Connection: close, keep-alive\r\n", false, false);
    check("1.1", "", true, false);
    check("1.1", "CONNECTION: Close\r\n", false, false);
    check("1.1", "Connection: keep-alive\r\nConnection: close\r\n", false, false);
    check("1.1", "Connection: keep-alives\r\n", true, false);
    check("1.2", "", true, false);
}

#[test]
fn targets_in_origin_and_in_absolute_form() {
    let check = |target: &str, path: &str, query: &str| {
        let octets = format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n");
        let head = head(octets.as_bytes());
        assert_eq!((head.path, head.query), (path, query), "{target}");
    };
    check("/boot.ipxe", "/boot.ipxe", "");
    check("/a?b=c?d", "/a", "b=c?d");
    check("http://10.77.0.1/boot.ipxe", "/boot.ipxe", "");
    check("HTTP://other:81/a?b", "/a", "b");
    check("http://10.77.0.1", "/", "");
    check("http://[fd00::1]:80?b", "/", "b");
    // Nothing is decoded or resolved: these are names that no table has.
    for path in ["/files/..%2f..%2fetc", "/files/%2e%2e/x", "/a%00b", "/files/../x", "//x", "/files\\x"] {
        check(path, path, "");
    }
}

#[test]
fn what_two_readers_could_understand_differently_is_refused() {
    let line = |fields: &str| refused(format!("POST /boot-vars HTTP/1.1\r\nHost: x\r\n{fields}\r\n").as_bytes());
    let bad = Some(Refusal::Malformed);
    for fields in [
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5\r\ncontent-length: 5\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: 5 5\r\n",
        "Content-Length:\r\n",
        "Content-Length: 99999999999999999999999\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: identity\r\nContent-Length: 5\r\n",
        "Content-Length : 5\r\n",
        " Content-Length: 5\r\n",
        "X: a\r\n Content-Length: 5\r\n",
        "X: a\r\n\tb\r\n",
        "Host: y\r\n",
        "X\r\n",
        ": a\r\n",
        "X: a\0b\r\n",
        "X: a\rContent-Length: 5\r\n",
        "X: a\nContent-Length: 5\r\n",
        "X\u{e4}: a\r\n",
    ] {
        assert_eq!(line(fields), bad, "{fields:?}");
    }
    for coding in ["chunked", "gzip, chunked", "identity", "xchunked", ""] {
        assert_eq!(line(&format!("Transfer-Encoding: {coding}\r\n")), Some(Refusal::LengthRequired), "{coding:?}");
    }
    assert_eq!(line("X: any octets \u{e4} are taken in a value that nobody reads\r\n"), None);
}

#[test]
fn request_lines_that_are_refused() {
    for line in [
        "GET  / HTTP/1.1",
        "GET /",
        "GET / HTTP/1.1 ",
        " GET / HTTP/1.1",
        "GET\t/\tHTTP/1.1",
        "GET /a b HTTP/1.1",
        "GET boot.ipxe HTTP/1.1",
        "GET * HTTP/1.1",
        "GET ftp://x/ HTTP/1.1",
        "GET https://x/ HTTP/1.1",
        "GET /\u{e4} HTTP/1.1",
        "GET /\u{1} HTTP/1.1",
        "G(T / HTTP/1.1",
        "GET / http/1.1",
        "GET / HTTP/1",
        "GET / HTTP/1.10",
        "GET / HTTP/+1.1",
        "GET / ICY",
        "CONNECT x:80 HTTP/1.1",
        "",
        "\0",
    ] {
        assert_eq!(refused(format!("{line}\r\nHost: x\r\n\r\n").as_bytes()), Some(Refusal::Malformed), "{line:?}");
    }
    for version in ["0.9", "2.0", "3.0"] {
        assert_eq!(refused(format!("GET / HTTP/{version}\r\n\r\n").as_bytes()), Some(Refusal::Version));
    }
    assert_eq!(refused(b"GET / HTTP/1.1\n\r\n\r\n"), Some(Refusal::Malformed), "a line that ends in LF alone");
    assert_eq!(head(b"\r\n\r\nGET / HTTP/1.1\r\n\r\n").path, "/", "empty lines before it are skipped");
    assert_eq!(head(b"OPTIONS * HTTP/1.1\r\n\r\n").method, Method::Other);
    assert_eq!(head(b"get / HTTP/1.1\r\n\r\n").method, Method::Other, "methods have one case");
}

#[test]
fn heads_are_bounded() {
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "X: 1\r\n".repeat(MAX_FIELDS));
    assert_eq!(head(many.as_bytes()).path, "/");
    let more = format!("GET / HTTP/1.1\r\n{}\r\n", "X: 1\r\n".repeat(MAX_FIELDS + 1));
    assert_eq!(refused(more.as_bytes()), Some(Refusal::TooLarge));
    let endless = vec![b'a'; MAX_HEAD_BYTES];
    assert_eq!((refused(&endless), read(&endless[1..])), (Some(Refusal::TooLarge), Read::More));
    let lines = b"\r\n".repeat(MAX_HEAD_BYTES);
    assert_eq!(refused(&lines), Some(Refusal::TooLarge));
}

#[test]
fn what_follows_a_head_is_not_looked_at() {
    let octets = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\n\0";
    let Read::Whole(first, length) = read(octets) else { panic!() };
    assert_eq!((first.path, octets.get(length..length + 6)), ("/a", Some(b"GET /b".as_slice())));
}

#[test]
fn two_ranges_are_none_and_100_continue_is_for_http_1_1() {
    assert_eq!(head(b"GET / HTTP/1.1\r\nRange: bytes=0-1\r\nRange: bytes=0-1\r\n\r\n").range, None);
    assert!(head(b"POST / HTTP/1.1\r\nExpect: 100-Continue\r\nContent-Length: 5\r\n\r\n").expects_continue);
    assert!(!head(b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n").expects_continue);
}

proptest! {
    /// However a head is cut, it is read once it is whole, and never differently.
    #[test]
    fn a_head_that_comes_in_pieces_is_waited_for(name in "[A-Za-z-]{1,12}", value in "[ -~]{0,40}", path in "/[!-~]{0,30}") {
        let text = format!("GET {path} HTTP/1.1\r\nHost: x\r\nX-{name}: {value}\r\n\r\n");
        let whole = text.as_bytes();
        for at in 0..whole.len() {
            prop_assert_eq!(read(&whole[..at]), Read::More);
        }
        prop_assert!(matches!(read(whole), Read::Whole(..)));
    }

    #[test]
    fn any_octets_are_survived(noise in proptest::collection::vec(any::<u8>(), 0..300), at in 0_usize..40) {
        let mut octets = b"POST /boot-vars HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n".to_vec();
        let at = at.min(octets.len());
        octets.splice(at..at, noise.iter().copied());
        octets.extend_from_slice(b"\r\n\r\n");
        for octets in [&noise, &octets] {
            if let Read::Whole(head, length) = read(octets) {
                prop_assert!(length <= octets.len() && (head.path.starts_with('/') || head.path == "*"));
            }
        }
    }
}
