//! Octets <-> packets.

/// Default block size (RFC 1350).
pub const DEFAULT_BLOCK_BYTES: usize = 512;

/// Error codes (RFC 1350 appendix, RFC 2347).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// 0: see the message.
    Undefined,
    /// 1.
    NotFound,
    /// 2.
    AccessViolation,
    /// 4.
    IllegalOperation,
    /// 5.
    UnknownTransfer,
}

impl ErrorCode {
    fn number(self) -> u16 {
        match self {
            Self::Undefined => 0,
            Self::NotFound => 1,
            Self::AccessViolation => 2,
            Self::IllegalOperation => 4,
            Self::UnknownTransfer => 5,
        }
    }
}

/// How lines are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As they are.
    Octet,
    /// With CR LF (RFC 764).
    Netascii,
}

/// The options of a request that we know, as asked for; of another form than the RFC's they count as absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// RFC 2348; 8 to 65464.
    pub block_bytes: Option<u16>,
    /// RFC 2349; seconds, 1 to 255.
    pub timeout_secs: Option<u8>,
    /// In microseconds, as some clients ask; 10 ms to 255 s.
    pub timeout_micros: Option<u32>,
    /// RFC 2349: asks for the size.
    pub size: bool,
    /// RFC 7440; 1 to 65535.
    pub window_blocks: Option<u16>,
}

/// A read request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The name as sent; `None` when it is not text.
    pub name: Option<String>,
    /// How lines are sent.
    pub mode: Mode,
    /// Its options.
    pub asked: Asked,
}

/// What arrives at port 69.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Initial {
    /// RRQ.
    Read(ReadRequest),
    /// WRQ: refused.
    Write,
    /// Anything else: nothing to answer.
    Junk,
}

/// What a client sends during a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// ACK of a block number.
    Ack(u16),
    /// ERROR: the client has ended the transfer.
    Error,
    /// Anything else.
    Junk,
}

/// Reads a datagram to port 69.
#[must_use]
pub fn initial(octets: &[u8]) -> Initial {
    match octets {
        [0, 1, rest @ ..] => read_request(rest).map_or(Initial::Junk, Initial::Read),
        [0, 2, ..] => Initial::Write,
        _ => Initial::Junk,
    }
}

fn read_request(rest: &[u8]) -> Option<ReadRequest> {
    // Every string ends in a NUL; a request that was cut is not one.
    let mut strings = rest.strip_suffix(&[0])?.split(|b| *b == 0);
    let name = std::str::from_utf8(trim(strings.next()?)).ok().map(str::to_owned);
    let mode = match strings.next()?.to_ascii_lowercase().as_slice() {
        b"octet" | b"binary" => Mode::Octet,
        b"netascii" | b"ascii" => Mode::Netascii,
        _ => return None,
    };
    let mut asked = Asked::default();
    // Bounded by the datagram; the first occurrence of an option counts.
    while let (Some(key), Some(value)) = (strings.next(), strings.next()) {
        let number = std::str::from_utf8(value).ok().filter(|t| t.bytes().all(|b| b.is_ascii_digit())).and_then(|t| t.parse::<u64>().ok());
        let Some(number) = number else { continue };
        match key.to_ascii_lowercase().as_slice() {
            b"blksize" if asked.block_bytes.is_none() => {
                asked.block_bytes = u16::try_from(number).ok().filter(|n| (8..=65_464).contains(n))
            }
            b"timeout" if asked.timeout_secs.is_none() => asked.timeout_secs = u8::try_from(number).ok().filter(|n| *n > 0),
            b"utimeout" if asked.timeout_micros.is_none() => {
                asked.timeout_micros = u32::try_from(number).ok().filter(|n| (10_000..=255_000_000).contains(n));
            }
            b"tsize" => asked.size = true,
            b"windowsize" if asked.window_blocks.is_none() => asked.window_blocks = u16::try_from(number).ok().filter(|n| *n > 0),
            _ => {}
        }
    }
    Some(ReadRequest { name, mode, asked })
}

/// Some firmware appends octets of 0xff to a name that came without a NUL (netboot.xyz 1198).
fn trim(name: &[u8]) -> &[u8] {
    let end = name.iter().rposition(|b| *b != 0xff).map_or(0, |last| last + 1);
    name.get(..end).unwrap_or_default()
}

