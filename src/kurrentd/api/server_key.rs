//! The key that machines pin: what it is, what it was, and a new one.

use super::Api;
use super::archives::alone;
use super::body::Body;
use super::names::{Sha256, Time};
use super::problem::Problem;
use crate::api::guard::actor;
use crate::audit::{Audit, Event, Filter, MAX_LIMIT};
use crate::identity::Held;
use axum::Json;
use axum::extract::State;
use kurrent_core::rotation::not_proved_since;
use kurrent_core::time::Wall;
use kurrent_handshake::MAX_LINKS;
use kurrent_sys::store::ReplaceError;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256 as Hash};
use std::collections::BTreeMap;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const VERB: &str = "server-key-rotate";
/// Machines named in a refusal.
const NAMED: usize = 3;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(get_server_key)).routes(routes!(rotate_server_key))
}

/// The key that machines pin.
#[derive(Serialize, ToSchema)]
struct ServerKey {
    /// Ed25519, in hex.
    public_key: String,
    #[schema(value_type = Sha256)]
    fingerprint: String,
    /// The keys before it from which a machine still finds the way here, oldest first.
    #[schema(max_items = 16)]
    former: Vec<FormerKey>,
    /// Rotations until the oldest of them is forgotten.
    #[schema(maximum = 16)]
    rotations_left: usize,
    /// Machines with a key that have not proved it since the last rotation; they follow at their next boot.
    not_followed: usize,
    /// Machines that the next rotation may leave behind: it forgets a key that they may still have pinned.
    left_behind_next: usize,
}

/// A key that was replaced.
#[derive(Serialize, ToSchema)]
struct FormerKey {
    public_key: String,
    #[schema(value_type = Sha256)]
    fingerprint: String,
    /// When; absent where the audit does not go back so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Time>, nullable = false)]
    replaced_at: Option<Wall>,
}

fn fingerprint(key: &[u8; 32]) -> String {
    hex::encode(Hash::digest(key))
}

/// When which key came, by its fingerprint, as far as the audit goes back.
async fn times(audit: Audit) -> Result<BTreeMap<String, Wall>, Problem> {
    let filter = Filter { verb: Some(VERB.into()), result: Some("ok".into()), limit: Some(MAX_LIMIT), ..Filter::default() };
    let read = tokio::task::spawn_blocking(move || audit.read(&filter)).await.map_err(|_| super::problem::of_panic())?;
    let failed = |e| Problem::new(500, "audit_unreadable", format!("the audit can not be read: {e}; check the data partition"));
    Ok(read.map_err(failed)?.entries.into_iter().map(|entry| (entry.object, entry.at)).collect())
}

impl ServerKey {
    async fn of(api: &Api, held: &Held) -> Result<Self, Problem> {
        let times = times(api.shared.audit.clone()).await?;
        let ledger = api.shared.ledger.snapshot();
        let public = held.public();
        let keys: Vec<[u8; 32]> = held.former().collect();
        let next = keys.iter().skip(1).chain([&public]);
        let former: Vec<FormerKey> = keys
            .iter()
            .zip(next)
            .map(|(key, next)| FormerKey {
                public_key: hex::encode(key),
                fingerprint: fingerprint(key),
                replaced_at: times.get(&fingerprint(next)).copied(),
            })
            .collect();
        let behind = |replaced| not_proved_since(&ledger, replaced).len();
        Ok(Self {
            public_key: hex::encode(public),
            fingerprint: fingerprint(&public),
            rotations_left: MAX_LINKS.saturating_sub(former.len()),
            not_followed: former.last().map_or(0, |last| behind(last.replaced_at)),
            left_behind_next: if former.len() < MAX_LINKS { 0 } else { behind(first_known(&former)) },
            former,
        })
    }
}

/// The first rotation whose time is known: who proved itself after it has pinned none of the keys before.
fn first_known(former: &[FormerKey]) -> Option<Wall> {
    former.iter().find_map(|key| key.replaced_at)
}

/// Get the key that machines pin
///
/// With the keys before it. Nothing here is secret: machines show the fingerprint of what they have pinned.
#[utoipa::path(get, path = "/v1/server-key", tag = "system", responses((status = 200, description = "As it is", body = ServerKey)))]
async fn get_server_key(State(api): State<Api>) -> Result<Json<ServerKey>, Problem> {
    ServerKey::of(&api, &api.shared.server_key.now()).await.map(Json)
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RotateServerKey {
    /// Rotate although machines may be left behind.
    #[serde(default)]
    force: bool,
}

/// Make a new key for machines to pin
///
/// Signed by the present one, so that machines follow at their next boot. Make a backup afterwards: one of before does not know
/// the key, and machines that have followed refuse an appliance that was restored from it. At most 16 rotations are remembered:
/// one that would forget a key which machines may still have pinned is refused without `force`.
#[utoipa::path(post, path = "/v1/server-key/rotate", tag = "system", request_body = RotateServerKey,
    responses((status = 200, description = "The new key is durable", body = ServerKey)))]
async fn rotate_server_key(State(api): State<Api>, Body(body): Body<RotateServerKey>) -> Result<Json<ServerKey>, Problem> {
    // A backup or restore beside it would have either key; and of two rotations at once each would count without the other.
    let _alone = alone(&api)?;
    let before = ServerKey::of(&api, &api.shared.server_key.now()).await?;
    if before.left_behind_next > 0 && !body.force {
        let left = not_proved_since(&api.shared.ledger.snapshot(), first_known(&before.former));
        let named: Vec<String> = left.iter().take(NAMED).map(ToString::to_string).collect();
        let more = if left.len() > NAMED { ", …" } else { "" };
        record(&api, "machines_left_behind", String::new());
        let what = format!(
            "{MAX_LINKS} rotations are remembered, and {} machines may have pinned the oldest key ({}{more}): boot them first, or rotate with force and clear \
             their pinned key in the firmware afterwards",
            left.len(),
            named.join(", ")
        );
        return Err(Problem::new(409, "machines_left_behind", what).at("force"));
    }
    let shared = api.shared.clone();
    let rotated = tokio::task::spawn_blocking(move || shared.server_key.rotate()).await.map_err(|_| super::problem::of_panic())?;
    let held = rotated.map_err(|error| {
        let (status, code, advice) = match &error {
            ReplaceError::Unchanged { .. } => (507, "not_durable", "the new key could not be stored, the old one holds"),
            // Machines find the way to either: nobody has pinned the new key, and it is signed by the old one.
            ReplaceError::InDoubt { .. } => {
                (500, "in_doubt", "the old key is used until kurrentd starts again, then the one that the disk has kept; rotate again then")
            }
        };
        record(&api, code, String::new());
        Problem::new(status, code, format!("{advice}: {error}; check the data partition"))
    })?;
    record(&api, "ok", fingerprint(&held.public()));
    ServerKey::of(&api, &held).await.map(Json)
}

fn record(api: &Api, result: &str, object: String) {
    let event = Event { actor: actor(), verb: VERB, device: None, object, result: result.into(), detail: String::new() };
    api.shared.audit.record(event);
}
