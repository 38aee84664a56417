//! What an edit by hand did, in the words of the verbs: for the audit and for listeners. Without it a binding that was moved in a
//! file would leave no trace under its device.

use super::change::Subject;
use super::detail::Words;
use super::records::{Difference, Key, Record};
use super::schema::{Device, DeviceState, Worker};
use super::view::{Ledger, Settings};

/// One thing that an edit did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// As `Change::verb` names it.
    pub verb: &'static str,
    /// What it was done to.
    pub subject: Subject,
    /// As `Change::detail` says it.
    pub detail: String,
}

/// What makes `after`, which an edit by hand made, out of `before`. The cost follows the edit, not the ledger.
#[must_use]
pub fn done(before: &Ledger, after: &Ledger) -> Vec<Done> {
    let mut all = Vec::new();
    for Difference { key, before, after } in before.records().differences(&after.records()) {
        match (before, after) {
            (Some(Record::Device(was)), Some(Record::Device(is))) => device(&mut all, Some(&was), Some(&is)),
            (Some(Record::Device(was)), None) => device(&mut all, Some(&was), None),
            (None, Some(Record::Device(is))) => device(&mut all, None, Some(&is)),
            (Some(Record::Worker(was)), Some(Record::Worker(is))) => worker(&mut all, &was, &is),
            (Some(Record::Settings(was)), Some(Record::Settings(is))) => settings(&mut all, &was, &is),
            (was, is) => all.extend(whole(&key, was.is_some(), is.is_some())),
        }
    }
    all
}

fn one(verb: &'static str, subject: Subject, detail: Words) -> Done {
    Done { verb, subject, detail: detail.text() }
}

/// A record that came, went, or is not looked into.
fn whole(key: &Key, was: bool, is: bool) -> Option<Done> {
    let [added, edited, removed] = match key {
        Key::Worker(_) => ["worker-create", "worker-edit", "worker-delete"],
        Key::Master(_) => ["master-tag", "master-tag", "master-forget"],
        Key::Agent(_) => ["agent-add", "agent-edit", "agent-remove"],
        Key::JoinToken(_) => ["join-token-add", "join-token-edit", "join-token-revoke"],
        // These two are looked into.
        Key::Device(_) | Key::Settings => return None,
    };
    let verb = match (was, is) {
        (false, _) => added,
        (true, true) => edited,
        (true, false) => removed,
    };
    Some(one(verb, (None, key.text()), Words::default()))
}

fn device(all: &mut Vec<Done>, was: Option<&Device>, is: Option<&Device>) {
    let Some(mac) = is.or(was).map(|d| d.mac) else { return };
    let mut say = |verb, object: String, detail| all.push(one(verb, (Some(mac), object), detail));
    let nothing = Words::default;
    let state = |d: Option<&Device>| d.map(|d| d.state);
    if was.is_none() {
        say("register", String::new(), nothing());
    }
    let bound = |d: Option<&Device>| d.and_then(|d| d.bound_worker_id.clone());
    let (left, now) = (bound(was), bound(is));
    if left != now {
        if let Some(worker) = left {
            say("unbind", worker.to_string(), nothing());
        }
        if let Some(worker) = now {
            say("bind", worker.to_string(), nothing());
        }
    }
    let revoked = |d| state(d) == Some(DeviceState::Revoked);
    if revoked(is) && !revoked(was) {
        say("revoke", String::new(), nothing());
    }
    let (Some(was_there), Some(is_there)) = (was, is) else {
        if is.is_none() {
            say("purge", String::new(), nothing());
        }
        return;
    };
    let rekey = |d: &Device| (d.rekey_until, d.rekey_signed);
    if rekey(was_there) != rekey(is_there) {
        say("rekey", String::new(), nothing().until(is_there.rekey_until).when(is_there.rekey_signed, "signed"));
    }
    if was_there.labels != is_there.labels {
        say("label", String::new(), nothing().value("labels", is_there.labels.len()));
    }
    // The state that no verb leads to: back from revoked.
    let back = revoked(was) && !revoked(is);
    let keyless = was_there.keyless_allowed != is_there.keyless_allowed;
    let edited = nothing()
        .when(back, "state=pooled")
        .when(was_there.public_key != is_there.public_key, "public_key")
        .given("keyless_allowed", keyless.then_some(is_there.keyless_allowed))
        .when(was_there.loader != is_there.loader, "loader")
        .when(was_there.address != is_there.address, "address")
        .when(was_there.note != is_there.note, "note")
        .text();
    if !edited.is_empty() {
        say("device-edit", String::new(), nothing().word(&edited));
    }
}

