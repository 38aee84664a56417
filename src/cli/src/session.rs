//! What all commands do with the API: fetch (through all pages), show, keep looking, ask before harm.

use crate::arguments::{Form, Listing, Look, Sure};
use crate::client::Client;
use crate::confirm;
use crate::failure::Failure;
use crate::output::{Column, at, clean, show, table};
use crate::watch::watch;
use serde_json::Value;

/// The largest page that the API gives.
const PAGE: u32 = 1000;

/// One run of the program.
pub struct Session {
    /// The API.
    pub client: Client,
    /// How answers are shown.
    pub form: Form,
}

/// Where something to show comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// One answer.
    One(String),
    /// A list in pages, under its name.
    Pages {
        /// With its filters.
        path: String,
        /// What the list is called in the answer.
        key: &'static str,
        /// At most so many items.
        limit: Option<u32>,
    },
}

/// A list as people see it.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// What the list is called in the answer.
    pub key: &'static str,
    /// The table.
    pub columns: &'static [Column],
    /// What is said of an empty one.
    pub none: &'static str,
}

impl Session {
    /// Asks once.
    pub async fn fetch(&self, source: &Source) -> Result<Value, Failure> {
        match source {
            Source::One(path) => self.client.get(path).await,
            Source::Pages { path, key, limit } => self.pages(path, key, *limit).await,
        }
    }

    async fn pages(&self, path: &str, key: &str, limit: Option<u32>) -> Result<Value, Failure> {
        let limit = limit.map(|l| usize::try_from(l).unwrap_or(usize::MAX));
        let mut whole = Value::Null;
        let mut cursor: Option<String> = None;
        loop {
            let have = items(&whole, key);
            let left = limit.map(|l| u32::try_from(l.saturating_sub(have)).unwrap_or(u32::MAX).min(PAGE));
            // Short lists have no pages: only one that goes on is known to.
            let size = left.or(cursor.as_ref().map(|_| PAGE));
            let pairs = [("limit", size.map(|s| s.to_string())), ("cursor", cursor.clone())];
            let mut page = self.client.get(&query(path, &pairs)).await?;
            let next = page.get("next").and_then(Value::as_str).map(str::to_owned);
            let got = items(&page, key);
            match (whole.get_mut(key).and_then(Value::as_array_mut), page.get_mut(key).and_then(Value::as_array_mut)) {
                (Some(all), Some(more)) => all.append(more),
                _ => whole = page,
            }
            let enough = limit.is_some_and(|l| items(&whole, key) >= l);
            // A page that brings nothing, or the same cursor again, would be asked for endlessly.
            let stuck = got == 0 || next == cursor;
            if next.is_none() || enough || stuck {
                if let Some(map) = whole.as_object_mut() {
                    map.remove("next");
                    map.extend(next.filter(|_| enough).map(|n| ("next".to_owned(), n.into())));
                }
                return Ok(whole);
            }
            cursor = next;
        }
    }

    /// Shows it, once or until Ctrl-C.
    pub async fn view(&self, source: Source, look: Look, people: impl Fn(&Value) -> String) -> Result<(), Failure> {
        if look.watch {
            return watch(self, &source, people).await;
        }
        let answer = self.fetch(&source).await?;
        show(self.form, &answer, people)?;
        if answer.get("next").is_some() {
            eprintln!("kurrent: there are more; raise --limit");
        }
        Ok(())
    }

    /// Shows one object.
    pub async fn one(&self, path: String, look: Look, people: impl Fn(&Value) -> String) -> Result<(), Failure> {
        self.view(Source::One(path), look, people).await
    }

    /// Shows a list.
    pub async fn list(&self, path: String, view: View, listing: Listing) -> Result<(), Failure> {
        let source = Source::Pages { path, key: view.key, limit: listing.limit };
        self.view(source, listing.look, |answer| table(answer, view.key, view.columns, view.none)).await
    }

    /// Prints the answer to an order, and what else the person should know of it.
    pub fn show(&self, answer: &Value, people: impl FnOnce(&Value) -> String) -> Result<(), Failure> {
        if let Some(why) = at(answer, "data_plane").as_str().and_then(|d| d.strip_prefix("not yet: ")) {
            eprintln!("kurrent: the change is made, but the data plane has not followed yet: {}", clean(why));
        }
        if let Some(warning) = at(answer, "warning").as_str().filter(|w| !w.is_empty()) {
            eprintln!("kurrent: {}", clean(warning));
        }
        show(self.form, answer, people)
    }

    /// Before something that can not be taken back: on a terminal, `question` of what is at `path` now. The ETag holds the order
    /// to what the person saw.
    pub async fn ask(&self, sure: Sure, path: &str, question: impl FnOnce(&Value) -> String) -> Result<Option<String>, Failure> {
        if !confirm::needed(sure) {
            return Ok(None);
        }
        let now = self.client.get_tagged(path).await?;
        confirm::ask(&question(&now.body))?;
        Ok(now.etag)
    }
}

fn items(answer: &Value, key: &str) -> usize {
    answer.get(key).and_then(Value::as_array).map_or(0, Vec::len)
}

/// A path segment or query value.
pub fn encoded(text: &str) -> String {
    let keep = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes().map(|b| if keep(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// The path with those pairs that have a value behind what it has already.
pub fn query(path: &str, pairs: &[(&str, Option<String>)]) -> String {
    let mut text = path.to_owned();
    for (key, value) in pairs {
        if let Some(value) = value {
            text.push(if text.contains('?') { '&' } else { '?' });
            text.push_str(&format!("{key}={}", encoded(value)));
        }
    }
    text
}

/// `{"key": value, …}` of what is given.
pub fn body(pairs: impl IntoIterator<Item = (&'static str, Option<Value>)>) -> Value {
    pairs.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect::<serde_json::Map<_, _>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_into_an_address_stays_one_value() {
        let path = query("/v1/devices", &[("label", Some("a=b&c".into())), ("state", None), ("worker", Some("w 1/../x".into()))]);
        assert_eq!(path, "/v1/devices?label=a%3Db%26c&worker=w%201%2F..%2Fx");
        assert_eq!(query(&path, &[("limit", Some("7".into()))]), format!("{path}&limit=7"));
        assert_eq!(encoded("7 ü"), "7%20%C3%BC");
    }
}
