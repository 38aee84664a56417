//! Values as people write them.

/// `KEY=VALUE`.
pub fn label(text: &str) -> Result<(String, String), String> {
    text.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())).ok_or_else(|| "write KEY=VALUE".to_owned())
}

/// `KEY=VALUE`, or `KEY` for any value: a filter of the API as it is.
pub fn label_filter(text: &str) -> Result<String, String> {
    let key = text.split('=').next().unwrap_or_default();
    if key.is_empty() { Err("write KEY=VALUE or KEY".to_owned()) } else { Ok(text.to_owned()) }
}

/// `10G`, `512M`, `64K`, `4096`: powers of 1024.
pub fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.strip_suffix(['K', 'M', 'G', 'T', 'k', 'm', 'g', 't']) {
        None => (text, 0),
        Some(digits) => match text.to_ascii_uppercase().chars().last() {
            Some('K') => (digits, 10),
            Some('M') => (digits, 20),
            Some('G') => (digits, 30),
            _ => (digits, 40),
        },
    };
    let wrong = || "write a size like 10G, 512M or a number of bytes".to_owned();
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// `10m`, `2h`, `0`: whole minutes.
pub fn minutes(text: &str) -> Result<u32, String> {
    let wrong = || "write a time like 10m or 2h, or 0".to_owned();
    let (digits, of) = match (text.strip_suffix('m'), text.strip_suffix('h')) {
        (Some(digits), _) => (digits, 1),
        (None, Some(digits)) => (digits, 60),
        (None, None) if text == "0" => (text, 1),
        (None, None) => return Err(wrong()),
    };
    digits.parse::<u32>().ok().and_then(|number| number.checked_mul(of)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_whole_minutes() {
        for (text, expected) in
            [("10m", Some(10)), ("2h", Some(120)), ("0", Some(0)), ("0m", Some(0)), ("10", None), ("90s", None), ("m", None), ("-1m", None)]
        {
            assert_eq!(minutes(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, expected) in [
            ("4096", Some(4096)),
            ("64K", Some(65536)),
            ("1m", Some(1 << 20)),
            ("10G", Some(10 << 30)),
            ("2T", Some(2 << 40)),
            ("", None),
            ("G", None),
            ("1.5G", None),
            ("-1", None),
            ("99999999999G", None),
        ] {
            assert_eq!(size(text).ok(), expected, "{text}");
        }
    }
}
