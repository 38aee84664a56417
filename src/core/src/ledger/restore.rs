//! What becomes of the ledger of a backup when it is put in the place of another one.

use super::schema::{Device, DeviceState, Worker};
use super::view::{LAST_GENERATION, Ledger};
use crate::time::Wall;
use std::sync::Arc;

/// More changes than a century of one in a second: what a restore leaps over in any case.
const LEAP: u64 = 1 << 32;
/// By the clock, generations after a restore grow by so much in a second: more changes than a ledger can make in one.
const BITS_A_SECOND: u32 = 24;
/// The part of a leap that chance decides: without a clock (a board without a battery) two restores differ all the same, and
/// half a million of them stay below [`LAST_GENERATION`].
const BITS_OF_CHANCE: u32 = 40;

impl Ledger {
    /// This ledger of a backup as the successor of what is there now; `present` is the highest generation that is known of it, which
    /// is 0 when nothing of it reads. Credentials that were given out after the backup are worthless: every bound device gets an
    /// epoch that no appliance with this ledger's past has given out, also when the same backup was restored before and nothing is
    /// left that tells of it: time (`now`) and chance (`random`) make every leap another one. And a restore opens nothing: window,
    /// rekey orders and join tokens, which may have been used or withdrawn since, are gone. A migration is over, its device stays. `None`: the generation is at its end
    /// ([`LAST_GENERATION`]).
    #[must_use]
    pub fn after_restore(mut self, present: u64, now: Wall, random: u64) -> Option<Self> {
        // A clock that is wrong by millennia does not use the numbers up.
        let seconds = now.as_second().clamp(0, i64::from(u32::MAX)).unsigned_abs();
        let by_clock = seconds << BITS_A_SECOND;
        let least = self.generation.max(present).saturating_add(LEAP).max(by_clock);
        self.generation = least.saturating_add(random & ((1 << BITS_OF_CHANCE) - 1));
        if self.generation > LAST_GENERATION {
            return None;
        }
        self.settings.registration_open_until = None;
        self.join_tokens.clear();
        let touched = |d: &Device| d.state == DeviceState::Bound || d.rekey_until.is_some();
        let devices: Vec<Arc<Device>> = self.devices.values().filter(|d| touched(d)).cloned().collect();
        for device in devices {
            let epoch = if device.state == DeviceState::Bound { self.generation } else { device.epoch };
            self.devices.insert(device.mac, Arc::new(Device { epoch, rekey_until: None, rekey_signed: false, ..Device::clone(&device) }));
        }
        for id in std::mem::take(&mut self.migrating) {
            if let Some(worker) = self.workers.get(&id) {
                self.keep_worker(Worker { migration: None, ..Worker::clone(worker) });
            }
        }
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restored(backup: u64, present: u64, at: i64, random: u64) -> Option<u64> {
        let ledger = Ledger { generation: backup, ..Ledger::default() };
        ledger.after_restore(present, Wall::from_second(at).unwrap(), random).map(|l| l.generation)
    }

    /// Restored on damaged ledgers (`present` is 0 both times), run on in between.
    #[test]
    fn the_same_backup_restored_twice_never_repeats_an_epoch() {
        let now = 1_796_000_000;
        for (first, second) in
            [((now, 1), (now + 1, 1)), ((now, 1), (now + 60, 0)), ((0, 5), (0, 6)), ((i64::from(u32::MAX) + 9, 5), (0, 6))]
        {
            let one = restored(41, 0, first.0, first.1).unwrap();
            let two = restored(41, 0, second.0, second.1).unwrap();
            assert_ne!(one, two, "{first:?} {second:?}");
        }
        let one = restored(41, 0, now, u64::MAX).unwrap();
        let later = restored(41, 0, now + 24 * 3600, 0).unwrap();
        assert!(later > one + 1_000_000, "a day later no chance is needed");
    }

    #[test]
    fn a_restore_leaps_over_backup_and_present_and_stays_far_below_the_end() {
        for (backup, present) in [(0, 0), (7, 1 << 57), (1 << 57, 7)] {
            let is = restored(backup, present, 1_796_000_000, 3).unwrap();
            assert!(is > backup + LEAP - 1 && is > present + LEAP - 1);
        }
        let latest = Wall::MAX.as_second();
        assert!(restored(0, 0, latest, u64::MAX).unwrap() < LAST_GENERATION / 8);
        assert_eq!(restored(LAST_GENERATION, 0, 0, 0), None);
        assert_eq!(restored(0, u64::MAX, 0, 0), None);
    }
}
