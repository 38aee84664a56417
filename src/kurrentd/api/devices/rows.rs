//! Files of devices, read row by row: a row that is wrong is told with its line and spoils no other; a file that can not be read at
//! all is refused.

use super::super::body::unique_map;
use super::super::problem::Problem;
use kurrent_core::ledger::Change;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// As many devices as a ledger has.
const MAX_ROWS: usize = 20_000;
/// Scalars and containers of a file with so many devices.
const MAX_NODES: usize = 1_000_000;

/// One row.
pub(super) struct Row {
    /// Where it is in the file.
    pub(super) line: u64,
    /// As written.
    pub(super) mac: String,
    /// [`Change::Register`], or why not.
    pub(super) change: Result<Change, Problem>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    mac: String,
    #[serde(default)]
    public_key: Option<String>,
    #[serde(default)]
    keyless_allowed: bool,
    #[serde(default)]
    note: String,
    #[serde(default, deserialize_with = "unique_map")]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    address: Option<String>,
}

impl Given {
    fn row(self, line: u64) -> Row {
        let Self { mac, public_key, keyless_allowed, note, labels, address } = self;
        let public_key = public_key.filter(|k| !k.is_empty());
        let unreadable = |_| Problem::new(422, "address_invalid", "the address is not an IPv4 address, like 10.77.0.101; correct the row");
        let address = address.filter(|a| !a.is_empty()).map(|a| a.parse().map_err(unreadable)).transpose();
        let register = |device| Ok(Change::Register { mac: device, public_key, keyless_allowed, note, labels, address: address? });
        let change = mac.parse().map_err(Problem::from).and_then(register);
        Row { line, mac: mac.chars().filter(|c| !c.is_control()).take(64).collect(), change }
    }
}

fn wrong(line: u64, what: &str) -> Row {
    Row { line, mac: String::new(), change: Err(Problem::new(422, "row_invalid", format!("{what}; correct the row"))) }
}

fn unreadable(what: impl std::fmt::Display) -> Problem {
    Problem::new(400, "file_unreadable", format!("{what}; correct the file"))
}

/// Counts lines once, however many rows there are.
struct Lines<'t> {
    rest: &'t [u8],
    at: usize,
    line: u64,
}

impl<'t> Lines<'t> {
    fn new(octets: &'t [u8]) -> Self {
        Self { rest: octets, at: 0, line: 1 }
    }

    /// The line of this octet, or of the first one behind it that ends no line; rows come in their order.
    fn of(&mut self, at: usize) -> u64 {
        while let Some((first, rest)) = self.rest.split_first()
            && (self.at < at || matches!(first, b'\r' | b'\n'))
        {
            self.line = self.line.saturating_add(u64::from(*first == b'\n'));
            (self.rest, self.at) = (rest, self.at.saturating_add(1));
        }
        self.line
    }
}

fn bounded(rows: Vec<Row>) -> Result<Vec<Row>, Problem> {
    if rows.len() > MAX_ROWS {
        return Err(Problem::new(422, "too_many_rows", format!("the file has more than {MAX_ROWS} devices; split it")));
    }
    Ok(rows)
}

