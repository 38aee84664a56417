//! The head of a request (RFC 9112 sections 2 to 5), from octets of strangers. Whatever two readers could understand differently is
//! refused: there is no second guess about where a request ends.
//!
//! Firmware is literal and old, so two things are milder than the RFC: a request of HTTP/1.1 without `Host` is taken, and the
//! case of names never matters.

/// Octets of the longest head that is read; one of firmware is under 1 KiB.
pub const MAX_HEAD_BYTES: usize = 8192;
/// Most header fields of one request.
pub const MAX_FIELDS: usize = 48;

/// What a request wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `GET`.
    Get,
    /// `HEAD`: as GET, without the body.
    Head,
    /// `POST`.
    Post,
    /// Any other token.
    Other,
}

/// The request's own version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0: the connection ends after the answer unless the client asks for more (RFC 9112 appendix C.2.2).
    Http10,
    /// HTTP/1.1.
    Http11,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head<'a> {
    /// What to do.
    pub method: Method,
    /// As it came: nothing is decoded, nothing is resolved. Names are compared with those of a table.
    pub path: &'a str,
    /// Behind the `?`; empty without one.
    pub query: &'a str,
    /// Of the client.
    pub version: Version,
    /// Whether the client wants to ask again over this connection.
    pub keep_alive: bool,
    /// Whether it said so in a `Connection` field: then it is told the same, as iPXE keeps a connection only when it hears that
    /// (httpcore.c, `http_parse_connection`).
    pub asks_keep_alive: bool,
    /// Octets of the body.
    pub body_bytes: u64,
    /// The client waits for `100 Continue` before it sends the body.
    pub expects_continue: bool,
    /// `Range`, when it is there once.
    pub range: Option<&'a str>,
    /// There is an `If-Range`.
    pub if_range: bool,
}

/// Why a head is not taken. The connection ends: where the next request begins is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// 400.
    Malformed,
    /// 411: the body comes in a transfer coding. RFC 9112 section 6.3 allows to insist on `Content-Length`.
    LengthRequired,
    /// 431: larger than [`MAX_HEAD_BYTES`], or more than [`MAX_FIELDS`].
    TooLarge,
    /// 505.
    Version,
}

/// What the octets of a connection hold so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read<'a> {
    /// No whole head yet.
    More,
    /// A head, and how many octets it takes.
    Whole(Head<'a>, usize),
    /// None that we take.
    Refused(Refusal),
}

/// Reads the head at the beginning of `octets`.
#[must_use]
pub fn read(octets: &[u8]) -> Read<'_> {
    // A robust server skips empty lines before the request line (RFC 9112 section 2.2).
    let skipped = octets.chunks(2).take_while(|pair| *pair == b"\r\n").count().saturating_mul(2);
    let rest = octets.get(skipped..).unwrap_or_default();
    let Some(end) = end_of(rest) else {
        return if octets.len() >= MAX_HEAD_BYTES { Read::Refused(Refusal::TooLarge) } else { Read::More };
    };
    let taken = skipped.saturating_add(end);
    if taken > MAX_HEAD_BYTES {
        return Read::Refused(Refusal::TooLarge);
    }
    match parse(rest.get(..end).unwrap_or_default()) {
        Ok(head) => Read::Whole(head, taken),
        Err(refusal) => Read::Refused(refusal),
    }
}

/// Behind the empty line.
fn end_of(octets: &[u8]) -> Option<usize> {
    octets.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at.saturating_add(4))
}

fn parse(octets: &[u8]) -> Result<Head<'_>, Refusal> {
    // Values of other code pages occur in fields that nobody reads; a name, a target or a length is ASCII.
    let mut lines = octets.split(|octet| *octet == b'\n').map(|line| line.strip_suffix(b"\r"));
    let mut head = request_line(lines.next().flatten().ok_or(Refusal::Malformed)?)?;
    let mut fields = Fields::default();
    let mut count = 0_usize;
    for line in lines {
        let Some(line) = line else {
            // What follows the last CRLF is nothing at all; a line that ends in LF alone is refused.
            continue;
        };
        if line.is_empty() {
            break;
        }
        count = count.saturating_add(1);
        if count > MAX_FIELDS {
            return Err(Refusal::TooLarge);
        }
        fields.take(line)?;
    }
    if octets.windows(2).any(|two| two.ends_with(b"\n") && !two.starts_with(b"\r")) {
        return Err(Refusal::Malformed);
    }
    fields.judge(&mut head)?;
    Ok(head)
}

