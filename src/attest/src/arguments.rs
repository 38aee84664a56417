//! The load options as words: `identify`, or `answer <nonce> <mac> <uuid> <server key> <server boot key> <flags> <signature>`.
//!
//! iPXE puts the image's name first, whatever it is called; the order word is the second.

use crate::Refusal;
use kurrent_handshake::Challenge;

/// What the program is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Make the key when there is none, and leave the public key for iPXE.
    Identify,
    /// Check the appliance and answer its challenge.
    Answer(Request),
}

/// A challenge as it stands on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is to be answered.
    pub challenge: Challenge,
    /// SMBIOS UUID in text order; zero when iPXE has none.
    pub uuid: [u8; 16],
    /// The key the appliance says it has.
    pub server_key: [u8; 32],
    /// Its signature over the challenge.
    pub signature: [u8; 64],
}

/// Reads the load options.
///
/// # Errors
/// [`Refusal::BadArguments`] for anything but exactly one of the two forms.
pub fn parse(load_options: &str) -> Result<Order, Refusal> {
    let mut words = load_options.split_ascii_whitespace().skip(1);
    let order = match words.next() {
        Some("identify") => Order::Identify,
        Some("answer") => Order::Answer(request(&mut words).ok_or(Refusal::BadArguments)?),
        Some(_) | None => return Err(Refusal::BadArguments),
    };
    if words.next().is_some() { Err(Refusal::BadArguments) } else { Ok(order) }
}

fn request<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Request> {
    let nonce = octets(words.next()?, None)?;
    let mac = octets(words.next()?, Some(b':'))?;
    let uuid = octets(words.next()?, Some(b'-'))?;
    let server_key = octets(words.next()?, None)?;
    let server_boot_key = octets(words.next()?, None)?;
    let flags = words.next()?.parse().ok()?;
    let signature = octets(words.next()?, None)?;
    Some(Request { challenge: Challenge { nonce, mac, server_boot_key, flags }, uuid, server_key, signature })
}

/// Exactly `N` octets of hex digits, between which `separator` may stand.
fn octets<const N: usize>(text: &str, separator: Option<u8>) -> Option<[u8; N]> {
    let mut digits = text.bytes().filter(|b| Some(*b) != separator).map(|b| char::from(b).to_digit(16));
    let mut out = [0u8; N];
    for octet in &mut out {
        let (high, low) = (digits.next()??, digits.next()??);
        *octet = u8::try_from(high * 16 + low).ok()?;
    }
    digits.next().is_none().then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;

    fn answer_line() -> String {
        format!(
            "x.efi answer {} 52:54:00:ab:cd:ef 00112233-4455-6677-8899-aabbccddeeff {} {} 1 {}",
            "a1".repeat(32),
            "b2".repeat(32),
            "c3".repeat(32),
            "d4".repeat(64)
        )
    }

    #[test]
    fn both_orders_are_read_and_the_image_name_is_not_looked_at() {
        assert_eq!(parse("kurrent-attest.efi identify"), Ok(Order::Identify));
        let Ok(Order::Answer(request)) = parse(&answer_line()) else { panic!("not read") };
        assert_eq!(request.challenge.nonce, [0xa1; 32]);
        assert_eq!(request.challenge.mac, [0x52, 0x54, 0, 0xab, 0xcd, 0xef]);
        assert_eq!(request.uuid, [0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff]);
        assert_eq!(request.server_key, [0xb2; 32]);
        assert_eq!(request.challenge.server_boot_key, [0xc3; 32]);
        assert_eq!(request.challenge.flags, 1);
        assert_eq!(request.signature, [0xd4; 64]);
    }

    #[test]
    fn anything_missing_added_or_changed_is_refused() {
        let good = answer_line();
        for line in ["", "x.efi", "identify", "x.efi identify more", "x.efi sign", &format!("{good} more")] {
            assert_eq!(parse(line), Err(Refusal::BadArguments), "{line}");
        }
        for at in 0..good.len() {
            assert!(parse(&good[..at]).is_err(), "cut at {at}");
        }
        for (from, to) in
            [(" 1 ", " 256 "), (" 1 ", " -1 "), ("a1a1", "a1"), ("a1a1", "a1a1a1"), ("a1a1", "g1a1"), ("52:54", "52-54"), ("00:ab", "ab")]
        {
            assert!(parse(&good.replacen(from, to, 1)).is_err(), "{from} -> {to}");
        }
    }
}
