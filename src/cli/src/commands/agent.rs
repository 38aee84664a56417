//! `kurrent agent`, `kurrent join-token`.

use crate::arguments::node::{Agent, JoinToken, One};
use crate::failure::Failure;
use crate::output::{at, clean, fields, text};
use crate::session::{Session, View, body, encoded};
use hyper::Method;
use serde_json::{Value, json};

const AGENTS: View = View {
    key: "agents",
    columns: &[
        ("NAME", "name"),
        ("ADDRESS", "base_url"),
        ("DRAINED", "drained"),
        ("HEALTH", "health"),
        ("DISKS", "disks"),
        ("FREE", "free_bytes"),
        ("OF", "total_bytes"),
        ("DETAIL", "detail"),
        ("NOTE", "note"),
    ],
    none: "no storage nodes",
};
const TOKENS: View = View {
    key: "join_tokens",
    columns: &[("ID", "id"), ("CREATED", "created_at"), ("EXPIRES", "expires_at"), ("EXPIRED", "expired"), ("NOTE", "note")],
    none: "no join tokens",
};

fn path(agent: &One) -> String {
    format!("/v1/agents/{}", agent.agent)
}

/// Carries it out.
pub async fn run(session: &Session, command: Agent) -> Result<(), Failure> {
    let order = async |agent: &One, verb: &str| session.client.post(&format!("{}/{verb}", path(agent)), json!({})).await;
    let answer = match command {
        Agent::List(listing) => return session.list("/v1/agents".into(), AGENTS, listing).await,
        Agent::Get { agent, look } => return session.one(path(&agent), look, fields).await,
        Agent::Add { agent, base_url, note } => {
            let order =
                body([("name", Some(agent.agent.as_str().into())), ("base_url", Some(base_url.into())), ("note", note.map(Value::from))]);
            session.client.post("/v1/agents", order).await?
        }
        Agent::Probe(agent) => order(&agent, "probe").await?,
        Agent::Drain(agent) => order(&agent, "drain").await?,
        Agent::Undrain(agent) => order(&agent, "undrain").await?,
        Agent::Edit { agent, changes } => {
            let order = body([("base_url", changes.base_url.map(Value::from)), ("note", changes.note.map(Value::from))]);
            session.client.change(Method::PATCH, &path(&agent), Some(order), None).await?
        }
        Agent::Remove { agent, sure } => {
            let tag = session.ask(sure, &path(&agent), |_| format!("Forget the storage node {}?", agent.agent)).await?;
            session.client.change(Method::DELETE, &path(&agent), None, tag).await?;
            let name = agent.agent;
            return session.show(&json!({ "removed": name.as_str() }), |_| format!("storage node {name} is forgotten"));
        }
    };
    session.show(&answer, fields)
}

/// Carries it out.
pub async fn join_token(session: &Session, command: JoinToken) -> Result<(), Failure> {
    match command {
        JoinToken::List(listing) => session.list("/v1/join-tokens".into(), TOKENS, listing).await,
        JoinToken::Create { minutes, note } => {
            let order = body([("minutes", minutes.map(Value::from)), ("note", note.map(Value::from))]);
            let answer = session.client.post("/v1/join-tokens", order).await?;
            // The token alone on stdout: it goes into a file or a pipe. It is not kept anywhere else.
            eprintln!("kurrent: join token {}, until {}; it is shown this once", text(at(&answer, "id")), text(at(&answer, "expires_at")));
            session.show(&answer, |answer| text(at(answer, "token")))
        }
        JoinToken::Revoke { id } => {
            session.client.change(Method::DELETE, &format!("/v1/join-tokens/{}", encoded(&id)), None, None).await?;
            session.show(&json!({ "revoked": id }), |_| format!("join token {} is worthless now", clean(&id)))
        }
    }
}
