//! A clock that cannot be right is set to the latest time that is known to have passed.
//!
//! Boards without a battery start in 1970 or 2000. Certificates, leases and the audit must not go back in time.

use crate::time::Wall;
use std::time::Duration;

/// A last-seen time further than this after the build date is itself not believed: thirty years.
const LIFETIME: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// The time to set, or `None` when the clock may be right.
#[must_use]
pub fn correction(clock: Wall, build: Wall, last_seen: Option<Wall>) -> Option<Wall> {
    let believable = last_seen.filter(|seen| seen.duration_since(build) <= jiff::SignedDuration::try_from(LIFETIME).unwrap_or_default());
    let floor = believable.map_or(build, |seen| seen.max(build));
    (clock < floor).then_some(floor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Wall {
        text.parse().unwrap()
    }

    #[test]
    fn the_clock_never_goes_behind_what_is_known_to_have_passed() {
        let build = at("2026-11-01T00:00:00Z");
        let seen = at("2027-03-01T12:00:00Z");
        let check = |clock: &str, last_seen: Option<Wall>, expected: Option<Wall>| {
            assert_eq!(correction(at(clock), build, last_seen), expected, "{clock} {last_seen:?}");
        };
        check("1970-01-01T00:00:10Z", None, Some(build));
        check("1970-01-01T00:00:10Z", Some(seen), Some(seen));
        check("2027-01-01T00:00:00Z", Some(seen), Some(seen));
        check("2027-04-01T00:00:00Z", Some(seen), None);
        check("2026-11-01T00:00:00Z", None, None);
        check("2026-12-01T00:00:00Z", Some(at("2026-01-01T00:00:00Z")), None);
        // A broken clock that ran centuries ahead once must not hold the appliance there for ever.
        check("2026-12-01T00:00:00Z", Some(at("2190-01-01T00:00:00Z")), None);
    }
}
