//! Server-sent events, as the WHATWG HTML standard's section 9.2 defines the stream.

use crate::failure::Failure;
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;
use serde_json::Value;
use std::time::Duration;

/// The server sends a comment more often than this; silence is a lost connection.
const SILENCE: Duration = Duration::from_secs(60);
/// More without an empty line is no stream of ours.
const MAX_EVENT_OCTETS: usize = 1024 * 1024;

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// `change`, `job`; `message` when the server names none.
    pub name: String,
    /// Its data: JSON, or a string when it is none.
    pub data: Value,
}

/// Octets in, events out.
#[derive(Debug, Default)]
pub struct Parser {
    pending: Vec<u8>,
    name: String,
    data: Vec<String>,
}

impl Parser {
    /// Takes what the network brought.
    pub fn take(&mut self, octets: &[u8]) -> Result<Vec<Event>, Failure> {
        self.pending.extend_from_slice(octets);
        let mut events = Vec::new();
        while let Some(end) = self.pending.iter().position(|o| *o == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            events.extend(self.line(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n'])));
        }
        let held = self.pending.len() + self.data.iter().map(String::len).sum::<usize>();
        if held > MAX_EVENT_OCTETS {
            return Err(Failure::Unreachable("the events are too long for a Kurrent appliance's; check the address".into()));
        }
        Ok(events)
    }

    fn line(&mut self, line: &str) -> Option<Event> {
        if line.is_empty() {
            let name = std::mem::take(&mut self.name);
            let data = std::mem::take(&mut self.data);
            let text = data.join("\n");
            let name = if name.is_empty() { "message".to_owned() } else { name };
            return (!data.is_empty()).then(|| Event { name, data: serde_json::from_str(&text).unwrap_or(Value::String(text)) });
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.name),
            "data" => self.data.push(value.to_owned()),
            // A comment (an empty field), `id`, `retry`: nothing for us.
            _ => {}
        }
        None
    }
}

/// Events as they come.
pub struct Events {
    body: Incoming,
    parser: Parser,
    ready: std::collections::VecDeque<Event>,
}

impl Events {
    /// Reads them from an answer.
    pub fn of(response: Response<Incoming>) -> Self {
        Self { body: response.into_body(), parser: Parser::default(), ready: std::collections::VecDeque::new() }
    }

    /// The next one; `None` when the stream ends.
    pub async fn next(&mut self) -> Result<Option<Event>, Failure> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            let lost = |what: String| Failure::Unreachable(format!("the events ended: {what}"));
            let frame = tokio::time::timeout(SILENCE, self.body.frame()).await;
            match frame.map_err(|_| lost(format!("silence for {} s", SILENCE.as_secs())))? {
                None => return Ok(None),
                Some(frame) => {
                    let frame = frame.map_err(|e| lost(e.to_string()))?;
                    if let Some(octets) = frame.data_ref() {
                        self.ready.extend(self.parser.take(octets)?);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_are_read_however_the_network_cuts_them() {
        let stream = ": hello\n\nevent: change\nid: 7\ndata: {\"generation\": 7,\ndata:  \"verb\": \"bind\"}\n\nretry: 100\r\ndata: plain\r\n\r\nevent: job\n\ndata: ";
        let expected = vec![
            Event { name: "change".into(), data: json!({"generation": 7, "verb": "bind"}) },
            Event { name: "message".into(), data: json!("plain") },
        ];
        for piece in 1..stream.len() {
            let mut parser = Parser::default();
            let found: Vec<Event> = stream.as_bytes().chunks(piece).flat_map(|octets| parser.take(octets).unwrap()).collect();
            assert_eq!(found, expected, "pieces of {piece}");
        }
    }

    #[test]
    fn an_endless_event_is_not_kept() {
        let mut parser = Parser::default();
        assert!((0..32).any(|_| parser.take(&[b'x'; 64 * 1024]).is_err()));
        let mut parser = Parser::default();
        let line = format!("data: {}\n", "x".repeat(64 * 1024));
        assert!((0..32).any(|_| parser.take(line.as_bytes()).is_err()));
    }
}
