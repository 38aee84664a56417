//! The lease file's text: one line per change, the last word on an address counts.
//!
//! ```text
//! kurrent-leases 1
//! 2026-11-30T02:15:00Z 10.77.0.101 52:54:00:12:34:56 bound 5f3a9c01
//! ```
//!
//! Each line is: until when, address, MAC, state, the client's digest if leases go by client-id, CRC-32 of what stands before
//! it. A power cut can only spoil the end of the file, which was never acknowledged: a spoilt *end* is cut off; a spoilt line with good lines after it is corruption.

use super::holder::{ClientId, Holder};
use crate::time::{Now, Wall};
use std::net::Ipv4Addr;
use std::time::Duration;

/// First line: name and version of the format.
pub const HEADER: &str = "kurrent-leases 1";
const HEADER_NAME: &str = "kurrent-leases ";
/// 9999-01-01T00:00:00Z: from then on a lease counts as one that does not end.
const FOREVER_SECOND: i64 = 253_370_764_800;
/// A lease of so many seconds does not end (RFC 2131 s3.3).
const INFINITE: Duration = Duration::from_secs(u32::MAX as u64);

/// What happened to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordState {
    /// Acknowledged.
    Bound,
    /// Given back.
    Released,
    /// In quarantine.
    Declined,
}

/// One line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Which address.
    pub address: Ipv4Addr,
    /// Whose.
    pub holder: Holder,
    /// What happened.
    pub state: RecordState,
    /// Until when, for people and for the next start.
    pub until: Wall,
}

/// Why a lease file cannot be believed. The text says what to do; the caller adds the file's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Written by a newer program.
    #[error("line 1: format {0:?} is newer than this program: start the newer kurrentd, or restore the file that this one wrote")]
    Newer(String),
    /// Not a lease file, or spoilt inside.
    #[error("line {line}: {what}; remove that line after checking the machine it names, or restore the file from a copy")]
    Corrupt {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// What a file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The records in order.
    pub records: Vec<Record>,
    /// Octets of the file that are good; what follows was never acknowledged and is to be cut off.
    pub good_bytes: usize,
}

impl Record {
    /// What happened now, and for how long it holds.
    #[must_use]
    pub fn new(address: Ipv4Addr, holder: Holder, state: RecordState, lasts: Duration, now: Now) -> Self {
        let until = match lasts {
            INFINITE => Wall::from_second(FOREVER_SECOND).unwrap_or(Wall::MAX),
            lasts => now.wall.saturating_add(lasts).unwrap_or(now.wall),
        };
        Self { address, holder, state, until }
    }

    /// Whether the lease does not end.
    #[must_use]
    pub fn is_forever(&self) -> bool {
        self.until.as_second() >= FOREVER_SECOND
    }

    /// The line, with its newline.
    #[must_use]
    pub fn line(&self) -> String {
        let state = match self.state {
            RecordState::Bound => "bound",
            RecordState::Released => "released",
            RecordState::Declined => "declined",
        };
        let until = Wall::from_second(self.until.as_second()).unwrap_or(self.until);
        let id = self.holder.id.map_or_else(String::new, |id| format!(" {id}"));
        let text = format!("{until} {} {} {state}{id}", self.address, self.holder.mac);
        format!("{text} {:08x}\n", crc32fast::hash(text.as_bytes()))
    }

    fn parse(line: &str) -> Result<Self, &'static str> {
        let (text, sum) = line.rsplit_once(' ').ok_or("not a lease")?;
        if sum.len() != 8 || u32::from_str_radix(sum, 16) != Ok(crc32fast::hash(text.as_bytes())) {
            return Err("the checksum at its end does not fit");
        }
        let mut words = text.split(' ');
        let mut word = || words.next().ok_or("a field is missing");
        let until = word()?.parse().map_err(|_| "the time is not RFC 3339")?;
        let address = word()?.parse().map_err(|_| "the address is not one")?;
        let mac = word()?.parse().map_err(|_| "the MAC is not one")?;
        let state = match word()? {
            "bound" => RecordState::Bound,
            "released" => RecordState::Released,
            "declined" => RecordState::Declined,
            _ => return Err("the state is none of bound, released, declined"),
        };
        let id = match words.next() {
            None => None,
            Some(id) => {
                let mut octets = [0; 16];
                hex::decode_to_slice(id, &mut octets).map_err(|_| "the client is not 32 hexadecimal digits")?;
                Some(ClientId(octets))
            }
        };
        Ok(Self { address, holder: Holder { mac, id }, state, until })
    }
}

