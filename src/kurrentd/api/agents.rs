//! Storage nodes: this appliance, and others that are recorded.

use super::Api;
use super::body::{Body, Query, Segments};
use super::etag::{Conditions, IfMatch, tagged};
use super::names::{NodeName, Note, Time};
use super::page::Piece;
use super::problem::Problem;
use crate::api::guard::actor;
use crate::ledger::expect::{Expectation, etag_of};
use crate::storage::{DataPlane, NodeStatus};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use kurrent_core::id::AgentName;
use kurrent_core::ledger::{Agent, Change, Ledger, Role};
use kurrent_core::time::Wall;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(list_agents, add_agent))
        .routes(routes!(get_agent, edit_agent, remove_agent))
        .routes(routes!(probe_agent))
        .routes(routes!(drain_agent))
        .routes(routes!(undrain_agent))
}

/// What a storage node is for.
#[derive(Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = AgentRole)]
enum RoleWord {
    /// It holds system disks and exports them.
    Disk,
}

fn role(word: RoleWord) -> Role {
    match word {
        RoleWord::Disk => Role::Disk,
    }
}

/// How a storage node is.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = AgentHealth)]
enum Health {
    /// It can hold and export disks.
    Ready,
    /// It can hold disks; its kernel has no target to export them.
    NoTarget,
    /// Its data-plane port is not ready.
    NotReady,
    /// It can not be asked.
    Unreachable,
}

/// A storage node with what it says of itself now.
#[derive(Serialize, ToSchema)]
#[schema(as = Agent)]
struct AgentView {
    #[schema(value_type = NodeName)]
    name: AgentName,
    /// Whether it is this appliance itself.
    local: bool,
    /// Where its API is; empty for this appliance.
    base_url: String,
    roles: Vec<RoleWord>,
    /// Takes no new disks.
    drained: bool,
    #[schema(value_type = Note)]
    note: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Time>, nullable = false)]
    added_at: Option<Wall>,
    health: Health,
    /// What is wrong, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    detail: Option<String>,
    free_bytes: u64,
    total_bytes: u64,
    /// System disks that are recorded on it.
    disks: u64,
    /// The sum of their sizes.
    disk_bytes: u64,
    /// Master images that it has.
    masters: u64,
}

impl AgentView {
    fn new(ledger: &Ledger, agent: Agent, status: &NodeStatus) -> Self {
        let sizes = ledger.workers.values().flat_map(|w| &w.disks).filter(|d| d.agent == agent.name).map(|d| d.size_bytes);
        let (disks, disk_bytes) = sizes.fold((0u64, 0u64), |(n, sum), size| (n.saturating_add(1), sum.saturating_add(size)));
        let (health, detail) = match (&status.reachable, &status.data_plane) {
            (Err(why), _) => (Health::Unreachable, Some(why.clone())),
            (Ok(()), DataPlane::Ready) => (Health::Ready, None),
            (Ok(()), DataPlane::Absent(why)) => (Health::NoTarget, Some(why.clone())),
            (Ok(()), DataPlane::NotReady(why)) => (Health::NotReady, Some(why.clone())),
        };
        let word = |role: &Role| match role {
            Role::Disk => RoleWord::Disk,
        };
        Self {
            local: agent.name == AgentName::local(),
            roles: agent.roles.iter().map(word).collect(),
            name: agent.name,
            base_url: agent.base_url,
            drained: agent.drained,
            note: agent.note,
            added_at: agent.added_at,
            health,
            detail,
            free_bytes: status.free_bytes,
            total_bytes: status.total_bytes,
            disks,
            disk_bytes,
            masters: u64::try_from(status.masters.len()).unwrap_or(u64::MAX),
        }
    }
}

fn agent_of(ledger: &Ledger, name: &AgentName) -> Result<Agent, Problem> {
    let none = || Problem::new(404, "agent_not_found", format!("no storage node {name} is in the ledger; see the agent list"));
    ledger.agent(name).ok_or_else(none)
}