/// Reads a datagram of a running transfer.
#[must_use]
pub fn reply(octets: &[u8]) -> Reply {
    match octets {
        // Longer ACKs exist: some clients pad them.
        [0, 4, high, low, ..] => Reply::Ack(u16::from_be_bytes([*high, *low])),
        [0, 5, ..] => Reply::Error,
        _ => Reply::Junk,
    }
}

/// DATA, without its payload.
#[must_use]
pub fn data_head(block: u16) -> [u8; 4] {
    let [high, low] = block.to_be_bytes();
    [0, 3, high, low]
}

/// ERROR.
#[must_use]
pub fn error(code: ErrorCode, message: &str) -> Vec<u8> {
    let [high, low] = code.number().to_be_bytes();
    let mut out = vec![0, 5, high, low];
    out.extend(message.bytes().filter(|b| *b != 0));
    out.push(0);
    out
}

/// OACK with these options.
#[must_use]
pub fn option_ack(options: &[(&'static str, u64)]) -> Vec<u8> {
    let mut out = vec![0, 6];
    for (key, value) in options {
        out.extend_from_slice(key.as_bytes());
        out.push(0);
        out.extend_from_slice(value.to_string().as_bytes());
        out.push(0);
    }
    out
}

/// Text as netascii sends it: LF becomes CR LF, a bare CR becomes CR NUL.
#[must_use]
pub fn netascii(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for octet in text {
        match octet {
            b'\n' => out.extend_from_slice(b"\r\n"),
            b'\r' => out.extend_from_slice(b"\r\0"),
            other => out.push(*other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Initial {
        initial(&[&[0, 1], text.as_bytes()].concat())
    }

    fn asked(text: &str) -> Asked {
        match read(text) {
            Initial::Read(request) => request.asked,
            other => panic!("{text:?}: {other:?}"),
        }
    }

    #[test]
    fn options_are_read_in_any_case_and_order() {
        let expected =
            Asked { block_bytes: Some(1468), timeout_secs: Some(3), timeout_micros: Some(500_000), size: true, window_blocks: Some(16) };
        assert_eq!(asked("f\0OCTET\0BlkSize\x001468\0tsize\x000\0windowsize\x0016\0timeout\x003\0utimeout\x00500000\0"), expected);
    }

    #[test]
    fn options_out_of_range_or_unreadable_are_as_good_as_absent() {
        for text in [
            "blksize\x007",
            "blksize\x0065465",
            "blksize\x00-5",
            "blksize\x00",
            "timeout\x000",
            "timeout\x00256",
            "windowsize\x000",
            "utimeout\x005",
            "x\x001",
            "blksize\x0099999999999999999999",
            "tsize\x00+1",
        ] {
            assert_eq!(asked(&format!("f\0octet\0{text}\0")), Asked::default(), "{text:?}");
        }
    }

    #[test]
    fn cut_requests_are_junk() {
        for text in ["", "\0", "f", "f\0", "f\0octet", "f\0mail\0"] {
            assert_eq!(read(text), Initial::Junk, "{text:?}");
        }
    }

    #[test]
    fn octets_that_firmware_appends_to_a_name_are_dropped() {
        let Initial::Read(request) = initial(b"\0\x01snponly.efi\xff\xff\0octet\0") else { panic!() };
        assert_eq!(request.name.as_deref(), Some("snponly.efi"));
        let Initial::Read(request) = initial(b"\0\x01sn\xffponly.efi\0octet\0") else { panic!() };
        assert_eq!(request.name, None);
    }

    #[test]
    fn netascii_ends_lines_with_cr_lf() {
        assert_eq!(netascii(b"a\nb\rc"), b"a\r\nb\r\0c");
    }

    proptest! {
        #[test]
        fn no_octets_make_a_decoder_panic(octets in prop::collection::vec(any::<u8>(), 0..600), opcode in 0u8..7) {
            let whole = [&[0, opcode], octets.as_slice()].concat();
            let _ = (initial(&whole), reply(&whole), initial(&octets), reply(&octets));
        }
    }
}
