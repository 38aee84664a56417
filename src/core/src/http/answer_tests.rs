use super::super::head;
use super::*;

const DATE: &str = "Mon, 30 Nov 2026 12:00:00 GMT";

fn asked(octets: &[u8]) -> Head<'_> {
    match head::read(octets) {
        head::Read::Whole(head, _) => head,
        other => panic!("{other:?}"),
    }
}

fn written(answer: Answer, keep: bool, head: Option<&Head<'_>>) -> String {
    let mut out = String::new();
    answer.write(&mut out, DATE, keep, head);
    out
}

fn file_for(octets: &[u8], size: u64) -> String {
    let head = asked(octets);
    written(Answer::file(&head, kind_of("snponly.efi"), size).0, head.keep_alive, Some(&head))
}

/// grub-core/net/http.c, `parse_line`: `grub_memcmp (ptr, "HTTP/1.1 ", …)`, `grub_memcmp (ptr, "Content-Length: ", …)`; lines end in
/// CRLF; whatever version the client has.
#[test]
fn grub_compares_status_line_and_length_octet_for_octet() {
    for version in ["1.0", "1.1"] {
        let text = file_for(format!("GET /files/snponly.efi HTTP/{version}\r\nHost: x\r\n\r\n").as_bytes(), 5_000_000_000);
        let mut lines = text.split("\r\n");
        assert_eq!(lines.next(), Some("HTTP/1.1 200 OK"));
        assert!(lines.any(|line| line == "Content-Length: 5000000000"), "{text}");
        assert!(text.ends_with("\r\n\r\n") && text.matches('\n').count() == text.matches("\r\n").count());
        assert!(!text.to_ascii_lowercase().contains("transfer-encoding"));
    }
}

