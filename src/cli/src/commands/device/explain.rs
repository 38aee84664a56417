//! `kurrent device explain`, `kurrent explain device`: why a machine boots, or why not, in plain words.

use crate::arguments::Look;
use crate::failure::Failure;
use crate::output::{at, clean, fields, text};
use crate::session::Session;
use kurrent_core::id::MacAddr;
use serde_json::Value;

/// Asks and shows it.
pub async fn explain(session: &Session, mac: MacAddr, look: Look) -> Result<(), Failure> {
    session.one(format!("{}/explain", super::path(mac)), look, explanation).await
}

/// Each finding with what to do and what it rests on.
fn explanation(answer: &Value) -> String {
    let findings = at(answer, "findings").as_array().map(Vec::as_slice).unwrap_or_default();
    if findings.is_empty() {
        return fields(answer);
    }
    findings.iter().map(finding).collect::<Vec<_>>().join("\n\n")
}

fn finding(finding: &Value) -> String {
    let mut lines = vec![format!("{}: {}", text(at(finding, "severity")), text(at(finding, "what")))];
    if let Some(step) = at(finding, "next_step").as_str().filter(|step| !step.is_empty()) {
        lines.push(format!("  do: {}", clean(step)));
    }
    for seen in at(finding, "evidence").as_array().map(Vec::as_slice).unwrap_or_default() {
        let when = at(seen, "at").as_str().map(|_| format!("{}  ", text(at(seen, "at")))).unwrap_or_default();
        lines.push(format!("  seen: {when}{}", text(at(seen, "what"))));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn findings_are_sentences_with_what_to_do_and_what_was_seen() {
        let answer = json!({ "mac": "52:54:00:00:00:01", "findings": [
            { "code": "no_key", "severity": "blocked", "what": "It has no key.", "next_step": "Order a rekey.",
              "evidence": [{ "what": "a report without a\u{1b} key", "at": "2026-11-30T10:00:00.5Z" }, { "what": "no lease", "at": null }] },
            { "code": "x", "severity": "fine", "what": "It is bound.", "next_step": "", "evidence": [] },
        ]});
        let expected = "blocked: It has no key.\n  do: Order a rekey.\n  seen: 2026-11-30T10:00:00Z  a report without a\\u{1b} key\n  \
                        seen: no lease\n\nfine: It is bound.";
        assert_eq!(explanation(&answer), expected);
        assert_eq!(explanation(&json!({ "summary": "it boots" })), "summary  it boots");
        assert_eq!(explanation(&json!([1])), "  1");
    }
}
