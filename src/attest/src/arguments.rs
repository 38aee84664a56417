//! The load options as words: `identify`, `answer <nonce> <mac> <uuid> <server key> <server boot key> <flags> <expected>
//! <signature> [<links>]`, or `unseal <blob>`. The links are one word: those of the rotations since the pinned key, one after the other.
//!
//! iPXE puts the image's name first, whatever it is called; the order word is the second.

use crate::Refusal;
use alloc::boxed::Box;
use alloc::vec::Vec;
use kurrent_handshake::{Challenge, Chap, Link, MAX_LINKS};

/// What the program is asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Make the key when there is none, and leave the public key for iPXE.
    Identify,
    /// Check the appliance and answer its challenge.
    Answer(Box<Request>),
    /// Open what is sealed for the session that the last answer left, and leave the login in it for iPXE. No more than
    /// [`Chap::SEALED_MAX`] octets.
    Unseal(Vec<u8>),
}

/// A challenge as it stands on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is to be answered.
    pub challenge: Challenge,
    /// SMBIOS UUID in text order; zero when iPXE has none.
    pub uuid: [u8; 16],
    /// The key the appliance says it has.
    pub server_key: [u8; 32],
    /// Its signature over the challenge.
    pub signature: [u8; 64],
    /// How the appliance came from the key that is pinned to the one it has.
    pub links: Vec<Link>,
}

/// Reads the load options.
///
/// # Errors
/// [`Refusal::BadArguments`] for anything but exactly one of the three forms.
pub fn parse(load_options: &str) -> Result<Order, Refusal> {
    let mut words = load_options.split_ascii_whitespace().skip(1);
    let order = match words.next() {
        Some("identify") => Order::Identify,
        Some("answer") => Order::Answer(Box::new(request(&mut words).ok_or(Refusal::BadArguments)?)),
        Some("unseal") => Order::Unseal(words.next().and_then(sealed).ok_or(Refusal::BadArguments)?),
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
    let expected = octets(words.next()?, None)?;
    let signature = octets(words.next()?, None)?;
    let links = words.next().map_or(Some(Vec::new()), links)?;
    Some(Request { challenge: Challenge { nonce, mac, server_boot_key, flags, expected }, uuid, server_key, signature, links })
}

/// One link or more, and no more than there can be.
fn links(text: &str) -> Option<Vec<Link>> {
    if text.len() > MAX_LINKS * Link::LEN * 2 {
        return None;
    }
    let digits = text.as_bytes().chunks(Link::LEN * 2);
    digits.map(|link| Some(Link::from_bytes(&octets(core::str::from_utf8(link).ok()?, None)?))).collect()
}

/// A blob: whole octets, and no more than the longest login has.
fn sealed(text: &str) -> Option<Vec<u8>> {
    if text.len() > Chap::SEALED_MAX * 2 {
        return None;
    }
    text.as_bytes().chunks(2).map(|octet| octets(core::str::from_utf8(octet).ok()?, None).map(|[octet]| octet)).collect()
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
            "x.efi answer {} 52:54:00:ab:cd:ef 00112233-4455-6677-8899-aabbccddeeff {} {} 1 {} {}",
            "a1".repeat(32),
            "b2".repeat(32),
            "c3".repeat(32),
            "e5".repeat(16),
            "d4".repeat(64)
        )
    }

    #[test]
    fn the_orders_are_read_and_the_image_name_is_not_looked_at() {
        assert_eq!(parse("kurrent-attest.efi identify"), Ok(Order::Identify));
        assert_eq!(parse("kurrent-attest.efi unseal 00fFa5"), Ok(Order::Unseal(Vec::from([0, 0xff, 0xa5]))));
        let Ok(Order::Answer(request)) = parse(&answer_line()) else { panic!("not read") };
        assert_eq!(request.challenge.nonce, [0xa1; 32]);
        assert_eq!(request.challenge.mac, [0x52, 0x54, 0, 0xab, 0xcd, 0xef]);
        assert_eq!(request.uuid, [0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff]);
        assert_eq!(request.server_key, [0xb2; 32]);
        assert_eq!(request.challenge.server_boot_key, [0xc3; 32]);
        assert_eq!(request.challenge.flags, 1);
        assert_eq!(request.challenge.expected, [0xe5; 16]);
        assert_eq!(request.signature, [0xd4; 64]);
        assert_eq!(request.links, []);
    }

    #[test]
    fn links_are_whole_and_no_more_than_there_can_be() {
        let link = format!("{}{}", "0a".repeat(32), "0b".repeat(64));
        for count in [1, 2, MAX_LINKS] {
            let Ok(Order::Answer(request)) = parse(&format!("{} {}", answer_line(), link.repeat(count))) else { panic!("{count}") };
            assert_eq!(request.links, [Link { new: [0x0a; 32], signature: [0x0b; 64] }].repeat(count));
        }
        for bad in [&link[1..], &format!("{link}0a"), &format!("{link} {link}"), &link.repeat(MAX_LINKS + 1), &link.replace("0a", "0g")] {
            assert_eq!(parse(&format!("{} {bad}", answer_line())), Err(Refusal::BadArguments), "{bad}");
        }
        // What iPXE makes of a variable that is not set.
        assert!(parse(&format!("{} ", answer_line())).is_ok());
    }

    #[test]
    fn a_blob_is_whole_octets_and_no_more_than_the_longest_login() {
        let longest = "a5".repeat(Chap::SEALED_MAX);
        assert_eq!(parse(&format!("x.efi unseal {longest}")), Ok(Order::Unseal([0xa5].repeat(Chap::SEALED_MAX))));
        for bad in ["", " ", "a", "a5a", "a5 a5", "a5g0", "0x", "+5", "-5", "é5", "5é", &format!("{longest}a5"), &format!("{longest}a")] {
            assert_eq!(parse(&format!("x.efi unseal {bad}")), Err(Refusal::BadArguments), "{bad}");
        }
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