fn request_line(line: &[u8]) -> Result<Head<'_>, Refusal> {
    let line = std::str::from_utf8(line).map_err(|_| Refusal::Malformed)?;
    // One space each (RFC 9112 section 3): where the target ends is not a matter of taste.
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) = (words.next(), words.next(), words.next(), words.next()) else {
        return Err(Refusal::Malformed);
    };
    if method.is_empty() || !method.bytes().all(is_token) || !target.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(Refusal::Malformed);
    }
    let version = match version.strip_prefix("HTTP/").map(str::as_bytes) {
        Some(b"1.0") => Version::Http10,
        // A later minor version is served as the highest that we know (RFC 9110 section 2.5).
        Some([b'1', b'.', minor]) if minor.is_ascii_digit() => Version::Http11,
        Some([major, b'.', minor]) if major.is_ascii_digit() && minor.is_ascii_digit() => return Err(Refusal::Version),
        Some(_) | None => return Err(Refusal::Malformed),
    };
    let method = match method {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        _ => Method::Other,
    };
    let (path, query) = split_target(target, method)?;
    Ok(Head {
        method,
        path,
        query,
        version,
        keep_alive: false,
        asks_keep_alive: false,
        body_bytes: 0,
        expects_continue: false,
        range: None,
        if_range: false,
    })
}

/// Path and query of a target in origin form, or in absolute form (RFC 9112 section 3.2.2: a server has to take it), whose
/// authority says nothing to us: there is one site here.
fn split_target(target: &str, method: Method) -> Result<(&str, &str), Refusal> {
    if method == Method::Other && target == "*" {
        return Ok(("*", ""));
    }
    let own = match target.get(..7) {
        Some(scheme) if scheme.eq_ignore_ascii_case("http://") => {
            let rest = target.get(7..).unwrap_or_default();
            let at = rest.find(['/', '?']).unwrap_or(rest.len());
            match rest.get(at..) {
                Some(own) if own.starts_with('/') => own,
                // An empty path is "/" (RFC 9110 section 4.2.3).
                Some(own) => return Ok(("/", own.strip_prefix('?').unwrap_or_default())),
                None => return Err(Refusal::Malformed),
            }
        }
        Some(_) | None => target,
    };
    if !own.starts_with('/') {
        return Err(Refusal::Malformed);
    }
    Ok(own.split_once('?').unwrap_or((own, "")))
}

/// What the fields said, before all are known.
#[derive(Default)]
struct Fields<'a> {
    hosts: usize,
    lengths: usize,
    length: u64,
    coded: bool,
    close: bool,
    keep_alive: bool,
    expects_continue: bool,
    ranges: usize,
    range: Option<&'a str>,
    if_range: bool,
}

impl<'a> Fields<'a> {
    fn take(&mut self, line: &'a [u8]) -> Result<(), Refusal> {
        let at = line.iter().position(|octet| *octet == b':').ok_or(Refusal::Malformed)?;
        let (name, value) = line.split_at(at);
        // No space before the colon, no folded line (RFC 9112 sections 5.1, 5.2): both are how requests are smuggled.
        if name.is_empty() || !name.iter().copied().all(is_token) {
            return Err(Refusal::Malformed);
        }
        let value = value.get(1..).unwrap_or_default();
        if value.iter().any(|octet| matches!(octet, 0 | b'\r')) {
            return Err(Refusal::Malformed);
        }
        let value = value.trim_ascii();
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        if is("host") {
            self.hosts = self.hosts.saturating_add(1);
        } else if is("content-length") {
            self.lengths = self.lengths.saturating_add(1);
            self.length = digits(value).ok_or(Refusal::Malformed)?;
        } else if is("transfer-encoding") {
            self.coded = true;
        } else if is("connection") {
            for word in value.split(|octet| *octet == b',').map(<[u8]>::trim_ascii) {
                self.close |= word.eq_ignore_ascii_case(b"close");
                self.keep_alive |= word.eq_ignore_ascii_case(b"keep-alive");
            }
        } else if is("expect") {
            self.expects_continue = value.eq_ignore_ascii_case(b"100-continue");
        } else if is("range") {
            self.ranges = self.ranges.saturating_add(1);
            self.range = std::str::from_utf8(value).ok();
        } else if is("if-range") {
            self.if_range = true;
        }
        Ok(())
    }

    fn judge(self, head: &mut Head<'a>) -> Result<(), Refusal> {
        // DEVIATION(RFC 9112 s3.2): HTTP/1.1 without a Host is served. There is one site here, and small firmware clients leave it
        // out. Two of them are refused, as are two lengths, also equal ones, and a length together with a coding.
        if self.hosts > 1 || self.lengths > 1 || (self.lengths > 0 && self.coded) {
            return Err(Refusal::Malformed);
        }
        if self.coded {
            return Err(Refusal::LengthRequired);
        }
        head.body_bytes = self.length;
        head.asks_keep_alive = self.keep_alive && !self.close;
        head.keep_alive = match head.version {
            Version::Http10 => head.asks_keep_alive,
            Version::Http11 => !self.close,
        };
        head.expects_continue = self.expects_continue && head.version == Version::Http11;
        head.range = self.range.filter(|_| self.ranges == 1);
        head.if_range = self.if_range;
        Ok(())
    }
}

fn is_token(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&octet)
}

/// Digits only: no sign, no list, no white space.
fn digits(value: &[u8]) -> Option<u64> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
#[path = "head_tests.rs"]
mod tests;
