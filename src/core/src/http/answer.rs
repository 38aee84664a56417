//! The head of an answer, as the most literal firmware reads it. The order and the letters are part of the contract:
//!
//! - GRUB compares `HTTP/1.1 ` and `Content-Length: ` octet for octet (grub-core/net/http.c, `parse_line`), also when it asked with
//!   another version, and knows 200, 206 and 404.
//! - U-Boot wants the whole head in the first segment (net/wget.c, `wget_connected`): it stays under 536 octets, the smallest
//!   segment of IPv4 (RFC 9293 section 3.7.1).
//! - iPXE keeps a connection only when it hears `Connection: keep-alive`, alone in its line (httpcore.c, `http_parse_connection`).
//! - EDK2 finds the kind of a boot image by `Content-Type` before it looks at the name (HttpBootSupport.c,
//!   `HttpBootCheckImageType`), and the status behind `HTTP/1.1 ` (HttpImpl.c).

use super::head::{Head, Method, Version};
use std::fmt::Write as _;

/// Longest head of an answer, octets.
pub const MAX_HEAD_BYTES: usize = 536;

/// The statuses of the boot plane. No redirect is among them: Raspberry Pi's loader follows none (rpi-eeprom 475).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Status {
    Ok,
    NoContent,
    PartialContent,
    BadRequest,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    RequestTimeout,
    LengthRequired,
    ContentTooLarge,
    RangeNotSatisfiable,
    TooManyRequests,
    HeaderFieldsTooLarge,
    InternalServerError,
    VersionNotSupported,
}

impl Status {
    /// Number and phrase, as in the status line.
    #[must_use]
    pub fn line(self) -> &'static str {
        match self {
            Self::Ok => "200 OK",
            Self::NoContent => "204 No Content",
            Self::PartialContent => "206 Partial Content",
            Self::BadRequest => "400 Bad Request",
            Self::Forbidden => "403 Forbidden",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::RequestTimeout => "408 Request Timeout",
            Self::LengthRequired => "411 Length Required",
            Self::ContentTooLarge => "413 Content Too Large",
            Self::RangeNotSatisfiable => "416 Range Not Satisfiable",
            Self::TooManyRequests => "429 Too Many Requests",
            Self::HeaderFieldsTooLarge => "431 Request Header Fields Too Large",
            Self::InternalServerError => "500 Internal Server Error",
            Self::VersionNotSupported => "505 HTTP Version Not Supported",
        }
    }
}

impl From<super::head::Refusal> for Status {
    fn from(refusal: super::head::Refusal) -> Self {
        use super::head::Refusal;
        match refusal {
            Refusal::Malformed => Self::BadRequest,
            Refusal::LengthRequired => Self::LengthRequired,
            Refusal::TooLarge => Self::HeaderFieldsTooLarge,
            Refusal::Version => Self::VersionNotSupported,
        }
    }
}

/// What a status needs besides length and type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// Nothing.
    None,
    /// The answer is of this machine and this moment: no cache in between may keep it.
    NoStore,
    /// A file, of which parts can be had.
    Ranges,
    /// The part of a file that was asked for; `first` and `last` octet, and how many there are.
    Part {
        /// Offset of the first octet.
        first: u64,
        /// Offset of the last one.
        last: u64,
        /// Of the whole file.
        size: u64,
    },
    /// No such part; how many octets there are.
    NoSuchPart {
        /// Of the whole file.
        size: u64,
    },
    /// Methods that are allowed.
    Allow(&'static str),
}

/// All that the head says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Status.
    pub status: Status,
    /// Octets of the body, also where none is sent (HEAD). Not said with 204 (RFC 9110 section 8.6).
    pub length: u64,
    /// `Content-Type`; none without a body.
    pub kind: Option<&'static str>,
    /// See [`Extra`].
    pub extra: Extra,
}