/// Reads a whole file. An empty one is a start that was cut before its first line and counts as new.
///
/// # Errors
/// [`Unreadable`]: no address may be given out before a person has looked.
pub fn parse(file: &[u8]) -> Result<Contents, Unreadable> {
    let mut contents = Contents::default();
    let mut spoilt: Option<(usize, &'static str)> = None;
    let mut at = 0;
    for (index, octets) in file.split_inclusive(|b| *b == b'\n').enumerate() {
        at += octets.len();
        let line = index + 1;
        let text = octets.strip_suffix(b"\n").and_then(|t| std::str::from_utf8(t).ok());
        let parsed = match text {
            Some(HEADER) if index == 0 => Ok(None),
            Some(text) if index == 0 && text.starts_with(HEADER_NAME) => return Err(Unreadable::Newer(text.chars().take(40).collect())),
            _ if index == 0 && !cut_header(octets) => {
                return Err(Unreadable::Corrupt { line, what: "the first line is not that of a lease file" });
            }
            Some(text) if index > 0 => Record::parse(text).map(Some),
            _ => Err("it is cut"),
        };
        match (parsed, &spoilt) {
            (Ok(_), Some((line, what))) => return Err(Unreadable::Corrupt { line: *line, what }),
            (Ok(record), None) => {
                contents.records.extend(record);
                contents.good_bytes = at;
            }
            (Err(what), None) => spoilt = Some((line, what)),
            (Err(_), Some(_)) => {}
        }
    }
    Ok(contents)
}

/// Whether a first line can be the header of a file whose very first write was cut (some file systems leave zeros).
fn cut_header(octets: &[u8]) -> bool {
    HEADER.as_bytes().starts_with(octets) || octets.iter().all(|b| *b == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::MacAddr;
    use proptest::prelude::*;

    fn record(last: u8) -> Record {
        Record {
            address: Ipv4Addr::new(10, 77, 0, last),
            holder: MacAddr([2, 0, 0, 0, 0, last]).into(),
            state: RecordState::Bound,
            until: "2026-11-30T02:15:00Z".parse().unwrap(),
        }
    }

    fn file(records: &[Record]) -> Vec<u8> {
        let lines: String = records.iter().map(Record::line).collect();
        format!("{HEADER}\n{lines}").into_bytes()
    }

    #[test]
    fn lines_are_readable_by_people() {
        let line = record(9).line();
        assert!(line.starts_with("2026-11-30T02:15:00Z 10.77.0.9 02:00:00:00:00:09 bound "), "{line}");
    }

    #[test]
    fn a_client_of_a_machine_and_a_lease_without_end_are_read_back() {
        let holder = Holder { mac: MacAddr([2, 0, 0, 0, 0, 9]), id: Some(ClientId([7; 16])) };
        let now = Now { mono: Default::default(), wall: record(9).until };
        let written = Record::new(record(9).address, holder, RecordState::Bound, INFINITE, now);
        assert!(written.line().starts_with("9999-01-01T00:00:00Z 10.77.0.9 "), "{}", written.line());
        assert_eq!(parse(&file(&[written, record(1)])).unwrap().records, [written, record(1)]);
        assert!(written.is_forever() && !record(1).is_forever());
    }

    #[test]
    fn a_cut_end_is_cut_off_and_every_line_before_it_counts() {
        let records = [record(1), record(2)];
        let whole = file(&records);
        let first = file(&records[..1]);
        for len in first.len()..whole.len() {
            let contents = parse(&whole[..len]).unwrap();
            assert_eq!((contents.records.len(), contents.good_bytes), (1, first.len()), "cut at {len}");
        }
        for len in 0..HEADER.len() + 1 {
            assert_eq!(parse(&whole[..len]).unwrap(), Contents::default(), "cut at {len}");
        }
    }

    #[test]
    fn zeros_at_the_end_as_after_a_power_cut_are_cut_off() {
        let mut octets = file(&[record(1)]);
        let good = octets.len();
        octets.extend([0; 4096]);
        assert_eq!(parse(&octets).unwrap().good_bytes, good);
    }

    #[test]
    fn a_spoilt_line_inside_stops_with_its_number() {
        let mut octets = file(&[record(1), record(2), record(3)]);
        let second = file(&[record(1)]).len() + 5;
        octets[second] ^= 1;
        assert!(matches!(parse(&octets), Err(Unreadable::Corrupt { line: 3, .. })));
    }

    #[test]
    fn foreign_and_newer_files_are_not_taken_as_empty() {
        assert!(matches!(parse(b"kurrent-leases 2\nx\n"), Err(Unreadable::Newer(_))));
        assert!(matches!(parse(b"{}\n"), Err(Unreadable::Corrupt { line: 1, .. })));
        assert!(matches!(parse(b"{}\n{}\n"), Err(Unreadable::Corrupt { line: 1, .. })));
    }

    proptest! {
        #[test]
        fn no_file_makes_the_parser_panic(octets in prop::collection::vec(any::<u8>(), 0..300), headed: bool) {
            let octets = if headed { [HEADER.as_bytes(), b"\n", &octets].concat() } else { octets };
            if let Ok(contents) = parse(&octets) { prop_assert!(contents.good_bytes <= octets.len()); }
        }
    }
}
