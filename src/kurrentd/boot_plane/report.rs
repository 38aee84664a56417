//! What a machine says of itself: from form to ledger change, and whether the ledger has to hear of it.

use super::verify::DeviceKey;
use kurrent_core::http::Form;
use kurrent_core::id::MacAddr;
use kurrent_core::ledger::rules::clipped;
use kurrent_core::ledger::{Change, Device, Fingerprint};
use kurrent_core::time::Now;
use std::time::Duration;

/// A known device whose report says nothing new is written down this often at most.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// A report in the form that the ledger takes.
pub struct Report {
    mac: MacAddr,
    uuid: String,
    public_key: Option<String>,
    fingerprint: Fingerprint,
}

impl Report {
    /// The report of a form. A key that is not usable counts as none.
    pub fn read(mac: MacAddr, form: &Form) -> Self {
        let public_key = DeviceKey::of_report(form.get("public_key")).map(|key| key.text());
        // As the ledger keeps it: one that it has to shorten would be news at every report.
        Self { mac, uuid: uuid_text(form.get("uuid")), public_key, fingerprint: clipped(fingerprint(form)) }
    }

    /// Whether it holds a usable key.
    pub fn has_key(&self) -> bool {
        self.public_key.is_some()
    }

    /// Whether the ledger has to hear of it: always from a stranger, else when something differs, or now and then.
    pub fn is_news(&self, device: Option<&Device>, now: Now) -> bool {
        let Some(device) = device else { return true };
        let recent = device.last_seen.is_some_and(|seen| {
            let ago = now.wall.duration_since(seen);
            !ago.is_negative() && ago.unsigned_abs() < REPORT_EVERY
        });
        let other_key = self.public_key.is_some() && self.public_key != device.public_key;
        !recent || other_key || device.fingerprint != self.fingerprint || device.uuid != self.uuid
    }

    /// For the ledger.
    pub fn into_change(self) -> Change {
        Change::Report { mac: self.mac, uuid: self.uuid, public_key: self.public_key, fingerprint: self.fingerprint }
    }
}

/// In one form; empty when there is none, or only zeros.
fn uuid_text(text: &str) -> String {
    text.parse().ok().filter(|uuid: &uuid::Uuid| !uuid.is_nil()).map(|uuid| uuid.to_string()).unwrap_or_default()
}

fn fingerprint(form: &Form) -> Fingerprint {
    // Firmware strings go into a file that people read: no control characters, no padding.
    let text = |name| form.get(name).chars().filter(|c| !c.is_control()).collect::<String>().trim().to_owned();
    Fingerprint {
        manufacturer: text("manufacturer"),
        product: text("product"),
        serial: text("serial"),
        cpu_model: text("cpu_model"),
        memory_total: text("memory_total"),
        memory_type: text("memory_type"),
        memory_speed: text("memory_speed"),
        nic_chip: text("nic_chip"),
        nic_busid: text("nic_busid"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kurrent_core::ledger::Ledger;
    use kurrent_core::ledger::apply::apply;
    use kurrent_core::time::{Mono, Wall};

    #[test]
    fn a_fingerprint_that_the_ledger_shortens_is_news_only_once() {
        let mac: MacAddr = "52:54:00:00:00:01".parse().unwrap();
        let now = Now { mono: Mono::default(), wall: Wall::UNIX_EPOCH };
        let register = Change::Register {
            mac,
            public_key: None,
            keyless_allowed: false,
            note: String::new(),
            labels: Default::default(),
            address: None,
        };
        let ledger = apply(&Ledger::default(), register, now).unwrap().0;
        let form = Form::parse(format!("serial=%20{}%20&product={}", "x".repeat(500), "y ".repeat(64)).as_bytes()).unwrap();
        let report = Report::read(mac, &form);
        assert!(report.is_news(ledger.device(mac), now));
        let ledger = apply(&ledger, report.into_change(), now).unwrap().0;
        assert!(!Report::read(mac, &form).is_news(ledger.device(mac), now));
    }
}
