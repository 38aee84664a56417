//! What the appliance's certificate names, how long it is good, and when there has to be a new one.

use crate::time::{Mono, Wall};
use jiff::SignedDuration;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// More addresses than this are none that people use; the kernel takes 16 of one network from router advertisements.
const MAX_ADDRESSES: usize = 128;
/// Two years of a certificate. Whoever is off for longer gets a new one at the next start, whatever the clock.
const LIFE: SignedDuration = SignedDuration::from_hours(2 * 365 * 24);
/// A clock that is set a little does not make a new certificate.
const SET_A_LITTLE: SignedDuration = SignedDuration::from_hours(24);
/// Between two certificates.
const PAUSE: Duration = Duration::from_secs(5);
/// Changes of addresses that are followed at once: cables, leases, an administrator at work. More, without a quiet hour between,
/// are somebody's who plays with router advertisements, and each would cost a key, a certificate and a line of the audit.
const AT_ONCE: u32 = 12;
const SLOWLY: Duration = Duration::from_secs(600);
const QUIET: Duration = Duration::from_secs(3600);
/// 2000-01-01: begins before any clock of a machine without a battery.
pub const NOT_BEFORE: Wall = Wall::constant(946_684_800, 0);
/// 2100-01-01, the end of the CA and so of everything that it signs.
pub const CA_NOT_AFTER: Wall = Wall::constant(4_102_444_800, 0);

/// What a certificate is good for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Host names, in small letters.
    pub dns: BTreeSet<String>,
    /// Addresses.
    pub addresses: BTreeSet<IpAddr>,
}

impl Names {
    /// The appliance's: `localhost` and its addresses, `name`, `name.local` (mDNS), and what the interfaces have.
    #[must_use]
    pub fn of(name: &str, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let name = name.to_ascii_lowercase();
        let dns = ["localhost".to_owned(), format!("{name}.local"), name].into();
        let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        let sorted: BTreeSet<_> = addresses.into_iter().filter(|a| !a.is_unspecified() && !a.is_multicast()).collect();
        let addresses = loopback.into_iter().chain(sorted.into_iter().take(MAX_ADDRESSES)).collect();
        Self { dns, addresses }
    }
}

/// Why there has to be another certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// There is none.
    First,
    /// An address came or went.
    Names,
    /// A third of its time is left.
    Age,
    /// It was made by a clock that ran ahead.
    Clock,
}

impl Renewal {
    /// For the audit.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Names => "names_changed",
            Self::Age => "ends_soon",
            Self::Clock => "clock_was_ahead",
        }
    }
}

/// Until when a certificate that is made now is good. The time cannot be before that of the program's build, whatever the clock.
#[must_use]
pub fn not_after(now: Wall, built: Wall) -> Wall {
    now.max(built).checked_add(LIFE).map_or(CA_NOT_AFTER, |end| end.min(CA_NOT_AFTER))
}

/// Whether `present` (its names, and its end) still does.
#[must_use]
pub fn renewal(present: Option<(&Names, Wall)>, wanted: &Names, now: Wall, built: Wall) -> Option<Renewal> {
    let Some((names, end)) = present else { return Some(Renewal::First) };
    let next = not_after(now, built);
    let left = end.duration_since(now.max(built));
    if names != wanted {
        Some(Renewal::Names)
    } else if left <= LIFE / 3 && next > end {
        Some(Renewal::Age)
    } else if end.duration_since(next) > SET_A_LITTLE {
        Some(Renewal::Clock)
    } else {
        None
    }
}

/// How fast certificates follow one another.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Without a quiet hour between.
    made: u32,
    last: Option<Mono>,
}