/// httpcore.c, `http_parse_connection`: any value but these two, alone, is an error; without the first no connection is kept.
#[test]
fn ipxe_is_told_keep_alive_in_so_many_words_when_it_asks() {
    let text = file_for(b"GET /a HTTP/1.1\r\nConnection: keep-alive\r\nHost: x\r\n\r\n", 5);
    assert!(text.contains("\r\nConnection: keep-alive\r\n"), "{text}");
    let text = file_for(b"GET /a HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", 5);
    assert!(text.contains("\r\nConnection: keep-alive\r\n"), "{text}");
    let text = file_for(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n", 5);
    assert!(!text.contains("Connection"), "{text}");
}

/// net/wget.c, `wget_connected`: what does not hold `\r\n\r\n` is taken for the file's own octets. And the end of the file is the end of
/// the connection.
#[test]
fn u_boot_finds_the_whole_head_in_the_first_segment_and_the_end_of_the_connection() {
    let (most, long) = (u64::MAX, "application/octet-stream");
    let ranges = Answer {
        status: Status::PartialContent,
        length: most,
        kind: Some(long),
        extra: Extra::Part { first: most, last: most, size: most },
    };
    for answer in [
        ranges,
        Answer { status: Status::HeaderFieldsTooLarge, length: most, kind: Some(long), extra: Extra::NoStore },
        Answer { status: Status::RangeNotSatisfiable, length: most, kind: Some(long), extra: Extra::NoSuchPart { size: most } },
        Answer { status: Status::MethodNotAllowed, length: most, kind: Some(long), extra: Extra::Allow("GET, HEAD, POST") },
    ] {
        let text = written(answer, false, None);
        assert!(text.len() <= MAX_HEAD_BYTES, "{}: {text}", text.len());
    }
    let text = file_for(b"GET /files/snponly.efi HTTP/1.0\r\n\r\n", 5);
    assert!(text.contains("\r\nConnection: close\r\n"), "{text}");
}

/// HttpBootSupport.c, `HttpBootCheckImageType`: Content-Type first (case does not matter), then the name. A type that it does not know
/// leaves it to the name.
#[test]
fn edk2_finds_the_kind_of_a_boot_image_by_content_type() {
    for (name, kind) in [
        ("snponly.efi", "application/efi"),
        ("SNPONLY.EFI", "application/efi"),
        ("a/b.iso", "application/vnd.efi-iso"),
        ("undionly.kpxe", "application/octet-stream"),
        ("worker/vmlinuz", "application/octet-stream"),
        ("worker/stage1.img", "application/octet-stream"),
        ("efi", "application/octet-stream"),
        ("\u{e4}efi", "application/octet-stream"),
        ("", "application/octet-stream"),
    ] {
        assert_eq!(kind_of(name), kind, "{name}");
    }
}

/// HttpBootClient.c asks HEAD for the size before it has a buffer for GET; without a length it gives up (netboot 10).
#[test]
fn netboot_10_head_says_the_length_that_get_has() {
    let (get, head) = (file_for(b"GET /a HTTP/1.1\r\n\r\n", 1_000_000), file_for(b"HEAD /a HTTP/1.1\r\n\r\n", 1_000_000));
    assert_eq!(get, head);
    assert!(head.contains("\r\nContent-Length: 1000000\r\n"));
}

#[test]
fn rpi_eeprom_475_no_status_is_a_redirect_and_only_204_has_no_length() {
    for status in [
        Status::Ok,
        Status::NoContent,
        Status::PartialContent,
        Status::BadRequest,
        Status::Forbidden,
        Status::NotFound,
        Status::MethodNotAllowed,
        Status::RequestTimeout,
        Status::LengthRequired,
        Status::ContentTooLarge,
        Status::RangeNotSatisfiable,
        Status::TooManyRequests,
        Status::HeaderFieldsTooLarge,
        Status::InternalServerError,
        Status::VersionNotSupported,
    ] {
        let text = written(Answer::empty(status), true, None);
        assert_eq!(text.contains("Content-Length: 0\r\n"), status != Status::NoContent, "{text}");
        assert!(!text.starts_with("HTTP/1.1 3") && text.contains(DATE), "{text}");
    }
}

#[test]
fn ranges_of_a_file_beyond_4_gib() {
    const SIZE: u64 = 6_000_000_000;
    let check = |method: &str, fields: &str, status, first, length| {
        let octets = format!("{method} /a HTTP/1.1\r\n{fields}\r\n");
        let (answer, at, count) = Answer::file(&asked(octets.as_bytes()), "x", SIZE);
        assert_eq!((answer.status, at, count), (status, first, length), "{method} {fields}");
        answer
    };
    let part = check("GET", "Range: bytes=5000000000-5000000009\r\n", Status::PartialContent, 5_000_000_000, 10);
    assert_eq!(part.extra, Extra::Part { first: 5_000_000_000, last: 5_000_000_009, size: SIZE });
    assert!(written(part, true, None).contains("\r\nContent-Range: bytes 5000000000-5000000009/6000000000\r\n"));
    check("GET", "Range: bytes=4294967296-\r\n", Status::PartialContent, 1 << 32, SIZE - (1 << 32));
    let none = check("GET", "Range: bytes=6000000000-\r\n", Status::RangeNotSatisfiable, 0, 0);
    let text = written(none, true, None);
    assert!(text.contains("\r\nContent-Range: bytes */6000000000\r\n") && text.contains("\r\nContent-Length: 0\r\n"), "{text}");
    // All of it: several ranges, one that is none, a condition that nobody can judge, and HEAD (RFC 9110 sections 14.2, 13.1.5).
    for fields in ["Range: bytes=0-1,4-5\r\n", "Range: bytes=5-4\r\n", "Range: octets=0-1\r\n", "Range: bytes=0-1\r\nIf-Range: \"a\"\r\n"] {
        check("GET", fields, Status::Ok, 0, SIZE);
    }
    check("HEAD", "Range: bytes=0-1\r\n", Status::Ok, 0, SIZE);
}
