//! Who asks too often: `core::http::budget`, before anything that costs is done.

use super::{Answer, BootPlane, Peer, jitter};
use kurrent_core::boot::{Refusal, Standing};
use kurrent_core::http::budget::{Budget, Verdict};
use kurrent_core::id::MacAddr;
use kurrent_core::ipxe;
use kurrent_core::time::Now;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// The budget of all connections.
pub(super) struct Requests(Mutex<Budget>);

impl Requests {
    pub(super) fn new(now: Now) -> Self {
        Self(Mutex::new(Budget::new(now.mono)))
    }

    pub(super) fn expire(&self, now: Now) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).expire(now.mono);
    }

    fn take(&self, address: IpAddr, known: Option<MacAddr>, now: Now) -> Verdict {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take(address, known, now.mono)
    }
}

impl BootPlane {
    /// The answer to a form that comes too often, if it does. The audit has one line for a burst; the timeline none: a flood in
    /// another's address would bury what its holder did.
    #[must_use]
    pub fn over_budget(&self, peer: Peer, path: &str, now: Now) -> Option<Answer> {
        let verb = match path {
            "/devices/report" => "report",
            "/devices/challenge" => "challenge",
            "/boot-vars" => "boot-vars",
            _ => "stage1",
        };
        let ledger = self.shared.ledger.snapshot();
        let known = peer.lease.filter(|mac| ledger.device(*mac).is_some());
        let verdict = self.requests.take(peer.address, known, now);
        let Verdict::Refused { is_news } = verdict else { return None };
        let refusal = Refusal::TooMany;
        if is_news {
            tracing::warn!(address = %peer.address, "boot plane: it asks more often than machines do and is told to wait");
            self.audit(peer.lease, verb, &peer.address.to_string(), refusal.code());
        }
        if verb == "stage1" {
            return Some(Answer::TooMany);
        }
        let standing = peer.lease.map_or(Standing::Unknown, |mac| Standing::of(&ledger, mac));
        Some(Answer::Script(ipxe::wait_script(standing, &refusal.wait(jitter()), false)))
    }
}
