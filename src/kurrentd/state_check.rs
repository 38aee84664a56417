//! Whether what lies in the state folder would be served: `kurrentd state check`, and `GET /v1/state` while the daemon runs.
//! Nothing is written.

use crate::{audit, ledger::load};
use std::path::Path;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Of the ledgers; nothing when there are none yet, or when they do not read.
    pub ledgers: Option<Ledgers>,
    /// Entries of the audit; nothing when its chain does not hold.
    pub audit_entries: Option<u64>,
    /// What is wrong, as `FILE:LINE: what; what to do`.
    pub faults: Vec<String>,
}

/// What the ledgers hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ledgers {
    /// The latest change.
    pub generation: u64,
    /// How many devices.
    pub devices: usize,
    /// How many Workers.
    pub workers: usize,
    /// Changes that are in the journal and not yet in the YAML files.
    pub waiting: u64,
}

/// Reads everything and judges it. Blocks on the disk.
#[must_use]
pub fn check(folder: &Path) -> Found {
    let mut found = Found::default();
    match load::examine(folder) {
        Ok(None) => {}
        Ok(Some(load::Checked { ledger, waiting })) => {
            found.faults.extend(ledger.unread.whys().map(str::to_owned));
            found.ledgers =
                Some(Ledgers { generation: ledger.generation, devices: ledger.devices.len(), workers: ledger.workers.len(), waiting });
        }
        Err(error) => found.faults.push(error.to_string()),
    }
    found.faults.extend(crate::people::check(folder));
    match audit::verify(folder) {
        Ok(entries) => found.audit_entries = Some(entries),
        Err(broken) => found.faults.push(broken.to_string()),
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use kurrent_core::ledger::Change;

    #[tokio::test]
    async fn it_counts_what_is_there_and_names_every_fault() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        assert_eq!(check(path), Found { audit_entries: Some(0), ..Found::default() }, "nothing yet");
        let audit = audit::Audit::open(path).unwrap();
        let ledger = crate::ledger::LedgerHandle::open(path, audit.clone());
        for worker in ["w1", "w2"] {
            ledger.submit(Change::CreateWorker { worker: worker.parse().unwrap() }, "user admin").await.unwrap();
        }
        audit.flush();
        let found = check(path);
        assert_eq!(found.ledgers, Some(Ledgers { generation: 2, devices: 0, workers: 2, waiting: 2 }), "{found:?}");
        assert_eq!((found.audit_entries, found.faults.len()), (Some(2), 0));
        std::fs::write(path.join("agents.yml"), "version: 3\ngeneration: 1\nagents: 7\n").unwrap();
        let log = path.join("operations.jsonl");
        std::fs::write(&log, std::fs::read_to_string(&log).unwrap().replacen("w1", "w3", 1)).unwrap();
        let found = check(path);
        assert!(found.ledgers.is_some() && found.audit_entries.is_none(), "a side ledger stops nothing else: {found:?}");
        assert!(found.faults.iter().any(|f| f.contains("agents.yml:3:")) && found.faults.iter().any(|f| f.contains("operations.jsonl:")));
    }
}
