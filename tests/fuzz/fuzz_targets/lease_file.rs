//! Any lease file: no panic; what is good of it reads back the same.
#![no_main]

use kurrent_core::dhcp::lease_file::{HEADER, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|octets: &[u8]| {
    let Ok(contents) = parse(octets) else { return };
    assert!(contents.good_bytes <= octets.len());
    let lines: String = contents.records.iter().map(|record| record.line()).collect();
    let again = parse(format!("{HEADER}\n{lines}").as_bytes()).expect("what was written is read");
    assert_eq!(again.records, contents.records);
});
