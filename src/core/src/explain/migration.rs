//! A Worker on its way to this machine, or from it.

use super::{Evidence, Facts, Finding, blocking, warning};
use crate::ledger::Device;

pub(super) fn of_device(facts: &Facts<'_>, device: &Device) -> Option<Finding> {
    let mac = device.mac;
    let mut notes = facts.ledger.migrating.iter().filter_map(|id| Some((id, facts.ledger.workers.get(id)?.migration.as_ref()?)));
    let (id, note) = notes.find(|(_, note)| note.to == mac || note.from == Some(mac))?;
    let until = note.until.strftime("%H:%M:%S UTC");
    let mut finding = if note.to == mac {
        let back = note.from.map_or_else(|| "nobody has it again".to_owned(), |from| format!("{from} gets it back"));
        let what = format!("Worker {id} is on its way to this device, which must prove itself until {until}, or {back}");
        warning("migrating", what, "start it; kurrent job list shows how far it is")
    } else {
        let to = note.to;
        let what =
            format!("Worker {id} is on its way from this device to {to}, and comes back if that does not prove itself until {until}");
        blocking("migrating_away", what, "leave it switched off; cancel the job of the migration to have the Worker back")
    };
    finding.evidence.push(Evidence { what: "it was rebound".into(), at: Some(note.since) });
    Some(finding)
}
