//! Reading YAML that people write: every fault has a line and says what to do.

use serde::de::DeserializeOwned;
use serde_saphyr::Error;

/// What is wrong, and where. The line is 0 when the whole text is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Line, from 1.
    pub line: u64,
    /// What is wrong; what to do.
    pub what: String,
}

/// `FILE:LINE: what`, or `FILE: what` when no one line is at fault.
#[must_use]
pub fn located(file: &std::path::Path, fault: &Fault) -> String {
    match fault.line {
        0 => format!("{}: {}", file.display(), fault.what),
        line => format!("{}:{line}: {}", file.display(), fault.what),
    }
}

/// Reads one document. `max_nodes` bounds the work; aliases and merge keys are not used in our files and refused beyond a few.
///
/// # Errors
/// The first fault, with its line.
pub fn parse<T: DeserializeOwned>(octets: &[u8], max_nodes: usize) -> Result<T, Fault> {
    let text = std::str::from_utf8(octets)
        .map_err(|e| Fault { line: line_of(octets, e.valid_up_to()), what: "this is not UTF-8 text; save the file as UTF-8".into() })?;
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: max_nodes, max_events: max_nodes.saturating_mul(4), max_aliases: 16, max_anchors: 16 },
        with_snippet: false,
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::Error,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|e| explain(text, &e))
}

fn line_of(octets: &[u8], at: usize) -> u64 {
    let newlines = octets.iter().take(at).filter(|o| **o == b'\n').count();
    u64::try_from(newlines).unwrap_or(u64::MAX).saturating_add(1)
}

fn explain(text: &str, error: &Error) -> Fault {
    let error = error.without_snippet();
    let line = error.location().map_or(0, |l| l.line());
    let key = key_on(text, line).unwrap_or("this");
    let what = match error {
        Error::SerdeUnknownField { field, expected, .. } => unknown_key(field, expected),
        Error::SerdeMissingField { field, .. } => format!("the key '{field}' is missing; add it"),
        Error::SerdeUnknownVariant { variant, expected, .. } => {
            format!("'{}' is not valid for {key}; write {}", cut(variant), one_of(expected))
        }
        Error::DuplicateMappingKey { key, .. } => {
            format!("the key '{}' is written twice; remove one of them", cut(key.as_deref().unwrap_or("?")))
        }
        Error::Unexpected { expected, .. } => format!("the value of {key} has the wrong shape: {expected} is expected here"),
        Error::SerdeInvalidType { unexpected, expected, .. } | Error::SerdeInvalidValue { unexpected, expected, .. } => {
            format!("the value of {key} has the wrong type: {} is written, {} is expected", cut(unexpected), expected)
        }
        Error::InvalidScalar { ty, .. } => format!("the value of {key} is not a valid {ty}"),
        Error::MultipleDocuments { .. } => "a second document starts ('---'); keep one document in this file".into(),
        Error::Eof { .. } => "the file is empty or ends too early".into(),
        other => cut(&without_place(&other.to_string())),
    };
    Fault { line, what }
}

/// serde-saphyr ends its messages with "at line L, column C"; we put the line in front.
fn without_place(message: &str) -> String {
    let first = message.lines().next().unwrap_or_default();
    first.split(" at line ").next().unwrap_or(first).trim_start_matches("error: ").to_owned()
}

fn cut(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(160).collect()
}

fn key_on(text: &str, line: u64) -> Option<&str> {
    let at = usize::try_from(line.checked_sub(1)?).ok()?;
    let (key, _) = text.lines().nth(at)?.split_once(':')?;
    let key = key.trim().trim_start_matches("- ");
    (!key.is_empty() && key.len() <= 64).then_some(key)
}

fn one_of(words: &[&str]) -> String {
    match words {
        [] => "nothing here".into(),
        [only] => (*only).into(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

fn unknown_key(field: &str, expected: &[&str]) -> String {
    let nearest = expected.iter().map(|e| (distance(&field.to_lowercase(), &e.to_lowercase()), *e)).min();
    let hint = match nearest {
        Some((far, name)) if far <= name.len().max(3) / 2 => format!("did you mean '{name}'?"),
        _ => format!("valid here: {}", one_of(expected)),
    };
    format!("the key '{}' is not known; {hint}", cut(field))
}

/// Levenshtein distance, bounded by the length of keys.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(64).enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (y, cell) in b.iter().zip(row.iter_mut().skip(1)) {
            let up = *cell;
            let change = diagonal + usize::from(x != *y);
            left = change.min(up + 1).min(left + 1);
            diagonal = up;
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits() {
        for (a, b, expected) in [("", "", 0), ("a", "", 1), ("", "abc", 3), ("rnage", "range", 2), ("dchp", "dhcp", 2), ("tftp", "tftp", 0)]
        {
            assert_eq!(distance(a, b), expected, "{a} {b}");
        }
    }

    #[test]
    fn bad_utf8_has_its_line() {
        let fault = parse::<std::collections::BTreeMap<String, String>>(b"a: b\nc: \xff\n", 100).unwrap_err();
        assert_eq!(fault.line, 2);
    }
}
