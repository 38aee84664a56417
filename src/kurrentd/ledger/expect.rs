//! What a caller saw when it asked for a change: checked by the writer against the very ledger the change is applied to, so
//! nobody overwrites what they have not seen.

use kurrent_core::id::{AgentName, FileName, MacAddr, WorkerId};
use kurrent_core::ledger::{Ledger, MasterTags, Rejected};
use kurrent_core::time::Wall;
use serde::Serialize;
use sha2::{Digest, Sha256};

/// Fields that change without anybody's doing: no part of a record's version.
const VOLATILE: [&str; 2] = ["last_seen", "proved_at"];
/// Octets of the hash that go into an ETag: enough that no two versions of a record meet by chance.
const ETAG_OCTETS: usize = 16;

/// One thing that must still be so. Where there is a text, it is the value of an `If-Match` (RFC 9110 section 13.1.1): an ETag of [`etag_of`],
/// several with commas between, or `*` for "it exists".
#[derive(Clone, Debug)]
pub enum Expectation {
    /// The whole ledger is at this generation: a plan that was made of it holds.
    Generation(u64),
    /// The device's record.
    Device(MacAddr, String),
    /// The Worker's record, its disks among it.
    Worker(WorkerId, String),
    /// It is the very Worker that was created then: long work for a Worker that was deleted meanwhile must not go to another one
    /// that got its name.
    WorkerSince(WorkerId, Wall),
    /// The master's tags; one without a record has [`untagged`].
    Master(FileName, String),
    /// The storage node's record.
    Agent(AgentName, String),
    /// The run-time settings (`Ledger::settings`).
    Settings(String),
}

/// The tags of a master that has none.
#[must_use]
pub fn untagged(name: FileName) -> MasterTags {
    MasterTags { name, os: None, os_version: None, remark: String::new() }
}

/// A record's strong ETag in its quoted form: `"`, 32 hex digits, `"`. They are the first 16 octets of the SHA-256 of its JSON
/// with sorted keys and without `last_seen` and `proved_at`.
#[must_use]
pub fn etag_of(record: &impl Serialize) -> String {
    let mut json = serde_json::to_value(record).unwrap_or_default();
    if let Some(fields) = json.as_object_mut() {
        VOLATILE.iter().for_each(|field| drop(fields.remove(*field)));
    }
    let hash = Sha256::digest(json.to_string());
    format!("\"{}\"", hex::encode(hash.get(..ETAG_OCTETS).unwrap_or_default()))
}

/// Whether the value of an `If-Match` names the current ETag; `None` is a record that is not there. ETags are compared
/// strongly: a weak one (`W/`) never matches.
fn matches(wanted: &str, current: Option<&String>) -> bool {
    current.is_some_and(|current| wanted.split(',').map(str::trim).any(|tag| tag == "*" || tag == current))
}

impl Expectation {
    /// Whether it is so in this ledger.
    ///
    /// # Errors
    /// 409 `plan_stale` for the generation, 404 `worker_not_found` or 409 `worker_replaced` for [`Self::WorkerSince`], 412
    /// `precondition_failed` for the others.
    pub fn check(&self, ledger: &Ledger) -> Result<(), Rejected> {
        let (what, wanted, current) = match self {
            Self::Generation(planned) if *planned == ledger.generation => return Ok(()),
            Self::Generation(planned) => {
                let now = ledger.generation;
                let detail = format!("the plan was made at generation {planned}, the ledger is at {now}; look at a new plan and run that");
                return Err(Rejected { code: "plan_stale", status: 409, detail, field: None });
            }
            Self::Device(mac, wanted) => (format!("device {mac}"), wanted, ledger.device(*mac).map(etag_of)),
            Self::Worker(id, wanted) => (format!("Worker {id}"), wanted, ledger.workers.get(id).map(|w| etag_of(&**w))),
            Self::WorkerSince(id, created_at) => {
                return ledger.workers.get(id).map_or_else(
                    || {
                        let detail = format!("Worker {id} was deleted meanwhile; create it and ask again if it is still wanted");
                        Err(Rejected { code: "worker_not_found", status: 404, detail, field: None })
                    },
                    |worker| {
                        if worker.created_at == *created_at {
                            return Ok(());
                        }
                        let detail =
                            format!("Worker {id} was deleted meanwhile, and another one has its name now; ask again if it is for that one");
                        Err(Rejected { code: "worker_replaced", status: 409, detail, field: None })
                    },
                );
            }
            Self::Master(name, wanted) => {
                let recorded = ledger.masters.get(name).map(|tags| etag_of(&**tags));
                (format!("master {name}"), wanted, recorded.or_else(|| Some(etag_of(&untagged(name.clone())))))
            }
            Self::Agent(name, wanted) => (format!("storage node {name}"), wanted, ledger.agent(name).as_ref().map(etag_of)),
            Self::Settings(wanted) => ("settings".into(), wanted, Some(etag_of(&ledger.settings))),
        };
        if matches(wanted, current.as_ref()) {
            return Ok(());
        }
        let detail = match current {
            Some(current) => format!("{what}: somebody changed it, its ETag is {current} now; read it again and decide anew"),
            None => format!("{what}: it is not in the ledger any more; read the list again"),
        };
        Err(Rejected { code: "precondition_failed", status: 412, detail, field: None })
    }
}

#[cfg(test)]
#[path = "expect_tests.rs"]
mod tests;