/// A node as it is in this ledger, asked now, with the tag of its record.
async fn answer(api: &Api, ledger: &Ledger, name: &AgentName, status: StatusCode) -> Result<Response, Problem> {
    let agent = agent_of(ledger, name)?;
    let etag = etag_of(&agent);
    let probed = api.shared.storage.probe(name).await;
    // What it says of itself has no tag: never "unchanged".
    Ok(tagged(&etag, (status, Json(AgentView::new(ledger, agent, &probed)))))
}

#[derive(Serialize, ToSchema)]
struct AgentList {
    #[schema(max_items = 1000)]
    agents: Vec<AgentView>,
    /// The cursor of what follows; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next: Option<String>,
    /// Of the ledger that this is from.
    generation: u64,
}

/// List storage nodes
#[utoipa::path(get, path = "/v1/agents", tag = "agents", params(Piece),
    responses((status = 200, description = "Ordered by name, this appliance among them", body = AgentList)))]
async fn list_agents(State(api): State<Api>, Query(piece): Query<Piece>) -> Result<Json<AgentList>, Problem> {
    let wanted = piece.wanted()?;
    let ledger = api.shared.ledger.snapshot();
    let statuses = api.shared.storage.probe_all(&ledger).await;
    let page = wanted.take_sorted(statuses.into_iter(), |(name, _)| name.to_string());
    let view = |(name, status): (AgentName, NodeStatus)| Some(AgentView::new(&ledger, ledger.agent(&name)?, &status));
    let agents = page.items.into_iter().filter_map(view).collect();
    Ok(Json(AgentList { agents, next: page.next, generation: ledger.generation }))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct AddAgent {
    #[schema(value_type = NodeName)]
    name: AgentName,
    /// `https://HOST:PORT`
    #[schema(min_length = 8, max_length = 255)]
    base_url: String,
    /// By default that of holding disks.
    #[schema(nullable = false, max_items = 8)]
    roles: Option<Vec<RoleWord>>,
    #[serde(default)]
    #[schema(value_type = Note)]
    note: String,
}

/// Add a storage node
///
/// It is recorded. This version drives only the appliance's own storage: another node is unreachable and gets no disks.
#[utoipa::path(post, path = "/v1/agents", tag = "agents", request_body = AddAgent,
    responses((status = 201, description = "Added", body = AgentView, headers(("ETag" = String), ("Location" = String)))))]
async fn add_agent(State(api): State<Api>, Body(body): Body<AddAgent>) -> Result<Response, Problem> {
    let name = body.name;
    let roles = body.roles.unwrap_or_else(|| vec![RoleWord::Disk]);
    let mut roles: Vec<Role> = roles.into_iter().map(role).collect();
    roles.dedup();
    let agent = Agent { name: name.clone(), base_url: body.base_url, roles, drained: false, note: body.note, added_at: None };
    let (_, ledger) = api.shared.ledger.submit(Change::AddAgent { agent }, &actor()).await?;
    let answer = answer(&api, &ledger, &name, StatusCode::CREATED).await?;
    Ok(([(LOCATION, format!("/v1/agents/{name}"))], answer).into_response())
}

/// Get a storage node
#[utoipa::path(get, path = "/v1/agents/{name}", tag = "agents",
    responses((status = 200, description = "The node, with what it says of itself now", body = AgentView, headers(("ETag" = String)))))]
