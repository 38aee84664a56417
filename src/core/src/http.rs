//! HTTP as the boot plane speaks it: heads of requests and answers, forms, ranges, the rate cap. Octets of strangers, read strictly;
//! octets for firmware, written as the most literal client reads them.

pub mod answer;
pub mod budget;
pub mod head;
pub mod pace;

use std::collections::BTreeMap;

/// Fields of a form: a report has 15.
const MAX_FIELDS: usize = 32;
/// Longest value of a field: SMBIOS strings are far shorter.
const MAX_VALUE_BYTES: usize = 512;

/// The fields of `application/x-www-form-urlencoded`, as iPXE sends it: everything percent-encoded except `+`, which
/// stands for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Form(BTreeMap<String, String>);

/// The body is not a form that we take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the form is not valid: {0}")]
pub struct BadForm(&'static str);

impl Form {
    /// Reads a form. A field that comes twice is refused: which of the two was checked would be a matter of luck.
    ///
    /// # Errors
    /// [`BadForm`] for anything else than a form within the limits. Text that is not UTF-8 is kept readable, not refused:
    /// SMBIOS strings come in any code page.
    pub fn parse(body: &[u8]) -> Result<Self, BadForm> {
        let mut fields = BTreeMap::new();
        for pair in body.split(|b| *b == b'&').filter(|pair| !pair.is_empty()) {
            let at = pair.iter().position(|b| *b == b'=').ok_or(BadForm("a field has no '='"))?;
            let (name, value) = pair.split_at(at);
            let name = decode(name).ok_or(BadForm("a name is not percent-encoded right"))?;
            let value = decode(value.get(1..).unwrap_or_default()).ok_or(BadForm("a value is not percent-encoded right"))?;
            if value.len() > MAX_VALUE_BYTES || name.len() > MAX_VALUE_BYTES {
                return Err(BadForm("a field is too long"));
            }
            if fields.len() >= MAX_FIELDS {
                return Err(BadForm("too many fields"));
            }
            if fields.insert(name, value).is_some() {
                return Err(BadForm("a field comes twice"));
            }
        }
        Ok(Self(fields))
    }

    /// A field's value; empty when it is not there.
    #[must_use]
    pub fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }
}

fn decode(text: &[u8]) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut octets = text.iter();
    while let Some(octet) = octets.next() {
        if *octet == b'%' {
            let mut digit = || octets.next().and_then(|b| char::from(*b).to_digit(16));
            let (high, low) = (digit()?, digit()?);
            out.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            out.push(*octet);
        }
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}

/// Which octets of a file are asked for (RFC 9110 section 14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// All: status 200.
    Whole,
    /// From `first`, `length` octets: status 206.
    Part {
        /// Offset of the first octet.
        first: u64,
        /// Never zero.
        length: u64,
    },
    /// None of it exists: status 416.
    Unsatisfiable,
}

/// Reads a `Range` header for a file of `size` octets. What is not one well-formed byte range is ignored, as section 14.2
/// allows: the client gets the whole file.
#[must_use]
pub fn span(range: Option<&str>, size: u64) -> Span {
    let Some((first, last)) = range.and_then(|r| r.trim().strip_prefix("bytes=")).and_then(|r| r.split_once('-')) else {
        return Span::Whole;
    };
    let number = |text: &str| -> Option<Option<u64>> {
        let text = text.trim();
        if text.is_empty() {
            return Some(None);
        }
        // Digits only: `parse` alone would take a sign.
        text.bytes().all(|b| b.is_ascii_digit()).then(|| Some(text.parse().unwrap_or(u64::MAX)))
    };
    let (first, end) = match (number(first), number(last)) {
        (Some(Some(first)), Some(None)) => (first, size),
        (Some(Some(first)), Some(Some(last))) if first <= last => (first, last.saturating_add(1).min(size)),
        (Some(None), Some(Some(suffix))) => (size - suffix.min(size), size),
        (Some(Some(_) | None), Some(Some(_) | None)) | (None, _) | (_, None) => return Span::Whole,
    };
    if first < end { Span::Part { first, length: end - first } } else { Span::Unsatisfiable }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_of_every_shape() {
        let part = |first, length| Span::Part { first, length };
        for (header, expected) in [
            (None, Span::Whole),
            (Some("bytes=0-0"), part(0, 1)),
            (Some("bytes=0-99"), part(0, 100)),
            (Some("bytes=0-100"), part(0, 100)),
            (Some("bytes=10-"), part(10, 90)),
            (Some("bytes=-10"), part(90, 10)),
            (Some("bytes=-1000"), part(0, 100)),
            (Some("bytes=99-99999999999999999999999"), part(99, 1)),
            (Some("bytes=100-"), Span::Unsatisfiable),
            (Some("bytes=99999999999999999999999-"), Span::Unsatisfiable),
            (Some("bytes=-0"), Span::Unsatisfiable),
            (Some("bytes=5-4"), Span::Whole),
            (Some("bytes=+1-+2"), Span::Whole),
            (Some("bytes=0-1,4-5"), Span::Whole),
            (Some("bytes=-"), Span::Whole),
            (Some("bytes=a-b"), Span::Whole),
            (Some("lines=0-1"), Span::Whole),
            (Some(""), Span::Whole),
        ] {
            assert_eq!(span(header, 100), expected, "{header:?}");
        }
        assert_eq!(span(Some("bytes=5000000000-"), 6_000_000_000), part(5_000_000_000, 1_000_000_000), "beyond 4 GiB");
        assert_eq!(span(Some("bytes=0-"), 0), Span::Unsatisfiable);
    }

    #[test]
    fn a_form_as_stock_ipxe_sends_it() {
        // Taken from iPXE 2.0.0 with SMBIOS serial `#1 & a=b+c%41 || echo INJECTED` and manufacturer `--foo bar`.
        let body = b"serial=%231%20%26%20a%3Db+c%2541%20||%20echo%20INJECTED&mac=52%3A54%3A00%3A12%3A34%3A56&manufacturer=--foo%20bar&mem=";
        let form = Form::parse(body).unwrap();
        assert_eq!(form.get("serial"), "#1 & a=b+c%41 || echo INJECTED");
        assert_eq!(form.get("mac"), "52:54:00:12:34:56");
        assert_eq!(form.get("manufacturer"), "--foo bar");
        assert_eq!((form.get("mem"), form.get("absent")), ("", ""));
    }

    #[test]
    fn a_form_that_is_doubtful_is_refused() {
        let long = format!("a={}", "x".repeat(513));
        let many: String = (0..33).map(|n| format!("f{n}=&")).collect();
        for body in ["a", "a=1&a=2", "a=%4", "a=%zz", "%=1", &long, &many] {
            assert!(Form::parse(body.as_bytes()).is_err(), "{body}");
        }
        assert!(Form::parse(b"").is_ok() && Form::parse(b"&&").is_ok());
    }

    proptest! {
        #[test]
        fn any_octets_are_survived_and_bounded(body in proptest::collection::vec(any::<u8>(), 0..2000), range in ".{0,40}", size: u64) {
            if let Ok(form) = Form::parse(&body) {
                prop_assert!(form.0.len() <= MAX_FIELDS);
            }
            if let Span::Part { first, length } = span(Some(&range), size) {
                prop_assert!(length > 0 && first.checked_add(length).is_some_and(|end| end <= size));
            }
        }
    }
}
