//! The journal put onto what the files hold.
//!
//! A record is expected as one of the journal's lines found it, or left it. As anything else it was edited by hand while no daemon
//! ran, and a change that was acknowledged waits for the same record: nobody but a person can choose.

use super::journal::{Entry, Line, digest};
use kurrent_core::ledger::records::{Key, Record, Records};
use std::collections::BTreeMap;

/// A record that was changed on both sides, and the journal's last line about it.
pub(super) struct Conflict {
    pub(super) key: Key,
    pub(super) line: u64,
}

/// What the journal has of one record.
#[derive(Default)]
struct Chain<'a> {
    /// Every state that it may be found in, as digests.
    states: Vec<Option<String>>,
    last: Option<&'a Record>,
    line: u64,
}

/// Carries out `lines` on `records`, those of each file that are newer than what it holds (`filed`, by the file's name).
pub(super) fn replay(records: &mut Records, lines: &[(u64, Line)], filed: impl Fn(&str) -> u64) -> Result<(), Conflict> {
    let mut chains: BTreeMap<Key, Chain> = BTreeMap::new();
    for (number, line) in lines {
        for Entry { was, edited, put, gone } in &line.records {
            let Some(key) = put.as_ref().map(Record::key).or_else(|| gone.clone()) else { continue };
            if line.generation <= filed(key.file()) {
                continue;
            }
            let chain = chains.entry(key).or_default();
            chain.states.extend([was.clone(), put.as_ref().map(digest)]);
            chain.states.extend(edited.clone().map(Some));
            (chain.last, chain.line) = (put.as_ref(), *number);
        }
        records.generation = records.generation.max(line.generation);
    }
    for (key, Chain { states, last, line }) in chains {
        let found = records.get(&key).as_ref().map(digest);
        if !states.contains(&found) {
            return Err(Conflict { key, line });
        }
        match last {
            Some(record) => {
                records.put(record.clone());
            }
            None => records.remove(&key),
        }
    }
    Ok(())
}
