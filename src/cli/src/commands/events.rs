//! `kurrent events`.

use crate::arguments::Form;
use crate::arguments::system::Events as Wanted;
use crate::failure::{Failure, Problem};
use crate::output::{at, one_line, print, text};
use crate::session::Session;
use crate::sse::{Event, Events};
use crate::watch::interruptible;
use serde_json::{Value, json};
use std::time::Duration;

/// Of an event: who listens may not any more.
const ENDED: &str = "ended";
const SOONEST: Duration = Duration::from_millis(500);
const LATEST: Duration = Duration::from_secs(10);

/// Prints events as they come, until there were enough or Ctrl-C is pressed.
pub async fn run(session: &Session, wanted: Wanted) -> Result<(), Failure> {
    interruptible(follow(session, &wanted)).await
}

async fn follow(session: &Session, wanted: &Wanted) -> Result<(), Failure> {
    let mut left = wanted.count;
    let mut stream = Events::of(session.client.events("/v1/events").await?);
    eprintln!("kurrent: waiting for events");
    loop {
        match stream.next().await {
            // The last one: its problem says why.
            Ok(Some(event)) if event.name == ENDED => {
                let (code, detail) = (text(at(&event.data, "code")), text(at(&event.data, "detail")));
                let status = at(&event.data, "status").as_u64().and_then(|s| u16::try_from(s).ok()).unwrap_or(401);
                return Err(Failure::Refused(Problem::new(status, code, detail)));
            }
            Ok(Some(event)) if concerns(wanted, &event) => {
                print(&shown(session.form, &event)?)?;
                left = left.map(|l| l.saturating_sub(1));
                if left == Some(0) {
                    return Ok(());
                }
            }
            Ok(Some(_)) => {}
            // What happened meanwhile is in the ledger and the audit; a person must know that there was a gap here.
            Ok(None) | Err(Failure::Unreachable(_)) => {
                eprintln!("kurrent: the connection was lost; what happens until it is back is not shown (see kurrent audit)");
                stream = again(session).await?;
                eprintln!("kurrent: connected again");
            }
            Err(failure) => return Err(failure),
        }
    }
}

async fn again(session: &Session) -> Result<Events, Failure> {
    let mut pause = SOONEST;
    loop {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LATEST);
        match session.client.events("/v1/events").await {
            Ok(response) => return Ok(Events::of(response)),
            Err(Failure::Unreachable(_)) => {}
            Err(failure) => return Err(failure),
        }
    }
}

fn concerns(wanted: &Wanted, event: &Event) -> bool {
    wanted.device.is_none_or(|mac| at(&event.data, "device").as_str() == Some(&mac.to_string()))
}

fn shown(form: Form, event: &Event) -> Result<String, Failure> {
    let whole = json!({ "event": event.name, "data": event.data });
    match form {
        Form::Json => Ok(one_line(&whole)),
        Form::Yaml => crate::output::rendered(form, &whole, |_| String::new()).map(|text| format!("---\n{text}")),
        Form::Table => Ok(line(event)),
    }
}

fn line(event: &Event) -> String {
    let name = crate::output::clean(&event.name);
    let Value::Object(map) = &event.data else { return format!("{name}  {}", text(&event.data)) };
    // What everybody looks for comes first, then whatever else there is.
    let first = ["generation", "verb", "device", "object", "id", "state", "what"];
    let known = first.iter().filter_map(|key| map.get(*key)).filter(|v| !v.is_null()).map(text);
    let rest = map.iter().filter(|(key, value)| !first.contains(&key.as_str()) && !value.is_null());
    let rest = rest.map(|(key, value)| format!("{}={}", crate::output::clean(key), text(value)));
    std::iter::once(format!("{name:6}")).chain(known).chain(rest).collect::<Vec<_>>().join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_of_safe_text() {
        let data = json!({ "verb": "bind", "generation": 7, "device": "52:54:00:00:00:01", "object": "w\u{1b}1", "extra": null });
        let event = Event { name: "change".into(), data };
        assert_eq!(line(&event), r"change  7  bind  52:54:00:00:00:01  w\u{1b}1");
        let wanted = |device: &str| Wanted { count: None, device: Some(device.parse().unwrap()) };
        assert!(concerns(&wanted("52:54:00:00:00:01"), &event) && !concerns(&wanted("52:54:00:00:00:02"), &event));
    }
}
