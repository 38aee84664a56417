//! Answers in the form asked for. What machines and other people wrote can hold anything: nothing of it reaches the terminal
//! as an order to it.

use crate::arguments::Form;
use crate::failure::Failure;
use serde_json::Value;
use std::io::Write;

/// A column of a table: heading, and where the value is (`a.b`).
pub type Column = (&'static str, &'static str);

/// Prints an answer; as a table `people` says it.
pub fn show(form: Form, answer: &Value, people: impl FnOnce(&Value) -> String) -> Result<(), Failure> {
    print(&rendered(form, answer, people)?)
}

/// The text of an answer.
pub fn rendered(form: Form, answer: &Value, people: impl FnOnce(&Value) -> String) -> Result<String, Failure> {
    let text = match form {
        Form::Table => people(answer),
        Form::Json => escaped(&format!("{answer:#}")),
        Form::Yaml => {
            let text = serde_saphyr::to_string(answer);
            escaped(&text.map_err(|e| Failure::local(format!("the answer does not go into YAML: {e}")))?)
        }
    };
    Ok(text.trim_end().to_owned())
}

/// JSON on one line, safe as in [`rendered`].
pub fn one_line(answer: &Value) -> String {
    escaped(&answer.to_string())
}

/// Prints text that is safe already.
pub fn print(text: &str) -> Result<(), Failure> {
    if text.is_empty() {
        return Ok(());
    }
    let mut out = std::io::stdout().lock();
    // A reader that has enough (`| head`) is no failure.
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::local(format!("stdout: {e}"))),
        _ => Ok(()),
    }
}

/// Characters that move the cursor, command the terminal, or make text look like other text.
fn is_unsafe(c: char) -> bool {
    let disguises =
        matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    c.is_control() || disguises
}

/// Foreign text with everything unsafe in it spelled out: `\n`, `\u{1b}`.
pub fn clean(text: &str) -> String {
    if !text.contains(is_unsafe) {
        return text.to_owned();
    }
    text.chars().map(|c| if is_unsafe(c) { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// JSON or YAML with what its encoder left unsafe spelled `\u009b`, which both read inside quotes.
fn escaped(text: &str) -> String {
    if !text.contains(|c| is_unsafe(c) && c != '\n') {
        return text.to_owned();
    }
    let spell = |c: char| if is_unsafe(c) && c != '\n' { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    text.chars().map(spell).collect()
}

/// A list (`{"<key>": […]}`) as a table, or `none` when it is empty.
pub fn table(answer: &Value, key: &str, columns: &[Column], none: &str) -> String {
    let rows = answer.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if rows.is_empty() {
        return none.to_owned();
    }
    let heading: Vec<String> = columns.iter().map(|(heading, _)| (*heading).to_owned()).collect();
    let body = rows.iter().map(|row| columns.iter().map(|(_, path)| cell(path, at(row, path))).collect());
    align(std::iter::once(heading).chain(body).collect())
}

/// A value in a table: lengths in bytes as people read them.
fn cell(path: &str, value: &Value) -> String {
    match value.as_u64() {
        Some(bytes) if path.ends_with("_bytes") => size(bytes),
        _ => text(value),
    }
}

/// `10 GiB`, `1.5 GiB`, `4096 B`: at most one decimal, and never more than there is.
pub fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.iter().find(|(shift, _)| bytes >> shift > 0) {
        None => format!("{bytes} B"),
        Some((shift, unit)) => {
            let whole = bytes >> shift;
            let tenths = (((bytes - (whole << shift)) >> (shift - 10)) * 10) >> 10;
            if tenths == 0 { format!("{whole} {unit}") } else { format!("{whole}.{tenths} {unit}") }
        }
    }
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
        let key = clean(key);
        let key = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
        match value {
            Value::Object(_) => flatten(&key, value, rows),
            Value::Array(list) if list.iter().any(Value::is_object) => {
                for (at, item) in list.iter().enumerate() {
                    flatten(&format!("{key}[{at}]"), item, rows);
                }
            }
            Value::String(s) if s.is_empty() => {}
            Value::Array(list) if list.is_empty() => {}
            Value::Number(_) if key.ends_with("_bytes") => {
                let shown = value.as_u64().filter(|b| *b >= 1024).map(|b| format!(" ({})", size(b))).unwrap_or_default();
                rows.push(vec![key, format!("{value}{shown}")]);
            }
            _ => rows.push(vec![key, text(value)]),
        }
    }
}

/// The value at `a.b`, or null.
pub fn at<'v>(value: &'v Value, path: &str) -> &'v Value {
    path.split('.').fold(value, |v, key| v.get(key).unwrap_or(&Value::Null))
}

