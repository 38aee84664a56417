//! What changes do to settings, storage nodes and the tags of masters.

use super::{Next, rejected};
use crate::id::{AgentName, FileName};
use crate::ledger::change::{Outcome, Rejected};
use crate::ledger::rules::{check_base_url, check_boot, check_until, checked_note, checked_remark};
use crate::ledger::schema::{Agent, BootSettings, JoinToken, MasterTags, Role};
use crate::time::{Now, Wall};
use std::sync::Arc;

/// Join tokens that may wait at once; expired ones go first.
pub const MAX_JOIN_TOKENS: usize = 64;
/// Masters with tags.
pub const MAX_MASTERS: usize = 4096;
/// Storage nodes of one control plane.
pub const MAX_AGENTS: usize = 256;

impl Next {
    pub(super) fn open_window(&mut self, until: Wall, now: Now) -> Result<Outcome, Rejected> {
        check_until(until, now)?;
        self.ledger.settings.registration_open_until = Some(until);
        self.changed = true;
        Ok(Outcome::Done)
    }

    pub(super) fn close_window(&mut self) -> Outcome {
        if self.ledger.settings.registration_open_until.take().is_some() {
            self.changed = true;
        }
        Outcome::Done
    }

    pub(super) fn edit_settings(&mut self, enforcement: Option<Option<bool>>, boot: Option<BootSettings>) -> Result<Outcome, Rejected> {
        let mut settings = self.ledger.settings.clone();
        if let Some(boot) = boot {
            check_boot(&boot, &[])?;
            settings.boot = boot;
        }
        settings.enforcement = enforcement.unwrap_or(settings.enforcement);
        if settings != self.ledger.settings {
            self.ledger.settings = settings;
            self.changed = true;
        }
        Ok(Outcome::Done)
    }

    pub(super) fn tag_master(&mut self, mut tags: MasterTags) -> Result<Outcome, Rejected> {
        if !tags.name.is_master() {
            let detail = format!("{} is not a master: its name has no _tpl_", tags.name);
            return Err(rejected(422, "not_a_master", detail));
        }
        tags.remark = checked_remark(tags.remark)?;
        if tags.os.is_none() && tags.os_version.is_none() && tags.remark.is_empty() {
            return Ok(self.forget_master(&tags.name));
        }
        if !self.ledger.masters.contains_key(&tags.name) && self.ledger.masters.len() >= MAX_MASTERS {
            let detail = format!("{MAX_MASTERS} masters have tags already; take those of another one away");
            return Err(rejected(409, "too_many_masters", detail));
        }
        if self.ledger.masters.get(&tags.name).is_none_or(|known| **known != tags) {
            self.ledger.masters.insert(tags.name.clone(), Arc::new(tags));
            self.changed = true;
        }
        Ok(Outcome::Done)
    }

    pub(super) fn forget_master(&mut self, name: &FileName) -> Outcome {
        if self.ledger.masters.remove(name).is_some() {
            self.changed = true;
        }
        Outcome::Done
    }

    pub(super) fn add_agent(&mut self, mut agent: Agent, now: Now) -> Result<Outcome, Rejected> {
        if self.ledger.agent(&agent.name).is_some() {
            return Err(rejected(409, "agent_exists", format!("storage node {} exists already; choose another name", agent.name)));
        }
        if self.ledger.agents.len() >= MAX_AGENTS {
            return Err(rejected(409, "too_many_agents", format!("there are {MAX_AGENTS} storage nodes already; remove one")));
        }
        check_base_url(&agent.base_url)?;
        agent.note = checked_note(agent.note)?;
        agent.added_at = Some(now.wall);
        self.put_agent(agent);
        Ok(Outcome::Done)
    }

    pub(super) fn edit_agent(
        &mut self,
        name: &AgentName,
        base_url: Option<String>,
        roles: Option<Vec<Role>>,
        drained: Option<bool>,
        note: Option<String>,
    ) -> Result<Outcome, Rejected> {
        let before = self.agent(name)?;
        let mut agent = before.clone();
        if let Some(url) = base_url {
            if *name == AgentName::local() {
                let detail = "this appliance is its own storage node and has no base_url; leave it out".into();
                return Err(rejected(422, "agent_is_local", detail));
            }
            check_base_url(&url)?;
            agent.base_url = url;
        }
        if let Some(mut roles) = roles {
            roles.dedup();
            agent.roles = roles;
        }
        if let Some(note) = note {
            agent.note = checked_note(note)?;
        }
        agent.drained = drained.unwrap_or(agent.drained);
        if agent != before {
            self.put_agent(agent);
        }
        Ok(Outcome::Done)
    }

    pub(super) fn remove_agent(&mut self, name: &AgentName) -> Result<Outcome, Rejected> {
        self.agent(name)?;
        if *name == AgentName::local() {
            let detail = "this appliance can not be removed from itself; drain it if it shall take no new disks".into();
            return Err(rejected(409, "agent_is_local", detail));
        }
        let disks = self.ledger.workers.values().flat_map(|w| &w.disks).filter(|d| d.agent == *name).count();
        if disks > 0 {
            let detail = format!("storage node {name} holds {disks} disks; drain it, and delete or move them first");
            return Err(rejected(409, "agent_has_disks", detail));
        }
        self.ledger.agents.remove(name);
        self.changed = true;
        Ok(Outcome::Done)
    }

    pub(super) fn add_join_token(&mut self, mut token: JoinToken, now: Now) -> Result<Outcome, Rejected> {
        check_until(token.expires_at, now)?;
        token.note = checked_note(token.note)?;
        let expired: Vec<String> = self.ledger.join_tokens.values().filter(|t| t.expires_at <= now.wall).map(|t| t.id.clone()).collect();
        for id in expired {
            self.ledger.join_tokens.remove(&id);
        }
        if self.ledger.join_tokens.len() >= MAX_JOIN_TOKENS {
            let detail = format!("{MAX_JOIN_TOKENS} join tokens wait to be used already; revoke one");
            return Err(rejected(409, "too_many_join_tokens", detail));
        }
        self.ledger.join_tokens.insert(token.id.clone(), Arc::new(token));
        self.changed = true;
        Ok(Outcome::Done)
    }

    pub(super) fn revoke_join_token(&mut self, id: &str) -> Result<Outcome, Rejected> {
        if self.ledger.join_tokens.remove(id).is_none() {
            let detail = "there is no such join token; see the list of join tokens".into();
            return Err(rejected(404, "join_token_not_found", detail));
        }
        self.changed = true;
        Ok(Outcome::Done)
    }

    fn agent(&self, name: &AgentName) -> Result<Agent, Rejected> {
        let none = || rejected(404, "agent_not_found", format!("no storage node {name} is in the ledger; see the agent list"));
        self.ledger.agent(name).ok_or_else(none)
    }

    fn put_agent(&mut self, agent: Agent) {
        self.ledger.agents.insert(agent.name.clone(), Arc::new(agent));
        self.changed = true;
    }
}
