//! `--watch`: the same question again when something changed, until Ctrl-C.
//!
//! The API's events say when to ask. Not everything that is shown is a change of the ledger (a boot goes on, an address is
//! handed out), and an appliance may have no events: so it asks by itself, too, less often the longer nothing changes.

use crate::arguments::Form;
use crate::failure::Failure;
use crate::output::{one_line, print, rendered};
use crate::session::{Session, Source};
use crate::sse::Events;
use serde_json::Value;
use std::io::IsTerminal;
use std::time::Duration;

const SOONEST: Duration = Duration::from_secs(1);
const LATEST: Duration = Duration::from_secs(10);
/// One order is often several events.
const GATHER: Duration = Duration::from_millis(100);
/// Clears the screen and begins at its top.
const REDRAW: &str = "\u{1b}[2J\u{1b}[H";

/// Runs until it fails or Ctrl-C is pressed; that is told from a failure by its exit code.
pub async fn interruptible<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::select! {
        done = work => done,
        pressed = tokio::signal::ctrl_c() => Err(pressed.map_or_else(|e| Failure::local(format!("signals: {e}")), |()| Failure::Interrupted)),
    }
}

/// Shows what is at `source`, again and again.
pub async fn watch(session: &Session, source: &Source, people: impl Fn(&Value) -> String) -> Result<(), Failure> {
    interruptible(look(session, source, people)).await
}

async fn look(session: &Session, source: &Source, people: impl Fn(&Value) -> String) -> Result<(), Failure> {
    let terminal = std::io::stdout().is_terminal();
    let mut events = None;
    let mut try_events = true;
    let mut shown: Option<String> = None;
    let mut pause = SOONEST;
    loop {
        if try_events {
            // Without events there is still the clock.
            events = session.client.events("/v1/events").await.ok().map(Events::of);
            try_events = false;
        }
        match session.fetch(source).await {
            Ok(answer) => {
                // One document a line: whoever reads a pipe knows where it ends.
                let text = match (session.form, terminal) {
                    (Form::Json, false) => one_line(&answer),
                    (Form::Yaml, false) => format!("---\n{}", rendered(Form::Yaml, &answer, &people)?),
                    (form, _) => rendered(form, &answer, &people)?,
                };
                if shown.as_ref() != Some(&text) {
                    pause = SOONEST;
                    print(&news(shown.as_deref(), &text, terminal, session.form))?;
                    shown = Some(text);
                }
            }
            // Once there was an answer, an appliance that starts again is waited for.
            Err(Failure::Unreachable(why)) if shown.is_some() => {
                eprintln!("kurrent: {}", Failure::Unreachable(why));
                try_events = true;
            }
            Err(failure) => return Err(failure),
        }
        let asleep = tokio::time::sleep(pause);
        pause = (pause * 2).min(LATEST);
        match &mut events {
            None => asleep.await,
            Some(stream) => tokio::select! {
                () = asleep => {}
                event = stream.next() => match event {
                    Ok(Some(_)) => tokio::time::sleep(GATHER).await,
                    Ok(None) | Err(_) => {
                        events = None;
                        try_events = true;
                        tokio::time::sleep(SOONEST).await;
                    }
                },
            },
        }
    }
}

/// What is printed: the whole screen on a terminal, else what is new. A line that is gone is told, unless its first word still
/// begins one.
fn news(before: Option<&str>, now: &str, terminal: bool, form: Form) -> String {
    let before = match (before, form) {
        _ if terminal => return format!("{REDRAW}{now}"),
        (None, _) | (_, Form::Json | Form::Yaml) => return now.to_owned(),
        (Some(before), Form::Table) => before,
    };
    // The width of columns may change without anything having changed.
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (old, new): (Vec<_>, Vec<_>) = (before.lines().map(words).collect(), now.lines().map(words).collect());
    let come = now.lines().filter(|line| !old.contains(&words(line))).map(str::to_owned);
    let gone = before.lines().filter(|line| !new.iter().any(|n| n.first() == words(line).first())).map(|line| format!("gone: {line}"));
    come.chain(gone).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elsewhere_than_on_a_terminal_only_what_changed_is_said() {
        let first = "MAC  STATE\na1   pooled\na2   pooled";
        assert_eq!(news(None, first, false, Form::Table), first);
        assert_eq!(
            news(Some(first), "MAC     STATE\na1      bound\na2      pooled\nlonger  x", false, Form::Table),
            "a1      bound\nlonger  x"
        );
        assert_eq!(news(Some(first), "MAC  STATE\na2   pooled", false, Form::Table), "gone: a1   pooled");
        assert_eq!(news(Some("{}"), "{\"a\": 1}", false, Form::Json), "{\"a\": 1}");
        assert_eq!(news(Some(first), "x", true, Form::Table), "\u{1b}[2J\u{1b}[Hx");
    }
}
