//! What strangers cause must not fill the disk: repeats are counted, and all of them together have a budget a minute.
//! What people (`user`, `token`) and the appliance (`system`) do is always written, and so is what was granted to a device: nobody may
//! hide an admission behind noise. What a person was refused of his own account is limited: any viewer may ask for that endlessly.

use super::{BY_HAND, Event};
use kurrent_core::time::Mono;
use std::collections::HashMap;
use std::time::Duration;

/// Equal events written within [`WINDOW`]; further ones are counted.
const BURST: u32 = 3;
/// Events of strangers written within [`WINDOW`], whatever they are.
const BUDGET: u32 = 120;
const WINDOW: Duration = Duration::from_secs(60);
/// Different events remembered; others fall under the budget only.
const MAX_KINDS: usize = 1024;

/// What a device is granted, and what bounds it: the ledger's size and the window, the window or an order, the challenges of a
/// device that a minute may use up.
const GRANTS: [(&str, &str); 7] = [
    ("report", "admitted"),
    ("report", "key_stored"),
    ("key-replace", "key_stored"),
    ("boot", "ok"),
    ("boot-vars", "ok"),
    ("migrate-end", "ok"),
    ("user-create", "ok"),
];
/// How the verbs begin with which everybody who is logged in asks for himself.
const OF_THEMSELVES: [&str; 3] = ["login", "token-", "user-"];

/// The verb of what was refused before anybody looked at it: also somebody with a token can ask for that endlessly.
pub const AT_THE_DOOR: &str = "api";

/// Whether an event counts against the limits of strangers.
pub(super) fn is_limited(event: &Event) -> bool {
    let person = event.actor.starts_with("user ") || event.actor.starts_with("token ");
    let refused = event.result != "ok" && OF_THEMSELVES.iter().any(|verb| event.verb.starts_with(verb));
    let ours = (person && event.verb != AT_THE_DOOR && !refused) || ["system", BY_HAND].contains(&event.actor.as_str());
    !(ours || GRANTS.contains(&(event.verb, event.result.as_str())))
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Write,
    Counted,
}

struct Kind {
    event: Event,
    since: Mono,
    written: u32,
    counted: u64,
}

#[derive(Default)]
pub(super) struct Limit {
    kinds: HashMap<String, Kind>,
    since: Mono,
    spent: u32,
    /// Over budget, and of no remembered kind.
    others: u64,
}

impl Limit {
    pub(super) fn take(&mut self, event: &Event, now: Mono) -> Verdict {
        if !is_limited(event) {
            return Verdict::Write;
        }
        if now.since(self.since) >= WINDOW {
            (self.since, self.spent) = (now, 0);
        }
        let key = format!("{}\0{}\0{:?}\0{}\0{}", event.actor, event.verb, event.device, event.object, event.result);
        if let Some(kind) = self.kinds.get_mut(&key) {
            if kind.written >= BURST || self.spent >= BUDGET {
                kind.counted = kind.counted.saturating_add(1);
                return Verdict::Counted;
            }
            kind.written += 1;
            self.spent += 1;
            return Verdict::Write;
        }
        if self.spent >= BUDGET {
            self.others = self.others.saturating_add(1);
            return Verdict::Counted;
        }
        self.spent += 1;
        if self.kinds.len() < MAX_KINDS {
            self.kinds.insert(key, Kind { event: event.clone(), since: now, written: 1, counted: 0 });
        }
        Verdict::Write
    }

