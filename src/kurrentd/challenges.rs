//! Challenges: made for anybody who asks, kept for nobody, each good for one answer within 60 seconds.
//!
//! A nonce carries its own proof: random octets, the time, and an HMAC over them and the MAC address under a key that
//! lives as long as this process. Issuing therefore stores nothing: a flood of requests costs no memory, and nobody can
//! cancel another machine's outstanding challenges by asking for more. Only *used* nonces are remembered, for as long as
//! they would be valid; each one took a genuine signature.
//!
//! ```text
//! nonce = random[11] | flags[1] | issued[4] | HMAC(tag key, all before | MAC | server key)[..16]
//! X25519 secret of a challenge = HMAC(secret of its minute, nonce | MAC)
//! ```
//!
//! The secrets of past minutes are wiped, so that whoever reads this process's memory later can not open what was sealed
//! before. A restart forgets everything: machines ask again.

use hmac::{Hmac, Mac};
use kurrent_core::boot::Evidence;
use kurrent_core::id::MacAddr;
use kurrent_core::time::{Mono, Now};
use kurrent_handshake::{Challenge, EXPECTS_NONE, boot_public_key, expected, same};
use sha2::Sha256;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use zeroize::{Zeroize, Zeroizing};

/// How long an answer may take (boot-chain 3).
pub const VALID: Duration = Duration::from_secs(60);
/// Answers of one device within [`VALID`]: more is a boot loop, and would make the memory of used nonces grow.
const MAX_USED_PER_MAC: usize = 16;
/// Devices with used nonces remembered at most; when full, expired ones go, then new answers are refused.
const MAX_MACS: usize = 65_536;
const FLAGS_AT: usize = 11;
const ISSUED_AT: usize = 12;
const TAG_AT: usize = 16;

type Key = Zeroizing<[u8; 32]>;

/// The one owner of nonces.
pub struct Challenges {
    tag_key: Key,
    state: Mutex<State>,
}

struct State {
    /// Secret of the newest period, by number.
    newest: (u64, Key),
    /// Of the period before it, if that was used: an answer can come in the next one.
    previous: Option<(u64, Key)>,
    used: HashMap<MacAddr, Vec<([u8; 32], Mono)>>,
}

/// Between whom a challenge is.
#[derive(Clone, Copy)]
pub struct Parties<'a> {
    /// The device.
    pub mac: MacAddr,
    /// The appliance's key now.
    pub server_key: &'a [u8; 32],
    /// The octets of the device's stored key, if there is one.
    pub device_key: Option<&'a [u8]>,
}

impl Parties<'_> {
    fn challenge(&self, nonce: [u8; 32], secret: &[u8; 32]) -> Challenge {
        Challenge {
            nonce,
            mac: self.mac.0,
            server_boot_key: boot_public_key(secret),
            flags: nonce[FLAGS_AT],
            expected: self.device_key.map_or(EXPECTS_NONE, |key| expected(&nonce, &self.mac.0, key)),
        }
    }
}

/// A challenge that is ours, in time and unused. Not used up yet: see [`Challenges::use_up`].
pub struct Outstanding {
    /// The appliance's X25519 secret of this challenge.
    pub secret: Zeroizing<[u8; 32]>,
    /// What the device was sent.
    pub challenge: Challenge,
    issued: Mono,
}

fn period_of(now: Mono) -> u64 {
    now.0.as_secs() / VALID.as_secs()
}

fn prf(key: &[u8; 32], parts: &[&[u8]]) -> Key {
    // HMAC takes keys of any length.
    let Ok(mut mac) = <Hmac<Sha256> as hmac::KeyInit>::new_from_slice(key) else { return Zeroizing::new([0; 32]) };
    parts.iter().for_each(|part| mac.update(part));
    let mut octets = mac.finalize().into_bytes();
    let key = Zeroizing::new(octets.into());
    octets.zeroize();
    key
}