impl Answer {
    /// A status without a body.
    #[must_use]
    pub const fn empty(status: Status) -> Self {
        Self { status, length: 0, kind: None, extra: Extra::None }
    }

    /// A file of `size` octets, or the part of it that `head` asks for, and from where on how many octets are to be sent.
    #[must_use]
    pub fn file(head: &Head<'_>, kind: &'static str, size: u64) -> (Self, u64, u64) {
        // There are no validators to compare with: any If-Range means "all of it" (RFC 9110 section 13.1.5), and a range is only
        // for GET (section 14.2).
        let range = head.range.filter(|_| !head.if_range && head.method == Method::Get);
        match super::span(range, size) {
            super::Span::Whole => (Self { status: Status::Ok, length: size, kind: Some(kind), extra: Extra::Ranges }, 0, size),
            super::Span::Part { first, length } => {
                let extra = Extra::Part { first, last: first.saturating_add(length).saturating_sub(1), size };
                (Self { status: Status::PartialContent, length, kind: Some(kind), extra }, first, length)
            }
            super::Span::Unsatisfiable => {
                let mut answer = Self::empty(Status::RangeNotSatisfiable);
                answer.extra = Extra::NoSuchPart { size };
                (answer, 0, 0)
            }
        }
    }

    /// Whether the connection stays open after the answer to `head`; without one the request was not understood.
    #[must_use]
    pub fn keeps(head: Option<&Head<'_>>) -> bool {
        head.is_some_and(|head| head.keep_alive)
    }

    /// Writes the head to the end of `out`. `date` is the time as RFC 9110 section 5.6.7 writes it.
    pub fn write(&self, out: &mut String, date: &str, keep: bool, head: Option<&Head<'_>>) {
        // Formatting into a string does not fail.
        let _ = self.try_write(out, date, keep, head);
    }

    fn try_write(&self, out: &mut String, date: &str, keep: bool, head: Option<&Head<'_>>) -> std::fmt::Result {
        write!(out, "HTTP/1.1 {}\r\n", self.status.line())?;
        if self.status != Status::NoContent {
            write!(out, "Content-Length: {}\r\n", self.length)?;
        }
        if let Some(kind) = self.kind {
            write!(out, "Content-Type: {kind}\r\n")?;
        }
        match self.extra {
            Extra::None => {}
            Extra::NoStore => out.push_str("Cache-Control: no-store\r\n"),
            Extra::Ranges => out.push_str("Accept-Ranges: bytes\r\n"),
            Extra::Part { first, last, size } => write!(out, "Accept-Ranges: bytes\r\nContent-Range: bytes {first}-{last}/{size}\r\n")?,
            Extra::NoSuchPart { size } => write!(out, "Content-Range: bytes */{size}\r\n")?,
            Extra::Allow(methods) => write!(out, "Allow: {methods}\r\n")?,
        }
        write!(out, "Date: {date}\r\n")?;
        let asked = head.is_some_and(|head| head.asks_keep_alive || head.version == Version::Http10);
        if !keep {
            out.push_str("Connection: close\r\n");
        } else if asked {
            out.push_str("Connection: keep-alive\r\n");
        }
        out.push_str("\r\n");
        Ok(())
    }
}

/// The `Content-Type` of a file by its name's end, in any case of letters. EDK2 takes `application/efi` for a program,
/// `application/vnd.efi-iso` for a disc, `application/vnd.efi-img` for a disk that it makes a RAM disk of (HttpBootSupport.c). Our
/// initramfs is none, though its name ends like one: whoever boots a file by HTTP boots a loader.
#[must_use]
pub fn kind_of(name: &str) -> &'static str {
    let ends =
        |end: &str| name.len().checked_sub(end.len()).and_then(|at| name.get(at..)).is_some_and(|last| last.eq_ignore_ascii_case(end));
    if ends(".efi") {
        "application/efi"
    } else if ends(".iso") {
        "application/vnd.efi-iso"
    } else {
        "application/octet-stream"
    }
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