async fn get_agent(State(api): State<Api>, path: Segments) -> Result<Response, Problem> {
    answer(&api, &api.shared.ledger.snapshot(), &path.read("name")?, StatusCode::OK).await
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct EditAgent {
    /// `https://HOST:PORT`; this appliance has none.
    #[schema(nullable = false, min_length = 8, max_length = 255)]
    base_url: Option<String>,
    #[schema(nullable = false, max_items = 8)]
    roles: Option<Vec<RoleWord>>,
    /// Takes no new disks.
    #[schema(nullable = false)]
    drained: Option<bool>,
    #[schema(value_type = Option<Note>, nullable = false)]
    note: Option<String>,
}

async fn edit(api: &Api, conditions: &Conditions, name: AgentName, body: EditAgent) -> Result<Response, Problem> {
    let roles = body.roles.map(|words| words.into_iter().map(role).collect());
    let change = Change::EditAgent { name: name.clone(), base_url: body.base_url, roles, drained: body.drained, note: body.note };
    let expected = conditions.expect(|tag| Expectation::Agent(name.clone(), tag));
    let (_, ledger) = api.shared.ledger.submit_if(change, &actor(), expected).await?;
    answer(api, &ledger, &name, StatusCode::OK).await
}

/// Edit a storage node
///
/// What is left out stays as it is.
#[utoipa::path(patch, path = "/v1/agents/{name}", tag = "agents", params(IfMatch), request_body = EditAgent,
    responses((status = 200, description = "As it is now", body = AgentView, headers(("ETag" = String)))))]
async fn edit_agent(
    State(api): State<Api>,
    conditions: Conditions,
    path: Segments,
    Body(body): Body<EditAgent>,
) -> Result<Response, Problem> {
    edit(&api, &conditions, path.read("name")?, body).await
}

async fn drain(api: &Api, conditions: &Conditions, path: &Segments, drained: bool) -> Result<Response, Problem> {
    let body = EditAgent { base_url: None, roles: None, drained: Some(drained), note: None };
    edit(api, conditions, path.read("name")?, body).await
}

/// Drain a storage node
///
/// It gets no new disks; those it has stay in service.
#[utoipa::path(post, path = "/v1/agents/{name}/drain", tag = "agents", params(IfMatch),
    responses((status = 200, description = "As it is now", body = AgentView, headers(("ETag" = String)))))]
async fn drain_agent(State(api): State<Api>, conditions: Conditions, path: Segments) -> Result<Response, Problem> {
    drain(&api, &conditions, &path, true).await
}

/// Give a storage node new disks again
#[utoipa::path(post, path = "/v1/agents/{name}/undrain", tag = "agents", params(IfMatch),
    responses((status = 200, description = "As it is now", body = AgentView, headers(("ETag" = String)))))]
async fn undrain_agent(State(api): State<Api>, conditions: Conditions, path: Segments) -> Result<Response, Problem> {
    drain(&api, &conditions, &path, false).await
}

/// Ask a storage node how it is
#[utoipa::path(post, path = "/v1/agents/{name}/probe", tag = "agents", params(IfMatch),
    responses((status = 200, description = "What it says now", body = AgentView, headers(("ETag" = String)))))]
async fn probe_agent(State(api): State<Api>, conditions: Conditions, path: Segments) -> Result<Response, Problem> {
    let name: AgentName = path.read("name")?;
    let ledger = api.shared.ledger.snapshot();
    for expected in conditions.expect(|tag| Expectation::Agent(name.clone(), tag)) {
        expected.check(&ledger).map_err(crate::ledger::SubmitError::from)?;
    }
    answer(&api, &ledger, &name, StatusCode::OK).await
}

/// Remove a storage node
///
/// Refused while it holds disks, and for this appliance.
#[utoipa::path(delete, path = "/v1/agents/{name}", tag = "agents", params(IfMatch), responses((status = 204, description = "Forgotten")))]
async fn remove_agent(State(api): State<Api>, conditions: Conditions, path: Segments) -> Result<StatusCode, Problem> {
    let name: AgentName = path.read("name")?;
    let expected = conditions.expect(|tag| Expectation::Agent(name.clone(), tag));
    api.shared.ledger.submit_if(Change::RemoveAgent { name }, &actor(), expected).await?;
    Ok(StatusCode::NO_CONTENT)
}