/// RFC 4180, with a header line; separators of other locales are read too.
pub(super) fn csv(octets: &[u8]) -> Result<Vec<Row>, Problem> {
    let text = std::str::from_utf8(octets).map_err(|_| unreadable("this is not UTF-8 text"))?.trim_start_matches('\u{feff}');
    let header = text.lines().next().unwrap_or_default();
    let separator = if header.contains(';') && !header.contains(',') { b';' } else { b',' };
    let mut reader = csv::ReaderBuilder::new().delimiter(separator).flexible(true).trim(csv::Trim::All).from_reader(text.as_bytes());
    let header: Vec<String> = reader.headers().map_err(unreadable)?.iter().map(str::to_ascii_lowercase).collect();
    const COLUMNS: [&str; 6] = ["mac", "public_key", "keyless_allowed", "note", "labels", "address"];
    let known = |name: &String| COLUMNS.contains(&name.as_str());
    let twice = header.iter().enumerate().any(|(at, name)| header.iter().skip(at.saturating_add(1)).any(|n| n == name));
    if !header.iter().all(known) || twice || !header.iter().any(|name| name == "mac") {
        return Err(unreadable(
            "line 1 names the columns: mac, and if wanted public_key, keyless_allowed, note, labels, address, each once",
        ));
    }
    let (mut rows, mut lines) = (Vec::new(), Lines::new(text.as_bytes()));
    for record in reader.records().take(MAX_ROWS.saturating_add(1)) {
        let record = record.map_err(unreadable)?;
        // Its own count of lines is one behind when lines end in CR LF.
        let line = lines.of(record.position().map_or(0, |p| usize::try_from(p.byte()).unwrap_or(usize::MAX)));
        if record.iter().all(str::is_empty) {
            continue;
        }
        if record.len() != header.len() {
            rows.push(wrong(line, &format!("there are {} columns, the header has {}", record.len(), header.len())));
            continue;
        }
        let cell = |name: &str| header.iter().position(|h| h == name).and_then(|at| record.get(at)).unwrap_or_default();
        let keyless = match cell("keyless_allowed").to_ascii_lowercase().as_str() {
            "" | "false" | "no" | "0" => Ok(false),
            "true" | "yes" | "1" => Ok(true),
            _ => Err("keyless_allowed is true or false"),
        };
        rows.push(match (keyless, labels(cell("labels"))) {
            (Ok(keyless_allowed), Ok(labels)) => {
                let (public_key, address) = (Some(cell("public_key").to_owned()), Some(cell("address").to_owned()));
                Given { mac: cell("mac").into(), public_key, keyless_allowed, note: cell("note").into(), labels, address }.row(line)
            }
            (Err(what), _) | (_, Err(what)) => wrong(line, what),
        });
    }
    bounded(rows)
}

fn labels(cell: &str) -> Result<BTreeMap<String, String>, &'static str> {
    let mut labels = BTreeMap::new();
    for pair in cell.split(';').map(str::trim).filter(|p| !p.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or("labels are key=value, with ';' between")?;
        if labels.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err("a label is there twice");
        }
    }
    Ok(labels)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wrapped<T> {
    devices: Vec<T>,
}

/// A list of devices, or an object with the list under `devices`.
pub(super) fn json(octets: &[u8]) -> Result<Vec<Row>, Problem> {
    let rows: Vec<&RawValue> = match octets.iter().find(|o| !o.is_ascii_whitespace()) {
        Some(b'{') => serde_json::from_slice::<Wrapped<&RawValue>>(octets).map_err(unreadable)?.devices,
        _ => serde_json::from_slice(octets).map_err(unreadable)?,
    };
    let (start, mut lines) = (octets.as_ptr().addr(), Lines::new(octets));
    let read = |raw: &&RawValue| {
        let line = lines.of(raw.get().as_ptr().addr().saturating_sub(start));
        serde_json::from_str::<Given>(raw.get()).map_or_else(|e| wrong(line, &e.to_string()), |given| given.row(line))
    };
    bounded(rows.iter().take(MAX_ROWS.saturating_add(1)).map(read).collect())
}

/// As [`json`]; a row of a wrong shape spoils the file, as YAML can not be read on behind it.
pub(super) fn yaml(octets: &[u8]) -> Result<Vec<Row>, Problem> {
    let read = |fault: crate::yaml::Fault| unreadable(format_args!("line {}: {}", fault.line, fault.what));
    let wrapped = std::str::from_utf8(octets).is_ok_and(|t| t.lines().any(|l| l.starts_with("devices:") || l.starts_with('{')));
    let list = if wrapped {
        crate::yaml::parse::<Wrapped<serde_saphyr::Spanned<Given>>>(octets, MAX_NODES).map_err(read)?.devices
    } else {
        crate::yaml::parse::<Vec<serde_saphyr::Spanned<Given>>>(octets, MAX_NODES).map_err(read)?
    };
    bounded(
        list.into_iter()
            .map(|given| {
                let line = given.referenced.line();
                given.value.row(line)
            })
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blank_within_a_label_of_a_table_is_part_of_it() {
        let read = labels("room=lab 2; rack=7 ;").map(|l| l.into_iter().collect::<Vec<_>>());
        assert_eq!(read, Ok(vec![("rack".into(), "7".into()), ("room".into(), "lab 2".into())]));
        assert!(labels("a=1;a=2").is_err() && labels("a").is_err());
    }
}
