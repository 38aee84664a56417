//! Which machines a rotation of the server key may leave behind.

use crate::id::MacAddr;
use crate::ledger::{DeviceState, Ledger};
use crate::time::Wall;

/// Machines that may have pinned a key that was replaced at `replaced`: they have a key of `kurrent-attest.efi`, and have not proved it
/// since (to whom a machine answers, it has pinned). Without a time that is all of them. Reports count for nothing: anybody can make one
/// in a machine's name, and a machine makes one before it has looked at the appliance's key.
#[must_use]
pub fn not_proved_since(ledger: &Ledger, replaced: Option<Wall>) -> Vec<MacAddr> {
    let can_prove = ledger.devices.values().filter(|d| d.state != DeviceState::Revoked && d.signs_answers());
    can_prove.filter(|d| replaced.is_none_or(|at| d.proved_at.is_none_or(|proved| proved <= at))).map(|d| d.mac).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Change;
    use crate::ledger::apply::apply;
    use crate::time::{Mono, Now};
    use std::time::Duration;

    #[test]
    fn who_has_not_proved_itself_since_a_key_was_replaced_may_have_it_pinned() {
        let now = |secs| Now { mono: Mono(Duration::from_secs(1)), wall: Wall::from_second(1_800_000_000 + secs).unwrap() };
        let mac = |n| MacAddr([0x52, 0x54, 0, 0, 0, n]);
        let key = |n: u8| format!("ed25519:{}", hex::encode([n; 32]));
        let register = |n, public_key, keyless_allowed| Change::Register {
            mac: mac(n),
            public_key,
            keyless_allowed,
            note: String::new(),
            labels: Default::default(),
            address: None,
        };
        let report = |n| Change::Report { mac: mac(n), uuid: String::new(), public_key: Some(key(n)), fingerprint: Default::default() };
        let mut ledger = Ledger::default();
        for (secs, change) in [
            (0, register(1, Some(key(1)), false)),
            (0, register(2, Some(key(2)), false)),
            (0, register(3, Some(key(3)), false)),
            (0, register(4, None, true)),
            (0, register(5, Some(key(5)), false)),
            (0, Change::Revoke { mac: mac(5) }),
            (10, Change::Proved { mac: mac(1), at: now(10).wall }),
            (30, Change::Proved { mac: mac(2), at: now(30).wall }),
            (30, report(3)),
        ] {
            ledger = apply(&ledger, change, now(secs)).unwrap().0;
        }
        let left = |secs: Option<i64>| not_proved_since(&ledger, secs.map(|s| now(s).wall));
        assert_eq!(left(Some(20)), [mac(1), mac(3)], "3 has only reported; 4 has no key, 5 is revoked");
        assert_eq!(left(Some(10)), [mac(1), mac(3)], "in the same second it may have been before");
        assert_eq!(left(Some(9)), [mac(3)]);
        assert_eq!(left(None), [mac(1), mac(2), mac(3)]);
    }
}
