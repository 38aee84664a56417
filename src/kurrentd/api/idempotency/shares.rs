//! How much of what is remembered is whose: when there is no more room, whoever has most gives way, so that nobody pushes out what
//! others rely on. A person and all tokens of that person are one.

use super::store::Slot;
use std::collections::HashMap;

/// Keys and octets by person.
#[derive(Default)]
pub(super) struct Shares(HashMap<String, Share>);

#[derive(Clone, Copy, Default)]
struct Share {
    keys: usize,
    octets: usize,
}

/// Of what there is too much.
#[derive(Clone, Copy)]
pub(super) enum TooMuch {
    Keys,
    Octets,
}

/// `NAME` of `user NAME` and of `token NAME/ID`; else the whole.
pub(super) fn person(slot: &Slot) -> &str {
    let token = slot.actor.strip_prefix("token ").and_then(|t| t.split_once('/')).map(|(name, _)| name);
    token.or_else(|| slot.actor.strip_prefix("user ")).unwrap_or(&slot.actor)
}

impl Shares {
    /// A key is remembered, with an answer of so many octets.
    pub(super) fn add(&mut self, slot: &Slot, octets: usize) {
        let share = self.0.entry(person(slot).to_owned()).or_default();
        share.keys = share.keys.saturating_add(1);
        share.octets = share.octets.saturating_add(octets);
    }

    /// It is not any more.
    pub(super) fn remove(&mut self, slot: &Slot, octets: usize) {
        let Some(share) = self.0.get_mut(person(slot)) else { return };
        share.keys = share.keys.saturating_sub(1);
        share.octets = share.octets.saturating_sub(octets);
        if share.keys == 0 {
            self.0.remove(person(slot));
        }
    }

    /// Octets in all.
    pub(super) fn octets(&self) -> usize {
        self.0.values().map(|share| share.octets).sum()
    }

    /// Who has most.
    pub(super) fn greediest(&self, of: TooMuch) -> Option<String> {
        let has = |share: &Share| match of {
            TooMuch::Keys => share.keys,
            TooMuch::Octets => share.octets,
        };
        self.0.iter().max_by_key(|(_, share)| has(share)).map(|(person, _)| person.clone())
    }
}