impl Challenges {
    /// With fresh keys; `entropy` gives 32 random octets each time.
    #[must_use]
    pub fn new(entropy: impl Fn() -> [u8; 32], now: Now) -> Self {
        let fresh = || Zeroizing::new(entropy());
        let state = State { newest: (period_of(now.mono), fresh()), previous: None, used: HashMap::new() };
        Self { tag_key: fresh(), state: Mutex::new(state) }
    }

    /// The state, with the periods moved on to `now`: what falls out is wiped.
    fn state(&self, fresh: impl FnOnce() -> [u8; 32], now: Now) -> std::sync::MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let period = period_of(now.mono);
        // Only forward: two requests may have read the clock in the other order.
        if state.newest.0 < period {
            let last = std::mem::replace(&mut state.newest, (period, Zeroizing::new(fresh())));
            state.previous = (last.0.checked_add(1) == Some(period)).then_some(last);
        }
        state
    }

    /// Wipes the secrets of past periods although nobody asks.
    pub fn expire(&self, fresh: impl FnOnce() -> [u8; 32], now: Now) {
        drop(self.state(fresh, now));
    }

    /// A challenge for this device. `random` is fresh; `flags` as [`kurrent_core::boot::may_pin`] says.
    pub fn issue(&self, parties: Parties<'_>, flags: u8, random: [u8; 32], fresh: impl FnOnce() -> [u8; 32], now: Now) -> Challenge {
        let state = self.state(fresh, now);
        let issued = now.mono.0.as_secs().max(state.newest.0 * VALID.as_secs());
        let issued = u32::try_from(issued).unwrap_or(u32::MAX).to_be_bytes();
        let mut nonce = [0u8; 32];
        nonce[..FLAGS_AT].copy_from_slice(&random[..FLAGS_AT]);
        nonce[FLAGS_AT] = flags;
        nonce[ISSUED_AT..TAG_AT].copy_from_slice(&issued);
        let tag = self.tag(&nonce, parties.mac, parties.server_key);
        nonce[TAG_AT..].copy_from_slice(&tag[TAG_AT..]);
        let secret = prf(&state.newest.1, &[&nonce, &parties.mac.0]);
        parties.challenge(nonce, &secret)
    }

    fn tag(&self, nonce: &[u8; 32], mac: MacAddr, server_key: &[u8; 32]) -> Key {
        prf(&self.tag_key, &[&nonce[..TAG_AT], &mac.0, server_key])
    }

    fn is_ours(&self, nonce: &[u8; 32], mac: MacAddr, server_key: &[u8; 32]) -> bool {
        same(&self.tag(nonce, mac, server_key)[TAG_AT..], &nonce[TAG_AT..])
    }

    /// Finds the challenge that `nonce` answers. `former` are the keys that the appliance had before.
    ///
    /// # Errors
    /// [`Evidence::NonceUnknown`], [`Evidence::ServerKeyRotated`] or [`Evidence::NonceExpired`].
    pub fn find(
        &self,
        parties: Parties<'_>,
        former: impl IntoIterator<Item = [u8; 32]>,
        nonce: &[u8; 32],
        fresh: impl FnOnce() -> [u8; 32],
        now: Now,
    ) -> Result<Outstanding, Evidence> {
        let mac = parties.mac;
        if !self.is_ours(nonce, mac, parties.server_key) {
            let rotated = former.into_iter().any(|key| self.is_ours(nonce, mac, &key));
            return Err(if rotated { Evidence::ServerKeyRotated } else { Evidence::NonceUnknown });
        }
        let mut issued = [0u8; 4];
        issued.copy_from_slice(&nonce[ISSUED_AT..TAG_AT]);
        let issued = Mono(Duration::from_secs(u64::from(u32::from_be_bytes(issued))));
        if now.mono.since(issued) > VALID {
            return Err(Evidence::NonceExpired);
        }
        let state = self.state(fresh, now);
        if state.used.get(&mac).is_some_and(|used| used.iter().any(|(n, _)| n == nonce)) {
            return Err(Evidence::NonceUnknown);
        }
        let periods = std::iter::once(&state.newest).chain(&state.previous);
        let Some((_, key)) = periods.into_iter().find(|(period, _)| *period == period_of(issued)) else {
            return Err(Evidence::NonceExpired);
        };
        let secret = prf(key, &[nonce, &mac.0]);
        let challenge = parties.challenge(*nonce, &secret);
        Ok(Outstanding { secret, challenge, issued })
    }

    /// Uses up a challenge whose answer was genuine. Of two answers at the same moment one gets `true`. A wrong answer
    /// uses nothing up: otherwise whoever sees a nonce on the wire could spoil it.
    pub fn use_up(&self, mac: MacAddr, found: &Outstanding, now: Now) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let live = |issued: &Mono| now.mono.since(*issued) <= VALID;
        if state.used.len() >= MAX_MACS && !state.used.contains_key(&mac) {
            state.used.retain(|_, used| used.iter().any(|(_, issued)| live(issued)));
            if state.used.len() >= MAX_MACS {
                return false;
            }
        }
        let used = state.used.entry(mac).or_default();
        used.retain(|(_, issued)| live(issued));
        if used.len() >= MAX_USED_PER_MAC || used.iter().any(|(nonce, _)| *nonce == found.challenge.nonce) {
            return false;
        }
        used.push((found.challenge.nonce, found.issued));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VICTIM: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn at(secs: u64) -> Now {
        Now { mono: Mono(Duration::from_secs(1_000_000 + secs)), wall: kurrent_core::time::Wall::UNIX_EPOCH }
    }

    fn fresh() -> [u8; 32] {
        kurrent_sys::entropy::random()
    }

    const SERVER: [u8; 32] = [7; 32];
    const DEVICE: [u8; 32] = [8; 32];

    fn parties(mac: MacAddr) -> Parties<'static> {
        Parties { mac, server_key: &SERVER, device_key: Some(&DEVICE) }
    }

    fn issue(challenges: &Challenges, mac: MacAddr, secs: u64) -> Challenge {
        challenges.issue(parties(mac), 1, fresh(), fresh, at(secs))
    }

    fn find(challenges: &Challenges, mac: MacAddr, nonce: &[u8; 32], secs: u64) -> Result<Outstanding, Evidence> {
        challenges.find(parties(mac), [], nonce, fresh, at(secs))
    }

    #[test]
    fn a_nonce_is_good_once_for_its_mac_within_a_minute() {
        let challenges = Challenges::new(fresh, at(0));
        let sent = issue(&challenges, VICTIM, 0);
        assert_eq!(find(&challenges, OTHER, &sent.nonce, 1).err(), Some(Evidence::NonceUnknown));
        let found = find(&challenges, VICTIM, &sent.nonce, 60).ok().unwrap();
        assert_eq!(found.challenge, sent);
        assert_eq!(boot_public_key(&found.secret), sent.server_boot_key);
        assert_eq!(find(&challenges, VICTIM, &sent.nonce, 61).err(), Some(Evidence::NonceExpired));
        assert!(challenges.use_up(VICTIM, &found, at(60)));
        assert!(!challenges.use_up(VICTIM, &found, at(60)), "two answers at once: one wins");
        assert_eq!(find(&challenges, VICTIM, &sent.nonce, 60).err(), Some(Evidence::NonceUnknown), "replayed");
    }

    #[test]
    fn a_changed_or_foreign_nonce_is_not_ours() {
        let challenges = Challenges::new(fresh, at(0));
        let sent = issue(&challenges, VICTIM, 0);
        for octet in 0..32 {
            let mut changed = sent.nonce;
            changed[octet] ^= 1;
            assert_eq!(find(&challenges, VICTIM, &changed, 1).err(), Some(Evidence::NonceUnknown), "octet {octet}");
        }
        let restarted = Challenges::new(fresh, at(0));
        assert_eq!(find(&restarted, VICTIM, &sent.nonce, 1).err(), Some(Evidence::NonceUnknown));
    }

    #[test]
    fn a_nonce_of_a_former_server_key_is_told_from_a_strangers() {
        let challenges = Challenges::new(fresh, at(0));
        let (former, older) = ([5; 32], [6; 32]);
        let sent = challenges.issue(Parties { server_key: &former, ..parties(VICTIM) }, 1, fresh(), fresh, at(0));
        let find = |nonce: &[u8; 32], keys: &[[u8; 32]]| challenges.find(parties(VICTIM), keys.iter().copied(), nonce, fresh, at(1)).err();
        assert_eq!(find(&sent.nonce, &[older, former]), Some(Evidence::ServerKeyRotated));
        assert_eq!(find(&sent.nonce, &[older]), Some(Evidence::NonceUnknown));
        assert_eq!(find(&[9; 32], &[older, former]), Some(Evidence::NonceUnknown));
        let of_another = challenges.issue(Parties { server_key: &former, ..parties(OTHER) }, 1, fresh(), fresh, at(0));
        assert_eq!(find(&of_another.nonce, &[former]), Some(Evidence::NonceUnknown));
    }

    #[test]
    fn a_challenge_names_the_stored_key_and_none_by_zeros() {
        let challenges = Challenges::new(fresh, at(0));
        assert!(issue(&challenges, VICTIM, 0).expects(&DEVICE));
        let sent = challenges.issue(Parties { device_key: None, ..parties(VICTIM) }, 0, fresh(), fresh, at(0));
        assert_eq!(sent.expected, EXPECTS_NONE);
    }

    #[test]
    fn secrets_of_past_minutes_are_gone() {
        let challenges = Challenges::new(fresh, at(0));
        let old = issue(&challenges, VICTIM, 0);
        let _ = issue(&challenges, VICTIM, 60);
        let _ = issue(&challenges, VICTIM, 120);
        let state = challenges.state.lock().unwrap();
        assert!(
            std::iter::once(&state.newest)
                .chain(&state.previous)
                .all(|(_, key)| boot_public_key(&prf(key, &[&old.nonce, &VICTIM.0])) != old.server_boot_key)
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// However many challenges are asked for, in whoever's name, the victim's first one stays good and nothing is stored.
        #[test]
        fn a_flood_neither_disturbs_a_victim_nor_costs_memory(flood in proptest::collection::vec((any::<bool>(), 0u64..60), 0..300)) {
            let challenges = Challenges::new(fresh, at(0));
            let sent = issue(&challenges, VICTIM, 0);
            let mut flood = flood;
            flood.sort_by_key(|(_, secs)| *secs);
            for (as_victim, secs) in flood {
                let mac = if as_victim { VICTIM } else { OTHER };
                let other = issue(&challenges, mac, secs);
                prop_assert!(find(&challenges, mac, &other.nonce, secs).is_ok());
            }
            prop_assert!(find(&challenges, VICTIM, &sent.nonce, 59).is_ok());
            prop_assert!(challenges.state.lock().unwrap().used.is_empty());
        }
    }

    #[test]
    fn used_nonces_are_bounded_for_each_device_and_forgotten_when_expired() {
        let challenges = Challenges::new(fresh, at(0));
        let use_one = |secs| {
            let sent = issue(&challenges, VICTIM, secs);
            challenges.use_up(VICTIM, &find(&challenges, VICTIM, &sent.nonce, secs).ok().unwrap(), at(secs))
        };
        assert_eq!((0..100).filter(|_| use_one(1)).count(), MAX_USED_PER_MAC);
        assert!(use_one(62), "a minute later it boots again");
        assert_eq!(challenges.state.lock().unwrap().used[&VICTIM].len(), 1);
    }
}