/// A value in a table: foreign text made safe, times without fractions.
pub fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(s) if s.is_empty() => "-".into(),
        Value::Array(list) if list.is_empty() => "-".into(),
        Value::Object(map) if map.is_empty() => "-".into(),
        Value::String(s) => seconds(s).map_or_else(|| clean(s), |whole| format!("{whole}Z")),
        Value::Array(list) => list.iter().map(text).collect::<Vec<_>>().join(", "),
        Value::Object(map) => map.iter().map(|(k, v)| format!("{}={}", clean(k), text(v))).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// `2026-11-30T10:00:00.123Z` without what follows the seconds.
fn seconds(text: &str) -> Option<&str> {
    let (whole, fraction) = text.strip_suffix('Z')?.split_once('.')?;
    let is_time = whole.len() == 19 && whole.as_bytes().get(10) == Some(&b'T') && whole.bytes().all(|b| b"0123456789-:T".contains(&b));
    (is_time && fraction.bytes().all(|b| b.is_ascii_digit())).then_some(whole)
}

/// Rows with their cells under each other.
pub fn align(rows: Vec<Vec<String>>) -> String {
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
    fn a_table_is_aligned_and_shows_absent_values() {
        let answer = json!({"devices": [
            {"mac": "52:54:00:00:00:01", "note": "first", "at": "2026-11-30T10:00:00.123456789Z", "size_bytes": 1610612736u64},
            {"mac": "52:54:00:00:00:02", "deep": {"er": 7}, "labels": {"a": "1", "b": "2"}},
        ]});
        let columns = [("MAC", "mac"), ("NOTE", "note"), ("AT", "at"), ("N", "deep.er"), ("SIZE", "size_bytes"), ("LABELS", "labels")];
        let found = table(&answer, "devices", &columns, "none");
        let expected = "MAC                NOTE   AT                    N  SIZE     LABELS\n\
                        52:54:00:00:00:01  first  2026-11-30T10:00:00Z  -  1.5 GiB  -\n\
                        52:54:00:00:00:02  -      -                     7  -        a=1,b=2";
        assert_eq!(found, expected);
        assert_eq!(table(&json!({"devices": []}), "devices", &[], "no devices"), "no devices");
    }

    #[test]
    fn foreign_text_is_no_order_to_the_terminal_in_any_form() {
        let evil = "\u{1b}[2J\u{9b}31m\u{7f}\r\n\u{202e}gpj\u{200b}";
        let answer = json!({"devices": [{"note": evil, "labels": {evil: evil}, "name": format!("x {evil}")}], evil: evil});
        for form in [Form::Table, Form::Json, Form::Yaml] {
            let columns = [("NOTE", "note"), ("LABELS", "labels")];
            for people in [&(|a: &Value| table(a, "devices", &columns, "none")) as &dyn Fn(&Value) -> String, &fields] {
                let found = rendered(form, &answer, people).unwrap();
                assert!(!found.contains(|c| is_unsafe(c) && c != '\n'), "{form:?}: {found:?}");
                assert!(found.contains("gpj"), "{form:?}: {found:?}");
            }
        }
        let json = rendered(Form::Json, &answer, fields).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), answer, "nothing is lost for programs");
        let yaml = rendered(Form::Yaml, &json!({"note": evil}), fields).unwrap();
        assert_eq!(serde_saphyr::from_str::<Value>(&yaml).unwrap(), json!({"note": evil}), "{yaml}");
        assert_eq!(clean("Zürich 日本 it's \"x\""), "Zürich 日本 it's \"x\"");
    }

    #[test]
    fn one_object_is_shown_field_by_field() {
        let shown = fields(&json!({"a": 1, "b": {"c": ["x", "y"], "empty": ""}, "d": [{"e": true}], "size_bytes": 4096}));
        assert_eq!(shown, "a           1\nb.c         x, y\nd[0].e      true\nsize_bytes  4096 (4 KiB)");
    }

    #[test]
    fn lengths_are_short() {
        for (bytes, expected) in [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (u64::MAX, "16777215.9 TiB")] {
            assert_eq!(size(bytes), expected);
        }
    }
}
