//! The file of `device bind-batch`: one `MAC,WORKER` a line.

use kurrent_core::id::{MacAddr, WorkerId};

/// Reads it; a fault as `LINE: what`.
pub fn parse(octets: &[u8]) -> Result<Vec<(MacAddr, WorkerId)>, String> {
    let text = std::str::from_utf8(octets).map_err(|_| "1: this is not UTF-8 text; save the file as UTF-8".to_owned())?;
    let mut pairs = Vec::new();
    for (number, line) in (1..).zip(text.trim_start_matches('\u{feff}').lines()) {
        let cells: Vec<&str> = line.split([',', ';', '\t']).map(|cell| cell.trim().trim_matches('"')).collect();
        match cells.as_slice() {
            [""] => {}
            [first, ..] if first.starts_with('#') => {}
            [first, _] if pairs.is_empty() && first.eq_ignore_ascii_case("mac") => {}
            [mac, worker] => {
                let at = |e: kurrent_core::id::InvalidName| format!("{number}: {e}");
                pairs.push((mac.parse().map_err(at)?, worker.parse().map_err(at)?));
            }
            _ => return Err(format!("{number}: write MAC,WORKER")),
        }
    }
    if pairs.is_empty() { Err("1: there is no pair in it; write MAC,WORKER, one a line".to_owned()) } else { Ok(pairs) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<&[(&str, &str)], &str>) {
        let found = parse(text.as_bytes());
        match expected {
            Ok(pairs) => {
                let found: Vec<(String, String)> = found.unwrap().iter().map(|(m, w)| (m.to_string(), w.to_string())).collect();
                let pairs: Vec<(String, String)> = pairs.iter().map(|(m, w)| ((*m).to_owned(), (*w).to_owned())).collect();
                assert_eq!(found, pairs, "{text:?}");
            }
            Err(what) => assert!(found.clone().is_err_and(|e| e.starts_with(what)), "{text:?}: {found:?}"),
        }
    }

    #[test]
    fn pairs_are_read_as_people_write_them_and_faults_have_their_line() {
        let one: &[(&str, &str)] = &[("52:54:00:00:00:01", "w1")];
        check("52:54:00:00:00:01,w1", Ok(one));
        check("\u{feff}mac,worker\r\n# rack 7\r\n\r\n5254.0000.0001 ; w1\r\n", Ok(one));
        check("\"52-54-00-00-00-01\"\t\"w1\"\n", Ok(one));
        check("52:54:00:00:00:01,w1\nnonsense,w2", Err("2: "));
        check("52:54:00:00:00:01,W 1", Err("1: "));
        check("52:54:00:00:00:01", Err("1: write MAC,WORKER"));
        check("52:54:00:00:00:01,w1,w2", Err("1: write MAC,WORKER"));
        check("mac,worker\n", Err("1: there is no pair"));
        assert!(parse(&[0xff, 0xfe]).unwrap_err().contains("UTF-8"));
    }
}