    /// Events whose window is over (or `all`), with the count of what was not written.
    pub(super) fn due(&mut self, now: Mono, all: bool) -> Vec<(Event, u64)> {
        let mut due = Vec::new();
        self.kinds.retain(|_, kind| {
            let over = now.since(kind.since) >= WINDOW;
            if (over || all) && kind.counted > 0 {
                due.push((kind.event.clone(), std::mem::take(&mut kind.counted)));
            }
            !over
        });
        if self.others > 0 && (all || now.since(self.since) >= WINDOW) {
            let event = Event {
                actor: "devices".into(),
                verb: "audit",
                device: None,
                object: String::new(),
                result: "over_budget".into(),
                detail: String::new(),
            };
            due.push((event, std::mem::take(&mut self.others)));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kurrent_core::id::MacAddr;

    fn event(actor: &str, n: u16) -> Event {
        let [a, b] = n.to_be_bytes();
        Event {
            actor: actor.into(),
            verb: "boot-vars",
            device: Some(MacAddr([2, 0, 0, 0, a, b])),
            object: String::new(),
            result: "no_key".into(),
            detail: String::new(),
        }
    }

    #[test]
    fn repeats_are_counted_and_the_count_is_told() {
        let mut limit = Limit::default();
        let at = |s: u64| Mono(Duration::from_secs(1000 + s));
        let written = (0..50).filter(|_| limit.take(&event("device", 1), at(0)) == Verdict::Write).count();
        assert_eq!(written, 3);
        assert!(limit.due(at(59), false).is_empty());
        assert_eq!(limit.due(at(60), false).into_iter().map(|d| d.1).collect::<Vec<_>>(), [47]);
        assert_eq!(limit.take(&event("device", 1), at(61)), Verdict::Write);
    }

    #[test]
    fn many_strangers_share_one_budget_and_people_are_not_limited() {
        let mut limit = Limit::default();
        let at = Mono(Duration::from_secs(1000));
        let written = (0..5000).filter(|n| limit.take(&event("device", *n), at) == Verdict::Write).count();
        assert_eq!(written, 120);
        assert_eq!(limit.due(at, true).into_iter().map(|d| d.1).sum::<u64>(), 5000 - 120);
        for actor in ["user ada", "token ada/0123456789ab", "system", BY_HAND] {
            assert!((0..500).all(|n| limit.take(&event(actor, n), at) == Verdict::Write), "{actor}");
        }
        let refused = Event { verb: AT_THE_DOOR, ..event("user ada", 1) };
        assert_eq!(limit.take(&refused, at), Verdict::Counted, "what is refused at the door is bounded for everybody");
    }

    #[test]
    fn strangers_can_not_hide_what_a_device_is_granted() {
        let mut limit = Limit::default();
        let at = Mono(Duration::from_secs(1000));
        assert!((0..5000).any(|n| limit.take(&event("device", n), at) == Verdict::Counted), "the budget is spent");
        for (verb, result) in GRANTS {
            let granted = Event { verb, result: result.into(), ..event("device 02:00:00:00:00:01", 1) };
            assert!((0..10).all(|_| limit.take(&granted, at) == Verdict::Write), "{verb} {result}");
        }
        for (verb, result) in [("report", "knocking"), ("report", "key_mismatch"), ("boot-vars", "verify_failed"), ("stage1", "ok")] {
            let other = Event { verb, result: result.into(), ..event("device 02:00:00:00:00:01", 1) };
            assert_eq!(limit.take(&other, at), Verdict::Counted, "{verb} {result}");
        }
    }

    /// A viewer who asks for more than he may have, over and over, must not rotate away what was decided.
    #[test]
    fn what_a_person_is_refused_of_his_own_account_is_limited_and_what_he_does_is_not() {
        let of = |verb, result: &str| Event {
            actor: "user vera".into(),
            verb,
            device: None,
            object: "vera".into(),
            result: result.into(),
            detail: String::new(),
        };
        for (verb, result) in [("login", "locked_out"), ("token-create", "role_missing"), ("user-password", "password_wrong")] {
            assert!(is_limited(&of(verb, result)), "{verb} {result}");
        }
        for (verb, result) in [("token-create", "ok"), ("user-password", "ok"), ("bind", "device_not_found"), ("bind", "ok")] {
            assert!(!is_limited(&of(verb, result)), "{verb} {result}");
        }
        assert!(is_limited(&of(AT_THE_DOOR, "role_missing")));
    }
}