fn worker(all: &mut Vec<Done>, was: &Worker, is: &Worker) {
    let id = &is.worker_id;
    let nothing = Words::default;
    let of_disk = |tag: &crate::id::OsTag| (None, format!("{id} {tag}"));
    let before = all.len();
    for disk in &is.disks {
        match was.disks.iter().find(|d| d.os_tag == disk.os_tag) {
            None => all.push(one("disk-add", of_disk(&disk.os_tag), nothing().value("size_bytes", disk.size_bytes))),
            Some(known) if known != disk => {
                let size = (known.size_bytes != disk.size_bytes).then_some(disk.size_bytes);
                all.push(one("disk-edit", of_disk(&disk.os_tag), nothing().given("size_bytes", size)));
            }
            Some(_) => {}
        }
    }
    for gone in was.disks.iter().filter(|d| is.disks.iter().all(|now| now.os_tag != d.os_tag)) {
        all.push(one("disk-remove", of_disk(&gone.os_tag), nothing()));
    }
    if was.default_disk != is.default_disk {
        let subject = is.default_disk.as_ref().map_or_else(|| (None, id.to_string()), of_disk);
        all.push(one("default-disk", subject, nothing()));
    }
    if was.boot != is.boot {
        all.push(one("boot-settings", (None, id.to_string()), nothing().boot(&is.boot)));
    }
    if was.migration != is.migration {
        all.push(match &is.migration {
            Some(note) => one("migrate", (Some(note.to), id.to_string()), nothing().given("from", note.from).until(Some(note.until))),
            None => one("migrate-end", (None, id.to_string()), nothing()),
        });
    }
    if all.len() == before {
        all.push(one("worker-edit", (None, id.to_string()), nothing()));
    }
}

fn settings(all: &mut Vec<Done>, was: &Settings, is: &Settings) {
    let mut say = |verb, detail| all.push(one(verb, (None, String::new()), detail));
    if was.registration_open_until != is.registration_open_until {
        match is.registration_open_until {
            Some(until) => say("window-open", Words::default().until(Some(until))),
            None => say("window-close", Words::default()),
        }
    }
    if was.enforcement != is.enforcement {
        say("settings-edit", Words::default().enforcement(is.enforcement));
    }
    if was.boot != is.boot {
        say("settings-edit", Words::default().boot(&is.boot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::MacAddr;
    use crate::ledger::apply::apply;
    use crate::ledger::{BootSettings, Change};
    use crate::time::{Mono, Now, Wall};
    use std::sync::Arc;

    const NOW: Now = Now { mono: Mono(std::time::Duration::ZERO), wall: Wall::UNIX_EPOCH };

    fn mac(n: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, n])
    }

    /// Devices 1 and 2, Workers w1 and w2; 1 is bound to w1.
    fn ledger() -> Ledger {
        let register = |n| {
            let labels = Default::default();
            Change::Register { mac: mac(n), public_key: None, keyless_allowed: false, note: String::new(), labels, address: None }
        };
        let workers = Change::CreateWorkers { workers: ["w1", "w2"].map(|w| w.parse().unwrap()).to_vec() };
        let bind = Change::Bind { mac: mac(1), worker: "w1".parse().unwrap(), force: false };
        let changes = [register(1), register(2), workers, bind];
        changes.into_iter().fold(Ledger::default(), |ledger, change| apply(&ledger, change, NOW).unwrap().0)
    }

    fn check(edit: impl FnOnce(&mut Ledger), expected: &[(&str, Option<u8>, &str, &str)]) {
        let before = ledger();
        let mut after = before.clone();
        edit(&mut after);
        let found = done(&before, &after);
        let found: Vec<_> = found.iter().map(|d| (d.verb, d.subject.0, d.subject.1.as_str(), d.detail.as_str())).collect();
        let expected: Vec<_> = expected.iter().map(|(verb, n, object, detail)| (*verb, n.map(mac), *object, *detail)).collect();
        assert_eq!(found, expected);
    }

    fn change(ledger: &mut Ledger, n: u8, edit: impl FnOnce(&mut Device)) {
        let mut device = ledger.device(mac(n)).unwrap().clone();
        edit(&mut device);
        ledger.devices.insert(mac(n), Arc::new(device));
    }

    #[test]
    fn a_binding_moved_by_hand_is_told_under_both_devices() {
        let w1 = || Some("w1".parse().unwrap());
        check(
            |l| {
                change(l, 1, |d| (d.state, d.bound_worker_id) = (DeviceState::Pooled, None));
                change(l, 2, |d| (d.state, d.bound_worker_id) = (DeviceState::Bound, w1()));
            },
            &[("unbind", Some(1), "w1", ""), ("bind", Some(2), "w1", "")],
        );
        check(
            |l| change(l, 1, |d| d.bound_worker_id = Some("w2".parse().unwrap())),
            &[("unbind", Some(1), "w1", ""), ("bind", Some(1), "w2", "")],
        );
    }

    #[test]
    fn what_an_edit_did_is_told_in_the_words_of_the_verbs() {
        check(|_| {}, &[]);
        check(|l| change(l, 1, |d| d.epoch += 1), &[]);
        check(
            |l| change(l, 1, |d| (d.state, d.bound_worker_id) = (DeviceState::Revoked, None)),
            &[("unbind", Some(1), "w1", ""), ("revoke", Some(1), "", "")],
        );
        check(|l| drop(l.devices.remove(&mac(2))), &[("purge", Some(2), "", "")]);
        check(
            |l| change(l, 2, |d| (d.keyless_allowed, d.note) = (true, "hunter2".into())),
            &[("device-edit", Some(2), "", "keyless_allowed=true note")],
        );
        check(|l| drop(l.workers.remove(&"w2".parse::<crate::id::WorkerId>().unwrap())), &[("worker-delete", None, "w2", "")]);
        check(
            |l| l.settings = Settings { enforcement: Some(false), boot: BootSettings::default(), registration_open_until: Some(NOW.wall) },
            &[("window-open", None, "", "until=1970-01-01T00:00:00Z"), ("settings-edit", None, "", "enforcement=false")],
        );
    }
}
