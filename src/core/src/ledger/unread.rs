//! Side ledgers that can not be read. They stop what they govern, and nothing else: tags of masters are for display, and storage
//! nodes for placing disks; devices, Workers and what boots rest on neither.

use super::apply::rejected;
use super::change::{Change, Rejected};
use super::view::Ledger;

/// Why each side ledger was not read, with file and line; its records are missing, and nobody may conclude anything from that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    /// `masters.yml`.
    pub masters: Option<String>,
    /// `agents.yml`.
    pub agents: Option<String>,
}

impl Unread {
    /// Whether all ledgers were read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.masters.is_none() && self.agents.is_none()
    }

    /// Whether this file is a side ledger that was not read.
    #[must_use]
    pub fn has(&self, file: &str) -> bool {
        (file == "masters.yml" && self.masters.is_some()) || (file == "agents.yml" && self.agents.is_some())
    }

    /// Leaves a file out; `false` when that can not be done (again).
    pub fn leave_out(&mut self, file: &str, why: String) -> bool {
        let slot = match file {
            "masters.yml" => &mut self.masters,
            "agents.yml" => &mut self.agents,
            _ => return false,
        };
        slot.replace(why).is_none()
    }

    /// What is wrong.
    pub fn whys(&self) -> impl Iterator<Item = &str> {
        [&self.masters, &self.agents].into_iter().filter_map(Option::as_deref)
    }
}

impl Ledger {
    /// Nothing is put into a ledger that was not read, and no disk on a node that may be drained.
    pub(super) fn check_read(&self, change: &Change) -> Result<(), Rejected> {
        let of_masters = matches!(change, Change::TagMaster { .. } | Change::ForgetMaster { .. });
        let of_agents = matches!(
            change,
            Change::AddAgent { .. }
                | Change::EditAgent { .. }
                | Change::RemoveAgent { .. }
                | Change::AddJoinToken { .. }
                | Change::RevokeJoinToken { .. }
                | Change::AddDisk { .. }
        );
        let why = self.unread.masters.as_ref().filter(|_| of_masters).or(self.unread.agents.as_ref().filter(|_| of_agents));
        why.map_or(Ok(()), |why| Err(rejected(503, "ledger_damaged", format!("{why}; repair it and restart kurrentd"))))
    }
}
