//! Answers in the form asked for.

use crate::arguments::Form;
use crate::failure::Failure;
use serde_json::Value;
use std::io::Write;

/// A column of a table: heading, and where the value is (`a.b`).
pub type Column = (&'static str, &'static str);

/// Prints an answer; as a table `people` says it.
pub fn show(form: Form, answer: &Value, people: impl FnOnce(&Value) -> String) -> Result<(), Failure> {
    let text = match form {
        Form::Table => people(answer),
        Form::Json => format!("{answer:#}"),
        Form::Yaml => serde_saphyr::to_string(answer).map_err(|e| Failure::local(format!("the answer does not go into YAML: {e}")))?,
    };
    let text = text.trim_end();
    if text.is_empty() {
        return Ok(());
    }
    // A reader that has enough (`| head`) is no failure.
    match writeln!(std::io::stdout(), "{text}") {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::local(format!("stdout: {e}"))),
        _ => Ok(()),
    }
}

/// A list (`{"<key>": […]}`) as a table, or `none` when it is empty.
pub fn table(answer: &Value, key: &str, columns: &[Column], none: &str) -> String {
    let rows = answer.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if rows.is_empty() {
        return none.to_owned();
    }
    let heading: Vec<String> = columns.iter().map(|(heading, _)| (*heading).to_owned()).collect();
    let body = rows.iter().map(|row| columns.iter().map(|(_, path)| text(at(row, path))).collect());
    align(std::iter::once(heading).chain(body).collect())
}

/// One object as `key  value` lines, nested ones as `a.b`.
pub fn fields(answer: &Value) -> String {
    let mut rows = Vec::new();
    flatten("", answer, &mut rows);
    align(rows)
}

fn flatten(prefix: &str, value: &Value, rows: &mut Vec<Vec<String>>) {
    let Value::Object(map) = value else {
        return rows.push(vec![prefix.to_owned(), text(value)]);
    };
    for (key, value) in map {
        let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match value {
            Value::Object(_) => flatten(&key, value, rows),
            Value::Array(list) if list.iter().any(Value::is_object) => {
                for (at, item) in list.iter().enumerate() {
                    flatten(&format!("{key}[{at}]"), item, rows);
                }
            }
            Value::String(s) if s.is_empty() => {}
            Value::Array(list) if list.is_empty() => {}
            _ => rows.push(vec![key, text(value)]),
        }
    }
}

/// The value at `a.b`, or null.
pub fn at<'v>(value: &'v Value, path: &str) -> &'v Value {
    path.split('.').fold(value, |v, key| v.get(key).unwrap_or(&Value::Null))
}

/// A value in a table: foreign text without control characters, times without fractions.
pub fn text(value: &Value) -> String {
    let shown = match value {
        Value::Null => "-".into(),
        Value::String(s) if s.is_empty() => "-".into(),
        Value::String(s) => seconds(s).unwrap_or(s).to_owned() + if seconds(s).is_some() { "Z" } else { "" },
        Value::Array(list) => list.iter().map(text).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    };
    shown.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// `2026-11-30T10:00:00.123Z` without what follows the seconds.
fn seconds(text: &str) -> Option<&str> {
    let (whole, fraction) = text.strip_suffix('Z')?.split_once('.')?;
    let is_time = whole.len() == 19 && whole.as_bytes().get(10) == Some(&b'T');
    (is_time && fraction.bytes().all(|b| b.is_ascii_digit())).then_some(whole)
}

fn align(rows: Vec<Vec<String>>) -> String {
    let width = |column: usize| rows.iter().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows.iter().map(Vec::len).max().unwrap_or(0)).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_table_is_aligned_and_shows_absent_values_and_nothing_that_moves_the_cursor() {
        let answer = json!({"devices": [
            {"mac": "52:54:00:00:00:01", "note": "a\u{1b}[31m", "at": "2026-11-30T10:00:00.123456789Z"},
            {"mac": "52:54:00:00:00:02", "deep": {"er": 7}},
        ]});
        let found = table(&answer, "devices", &[("MAC", "mac"), ("NOTE", "note"), ("AT", "at"), ("N", "deep.er")], "none");
        let expected = "MAC                NOTE    AT                    N\n\
                        52:54:00:00:00:01  a?[31m  2026-11-30T10:00:00Z  -\n\
                        52:54:00:00:00:02  -       -                     7";
        assert_eq!(found, expected);
        assert_eq!(table(&json!({"devices": []}), "devices", &[], "no devices"), "no devices");
    }

    #[test]
    fn one_object_is_shown_field_by_field() {
        let shown = fields(&json!({"a": 1, "b": {"c": ["x", "y"], "empty": ""}, "d": [{"e": true}]}));
        assert_eq!(shown, "a       1\nb.c     x, y\nd[0].e  true");
    }
}