impl Pace {
    /// A certificate was made; no other one before the time that is given.
    pub fn made(&mut self, now: Mono) -> Duration {
        let was_quiet = self.last.is_none_or(|last| now.since(last) >= QUIET);
        self.made = if was_quiet { 1 } else { self.made.saturating_add(1) };
        self.last = Some(now);
        if self.made > AT_ONCE { SLOWLY } else { PAUSE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Wall {
        format!("{text}T00:00:00Z").parse().unwrap()
    }

    fn names(addresses: &[&str]) -> Names {
        Names::of("Kurrent", addresses.iter().map(|a| a.parse().unwrap()))
    }

    #[test]
    fn the_constants_are_the_days_that_the_contract_names() {
        assert_eq!((NOT_BEFORE, CA_NOT_AFTER), (at("2000-01-01"), at("2100-01-01")));
    }

    #[test]
    fn a_certificate_names_every_address_the_name_and_loopback() {
        let found = names(&["10.77.0.1", "fe80::1", "0.0.0.0", "224.0.0.1", "10.77.0.1"]);
        assert_eq!(found.dns.iter().map(String::as_str).collect::<Vec<_>>(), ["kurrent", "kurrent.local", "localhost"]);
        let addresses: Vec<String> = found.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.77.0.1", "127.0.0.1", "::1", "fe80::1"]);
        let many = Names::of("k", (0..10_000u32).map(|n| Ipv4Addr::from(0x0a00_0000 + n).into()));
        assert!(many.addresses.len() <= MAX_ADDRESSES + 2 && many.addresses.contains(&IpAddr::V6(Ipv6Addr::LOCALHOST)));
    }

    #[test]
    fn a_certificate_is_renewed_when_names_change_time_runs_out_or_the_clock_was_ahead() {
        let built = at("2026-11-01");
        let (one, two) = (names(&["10.77.0.1"]), names(&["10.77.0.1", "192.0.2.7"]));
        let check = |present: Option<(&Names, &str)>, wanted: &Names, now: &str, expected: Option<Renewal>| {
            let found = renewal(present.map(|(names, end)| (names, at(end))), wanted, at(now), built);
            assert_eq!(found, expected, "{present:?} {now}");
        };
        check(None, &one, "2027-01-01", Some(Renewal::First));
        check(Some((&one, "2028-12-31")), &one, "2027-01-01", None);
        check(Some((&one, "2028-12-31")), &two, "2027-01-01", Some(Renewal::Names));
        check(Some((&two, "2028-12-31")), &one, "2027-01-01", Some(Renewal::Names));
        // A third of two years is 243 days.
        check(Some((&one, "2028-12-31")), &one, "2028-04-30", None);
        check(Some((&one, "2028-12-31")), &one, "2028-05-02", Some(Renewal::Age));
        check(Some((&one, "2028-12-31")), &one, "2060-01-01", Some(Renewal::Age));
        // The clock was in 2060 and is right again: what ends in 2062 is replaced. A clock behind the build changes nothing.
        check(Some((&one, "2062-01-01")), &one, "2027-01-01", Some(Renewal::Clock));
        check(Some((&one, "2028-10-31")), &one, "1970-01-01", None);
        // At the end of the CA a new one would be no better: no certificate after the other.
        check(Some((&one, "2100-01-01")), &one, "2099-12-31", None);
        check(Some((&one, "2100-01-01")), &one, "2200-01-01", None);
    }

    #[test]
    fn addresses_that_come_and_go_all_day_make_a_few_certificates_an_hour_and_a_cable_makes_one_at_once() {
        let mut pace = Pace::default();
        let mut now = Mono(Duration::from_secs(100));
        let mut waits = Vec::new();
        while now < Mono(Duration::from_secs(100 + 24 * 3600)) {
            let wait = pace.made(now);
            waits.push(wait);
            now = Mono(now.0 + wait);
        }
        assert_eq!(waits[..12], [PAUSE; 12]);
        assert!(waits.len() <= 12 + 24 * 6, "{} in a day", waits.len());
        assert_eq!(pace.made(Mono(now.0 + QUIET)), PAUSE, "after a quiet hour it is as at the start");
    }

    #[test]
    fn what_is_made_now_does_and_lasts_two_years_of_the_later_of_clock_and_build() {
        let built = at("2026-11-01");
        for (now, expected) in
            [("1970-01-01", "2028-10-31"), ("2026-10-31", "2028-10-31"), ("2027-01-01", "2028-12-31"), ("2099-06-01", "2100-01-01")]
        {
            let end = not_after(at(now), built);
            assert_eq!(end, at(expected));
            assert_eq!(renewal(Some((&names(&[]), end)), &names(&[]), at(now), built), None, "{now}: one renewal, not one after the other");
        }
    }
}
