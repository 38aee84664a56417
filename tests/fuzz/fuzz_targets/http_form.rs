//! Any form and any range: no panic, and a part of a file lies inside the file.
#![no_main]

use kurrent_core::http::{Form, Span, span};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|octets: &[u8]| {
    if let Ok(form) = Form::parse(octets) {
        assert!(form.get("mac").len() <= 3 * 512);
    }
    let Some((size, text)) = octets.split_first_chunk::<8>() else { return };
    let size = u64::from_be_bytes(*size);
    if let Span::Part { first, length } = span(std::str::from_utf8(text).ok(), size) {
        assert!(length > 0 && first.checked_add(length).is_some_and(|end| end <= size));
    }
});
